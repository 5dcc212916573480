/* kernels/arm/blocks_rows_dotprod.h - several rows of a tile on SDOT, for blocks_template.h: 4 rows x half a
 * tile in registers; one load of sixteen activations serves four lines. */

/* The vectors v and v + 1 of R rows over n32 x 32 input channels. */
INLINE void half_tile(int R, size_t v, size_t G, bool min, bool wide, const panel *p, size_t n32,
                      const tn_blocks_act *a, const sums *to, const ahead *next) {
    const size_t n_groups = n32 * 32 / G, per_act = TN_BLOCKS_ACT / G;
    const uint8_t *lines = p->q[0] + v * SLICE;
    const float *s = p->s[0] + v * LANES, *b = p->b[0] + v * LANES;
    const int8_t *q[MAX_ROWS];
    float *out[MAX_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        q[r] = a[r].q;
        out[r] = to->p + (size_t)r * to->ld + v * LANES;
        if (!to->first) continue;
        f_store(out[r], f_zero());
        f_store(out[r] + LANES, f_zero());
    }
    for (size_t i = 0, g = 0; g < n_groups; i++) {
        vf part[MAX_ROWS][2];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) part[r][0] = part[r][1] = f_zero();
        for (size_t end = g + per_act < n_groups ? g + per_act : n_groups; g < end; g++) {
            vi sum[MAX_ROWS][2];
            if (!v) prefetch_share(next, 1, g);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
                sum[r][0] = sum[r][1] = min || wide ? i_zero() : i_set1(a[r].of.start[g]);
#pragma GCC unroll 2
            for (size_t l = 0; l < G / 4; l += 4) {
                struct act x[MAX_ROWS];
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) x[r] = act_load(q[r] + l * 4);
#pragma GCC unroll 4
                for (int line = 0; line < 4; line++) {
                    slice w[2] = {load(lines + (l + (size_t)line) * LINE),
                                  load(lines + (l + (size_t)line) * LINE + SLICE)};
                    __asm__("" : "+w"(w[0]), "+w"(w[1])); /* one instruction */
#pragma GCC unroll 4
                    for (int r = 0; r < R; r++) {
                        sum[r][0] = dot(sum[r][0], (vi)w[0], x[r], wide, line);
                        sum[r][1] = dot(sum[r][1], (vi)w[1], x[r], wide, line);
                    }
                    in_turn();
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                q[r] += G;
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                    part[r][j] = f_fma(f_cvt(sum[r][j]), f_load(s + j * LANES), part[r][j]);
                    if (min) part[r][j] = f_fma(f_load(b + j * LANES), f_set1(a[r].of.sum[g]), part[r][j]);
                }
            }
            lines += G / 4 * LINE, s += N, b += N;
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vf scale = f_set1(a[r].scale[i]);
            f_store(out[r], f_fma(part[r][0], scale, f_load(out[r])));
            f_store(out[r] + LANES, f_fma(part[r][1], scale, f_load(out[r] + LANES)));
        }
    }
    if (!to->last || !to->bias) return;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        f_store(out[r], f_add(f_load(out[r]), f_load(to->bias + v * LANES)));
        f_store(out[r] + LANES, f_add(f_load(out[r] + LANES), f_load(to->bias + v * LANES + LANES)));
    }
}

INLINE void micro(int R, int C, size_t G, bool min, int width, const panel *p, size_t n32,
                  const tn_blocks_act *a, const sums *to, const ahead *next) {
    (void)C;
#pragma GCC unroll 1
    for (size_t v = 0; v < VECTORS; v += 2) half_tile(R, v, G, min, width == WIDE, p, n32, a, to, next);
}
