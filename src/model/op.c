#include "model/op.h"

static const tn_op_info *const table[TN_N_OP_KINDS] = {
    [TN_OP_EMBED] = &tn_op_embed,
    [TN_OP_EMBED_ADD] = &tn_op_embed_add,
    [TN_OP_NORM] = &tn_op_norm,
    [TN_OP_LINEARS] = &tn_op_linears,
    [TN_OP_ROPE] = &tn_op_rope,
    [TN_OP_ATTEND] = &tn_op_attend,
    [TN_OP_GATE] = &tn_op_gate,
    [TN_OP_RESIDUAL] = &tn_op_residual,
    [TN_OP_CAP] = &tn_op_cap,
    [TN_OP_COPY] = &tn_op_copy,
    [TN_OP_ROUTE] = &tn_op_route,
    [TN_OP_GATHER] = &tn_op_gather,
    [TN_OP_EXPERT_GATE] = &tn_op_expert_gate,
    [TN_OP_EXPERT_SUM] = &tn_op_expert_sum,
    [TN_OP_CONV] = &tn_op_conv,
    [TN_OP_CONV_GATE] = &tn_op_conv_gate,
    [TN_OP_DELTA_GATES] = &tn_op_delta_gates,
    [TN_OP_DELTA_MIX] = &tn_op_delta_mix,
    [TN_OP_DELTA] = &tn_op_delta,
    [TN_OP_DELTA_NORM] = &tn_op_delta_norm,
    [TN_OP_ATTN_GATE] = &tn_op_attn_gate,
    [TN_OP_EMBED_LAYERS] = &tn_op_embed_layers,
    [TN_OP_LAYER_MIX] = &tn_op_layer_mix,
    [TN_OP_SCALE] = &tn_op_scale,
    [TN_OP_NORM_ADD] = &tn_op_norm_add,
    [TN_OP_GATE_SPARSE] = &tn_op_gate_sparse,
    [TN_OP_STREAMS] = &tn_op_streams,
    [TN_OP_ALTUP_PREDICT] = &tn_op_altup_predict,
    [TN_OP_ALTUP_CORRECT] = &tn_op_altup_correct,
    [TN_OP_ALTUP_ADD] = &tn_op_altup_add,
    [TN_OP_ALTUP_MERGE] = &tn_op_altup_merge,
    [TN_OP_LATENT] = &tn_op_latent,
    [TN_OP_HEADS] = &tn_op_heads,
    [TN_OP_SHIFT] = &tn_op_shift,
    [TN_OP_LERP] = &tn_op_lerp,
    [TN_OP_LOW] = &tn_op_low,
    [TN_OP_WKV_MIX] = &tn_op_wkv_mix,
    [TN_OP_WKV_NORM] = &tn_op_wkv_norm,
    [TN_OP_DEEPSTACK] = &tn_op_deepstack,
    [TN_OP_PAIR] = &tn_op_pair,
    [TN_OP_TAP] = &tn_op_tap,
};

const tn_op_info *tn_op_info_of(tn_op_kind kind) { return table[kind]; }

tn_cost tn_op_cost(const tn_op *op, int32_t n_rows, int32_t pos0) {
    tn_cost c = {0};
    table[op->kind]->cost(op, n_rows, pos0, &c);
    return c;
}

void tn_frame_slice(const tn_frame *f, tn_rows *r, int32_t row0, int32_t layer, tn_frame *out) {
    *out = *f;
    out->r = r;
    out->ids = f->ids ? f->ids + row0 : NULL;
    for (int b = 0; b < TN_N_BUFFERS; b++) {
        const int32_t width =
            b == TN_BUF_TAPS ? f->m->program.width[b] : tn_buffer_width(&f->m->h, layer, (tn_buffer)b);
        if (f->buf[b]) out->buf[b] = f->buf[b] + (size_t)row0 * (size_t)width;
    }
    r->rope_cs = tn_rows_rope(f->r, row0, 0);
}
