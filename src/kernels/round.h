/* kernels/round.h - weights of a row on a grid of equally spaced values: the error of a grid, the nearest
 * values, and rounding of a panel that compensates its errors (quant/gram.h). A grid gives x the whole number
 * u = nearest_even(min(max(fma(x, inv, offset), lo), hi)), the code fma(u, mul, add) and the value fma(u,
 * step, base). All instruction sets give the same bits; values are finite. */
#ifndef TN_KERNELS_ROUND_H
#define TN_KERNELS_ROUND_H

#include <stddef.h>
#include <stdint.h>

enum { TN_ROUND_PLACES = 32, TN_ROUND_ROWS = 16, TN_ROUND_GRIDS = 4 };

typedef struct tn_grid {
    float inv, offset, lo, hi, mul, add, step, base;
} tn_grid;

/* error[i] = sum over k of weight[k] d^2 with d the distance of w[k] from its value on grid i < 4, as
 * acc = fma(weight * d, d, acc) in 16 lanes (k % 16, ascending), added pairwise (stride 8, 4, 2, 1). */
typedef void (*tn_grid_errors_fn)(const float *w, const float *weight, size_t k, const tn_grid *grids,
                                  float *error);
/* w[k] becomes its value. */
typedef void (*tn_grid_apply_fn)(float *w, size_t k, const tn_grid *grid);

/* 32 places of 16 rows, one lane a row. From the last place n - 1 to the first: the code of target[place]
 * on the row's grid; error = fma(weight[place] * miss, miss, error) with miss = target - value; e = own -
 * value; then target[i] = fma(e, factor[place][i], target[i]) for i < place. */
typedef struct tn_round_panel {
    size_t n;
    const float *factor; /* [n][32] */
    const float *weight; /* [n] */
    const float *own;    /* [n][16] */
    const float *grid;   /* [8][16]: the fields of tn_grid, for each row */
    float *target;       /* [n][16] */
    float *code;         /* [n][16] out */
    float *e;            /* [n][16] out */
    float *error;        /* [16] */
} tn_round_panel;
typedef void (*tn_round_panel_fn)(const tn_round_panel *p);

void tn_grid_errors_ref(const float *w, const float *weight, size_t k, const tn_grid *grids, float *error);
void tn_grid_errors_avx2(const float *w, const float *weight, size_t k, const tn_grid *grids, float *error);
void tn_grid_errors_avx512(const float *w, const float *weight, size_t k, const tn_grid *grids, float *error);
void tn_grid_errors_neon(const float *w, const float *weight, size_t k, const tn_grid *grids, float *error);
void tn_grid_apply_ref(float *w, size_t k, const tn_grid *grid);
void tn_grid_apply_avx2(float *w, size_t k, const tn_grid *grid);
void tn_grid_apply_avx512(float *w, size_t k, const tn_grid *grid);
void tn_grid_apply_neon(float *w, size_t k, const tn_grid *grid);
void tn_round_panel_ref(const tn_round_panel *p);
void tn_round_panel_avx2(const tn_round_panel *p);
void tn_round_panel_avx512(const tn_round_panel *p);
void tn_round_panel_neon(const tn_round_panel *p);

#endif
