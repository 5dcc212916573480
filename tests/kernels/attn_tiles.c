/* Attention of tiles: every variant against full attention over a copy of the listed positions, and over all
 * positions against full attention itself, bit for bit. */
#include "check.h"
#include "f32_variants.h"

#include <math.h>

enum { MAX_TILES = 70, MAX_ROWS = 12, MAX_POS = 700 };

typedef struct problem {
    check_buf k, v, panels, q[MAX_TILES], idx[MAX_TILES];
    int32_t first[MAX_TILES][MAX_ROWS], end[MAX_TILES][MAX_ROWS];
    tn_attn_tile tiles[MAX_TILES];
    tn_attn_tiles_args a;
    size_t n_rows, most_rows, longest, n_pos;
} problem;

/* Keys and values that no list names are NaN, so that reading them shows; all: the lists name every position;
 * whole: every row sees its whole list. */
static void problem_new(problem *p, tn_rng *rng, size_t n_tiles, size_t n_pos, size_t d, bool all,
                        bool whole) {
    size_t n_room = (n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    bool named[MAX_POS + 32] = {false};
    *p = (problem){.k = check_new(n_pos * d * 4),
                   .panels = check_new(n_room * d * 4),
                   .v = check_new(n_pos * d * 4),
                   .n_pos = n_pos};
    check_fill_f32(rng, CHECK_RANDOM, p->k.p, p->k.n_bytes / 4);
    check_fill_f32(rng, CHECK_RANDOM, p->v.p, p->v.n_bytes / 4);
    for (size_t t = 0; t < n_tiles; t++) {
        size_t n_rows = 1 + tn_rng_below(rng, MAX_ROWS), n = 0, share = 1 + tn_rng_below(rng, 100);
        uint32_t list[MAX_POS];
        for (uint32_t pos = 0; pos < n_pos; pos++) {
            if (!all && tn_rng_below(rng, 100) >= share && (pos + 1 < n_pos || n)) continue;
            list[n++] = pos;
            named[pos] = true;
        }
        p->idx[t] = check_new(n * 4);
        memcpy(p->idx[t].p, list, n * 4);
        p->q[t] = check_new(n_rows * d * 4);
        check_fill_f32(rng, CHECK_RANDOM, p->q[t].p, p->q[t].n_bytes / 4);
        for (size_t r = 0; r < n_rows; r++) { /* neighbours' ends lie close together, or anywhere */
            size_t back = tn_rng_below(rng, t % 3   ? n
                                            : n < 4 ? n
                                                    : 4),
                   from = tn_rng_below(rng, 2) ? 0 : tn_rng_below(rng, n - back);
            p->end[t][r] = (int32_t)(whole ? n : n - back);
            p->first[t][r] = (int32_t)(whole ? 0 : from);
        }
        p->tiles[t] = (tn_attn_tile){.q = p->q[t].p,
                                     .n_rows = n_rows,
                                     .idx = p->idx[t].p,
                                     .n_idx = n,
                                     .first = p->first[t],
                                     .end = p->end[t]};
        p->n_rows += n_rows;
        if (n_rows > p->most_rows) p->most_rows = n_rows;
        p->longest = n > p->longest ? n : p->longest;
    }
    for (size_t pos = 0; pos < n_pos; pos++) {
        for (size_t i = 0; i < d; i++) {
            float *key = (float *)p->k.p + pos * d + i;
            if (!named[pos]) *key = ((float *)p->v.p)[pos * d + i] = NAN;
            ((float *)
                 p->panels.p)[pos / TN_KV_PANEL * d * TN_KV_PANEL + i * TN_KV_PANEL + pos % TN_KV_PANEL] =
                *key;
        }
    }
    p->a = (tn_attn_tiles_args){.tiles = p->tiles,
                                .n_tiles = n_tiles,
                                .k = p->k.p,
                                .v = p->v.p,
                                .d_head = d,
                                .scale = 1 / sqrtf((float)d),
                                .soft_cap = tn_rng_below(rng, 4) ? 0 : 15};
}

static void problem_free(problem *p) {
    check_free(&p->k);
    check_free(&p->v);
    check_free(&p->panels);
    for (size_t t = 0; t < p->a.n_tiles; t++) {
        check_free(&p->q[t]);
        check_free(&p->idx[t]);
    }
}

/* All tiles' rows one after another. */
static check_buf run(tn_attn_tiles_fn fn, problem *p) {
    size_t d = p->a.d_head;
    check_buf o = check_new(p->n_rows * d * 4),
              scratch = check_new((tn_attn_tiles_scratch(p->most_rows, p->longest, d) * 4 + 63) / 64 * 64);
    float *out = o.p;
    for (size_t t = 0; t < p->a.n_tiles; out += p->tiles[t++].n_rows * d) p->tiles[t].out = out;
    p->a.scratch = scratch.p;
    fn(&p->a);
    check_free(&scratch);
    return o;
}

static void test_variants(void **state) {
    (void)state;
    f32_variant v[4];
    int n_variants = f32_variants(v);
    static const size_t ds[] = {4, 20, 64, 128, 160};
    tn_rng rng = {5};
    problem *p = malloc(sizeof *p);
    for (int round = 0; round < check_rounds(200); round++) {
        size_t n_pos = round % 7 == 0 ? 1 + tn_rng_below(&rng, 3) : 1 + tn_rng_below(&rng, MAX_POS - 1);
        bool all = round % 4 == 0, whole = round % 3 == 0; /* one tile seen whole: what decoding asks for */
        problem_new(p, &rng,
                    round == 60 ? MAX_TILES
                    : whole     ? 1
                                : 1 + tn_rng_below(&rng, 4),
                    n_pos, ds[round % 5], all, whole);
        check_buf want = run(tn_attn_tiles_ref, p);
        for (int x = 0; x < n_variants; x++) {
            check_buf got = run(v[x].k.attn_tiles, p);
            if (memcmp(got.p, want.p, want.n_bytes))
                fail_msg("%s: round %d, %zu positions", v[x].name, round, n_pos);
            if (all) { /* the same rows over the cache itself */
                check_buf scratch = check_new(tn_attn_f32_scratch(ds[round % 5], n_pos + 32) * 4),
                          full = check_new(want.n_bytes);
                float *out = full.p;
                for (const tn_attn_tile *t = p->tiles; t < p->tiles + p->a.n_tiles;
                     out += t->n_rows * ds[round % 5], t++) {
                    v[x].k.attn_f32(&(tn_attn_f32_args){.q = t->q,
                                                        .q_stride = p->a.d_head,
                                                        .out = out,
                                                        .out_stride = p->a.d_head,
                                                        .k_panels = p->panels.p,
                                                        .v = p->v.p,
                                                        .n_rows = t->n_rows,
                                                        .d_head = p->a.d_head,
                                                        .scale = p->a.scale,
                                                        .soft_cap = p->a.soft_cap,
                                                        .first_pos = t->first,
                                                        .end_pos = t->end,
                                                        .scratch = scratch.p});
                }
                if (memcmp(full.p, want.p, want.n_bytes))
                    fail_msg("%s: round %d is not full attention", v[x].name, round);
                check_free(&scratch);
                check_free(&full);
            }
            check_free(&got);
        }
        check_free(&want);
        problem_free(p);
    }
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
