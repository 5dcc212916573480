/* kernels/x86/tiles_amx.h - the eight tile registers, all of 16 rows of 64 bytes. */
#ifndef TN_KERNELS_X86_TILES_AMX_H
#define TN_KERNELS_X86_TILES_AMX_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { AMX_ROWS = 16, AMX_BYTES = 64 };

/* The operand of ldtilecfg, as the processor defines it. */
typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
} tile_shapes;
_Static_assert(sizeof(tile_shapes) == 64, "one cache line");

/* Makes all of 64 bytes a row; the weights in 6 and 7 have 16 rows, sums and activations n_rows. Undone by
 * _tile_release, without which the registers are kept for the thread at each switch. */
static inline void use_tiles(size_t n_rows) {
    tile_shapes s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        s.row_bytes[i] = AMX_BYTES;
        s.n_rows[i] = i < 6 ? (uint8_t)n_rows : AMX_ROWS;
    }
    /* gcc 12 takes the instruction to read 8 bytes, and would drop the other stores. */
    __asm__ volatile("" : : "m"(s));
    _tile_loadconfig(&s);
}

#endif
