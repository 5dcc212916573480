#include "kernels/gemm_packed.h"

#include "base/cpu.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

const tn_packed_form *tn_packed_forms(uint32_t cpu) {
#if defined(__x86_64__) && !defined(TERN_NO_AVX512)
    if (cpu & TN_CPU_AVX512VNNI) return tn_packed_forms_avx512vnni;
#endif
    (void)cpu;
    return NULL;
}

bool tn_packed_form_use(tn_kernels *kern, const char *name) {
    const tn_packed_form *f = tn_packed_forms(kern->cpu);
    while (f && f->name && strcmp(f->name, name) != 0) f++;
    if (!f || !f->name) return false;
    kern->gemm_packed = f->fn;
    return true;
}

size_t tn_gemm_packed_scratch_bytes(size_t k) {
    size_t row = (k + TN_WEIGHTLET_GROUP - 1) / TN_WEIGHTLET_GROUP * TN_WEIGHTLET_GROUP,
           few = TN_PACKED_FEW * (row + TN_PACKED_ROOM), most = tn_tiles_s8_bytes(TN_PACKED_BLOCK, k);
    if (most < few) most = few;
    if (most < TN_PACKED_MOST * row) most = TN_PACKED_MOST * row;
    return most > TN_PACKED_MANY_BYTES ? most : TN_PACKED_MANY_BYTES;
}

/* The columns n0..n1-1 of g as a separate product; rows m0..m0+m-1. */
static tn_gemm_s8_args part(const tn_gemm_s8_args *g, size_t m0, size_t m, size_t n0, size_t n1) {
    tn_gemm_s8_args p = *g;
    size_t at = m0 * g->ldo + n0;
    p.a += m0 * g->lda;
    p.m = m;
    p.col_sum += n0;
    if (p.scale) p.scale += n0;
    if (p.bias) p.bias += n0;
    if (p.out_s32) p.out_s32 += at;
    if (p.out_f32) p.out_f32 += at;
    if (p.out_u8) p.out_u8 += at;
    p.n0 = 0;
    p.n = p.n1 = n1 - n0;
    return p;
}

void tn_gemm_packed(const tn_kernels *kern, const tn_gemm_s8_args *g, size_t rows_per_run,
                    const uint8_t *packed, const uint8_t *bits, int8_t *scratch) {
    assert(g->n0 % TN_TILE_N == 0 && rows_per_run);
    if (g->m <= kern->packed_rows) {
        kern->gemm_packed(g, packed, bits, (uint8_t *)scratch);
        return;
    }
    size_t tile_bytes = tn_tiles_s8_bytes(1, g->k);
    for (size_t n = g->n0, end; n < g->n1; n = end) {
        const uint8_t *begin = packed;
        end = g->n1 - n < TN_PACKED_BLOCK ? g->n1 : n + TN_PACKED_BLOCK;
        for (size_t t = n; t < end; t += TN_TILE_N) {
            uint8_t widths[TN_TILE_N];
            size_t n_cols = end - t < TN_TILE_N ? end - t : TN_TILE_N;
            for (size_t c = 0; c < n_cols; c++) widths[c] = (uint8_t)tn_channel_bits_get(bits, t + c);
            packed +=
                kern->unpack_tile(packed, widths, n_cols, g->k, scratch + (t - n) / TN_TILE_N * tile_bytes);
        }
        for (size_t m = 0; m < g->m; m += rows_per_run) {
            tn_gemm_s8_args p = part(g, m, g->m - m < rows_per_run ? g->m - m : rows_per_run, n, end);
            p.tiles = scratch;
            p.next = end < g->n1 ? packed : NULL; /* the next block takes about as many bytes */
            p.next_bytes = (size_t)(packed - begin);
            kern->gemm_s8(&p);
        }
    }
}
