/* kernels/blocks_quantise.h - tn_blocks_quantise_fn from three pieces that an instruction set's file defines
 * first:
 *   largest(x, n)              the largest |x|, ignoring NaN; n is a multiple of 32
 *   quantise32(x, inverse, q)  32 values
 *   sum16(q)                   the sum of 16 */
static void quantise(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out, size_t stride) {
    const tn_blocks_traits *t = &tn_blocks_traits_of[type];
    for (; k; out += stride) {
        size_t n = k < TN_BLOCKS_CHUNK ? k : TN_BLOCKS_CHUNK;
        for (size_t i0 = 0; i0 < n; i0 += TN_BLOCKS_ACT) {
            size_t i1 = i0 + TN_BLOCKS_ACT < n ? i0 + TN_BLOCKS_ACT : n;
            float max = largest(x + i0, i1 - i0), inverse = 127 / max;
            out->scale[i0 / TN_BLOCKS_ACT] = max / 127;
            for (size_t i = i0; i < i1; i += 32) quantise32(x + i, inverse, out->q + i);
        }
        for (size_t g = 0; g < n / t->group; g++) {
            const int8_t *q = out->q + g * t->group;
            int32_t sum = t->group == 16 ? sum16(q) : sum16(q) + sum16(q + 16);
            if (t->has_min) out->of.sum[g] = (float)sum;
            else out->of.start[g] = -(int32_t)t->offset * sum;
        }
        x += n;
        k -= n;
    }
}
