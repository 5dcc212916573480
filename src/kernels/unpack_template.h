/* kernels/unpack_template.h - a tile from weightlets, written once over pieces that each instruction set's
 * file defines:
 *   channel(src, bits, out)          one channel's group of 128 weightlets to int8 at out (UNPACK_ALIGN
 *                                    aligned); returns the end of src
 *   transpose(in, out, n_lines)      UNPACK_UNITS 32-bit units of four channels, GROUP bytes apart, to four
 *                                    columns of n_lines lines at most
 * and the names UNPACK_NAME, UNPACK_UNITS, UNPACK_ALIGN. The switch makes a channel's width a constant where
 * `channel` is inlined. */
size_t UNPACK_NAME(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile) {
    const uint8_t *begin = src;
    size_t n_lines = (k + TN_TILE_K - 1) / TN_TILE_K;
    _Alignas(UNPACK_ALIGN) int8_t w[TN_TILE_N][GROUP];
    memset(w, 0, sizeof w); /* channels that do not exist */
    for (size_t line = 0; line < n_lines; line += GROUP / TN_TILE_K) {
        for (size_t c = 0; c < n_cols; c++) {
            switch (bits[c]) {
            case 1: src = channel(src, 1, w[c]); break;
            case 2: src = channel(src, 2, w[c]); break;
            case 3: src = channel(src, 3, w[c]); break;
            case 4: src = channel(src, 4, w[c]); break;
            case 5: src = channel(src, 5, w[c]); break;
            case 6: src = channel(src, 6, w[c]); break;
            case 7: src = channel(src, 7, w[c]); break;
            default: src = channel(src, 8, w[c]); break;
            }
        }
        for (size_t u = 0; u < GROUP / TN_TILE_K && line + u < n_lines; u += UNPACK_UNITS) {
            for (size_t c = 0; c < TN_TILE_N; c += 4)
                transpose(w[c] + u * 4, tile + (line + u) * 64 + c * 4, n_lines - line - u);
        }
    }
    if (k % TN_TILE_K) { /* k beyond the end are zero, whatever their codes */
        uint32_t *last = (uint32_t *)(tile + (n_lines - 1) * 64), mask = (1u << k % TN_TILE_K * 8) - 1;
        for (int c = 0; c < TN_TILE_N; c++) last[c] &= mask;
    }
    return (size_t)(src - begin);
}
