/* kernels/limits_loop.h - a loop of independent multiply-adds in registers; each instruction set's file names its own.
 * 24 chains cover latency times throughput of every core this runs on and still fit 32 registers; files for 16
 * registers ask for 12. */
#ifndef TN_KERNELS_LIMITS_LOOP_H
#define TN_KERNELS_LIMITS_LOOP_H

#include <stdint.h>

/* Performs n_iter rounds; returns the operations done. The empty asm keeps every step of a chain. */
#define TN_LIMIT_LOOP(name, n_chains, type, zero, step, reg, ops_per_step) \
    double name(uint64_t n_iter) {                                         \
        type acc[n_chains];                                                \
        _Pragma("GCC unroll 24") for (int j = 0; j < n_chains; j++) acc[j] = zero; \
        for (uint64_t i = 0; i < n_iter; i++) {                            \
            _Pragma("GCC unroll 24") for (int j = 0; j < n_chains; j++) {  \
                acc[j] = step(acc[j]);                                     \
                __asm__ volatile("" : reg(acc[j]));                        \
            }                                                              \
        }                                                                  \
        return (double)n_iter * (n_chains) * (ops_per_step);               \
    }

typedef double (*tn_limit_loop_fn)(uint64_t n_iter);
double tn_limit_fp32_avx2(uint64_t n_iter);
double tn_limit_fp32_avx512(uint64_t n_iter);
double tn_limit_fp32_neon(uint64_t n_iter);
double tn_limit_bf16_avx512bf16(uint64_t n_iter);
double tn_limit_bf16_i8mm(uint64_t n_iter);
double tn_limit_int8_avx2(uint64_t n_iter);
double tn_limit_int8_avxvnni(uint64_t n_iter);
double tn_limit_int8_avx512vnni(uint64_t n_iter);
double tn_limit_int8_neon(uint64_t n_iter);
double tn_limit_int8_dotprod(uint64_t n_iter);
double tn_limit_int8_i8mm(uint64_t n_iter);

#endif
