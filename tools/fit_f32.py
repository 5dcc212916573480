#!/usr/bin/env python3
"""Minimax fits behind src/kernels/elem_f32.c (needs mpmath): prints coefficients, constant term first, and the error."""
from mpmath import mp, mpf, exp, log, erfc, cos, pi, matrix, lu_solve, nstr

mp.dps = 40
POINTS = 3000


def remez(f, degree, lo, hi, weight, rounds=30):
    """Polynomial c minimising max |f - c| * weight on [lo, hi] by exchange of the alternating points."""
    n = degree + 1
    xs = [(lo + hi) / 2 + (hi - lo) / 2 * cos(pi * (n - i) / n) for i in range(n + 1)]
    grid = [lo + (hi - lo) * mpf(i) / POINTS for i in range(POINTS + 1)]
    values = [f(x) for x in grid]
    for _ in range(rounds):
        system, right = matrix(n + 1, n + 1), matrix(n + 1, 1)
        for i, x in enumerate(xs):
            for j in range(n):
                system[i, j] = x**j
            system[i, n] = (-1) ** i / weight(x)
            right[i] = f(x)
        c = lu_solve(system, right)
        err = [(y - sum(c[j] * x**j for j in range(n))) * weight(x) for x, y in zip(grid, values)]
        runs = []  # the largest error of each run of one sign
        for i, e in enumerate(err):
            if runs and (err[runs[-1]] > 0) == (e > 0):
                if abs(e) > abs(err[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > n + 1:
            runs.pop(0 if abs(err[runs[0]]) < abs(err[runs[-1]]) else -1)
        if len(runs) < n + 1:
            break
        xs = [grid[i] for i in runs]
    return [c[j] for j in range(n)], max(abs(e) for e in err)


def show(name, fit):
    print(name, [nstr(x, 10) for x in fit[0]], "error", nstr(fit[1], 3))


half_ln2 = log(2) / 2 * mpf("1.0005")
# exp(r) = 1 + r + r^2 q(r), relative error
show("exp: q", remez(lambda r: (exp(r) - 1 - r) / r**2 if abs(r) > 1e-8 else mpf(1) / 2 + r / 6, 4, -half_ln2, half_ln2,
                     lambda r: r**2 / exp(r) if r else mpf("1e-20")))


def log_scaled_erfc(t):
    x = 2 * (1 / t - 1)
    return log(erfc(x) / t) + x**2


# erfc(x) = t exp(p(t) - x^2), t = 1 / (1 + x / 2), 0 <= x <= 4
show("erfc: p", remez(log_scaled_erfc, 8, mpf(1) / 3, mpf(1), lambda t: mpf(1)))
