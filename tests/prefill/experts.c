/* Mixtures of experts in packages. Step by step against plain loops over the package's bytes: which experts a
 * row goes to, what each reads, its products to the last bit, the weighted sum. The same bits whatever runs
 * them. Packages that lie about their experts are refused. */
#include "base/json.h"
#include "base/rng.h"
#include "formats/package.h"
#include "kernels/unpack.h"
#include "measure/tune.h"
#include "model/experts.h"
#include "prefill/impl.h"
#include "quant/pack.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"
#include "fixture/scarce.h"

enum { N_PROMPT = 333, N_ROWS = 100, N_VOCAB = 512, N_LOGITS = 4 * N_VOCAB };

/* What differs: shared experts and their gate, biases, limits, sigmoids, dense layers in front; bits that
 * stay packed, tiles of 8. */
static const struct mixture {
    const char *arch;
    tn_scheme scheme;
    double bits;
} mixtures[] = {{"tiny-qwen3moe", TN_SCHEME_GRAM, 5},       {"tiny-gpt-oss", TN_SCHEME_GRAM, 8},
                {"tiny-lfm2moe", TN_SCHEME_GRAM, 4.5},      {"tiny-qwen35moe", TN_SCHEME_GRAM, 5},
                {"tiny-granitemoe", TN_SCHEME_EDGEFLOW, 5}, {"tiny-olmoe", TN_SCHEME_NAIVE, 8}};
enum { N_MIXTURES = sizeof mixtures / sizeof *mixtures };

static char packages[N_MIXTURES][FIXTURE_PATH], bad[FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < N_MIXTURES; i++) {
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.scheme = mixtures[i].scheme;
        o.bits = o.scheme == TN_SCHEME_NAIVE ? 0 : mixtures[i].bits;
        o.calib_tokens = 512;
        fixture_both(NULL, packages[i], i, mixtures[i].arch, 5, TN_F16, &o);
    }
    fixture_file(bad, "bad.tern");
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 500;
    return 0;
}

/* ---- step by step ------------------------------------------------------------------------------------ */

typedef struct rig {
    tern_engine *e;
    tern_session *s;
    tn_pipeline *p;
    chunk *c;
    const tn_op *ops; /* of the layer */
    int32_t n_ops, layer;
    char *bytes; /* of the layer's section */
    const tn_pkg_record *records;
    size_t n_records;
    float *x; /* [N_ROWS][n_embd] what the experts are given */
} rig;

static const void *part(const rig *r, tn_role role, tn_pkg_part what) {
    const tn_pkg_record *f = tn_pkg_record_find(r->records, r->n_records, (uint32_t)role, (uint32_t)what);
    return f ? r->bytes + f->off_bytes : NULL;
}

static const tn_op *op_of(const rig *r, tn_op_kind kind) {
    for (int32_t i = 0; i < r->n_ops; i++)
        if (r->ops[i].kind == kind) return &r->ops[i];
    fail_msg("layer %d has no such op", r->layer);
    return NULL;
}

static void routes(const rig *r) {
    const tn_op *op = op_of(r, TN_OP_ROUTE);
    int32_t n = op->experts.n, used = op->experts.used, e = op->experts.n_embd;
    const float *w = part(r, TN_W_ROUTER, TN_PKG_F32), *b = part(r, TN_W_ROUTER_B, TN_PKG_F32),
                *choice = part(r, TN_W_EXPERTS_BIAS, TN_PKG_F32),
                *shared = part(r, TN_W_SHARED_GATE, TN_PKG_F32);
    assert_non_null(w);
    assert_true(!choice == !op->experts.bias && !shared == !op->experts.shared_gate);
    tn_experts_route(r->p, r->c, op, 0, 37);
    tn_experts_route(r->p, r->c, op, 37, N_ROWS);
    for (int32_t row = 0; row < N_ROWS; row++) {
        double score[TN_MAX_EXPERTS], weight[TN_MAX_EXPERTS], sum = 0, gate = 0, max = -1e300;
        const float *x = r->x + row * e, *chosen = tn_frame_row(&r->c->f, TN_BUF_CHOSEN, op->width, row);
        for (int32_t i = 0; i < n; i++) {
            score[i] = b ? (double)b[i] : 0;
            for (int32_t k = 0; k < e; k++) score[i] += (double)w[i * e + k] * (double)x[k];
            max = fmax(max, score[i]);
        }
        for (int32_t i = 0; i < n; i++)
            weight[i] = op->experts.sigmoid ? 1 / (1 + exp(-score[i])) : exp(score[i] - max);
        for (int32_t i = 0, k = 0; i < n; i++) {
            int32_t before = 0; /* those that are chosen rather than i */
            for (int32_t j = 0; j < n; j++) {
                double a = choice ? weight[j] + (double)choice[j] : score[j],
                       own = choice ? weight[i] + (double)choice[i] : score[i];
                before += j != i && (a > own || (a == own && j < i));
            }
            bool taken = before < used;
            if (taken || !op->experts.norm) sum += weight[i];
            if (taken) assert_int_equal(tn_chosen_expert(chosen, k++), i);
        }
        if (op->experts.sigmoid && !op->experts.norm) sum = 1;
        for (int32_t k = 0; k < used; k++) {
            double want = weight[tn_chosen_expert(chosen, k)] / sum * (double)op->experts.scale;
            assert_true(fabs((double)tn_chosen_weight(chosen, k) - want) < 2e-5 * (fabs(want) + 1e-2));
        }
        for (int32_t k = 0; shared && k < e; k++) gate += (double)shared[k] * (double)x[k];
        assert_true(fabs((double)chosen[3 * used] - (shared ? 1 / (1 + exp(-gate)) : 1)) < 1e-5);
    }
}

/* Codes of a row as a site wants them. */
static void codes(const rig *r, const tn_npu_site *s, const float *x, uint8_t *out) {
    const float *inverse = part(r, s->ops.roles[0], TN_PKG_INVERSE);
    float *own = malloc((size_t)s->ops.k * sizeof *own);
    for (int32_t k = 0; k < s->ops.k; k++) own[k] = x[k] * (inverse ? inverse[k] : 1);
    if (s->rotated) tn_hadamard_wide(r->p->kern->hadamard_f32, own, (size_t)s->ops.k, (size_t)s->rotated);
    for (int32_t k = 0; k < s->ops.k; k++)
        out[k] = (uint8_t)(128 + nearbyintf(fmaxf(-127, fminf(127, own[k] * s->inv_scale))));
    free(own);
}

static void read_codes(const rig *r, const tn_npu_site *s, const float *x, int64_t place) {
    uint8_t want[256];
    assert_true(s->ops.k <= 256);
    codes(r, s, x, want);
    assert_memory_equal(r->c->expert_x + place * s->in_stride, want, (size_t)s->ops.k);
}

static void gathered(const rig *r) {
    const tn_op *op = op_of(r, TN_OP_GATHER);
    const tn_npu_site *s = tn_npu_site_at(r->p->m, r->layer, TN_SITE_EXPERTS);
    int32_t used = op->experts.used, at = 0;
    tn_experts_gather(r->p, r->c, op, 61, N_ROWS);
    tn_experts_gather(r->p, r->c, op, 0, 61);
    for (int32_t e = 0; e < op->experts.n; e++) { /* expert by expert, in order of the rows */
        for (int32_t row = 0; row < N_ROWS; row++) {
            const float *chosen = tn_frame_row(&r->c->f, TN_BUF_CHOSEN, tn_chosen_width(used), row);
            for (int32_t k = 0; k < used; k++) {
                if (tn_chosen_expert(chosen, k) != e) continue;
                assert_int_equal(row * used + tn_chosen_place(chosen, k), at);
                read_codes(r, s, r->x + row * s->ops.k, at++);
            }
        }
    }
    assert_int_equal(at, N_ROWS * used);
}

/* Row n of a linear as the package has it. */
static void weights(const rig *r, const tn_site_ops *o, int32_t op, int64_t n, int8_t *q) {
    static const tn_npu_layout layout = {.id = TN_NPU_LAYOUT_16X4, .tile_n = 16, .tile_k = 4};
    const uint8_t *packed = part(r, o->roles[op], TN_PKG_WEIGHTLETS),
                  *bits = part(r, o->roles[op], TN_PKG_CHANNEL_BITS);
    if (!packed) {
        tn_npu_tiles_row(&layout, part(r, o->roles[op], TN_PKG_TILES), n, o->k, q);
        return;
    }
    size_t tile = tn_weightlets_bytes(bits, 0, (size_t)(n / 16 * 16), (size_t)o->k);
    tn_weightlets_row(packed + tile, bits, (size_t)n, (size_t)o->n[op], (size_t)o->k, q);
}

/* The products of a site, in as many parts as the pipeline would make, are those of the codes and of the
 * package's weights of the expert whose place it is: every bit. */
static void products(const rig *r, tn_site kind, int32_t n_parts) {
    const tn_npu_site *s = tn_npu_site_at(r->p->m, r->layer, kind);
    const tn_site_ops *o = &s->ops;
    tern_error err;
    for (int32_t op = 0; op < o->n_ops; op++)
        memset(r->c->f.buf[tn_role_buffer(o->roles[op])], 0x7f,
               (size_t)N_ROWS * (size_t)o->n_used * (size_t)tn_site_op_n(o, op) * sizeof(float));
    for (int32_t i = n_parts; i-- > 0;) must(tn_experts_product(r->p, 0, s, i, n_parts, false, &err), &err);
    int32_t first[TN_MAX_EXPERTS + 1];
    tn_experts_count(&r->c->f, o->n_experts, o->n_used, first);
    assert_int_equal(first[o->n_experts], N_ROWS * o->n_used);
    int8_t *w = malloc((size_t)o->k);
    for (int32_t op = 0; op < o->n_ops; op++) {
        const float *bias = part(r, o->roles[op], TN_PKG_BIAS);
        size_t n_pad = (size_t)(o->n[op] + 15) / 16 * 16;
        float *scale = malloc(2 * n_pad * sizeof *scale);
        assert_non_null(scale);
        must(tn_pkg_rows(r->records, r->n_records, r->bytes, (uint32_t)o->roles[op], n_pad, scale,
                         (int32_t *)(scale + n_pad), &err),
             &err);
        int32_t n_each = tn_site_op_n(o, op);
        for (int32_t n = 0; n < o->n[op]; n++) {
            weights(r, o, op, n, w);
            for (int32_t at = first[n / n_each]; at < first[n / n_each + 1]; at++) {
                const uint8_t *x = r->c->expert_x + (int64_t)at * s->in_stride;
                int32_t acc = 0;
                for (int32_t k = 0; k < o->k; k++) acc += ((int32_t)x[k] - 128) * w[k];
                float by = s->act_scale * scale[n],
                      want = bias ? fmaf((float)acc, by, bias[n]) : (float)acc * by,
                      got = r->c->f.buf[tn_role_buffer(o->roles[op])][at * n_each + n % n_each];
                if (want != got)
                    fail_msg("%s, channel %d, place %d: %.9g, want %.9g", tn_role_name(o->roles[op]), n, at,
                             (double)got, (double)want);
            }
        }
        free(scale);
    }
    free(w);
}

static void gated(const rig *r) {
    const tn_op *op = op_of(r, TN_OP_EXPERT_GATE);
    const tn_npu_site *s = tn_npu_site_at(r->p->m, r->layer, TN_SITE_EXPERTS_DOWN);
    size_t n = (size_t)N_ROWS * (size_t)op->width;
    float *gate = malloc(2 * n * sizeof *gate), *up = gate + n;
    memcpy(gate, r->c->f.buf[TN_BUF_EXPERT_GATE], n * sizeof *gate);
    memcpy(up, r->c->f.buf[TN_BUF_EXPERT_UP], n * sizeof *up);
    tn_op_info_of(op->kind)->rows(op, &r->c->f, 0, N_ROWS, NULL);
    const float *got = r->c->f.buf[TN_BUF_EXPERT_UP];
    for (size_t i = 0; i < n; i++) {
        double g = (double)gate[i], u = (double)up[i], l = (double)op->experts.limit, want;
        if (l > 0) g = fmin(g, l), u = fmax(-l, fmin(l, u));
        want = l > 0 ? (u + 1) * g / (1 + exp(-1.702 * g)) : u * g / (1 + exp(-g));
        if (fabs(want - (double)got[i]) > 1e-4 * (fabs(want) + 1e-3))
            fail_msg("gate: %.9g, want %.9g", (double)got[i], want);
        up[i] = got[i];
    }
    for (int32_t row = 0; row < N_ROWS; row++) tn_experts_quantise(r->p, r->c, s, op, row);
    for (int32_t at = 0; at < N_ROWS * s->ops.n_used; at++) read_codes(r, s, up + at * s->ops.k, at);
    free(gate);
}

static void summed(const rig *r) {
    const tn_op *op = op_of(r, TN_OP_EXPERT_SUM);
    int32_t used = op->experts.used, e = op->experts.n_embd;
    float *branch = r->c->f.buf[TN_BUF_BRANCH];
    for (int32_t i = 0; i < N_ROWS * e; i++) branch[i] = (float)(i % 13) * 0.25f - 1;
    tn_op_info_of(op->kind)->rows(op, &r->c->f, 0, N_ROWS, NULL);
    for (int32_t row = 0; row < N_ROWS; row++) {
        const float *chosen = tn_frame_row(&r->c->f, TN_BUF_CHOSEN, tn_chosen_width(used), row);
        for (int32_t i = 0; i < e; i++) {
            double was = (row * e + i) % 13 * 0.25 - 1,
                   want = op->experts.shared ? was * (double)chosen[3 * used] : 0, size = fabs(want);
            for (int32_t k = 0; k < used; k++) {
                double y =
                    (double)r->c->f.buf[TN_BUF_GIVEN][(row * used + tn_chosen_place(chosen, k)) * e + i];
                want += (double)tn_chosen_weight(chosen, k) * y;
                size += fabs((double)tn_chosen_weight(chosen, k) * y);
            }
            assert_true(fabs((double)branch[row * e + i] - want) <= 1e-6 * size + 1e-12);
        }
    }
}

static void one_layer(rig *r, int32_t layer, tn_rng *rng) {
    tern_error err;
    const tn_pkg_section *s = tn_pkg_find(r->e->npu->pkg, TN_PKG_LAYER, layer);
    r->layer = layer;
    r->ops = tn_program_layer(&r->e->model->program, layer, &r->n_ops);
    r->bytes = malloc(s->size_bytes);
    must(tn_pkg_read(r->e->npu->pkg, s, r->bytes, &err), &err);
    r->records = tn_pkg_records(r->e->npu->pkg, s, &r->n_records);
    size_t n = (size_t)N_ROWS * (size_t)r->e->model->h.n_embd;
    r->x = malloc(n * sizeof *r->x);
    for (size_t i = 0; i < n; i++) r->x[i] = ((float)tn_rng_below(rng, 2001) - 1000) / 500;
    for (size_t i = 0; i < n / 4; i++) r->x[i] = r->x[i % 7]; /* rows with the same experts */
    memcpy(r->c->f.buf[TN_BUF_NORMED], r->x, n * sizeof *r->x);
    routes(r);
    gathered(r);
    products(r, TN_SITE_EXPERTS, tn_experts_parts(r->p, tn_npu_site_at(r->p->m, layer, TN_SITE_EXPERTS)));
    products(r, TN_SITE_EXPERTS, 1);
    products(r, TN_SITE_EXPERTS, 97);
    gated(r);
    products(r, TN_SITE_EXPERTS_DOWN, 8);
    summed(r);
    free(r->x);
    free(r->bytes);
}

/* apart: whole jobs, on threads of the device. */
static void all_layers(const char *path, bool apart) {
    tn_rng rng = {11};
    tern_options o;
    tern_error err;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.npu_apart = apart;
    rig r = {.e = fixture_engine(path, &o)};
    r.s = fixture_session(r.e, 512, "none");
    must(tern_session_prefill(r.s, prompt, N_ROWS, &err), &err);
    r.p = tn_session_pipeline(r.s);
    r.c = &r.p->chunks[0];
    assert_int_equal(r.c->r.n_rows, N_ROWS);
    for (int32_t layer = 0; layer < r.e->model->h.n_layers; layer++)
        if (tn_layer_has_experts(&r.e->model->h, layer)) one_layer(&r, layer, &rng);
    tern_session_close(&r.s);
    tern_engine_close(&r.e);
}

/* ---- the same bits ----------------------------------------------------------------------------------- */

/* Logits after the prompt and after three more tokens. */
static void logits_under(const char *path, const tern_options *o, size_t piece, float *out) {
    tern_engine *e = fixture_engine(path, o);
    tern_session *s = fixture_session(e, 512, "none");
    tern_error err;
    for (size_t n = piece; n < N_PROMPT + piece; n += piece)
        must(tern_session_prefill(s, prompt, n < N_PROMPT ? n : N_PROMPT, &err), &err);
    for (size_t i = 0; i < 4; i++) {
        if (i) must(tern_session_step(s, (int32_t)i * 11, &err), &err);
        memcpy(out + i * N_VOCAB, tern_session_logits(s), N_VOCAB * sizeof *out);
    }
    tern_session_close(&s);
    tern_engine_close(&e);
}

static float want[N_LOGITS], got[N_LOGITS];

static void same(const char *path, const tern_options *o, size_t piece, const char *what) {
    logits_under(path, o, piece, got);
    if (memcmp(got, want, sizeof got)) fail_msg("%s: other bits with %s", path, what);
}

static void bits_do_not_depend_on_how(void **state) {
    (void)state;
    static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"},
                             *const loads[] = {"stream", "overlap", "sequential", "mmap"},
                             *const forms[] = {"tiles", "packed"};
    static const int32_t chunks[] = {32, 96, 64, 1024};
    static const size_t pieces[] = {1, 7, 33, 100};
    static const uint64_t caps[] = {1, 400000, 1u << 30};
    for (int p = 0; p < N_MIXTURES; p += getenv("TERN_TEST_QUICK") ? 3 : 1) {
        const char *path = packages[p];
        tern_options o, d;
        tn_options_defaults(&d);
        o = d, o.n_threads = 1;
        logits_under(path, &o, N_PROMPT, want);
        assert_true(isfinite(want[0]) && want[0] != want[1]);
        for (int i = 0; i < 4; i++) {
            o = d, o.policy = policies[i], o.n_threads = 1 + i;
            same(path, &o, N_PROMPT, policies[i]);
            o = d, o.load = loads[i], o.n_threads = 4 - i;
            same(path, &o, N_PROMPT, loads[i]);
            o = d, o.chunk = chunks[i];
            same(path, &o, N_PROMPT, "another chunk length");
            if (i < 2) o = d, o.weights = forms[i], same(path, &o, N_PROMPT, forms[i]);
            if (i < 3) o = d, o.npu_memory_bytes = caps[i], same(path, &o, N_PROMPT, "a memory cap");
            same(path, &d, pieces[i], "a prompt in pieces");
        }
        o = d, o.npu_apart = true;
        same(path, &o, N_PROMPT, "a device of its own");
        o = d, o.products = "operators";
        same(path, &o, N_PROMPT, "linears as tasks of their own");
        o = d, o.steal = TN_STEAL_NONE;
        same(path, &o, N_PROMPT, "lanes kept apart");
        setenv("TERN_CPU", "scalar", 1);
        same(path, &d, N_PROMPT, "scalar kernels");
        unsetenv("TERN_CPU");
    }
}

/* ---- packages that lie ------------------------------------------------------------------------------- */

/* What is different in a copy of a package: a number of its operators, or a tensor of a layer, which is left
 * out, or whose first value becomes another. An INVERSE of the experts' down is added, as packages of before
 * had it. */
typedef struct lie {
    const char *key; /* NULL: a tensor */
    double value;
    tn_role role;
    tn_pkg_part part;
    bool gone;
    const char *told; /* in the message */
} lie;

static void copy_meta(tn_pkg_writer *w, const tn_pkg *p, const tn_pkg_section *s, const lie *l) {
    tern_error err;
    char *meta = calloc(1, s->size_bytes + 1);
    must(tn_pkg_read(p, s, meta, &err), &err);
    json_t *j = json_loads(meta, 0, NULL), *o = json_object_get(j, "operators");
    if (l->key) json_object_set_new(o, l->key, json_real(l->value));
    char *text = json_dumps(j, JSON_REAL_PRECISION(17));
    must(tn_pkg_put_section(w, TN_PKG_META, -1, text, strlen(text), &err), &err);
    free(text);
    free(meta);
    json_decref(j);
}

static void copy_section(tn_pkg_writer *w, const tn_pkg *p, const tn_pkg_section *s, const void *user) {
    const lie *l = user;
    tern_error err;
    size_t n;
    const tn_pkg_record *r = tn_pkg_records(p, s, &n);
    char *bytes = malloc(s->size_bytes + 1);
    float inverse[256]; /* the writer reads what it was given when a section ends */
    must(tn_pkg_read(p, s, bytes, &err), &err);
    if (s->kind == TN_PKG_META) copy_meta(w, p, s, l);
    else if (!n)
        must(tn_pkg_put_section(w, (tn_pkg_kind)s->kind, s->layer, bytes, s->size_bytes, &err), &err);
    if (n) must(tn_pkg_begin(w, (tn_pkg_kind)s->kind, s->layer, &err), &err);
    for (size_t k = 0; k < n; k++) {
        bool it = !l->key && s->layer == 2 && r[k].role == l->role && r[k].part == l->part,
             old = !l->key && l->role == TN_W_DOWN_EXPS && l->part == TN_PKG_INVERSE;
        float v = (float)l->value;
        if (old && r[k].role == TN_W_DOWN_EXPS && r[k].part == TN_PKG_WEIGHTLETS) {
            for (int64_t i = 0; i < r[k].k; i++) inverse[i] = i ? 0.5f + (float)(i % 5) / 4 : v;
            const tn_pkg_record add = {.role = TN_W_DOWN_EXPS, .part = TN_PKG_INVERSE, .n = 1, .k = r[k].k};
            must(tn_pkg_add(w, &add, inverse, (uint64_t)r[k].k * sizeof *inverse, &err), &err);
        }
        if (it && l->gone) continue;
        if (it) memcpy(bytes + r[k].off_bytes, &v, sizeof v);
        must(tn_pkg_add(w, &r[k], bytes + r[k].off_bytes, r[k].size_bytes, &err), &err);
    }
    if (n) must(tn_pkg_end(w, &err), &err);
    free(bytes);
}

static void tell(const char *path, const lie *l) { fixture_rewrite(path, bad, copy_section, l); }

static void lies_are_refused(void **state) {
    (void)state;
    static const lie lies[] = {
        {"experts", 11, .told = "experts' gate"},
        {"experts", 13, .told = "experts' gate"},
        {"experts", 0, .told = "'experts_used'"},
        {"experts", -1, .told = "'experts'"},
        {"experts", 1025, .told = "'experts'"},
        {"experts", 1e18, .told = "'experts'"},
        {"experts_used", 0, .told = "'experts_used'"},
        {"experts_used", 13, .told = "'experts_used'"},
        {"experts_ff", 0, .told = "'experts_ff'"},
        {"experts_ff", 48, .told = "experts' gate"},
        {"experts_ff", 40, .told = "'experts_ff'"},
        {"experts_ff", 1 << 30, .told = "'experts_ff'"},
        {"experts_behind", 3, .told = "'experts_behind'"},
        {"experts_behind", 1, .told = "ffn_gate"},
        {"experts_scale", 0, .told = "'experts_scale'"},
        {"shared_gate", 1, .told = "'shared_gate'"},
        {"shared_expert", 1, .told = "ffn_gate"},
        {"experts_bias", 1, .told = "experts' bias"},
        {"sinks", 1, .told = "attn_sinks"},
        {"experts_anew", 1, .told = "unknown"},
        {NULL, 0, TN_W_ROUTER, TN_PKG_F32, true, "router"},
        {NULL, NAN, TN_W_ROUTER, TN_PKG_F32, false, "router"},
        {NULL, 0, TN_W_GATE_EXPS, TN_PKG_WEIGHTLETS, true, "experts' gate"},
        {NULL, 0, TN_W_UP_EXPS, TN_PKG_CHANNEL_BITS, true, "experts' up"},
        {NULL, 0, TN_W_DOWN_EXPS, TN_PKG_ROWS16, true, "experts' down"},
        {NULL, 0, TN_W_GATE_EXPS, TN_PKG_INVERSE, false, "experts' gate"},
        {NULL, INFINITY, TN_W_DOWN_EXPS, TN_PKG_INVERSE, false, "experts' down"},
        {NULL, -1, TN_W_GATE_EXPS, TN_PKG_INVERSE, false, "experts' gate"},
    };
    static const lie none = {NULL, 0, TN_W_N_ROLES, TN_PKG_F32, true, NULL};
    tern_options o;
    tn_options_defaults(&o);
    o.load = "overlap";
    tell(packages[0], &none); /* a true copy is a package */
    tern_engine *e = fixture_engine(bad, &o);
    tern_engine_close(&e);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        tern_error err = {0};
        tell(packages[0], &lies[i]);
        tern_status st = tern_engine_open(bad, &o, &e, &err);
        if (st != TERN_E_FORMAT || !strstr(err.message, lies[i].told))
            fail_msg("%zu: %d '%s', want '%s'", i, (int)st, err.message, lies[i].told);
    }
    unlink(bad);
}

static void as_plain_loops_compute(void **state) {
    (void)state;
    static const lie scaled = {"experts_scale", 2.5, .told = NULL},
                     old = {NULL, 2, TN_W_DOWN_EXPS, TN_PKG_INVERSE, false, NULL};
    for (int i = 0; i < 2 * N_MIXTURES; i++) all_layers(packages[i / 2], i % 2);
    tell(packages[2], &scaled); /* the models have none */
    all_layers(bad, false);
    tell(packages[0], &old);
    all_layers(bad, false);
}

/* Devices whose graphs cannot be as many as experts, and sparse attention where heads have sinks. */
static void what_cannot_be_is_said(void **state) {
    (void)state;
    tern_options o;
    tern_error err;
    tern_engine *e = NULL;
    tn_options_defaults(&o);
    o.npu_separate_weights = true;
    assert_int_equal(tern_engine_open(packages[0], &o, &e, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "mixture of experts"));
    tn_options_defaults(&o);
    o.no_chunk_sharing = true;
    assert_int_equal(tern_engine_open(packages[0], &o, &e, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "mixture of experts"));
    tn_options_defaults(&o);
    o.attention = "shadow";
    e = fixture_engine(packages[1], &o);
    tern_session *s = NULL;
    assert_int_equal(tern_session_open(e, NULL, &s, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "sinks"));
    tern_engine_close(&e);
    tn_tune_report r; /* tuning does not ask where it begins */
    char profile[FIXTURE_PATH + 16];
    tn_options_defaults(&o);
    must(tn_tune(packages[1], &o, TN_CHUNK_MIN, &r, &err), &err);
    assert_int_equal(r.tuned.attn_threshold, 0);
    snprintf(profile, sizeof profile, "%s.profile", packages[1]);
    assert_int_equal(unlink(profile), 0);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void allocations_fail(void **state) {
    (void)state;
    for (long i = 0;; i += fixture_level(37, 13, 5)) {
        scarce f = {.left = i};
        tern_hooks h;
        scarce_hooks(&h, &f);
        tern_options o;
        tn_options_defaults(&o);
        o.hooks = &h;
        o.n_threads = 1;
        tern_engine *e = NULL;
        tern_session *s = NULL;
        tern_error err;
        tern_status st = tern_engine_open(packages[3], &o, &e, &err);
        if (st == TERN_OK) st = tern_session_open(e, NULL, &s, &err);
        if (st == TERN_OK) st = tern_session_prefill(s, prompt, 40, &err);
        tern_session_close(&s);
        tern_engine_close(&e);
        assert_int_equal(f.live, 0);
        if (st == TERN_OK && f.left >= 0) break; /* none failed any more */
        if (st != TERN_OK) assert_int_equal(st, TERN_E_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_plain_loops_compute), cmocka_unit_test(bits_do_not_depend_on_how),
        cmocka_unit_test(lies_are_refused),       cmocka_unit_test(what_cannot_be_is_said),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
