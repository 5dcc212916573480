#include "quant/capture.h"

#include "base/status.h"
#include "model/experts.h"

#include <string.h>

enum { MAX_TOKENS = 8192, MAX_VALUES = 1 << 25, MIN_TOKENS = 512, EXPERTS_TIMES = 4 }; /* 128 MiB of floats */

/* Experts get more room, because each sees only a part of the tokens. */
static void plan(tn_capture *c, const tn_program *p, int32_t layer, size_t n_tok) {
    int64_t width = 0, room = MAX_VALUES;
    for (int s = 0; s < TN_N_SITES; s++) {
        if (tn_site_in_layers((tn_site)s) != (layer < p->n_layers)) continue;
        int32_t i = tn_program_site_index(p, layer, (tn_site)s);
        if (i < 0) continue;
        const tn_site_ops *ops = tn_program_linears(p, i);
        c->k[s] = ops->k;
        c->per_tok[s] = (int32_t)tn_site_rows((tn_site)s, ops, 1);
        c->n_readers[s] = s == TN_SITE_EXPERTS ? ops->n_used : ops->n_experts ? 1 : 0;
        width += (int64_t)c->per_tok[s] * ops->k;
        if (ops->n_experts) c->n_used = ops->n_used;
        if (ops->n_experts) room = (int64_t)MAX_VALUES * EXPERTS_TIMES;
    }
    int64_t tokens = width ? room / width : 1;
    tokens = tokens < MIN_TOKENS ? MIN_TOKENS : tokens > MAX_TOKENS ? MAX_TOKENS : tokens;
    c->step = (int32_t)(((int64_t)n_tok + tokens - 1) / tokens);
    if (c->step < 1) c->step = 1;
    c->cap_tok = (int32_t)((n_tok + (size_t)c->step - 1) / (size_t)c->step);
}

tern_status tn_capture_open(tn_ctx *ctx, const tn_program *p, int32_t layer, size_t n_tok, tn_capture *out,
                            tern_error *err) {
    *out = (tn_capture){.ctx = ctx};
    plan(out, p, layer, n_tok);
    for (int s = 0; s < TN_N_SITES; s++) {
        if (!out->k[s]) continue;
        size_t rows = (size_t)out->cap_tok * (size_t)out->per_tok[s];
        out->x[s] = tn_alloc(ctx, TN_MEM_OTHER, rows * (size_t)out->k[s], sizeof(float));
        if (out->n_readers[s])
            out->readers[s] =
                tn_alloc(ctx, TN_MEM_OTHER, rows * (size_t)out->n_readers[s], sizeof *out->readers[s]);
        if (out->x[s] && (out->readers[s] || !out->n_readers[s])) continue;
        tn_capture_close(out);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the inputs of a layer");
    }
    return TERN_OK;
}

void tn_capture_route(tn_capture *c, const float *chosen) { c->chosen = chosen; }

static const float *chosen_of(const tn_capture *c, int32_t i) {
    return c->chosen + (size_t)i * (size_t)tn_chosen_width(c->n_used);
}

/* Takes row `from` of x, of token i of the chunk, read by the token's experts first .. first + n_readers -
 * 1. */
static void keep(tn_capture *c, tn_site site, const float *from, int32_t i, int32_t first) {
    size_t k = (size_t)c->k[site], at = (size_t)c->rows[site]++, n = (size_t)c->n_readers[site];
    memcpy(c->x[site] + at * k, from, k * sizeof *from);
    for (size_t r = 0; r < n; r++)
        c->readers[site][at * n + r] = (int16_t)tn_chosen_expert(chosen_of(c, i), first + (int32_t)r);
}

void tn_capture_add(tn_capture *c, tn_site site, const float *x, size_t ldx, int32_t n_rows) {
    int32_t each = c->per_tok[site];
    for (int32_t i = 0; c->x[site] && i < n_rows / each; i++) {
        if (c->seen[site]++ % c->step || c->rows[site] == c->cap_tok * each) continue;
        for (int32_t e = 0; e < each; e++) {
            ptrdiff_t at = (ptrdiff_t)i * each; /* after an expert op, rows are grouped by expert */
            if (site == TN_SITE_EXPERTS_DOWN) at += tn_chosen_place(chosen_of(c, i), e);
            keep(c, site, x + at * (ptrdiff_t)ldx, i, e);
        }
    }
}

void tn_capture_close(tn_capture *c) {
    for (int s = 0; s < TN_N_SITES && c->ctx; s++) {
        tn_free(c->ctx, c->x[s]);
        tn_free(c->ctx, c->readers[s]);
    }
    *c = (tn_capture){0};
}
