/* tern_shadow.h - sparse attention of long prompts for any engine: INT8 estimates say where to look, float
 * attention looks there (shadowAttn).
 *
 * Plain arrays in and out; nothing else of tern is needed but the library. One object is one layer's
 * attention over one growing text:
 *
 *     tern_shadow_append(s, k, v, n, err);   keys and values of the next n positions, rotated
 *     tern_shadow_attend(s, q, n, out, err); the same positions' queries: each sees itself and what was
 *     appended before it
 *
 * An object belongs to one thread at a time; objects are independent. Errors, NULL, sizes and hooks are as
 * in tern.h. */
#ifndef TERN_SHADOW_H
#define TERN_SHADOW_H

#include "tern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_shadow tern_shadow;

typedef struct tern_shadow_options {
    size_t size_bytes;           /* set by tern_shadow_options_defaults */
    int32_t n_heads, n_kv_heads; /* query heads, a multiple of the KV heads; head h reads KV head h / (n_heads
                                    / n_kv_heads) */
    int32_t d_head;              /* multiple of 4, at most 512 */
    int32_t max_tokens;          /* room for so many positions */
    float
        ratio; /* mean share of the positions a row attends to, in (0,1] (default 0.2); 1 = full attention */
    const float *head_weight; /* [n_heads] > 0: importance, shares go in proportion; NULL = all the same
                                 (default). Copied */
    float scale_q, scale_k;   /* typical largest magnitude of a head's queries, keys, / 127; 0 = that of the
                                 first rows (default) */
    int32_t share_rows; /* neighbouring rows, with the query heads of a KV head, that share a selection: 1..8;
                           -1 = none; 0 = 4, 2 where a KV head has more than four query heads, 8 where it has
                           one (default) */
    int32_t pool_heads; /* of them, query heads estimated as one; 0 = 1 (default) */
    int32_t window;     /* a row sees so many positions back; 0 = all (default) */
    float scale;        /* of q.k; 0 = 1 / sqrt(d_head) (default) */
    float soft_cap;     /* score = cap * tanh(score / cap); 0 = off (default) */
    const tern_hooks *hooks; /* memory and log; NULL = malloc/free, no log (default). Copied */
} tern_shadow_options;

TERN_API tern_status tern_shadow_options_init(tern_shadow_options *o, size_t size_bytes);
#define tern_shadow_options_defaults(o) tern_shadow_options_init((o), sizeof *(o))

TERN_API tern_status tern_shadow_open(const tern_shadow_options *o, tern_shadow **out, tern_error *err);
TERN_API void tern_shadow_close(tern_shadow **s);

/* Keys and values [n][n_kv_heads][d_head] of the next n positions. Copied. */
TERN_API tern_status tern_shadow_append(tern_shadow *s, const float *k, const float *v, int32_t n,
                                        tern_error *err);

/* Queries [n][n_heads][d_head] of the last n positions appended; out likewise. Many rows at a time are
 * quicker than few, and have one INT8 scale. What is NaN or infinite in the input is so in what depends on
 * it, as in full attention; it never leads out of bounds. */
TERN_API tern_status tern_shadow_attend(tern_shadow *s, const float *q, int32_t n, float *out,
                                        tern_error *err);

/* Forgets the positions from n_tokens on. */
TERN_API tern_status tern_shadow_truncate(tern_shadow *s, int32_t n_tokens, tern_error *err);

TERN_API int32_t tern_shadow_n_tokens(const tern_shadow *s);

/* Share of the positions that were attended to, of those that rows saw so far; 1 before any. */
TERN_API double tern_shadow_selected(const tern_shadow *s);

#ifdef __cplusplus
}
#endif
#endif
