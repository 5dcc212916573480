/* npu/blob.c - compiled graphs as bytes. Little-endian:
 *
 *   0  "TNPG"   4  version u32   8  backend name, 16 bytes zero-padded   24  layout id u32   28  payload
 *      bytes u32
 *  32  xxh64 of the payload, seeded with the xxh64 of bytes 0..31
 *  40  payload: kind, m, k, in_stride, rows_per_run, n_ops; per op n, out, has_bias, out_stride, act_scale,
 *      k_scale, out_scale (all 32 bits)
 *
 * What is read is checked like a caller's description, and must be, byte for byte, what tern would write. */
#include "base/half.h"
#include "npu/backend.h"

#include <string.h>
#include <xxhash.h>

enum {
    VERSION = 1,
    NAME_BYTES = 16,
    OFF_NAME = 8,
    OFF_LAYOUT = 24,
    OFF_SIZE = 28,
    OFF_HASH = 32,
    HEAD_BYTES = 40,
    GRAPH_WORDS = 6,
    OP_WORDS = 7,
    MAX_BYTES = HEAD_BYTES + 4 * (GRAPH_WORDS + TN_NPU_MAX_OPS * OP_WORDS)
};

static void put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get_u32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t hash_of(const uint8_t *buf, size_t n_bytes) {
    return XXH64(buf + HEAD_BYTES, n_bytes - HEAD_BYTES, XXH64(buf, OFF_HASH, 0));
}

static size_t encode(const tn_npu_caps *c, const tn_npu_graph_desc *g, uint8_t *buf) {
    uint32_t words[GRAPH_WORDS + TN_NPU_MAX_OPS * OP_WORDS] = {
        (uint32_t)g->kind,         (uint32_t)g->m,    (uint32_t)g->k, (uint32_t)g->in_stride,
        (uint32_t)g->rows_per_run, (uint32_t)g->n_ops};
    int n_words = GRAPH_WORDS;
    for (int i = 0; i < g->n_ops; i++) {
        const tn_npu_op *op = &g->ops[i];
        uint32_t w[OP_WORDS] = {
            (uint32_t)op->n,           (uint32_t)op->out,          op->has_bias,
            (uint32_t)op->out_stride,  tn_f32_bits(op->act_scale), tn_f32_bits(op->k_scale),
            tn_f32_bits(op->out_scale)};
        memcpy(words + n_words, w, sizeof w);
        n_words += OP_WORDS;
    }
    memset(buf, 0, HEAD_BYTES);
    memcpy(buf, "TNPG", 4);
    put_u32(buf + 4, VERSION);
    strncpy((char *)buf + OFF_NAME, c->name, NAME_BYTES - 1);
    put_u32(buf + OFF_LAYOUT, c->layout.id);
    put_u32(buf + OFF_SIZE, (uint32_t)n_words * 4);
    for (int i = 0; i < n_words; i++) put_u32(buf + HEAD_BYTES + 4 * i, words[i]);
    size_t n_bytes = HEAD_BYTES + 4 * (size_t)n_words;
    uint64_t h = hash_of(buf, n_bytes);
    put_u32(buf + OFF_HASH, (uint32_t)h);
    put_u32(buf + OFF_HASH + 4, (uint32_t)(h >> 32));
    return n_bytes;
}

size_t tn_npu_serialise(const tn_npu_graph *g, void *buf, size_t cap) {
    uint8_t all[MAX_BYTES];
    size_t n_bytes = encode(&g->dev->caps, &g->desc, all);
    if (cap) memcpy(buf, all, n_bytes < cap ? n_bytes : cap);
    return n_bytes;
}

tern_status tn_npu_deserialise(tn_npu_device *d, const void *bytes, size_t n_bytes, tn_npu_graph **out,
                               tern_error *err) {
    *out = NULL;
    const uint8_t *buf = bytes;
    TN_FAIL_IF(n_bytes < HEAD_BYTES, err, TERN_E_FORMAT,
               "a compiled graph of %zu bytes; its header alone has %d", n_bytes, HEAD_BYTES);
    TN_FAIL_IF(memcmp(buf, "TNPG", 4), err, TERN_E_FORMAT, "this is not a compiled graph");
    TN_FAIL_IF(get_u32(buf + 4) != VERSION, err, TERN_E_UNSUPPORTED,
               "a compiled graph of version %u; this tern reads version %d", get_u32(buf + 4), VERSION);
    uint32_t size = get_u32(buf + OFF_SIZE);
    TN_FAIL_IF(size != n_bytes - HEAD_BYTES || size < 4 * GRAPH_WORDS || n_bytes > MAX_BYTES, err,
               TERN_E_FORMAT, "a compiled graph of %zu bytes says that it has %u after its header", n_bytes,
               size);
    uint64_t h = hash_of(buf, n_bytes);
    TN_FAIL_IF(get_u32(buf + OFF_HASH) != (uint32_t)h || get_u32(buf + OFF_HASH + 4) != (uint32_t)(h >> 32),
               err, TERN_E_FORMAT, "a compiled graph's checksum does not match");
    char name[NAME_BYTES + 1] = {0};
    memcpy(name, buf + OFF_NAME, NAME_BYTES);
    TN_FAIL_IF(strcmp(name, d->caps.name) || get_u32(buf + OFF_LAYOUT) != d->caps.layout.id, err,
               TERN_E_UNSUPPORTED, "a graph compiled for the NPU '%.16s', layout %u; this is '%s', layout %u",
               name, get_u32(buf + OFF_LAYOUT), d->caps.name, d->caps.layout.id);

    const uint8_t *p = buf + HEAD_BYTES;
    tn_npu_graph_desc desc = {.kind = (tn_npu_kind)get_u32(p),
                              .m = (int32_t)get_u32(p + 4),
                              .k = (int32_t)get_u32(p + 8),
                              .in_stride = (int32_t)get_u32(p + 12),
                              .rows_per_run = (int32_t)get_u32(p + 16),
                              .n_ops = (int32_t)get_u32(p + 20)};
    TN_FAIL_IF(desc.n_ops < 1 || desc.n_ops > TN_NPU_MAX_OPS ||
                   size != 4u * (GRAPH_WORDS + OP_WORDS * (uint32_t)desc.n_ops),
               err, TERN_E_FORMAT, "a compiled graph of %d ops in %u bytes", desc.n_ops, size);
    p += 4 * GRAPH_WORDS;
    for (int i = 0; i < desc.n_ops; i++, p += 4 * OP_WORDS) {
        desc.ops[i] = (tn_npu_op){.n = (int32_t)get_u32(p),
                                  .out = (tn_npu_out)get_u32(p + 4),
                                  .has_bias = get_u32(p + 8) == 1,
                                  .out_stride = (int32_t)get_u32(p + 12),
                                  .act_scale = tn_bits_f32(get_u32(p + 16)),
                                  .k_scale = tn_bits_f32(get_u32(p + 20)),
                                  .out_scale = tn_bits_f32(get_u32(p + 24))};
    }
    tn_npu_graph *g;
    TN_TRY(tn_npu_compile(d, &desc, &g, err));
    uint8_t again[MAX_BYTES];
    if (encode(&d->caps, &g->desc, again) != n_bytes || memcmp(again, buf, n_bytes)) {
        tn_npu_graph_close(&g);
        return tn_fail(err, TERN_E_FORMAT, "a compiled graph has fields that tern does not write");
    }
    *out = g;
    return TERN_OK;
}
