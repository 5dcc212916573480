#include "dma.h"

#include <hexagon_protos.h>
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

enum { LINE = 64, VECTOR = 128 };

/* Copies lines of a column tile to one half of the vectors at dst; one load covers two lines. */
static void copy_lines(uint8_t *dst, const uint8_t *src, uint32_t n_lines) {
    int high = (uint32_t)dst & LINE;
    HVX_Vector *to = (HVX_Vector *)(dst - high);
    HVX_VectorPred low = Q6_Q_vsetq_R(LINE);
    uint32_t i = 0;
    for (; i + 2 <= n_lines; i += 2, src += VECTOR, to += 2) {
        HVX_Vector both = *(const HVX_UVector *)src, turned = Q6_V_vror_VR(both, LINE);
        if (high) {
            Q6_vmem_QnRIV(low, to, turned);
            Q6_vmem_QnRIV(low, to + 1, both);
        } else {
            Q6_vmem_QRIV(low, to, both);
            Q6_vmem_QRIV(low, to + 1, turned);
        }
    }
    if (i < n_lines) {
        const uint64_t *from = (const uint64_t *)src;
        uint64_t *last = (uint64_t *)((uint8_t *)to + high);
        for (int j = 0; j < LINE / 8; j++) last[j] = from[j];
    }
}

static void copy(uint8_t *dst, const uint8_t *src, uint32_t n) {
    for (; n >= VECTOR; n -= VECTOR, dst += VECTOR, src += VECTOR)
        *(HVX_UVector *)dst = *(const HVX_UVector *)src;
    for (; n; n--) *dst++ = *src++;
}

void tn_hex_dma_begin(tn_hex_dma *d, const tn_hex_move *moves, uint32_t n_moves) {
    for (uint32_t i = 0; i < n_moves; i++) {
        const tn_hex_move *m = &moves[i];
        d->moves[i] = *m;
        for (uint32_t r = 0; d->poison && r < m->n_rows; r++) {
            for (uint32_t b = 0; b + 8 <= m->row_bytes; b += 8)
                *(uint64_t *)(m->dst + r * m->dst_stride + b) = 0xa5a5a5a5a5a5a5a5ull;
        }
    }
    d->n_moves = n_moves;
}

void tn_hex_dma_wait(tn_hex_dma *d) {
    for (uint32_t i = 0; i < d->n_moves; i++) {
        const tn_hex_move *m = &d->moves[i];
        if (m->row_bytes == LINE && m->dst_stride == VECTOR) copy_lines(m->dst, m->src, m->n_rows);
        else copy(m->dst, m->src, m->row_bytes);
    }
    d->n_moves = 0;
}
