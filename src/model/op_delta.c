/* DELTA: the recurrence of a gated delta net, of Mamba 2 (kernels/delta_f32.h) or of RWKV-7 (wkv_f32.h) over the rows, by blocks of value
 * channels of a head: tn_delta_items of them, which may run beside each other. The last of a chunk's ops
 * that reads what the convolution read, so it also remembers that: item 0 does. A row of a draft tree
 * continues from its own ancestors: where they do not lie right in front of it, they are put in again. */
#include "model/op.h"

#include <assert.h>
#include <string.h>

enum { MAX_BLOCK = TN_MAX_DELTA * TN_DELTA_BLOCK };

static int32_t blocks(const tn_delta_net *n) { return (n->d_value + TN_DELTA_BLOCK - 1) / TN_DELTA_BLOCK; }

int32_t tn_delta_items(const tn_op *op) { return op->delta.net.n_heads * blocks(&op->delta.net); }

/* A head's block: what a call of the kernel needs but its rows. */
typedef struct block {
    const tn_frame *f;
    const tn_op *op;
    int32_t head, c0, n_cols;
    tn_delta_f32_args a;
} block;

/* Where keys decay by themselves. */
static void run_wkv(block *b, int32_t row0, int32_t n) {
    const tn_delta_net *net = &b->op->delta.net;
    const int32_t keys = net->n_heads * net->d_key, mixed = tn_delta_mixed(net);
    const float *q = tn_frame_row(b->f, TN_BUF_DELTA_MIXED, mixed, row0) + b->head * net->d_key;
    b->f->r->kern->wkv_f32(&(tn_wkv_f32_args){.q = q,
                                              .k = q + keys,
                                              .w = q + 2 * keys,
                                              .z = q + 3 * keys,
                                              .b = q + 4 * keys,
                                              .v = tn_frame_row(b->f, TN_BUF_DELTA_MIXED, mixed, row0) +
                                                   TN_WKV_KEYS * keys + b->head * net->d_value + b->c0,
                                              .stride = (size_t)mixed,
                                              .from = b->a.from,
                                              .state = b->a.state,
                                              .state_stride = b->a.state_stride,
                                              .out = tn_frame_row(b->f, b->op->out, b->op->width, row0) +
                                                     b->head * net->d_value + b->c0,
                                              .out_stride = b->a.out_stride,
                                              .n_rows = (size_t)n,
                                              .d_key = b->a.d_key,
                                              .n_cols = b->a.n_cols});
}

static void run_rows(block *b, int32_t row0, int32_t n) {
    const tn_delta_net *net = &b->op->delta.net;
    if (tn_delta_by_key(net)) {
        run_wkv(b, row0, n);
        return;
    }
    int32_t key = tn_delta_key_head(net, b->head) * net->d_key, keys = net->n_key_heads * net->d_key;
    const float *mixed = tn_frame_row(b->f, TN_BUF_DELTA_MIXED, tn_delta_channels(net), row0);
    b->a.q = mixed + key;
    b->a.k = mixed + keys + key;
    b->a.v = mixed + 2 * keys + b->head * net->d_value + b->c0;
    b->a.decay = tn_frame_row(b->f, TN_BUF_DELTA_DECAY, net->n_heads, row0) + b->head;
    b->a.rate = tn_frame_row(b->f, TN_BUF_DELTA_RATE, net->n_heads, row0) + b->head;
    b->a.out = tn_frame_row(b->f, b->op->out, b->op->width, row0) + b->head * net->d_value + b->c0;
    b->a.n_rows = (size_t)n;
    b->f->r->kern->delta_f32(&b->a);
}

static void copy_block(const block *b, const float *from, size_t from_stride, float *to, size_t to_stride) {
    for (size_t i = 0; i < b->a.d_key; i++)
        memcpy(to + i * to_stride, from + i * from_stride, (size_t)b->n_cols * sizeof *to);
}

/* The rows of a tree, in their order; parents come first. */
static void run_tree(block *b, const float *settled, size_t stride) {
    const tn_rows *r = b->f->r;
    float state[MAX_BLOCK];
    b->a.from = b->a.state = state;
    b->a.state_stride = (size_t)b->n_cols;
    int32_t held = -1; /* the row whose state is there; -1: the settled one's */
    copy_block(b, settled, stride, state, b->a.state_stride);
    for (int32_t i = 0; i < r->n_rows; i++) {
        bool in_frame;
        int32_t parent = tn_rows_before(r, i, 1, &in_frame);
        if (!in_frame) parent = -1;
        if (parent != held) {
            copy_block(b, settled, stride, state, b->a.state_stride);
            uint64_t mask = r->tree_mask[(size_t)i * r->n_tree_words];
            for (int32_t j = 0; j < i; j++)
                if (mask >> j & 1) run_rows(b, j, 1);
        }
        run_rows(b, i, 1);
        held = i;
    }
}

/* The inputs of the convolution in front of the next chunk; of a tree's rows, what keeping one takes. */
static void remember(const tn_op *op, const tn_frame *f) {
    const tn_rows *r = f->r;
    const tn_delta_net *n = &op->delta.net;
    tn_delta *d = r->delta;
    tn_delta_layer *layer = tn_delta_of(d, op->layer);
    layer->other_n = r->tree_mask ? -1 : r->pos[0] + r->n_rows;
    if (r->tree_mask) d->note0 = r->tree_base;
    if (n->wkv) {
        const size_t mixed = tn_delta_note(n);
        for (int32_t i = 0; r->tree_mask && i < r->n_rows; i++)
            memcpy(layer->notes + (size_t)(r->slot[i] - r->tree_base) * mixed,
                   tn_frame_row(f, TN_BUF_DELTA_MIXED, (int32_t)mixed, i), mixed * sizeof(float));
        return;
    }
    size_t keys = (size_t)(n->n_key_heads * n->d_key), values = (size_t)(n->n_heads * n->d_value),
           channels = 2 * keys + values;
    int32_t n_tail = op->delta.len - 1, first = r->tree_mask ? 0 : r->n_rows - n_tail;
    if (!r->tree_mask && first < 0) /* few rows: what is left of the tail in front of them moves up */
        memmove(layer->tail[1], layer->tail[tn_delta_at(d, r->pos[0])] + (size_t)r->n_rows * channels,
                (size_t)-first * channels * sizeof(float));
    for (int32_t i = first < 0 ? 0 : first; i < r->n_rows; i++) {
        assert(!r->tree_mask || r->slot[i] - r->tree_base < TN_DELTA_NOTES);
        float *to = r->tree_mask ? layer->notes + (size_t)(r->slot[i] - r->tree_base) * tn_delta_note(n)
                                 : layer->tail[1] + (size_t)(i - first) * channels;
        memcpy(to, tn_frame_row(f, TN_BUF_DELTA_Q, (int32_t)keys, i), keys * sizeof *to);
        memcpy(to + keys, tn_frame_row(f, TN_BUF_DELTA_K, (int32_t)keys, i), keys * sizeof *to);
        memcpy(to + 2 * keys, tn_frame_row(f, TN_BUF_DELTA_V, (int32_t)values, i), values * sizeof *to);
        if (!r->tree_mask) continue;
        const size_t mixed = (size_t)tn_delta_mixed(n);
        memcpy(to + channels, tn_frame_row(f, TN_BUF_DELTA_MIXED, (int32_t)mixed, i), mixed * sizeof *to);
        for (int32_t h = 0; h < n->n_heads && !n->kda; h++) {
            to[2 * channels + 2 * (size_t)h] = tn_frame_row(f, TN_BUF_DELTA_DECAY, n->n_heads, i)[h];
            to[2 * channels + 2 * (size_t)h + 1] = tn_frame_row(f, TN_BUF_DELTA_RATE, n->n_heads, i)[h];
        }
    }
}

/* n_blocks of a head from an item on. */
static void run_blocks(const tn_op *op, const tn_frame *f, int32_t item, int32_t n_blocks) {
    const tn_rows *r = f->r;
    const tn_delta_net *n = &op->delta.net;
    const tn_delta_layer *layer = tn_delta_of(r->delta, op->layer);
    int32_t head = item / blocks(n), c0 = item % blocks(n) * TN_DELTA_BLOCK, most = n_blocks * TN_DELTA_BLOCK,
            n_cols = n->d_value - c0 < most ? n->d_value - c0 : most;
    size_t off = (size_t)head * (size_t)(n->d_key * n->d_value) + (size_t)c0, stride = (size_t)n->d_value;
    block b = {f,
               op,
               head,
               c0,
               n_cols,
               {.stride = (size_t)tn_delta_channels(n),
                .gate_stride = (size_t)n->n_heads,
                .from = layer->state[tn_delta_at(r->delta, r->pos[0])] + off,
                .state = layer->state[1] + off,
                .state_stride = stride,
                .far = r->delta->far,
                .out_stride = (size_t)op->width,
                .d_key = (size_t)n->d_key,
                .n_cols = (size_t)n_cols,
                .mamba = n->mamba,
                .past = n->mamba ? tn_model_vector(f->m, op->layer, TN_W_MAMBA_D)[head] : 0}};
    if (r->tree_mask) run_tree(&b, layer->state[0] + off, stride);
    else run_rows(&b, 0, r->n_rows);
}

void tn_delta_run(const tn_op *op, const tn_frame *f, int32_t item0, int32_t item1) {
    int32_t of_head = blocks(&op->delta.net), n;
    for (int32_t i = item0; i < item1; i += n) {
        /* a single row passes through each block once, so a call may have several */
        int32_t left = of_head - i % of_head < item1 - i ? of_head - i % of_head : item1 - i;
        n = f->r->tree_mask || f->r->n_rows > 1 ? 1 : left;
        run_blocks(op, f, i, n);
    }
    if (!item0) remember(op, f);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    const tn_delta_net *n = &op->delta.net;
    double state = (double)n->n_heads * n->d_key * n->d_value, values = (double)n->n_heads * n->d_value;
    /* known, decayed, put back, taken in, asked */
    c->macs = n_rows * ((n->mamba ? 3 : tn_delta_by_key(n) ? 5 : 4) * state + 2 * values);
    c->values = n_rows * values + state;
    c->bytes = 4 * (n_rows * (double)tn_delta_mixed(n) + state) + 8 * c->values;
}

const tn_op_info tn_op_delta = {"delta net", NULL, cost};
