/* Are a grid's values the nearest ones, its error their weighted distance, a panel's errors passed on as
 * if by hand, and all instruction sets' bits the reference's? */
#include "base/cpu.h"
#include "check.h"
#include "kernels/round.h"

#include <math.h>
#include <stdbool.h>

static const struct {
    const char *name;
    uint32_t cpu;
    tn_grid_errors_fn errors;
    tn_grid_apply_fn apply;
    tn_round_panel_fn panel;
} variants[] = {
    {"ref", 0, tn_grid_errors_ref, tn_grid_apply_ref, tn_round_panel_ref},
#if defined(__x86_64__)
    {"avx2", TN_CPU_AVX2, tn_grid_errors_avx2, tn_grid_apply_avx2, tn_round_panel_avx2},
    {"avx512", TN_CPU_AVX512, tn_grid_errors_avx512, tn_grid_apply_avx512, tn_round_panel_avx512},
#elif defined(__aarch64__)
    {"neon", TN_CPU_NEON, tn_grid_errors_neon, tn_grid_apply_neon, tn_round_panel_neon},
#endif
};

enum { N_VARIANTS = sizeof variants / sizeof *variants, MAX_K = 300 };

static bool can(int v) { return (tn_cpu_flags(NULL) & variants[v].cpu) == variants[v].cpu; }

/* bits < 8: values (2 u - top) scale, u = 0..top; 8: whole multiples of the scale up to 127. */
static tn_grid grid_of(unsigned bits, float scale) {
    if (bits == 8) return (tn_grid){1 / scale, 0, -127, 127, 1, 0, scale, 0};
    float top = (float)((1 << bits) - 1);
    return (tn_grid){0.5f / scale, 0.5f * top, 0, top, 2, -top, 2 * scale, -top * scale};
}

static double nearest_value(const tn_grid *g, double x) {
    double best = INFINITY, value = 0;
    for (double u = (double)g->lo; u <= (double)g->hi; u++) {
        double v = u * (double)g->step + (double)g->base;
        if (fabs(v - x) < best) {
            best = fabs(v - x);
            value = v;
        }
    }
    return value;
}

static void grids(void **state) {
    (void)state;
    tn_rng rng = {5};
    for (int round = 0; round < 300; round++) {
        size_t k = 1 + tn_rng_below(&rng, MAX_K);
        check_buf w = check_new(k * 4), weight = check_new(k * 4);
        float *x = w.p, *c = weight.p;
        check_fill_f32(&rng, round % 3 ? CHECK_RANDOM : CHECK_ALTERNATING, x, k);
        for (size_t i = 0; i < k; i++) c[i] = (float)tn_rng_f64(&rng);
        tn_grid g[TN_ROUND_GRIDS];
        for (int i = 0; i < TN_ROUND_GRIDS; i++)
            g[i] = grid_of(2 + (unsigned)tn_rng_below(&rng, 7), 0.01f + (float)tn_rng_f64(&rng));
        float want[TN_ROUND_GRIDS], got[TN_ROUND_GRIDS];
        tn_grid_errors_ref(x, c, k, g, want);
        for (int i = 0; i < TN_ROUND_GRIDS; i++) {
            double sum = 0, near = 0;
            for (size_t j = 0; j < k; j++) {
                double d = (double)x[j] - nearest_value(&g[i], (double)x[j]);
                sum += (double)c[j] * d * d;
                near += (double)c[j] * (fabs(d) + fabs((double)x[j]));
            }
            /* a value is off by some roundings of its own and the grid's size */
            double slack = 1e-5 * sum + 1e-5 * near * (double)(g[i].step + 1);
            if (!(fabs((double)want[i] - sum) <= slack))
                fail_msg("k %zu: error %g, by hand %g", k, (double)want[i], sum);
        }
        for (int v = 0; v < N_VARIANTS; v++) {
            if (!can(v)) continue;
            variants[v].errors(x, c, k, g, got);
            if (memcmp(got, want, sizeof got))
                fail_msg("%s: other errors than ref, k %zu", variants[v].name, k);
            check_buf a = check_new(k * 4), b = check_new(k * 4);
            memcpy(a.p, x, k * 4);
            memcpy(b.p, x, k * 4);
            tn_grid_apply_ref(a.p, k, &g[0]);
            variants[v].apply(b.p, k, &g[0]);
            if (memcmp(a.p, b.p, k * 4)) fail_msg("%s: other values than ref, k %zu", variants[v].name, k);
            for (size_t j = 0; j < k; j++) {
                double value = (double)((float *)a.p)[j], x_j = (double)x[j];
                if (!(fabs(value - x_j) <= fabs(nearest_value(&g[0], x_j) - x_j) + 1e-5 * (1 + fabs(x_j))))
                    fail_msg("%g became %g", x_j, value);
            }
            check_free(&a);
            check_free(&b);
        }
        check_free(&w);
        check_free(&weight);
    }
}

enum { P = TN_ROUND_PLACES, R = TN_ROUND_ROWS };

/* In doubles: the code from the target, the error passed on to the places in front. */
static void panel_by_hand(const tn_round_panel *p, const float *code) {
    for (size_t r = 0; r < R; r++) {
        double target[P], error = 0, e[P] = {0};
        for (size_t j = p->n; j-- > 0;) {
            target[j] = (double)p->target[j * R + r]; /* before the run */
            for (size_t i = j + 1; i < p->n; i++) target[j] += e[i] * (double)p->factor[i * P + j];
            double scale = (double)p->grid[6 * R + r] / (double)p->grid[4 * R + r],
                   value = (double)code[j * R + r] * scale;
            const tn_grid g = {.lo = p->grid[2 * R + r],
                               .hi = p->grid[3 * R + r],
                               .step = p->grid[6 * R + r],
                               .base = p->grid[7 * R + r]};
            if (!(fabs(value - target[j]) <= fabs(nearest_value(&g, target[j]) - target[j]) + 1e-4))
                fail_msg("place %zu, row %zu: %g became %g", j, r, target[j], value);
            e[j] = (double)p->own[j * R + r] - value;
            error += (double)p->weight[j] * (target[j] - value) * (target[j] - value);
        }
        if (!(fabs(error - (double)p->error[r]) <= 1e-3 * error + 1e-6))
            fail_msg("row %zu: error %g, by hand %g", r, (double)p->error[r], error);
    }
}

static void panels(void **state) {
    (void)state;
    tn_rng rng = {6};
    for (int round = 0; round < 200; round++) {
        size_t n = 1 + tn_rng_below(&rng, P);
        float factor[P * P], weight[P], own[P * R], target[P * R], grid[8 * R];
        check_fill_f32(&rng, CHECK_RANDOM, factor, P * P);
        for (size_t i = 0; i < P * P; i++) factor[i] *= 0.2f;
        for (size_t i = 0; i < P; i++) weight[i] = (float)tn_rng_f64(&rng);
        check_fill_f32(&rng, CHECK_RANDOM, own, P * R);
        for (size_t i = 0; i < P * R; i++) target[i] = own[i] + 0.01f * (float)tn_rng_f64(&rng);
        for (size_t r = 0; r < R; r++) {
            tn_grid g = grid_of(2 + (unsigned)tn_rng_below(&rng, 7), 0.05f + 0.1f * (float)tn_rng_f64(&rng));
            const float f[8] = {g.inv, g.offset, g.lo, g.hi, g.mul, g.add, g.step, g.base};
            for (size_t i = 0; i < 8; i++) grid[i * R + r] = f[i];
        }
        float ref[4][P * R];
        for (int v = 0; v < N_VARIANTS; v++) {
            if (!can(v)) continue;
            float out[4][P * R] = {0};
            memcpy(out[0], target, sizeof target);
            const tn_round_panel p = {n, factor, weight, own, grid, out[0], out[1], out[2], out[3]};
            variants[v].panel(&p);
            if (!v) {
                memcpy(ref, out, sizeof out);
                tn_round_panel q = p;
                q.target = target;
                panel_by_hand(&q, out[1]);
            } else if (memcmp(ref, out, sizeof out)) {
                fail_msg("%s: other bits than ref, %zu places", variants[v].name, n);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(grids), cmocka_unit_test(panels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
