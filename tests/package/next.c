/* The layer that guesses one token further, in a package: is it the file's, in 8 bits? Does it guess the same however the
 * package is read? Are packages refused that tell of a layer which they have not, or have one that is odd? Packages
 * without one are what they were. */
#include "formats/package.h"
#include "model/next.h"
#include "quant/pack.h"
#include "session/session.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_KINDS = 3, N_PROMPT = 45 };
static const char *const kinds[N_KINDS] = {"tiny-qwen2+mtp", "tiny-qwen35+mtp", "tiny-qwen35moe+mtp"};
static char models[N_KINDS][FIXTURE_PATH], packages[N_KINDS][FIXTURE_PATH], odd[FIXTURE_PATH];

static int setup(void **state) {
    (void)state;
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.quick = true;
    o.calib_tokens = 256;
    for (int i = 0; i < N_KINDS; i++) fixture_both(models[i], packages[i], i, kinds[i], 5, TN_F32, &o);
    fixture_file(odd, "odd.tern");
    return 0;
}

static tern_engine *open_as(const char *path, const char *load, const char *scheme) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.load = load;
    o.scheme = scheme;
    return fixture_engine(path, &o);
}

/* ---- what is in it ---------------------------------------------------------------------------------- */

static void as_near(const char *name, const tn_linear *w, const tn_linear *g) {
    float a[512], b[512];
    assert_int_equal(w->n, g->n);
    assert_int_equal(w->k, g->k);
    assert_int_equal(!w->bias, !g->bias);
    if (w->bias) assert_memory_equal(w->bias, g->bias, (size_t)w->n * sizeof(float));
    assert_true(w->k <= 512);
    for (int32_t n = 0; n < w->n; n++) {
        tn_linear_row(w, (size_t)n, a);
        tn_linear_row(g, (size_t)n, b);
        for (int32_t k = 0; k < w->k; k++) {
            float max = 0;
            for (int32_t j = k / 32 * 32; j < k / 32 * 32 + 32; j++) max = fmaxf(max, fabsf(a[j]));
            if (fabsf(a[k] - b[k]) > max / 127 * 0.56f) /* a half, and the scale's own rounding */
                fail_msg("%s: row %d, input %d is %g, in the file %g", name, n, k, (double)b[k],
                         (double)a[k]);
        }
    }
}

/* Every block of 32 weights is as near to the file's as 8 bits with a scale of its own bring it; norms and biases are the
 * file's. */
static void as_the_file(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        tern_engine *file = open_as(models[i], NULL, "float"),
                    *package = open_as(packages[i], "sequential", NULL);
        const tn_layer *want = &file->model->next->layers[0], *got = &package->model->next->layers[0];
        int n_linears = 0;
        for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
            const tn_linear *w = &want->linears[role], *g = &got->linears[role];
            assert_int_equal(w->n, g->n);
            assert_int_equal(!want->vectors[role], !got->vectors[role]);
            int64_t rows, cols;
            tn_role_shape(&file->model->h, file->model->h.n_layers, role, &rows, &cols);
            if (want->vectors[role])
                assert_memory_equal(want->vectors[role], got->vectors[role],
                                    (size_t)(rows * cols) * sizeof(float));
            if (!w->n) continue;
            n_linears++;
            as_near(tn_role_name(role), w, g);
        }
        const int32_t n_experts = file->model->h.n_experts;
        for (int l = 0; l < TN_N_EXPERT_LINEARS; l++) {
            assert_int_equal(!want->experts[l], !n_experts);
            assert_int_equal(!got->experts[l], !n_experts);
            for (int32_t x = 0; x < n_experts; x++)
                as_near(tn_role_name(tn_expert_linears[l].role), &want->experts[l][x], &got->experts[l][x]);
        }
        if (n_experts) /* the router is the file's */
            assert_memory_equal(want->linears[TN_W_ROUTER].panels, got->linears[TN_W_ROUTER].panels,
                                tn_panels_bytes(TN_PANEL_F32, (size_t)n_experts, 64));
        assert_in_range(n_linears, 8, 10);
        tern_engine_close(&file);
        tern_engine_close(&package);
    }
}

/* The layer's states of some rows, out of numbers that no model has to have made. */
static void states_of(const tern_engine *e, float *out) {
    enum { ROWS = 20 };
    const tn_model *m = e->model;
    size_t n = (size_t)m->h.n_embd;
    tn_next_text t;
    tern_error err;
    float x[2][ROWS * 64];
    assert_true(n <= 64);
    for (size_t i = 0; i < ROWS * n; i++)
        for (int k = 0; k < 2; k++) x[k][i] = sinf((float)(i * 7 + 1 + (size_t)k * 500));
    must(tn_next_open(m->ctx, m->next, &e->kern, e->pool, 64, false, &t, &err), &err);
    tn_next_rows(&t, 0, ROWS - 1, x[0], x[1], NULL);
    tn_next_rows(&t, ROWS - 1, 1, x[0] + (ROWS - 1) * n, x[1] + (ROWS - 1) * n, out);
    tn_next_close(&t);
}

/* It computes what the file's layer does, to what 8 bits lose. */
static void computes_as_the_file(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        tern_engine *file = open_as(models[i], NULL, "float"),
                    *package = open_as(packages[i], "overlap", NULL);
        float want[64], got[64];
        double diff = 0, size = 0;
        states_of(file, want);
        states_of(package, got);
        for (int32_t k = 0; k < file->model->h.n_embd; k++) {
            diff += pow((double)want[k] - (double)got[k], 2);
            size += pow((double)want[k], 2);
        }
        if (!(diff < 4e-4 * size) || diff == 0) /* 2 % */
            fail_msg("%s: %.2e off", kinds[i], sqrt(diff / size));
        tern_engine_close(&file);
        tern_engine_close(&package);
    }
}

/* ---- however it is read ----------------------------------------------------------------------------- */

static void every_load(void **state) {
    (void)state;
    static const char *const loads[] = {"sequential", "overlap", "mmap", "stream"};
    int32_t prompt[N_PROMPT];
    fixture_prompt(prompt, N_PROMPT);
    for (int i = 0; i < N_KINDS; i++) {
        float *want = NULL;
        for (int l = 0; l < 4; l++) {
            tern_error err;
            tern_engine *e = open_as(packages[i], loads[l], NULL);
            tern_session *s = fixture_session(e, 120, "mtp");
            size_t n = (size_t)e->model->h.n_vocab * sizeof *want;
            must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
            for (int32_t d = 0; d < 2; d++) {
                const float *got = tn_mtp_logits(s->drafting.mtp, 7 + d, d);
                assert_non_null(got);
                if (!l && !d) want = malloc(2 * n);
                float *of = want + (size_t)d * (n / sizeof *want);
                if (!l) memcpy(of, got, n);
                else assert_memory_equal(of, got, n);
            }
            tern_session_close(&s);
            tern_engine_close(&e);
        }
        free(want);
    }
}

/* ---- odd packages ----------------------------------------------------------------------------------- */

typedef struct lie {
    int32_t next_layers; /* in the metadata; -1: as it is, 0: no key */
    bool no_section;
    uint32_t role, part;              /* of a record: */
    bool gone, other, shorter, twice; /* it is not there; says another shape; lacks bytes; is there twice */
    const char *says;                 /* the error; NULL: it opens, without the layer */
} lie;

static void copy_meta(tn_pkg_writer *w, const char *bytes, size_t n, int32_t next_layers) {
    tern_error err;
    json_t *j = json_loadb(bytes, n, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(j, "next_layers")), 1);
    if (!next_layers) json_object_del(j, "next_layers");
    else if (next_layers > 0) json_object_set_new(j, "next_layers", json_integer(next_layers));
    char *text = json_dumps(j, JSON_REAL_PRECISION(17));
    must(tn_pkg_put_section(w, TN_PKG_META, -1, text, strlen(text), &err), &err);
    free(text);
    json_decref(j);
}

static void copy_section(tn_pkg_writer *w, const tn_pkg *p, const tn_pkg_section *s, const void *user) {
    const lie *l = user;
    if (s->kind == TN_PKG_NEXT && l->no_section) return;
    size_t n;
    const tn_pkg_record *r = tn_pkg_records(p, s, &n);
    char *bytes = malloc(s->size_bytes + 1);
    tern_error err;
    must(tn_pkg_read(p, s, bytes, &err), &err);
    if (s->kind == TN_PKG_META) copy_meta(w, bytes, s->size_bytes, l->next_layers);
    else if (!n)
        must(tn_pkg_put_section(w, (tn_pkg_kind)s->kind, s->layer, bytes, s->size_bytes, &err), &err);
    if (n) must(tn_pkg_begin(w, (tn_pkg_kind)s->kind, s->layer, &err), &err);
    for (size_t k = 0; k < n; k++) {
        bool it = s->kind == TN_PKG_NEXT && l->part && r[k].role == l->role && r[k].part == l->part;
        tn_pkg_record as = r[k];
        if (it && l->other) as.n++, as.k--;
        if (!it || !l->gone)
            must(tn_pkg_add(w, &as, bytes + r[k].off_bytes, r[k].size_bytes - (it && l->shorter ? 4 : 0),
                            &err),
                 &err);
        as.part = TN_PKG_HOT;
        if (it && l->twice) must(tn_pkg_add(w, &as, bytes + r[k].off_bytes, r[k].size_bytes, &err), &err);
    }
    if (n) must(tn_pkg_end(w, &err), &err);
    free(bytes);
}

static void tell(const char *path, const lie *l) { fixture_rewrite(path, odd, copy_section, l); }

static void refused(const char *says) {
    tern_engine *e = NULL;
    tern_error err = {0};
    assert_int_equal(tern_engine_open(odd, NULL, &e, &err), TERN_E_FORMAT);
    if (!strstr(err.message, says)) fail_msg("'%s' does not say '%s'", err.message, says);
}

static void odd_packages(void **state) {
    (void)state;
    static const lie lies[] = {
        {.next_layers = 2, .says = "'next_layers' is missing or out of range"},
        {.next_layers = 0, .says = "a section that its metadata does not tell of a layer that guesses"},
        {.next_layers = -1, .no_section = true, .says = "its metadata tells, and it has no section"},
        {-1, .role = TN_W_NEXT_PROJ, .part = TN_PKG_BLOCKS, .gone = true, .says = "nextn_eh_proj"},
        {-1, .role = TN_W_NEXT_PROJ, .part = TN_PKG_BLOCKS, .other = true, .says = "nextn_eh_proj"},
        {-1, .role = TN_W_DOWN, .part = TN_PKG_BLOCKS, .gone = true, .says = "ffn_down"},
        {-1, .role = TN_W_Q, .part = TN_PKG_BLOCKS, .shorter = true, .says = "attn_q"},
        {-1, .role = TN_W_NEXT_OUT_NORM, .part = TN_PKG_F32, .gone = true, .says = "nextn_head_norm"},
        {-1, .role = TN_W_ATTN_NORM, .part = TN_PKG_F32, .gone = true, .says = "attn_norm"},
        {-1, .role = TN_W_ATTN_NORM, .part = TN_PKG_F32, .shorter = true, .says = "attn_norm"},
        {-1, .role = TN_W_UP, .part = TN_PKG_BLOCKS, .twice = true, .says = "tensors, of which"},
    };
    static const lie of_experts[] = {
        {-1, .role = TN_W_ROUTER, .part = TN_PKG_F32, .gone = true, .says = "router of the layer"},
        {-1, .role = TN_W_ROUTER, .part = TN_PKG_F32, .shorter = true, .says = "router of the layer"},
        {-1, .role = TN_W_GATE_EXPS, .part = TN_PKG_BLOCKS, .gone = true, .says = "experts' gate"},
        {-1, .role = TN_W_DOWN_EXPS, .part = TN_PKG_BLOCKS, .other = true, .says = "experts' down"},
        {-1, .role = TN_W_UP_EXPS, .part = TN_PKG_BLOCKS, .shorter = true, .says = "experts' up"},
        {-1, .role = TN_W_SHARED_GATE, .part = TN_PKG_F32, .gone = true, .says = "shared"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        tell(packages[0], &lies[i]);
        refused(lies[i].says);
    }
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++) {
        tell(packages[2], &of_experts[i]);
        refused(of_experts[i].says);
    }
}

/* A byte that is another is found before anything is guessed with it. */
static void damaged(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err;
    tn_pkg *p;
    int32_t prompt[N_PROMPT];
    fixture_prompt(prompt, N_PROMPT);
    tell(packages[0], &(lie){.next_layers = -1});
    tn_ctx_init(&ctx, NULL);
    must(tn_pkg_open(&ctx, odd, &p, &err), &err);
    const tn_pkg_section *s = tn_pkg_find(p, TN_PKG_NEXT, -1);
    FILE *f = fopen(odd, "r+b");
    fseek(f, (long)(s->off_bytes + s->size_bytes / 2), SEEK_SET);
    int was = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(was ^ 1, f);
    fclose(f);
    tn_pkg_close(&p);
    static const char *const loads[] = {"stream", "mmap"};
    for (int i = 0; i < 2; i++) {
        tern_engine *e = NULL;
        tern_options o;
        tn_options_defaults(&o);
        o.load = loads[i];
        tern_status st = tern_engine_open(odd, &o, &e, &err);
        if (st == TERN_OK) {
            tern_session *session = fixture_session(e, 120, "none");
            st = tern_session_prefill(session, prompt, N_PROMPT, &err);
            tern_session_close(&session);
        }
        tern_engine_close(&e);
        assert_int_equal(st, TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "damaged"));
    }
}

/* A package as one from before has neither key nor section: the text is the same, and nobody drafts by the layer. */
static void older(void **state) {
    (void)state;
    int32_t prompt[N_PROMPT];
    fixture_prompt(prompt, N_PROMPT);
    for (int i = 0; i < N_KINDS; i++) {
        tern_error err;
        tell(packages[i], &(lie){.no_section = true});
        tern_engine *e[2] = {fixture_engine(packages[i], NULL), fixture_engine(odd, NULL)};
        tern_session *s[2];
        assert_non_null(e[0]->model->next);
        assert_null(e[1]->model->next);
        assert_true(e[0]->model->fingerprint == e[1]->model->fingerprint); /* saved sessions go with both */
        assert_true(e[0]->model->weight_bytes > e[1]->model->weight_bytes);
        for (int k = 0; k < 2; k++) {
            s[k] = fixture_session(e[k], 120, "auto");
            assert_int_equal(!s[k]->drafting.mtp, k);
            must(tern_session_prefill(s[k], prompt, N_PROMPT, &err), &err);
        }
        assert_memory_equal(tern_session_logits(s[0]), tern_session_logits(s[1]),
                            (size_t)e[0]->model->h.n_vocab * sizeof(float));
        for (int k = 0; k < 2; k++) tern_session_close(&s[k]);
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.draft = "mtp";
        assert_int_equal(tern_session_open(e[1], &so, &s[1], &err), TERN_E_INVALID);
        for (int k = 0; k < 2; k++) tern_engine_close(&e[k]);
    }
}

/* ---- what is not kept ------------------------------------------------------------------------------- */

static char logged[1000];
static void on_log(void *user, tern_log_level level, const char *line) {
    (void)user;
    if (level <= TERN_LOG_WARN) snprintf(logged, sizeof logged, "%s", line);
}

/* Layers of widths that are no multiples of 32 are left out, and that is told. */
static void other_widths(void **state) {
    (void)state;
    tn_hparams h = {.norm = TN_NORM_RMS, .n_layers = 2, .n_embd = 64, .n_heads = 4, .d_head = 16, .n_ff = 96};
    assert_true(tn_package_holds_next(&h));
    h.n_ff = 100;
    assert_false(tn_package_holds_next(&h));
    h.n_experts = 4, h.n_ff_exp = 64; /* no dense block, so that n_ff is nobody's width */
    assert_true(tn_package_holds_next(&h));
    h.shared_expert = true;
    assert_false(tn_package_holds_next(&h));
    h.n_ff = 96, h.n_ff_exp = 48;
    assert_false(tn_package_holds_next(&h));
    h.n_experts = 0, h.window = 128;
    assert_false(tn_package_holds_next(&h));
    /* of a layer that is not whole: one line says which tensor, and the package is as one without */
    char model[FIXTURE_PATH], package[FIXTURE_PATH];
    fixture_model(model, "less.gguf", kinds[0], 5, TN_F16);
    fixture_changed(model, model, "blk.2.ffn_gate.weight", "blk.2.ffn_xxxx.weight", 21);
    fixture_file(package, "less.tern");
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    tn_ctx ctx;
    tern_error err;
    tn_ctx_init(&ctx, &hooks);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.quick = true;
    o.calib_tokens = 256;
    *logged = 0;
    must(tn_pack(&ctx, model, package, &o, NULL, &err), &err);
    assert_non_null(strstr(logged, "blk.2.ffn_gate.weight"));
    tern_engine *e = fixture_engine(package, NULL);
    assert_int_equal(e->model->h.n_next, 0);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_file), cmocka_unit_test(computes_as_the_file),
                                       cmocka_unit_test(every_load),  cmocka_unit_test(odd_packages),
                                       cmocka_unit_test(damaged),     cmocka_unit_test(older),
                                       cmocka_unit_test(other_widths)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
