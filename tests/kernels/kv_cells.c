/* The forms of a KV cache: what they keep of a value, and that every kernel computes with exactly the
 * floats that the cells stand for, bit for bit. */
#include "check.h"
#include "f32_variants.h"

#include "base/half.h"

#include <math.h>
#include <stdbool.h>

enum { MAX_D = 256 };

static const tn_kv_type coded[] = {TN_KV_F16, TN_KV_INT8, TN_KV_INT4};

/* Returns the largest magnitude of the group of element i. */
static float group_max(const float *x, size_t d, size_t i) {
    float max = 0;
    size_t from = i / TN_KV_GROUP * TN_KV_GROUP;
    for (size_t j = from; j < d && j < from + TN_KV_GROUP; j++) max = fmaxf(max, fabsf(x[j]));
    return max;
}

/* Half of what lies between neighbours: of halves, 2^-11 of the value; of codes, half a step, which is the
 * group's largest magnitude by 127 or by 8, and a whole one at the end of int4 that has no code 8; and
 * what the scale as a half loses. */
static float bound(tn_kv_type type, const float *x, size_t d, size_t i) {
    if (type == TN_KV_F32) return 0;
    if (type == TN_KV_F16) return fmaxf(fabsf(x[i]) * 0x1p-11f, 0x1p-25f);
    float max = group_max(x, d, i), step = type == TN_KV_INT8 ? max / 127 : max / 8;
    return (type == TN_KV_INT8 ? 0.5f : 1.0f) * step + max * 0x1p-10f + 127 * 0x1p-25f;
}

static void test_cells_keep_values(void **state) {
    (void)state;
    static const size_t ds[] = {4, 20, 32, 64, 80, 128, 256};
    tn_rng rng = {check_seed()};
    for (int t = 0; t < TN_N_KV_TYPES; t++) {
        tn_kv_type type = (tn_kv_type)t;
        assert_int_equal(tn_kv_type_parse(tn_kv_type_name(type)), type);
        for (size_t j = 0; j < sizeof ds / sizeof *ds; j++) {
            size_t d = ds[j], bytes = 3 * tn_kv_panel_bytes(type, d);
            check_buf k = check_new(bytes), v = check_new(bytes), rows = check_new(bytes);
            float x[70][MAX_D], y[70][MAX_D];
            for (size_t p = 0; p < 70; p++) {
                for (size_t i = 0; i < d; i++) {
                    float scale = p % 3 ? 1 : p % 2 ? 1e-6f : 1000;
                    x[p][i] = ((float)tn_rng_below(&rng, 2001) - 1000) / 1000 * scale;
                    y[p][i] = ((float)tn_rng_below(&rng, 2001) - 1000) / 1000 * scale;
                }
                tn_kv_put_key(type, d, k.p, p, x[p]);
                tn_kv_put_value(type, d, v.p, p, y[p]);
            }
            tn_kv_copy_key(type, d, k.p, 3, 69);
            tn_kv_copy_value(type, d, v.p, 3, 69);
            memcpy(x[69], x[3], sizeof x[3]);
            memcpy(y[69], y[3], sizeof y[3]);
            for (size_t p = 0; p < 70; p++) {
                tn_kv_key_as_value(type, d, k.p, p, rows.p);
                for (size_t i = 0; i < d; i++) {
                    float a = tn_kv_key(type, d, k.p, p, i), b = tn_kv_value(type, d, v.p, p, i);
                    if (!(fabsf(a - x[p][i]) <= bound(type, x[p], d, i)) ||
                        !(fabsf(b - y[p][i]) <= bound(type, y[p], d, i)))
                        fail_msg("%s, d %zu, position %zu [%zu]: %g for %g, %g for %g", tn_kv_type_name(type),
                                 d, p, i, (double)a, (double)x[p][i], (double)b, (double)y[p][i]);
                    assert_true(tn_kv_value(type, d, rows.p, p, i) == a);
                }
            }
            check_free(&k);
            check_free(&v);
            check_free(&rows);
        }
    }
    assert_int_equal(tn_kv_type_parse("int2"), TN_N_KV_TYPES);
}

/* What is not finite must stay visible: the engine looks for it when logits are no numbers. Large values
 * saturate. */
static void test_what_is_not_finite_shows(void **state) {
    (void)state;
    enum { D = 64 };
    static const float wild[] = {NAN, INFINITY, -INFINITY};
    for (int t = 0; t < TN_N_KV_TYPES; t++) {
        tn_kv_type type = (tn_kv_type)t;
        check_buf v = check_new(tn_kv_panel_bytes(type, D));
        for (size_t w = 0; w < 4; w++) {
            for (size_t at = 0; at < D; at += 21) {
                float x[D];
                bool finite = true;
                for (size_t i = 0; i < D; i++) x[i] = i % 2 ? 7 : -3;
                x[at] = w < 3 ? wild[w] : 1e5f;
                tn_kv_put_value(type, D, v.p, 5, x);
                for (size_t i = 0; i < D; i++) finite = finite && isfinite(tn_kv_value(type, D, v.p, 5, i));
                assert_int_equal(finite, w == 3);
                if (w == 3 && type == TN_KV_F16) assert_true(tn_kv_value(type, D, v.p, 5, at) == 65504);
            }
        }
        check_free(&v);
    }
    for (uint32_t u = 0; u < 1u << 16; u++) { /* every half is kept as it is */
        float x[4] = {tn_f16_f32((uint16_t)u)}, back;
        uint16_t cells[TN_KV_PANEL * 4];
        tn_kv_put_value(TN_KV_F16, 4, cells, 0, x);
        back = tn_kv_value(TN_KV_F16, 4, cells, 0, 0);
        assert_true(back == x[0] || (isnan(back) && isnan(x[0])));
    }
}

/* A cache in some form, and the floats that it stands for. */
typedef struct cache {
    check_buf k, v, rows, float_k, float_v, float_rows;
} cache;

static cache cache_new(tn_rng *rng, tn_kv_type type, size_t d, size_t n_pos) {
    size_t n_panels = (n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL, n = n_panels * TN_KV_PANEL,
           bytes = n_panels * tn_kv_panel_bytes(type, d), floats = n * d * sizeof(float);
    cache c = {check_new(bytes),  check_new(bytes),  check_new(bytes),
               check_new(floats), check_new(floats), check_new(floats)};
    float k[MAX_D], v[MAX_D];
    for (size_t p = 0; p < n; p++) {
        check_fill_f32(rng, CHECK_RANDOM, k, d);
        check_fill_f32(rng, CHECK_RANDOM, v, d);
        for (size_t i = 0; p >= n_pos && i < d; i++) k[i] = v[i] = NAN; /* what no row sees */
        tn_kv_put_key(type, d, c.k.p, p, k);
        tn_kv_put_value(type, d, c.v.p, p, v);
        tn_kv_key_as_value(type, d, c.k.p, p, c.rows.p);
        for (size_t i = 0; i < d; i++) {
            k[i] = tn_kv_key(type, d, c.k.p, p, i);
            v[i] = tn_kv_value(type, d, c.v.p, p, i);
        }
        tn_kv_put_key(TN_KV_F32, d, c.float_k.p, p, k);
        tn_kv_put_value(TN_KV_F32, d, c.float_rows.p, p, k);
        tn_kv_put_value(TN_KV_F32, d, c.float_v.p, p, v);
    }
    return c;
}

static void cache_free(cache *c) {
    check_buf *all[] = {&c->k, &c->v, &c->rows, &c->float_k, &c->float_v, &c->float_rows};
    for (int i = 0; i < 6; i++) check_free(all[i]);
}

static void test_full_attention_reads_every_form(void **state) {
    (void)state;
    enum { ROWS = 49, SLOTS = 64 };
    static const size_t ds[] = {4, 20, 64, 80, 128, 256}, rows[] = {1, 6, 7, 25, 49},
                        ctxs[] = {1, 33, 64, 129, 300};
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    for (int round = 0; round < check_rounds(90); round++) {
        tn_kv_type type = coded[round % 3];
        size_t d = ds[tn_rng_below(&rng, 6)], n_rows = rows[tn_rng_below(&rng, 5)],
               ctx = ctxs[tn_rng_below(&rng, 5)];
        bool tree = round % 4 == 3;
        size_t n_pos = ctx + (tree ? SLOTS : 0);
        cache c = cache_new(&rng, type, d, n_pos);
        int32_t first[ROWS], end[ROWS];
        uint64_t mask[ROWS];
        for (size_t r = 0; r < n_rows; r++) {
            end[r] = (int32_t)(tree ? ctx : 1 + tn_rng_below(&rng, ctx));
            first[r] = tn_rng_below(&rng, 2) ? 0 : (int32_t)tn_rng_below(&rng, (uint64_t)end[r]);
            mask[r] = tn_rng_u64(&rng) & tn_rng_u64(&rng);
        }
        check_buf q = check_new(n_rows * d * 4), want = check_new(n_rows * d * 4),
                  scratch = check_new(tn_attn_f32_scratch(d, n_pos) * 4);
        check_fill_f32(&rng, CHECK_RANDOM, q.p, n_rows * d);
        tn_attn_f32_args a = {.q = q.p,
                              .q_stride = d,
                              .out = want.p,
                              .out_stride = d,
                              .k_panels = c.float_k.p,
                              .v = c.float_v.p,
                              .n_rows = n_rows,
                              .d_head = d,
                              .scale = 1 / sqrtf((float)d),
                              .soft_cap = round % 5 ? 0 : 3,
                              .first_pos = first,
                              .end_pos = end,
                              .tree_mask = tree ? mask : NULL,
                              .tree_base = ctx,
                              .n_tree_words = tree,
                              .scratch = scratch.p};
        tn_attn_f32_ref(&a);
        a.k_panels = c.k.p;
        a.v = c.v.p;
        a.kv = type;
        for (int i = 0; i < n_v; i++) {
            check_buf got = check_new(want.n_bytes);
            a.out = got.p;
            v[i].k.attn_f32(&a);
            if (memcmp(got.p, want.p, want.n_bytes))
                fail_msg("%s, %s: %zu rows, d %zu, %zu positions%s", v[i].name, tn_kv_type_name(type), n_rows,
                         d, ctx, tree ? " and a tree" : "");
            check_free(&got);
        }
        check_free(&q);
        check_free(&want);
        check_free(&scratch);
        cache_free(&c);
    }
}

static void test_tiles_read_every_form(void **state) {
    (void)state;
    enum { ROWS = 33, POS = 500, TILES = 3 };
    static const size_t ds[] = {4, 20, 64, 80, 128, 256};
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    for (int round = 0; round < check_rounds(60); round++) {
        tn_kv_type type = coded[round % 3];
        size_t d = ds[tn_rng_below(&rng, 6)], n_tiles = round % 4 ? 1 + tn_rng_below(&rng, TILES) : 1,
               n_rows = round % 4 ? 1 + tn_rng_below(&rng, ROWS) : 1 + tn_rng_below(&rng, 8);
        cache c = cache_new(&rng, type, d, POS);
        uint32_t idx[TILES][POS];
        int32_t first[ROWS], end[ROWS];
        tn_attn_tile tiles[TILES];
        size_t size = n_rows * d, least = POS, longest = 0;
        check_buf q = check_new(size * 4), want = check_new(n_tiles * size * 4);
        check_fill_f32(&rng, CHECK_RANDOM, q.p, size);
        for (size_t t = 0; t < n_tiles; t++) {
            size_t n = 0, share = 1 + tn_rng_below(&rng, 100);
            for (uint32_t p = 0; p < POS; p++) {
                if (p + 1 == POS || tn_rng_below(&rng, 100) < share) idx[t][n++] = p;
            }
            tiles[t] = (tn_attn_tile){
                .q = q.p, .n_rows = n_rows, .idx = idx[t], .n_idx = n, .first = first, .end = end};
            least = n < least ? n : least;
            longest = n > longest ? n : longest;
        }
        for (size_t r = 0; r < n_rows; r++) { /* a tile seen whole is what decoding asks for */
            end[r] = (int32_t)(n_tiles == 1 && round % 4 == 0 ? least : 1 + tn_rng_below(&rng, least));
            first[r] = round % 2 ? (int32_t)tn_rng_below(&rng, (uint64_t)end[r]) : 0;
        }
        check_buf scratch = check_new((tn_attn_tiles_scratch(n_rows, longest, d) * 4 + 63) / 64 * 64);
        tn_attn_tiles_args a = {.tiles = tiles,
                                .n_tiles = n_tiles,
                                .k = c.float_rows.p,
                                .v = c.float_v.p,
                                .d_head = d,
                                .scale = 1 / sqrtf((float)d),
                                .soft_cap = round % 5 ? 0 : 3,
                                .scratch = scratch.p};
        for (size_t t = 0; t < n_tiles; t++) tiles[t].out = (float *)want.p + t * size;
        tn_attn_tiles_ref(&a);
        a.k = c.rows.p;
        a.v = c.v.p;
        a.kv = type;
        for (int i = 0; i < n_v; i++) {
            check_buf got = check_new(want.n_bytes);
            for (size_t t = 0; t < n_tiles; t++) tiles[t].out = (float *)got.p + t * size;
            v[i].k.attn_tiles(&a);
            if (memcmp(got.p, want.p, want.n_bytes))
                fail_msg("%s, %s: %zu tiles of %zu rows, d %zu", v[i].name, tn_kv_type_name(type), n_tiles,
                         n_rows, d);
            check_free(&got);
        }
        check_free(&q);
        check_free(&want);
        check_free(&scratch);
        cache_free(&c);
    }
}

static void test_rows_are_the_cells(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    static const size_t ds[] = {4, 20, 64, 80, 128, 256};
    for (int round = 0; round < check_rounds(40); round++) {
        tn_kv_type type = (tn_kv_type)(round % TN_N_KV_TYPES);
        size_t d = ds[tn_rng_below(&rng, 6)], at = tn_rng_below(&rng, 90),
               n = 1 + tn_rng_below(&rng, 100 - at);
        cache c = cache_new(&rng, type, d, 100);
        for (int i = 0; i < n_v; i++) {
            check_buf got = check_new(n * d * 4);
            v[i].k.kv_rows(type, d, c.v.p, at, n, got.p);
            assert_memory_equal(got.p, (float *)c.float_v.p + at * d, n * d * 4);
            check_free(&got);
        }
        cache_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells_keep_values),
        cmocka_unit_test(test_what_is_not_finite_shows),
        cmocka_unit_test(test_full_attention_reads_every_form),
        cmocka_unit_test(test_tiles_read_every_form),
        cmocka_unit_test(test_rows_are_the_cells),
    };
    return cmocka_run_group_tests_name("kv_cells", tests, NULL, NULL);
}
