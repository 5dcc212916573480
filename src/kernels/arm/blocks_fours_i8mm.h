/* kernels/arm/blocks_fours_i8mm.h - the layout of a panel for SMMLA, for blocks_unpack.h. */

/* Slices of lines 0 .. 3, four channels each, to eight input channels of two channels each: those of lines 0
 * and 1 and of 2 and 3 of the first two channels, then of the others. */
INLINE void arrange(slice *four) {
    const int32x4_t a = (int32x4_t)four[0], b = (int32x4_t)four[1], c = (int32x4_t)four[2],
                    d = (int32x4_t)four[3];
    four[0] = (slice)vzip1q_s32(a, b);
    four[1] = (slice)vzip1q_s32(c, d);
    four[2] = (slice)vzip2q_s32(a, b);
    four[3] = (slice)vzip2q_s32(c, d);
}

/* Pairs of channels lie 64 bytes apart, which are their 32 input channels. */
INLINE uint8_t *four_at(panel *p, size_t four) { return p->q[0] + four / 2 * (8 * LINE) + four % 2 * 32; }
INLINE size_t place(size_t o, size_t i) { return o / SLICE * (2 * LINE) + i / 2 * LINE + i % 2 * 16; }
