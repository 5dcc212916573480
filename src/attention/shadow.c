/* attention/shadow.c - tern_shadow.h: the engine's sparse attention on plain arrays, as a model of one
 * layer with nothing but attention. */
#include "tern_shadow.h"

#include "attention/sparse_attn.h"

#include "base/cpu.h"
#include "base/sized.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tern_shadow {
    tn_ctx ctx;
    tn_kernels kern;
    tn_hparams h;
    tn_npu_model m; /* device and scales only */
    tn_attn_options o;
    tn_kv kv;
    bool has_kv;
    tn_sparse_attn *sparse; /* made with the first rows, which determine the scales unless the options do;
                               NULL at ratio 1 */
    float scale_q, scale_k, *head_weight, *scratch;
    int32_t n_tokens, max_tokens, *pos;
};

tern_status tern_shadow_options_init(tern_shadow_options *o, size_t size_bytes) {
    const tern_shadow_options d = {.size_bytes = size_bytes, .ratio = 0.2f};
    return tn_sized_out(o, size_bytes, &d, sizeof d, TN_SIZE_UP_TO(tern_shadow_options, hooks));
}

static tern_status check(const tern_shadow_options *o, tern_error *err) {
    TN_FAIL_IF(o->n_heads < 1 || o->n_kv_heads < 1 || o->n_heads > 1024 || o->n_heads % o->n_kv_heads, err,
               TERN_E_INVALID, "%d heads over %d KV heads", o->n_heads, o->n_kv_heads);
    TN_FAIL_IF(o->d_head < 4 || o->d_head > 512 || o->d_head % 4, err, TERN_E_INVALID,
               "heads of %d values: want a multiple of 4 up to 512", o->d_head);
    TN_FAIL_IF(o->max_tokens < 1 || o->max_tokens > 1 << 22, err, TERN_E_INVALID, "room for %d tokens",
               o->max_tokens);
    TN_FAIL_IF(!(o->ratio > 0 && o->ratio <= 1), err, TERN_E_INVALID,
               "a ratio of %g: want more than 0, at most 1", (double)o->ratio);
    TN_FAIL_IF(!(o->scale_q >= 0 && o->scale_q < 1e30f && o->scale_k >= 0 && o->scale_k < 1e30f), err,
               TERN_E_INVALID, "scales %g and %g", (double)o->scale_q, (double)o->scale_k);
    TN_FAIL_IF(o->share_rows < -1 || o->share_rows > TN_ATTN_MAX_SHARE || o->pool_heads < 0 || o->window < 0,
               err, TERN_E_INVALID, "%d rows that share, pools of %d, a window of %d", o->share_rows,
               o->pool_heads, o->window);
    TN_FAIL_IF(!isfinite(o->scale) || !(o->soft_cap >= 0), err, TERN_E_INVALID,
               "a scale of %g, a soft cap of %g", (double)o->scale, (double)o->soft_cap);
    for (int32_t i = 0; o->head_weight && i < o->n_heads; i++) {
        TN_FAIL_IF(!(o->head_weight[i] > 0) || isinf(o->head_weight[i]), err, TERN_E_INVALID,
                   "head %d weighs %g", i, (double)o->head_weight[i]);
    }
    return TERN_OK;
}

static tern_status open_all(tern_shadow *s, const tern_shadow_options *o, tern_error *err) {
    s->h = (tn_hparams){.n_layers = 1,
                        .n_heads = o->n_heads,
                        .n_kv_heads = o->n_kv_heads,
                        .d_head = o->d_head,
                        .window = o->window,
                        .attn_soft_cap = o->soft_cap,
                        .attn_scale = o->scale != 0 ? o->scale : 1 / sqrtf((float)o->d_head)};
    s->o = (tn_attn_options){.mode = TN_ATTN_SHADOW,
                             .ratio = o->ratio,
                             .n_buckets = 9,
                             .no_head_ratios = !o->head_weight,
                             .pipeline = TN_ATTN_PIPELINE_OFF,
                             .threshold = 1,
                             .share_rows = o->share_rows,
                             .pool_heads = o->pool_heads ? o->pool_heads : TN_ATTN_POOL};
    s->max_tokens = o->max_tokens;
    s->scale_q = o->scale_q;
    s->scale_k = o->scale_k;
    tn_kernels_init(&s->kern, tn_cpu_flags(NULL));
    TN_TRY(tn_kv_open(&s->ctx, &s->h, o->max_tokens, TN_KV_F32, &s->kv, err));
    s->has_kv = true;
    s->pos = tn_alloc(&s->ctx, TN_MEM_OTHER, (size_t)o->max_tokens, sizeof *s->pos);
    s->scratch =
        tn_alloc(&s->ctx, TN_MEM_ACTIVATIONS, tn_rows_scratch(&s->h, s->kv.cap_tok), sizeof *s->scratch);
    s->head_weight = tn_alloc(&s->ctx, TN_MEM_OTHER, (size_t)o->n_heads, sizeof *s->head_weight);
    TN_FAIL_IF(!s->pos || !s->scratch || !s->head_weight, err, TERN_E_MEMORY,
               "no memory for attention over %d tokens", o->max_tokens);
    for (int32_t i = 0; i < o->max_tokens; i++) s->pos[i] = i;
    for (int32_t i = 0; i < o->n_heads; i++) s->head_weight[i] = o->head_weight ? o->head_weight[i] : 1;
    s->m = (tn_npu_model){.ctx = &s->ctx,
                          .kern = &s->kern,
                          .attn_scale_q = &s->scale_q,
                          .attn_scale_k = &s->scale_k,
                          .attn_head_weight = s->head_weight};
    tn_npu_options device = {.n_threads = 1};
    return tn_npu_open(&s->ctx, "host", &device, &s->m.dev, err);
}

tern_status tern_shadow_open(const tern_shadow_options *opt, tern_shadow **out, tern_error *err) {
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "tern_shadow_open needs a place for the attention");
    *out = NULL;
    TN_FAIL_IF(!opt, err, TERN_E_INVALID, "tern_shadow_open needs options: the shape has no defaults");
    tern_shadow_options o;
    tern_hooks hooks;
    tern_shadow_options_defaults(&o);
    tern_hooks_defaults(&hooks);
    TN_TRY(tn_sized_in(&o, sizeof o, opt, opt->size_bytes, TN_SIZE_UP_TO(tern_shadow_options, hooks),
                       "tern_shadow_options", err));
    if (o.hooks)
        TN_TRY(tn_sized_in(&hooks, sizeof hooks, o.hooks, o.hooks->size_bytes,
                           TN_SIZE_UP_TO(tern_hooks, user), "tern_hooks", err));
    TN_TRY(check(&o, err));
    tn_ctx boot;
    tn_ctx_init(&boot, &hooks);
    tern_shadow *s = tn_calloc(&boot, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for attention");
    s->ctx = boot;
    tern_status st = open_all(s, &o, err);
    if (st == TERN_OK) *out = s;
    else tern_shadow_close(&s);
    return st;
}

void tern_shadow_close(tern_shadow **ps) {
    if (!ps || !*ps) return;
    tern_shadow *s = *ps;
    *ps = NULL;
    tn_sparse_attn_close(&s->sparse);
    if (s->m.dev) tn_npu_close(&s->m.dev);
    if (s->has_kv) tn_kv_close(&s->kv);
    tn_free(&s->ctx, s->pos);
    tn_free(&s->ctx, s->scratch);
    tn_free(&s->ctx, s->head_weight);
    tn_ctx ctx = s->ctx;
    tn_free(&ctx, s);
}

tern_status tern_shadow_append(tern_shadow *s, const float *k, const float *v, int32_t n, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no attention given");
    TN_FAIL_IF(n < 0 || n > s->max_tokens - s->n_tokens, err, TERN_E_LIMIT,
               "%d more positions after %d: there is room for %d", n, s->n_tokens, s->max_tokens);
    TN_FAIL_IF(n && (!k || !v), err, TERN_E_INVALID, "%d more positions without %s", n,
               k ? "values" : "keys");
    size_t d = (size_t)s->h.d_head;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t a = 0; a < s->h.n_kv_heads; a++, k += d, v += d)
            tn_kv_put(&s->kv, 0, a, s->n_tokens + i, k, v);
    }
    s->n_tokens += n;
    return TERN_OK;
}

/* Returns the scale at which the largest finite magnitude is 127. */
static float scale_of(const float *x, size_t n) {
    float max = 0;
    for (size_t i = 0; i < n; i++) max = fabsf(x[i]) > max && fabsf(x[i]) < 1e30f ? fabsf(x[i]) : max;
    return max > 1e-30f ? max / 127 : 1;
}

static tern_status first_rows(tern_shadow *s, const float *q, int32_t n, tern_error *err) {
    size_t d = (size_t)s->h.d_head, n_panels = (size_t)s->n_tokens / TN_KV_PANEL;
    if (s->scale_q == 0) s->scale_q = scale_of(q, (size_t)n * (size_t)s->h.n_heads * d);
    for (int32_t a = 0; s->scale_k == 0 && n_panels && a < s->h.n_kv_heads; a++) {
        float scale = scale_of(tn_kv_k(&s->kv, 0, a), n_panels * TN_KV_PANEL * d); /* whole panels */
        s->scale_k = scale > s->scale_k ? scale : s->scale_k;
    }
    if (s->scale_k == 0) s->scale_k = s->scale_q; /* less than a panel: all or nearly all is selected */
    return tn_sparse_attn_open(&s->ctx, &s->m, &s->h, &s->kern, &s->kv, &s->o, 1, 1, TN_ATTN_ROWS, &s->sparse,
                               err);
}

tern_status tern_shadow_attend(tern_shadow *s, const float *q, int32_t n, float *out, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no attention given");
    TN_FAIL_IF(n < 1 || n > s->n_tokens, err, TERN_E_INVALID, "queries of %d positions: %d were appended", n,
               s->n_tokens);
    TN_FAIL_IF(!q || !out, err, TERN_E_INVALID, "%d positions without %s", n,
               q ? "room for the result" : "queries");
    tern_status st = TERN_OK;
    if (s->o.ratio < 1 && !s->sparse) TN_TRY(first_rows(s, q, n, err));
    const int32_t *pos = s->pos + (s->n_tokens - n);
    tn_rows r = {
        .h = &s->h, .kern = &s->kern, .kv = &s->kv, .n_rows = n, .pos = pos, .slot = pos, .tree_base = -1};
    if (!s->sparse) {
        for (int32_t head = 0; head < s->h.n_heads; head++)
            tn_rows_attention(&r, 0, NULL, head, q, out, 0, n, s->scratch);
        return TERN_OK;
    }
    for (int32_t a = 0; a < s->h.n_kv_heads && st == TERN_OK; a++)
        st = tn_sparse_attn_plan(s->sparse, &r, 0, 0, a, q, err);
    for (int32_t i = 0; i < n && st == TERN_OK; i += TN_ATTN_ROWS)
        st = tn_sparse_attn_rows(s->sparse, &r, 0, 0, q, out, i, i + TN_ATTN_ROWS < n ? i + TN_ATTN_ROWS : n,
                                 0, err);
    return st;
}

tern_status tern_shadow_truncate(tern_shadow *s, int32_t n_tokens, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no attention given");
    TN_FAIL_IF(n_tokens < 0 || n_tokens > s->n_tokens, err, TERN_E_INVALID, "%d positions to keep out of %d",
               n_tokens, s->n_tokens);
    s->n_tokens = n_tokens;
    if (s->sparse) tn_sparse_attn_rewind(s->sparse, n_tokens);
    return TERN_OK;
}

int32_t tern_shadow_n_tokens(const tern_shadow *s) { return s ? s->n_tokens : 0; }

double tern_shadow_selected(const tern_shadow *s) {
    tn_attn_stats t = {0};
    if (s && s->sparse) tn_sparse_attn_stats_get(s->sparse, &t);
    return t.n_seen ? (double)t.n_selected / (double)t.n_seen : 1;
}
