/* model/packed.h - folders whose weights are packed by GPTQ or AWQ, or for MLX (formats/packed.h): what their config.json
 * says of it, and their tensors as the matrices they stand for. */
#ifndef TN_MODEL_PACKED_H
#define TN_MODEL_PACKED_H

#include "base/json.h"
#include "formats/packed.h"
#include "formats/safetensors.h"

typedef struct tn_packing_plan {
    tn_packing kind; /* TN_PACKING_NONE: weights are as they are */
    int32_t bits;
    uint64_t group;   /* UINT64_MAX: all input channels are one */
    bool stored_less; /* GPTQ's v1 */
    bool ordered;     /* GPTQ's desc_act: groups are not consecutive */
    const json_t *of; /* MLX: modules of other bits and groups; borrowed */
} tn_packing_plan;

/* Reads `quantization_config` or MLX's `quantization` of a configuration. Another method, and a key that is not known and
 * might change the values, is an error that names it. ternary: tn_arch_ternary_hf has read it as BitNet's. */
tern_status tn_packing_hf(const json_t *config, bool ternary, const char *file, tn_packing_plan *out,
                          tern_error *err);
/* Whether a configuration has one of the two. */
bool tn_packing_told(const json_t *config);
/* Replaces the tensors of every packed module M by one, M.weight; nothing without a plan. text: what the folder holds, for
 * people, "GPTQ, 4 bits in groups of 128". */
tern_status tn_packing_apply(tn_ctx *ctx, const tn_packing_plan *plan, const char *file, tn_safetensors *st,
                             char *text, size_t cap, tern_error *err);
#endif
