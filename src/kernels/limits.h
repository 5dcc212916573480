/* kernels/limits.h - what this machine can do at best: measured arithmetic peaks and memory bandwidth. Peaks
 * come from loops over registers with enough independent chains to fill every unit. */
#ifndef TN_KERNELS_LIMITS_H
#define TN_KERNELS_LIMITS_H

#include "base/pool.h"

typedef struct tn_limits {
    double int8_ops, bf16_flops,
        fp32_flops;          /* per second, all threads; a multiply-add is two; 0: not on this processor */
    double read_bytes_per_s; /* of memory, all threads */
    double thread_int8_ops, thread_bf16_flops, thread_fp32_flops,
        thread_read_bytes_per_s; /* one thread alone */
} tn_limits;

/* Takes about two seconds. cpu: TN_CPU_* flags to use. */
tern_status tn_limits_measure(tn_ctx *ctx, tn_pool *pool, uint32_t cpu, tn_limits *out, tern_error *err);

/* A loop over registers: runs n rounds, returns the operations done (a multiply-add is two). */
typedef double (*tn_peak_fn)(long n_rounds);
double tn_peak_fp32_avx2(long n);
double tn_peak_fp32_avx512(long n);
double tn_peak_int8_avx2(long n);
double tn_peak_int8_avx512vnni(long n);
double tn_peak_int8_amxint8(long n);
double tn_peak_bf16_avx512bf16(long n);
double tn_peak_fp32_neon(long n);
double tn_peak_int8_dotprod(long n);
double tn_peak_int8_i8mm(long n);

#endif
