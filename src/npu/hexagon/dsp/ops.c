#include "ops.h"

#include "../message.h"
#include "kernels.h"

enum { VECTOR = 128, LINE = 64, TILE_N = 16, GROUP = 128, CHANNEL_VECTORS = TILE_N * VECTOR };

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- linear and Q.K -------------------------------------------------------------------------------------- */

/* VTCM: sums [rows] | acc [rows][32], where k comes in blocks, else [8][32] | panel [rows][units][8] | two halves for weights, each
 * weights [units][2][32][4], scale [32], bias [32]. */
typedef struct plan {
    uint32_t n_units, n_blocks, block; /* of k; units in one block */
    uint32_t n_rows;                   /* of activations that are staged together */
    uint32_t off_acc, off_panel, off_half[2];
    uint32_t n_tiles;                  /* of 32 columns */
} plan;

static uint32_t up(uint32_t x) { return (x + VECTOR - 1) / VECTOR * VECTOR; }

/* Rows and units as many as fit; all units of a row first: then activations are staged once. */
static plan plan_of(uint32_t vtcm, const tn_hex_op *op) {
    plan p = {.n_units = (op->k + TN_HEX_UNIT - 1) / TN_HEX_UNIT, .n_tiles = (op->n + TN_HEX_COLS - 1) / TN_HEX_COLS};
    uint32_t room = vtcm - 6 * VECTOR - TN_HEX_ROWS * VECTOR - 2 * 2 * VECTOR; /* rounding, acc without blocks, factors */
    uint32_t whole = 2 * 2 * VECTOR * p.n_units, row = p.n_units * TN_HEX_UNIT + 4;
    if (whole < room && (room - whole) / row >= least(op->m, TN_HEX_ROWS)) {
        p.block = p.n_units;
        p.n_rows = least(op->m, (room - whole) / row);
        if (p.n_rows < op->m) p.n_rows = p.n_rows / TN_HEX_ROWS * TN_HEX_ROWS;
        p.off_acc = up(p.n_rows * 4);
        p.off_panel = p.off_acc + TN_HEX_ROWS * VECTOR;
    } else {
        p.n_rows = least(op->m, TN_HEX_ROWS);
        p.block = least(p.n_units, (room - p.n_rows * 4) / (4 * VECTOR + p.n_rows * TN_HEX_UNIT));
        p.off_acc = up(p.n_rows * 4);
        p.off_panel = p.off_acc + TN_HEX_ROWS * VECTOR;
    }
    p.n_blocks = (p.n_units + p.block - 1) / p.block;
    p.off_half[0] = up(p.off_panel + p.n_rows * p.block * TN_HEX_UNIT);
    p.off_half[1] = p.off_half[0] + p.block * 2 * VECTOR + 2 * VECTOR;
    return p;
}

/* Round i: block i % n_blocks of k of column tile i / n_blocks, to the half that is not being read. */
static void begin(const tn_hex_scratch *s, const tn_hex_op *op, const plan *p, uint32_t round, uint32_t half) {
    uint32_t tile = round / p->n_blocks % p->n_tiles, unit = round % p->n_blocks * p->block, n_lines = (op->k + 3) / 4;
    uint32_t lines = least(2 * p->block, n_lines - 2 * unit), col = tile * TN_HEX_COLS, padded = (op->n + TILE_N - 1) / TILE_N * TILE_N;
    uint8_t *dst = s->vtcm + p->off_half[half];
    const uint8_t *src = op->tiles + (uint32_t)col * n_lines * 4 + 2 * unit * LINE;
    tn_hex_move moves[TN_HEX_MAX_MOVES];
    uint32_t n = 0, more = padded - col > TILE_N, n_factors = more ? 2 * TILE_N : TILE_N;
    moves[n++] = (tn_hex_move){dst, src, LINE, lines, VECTOR};
    if (more) moves[n++] = (tn_hex_move){dst + LINE, src + n_lines * LINE, LINE, lines, VECTOR};
    dst += p->block * 2 * VECTOR;
    moves[n++] = (tn_hex_move){dst, (const uint8_t *)(op->scale + col), n_factors * 4, 1, 0};
    if (op->bias) moves[n++] = (tn_hex_move){dst + VECTOR, (const uint8_t *)(op->bias + col), n_factors * 4, 1, 0};
    tn_hex_dma_begin(s->dma, moves, n);
}

static void stage_rows(const tn_hex_scratch *s, const tn_hex_op *op, const plan *p, uint32_t m0, uint32_t rows, uint32_t unit, uint32_t units) {
    uint32_t bytes = least(units * TN_HEX_UNIT, (op->k + 3) / 4 * 4 - unit * TN_HEX_UNIT);
    int32_t *sums = (int32_t *)s->vtcm;
    for (uint32_t m = 0, r; m < rows; m += r) {
        r = tn_hex_group(rows - m);
        tn_hex_pack_rows(r, op->in + (m0 + m) * op->in_stride + unit * TN_HEX_UNIT, op->in_stride, bytes,
                         (uint64_t *)(s->vtcm + p->off_panel) + m * units, sums + m);
    }
}

void tn_hex_linear(const tn_hex_scratch *s, const tn_hex_op *op) {
    plan p = plan_of(s->n_bytes, op);
    uint32_t element = op->out_form < 2 ? 4 : 1, n_rounds = p.n_tiles * p.n_blocks, half = 0;
    int32_t *sums = (int32_t *)s->vtcm;
    HVX_Vector *acc = (HVX_Vector *)(s->vtcm + p.off_acc);
    begin(s, op, &p, 0, half);
    for (uint32_t m0 = 0; m0 < op->m; m0 += p.n_rows) {
        uint32_t rows = least(p.n_rows, op->m - m0);
        for (uint32_t i = 0; i < n_rounds; i++, half ^= 1) {
            uint32_t unit = i % p.n_blocks * p.block, units = least(p.block, p.n_units - unit), col = i / p.n_blocks * TN_HEX_COLS;
            uint8_t *w = s->vtcm + p.off_half[half];
            tn_hex_dma_wait(s->dma);
            if (i + 1 < n_rounds || m0 + p.n_rows < op->m) begin(s, op, &p, (i + 1) % n_rounds, half ^ 1);
            if (i == 0 || p.n_blocks > 1) stage_rows(s, op, &p, m0, rows, unit, units);
            const float *scale = (const float *)(w + p.block * 2 * VECTOR), *bias = op->bias ? scale + TN_HEX_COLS : 0;
            for (uint32_t m = 0, r; m < rows; m += r) { /* with blocks of k: one group */
                r = tn_hex_group(rows - m);
                HVX_Vector *a = p.n_blocks > 1 ? acc + m : acc;
                tn_hex_product(r, (const uint64_t *)(s->vtcm + p.off_panel) + m * units, (const HVX_Vector *)w, units, sums + m, unit == 0, a);
                for (uint32_t j = 0; j < r && unit + units == p.n_units; j++)
                    tn_hex_finish(op->out_form, a + j, least(TN_HEX_COLS, op->n - col), scale, bias, op->out + ((m0 + m + j) * op->out_stride + col) * element);
            }
        }
    }
}

/* ---- weightlets ------------------------------------------------------------------------------------------ */

/* VTCM: two halves for packed groups, each with a vector to read beyond | the groups as vectors [groups][16]. */
void tn_hex_unpack_tiles(const tn_hex_scratch *s, const uint8_t *src, const uint8_t *widths, uint32_t n_channels, uint32_t k, uint8_t *tiles) {
    uint32_t most = TILE_N * GROUP, at_once = (s->n_bytes - 4 * VECTOR) / (2 * most + CHANNEL_VECTORS), n_groups = (k + GROUP - 1) / GROUP;
    uint32_t n_lines = (k + 3) / 4, last_mask = k % 4 ? (1u << k % 4 * 8) - 1 : ~0u;
    uint32_t rounds_per_tile = (n_groups + at_once - 1) / at_once, n_rounds = (n_channels + TILE_N - 1) / TILE_N * rounds_per_tile;
    uint8_t *halves[2] = {s->vtcm, s->vtcm + at_once * most + VECTOR};
    HVX_Vector *vectors = (HVX_Vector *)(s->vtcm + 2 * (at_once * most + VECTOR));
    const uint8_t *next = src; /* what the next transfer brings */
    uint32_t stride[2] = {0, 0};
    for (uint32_t i = 0; i <= n_rounds; i++) {
        if (i) tn_hex_dma_wait(s->dma);
        if (i < n_rounds) {
            uint32_t c0 = i / rounds_per_tile * TILE_N, groups = least(at_once, n_groups - i % rounds_per_tile * at_once), sum = 0;
            for (uint32_t c = c0; c < n_channels && c < c0 + TILE_N; c++) sum += widths[c];
            stride[i % 2] = sum * (GROUP / 8);
            tn_hex_move move = {halves[i % 2], next, groups * stride[i % 2], 1, 0};
            tn_hex_dma_begin(s->dma, &move, 1);
            next += move.row_bytes;
        }
        if (!i) continue;
        uint32_t r = i - 1, c0 = r / rounds_per_tile * TILE_N, g0 = r % rounds_per_tile * at_once, groups = least(at_once, n_groups - g0);
        const uint8_t *packed = halves[r % 2];
        for (uint32_t c = 0; c < TILE_N; c++) {
            if (c0 + c < n_channels) {
                tn_hex_unpack_channel(widths[c0 + c], packed, stride[r % 2], groups, vectors + c);
                packed += widths[c0 + c] * (GROUP / 8);
            } else {
                for (uint32_t g = 0; g < groups; g++) vectors[g * TILE_N + c] = (HVX_Vector){0};
            }
        }
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t line = (g0 + g) * (GROUP / 4), lines = least(GROUP / 4, n_lines - line);
            tn_hex_transpose(vectors + g * TILE_N, tiles + (c0 / TILE_N * n_lines + line) * LINE, lines, line + lines == n_lines ? last_mask : ~0u);
        }
    }
}
