#include "model/conv.h"

#include "base/status.h"
#include "model/state.h"

#include <string.h>

tern_status tn_conv_open(tn_ctx *ctx, const tn_hparams *h, tn_conv *out, tern_error *err) {
    *out = (tn_conv){.ctx = ctx, .n_embd = tn_kept_row(h), .len = h->conv_len};
    for (int32_t l = 0; l < h->n_layers; l++)
        out->index[l] = tn_layer_keeps_rows(h, l) ? out->n_layers++ : -1;
    size_t n = (size_t)out->n_layers * tn_conv_floats(out->n_embd, h->conv_len);
    out->ring = tn_calloc(ctx, TN_MEM_KV, n, sizeof *out->ring);
    TN_FAIL_IF(!out->ring, err, TERN_E_MEMORY, "no memory for the last inputs of %d convolutions (%zu bytes)",
               out->n_layers, n * sizeof *out->ring);
    out->tail = out->ring + (size_t)out->n_layers * TN_CONV_RING * (size_t)out->n_embd;
    return TERN_OK;
}

static void conv_close(tn_conv *c) {
    tn_free(c->ctx, c->ring);
    c->ring = c->tail = NULL;
}

/* ---- as a kind of state ---------------------------------------------------------------------------- */

static uint64_t state_bytes(const void *self) {
    const tn_conv *c = self;
    return (uint64_t)c->n_layers * tn_conv_floats(c->n_embd, c->len) * sizeof(float);
}

/* Slots after the text that a forward may have written, kept or not: a chunk, or a draft tree. */
enum { AHEAD = 256 };

static float *ring_of(const tn_conv *c, int32_t i_layer, int32_t pos) {
    return c->ring + ((size_t)i_layer * TN_CONV_RING + (size_t)(pos % TN_CONV_RING)) * (size_t)c->n_embd;
}

/* The text has n_tok tokens now, and the ring holds the last of them. */
static void settle(tn_conv *c, int32_t n_tok) {
    size_t n = (size_t)c->n_embd;
    c->n_tok = n_tok;
    for (int32_t i = 0; i < c->n_layers; i++) {
        float *tail = c->tail + (size_t)i * (size_t)(c->len - 1) * n;
        for (int32_t k = 0, p = n_tok - (c->len - 1); p < n_tok; k++, p++)
            if (p >= 0) memcpy(tail + (size_t)k * n, ring_of(c, i, p), n * sizeof *tail);
    }
}

static void reached(tn_conv *c, int32_t n_tok) {
    int32_t lowest = n_tok + AHEAD - TN_CONV_RING;
    settle(c, n_tok);
    if (lowest > c->lowest) c->lowest = lowest;
}

static void state_append(void *self, int32_t n_tok, int32_t n) { reached(self, n_tok + n); }

static void state_keep(void *self, int32_t slot, int32_t n_tok) {
    tn_conv *c = self;
    for (int32_t l = 0; slot != n_tok && l < TN_MAX_LAYERS; l++) {
        if (c->index[l] >= 0 && l < TN_MAX_LAYERS && c->index[l] < c->n_layers)
            memcpy(tn_conv_at(c, l, n_tok), tn_conv_at(c, l, slot), (size_t)c->n_embd * sizeof(float));
    }
    reached(c, n_tok + 1);
}

static bool state_reaches(const void *self, int32_t n_tok) {
    const tn_conv *c = self;
    return n_tok == 0 || c->lowest <= 0 || n_tok - (c->len - 1) >= c->lowest;
}

static void state_truncate(void *self, int32_t n_tok) {
    tn_conv *c = self;
    settle(c, n_tok);
    if (!n_tok) c->lowest = 0;
}

/* The inputs of the last len - 1 positions through io: zeros in front of the text. */
static void state_transfer(void *self, int32_t n_tok, bool saving, tn_state_io io, void *user) {
    tn_conv *c = self;
    for (int32_t i = 0; i < c->n_layers; i++) {
        for (int32_t p = n_tok < c->len - 1 ? 0 : n_tok - (c->len - 1); p < n_tok; p++)
            io(user, ring_of(c, i, p), (size_t)c->n_embd * sizeof(float));
    }
    if (saving) return;
    settle(c, n_tok);
    c->lowest = n_tok - (c->len - 1);
}

typedef struct mark_io {
    char *at;
    bool out;
} mark_io;

static void copy(void *user, void *data, size_t n_bytes) {
    mark_io *m = user;
    if (m->out) memcpy(m->at, data, n_bytes);
    else memcpy(data, m->at, n_bytes);
    m->at += n_bytes;
}

static size_t state_snapshot_bytes(const void *self) {
    const tn_conv *c = self;
    return 16 + (size_t)c->n_layers * (size_t)(c->len - 1) * (size_t)c->n_embd * sizeof(float);
}

static void state_snapshot(const void *self, void *out) {
    const tn_conv *c = self;
    mark_io m = {(char *)out + 16, true};
    memcpy(out, &c->n_tok, sizeof c->n_tok);
    state_transfer((void *)(uintptr_t)self, c->n_tok, true, copy, &m);
}

static void state_restore(void *self, const void *from) {
    int32_t n_tok = 0;
    mark_io m = {(char *)(uintptr_t)from + 16, false};
    if (from) memcpy(&n_tok, from, sizeof n_tok);
    if (n_tok) state_transfer(self, n_tok, false, copy, &m);
    else state_truncate(self, 0);
}

static void state_close(void *self) { conv_close(self); }

const tn_state_ops tn_conv_state = {.name = "convolutions",
                                    .bytes = state_bytes,
                                    .append = state_append,
                                    .keep = state_keep,
                                    .truncate = state_truncate,
                                    .reaches = state_reaches,
                                    .snapshot_bytes = state_snapshot_bytes,
                                    .snapshot = state_snapshot,
                                    .restore = state_restore,
                                    .snapshot_at = tn_state_snapshot_at,
                                    .transfer = state_transfer,
                                    .close = state_close};
