/* Rows of a picture that have places of their own on the axes of rope, and values for the first layers. Logits are compared
 * with a model in double precision that is written down here from its definition, positions included; the bits must be
 * the same in whatever pieces a text comes, beside other texts, with drafts, in copies and in saved sessions. */
#include "formats/gguf.h"
#include "model/arch.h"
#include "model/axes.h"
#include "session/pictures.h"
#include "session/session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { LINES = 3, COLUMNS = 5, SMALL = 4, CTX = 512 }; /* of a picture, and of another one that is square */
enum { N_ROWS = LINES * COLUMNS, N_SMALL = SMALL * SMALL };

static char qwen3vl[FIXTURE_PATH], packed[FIXTURE_PATH], qwen2vl[FIXTURE_PATH], qwen35[FIXTURE_PATH],
    moe[FIXTURE_PATH];

/* ---- texts with pictures ------------------------------------------------------------------------------- */

static float embedding; /* the largest value of one */

static void measure_embedding(void) {
    tern_engine *e = fixture_engine(qwen3vl, NULL);
    const size_t n = (size_t)e->model->h.n_embd;
    float *x = malloc(n * sizeof *x);
    tn_linear_row(tn_model_linear(e->model, -1, TN_W_EMBD), 3, x);
    for (size_t i = 0; i < n; i++) embedding = fmaxf(embedding, fabsf(x[i]));
    free(x);
    tern_engine_close(&e);
}

/* Rows as large as embeddings are, the same for the same seed. */
static float *made_up(const tern_engine *e, int n, uint32_t seed) {
    const size_t all = (size_t)n * tn_sight_row_width(e);
    float *x = malloc(all * sizeof *x);
    for (size_t i = 0; i < all; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = embedding * ((float)(seed >> 8) / (float)(1 << 23) - 1);
    }
    return x;
}

static int make_models(void **state) {
    (void)state;
    fixture_both(qwen3vl, packed, 0, "tiny-qwen3vl+sees", 3, TN_F32, NULL);
    fixture_model(qwen2vl, "qwen2vl.gguf", "tiny-qwen2vl+sees", 3, TN_F32);
    fixture_model(qwen35, "qwen35.gguf", "tiny-qwen35+sees", 3, TN_F32);
    fixture_model(moe, "moe.gguf", "tiny-qwen3vlmoe+sees", 3, TN_F32);
    measure_embedding();
    return 0;
}

/* A session's text: tokens, two pictures among them. */
typedef struct text {
    int32_t ids[CTX], n;
    int32_t at[CTX][3];    /* positions, as the definition has them */
    const float *row[CTX]; /* NULL: a token's */
    float *rows[2];
    tn_seen *views[2];
} text;

static void put_tokens(text *t, int32_t n) {
    int32_t all[CTX], next = 0;
    fixture_prompt(all, CTX);
    for (int32_t i = 0; i < t->n; i++)
        for (int k = 0; k < 3; k++) next = t->at[i][k] >= next ? t->at[i][k] + 1 : next;
    for (int32_t i = 0; i < n; i++, t->n++) {
        t->ids[t->n] = all[t->n];
        for (int k = 0; k < 3; k++) t->at[t->n][k] = next + i;
        t->row[t->n] = NULL;
    }
}

/* All rows of a picture stand at the next position, and as much further down and across as they are. */
static void put_picture(const tern_engine *e, text *t, int which, int lines, int columns) {
    int32_t next = 0;
    for (int32_t i = 0; i < t->n; i++)
        for (int k = 0; k < 3; k++) next = t->at[i][k] >= next ? t->at[i][k] + 1 : next;
    for (int y = 0; y < lines; y++)
        for (int x = 0; x < columns; x++, t->n++) {
            int32_t i = y * columns + x;
            memcpy(t->at[t->n], (int32_t[3]){next, next + y, next + x}, sizeof t->at[0]);
            t->ids[t->n] = t->views[which]->first + i;
            t->row[t->n] = t->rows[which] + (size_t)i * tn_sight_row_width(e);
        }
}

/* The session is told of both pictures, and holds them. */
static void see(tern_session *s, text *t, bool grid) {
    static const int lines[] = {LINES, SMALL}, columns[] = {COLUMNS, SMALL};
    tern_error err;
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 2; i++) {
        const uint8_t key[TN_VIEW_KEY] = {(uint8_t)(i + 1), grid};
        const int n = lines[i] * columns[i];
        t->rows[i] = made_up(s->e, n, (uint32_t)i + 7);
        must(tn_sight_view(s->e, key, n, &t->views[i], &err), &err);
        atomic_store(&t->views[i]->columns, grid ? columns[i] : 0);
        must(tn_sight_give(s->e, t->views[i], t->rows[i], &err), &err);
    }
    must(tn_session_see(s, t->views, 2, &err), &err);
    for (int i = 0; i < 2; i++) tn_sight_let_go(s->e, t->views[i]);
}

static void write_text(tern_session *s, text *t, bool grid) {
    see(s, t, grid);
    put_tokens(t, 11);
    put_picture(s->e, t, 0, LINES, COLUMNS);
    put_tokens(t, 2);
    put_picture(s->e, t, 1, SMALL, SMALL);
    put_tokens(t, 40);
}

static void forget(text *t) { free(t->rows[0]), free(t->rows[1]); }

/* ---- the model in double precision --------------------------------------------------------------------- */

static double *tensor(const tn_gguf *g, int layer, const char *name, const char *suffix) {
    char full[80];
    if (layer < 0) snprintf(full, sizeof full, "%s.%s", name, suffix);
    else snprintf(full, sizeof full, "blk.%d.%s.%s", layer, name, suffix);
    const tn_tensor *t = tn_gguf_tensor(g, full);
    if (!t) return NULL;
    size_t n = (size_t)(t->dims[0] * t->dims[1]);
    double *d = malloc(n * sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = (double)((const float *)t->data)[i];
    return d;
}

static double *linear(const tn_gguf *g, int layer, const char *name, const double *x, int rows, int k,
                      int n) {
    double *w = tensor(g, layer, name, "weight"), *b = tensor(g, layer, name, "bias"),
           *out = malloc((size_t)(rows * n) * sizeof *out);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            out[r * n + i] = b ? b[i] : 0;
            for (int j = 0; j < k; j++) out[r * n + i] += x[r * k + j] * w[i * k + j];
        }
    free(w), free(b);
    return out;
}

/* RMS norm of rows of n values, in place where out is x. */
static void norm(const double *w, double eps, const double *x, int rows, int n, double *out) {
    for (int r = 0; w && r < rows; r++) {
        double squares = 0;
        for (int i = 0; i < n; i++) squares += x[r * n + i] * x[r * n + i] / n;
        for (int i = 0; i < n; i++) out[r * n + i] = x[r * n + i] / sqrt(squares + eps) * w[i];
    }
}

static double *normed(const tn_gguf *g, int layer, const char *name, double eps, const double *x, int rows,
                      int n) {
    double *w = tensor(g, layer, name, "weight"), *out = malloc((size_t)(rows * n) * sizeof *out);
    norm(w, eps, x, rows, n, out);
    free(w);
    return out;
}

/* The axis of a pair: of Qwen3-VL every third one, as far as the sections of y and x reach, and else time; of Qwen2-VL
 * one section after another. */
static int axis_of(const tern_engine *e, int pair, const int64_t sections[3]) {
    if (strstr(e->model->h.arch, "qwen2vl"))
        return pair < sections[0] ? 0 : pair < sections[0] + sections[1] ? 1 : 2;
    for (int dim = 1; dim < 3; dim++)
        for (int i = dim; i < 3 * sections[dim]; i += 3)
            if (i == pair) return dim;
    return 0;
}

static void rotate(const tern_engine *e, const int64_t sections[3], const text *t, double *x, int heads) {
    const int d = e->model->h.d_head, half = d / 2;
    for (int r = 0; r < t->n; r++)
        for (int h = 0; h < heads; h++)
            for (int j = 0; j < half; j++) {
                double a = t->at[r][axis_of(e, j, sections)] * pow(e->model->h.rope_base, -2.0 * j / d);
                double *u = &x[(r * heads + h) * d + j], *v = u + half, was = *u;
                *u = was * cos(a) - *v * sin(a);
                *v = *v * cos(a) + was * sin(a);
            }
}

static void attend(const tn_hparams *h, int n, const double *q, const double *k, const double *v,
                   double *out) {
    const int d = h->d_head, nh = h->n_heads, nk = h->n_kv_heads;
    double p[CTX];
    for (int a = 0; a < nh; a++)
        for (int i = 0; i < n; i++) {
            const int b = a / (nh / nk);
            double most = -INFINITY, sum = 0;
            for (int j = 0; j <= i; j++) {
                p[j] = 0;
                for (int c = 0; c < d; c++)
                    p[j] += q[(i * nh + a) * d + c] * k[(j * nk + b) * d + c] / sqrt(d);
                most = fmax(most, p[j]);
            }
            for (int j = 0; j <= i; j++) sum += p[j] = exp(p[j] - most);
            for (int c = 0; c < d; c++) {
                double s = 0;
                for (int j = 0; j <= i; j++) s += p[j] / sum * v[(j * nk + b) * d + c];
                out[(i * nh + a) * d + c] = s;
            }
        }
}

static void run_layer(const tern_engine *e, const tn_gguf *g, const int64_t sections[3], const text *t, int l,
                      double *x) {
    const tn_hparams *m = &e->model->h;
    const int n = t->n, w = m->n_embd, nq = m->n_heads * m->d_head, nk = m->n_kv_heads * m->d_head;
    const double eps = (double)m->norm_eps;
    double *h = normed(g, l, "attn_norm", eps, x, n, w), *q = linear(g, l, "attn_q", h, n, w, nq),
           *k = linear(g, l, "attn_k", h, n, w, nk), *v = linear(g, l, "attn_v", h, n, w, nk),
           *qn = tensor(g, l, "attn_q_norm", "weight"), *kn = tensor(g, l, "attn_k_norm", "weight"),
           *att = malloc((size_t)(n * nq) * sizeof *att);
    norm(qn, eps, q, n * m->n_heads, m->d_head, q);
    norm(kn, eps, k, n * m->n_kv_heads, m->d_head, k);
    rotate(e, sections, t, q, m->n_heads);
    rotate(e, sections, t, k, m->n_kv_heads);
    attend(m, n, q, k, v, att);
    double *o = linear(g, l, "attn_output", att, n, nq, w);
    for (int i = 0; i < n * w; i++) x[i] += o[i];
    free(h), free(q), free(k), free(v), free(qn), free(kn), free(att), free(o);
    h = normed(g, l, "ffn_norm", eps, x, n, w);
    double *gate = linear(g, l, "ffn_gate", h, n, w, m->n_ff), *up = linear(g, l, "ffn_up", h, n, w, m->n_ff);
    for (int i = 0; i < n * m->n_ff; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    double *down = linear(g, l, "ffn_down", up, n, m->n_ff, w);
    for (int i = 0; i < n * w; i++) x[i] += down[i];
    for (int i = 0; l < m->n_deepstack && i < n; i++)
        for (int c = 0; t->row[i] && c < w; c++) x[i * w + c] += (double)t->row[i][(l + 1) * w + c];
    free(h), free(gate), free(up), free(down);
}

/* Logits after the last of t->n rows. */
static double *model(const tern_engine *e, const tn_gguf *g, const text *t) {
    const tn_hparams *m = &e->model->h;
    const int n = t->n, w = m->n_embd;
    int64_t sections[3];
    char key[80];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", m->arch);
    for (int i = 0; i < 3; i++) assert_true(tn_gguf_arr_i64(g, key, i, &sections[i]));
    double *embd = tensor(g, -1, "token_embd", "weight"), *x = malloc((size_t)(n * w) * sizeof *x);
    for (int i = 0; i < n; i++)
        for (int c = 0; c < w; c++) x[i * w + c] = t->row[i] ? (double)t->row[i][c] : embd[t->ids[i] * w + c];
    for (int l = 0; l < m->n_layers; l++) run_layer(e, g, sections, t, l, x);
    double *h = normed(g, -1, "output_norm", (double)m->norm_eps, x + (n - 1) * w, 1, w),
           *out = linear(g, -1, m->tied ? "token_embd" : "output", h, 1, w, m->n_vocab);
    free(embd), free(x), free(h);
    return out;
}

static double off(const float *got, const double *want, int32_t n) {
    double worst = 0, most = 0;
    for (int32_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        most = fmax(most, fabs(want[i]));
    }
    return worst / most;
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

static void as_in_double_precision(void **state) {
    (void)state;
    const char *const paths[] = {qwen3vl, qwen2vl};
    for (int m = 0; m < 2; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        tern_session *s = fixture_session(e, CTX, NULL);
        tn_gguf *g;
        tern_error err;
        text t;
        double worst = 0;
        must(tn_gguf_open(&e->ctx, paths[m], &g, &err), &err);
        write_text(s, &t, true);
        const int32_t all = t.n;
        assert_int_equal(t.at[11 + N_ROWS][0],
                         11 + COLUMNS); /* after a picture text goes on after its longer side */
        const int32_t ends[] = {9,           11,          12,       18,       11 + N_ROWS,
                                13 + N_ROWS, 20 + N_ROWS, all - 40, all - 20, all};
        for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
            t.n = ends[k];
            float *got = fixture_logits(s, t.ids, t.n);
            double *want = model(e, g, &t);
            worst = fmax(worst, off(got, want, e->model->h.n_vocab));
            free(got), free(want);
        }
        print_message("%s: largest difference %.1e of the largest logit\n", e->model->h.arch, worst);
        assert_true(worst < 2e-5);
        forget(&t);
        tn_gguf_close(&g);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* Pieces of every length, cuts within pictures, a picture that comes after it was known; files, packages, a hybrid. */
static void same_bits_in_pieces(void **state) {
    (void)state;
    const char *const paths[] = {qwen3vl, packed, qwen2vl, qwen35, moe};
    for (int m = 0; m < 5; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        tern_session *s = fixture_session(e, CTX, NULL), *u = fixture_session(e, CTX, NULL);
        const size_t bytes = (size_t)e->model->h.n_vocab * sizeof(float);
        tern_error err;
        text t, same;
        int32_t plain[CTX];
        write_text(s, &t, true);
        write_text(u, &same, true);
        assert_memory_equal(same.ids, t.ids, sizeof t.ids);
        free(fixture_logits(s, t.ids, t.n)); /* loads what a package reads first */
        must(tern_session_truncate(s, 0, &err), &err);
        float *want = fixture_logits(s, t.ids, t.n);
        for (int32_t step = 1; step < 50; step += step < 8 ? 3 : 13) {
            must(tern_session_truncate(u, 0, &err), &err);
            for (int32_t n = step; n < t.n; n += step)
                must(tern_session_prefill(u, t.ids, (size_t)n, &err), &err);
            float *got = fixture_logits(u, t.ids, t.n);
            assert_memory_equal(got, want, bytes);
            free(got);
        }
        must(tern_session_truncate(u, 0, &err), &err);
        fixture_prompt(plain, t.n);
        free(fixture_logits(u, plain, t.n));
        must(tern_session_copy(u, s, &err),
             &err); /* and goes on in a copy of a session that had another text */
        for (int32_t i = 0; i < 3; i++) {
            must(tern_session_step(s, 17 + i, &err), &err);
            must(tern_session_step(u, 17 + i, &err), &err);
            assert_memory_equal(tern_session_logits(s), tern_session_logits(u), bytes);
        }
        free(want), forget(&t), forget(&same);
        tern_session_close(&s);
        tern_session_close(&u);
        tern_engine_close(&e);
    }
}

/* A text of several chunks after its pictures, which a package reads in one wave. */
static void same_bits_in_chunks(void **state) {
    (void)state;
    const char *const paths[] = {packed, qwen3vl, qwen35};
    for (int m = 0; m < 3; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        tern_session *s = fixture_session(e, CTX, NULL);
        tern_error err;
        text t;
        write_text(s, &t, true);
        put_tokens(&t, CTX - 1 - t.n);
        free(fixture_logits(s, t.ids, t.n)); /* loads what a package reads first */
        must(tern_session_truncate(s, 0, &err), &err);
        float *want = fixture_logits(s, t.ids, t.n);
        must(tern_session_truncate(s, 0, &err), &err);
        for (int32_t n = 70; n < t.n; n += 70) must(tern_session_prefill(s, t.ids, (size_t)n, &err), &err);
        float *got = fixture_logits(s, t.ids, t.n);
        assert_memory_equal(got, want, (size_t)e->model->h.n_vocab * sizeof *got);
        free(got), free(want), forget(&t);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* A picture of one row is a token at its place; the places of a larger one count. */
static void places_count(void **state) {
    (void)state;
    const char *const paths[] = {qwen2vl, qwen35, qwen3vl, packed};
    for (int m = 0; m < 4; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        tern_session *s = fixture_session(e, CTX, NULL);
        const int32_t n_vocab = e->model->h.n_vocab;
        text flat, t;
        write_text(s, &flat, false);
        free(fixture_logits(s, flat.ids, flat.n));
        float *without = fixture_logits(s, flat.ids, flat.n);
        write_text(s, &t, true);
        float *with = fixture_logits(s, t.ids, t.n);
        assert_memory_not_equal(with, without, (size_t)n_vocab * sizeof *with);
        free(with), free(without), forget(&flat), forget(&t);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    const tn_extra_span one = {500, 1, NULL, false, .columns = 1},
                        grid = {500, N_ROWS, NULL, false, .columns = COLUMNS};
    const tn_extra_rows e = {500, 64, 1, &one}, f = {500, 64, 1, &grid};
    assert_int_equal(tn_axes_next(&e, 500, 7), 8);
    assert_int_equal(tn_axes_next(&e, 3, 7), 8);
    assert_int_equal(tn_axes_next(&f, 500, 7), 7 + COLUMNS);
    assert_int_equal(tn_axes_next(&f, 507, 7 + COLUMNS), 7 + COLUMNS);
    for (int32_t i = 0, next = 0, was = 0; i < 1000; i++, was = next) { /* ids of no prompt do not run over */
        next = tn_axes_next(
            &(tn_extra_rows){500, 64, 1, &(tn_extra_span){500, 1 << 24, NULL, false, .columns = 1 << 24}},
            500, next);
        assert_true(next >= was && next <= 1 << 30);
    }
}

/* A package reads the same places: its logits are near the file's, and far from those of rows without places. */
static void packages_read_them(void **state) {
    (void)state;
    const char *const paths[] = {qwen3vl, packed};
    double *logits[2];
    float *flat = NULL;
    int32_t n_vocab = 0;
    for (int m = 0; m < 2; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        tern_session *s = fixture_session(e, CTX, NULL);
        text t;
        n_vocab = e->model->h.n_vocab;
        if (!m) {
            write_text(s, &t, false);
            flat = fixture_logits(s, t.ids, t.n);
            forget(&t);
        }
        assert_int_equal(e->model->h.n_deepstack, 2);
        assert_int_equal(e->model->h.rope_axes[1], 5);
        assert_true(e->model->h.rope_interleaved);
        write_text(s, &t, true);
        float *got = fixture_logits(s, t.ids, t.n);
        logits[m] = malloc((size_t)n_vocab * sizeof *logits[m]);
        for (int32_t i = 0; i < n_vocab; i++) logits[m][i] = (double)got[i];
        free(got), forget(&t);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    double *file = logits[0], near = 0, far = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        near += (logits[1][i] - file[i]) * (logits[1][i] - file[i]);
        far += ((double)flat[i] - file[i]) * ((double)flat[i] - file[i]);
    }
    print_message("of the package %.2e, without places %.2e (squares of differences)\n", near, far);
    assert_true(near * 4 < far);
    free(logits[0]), free(logits[1]), free(flat);
}

/* Drafts and answers beside each other go on after pictures as steps do. */
static void drafted_and_together(void **state) {
    (void)state;
    const char *const paths[] = {qwen3vl, packed, qwen35};
    for (int m = 0; m < 3; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        int32_t want[CTX], n_want = 0;
        uint64_t n_drafted = 0;
        for (int d = 0; d < 2; d++) {
            tern_session *s = fixture_session(e, CTX, d ? "lookup" : "none");
            tern_error err;
            tern_generate_options g;
            tern_generate_result res;
            tern_generate_options_defaults(&g);
            g.max_tokens = 60;
            g.ignore_end = g.draft_eager = true;
            g.sampling.temperature = 0;
            text t;
            write_text(s, &t, true);
            free(fixture_logits(s, t.ids, t.n));
            must(tern_session_truncate(s, 0, &err), &err);
            free(fixture_logits(s, t.ids, t.n));
            must(tern_session_generate(s, &g, &res, &err), &err);
            if (!d) memcpy(want, s->tokens, (size_t)(n_want = s->n_tok) * sizeof *want);
            assert_int_equal(s->n_tok, n_want);
            assert_memory_equal(s->tokens, want, (size_t)n_want * sizeof *want);
            n_drafted += s->drafting.n_rows - s->drafting.n_steps;
            forget(&t);
            tern_session_close(&s);
        }
        assert_true(n_drafted > 0);
        /* two texts in one forward, one without pictures */
        tern_session *s[4];
        tn_turn turns[2];
        text t;
        for (int i = 0; i < 4; i++) {
            s[i] = fixture_session(e, CTX, NULL);
            write_text(s[i], &t, true);
            free(i % 2 ? fixture_logits(s[i], t.ids + t.n - 40, 40) : fixture_logits(s[i], t.ids, t.n));
            forget(&t);
        }
        for (int step = 0; step < 3; step++) {
            tern_error err;
            for (int i = 0; i < 2; i++) {
                turns[i] = (tn_turn){.s = s[i]};
                tn_tree_begin(&turns[i].tree, 30 + step);
                must(tern_session_step(s[i + 2], 30 + step, &err), &err);
            }
            tn_sessions_forward(turns, 2);
            for (int i = 0; i < 2; i++)
                assert_memory_equal(tern_session_logits(s[i]), tern_session_logits(s[i + 2]),
                                    (size_t)e->model->h.n_vocab * sizeof(float));
        }
        for (int i = 0; i < 4; i++) tern_session_close(&s[i]);
        tern_engine_close(&e);
    }
}

static tn_hparams hparams_of(const char *model_type, const char *folder, const char *patch) {
    char path[FIXTURE_PATH];
    tn_hparams h;
    tern_error err;
    snprintf(path, sizeof path, TN_SOURCE_DIR "/tests/oracle/fixtures/%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    fixture_patch(config, patch);
    must(tn_arch_hparams_hf(tn_arch_by_hf(model_type), config, path, &h, &err), &err);
    json_decref(config);
    return h;
}

/* Folders tell axes and layers in the configurations of the text and of the pictures. */
static void folders_tell_them(void **state) {
    (void)state;
    tn_hparams h =
        hparams_of("qwen3_vl", "qwen3vl", "{\"vision_config\": {\"deepstack_visual_indexes\": [0, 1]}}");
    assert_memory_equal(h.rope_axes, ((int32_t[]){3, 3, 2}), sizeof h.rope_axes);
    assert_true(h.rope_interleaved && h.n_deepstack == 2);
    static const int32_t turns[] = {0, 1, 2, 0, 1, 2, 0, 1};
    for (int32_t i = 0; i < 8; i++) assert_int_equal(tn_rope_axis(&h, i), turns[i]);
    h = hparams_of("qwen2_5_vl", "qwen2vl", "{}");
    assert_memory_equal(h.rope_axes, ((int32_t[]){1, 1, 2}), sizeof h.rope_axes);
    assert_true(!h.rope_interleaved && h.n_deepstack == 0);
    h = hparams_of("qwen2_5_vl", "qwen2vl",
                   "{\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [1, 1, 3]}}");
    assert_false(tn_has_axes(&h)); /* not as many as there are pairs: pictures are refused, text is not */
}

/* A saved session tells its pictures' columns: another process goes on at the same positions. */
static void saved_ones_go_on(void **state) {
    (void)state;
    static fixture_saved x;
    const char *const paths[] = {qwen3vl, packed, qwen35};
    for (int m = 0; m < 3; m++) {
        tern_error err;
        tern_engine *e = fixture_engine(paths[m], NULL), *f = fixture_engine(paths[m], NULL);
        tern_session *s = fixture_session(e, CTX, NULL), *u = fixture_session(f, CTX, NULL);
        text t;
        write_text(s, &t, true);
        free(fixture_logits(s, t.ids, t.n));
        fixture_save(s, &x);
        must(tern_session_step(s, 7, &err), &err);
        must(tern_session_load_from(u, x.bytes, x.n, &err), &err);
        must(tern_session_step(u, 7, &err), &err);
        assert_memory_equal(tern_session_logits(s), tern_session_logits(u),
                            (size_t)e->model->h.n_vocab * sizeof(float));
        /* columns that do not divide its rows: the sum is what refuses them, but they are looked at before */
        uint32_t seven = 7;
        memcpy(x.bytes + 48 + 8 + 36, &seven, sizeof seven);
        assert_int_equal(tern_session_load_from(u, x.bytes, x.n, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "its pictures"));
        /* nor do those that divide them, in an engine that has looked at the picture */
        uint32_t others = LINES;
        memcpy(x.bytes + 48 + 8 + 36, &others, sizeof others);
        assert_int_equal(tern_session_load_from(u, x.bytes, x.n, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "has other columns than the engine's"));
        forget(&t);
        tern_session_close(&s);
        tern_session_close(&u);
        tern_engine_close(&e);
        tern_engine_close(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_double_precision), cmocka_unit_test(same_bits_in_pieces),
        cmocka_unit_test(same_bits_in_chunks),    cmocka_unit_test(places_count),
        cmocka_unit_test(packages_read_them),     cmocka_unit_test(drafted_and_together),
        cmocka_unit_test(saved_ones_go_on),       cmocka_unit_test(folders_tell_them),
    };
    return cmocka_run_group_tests(tests, make_models, NULL);
}
