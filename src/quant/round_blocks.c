#include "quant/round_blocks.h"

#include <assert.h>
#include <string.h>

enum { ROWS = 16, PANEL = 32, GROUP_FLOATS = sizeof(tn_block_group) / sizeof(float) };

size_t tn_round_blocks_scratch(const tn_factor *f) {
    size_t widest = 0, k = (size_t)f->k;
    for (int32_t i = 0; i < f->n_blocks; i++)
        widest = (size_t)f->blocks[i].k > widest ? (size_t)f->blocks[i].k : widest;
    return k + ROWS * (k / TN_BLOCK_GROUP_MIN * GROUP_FLOATS + k + widest + PANEL);
}

/* Places of a panel while up to 16 rows are rounded; a row's lane. */
typedef struct lanes {
    float own[PANEL][ROWS], target[PANEL][ROWS], scale[PANEL][ROWS], inv[PANEL][ROWS], offset[PANEL][ROWS],
        e[PANEL][ROWS], code[PANEL][ROWS];
} lanes;

static void round_lanes(lanes *l, const tn_block_form *form, const float *factor, int32_t n) {
    for (int32_t j = n - 1; j >= 0; j--) {
        for (int r = 0; r < ROWS; r++) {
            float q = tn_block_code(form, l->target[j][r] - l->offset[j][r], l->inv[j][r]);
            l->code[j][r] = q;
            l->e[j][r] = l->own[j][r] - (q * l->scale[j][r] + l->offset[j][r]);
        }
        for (int32_t i = 0; i < j; i++)
            for (int r = 0; r < ROWS; r++) l->target[i][r] += factor[j * PANEL + i] * l->e[j][r];
    }
}

typedef struct rows {
    const tn_block_form *form;
    const float *w;               /* [n][k] */
    const tn_block_group *groups; /* [n][k / n_group] */
    float *codes;                 /* [n][k] */
    float *errors, *tmp;          /* [n][of the factor's block], [n][32] */
    int32_t n;
    size_t k;
} rows;

static void round_block(const tn_factor_block *b, const tn_kernels *kern, const rows *at) {
    const size_t k = (size_t)b->k;
    lanes l;
    memset(&l, 0, sizeof l);
    for (int32_t place = (b->k - 1) / PANEL * PANEL; place >= 0; place -= PANEL) {
        const int32_t n = b->k - place < PANEL ? b->k - place : PANEL;
        const size_t behind = (size_t)place + PANEL;
        const float *panel = b->panels + (size_t)(place / PANEL) * PANEL * k;
        if (behind < k)
            kern->gemm_f32[TN_PANEL_F32](at->errors + behind, k, panel + behind * PANEL, NULL, at->tmp, PANEL,
                                         (size_t)at->n, 0, PANEL, k - behind);
        else memset(at->tmp, 0, (size_t)at->n * PANEL * sizeof *at->tmp);
        for (int32_t r = 0; r < at->n; r++) {
            for (int32_t j = 0; j < n; j++) {
                const size_t c = (size_t)b->first + (size_t)b->order[place + j];
                const size_t of = (size_t)at->form->n_group;
                const tn_block_group g = at->groups[(size_t)r * (at->k / of) + c / of];
                l.own[j][r] = at->w[(size_t)r * at->k + c];
                l.target[j][r] = l.own[j][r] + at->tmp[(size_t)r * PANEL + (size_t)j];
                l.scale[j][r] = g.scale;
                l.inv[j][r] = g.scale != 0 ? 1 / g.scale : 0;
                l.offset[j][r] = g.offset;
            }
        }
        round_lanes(&l, at->form, panel + (size_t)place * PANEL, n);
        for (int32_t r = 0; r < at->n; r++) {
            for (int32_t j = 0; j < n; j++) {
                at->errors[(size_t)r * k + (size_t)(place + j)] = l.e[j][r];
                at->codes[(size_t)r * at->k + (size_t)b->first + (size_t)b->order[place + j]] = l.code[j][r];
            }
        }
    }
}

/* Scales of a row, and its codes, each weight by itself. */
static void plain_row(const tn_block_form *form, const float *w, const float *weight, size_t k,
                      tn_block_group *groups, float *codes, uint8_t *out) {
    const size_t n = (size_t)form->n, of = (size_t)form->n_group;
    for (size_t i = 0; i < k / n; i++)
        tn_block_scales(form, w + i * n, weight + i * n, groups + i * (n / of),
                        out + i * (size_t)form->n_bytes);
    for (size_t i = 0; i < k; i++) {
        const tn_block_group g = groups[i / of];
        codes[i] = tn_block_code(form, w[i] - g.offset, g.scale != 0 ? 1 / g.scale : 0);
    }
}

void tn_round_blocks(const tn_factor *f, const tn_kernels *kern, const tn_block_form *form, const float *w,
                     int32_t n_rows, uint8_t *out, float *scratch) {
    assert(n_rows <= ROWS && f->k % form->n == 0);
    const size_t k = (size_t)f->k, n_groups = k / (size_t)form->n_group, n_blocks = k / (size_t)form->n,
                 row_bytes = n_blocks * (size_t)form->n_bytes;
    float *weight = scratch, *codes = weight + k + ROWS * n_groups * GROUP_FLOATS;
    tn_block_group *groups = (tn_block_group *)(weight + k);
    for (size_t i = 0; i < k; i++) weight[i] = 1;
    for (int32_t i = 0; i < f->n_blocks; i++) {
        const tn_factor_block *b = &f->blocks[i];
        for (int32_t j = 0; j < b->k; j++) weight[b->first + b->order[j]] = b->weight[j];
    }
    for (size_t r = 0; r < (size_t)n_rows; r++)
        plain_row(form, w + r * k, weight, k, groups + r * n_groups, codes + r * k, out + r * row_bytes);
    const rows at = {.form = form,
                     .w = w,
                     .groups = groups,
                     .codes = codes,
                     .errors = codes + ROWS * k,
                     .n = n_rows,
                     .k = k,
                     .tmp = scratch + tn_round_blocks_scratch(f) - ROWS * PANEL};
    for (int32_t i = 0; i < f->n_blocks; i++) round_block(&f->blocks[i], kern, &at);
    for (size_t r = 0; r < (size_t)n_rows; r++)
        for (size_t i = 0; i < n_blocks; i++)
            tn_block_codes(form, codes + r * k + i * (size_t)form->n,
                           out + r * row_bytes + i * (size_t)form->n_bytes);
}
