/* kernels/limits.h - what this machine can do at most: the denominators of every "% of peak".
 * Each call measures for about 0.2 s; the best of a few slices is returned, so that a
 * disturbed slice does not lower the limit. */
#ifndef TN_KERNELS_LIMITS_H
#define TN_KERNELS_LIMITS_H

#include "base/ctx.h"

#include <stddef.h>
#include <stdint.h>

typedef enum tn_limit_op { TN_LIMIT_FP32, TN_LIMIT_BF16, TN_LIMIT_INT8, TN_LIMIT_N_OPS } tn_limit_op;

/* Operations per second (a multiply-add counts two) of n_threads threads together, with operands in registers.
 * 0 when the features in cpu (tn_cpu_flags()) have no vector instruction for it, or a thread could not be started. */
double tn_limit_compute(tn_limit_op op, uint32_t cpu, int n_threads);

/* Bytes per second that n_threads threads together read from memory: each sweeps its own share of a block of n_bytes
 * (which should be several times the last-level cache). 0 without memory. */
double tn_limit_memory(tn_ctx *ctx, int n_threads, size_t n_bytes);

/* Bytes per second of reading a file that is not in the page cache (its pages are dropped first; that works for clean
 * pages of a local file system), at most max_bytes of it, by n_readers threads in blocks of 1 MiB, for at most 0.3 s.
 * direct: O_DIRECT; TERN_E_UNSUPPORTED where the file system has none. */
tern_status tn_limit_disk(tn_ctx *ctx, const char *path, bool direct, int n_readers, uint64_t max_bytes, double *bytes_per_s,
                          tern_error *err);

#endif
