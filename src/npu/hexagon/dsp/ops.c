#include "ops.h"

#include "../message.h"
#include "kernels.h"

#include <hexagon_protos.h>
#include <hvx_hexagon_protos.h>

enum { VECTOR = 128, LINE = 64, TILE_N = 16, GROUP = 128, CHANNEL_VECTORS = TILE_N * VECTOR };

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- linear and Q.K ---------------------------------------------------------------------------------- */

/* VTCM holds: sums [rows] | acc [rows][32], where k comes in blocks, else [8][32] | panel [rows][units][8] |
 * two halves for weights, each weights [units][2][32][4], scale [32], bias [32]. */
typedef struct plan {
    uint32_t n_units, block; /* of k; of one block of it */
    uint32_t n_rows;         /* of activations that are staged together */
    uint32_t off_acc, off_panel, off_half[2];
    uint32_t n_tiles; /* of 32 columns */
} plan;

static uint32_t up(uint32_t x) { return (x + VECTOR - 1) / VECTOR * VECTOR; }

/* Plans as many rows and units as fit. All units of a row come first, because activations are then staged
 * once. */
static plan plan_of(uint32_t vtcm, const tn_hex_op *op) {
    plan p = {.n_units = (op->k + TN_HEX_UNIT - 1) / TN_HEX_UNIT,
              .n_tiles = (op->n + TN_HEX_COLS - 1) / TN_HEX_COLS};
    uint32_t room =
        vtcm - 6 * VECTOR - TN_HEX_ROWS * VECTOR - 2 * 2 * VECTOR; /* rounding, acc without blocks, factors */
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
    p.off_half[0] = up(p.off_panel + p.n_rows * p.block * TN_HEX_UNIT);
    p.off_half[1] = p.off_half[0] + p.block * 2 * VECTOR + 2 * VECTOR;
    return p;
}

/* The position of a round in W: k from a unit on, columns from col on. */
typedef struct cursor {
    uint32_t unit, col;
} cursor;

/* Returns false after the last round, with the cursor at the first one again. */
static int advance(cursor *c, const plan *p) {
    if ((c->unit += p->block) < p->n_units) return 1;
    c->unit = 0;
    if ((c->col += TN_HEX_COLS) < p->n_tiles * TN_HEX_COLS) return 1;
    c->col = 0;
    return 0;
}

/* Starts the transfer of a round's weights and factors to the half that is not being read. */
static void begin(const tn_hex_scratch *s, const tn_hex_op *op, const plan *p, cursor c, uint32_t half) {
    uint32_t n_lines = (op->k + 3) / 4, lines = least(2 * p->block, n_lines - 2 * c.unit),
             padded = (op->n + TILE_N - 1) / TILE_N * TILE_N;
    uint8_t *dst = s->vtcm + p->off_half[half];
    const uint8_t *src = op->tiles + c.col * n_lines * 4 + 2 * c.unit * LINE;
    tn_hex_move moves[TN_HEX_MAX_MOVES];
    uint32_t n = 0, more = padded - c.col > TILE_N, n_factors = more ? 2 * TILE_N : TILE_N;
    moves[n++] = (tn_hex_move){dst, src, LINE, lines, VECTOR};
    if (more) moves[n++] = (tn_hex_move){dst + LINE, src + n_lines * LINE, LINE, lines, VECTOR};
    dst += p->block * 2 * VECTOR;
    moves[n++] = (tn_hex_move){dst, (const uint8_t *)(op->scale + c.col), n_factors * 4, 1, 0};
    if (op->bias)
        moves[n++] = (tn_hex_move){dst + VECTOR, (const uint8_t *)(op->bias + c.col), n_factors * 4, 1, 0};
    tn_hex_dma_begin(s->dma, moves, n);
}

static void stage_rows(const tn_hex_scratch *s, const tn_hex_op *op, const plan *p, uint32_t m0,
                       uint32_t rows, uint32_t unit, uint32_t units) {
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
    uint32_t element = op->out_form < 2 ? 4 : 1, half = 0;
    int32_t *sums = (int32_t *)s->vtcm;
    HVX_Vector *acc = (HVX_Vector *)(s->vtcm + p.off_acc);
    cursor now = {0, 0}, next = now;
    begin(s, op, &p, now, half);
    for (uint32_t m0 = 0; m0 < op->m; m0 += p.n_rows) {
        uint32_t rows = least(p.n_rows, op->m - m0);
        for (int more = 1; more; now = next, half ^= 1) {
            uint32_t units = least(p.block, p.n_units - now.unit);
            uint8_t *w = s->vtcm + p.off_half[half];
            tn_hex_dma_wait(s->dma);
            more = advance(&next, &p);
            if (more || m0 + p.n_rows < op->m) begin(s, op, &p, next, half ^ 1);
            if (p.block < p.n_units || !now.col) stage_rows(s, op, &p, m0, rows, now.unit, units);
            const float *scale = (const float *)(w + p.block * 2 * VECTOR),
                        *bias = op->bias ? scale + TN_HEX_COLS : 0;
            const uint64_t *panel = (const uint64_t *)(s->vtcm + p.off_panel);
            uint8_t *out = op->out + (m0 * op->out_stride + now.col) * element;
            for (uint32_t m = 0, r; m < rows; m += r, panel += r * units,
                          out += r * op->out_stride * element) { /* with blocks of k: one group at a time */
                r = tn_hex_group(rows - m);
                HVX_Vector *a = p.block < p.n_units ? acc + m : acc;
                tn_hex_product(r, panel, (const HVX_Vector *)w, units, sums + m, !now.unit, a);
                if (now.unit + units == p.n_units)
                    tn_hex_finish(op->out_form, a, r, least(TN_HEX_COLS, op->n - now.col), scale, bias, out,
                                  op->out_stride * element);
            }
        }
    }
}

/* ---- weightlets -------------------------------------------------------------------------------------- */

/* A packed round is the groups of a tile that are staged together. */
typedef struct packed_round {
    uint32_t c0, g0, groups, stride; /* stride: bytes of a group of all the tile's channels */
} packed_round;

static packed_round packed_at(const uint8_t *widths, uint32_t n_channels, uint32_t n_groups, uint32_t at_once,
                              uint32_t c0, uint32_t g0) {
    packed_round r = {c0, g0, least(at_once, n_groups - g0), 0};
    for (uint32_t c = c0; c < n_channels && c < c0 + TILE_N; c++) r.stride += widths[c] * (GROUP / 8);
    return r;
}

/* VTCM holds: two halves for packed groups, each with a vector to read beyond | the groups as vectors
 * [groups][16]. */
void tn_hex_unpack_tiles(const tn_hex_scratch *s, const uint8_t *src, const uint8_t *widths,
                         uint32_t n_channels, uint32_t k, uint8_t *tiles) {
    const uint32_t most = TILE_N * GROUP, n_groups = (k + GROUP - 1) / GROUP, n_lines = (k + 3) / 4,
                   last_mask = k % 4 ? (1u << k % 4 * 8) - 1 : ~0u;
    const uint32_t at_once = least(n_groups, (s->n_bytes - 4 * VECTOR) / (2 * most + CHANNEL_VECTORS));
    uint8_t *halves[2] = {s->vtcm, s->vtcm + at_once * most + VECTOR};
    HVX_Vector *vectors = (HVX_Vector *)(s->vtcm + 2 * (at_once * most + VECTOR));
    packed_round now = packed_at(widths, n_channels, n_groups, at_once, 0, 0), next = now;
    uint32_t half = 0;
    tn_hex_move move = {halves[0], src, now.groups * now.stride, 1, 0};
    tn_hex_dma_begin(s->dma, &move, 1);
    for (int more = 1; more; now = next, half ^= 1) {
        uint32_t g0 = now.g0 + now.groups == n_groups ? 0 : now.g0 + now.groups,
                 c0 = g0 ? now.c0 : now.c0 + TILE_N;
        more = c0 < n_channels;
        tn_hex_dma_wait(s->dma);
        if (more) {
            next = packed_at(widths, n_channels, n_groups, at_once, c0, g0);
            move =
                (tn_hex_move){halves[half ^ 1], move.src + move.row_bytes, next.groups * next.stride, 1, 0};
            tn_hex_dma_begin(s->dma, &move, 1);
        }
        const uint8_t *packed = halves[half];
        for (uint32_t c = 0; c < TILE_N; c++) {
            if (now.c0 + c < n_channels) {
                tn_hex_unpack_channel(s->spreads, widths[now.c0 + c], packed, now.stride, now.groups,
                                      vectors + c);
                packed += widths[now.c0 + c] * (GROUP / 8);
            } else {
                for (uint32_t g = 0; g < now.groups; g++) vectors[g * TILE_N + c] = Q6_V_vzero();
            }
        }
        for (uint32_t g = 0; g < now.groups; g++) {
            uint32_t line = (now.g0 + g) * (GROUP / 4), lines = least(GROUP / 4, n_lines - line);
            tn_hex_transpose(vectors + g * TILE_N, tiles + (now.c0 / TILE_N * n_lines + line) * LINE, lines,
                             line + lines == n_lines ? last_mask : ~0u);
        }
    }
}
