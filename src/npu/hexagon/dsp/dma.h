/* npu/hexagon/dsp/dma.h - transfers into VTCM with the interface of a DMA engine. A transfer is started,
 * the core continues to compute, and the data may be used after the wait. Here the core copies, at the
 * wait. On silicon, descriptors of the user DMA replace this; they have two dimensions, because the rows
 * of a column tile go to every second half of the vectors. */
#ifndef TN_HEXAGON_DMA_H
#define TN_HEXAGON_DMA_H

#include <stdint.h>

/* A move copies n_rows consecutive rows at src to dst, dst_stride apart: 64 bytes 128 apart, or one row of
 * any length. */
typedef struct tn_hex_move {
    uint8_t *dst;
    const uint8_t *src;
    uint32_t row_bytes, n_rows, dst_stride;
} tn_hex_move;

enum { TN_HEX_MAX_MOVES = 4 };

typedef struct tn_hex_dma {
    tn_hex_move moves[TN_HEX_MAX_MOVES]; /* under way */
    uint32_t n_moves;
    int poison; /* targets are overwritten when a transfer begins, which exposes reading or starting too early
                 */
} tn_hex_dma;

/* Starts a transfer. The previous one must have been waited for. */
void tn_hex_dma_begin(tn_hex_dma *d, const tn_hex_move *moves, uint32_t n_moves);
void tn_hex_dma_wait(tn_hex_dma *d);

#endif
