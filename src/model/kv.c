#include "model/state.h"

#include "base/finite.h"
#include "base/status.h"
#include "kernels/hadamard.h"

#include <assert.h>
#include <string.h>

enum { FUSE_FROM = 3072 }; /* positions below which no pages are fused */

uint64_t tn_kv_bytes_of(const tn_hparams *h, int32_t n_ctx, tn_kv_type type) {
    uint64_t panels = ((uint64_t)n_ctx + TN_KV_PANEL - 1) / TN_KV_PANEL;
    uint64_t n = 0;
    for (int32_t l = 0; l < h->n_layers; l++)
        if (tn_layer_attends(h, l) && tn_layer_kv(h, l) == l)
            n += (uint64_t)tn_layer_kv_heads(h, l) * tn_kv_panel_bytes(type, (size_t)tn_layer_d_head(h, l));
    return (tn_latent(h) ? 1 : 2) * panels * n;
}

tern_status tn_kv_open(tn_ctx *ctx, const tn_hparams *h, int32_t n_ctx, tn_kv_type type, tn_kv *out,
                       tern_error *err) {
    assert(type < TN_N_KV_TYPES);
    int32_t n_panels = (n_ctx + TN_KV_PANEL - 1) / TN_KV_PANEL;
    bool whole = h->d_head % TN_HADAMARD_BLOCK == 0 && h->window_d_head % TN_HADAMARD_BLOCK == 0;
    size_t n = 0;
    *out = (tn_kv){.ctx = ctx,
                   .type = type,
                   .rotated = type == TN_KV_INT4 && whole && !tn_latent(h),
                   .joint = tn_latent(h),
                   .fuse_at = FUSE_FROM,
                   .cap_tok = n_panels * TN_KV_PANEL};
    for (int32_t l = 0; l < h->n_layers; l++) {
        out->index[l] = -1;
        if (!tn_layer_attends(h, l)) continue;
        int32_t from = tn_layer_kv(h, l), d = tn_layer_d_head(h, l);
        out->index[l] = from == l ? (int16_t)out->n_layers++ : out->index[from];
        if (from != l) continue;
        struct tn_kv_layer *at = &out->layers[out->index[l]];
        *at = (struct tn_kv_layer){.n_kv_heads = tn_layer_kv_heads(h, l),
                                   .d_head = d,
                                   .head_bytes = (size_t)n_panels * tn_kv_panel_bytes(type, (size_t)d),
                                   .at = n};
        n += (size_t)at->n_kv_heads * at->head_bytes;
    }
    out->layers[out->n_layers].at = n;
    n += !n; /* no layer attends */
    if (!out->joint) out->k = tn_alloc(ctx, TN_MEM_KV, n, 1);
    out->v = tn_alloc(ctx, TN_MEM_KV, n, 1);
    if ((out->k || out->joint) && out->v) return TERN_OK;
    tn_kv_close(out);
    return tn_fail(err, TERN_E_MEMORY,
                   "no memory for a KV cache of %d tokens (%zu bytes); ask for a smaller context", n_ctx,
                   (out->joint ? 1 : 2) * n);
}

void tn_kv_close(tn_kv *kv) {
    tn_free(kv->ctx, kv->k);
    tn_free(kv->ctx, kv->v);
    kv->k = kv->v = NULL;
}

static void put_key(const tn_kv *kv, size_t d, void *panels, int32_t pos, const float *k) {
    float rotated[TN_MAX_HEAD];
    if (kv->rotated) {
        memcpy(rotated, k, d * sizeof *k);
        tn_hadamard_f32_ref(rotated, d);
        k = rotated;
    }
    tn_kv_put_key(kv->type, d, panels, (size_t)pos, k);
}

void tn_kv_put(const tn_kv *kv, int layer, int head, int32_t pos, const float *k, const float *v) {
    size_t d = (size_t)tn_kv_layer_of(kv, layer)->d_head;
    if (!kv->joint) put_key(kv, d, tn_kv_k(kv, layer, head), pos, k);
    tn_kv_put_value(kv->type, d, tn_kv_v(kv, layer, head), (size_t)pos, v);
}

void tn_kv_move(const tn_kv *kv, int32_t from, int32_t to) {
    if (from == to) return;
    for (int l = 0; l < kv->n_layers; l++) {
        size_t d = (size_t)kv->layers[l].d_head;
        for (int h = 0; h < kv->layers[l].n_kv_heads; h++) {
            size_t at = tn_kv_head_offset(kv, l, h);
            if (!kv->joint) tn_kv_copy_key(kv->type, d, kv->k + at, (size_t)from, (size_t)to);
            tn_kv_copy_value(kv->type, d, kv->v + at, (size_t)from, (size_t)to);
        }
    }
}

void tn_kv_convert(const tn_kv *from, int32_t n_tok, const tn_kv *to) {
    float k[TN_MAX_HEAD], v[TN_MAX_HEAD];
    for (int l = 0; l < from->n_layers; l++) {
        size_t d = (size_t)from->layers[l].d_head;
        for (int h = 0; h < from->layers[l].n_kv_heads; h++) {
            size_t in = tn_kv_head_offset(from, l, h), out = tn_kv_head_offset(to, l, h);
            for (int32_t p = 0; p < n_tok; p++) {
                for (size_t i = 0; i < d; i++) v[i] = tn_kv_value(from->type, d, from->v + in, (size_t)p, i);
                tn_kv_put_value(to->type, d, to->v + out, (size_t)p, v);
                if (from->joint) continue;
                for (size_t i = 0; i < d; i++) k[i] = tn_kv_key(from->type, d, from->k + in, (size_t)p, i);
                if (from->rotated) tn_hadamard_f32_ref(k, d);
                put_key(to, d, to->k + out, p, k);
            }
        }
    }
}

void tn_kv_query(const tn_kv *kv, const tn_kernels *kern, size_t d, float *q, int32_t n) {
    if (kv->rotated) kern->hadamard_f32(q, (size_t)n * d);
}

bool tn_kv_finite(const tn_kv *kv, const tn_kernels *kern, int layer, int head, int32_t n_tok) {
    float row[TN_MAX_HEAD];
    size_t d = (size_t)tn_kv_layer_of(kv, layer)->d_head;
    const void *v = tn_kv_v(kv, layer, head);
    bool finite = true;
    for (int32_t p = 0; p < n_tok && finite; p++) {
        kern->kv_rows(kv->type, d, v, (size_t)p, 1, row);
        finite = tn_all_finite(row, d);
    }
    return finite;
}

/* ---- as a kind of state ---------------------------------------------------------------------------- */

static uint64_t state_bytes(const void *self) {
    const tn_kv *kv = self;
    return (kv->joint ? 1 : 2) * (uint64_t)tn_kv_head_offset(kv, kv->n_layers, 0);
}

/* Fuses the huge pages of k or v of which three quarters are filled: less would take memory that the text does
 * not need. */
static void fuse(const tn_kv *kv, uint8_t *cells, int32_t n_tok) {
    const uintptr_t base = (uintptr_t)cells;
    uintptr_t page = (base + TN_HUGE_PAGE - 1) / TN_HUGE_PAGE * TN_HUGE_PAGE;
    for (; page + TN_HUGE_PAGE <= base + kv->layers[kv->n_layers].at; page += TN_HUGE_PAGE) {
        size_t filled = 0, from = page - base, to = from + TN_HUGE_PAGE;
        for (int32_t l = 0; l < kv->n_layers; l++) {
            const struct tn_kv_layer *at = &kv->layers[l];
            size_t used = (size_t)n_tok / TN_KV_PANEL * tn_kv_panel_bytes(kv->type, (size_t)at->d_head);
            if (at[1].at <= from || at->at >= to) continue;
            for (int32_t h = 0; h < at->n_kv_heads; h++) {
                size_t begin = tn_kv_head_offset(kv, l, h), end = begin + used;
                begin = begin > from ? begin : from;
                end = end < to ? end : to;
                if (begin < end) filled += end - begin;
            }
        }
        if (filled >= TN_HUGE_PAGE / 4 * 3) tn_mem_fuse(kv->ctx, (void *)page, TN_HUGE_PAGE);
    }
}

/* The first n_tok positions are filled. Once there are many, the memory they fill moves to huge pages: a step
 * then touches fewer pages. */
static void grown(tn_kv *kv, int32_t n_tok) {
    if (n_tok < kv->fuse_at) return;
    while (kv->fuse_at <= n_tok && kv->fuse_at <= INT32_MAX / 2) kv->fuse_at *= 2;
    if (kv->k) fuse(kv, kv->k, n_tok);
    fuse(kv, kv->v, n_tok);
}

static void state_append(void *self, int32_t n_tok, int32_t n) { grown(self, n_tok + n); }

static void state_keep(void *self, int32_t slot, int32_t n_tok) {
    tn_kv_move(self, slot, n_tok);
    grown(self, n_tok + 1);
}

/* What lies after the text is never read, and overwritten by the next rows. */
static void state_truncate(void *self, int32_t n_tok) {
    (void)self;
    (void)n_tok;
}

enum { ZEROS = TN_KV_PANEL * sizeof(float) };

/* The last panel of keys is saved whole, with zeros after n_tok, so that files are reproducible. The
 * panel itself stays: the text may go on after n_tok. A panel is runs of 32 elements; those of scales
 * have two bytes. */
static void save_panel(const tn_kv *kv, size_t d, uint8_t *panel, size_t in_panel, tn_state_io io,
                       void *user) {
    size_t left = tn_kv_panel_bytes(kv->type, d), i = 0,
           unit = kv->type == TN_KV_F32   ? 4
                  : kv->type == TN_KV_F16 ? 2
                                          : 1,
           codes = kv->type == TN_KV_INT8 ? TN_KV_GROUP : TN_KV_GROUP / 2;
    for (size_t size; left; left -= size, panel += size, i++) {
        uint8_t row[ZEROS] = {0};
        bool scale = kv->type > TN_KV_F16 && i % (codes + 1) == 0;
        size = TN_KV_PANEL * (scale ? sizeof(uint16_t) : unit);
        memcpy(row, panel, in_panel * size / TN_KV_PANEL);
        io(user, row, size);
    }
}

/* Per layer and KV head: panels of keys, then values. Those of floats end with the text, panels of codes
 * are saved whole. */
static void transfer_head(const tn_kv *kv, size_t d, size_t at, int32_t n_tok, bool saving, tn_state_io io,
                          void *user) {
    size_t panel = tn_kv_panel_bytes(kv->type, d), whole = (size_t)n_tok / TN_KV_PANEL,
           in_panel = (size_t)n_tok % TN_KV_PANEL, n_panels = whole + (in_panel != 0);
    uint8_t *k = kv->joint ? NULL : kv->k + at, *v = kv->v + at;
    if (k) io(user, k, (saving ? whole : n_panels) * panel);
    if (k && saving && in_panel) save_panel(kv, d, k + whole * panel, in_panel, io, user);
    size_t scales = kv->type <= TN_KV_F16 ? 0 : TN_KV_PANEL * tn_kv_groups(d) * sizeof(uint16_t),
           row = (panel - scales) / TN_KV_PANEL;
    io(user, v, whole * panel);
    if (!in_panel) return;
    v += whole * panel;
    io(user, v, in_panel * scales / TN_KV_PANEL);
    io(user, v + scales, in_panel * row);
}

static void state_transfer(void *self, int32_t n_tok, bool saving, tn_state_io io, void *user) {
    tn_kv *kv = self;
    for (int l = 0; l < kv->n_layers; l++) {
        for (int h = 0; h < kv->layers[l].n_kv_heads; h++)
            transfer_head(kv, (size_t)kv->layers[l].d_head, tn_kv_head_offset(kv, l, h), n_tok, saving, io,
                          user);
    }
    if (!saving) grown(kv, n_tok);
}

static void state_close(void *self) { tn_kv_close(self); }

const tn_state_ops tn_kv_state = {.name = "kv",
                                  .bytes = state_bytes,
                                  .append = state_append,
                                  .keep = state_keep,
                                  .truncate = state_truncate,
                                  .transfer = state_transfer,
                                  .close = state_close};
