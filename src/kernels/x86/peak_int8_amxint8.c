/* Peak of tdpbusd: 16 x 16 x 64 byte products a step, into four tiles of sums in turn, which hide its latency. */
#include "kernels/limits.h"
#include "kernels/x86/tiles_amx.h"

double tn_peak_int8_amxint8(long n) {
    enum { CHAINS = 4, OPS = 2 * AMX_ROWS * AMX_ROWS * AMX_BYTES };
    use_tiles(AMX_ROWS);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(6);
    for (long i = 0; i < n; i++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 6);
        _tile_dpbusd(2, 4, 6);
        _tile_dpbusd(3, 4, 6);
    }
    _tile_release();
    return (double)CHAINS * OPS * (double)n;
}
