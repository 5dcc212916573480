/* A state against the text it stands for: random appending, keeping of a draft's rows, truncating,
 * snapshots, saving and loading. After each, the KV cache holds every position's keys and values, and a
 * recurrent kind, which goes back to snapshots only, what computing from the first token on gives. */
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/attn_f32.h"
#include "kernels/hadamard.h"
#include "model/rows.h"
#include "model/state.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CTX = 100, N_LAYERS = 2, N_KV = 2, D = 4, ROUNDS = 4000 };

/* value = value * 31 + row for every row: what a recurrent matrix is, small. */
typedef struct fold {
    uint64_t value, rows[CTX];
    int n_closed;
} fold;

static uint64_t fold_bytes(const void *self) { return sizeof(((const fold *)self)->value); }
static void fold_append(void *self, int32_t n_tok, int32_t n) {
    fold *f = self;
    for (int32_t i = n_tok; i < n_tok + n; i++) f->value = f->value * 31 + f->rows[i];
}
static void fold_keep(void *self, int32_t slot, int32_t n_tok) {
    fold *f = self;
    (void)n_tok;
    f->value = f->value * 31 + f->rows[slot];
}
static size_t fold_snapshot_bytes(const void *self) { return (size_t)fold_bytes(self); }
static void fold_snapshot(const void *self, void *out) {
    memcpy(out, &((const fold *)self)->value, sizeof(uint64_t));
}
static void fold_restore(void *self, const void *from) {
    fold *f = self;
    if (from) memcpy(&f->value, from, sizeof f->value);
    else f->value = 0;
}
static void fold_transfer(void *self, int32_t n_tok, bool saving, tn_state_io io, void *user) {
    (void)n_tok;
    (void)saving;
    io(user, &((fold *)self)->value, sizeof(uint64_t));
}
static void fold_close(void *self) { ((fold *)self)->n_closed++; }

static const tn_state_ops fold_state = {.name = "fold",
                                        .bytes = fold_bytes,
                                        .append = fold_append,
                                        .keep = fold_keep,
                                        .snapshot_bytes = fold_snapshot_bytes,
                                        .snapshot = fold_snapshot,
                                        .restore = fold_restore,
                                        .transfer = fold_transfer,
                                        .close = fold_close};

typedef struct file {
    char *data;
    size_t n, at, cap;
} file;

static void put(void *user, void *data, size_t n) {
    file *f = user;
    if (!n) return;
    if (f->n + n > f->cap) f->data = realloc(f->data, f->cap = 2 * (f->n + n));
    assert_non_null(f->data);
    memcpy(f->data + f->n, data, n);
    f->n += n;
}

static void get(void *user, void *data, size_t n) {
    file *f = user;
    if (!n) return;
    assert_true(f->at + n <= f->n);
    memcpy(data, f->data + f->at, n);
    f->at += n;
}

static tn_ctx ctx;
static tn_kv_type form; /* of keys and values */
static tn_hparams h = {.n_layers = N_LAYERS,
                       .n_embd = 8,
                       .n_heads = 2,
                       .n_kv_heads = N_KV,
                       .d_head = D,
                       .n_ff = 8,
                       .n_vocab = 16};

static float value_of(uint64_t token, int32_t pos, int layer, int head, int d) {
    return (float)(token % 1000 + (uint64_t)pos * 7 + (uint64_t)(layer * 100 + head * 10 + d));
}

/* What the ops of a forward do: the row of `token`, rotated for `pos`, goes to `slot`. */
static void write_row(tn_state *s, fold *f, uint64_t token, int32_t pos, int32_t slot) {
    float k[D], v[D];
    for (int l = 0; l < N_LAYERS; l++) {
        for (int a = 0; a < N_KV; a++) {
            for (int d = 0; d < D; d++) k[d] = value_of(token, pos, l, a, d), v[d] = -k[d];
            tn_kv_put(&s->kv, l, a, slot, k, v);
        }
    }
    if (f) f->rows[slot] = token;
}

static void check(const tn_state *s, const fold *f, const uint64_t *text, int32_t n) {
    assert_int_equal(s->n_tok, n);
    uint64_t want = 0;
    for (int32_t p = 0; p < n; p++) {
        want = want * 31 + text[p];
        for (int l = 0; l < N_LAYERS; l++) {
            for (int a = 0; a < N_KV; a++) {
                float x[D], y[D], panel[2][TN_KV_PANEL * 32];
                for (int d = 0; d < D; d++) x[d] = value_of(text[p], p, l, a, d), y[d] = -x[d];
                tn_kv_put_key(form, D, panel[0], 0, x);
                tn_kv_put_value(form, D, panel[1], 0, y);
                for (size_t d = 0; d < D; d++) {
                    if (tn_kv_key(form, D, tn_kv_k(&s->kv, l, a), (size_t)p, d) !=
                            tn_kv_key(form, D, panel[0], 0, d) ||
                        tn_kv_value(form, D, tn_kv_v(&s->kv, l, a), (size_t)p, d) !=
                            tn_kv_value(form, D, panel[1], 0, d))
                        fail_msg("position %d of %d is another's", p, n);
                }
            }
        }
    }
    if (f && f->value != want) fail_msg("the recurrent part is not that of these %d tokens", n);
}

static void open_state(tn_state *s, fold *f) {
    tern_error err = {0};
    tn_program p;
    assert_int_equal(tn_program_make(&ctx, &h, &p, &err), TERN_OK);
    assert_int_equal(tn_state_open(&ctx, &p, &h, CTX, form, s, &err), TERN_OK);
    tn_program_free(&p);
    if (f) tn_state_add(s, &fold_state, f);
}

static void follows_the_text(tn_kv_type kv) {
    form = kv;
    for (int recurrent = 0; recurrent < 2; recurrent++) {
        tn_rng rng = {11 + (uint64_t)recurrent};
        tn_state s, other;
        fold fold_s = {0}, fold_other = {0}, *f = recurrent ? &fold_s : NULL;
        tern_error err = {0};
        uint64_t text[CTX];
        int32_t n = 0, marks[ROUNDS], n_marks = 0;
        int n_back = 0, n_places_used = 0;
        open_state(&s, f);
        assert_int_equal(tn_state_truncates(&s), !recurrent);
        for (int round = 0; round < ROUNDS; round++) {
            int32_t room = CTX - n, k = (int32_t)(tn_rng_u64(&rng) % 9) + 1;
            switch (tn_rng_u64(&rng) % 5) {
            case 0: /* rows of a prompt */
                if (k > room) break;
                for (int32_t i = 0; i < k; i++) {
                    text[n + i] = tn_rng_u64(&rng) % 997;
                    write_row(&s, f, text[n + i], n + i, n + i);
                }
                tn_state_append(&s, k);
                n += k;
                break;
            case 1: { /* a draft of k rows, one path: a row of each depth, the others beside it */
                if (k > room) break;
                int32_t depth = 0, slot = 0;
                uint64_t token[9];
                for (int32_t i = 0; i < k; i++) {
                    token[i] = tn_rng_u64(&rng) % 997;
                    write_row(&s, f, token[i], n + (i + 1) / 2, n + i); /* depths 0 1 1 2 2 3 3 .. */
                }
                int32_t base = n;
                for (; slot < k && depth <= k / 2; depth++) {
                    tn_state_keep(&s, base + slot);
                    text[n++] = token[slot];
                    slot = 2 * depth + 1 + (int32_t)(tn_rng_u64(&rng) % 2);
                }
                break;
            }
            case 2: { /* back; what is lost is evaluated again */
                int32_t to = n ? (int32_t)(tn_rng_u64(&rng) % (uint64_t)n) : 0;
                int32_t left = tn_state_truncate(&s, to), want = to;
                if (recurrent && to < n) {
                    while (n_marks && marks[n_marks - 1] > to) n_marks--;
                    want = n_marks > 0 ? marks[n_marks - 1] : 0;
                    /* only the youngest marks are kept */
                    n_back += left != want;
                    assert_true(left == want || left == 0);
                    if (!left) n_marks = 0;
                } else {
                    assert_int_equal(left, to);
                }
                n = left;
                break;
            }
            case 3:
                assert_int_equal(tn_state_snapshot(&s, &err), TERN_OK);
                if (n_marks == 0 || marks[n_marks - 1] != n) marks[n_marks++] = n;
                break;
            default: { /* through a file, into another state */
                file a = {0}, b = {0};
                tn_state_places places = {.end = 0}, again = places;
                uint64_t n_bytes;
                open_state(&other, recurrent ? &fold_other : NULL);
                tn_state_places_of(&s, &places, &n_bytes);
                assert_int_equal(places.n > 0,
                                 s.n_marks > 0); /* those that are worth their room, one at least */
                tn_state_save(&s, &places, put, &a);
                assert_int_equal(tn_state_load(&other, &h, n, form, &places, get, &a, &err), TERN_OK);
                assert_int_equal(a.at, a.n);
                check(&other, recurrent ? &fold_other : NULL, text, n);
                tn_state_places_of(&other, &again, &n_bytes);
                assert_memory_equal(&again, &places, sizeof places);
                assert_true(n_bytes <= a.n);
                tn_state_save(&other, &again, put, &b);
                assert_true(a.n == b.n &&
                            (!a.n || memcmp(a.data, b.data, a.n) == 0)); /* the same text, the same bytes */
                if (places.n) { /* it goes back to each of them as the one that was saved would */
                    int32_t to = (int32_t)(tn_rng_u64(&rng) % (uint64_t)(n + 1)), want = 0;
                    for (int32_t i = 0; i < places.n && places.at[i] <= to; i++) want = places.at[i];
                    if (to >= n) want = n;
                    assert_int_equal(tn_state_truncate(&other, to), want);
                    check(&other, recurrent ? &fold_other : NULL, text, want);
                    n_places_used += want > 0 && to < n;
                }
                tn_state_close(&other);
                free(a.data);
                free(b.data);
            }
            }
            check(&s, f, text, n);
        }
        assert_true(n_back < ROUNDS / 20);
        assert_true(!recurrent || n_places_used > 5);
        uint64_t bytes = tn_state_bytes(&s);
        assert_true(bytes >= tn_state_bytes_of(&h, CTX, form) && bytes < 100000);
        tn_state_close(&s);
        assert_int_equal(ctx.live_bytes[TN_MEM_KV], 0);
        if (recurrent) assert_int_equal(fold_s.n_closed, 1);
    }
}

static void floats_follow_the_text(void **state) {
    (void)state;
    follows_the_text(TN_KV_F32);
}

static void halves_follow_the_text(void **state) {
    (void)state;
    follows_the_text(TN_KV_F16);
}

static void codes_follow_the_text(void **state) {
    (void)state;
    follows_the_text(TN_KV_INT8);
    follows_the_text(TN_KV_INT4);
}

/* Nearly normal: the sum of twelve. */
static float normal(tn_rng *rng) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)tn_rng_below(rng, 1 << 20) / (1 << 20);
    return (float)sum;
}

/* Copied or loaded into a state of another form, every value is what that form keeps of what the first one
 * kept. Keys that are kept rotated are turned back on the way. */
static void forms_convert(void **state) {
    (void)state;
    enum { N = 45, HEAD = 64 };
    tn_hparams wide = h;
    tern_error err = {0};
    tn_program p;
    wide.d_head = HEAD;
    assert_int_equal(tn_program_make(&ctx, &wide, &p, &err), TERN_OK);
    for (int from = 0; from < TN_N_KV_TYPES; from++) {
        for (int to = 0; to < TN_N_KV_TYPES; to++) {
            tn_state a, b, c;
            tn_rng rng = {3};
            file f = {0};
            float k[HEAD], v[HEAD];
            assert_int_equal(tn_state_open(&ctx, &p, &wide, CTX, (tn_kv_type)from, &a, &err), TERN_OK);
            assert_int_equal(tn_state_open(&ctx, &p, &wide, CTX + 40, (tn_kv_type)to, &b, &err), TERN_OK);
            assert_int_equal(tn_state_open(&ctx, &p, &wide, CTX, (tn_kv_type)to, &c, &err), TERN_OK);
            for (int32_t i = 0; i < N * N_LAYERS * N_KV; i++) {
                for (int d = 0; d < HEAD; d++) k[d] = normal(&rng), v[d] = normal(&rng);
                tn_kv_put(&a.kv, i % N_LAYERS, i / N_LAYERS % N_KV, i / N_LAYERS / N_KV, k, v);
            }
            tn_state_append(&a, N);
            assert_int_equal(tn_state_copy(&b, &a, N, &err), TERN_OK);
            const tn_state_places none = {0};
            tn_state_save(&a, &none, put, &f);
            assert_int_equal(tn_state_load(&c, &wide, N, (tn_kv_type)from, &none, get, &f, &err), TERN_OK);
            assert_int_equal(f.at, f.n);
            double worst = 0, sum = 0, n = 0;
            for (size_t i = 0; i < N * N_LAYERS * N_KV; i++) {
                int l = (int)i % N_LAYERS, head = (int)i / N_LAYERS % N_KV;
                size_t pos = i / N_LAYERS / N_KV;
                float x[3][HEAD], y[3][HEAD];
                const tn_state *s[3] = {&a, &b, &c};
                for (int j = 0; j < 3; j++) {
                    for (size_t d = 0; d < HEAD; d++) {
                        x[j][d] = tn_kv_key(s[j]->kv.type, HEAD, tn_kv_k(&s[j]->kv, l, head), pos, d);
                        y[j][d] = tn_kv_value(s[j]->kv.type, HEAD, tn_kv_v(&s[j]->kv, l, head), pos, d);
                    }
                    if (s[j]->kv.rotated) tn_hadamard_f32_ref(x[j], HEAD);
                }
                assert_memory_equal(x[1], x[2], sizeof x[1]);
                assert_memory_equal(y[1], y[2], sizeof y[1]);
                for (int d = 0; d < HEAD; d++) {
                    double e = (double)(x[1][d] - x[0][d]), g = (double)(y[1][d] - y[0][d]);
                    worst = fmax(worst, fmax(fabs(e), fabs(g)));
                    sum += e * e + g * g;
                    n += 2;
                }
            }
            /* root mean square error of normal values; exact where the form has room */
            double rms = sqrt(sum / n);
            assert_true(rms <= (to == TN_KV_F32    ? 1e-6
                                : to == TN_KV_F16  ? 1e-3
                                : to == TN_KV_INT8 ? 0.02
                                                   : 0.15));
            if (from == to) assert_true(worst == 0);
            free(f.data);
            tn_state_close(&a);
            tn_state_close(&b);
            tn_state_close(&c);
        }
    }
    tn_program_free(&p);
}

/* Attention over a cache in any form, against double arithmetic over the values that were put: every row
 * alone, all heads of a KV head together and a prompt's rows have the same bits, and the error is that of
 * the form. int4 here has its keys rotated: a query that was not would be off by as much as the scores are
 * large. */
static void rows_attend_to_every_form(void **state) {
    (void)state;
    enum { N = 70, HEAD = 64, HEADS = 4 };
    static float k[N][N_KV][HEAD], v[N][N_KV][HEAD], q[N][HEADS][HEAD], out[3][N][HEADS][HEAD];
    static const double most[] = {1e-6, 1e-3, 0.01, 0.12}; /* root mean square, of values around 1 */
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    tn_hparams one = h;
    one.n_layers = 1;
    one.n_heads = HEADS;
    one.d_head = HEAD;
    one.attn_scale = 0.125f;
    tn_rng rng = {9};
    int32_t pos[N];
    for (int32_t p = 0; p < N; p++) {
        pos[p] = p;
        for (int d = 0; d < HEAD; d++) {
            for (int a = 0; a < N_KV; a++) k[p][a][d] = normal(&rng), v[p][a][d] = normal(&rng);
            for (int a = 0; a < HEADS; a++) q[p][a][d] = normal(&rng);
        }
    }
    for (int t = 0; t < TN_N_KV_TYPES; t++) {
        tn_kv kv;
        tern_error err = {0};
        assert_int_equal(tn_kv_open(&ctx, &one, N, (tn_kv_type)t, &kv, &err), TERN_OK);
        assert_int_equal(kv.rotated, t == TN_KV_INT4);
        for (int p = 0; p < N; p++) {
            for (int a = 0; a < N_KV; a++) tn_kv_put(&kv, 0, a, p, k[p][a], v[p][a]);
        }
        float *scratch = malloc(tn_rows_scratch(&one, kv.cap_tok) * sizeof *scratch);
        tn_rows r = {
            .h = &one, .kern = &kern, .kv = &kv, .n_rows = N, .pos = pos, .slot = pos, .tree_base = -1};
        for (int a = 0; a < HEADS; a++) {
            tn_rows_attention(&r, 0, NULL, a, &q[0][0][0], &out[0][0][0][0], 0, N, scratch);
            for (int p = 0; p < N; p++)
                tn_rows_attention(&r, 0, NULL, a, &q[0][0][0], &out[1][0][0][0], p, p + 1, scratch);
        }
        for (int a = 0; a < N_KV; a++)
            tn_rows_attention_group(&r, 0, NULL, a, &q[0][0][0], &out[2][0][0][0], 0, N, scratch);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        assert_memory_equal(out[0], out[2], sizeof out[0]);
        double sum = 0;
        for (int p = 0; p < N; p++) {
            for (int a = 0; a < HEADS; a++) {
                double w[N], total = 0, want[HEAD] = {0};
                for (int i = 0; i <= p; i++) {
                    double s = 0;
                    for (int d = 0; d < HEAD; d++) s += (double)q[p][a][d] * (double)k[i][a / 2][d];
                    total += w[i] = exp(s / 8);
                    for (int d = 0; d < HEAD; d++) want[d] += w[i] * (double)v[i][a / 2][d];
                }
                for (int d = 0; d < HEAD; d++) {
                    double e = (double)out[0][p][a][d] - want[d] / total;
                    sum += e * e / N / HEADS / HEAD;
                }
            }
        }
        if (!(sqrt(sum) <= most[t])) fail_msg("%s: error %g", tn_kv_type_name((tn_kv_type)t), sqrt(sum));
        free(scratch);
        tn_kv_close(&kv);
    }
}

/* A snapshot of 4 MiB, which is nothing else. */
static size_t big_snapshot_bytes(const void *self) { return (void)self, (size_t)4 << 20; }
static void big_snapshot(const void *self, void *out) { (void)self, (void)out; }
static void big_transfer(void *self, int32_t n_tok, bool saving, tn_state_io io, void *user) {
    (void)self, (void)n_tok, (void)saving, (void)io, (void)user;
}
static const tn_state_ops big_state = {.name = "big",
                                       .bytes = fold_bytes,
                                       .append = NULL,
                                       .keep = fold_keep,
                                       .snapshot_bytes = big_snapshot_bytes,
                                       .snapshot = big_snapshot,
                                       .restore = fold_restore,
                                       .transfer = big_transfer,
                                       .close = fold_close};

static void get_zeros(void *user, void *data, size_t n) {
    (void)user;
    memset(data, 0, n);
}

/* A file may name more places than there is room for snapshots of. */
static void too_many_places(void **state) {
    (void)state;
    tn_state s;
    tern_error err;
    fold f = {0};
    tn_state_places places = {.n = TN_STATE_MARKS};
    form = TN_KV_F32;
    for (int32_t i = 0; i < TN_STATE_MARKS; i++) places.at[i] = i + 1;
    open_state(&s, NULL);
    tn_state_add(&s, &big_state, &f);
    assert_int_equal(tn_state_load(&s, &h, TN_STATE_MARKS, form, &places, get_zeros, NULL, &err), TERN_OK);
    const int32_t most = TN_STATE_MARK_BYTES / ((4 << 20) + 1);
    assert_int_equal(s.n_marks, most);
    assert_int_equal(s.marks[most - 1].n_tok, TN_STATE_MARKS);
    for (int32_t i = 0; i < 20; i++) {
        tn_state_append(&s, 1);
        assert_int_equal(tn_state_snapshot(&s, &err), TERN_OK);
        assert_int_equal(s.n_marks, most);
        assert_int_equal(s.marks[most - 1].n_tok, s.n_tok);
    }
    tn_state_close(&s);
    assert_int_equal(ctx.live_bytes[TN_MEM_KV], 0);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_follow_the_text), cmocka_unit_test(halves_follow_the_text),
        cmocka_unit_test(codes_follow_the_text),  cmocka_unit_test(forms_convert),
        cmocka_unit_test(too_many_places),        cmocka_unit_test(rows_attend_to_every_form)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
