#include "kernels/round.h"

#include <math.h>

enum { LANES = 16 };

static float whole(const tn_grid *g, float x) {
    float u = fmaf(x, g->inv, g->offset);
    u = g->lo > u ? g->lo : u;
    u = g->hi < u ? g->hi : u;
    return (u + 12582912.0f) - 12582912.0f; /* to the nearest whole number, ties to even, for |u| < 2^22 */
}

void tn_grid_errors_ref(const float *w, const float *weight, size_t k, const tn_grid *grids, float *error) {
    for (int g = 0; g < TN_ROUND_GRIDS; g++) {
        float lane[LANES] = {0};
        for (size_t i = 0; i < k; i++) {
            float d = w[i] - fmaf(whole(&grids[g], w[i]), grids[g].step, grids[g].base);
            lane[i % LANES] = fmaf(weight[i] * d, d, lane[i % LANES]);
        }
        for (int stride = LANES / 2; stride; stride /= 2) {
            for (int i = 0; i < stride; i++) lane[i] += lane[i + stride];
        }
        error[g] = lane[0];
    }
}

void tn_grid_apply_ref(float *w, size_t k, const tn_grid *grid) {
    for (size_t i = 0; i < k; i++) w[i] = fmaf(whole(grid, w[i]), grid->step, grid->base);
}

void tn_round_panel_ref(const tn_round_panel *p) {
    for (size_t j = p->n; j-- > 0;) {
        for (size_t r = 0; r < TN_ROUND_ROWS; r++) {
            const float *f = p->grid + r;
            const tn_grid g = {f[0], f[16], f[32], f[48], f[64], f[80], f[96], f[112]};
            size_t at = j * TN_ROUND_ROWS + r;
            float u = whole(&g, p->target[at]), value = fmaf(u, g.step, g.base), miss = p->target[at] - value,
                  e = p->own[at] - value;
            p->code[at] = fmaf(u, g.mul, g.add);
            p->error[r] = fmaf(p->weight[j] * miss, miss, p->error[r]);
            p->e[at] = e;
            for (size_t i = 0; i < j; i++)
                p->target[i * TN_ROUND_ROWS + r] =
                    fmaf(e, p->factor[j * TN_ROUND_PLACES + i], p->target[i * TN_ROUND_ROWS + r]);
        }
    }
}
