/* attention/no_baselines.c - replaces sparse_baselines.c and sparse_own.c in minimal builds
 * (TERN_MINIMAL): their modes, which exist for comparison, are refused, so the other functions are never
 * reached. */
#include "attention/sparse_impl.h"

#include "base/status.h"

tern_status tn_sparse_baseline_open(tn_sparse_attn *s, key_cache *k, tern_error *err) {
    (void)k;
    TN_FAIL_IF(s->o.mode == TN_ATTN_BLOCK_SPARSE || s->o.mode == TN_ATTN_NPU_FULL, err, TERN_E_UNSUPPORTED,
               "this build of tern has attention auto, full, shadow and float-sparse");
    TN_FAIL_IF(s->prompt && !tn_sparse_uses_tiles(s), err, TERN_E_UNSUPPORTED,
               "this build of tern has sparse attention of rows that share only (attention-share 1 to 8)");
    return TERN_OK;
}

void tn_sparse_baseline_plan(const tn_sparse_attn *s, int layer, int32_t kv_head, int32_t end) {
    (void)s, (void)layer, (void)kv_head, (void)end;
}

void tn_sparse_attend_blocks(const block *b, float *out) { (void)b, (void)out; }

void tn_sparse_attend_int8(const block *b, int32_t head, float *out) { (void)b, (void)head, (void)out; }

void tn_sparse_head_select(const block *b, int32_t head, bool floats, int32_t *head_scores,
                           uint32_t *head_idx, uint32_t *head_cuts) {
    (void)b, (void)head, (void)floats, (void)head_scores, (void)head_idx, (void)head_cuts;
}

void tn_sparse_heads_attend(const block *b, int32_t head, int32_t n_heads, const uint32_t *idx,
                            const uint32_t *cuts, float *out) {
    (void)b, (void)head, (void)n_heads, (void)idx, (void)cuts, (void)out;
}
