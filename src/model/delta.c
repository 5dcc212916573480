#include "model/delta.h"

#include "base/cpu.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "model/state.h"

#include <assert.h>
#include <string.h>

/* A token passes through all of it and through the weights, of which such a model has many times as much. */
enum { FAR_BYTES = 4 << 20 };

static size_t state_floats(const tn_delta_net *n) {
    return (size_t)n->n_heads * (size_t)n->d_key * (size_t)n->d_value;
}

static size_t tail_floats(const tn_delta_net *n, int32_t conv_len) {
    return (size_t)(conv_len - 1) * (size_t)tn_delta_channels(n);
}

static size_t layer_floats(const tn_delta_net *n, int32_t conv_len) {
    return 2 * (state_floats(n) + tail_floats(n, conv_len)) + TN_DELTA_NOTES * tn_delta_note(n);
}

uint64_t tn_delta_floats(const tn_hparams *h) {
    uint64_t n = 0;
    for (int32_t l = 0; l < h->n_layers; l++)
        n += tn_layer_recurs(h, l) ? layer_floats(&h->delta, h->conv_len) : 0;
    return n ? n + (uint64_t)h->delta.d_value : 0;
}

static void delta_close(tn_delta *d) {
    if (!d->ctx) return;
    tn_free(d->ctx, d->layers);
    tn_free(d->ctx, d->base);
    d->layers = NULL;
    d->base = NULL;
}

tern_status tn_delta_open(tn_ctx *ctx, const tn_hparams *h, tn_delta *out, tern_error *err) {
    *out = (tn_delta){.ctx = ctx, .net = h->delta, .conv_len = h->conv_len, .note0 = -1};
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    out->kernel = kern.delta_f32;
    out->kernel_wkv = kern.wkv_f32;
    for (int32_t l = 0; l < h->n_layers; l++)
        out->index[l] = tn_layer_recurs(h, l) ? (int16_t)out->n_layers++ : -1;
    size_t n = (size_t)tn_delta_floats(h), s = state_floats(&h->delta),
           t = tail_floats(&h->delta, h->conv_len);
    out->far = (size_t)out->n_layers * s * sizeof(float) >= FAR_BYTES;
    out->layers = tn_calloc(ctx, TN_MEM_KV, (size_t)out->n_layers, sizeof *out->layers);
    float *at = out->base = tn_calloc(ctx, TN_MEM_KV, n, sizeof *out->base);
    if (!out->layers || !out->base) {
        delta_close(out);
        return tn_fail(err, TERN_E_MEMORY, "no memory for what %d gated delta nets remember (%zu bytes)",
                       out->n_layers, n * sizeof *out->base);
    }
    for (int32_t l = 0; l < out->n_layers; l++) {
        tn_delta_layer *layer = &out->layers[l];
        for (int i = 0; i < 2; i++) {
            layer->state[i] = at;
            layer->tail[i] = at + s;
            at += s + t;
        }
        layer->notes = at;
        layer->other_n = -1;
        at += TN_DELTA_NOTES * tn_delta_note(&out->net);
    }
    out->out = at;
    return TERN_OK;
}

/* ---- as a kind of state ---------------------------------------------------------------------------- */

static uint64_t state_bytes(const void *self) {
    const tn_delta *d = self;
    return ((uint64_t)d->n_layers * layer_floats(&d->net, d->conv_len) + (uint64_t)d->net.d_value) *
           sizeof(float);
}

/* The rows of a forward are part of the text: what they left becomes the settled memory. */
static void state_append(void *self, int32_t n_tok, int32_t n) {
    tn_delta *d = self;
    assert(n_tok == d->n_tok);
    for (int32_t l = 0; l < d->n_layers; l++) {
        tn_delta_layer *layer = &d->layers[l];
        assert(layer->other_n == n_tok + n);
        float *state = layer->state[0], *tail = layer->tail[0];
        layer->state[0] = layer->state[1], layer->tail[0] = layer->tail[1];
        layer->state[1] = state, layer->tail[1] = tail;
        layer->other_n = -1;
    }
    d->n_tok = n_tok + n;
}

/* Where keys decay by themselves, into the matrices alone. */
static void put_in_wkv(tn_delta *d, tn_delta_layer *layer, const float *mixed) {
    const tn_delta_net *n = &d->net;
    const size_t dk = (size_t)n->d_key, dv = (size_t)n->d_value, keys = (size_t)n->n_heads * dk;
    for (size_t head = 0; head < (size_t)n->n_heads; head++) {
        const float *key = mixed + head * dk;
        float *state = layer->state[0] + head * dk * dv;
        d->kernel_wkv(&(tn_wkv_f32_args){.q = key,
                                         .k = key + keys,
                                         .w = key + 2 * keys,
                                         .z = key + 3 * keys,
                                         .b = key + 4 * keys,
                                         .v = mixed + TN_WKV_KEYS * keys + head * dv,
                                         .from = state,
                                         .state = state,
                                         .state_stride = dv,
                                         .out = d->out,
                                         .n_rows = 1,
                                         .d_key = dk,
                                         .n_cols = dv});
    }
}

/* Puts one row of all heads into a layer's settled memory. */
static void put_in(tn_delta *d, tn_delta_layer *layer, const float *note) {
    const tn_delta_net *n = &d->net;
    if (n->wkv) {
        put_in_wkv(d, layer, note);
        return;
    }
    size_t channels = (size_t)tn_delta_channels(n), t = tail_floats(n, d->conv_len), dk = (size_t)n->d_key,
           dv = (size_t)n->d_value;
    memmove(layer->tail[0], layer->tail[0] + channels, (t - channels) * sizeof(float));
    memcpy(layer->tail[0] + t - channels, note, channels * sizeof(float));
    const float *mixed = note + channels, *gates = mixed + channels;
    if (n->kda) {
        put_in_wkv(d, layer, mixed);
        return;
    }
    for (int32_t head = 0; head < n->n_heads; head++) {
        size_t key = (size_t)tn_delta_key_head(n, head);
        tn_delta_f32_args a = {.q = mixed + key * dk,
                               .k = mixed + ((size_t)n->n_key_heads + key) * dk,
                               .v = mixed + 2 * (size_t)n->n_key_heads * dk + (size_t)head * dv,
                               .decay = gates + 2 * head,
                               .rate = gates + 2 * head + 1,
                               .from = layer->state[0] + (size_t)head * dk * dv,
                               .state = layer->state[0] + (size_t)head * dk * dv,
                               .state_stride = dv,
                               .out = d->out,
                               .n_rows = 1,
                               .d_key = dk,
                               .n_cols = dv,
                               .mamba = n->mamba};
        d->kernel(&a);
    }
}

static void state_keep(void *self, int32_t slot, int32_t n_tok) {
    tn_delta *d = self;
    assert(n_tok == d->n_tok && d->note0 >= 0 && slot >= d->note0 && slot < d->note0 + TN_DELTA_NOTES);
    for (int32_t l = 0; l < d->n_layers; l++)
        put_in(d, &d->layers[l], d->layers[l].notes + (size_t)(slot - d->note0) * tn_delta_note(&d->net));
    d->n_tok = n_tok + 1;
}

/* The settled memory through io. Nothing of it lies at a position, so all is as long as for any text. */
static void state_transfer(void *self, int32_t n_tok, bool saving, tn_state_io io, void *user) {
    tn_delta *d = self;
    for (int32_t l = 0; l < d->n_layers; l++) {
        io(user, d->layers[l].state[0], state_floats(&d->net) * sizeof(float));
        io(user, d->layers[l].tail[0], tail_floats(&d->net, d->conv_len) * sizeof(float));
        if (!saving) d->layers[l].other_n = -1;
    }
    if (!saving) d->n_tok = n_tok;
}

enum { MARK_HEAD = 16 }; /* bytes: the position */

static size_t state_snapshot_bytes(const void *self) {
    const tn_delta *d = self;
    return MARK_HEAD +
           (size_t)d->n_layers * (state_floats(&d->net) + tail_floats(&d->net, d->conv_len)) * sizeof(float);
}

static void to_mark(void *user, void *data, size_t n_bytes) {
    char **at = user;
    memcpy(*at, data, n_bytes);
    *at += n_bytes;
}

static void from_mark(void *user, void *data, size_t n_bytes) {
    char **at = user;
    memcpy(data, *at, n_bytes);
    *at += n_bytes;
}

static void zeros(void *user, void *data, size_t n_bytes) {
    (void)user;
    memset(data, 0, n_bytes);
}

static void state_snapshot(const void *self, void *out) {
    const tn_delta *d = self;
    char *at = (char *)out + MARK_HEAD;
    memcpy(out, &d->n_tok, sizeof d->n_tok);
    state_transfer((void *)(uintptr_t)self, d->n_tok, true, to_mark, &at);
}

static void state_restore(void *self, const void *from) {
    int32_t n_tok = 0;
    char *at = from ? (char *)(uintptr_t)from + MARK_HEAD : NULL; /* NULL: an empty memory */
    if (from) memcpy(&n_tok, from, sizeof n_tok);
    state_transfer(self, n_tok, false, from ? from_mark : zeros, &at);
}

static void state_close(void *self) { delta_close(self); }

const tn_state_ops tn_delta_state = {.name = "delta nets",
                                     .bytes = state_bytes,
                                     .append = state_append,
                                     .keep = state_keep,
                                     .snapshot_bytes = state_snapshot_bytes,
                                     .snapshot = state_snapshot,
                                     .restore = state_restore,
                                     .snapshot_at = tn_state_snapshot_at,
                                     .transfer = state_transfer,
                                     .close = state_close};
