/* model/arch_rows_text.h - rows of arch_table.c: models that read a text in both directions, and what they have in common. */
#ifndef TN_MODEL_ARCH_ROWS_TEXT_H
#define TN_MODEL_ARCH_ROWS_TEXT_H

/* Encoders: a norm of the sum of embeddings, none in front of blocks, and one of what the stream is after each. */
#define LIKE_BERT                                                                                            \
    .norm = TN_NORM_LAYER, .post_norms = true, .no_pre_norms = true, .bidirectional = true, .encoder = true
#define GGUF_NORMS_AFTER                                                                                     \
    [TN_W_ATTN_POST_NORM] = "attn_output_norm.weight", [TN_W_FFN_POST_NORM] = "layer_output_norm.weight"
#define HF_BERT_ATTENDING                                                                                    \
    [TN_W_EMBD] = "embeddings.word_embeddings.weight",                                                       \
    [TN_W_EMBD_TYPE] = "embeddings.token_type_embeddings.weight",                                            \
    [TN_W_EMBD_NORM] = "embeddings.LayerNorm.weight", [TN_W_EMBD_NORM_B] = "embeddings.LayerNorm.bias",      \
    [TN_W_Q] = "attention.self.query.weight", [TN_W_Q_B] = "attention.self.query.bias",                      \
    [TN_W_K] = "attention.self.key.weight", [TN_W_K_B] = "attention.self.key.bias",                          \
    [TN_W_V] = "attention.self.value.weight", [TN_W_V_B] = "attention.self.value.bias",                      \
    [TN_W_O] = "attention.output.dense.weight", [TN_W_O_B] = "attention.output.dense.bias",                  \
    [TN_W_ATTN_POST_NORM] = "attention.output.LayerNorm.weight",                                             \
    [TN_W_ATTN_POST_NORM_B] = "attention.output.LayerNorm.bias"
#define HF_BERT                                                                                              \
    HF_BERT_ATTENDING, [TN_W_POSITIONS] = "embeddings.position_embeddings.weight",                           \
                       [TN_W_UP] = "intermediate.dense.weight", [TN_W_UP_B] = "intermediate.dense.bias",     \
                       [TN_W_DOWN] = "output.dense.weight", [TN_W_DOWN_B] = "output.dense.bias",             \
                       [TN_W_FFN_POST_NORM] = "output.LayerNorm.weight",                                     \
                       [TN_W_FFN_POST_NORM_B] = "output.LayerNorm.bias"

/* The same by the names of another implementation, which joins Q, K and V. */
#define HF_FLASH_BERT                                                                                        \
    [TN_W_EMBD] = "embeddings.word_embeddings.weight",                                                       \
    [TN_W_EMBD_TYPE] = "embeddings.token_type_embeddings.weight", [TN_W_EMBD_NORM] = "emb_ln.weight",        \
    [TN_W_EMBD_NORM_B] = "emb_ln.bias", [TN_W_ATTN_POST_NORM] = "norm1.weight",                              \
    [TN_W_ATTN_POST_NORM_B] = "norm1.bias", [TN_W_FFN_POST_NORM] = "norm2.weight",                           \
    [TN_W_FFN_POST_NORM_B] = "norm2.bias", [TN_W_DOWN] = "mlp.fc2.weight", [TN_W_DOWN_B] = "mlp.fc2.bias"
#define HF_FLASH_ROBERTA                                                                                     \
    [TN_W_O] = "mixer.out_proj.weight", [TN_W_O_B] = "mixer.out_proj.bias", [TN_W_UP] = "mlp.fc1.weight",    \
    [TN_W_UP_B] = "mlp.fc1.bias"
#define HF_BERT_SCORE                                                                                        \
    [TN_W_SCORE_IN] = "pooler.dense.weight", [TN_W_SCORE_IN_B] = "pooler.dense.bias",                        \
    [TN_W_SCORE] = "classifier.weight", [TN_W_SCORE_B] = "classifier.bias"
#define HF_ROBERTA_SCORE                                                                                     \
    [TN_W_SCORE_IN] = "classifier.dense.weight", [TN_W_SCORE_IN_B] = "classifier.dense.bias",                \
    [TN_W_SCORE] = "classifier.out_proj.weight", [TN_W_SCORE_B] = "classifier.out_proj.bias"
/* nomic's: rope, and gates or experts. */
#define LIKE_NOMIC                                                                                           \
    LIKE_BERT, .hf = "nomic_bert", .hf_layers = "encoder.layers.", .hf_qkv = "attn.Wqkv.weight",             \
               .hf_before = {"bert"}, .gguf_names = {GGUF_NORMS_AFTER}
/* Jina's second: no positions, but scores that fall by distance. */
#define LIKE_JINA_2                                                                                          \
    LIKE_BERT, .gguf = "jina-bert-v2", .act = TN_ACT_GELU_ERF, .gated = true, .biases = true,                \
               .no_out_bias = true, .alibi = 8, .qk_norm_whole = true, .qk_norm_found = true,                \
               .norm_2_found = true, .hf_layers = "encoder.layer.", .hf_before = {"bert"},                   \
               .gguf_names = {GGUF_NORMS_AFTER}
#define HF_JINA_2                                                                                            \
    HF_BERT_ATTENDING, [TN_W_Q_NORM] = "attention.self.layer_norm_q.weight",                                 \
                       [TN_W_Q_NORM_B] = "attention.self.layer_norm_q.bias",                                 \
                       [TN_W_K_NORM] = "attention.self.layer_norm_k.weight",                                 \
                       [TN_W_K_NORM_B] = "attention.self.layer_norm_k.bias", HF_BERT_SCORE

/* In GGUF files an xlm-roberta is a bert, without the positions of padding. */
#define ARCHS_THAT_ENCODE                                                                                    \
    {.name = "bert",                                                                                         \
     LIKE_BERT,                                                                                              \
     .hf = "bert",                                                                                           \
     .gguf = "bert",                                                                                         \
     .act = TN_ACT_GELU_ERF,                                                                                 \
     .biases = true,                                                                                         \
     .no_out_bias = true,                                                                                    \
     .positions = true,                                                                                      \
     .hf_layers = "encoder.layer.",                                                                          \
     .hf_before = {"bert", "roberta"},                                                                       \
     .gguf_names = {GGUF_NORMS_AFTER},                                                                       \
     .hf_names = {HF_BERT, HF_BERT_SCORE}},                                                                  \
        {.name = "xlm-roberta",                                                                              \
         LIKE_BERT,                                                                                          \
         .hf = "xlm-roberta",                                                                                \
         .hf_also = "roberta",                                                                               \
         .gguf = "bert",                                                                                     \
         .act = TN_ACT_GELU_ERF,                                                                             \
         .biases = true,                                                                                     \
         .no_out_bias = true,                                                                                \
         .positions = true,                                                                                  \
         .positions_padded = true,                                                                           \
         .hf_layers = "encoder.layer.",                                                                      \
         .hf_before = {"bert", "roberta"},                                                                   \
         .gguf_names = {GGUF_NORMS_AFTER},                                                                   \
         .hf_names = {HF_BERT, HF_ROBERTA_SCORE}},                                                           \
        {.name = "nomic-bert",                                                                               \
         LIKE_NOMIC,                                                                                         \
         .gguf = "nomic-bert",                                                                               \
         .act = TN_ACT_SILU,                                                                                 \
         .gated = true,                                                                                      \
         .hf_names = {HF_FLASH_BERT, [TN_W_O] = "attn.out_proj.weight", [TN_W_UP] = "mlp.fc11.weight",       \
                      [TN_W_GATE] = "mlp.fc12.weight"}},                                                     \
        {.name = "nomic-bert-moe",                                                                           \
         LIKE_NOMIC,                                                                                         \
         .gguf = "nomic-bert-moe",                                                                           \
         .act = TN_ACT_GELU_ERF,                                                                             \
         .biases = true,                                                                                     \
         .no_out_bias = true,                                                                                \
         .experts = true,                                                                                    \
         .experts_flat = true,                                                                               \
         .hf_names = {HF_FLASH_BERT, [TN_W_O] = "attn.out_proj.weight", [TN_W_O_B] = "attn.out_proj.bias",   \
                      [TN_W_UP] = "mlp.fc1.weight", [TN_W_UP_B] = "mlp.fc1.bias",                            \
                      [TN_W_ROUTER] = "mlp.router.layer.weight", [TN_W_UP_EXPS] = "mlp.experts.mlp.w1",      \
                      [TN_W_DOWN_EXPS] = "mlp.experts.mlp.w2", [TN_W_EXPERTS_OUT_B] = "mlp.experts.bias"}},  \
        {.name = "jina-bert-v2",                                                                             \
         LIKE_JINA_2,                                                                                        \
         .hf = "jina_bert_v2",                                                                               \
         .hf_gate_up = "mlp.gated_layers.weight",                                                            \
         .hf_names = {HF_JINA_2, [TN_W_DOWN] = "mlp.wo.weight", [TN_W_DOWN_B] = "mlp.wo.bias",               \
                      [TN_W_FFN_POST_NORM] = "mlp.layernorm.weight",                                         \
                      [TN_W_FFN_POST_NORM_B] = "mlp.layernorm.bias"}},                                       \
        {.name = "jina-bert-v2-code",                                                                        \
         LIKE_JINA_2,                                                                                        \
         .hf = "jina_bert_v2_code",                                                                          \
         .hf_gate_up = "mlp.up_gated_layer.weight",                                                          \
         .hf_names =                                                                                         \
             {HF_JINA_2, [TN_W_DOWN] = "mlp.down_layer.weight", [TN_W_DOWN_B] = "mlp.down_layer.bias",       \
              [TN_W_ATTN_NORM_2] = "layer_norm_1.weight", [TN_W_ATTN_NORM_2_B] = "layer_norm_1.bias",        \
              [TN_W_FFN_POST_NORM] = "layer_norm_2.weight", [TN_W_FFN_POST_NORM_B] = "layer_norm_2.bias"}},  \
        {.name = "xlm-roberta-flash",                                                                        \
         LIKE_BERT,                                                                                          \
         .hf = "xlm_roberta_flash",                                                                          \
         .gguf = "bert",                                                                                     \
         .act = TN_ACT_GELU_ERF,                                                                             \
         .biases = true,                                                                                     \
         .no_out_bias = true,                                                                                \
         .positions = true,                                                                                  \
         .positions_padded = true,                                                                           \
         .hf_layers = "encoder.layers.",                                                                     \
         .hf_qkv = "mixer.Wqkv.weight",                                                                      \
         .hf_before = {"roberta"},                                                                           \
         .gguf_names = {GGUF_NORMS_AFTER},                                                                   \
         .hf_names = {HF_FLASH_BERT,                                                                         \
                      HF_FLASH_ROBERTA, [TN_W_POSITIONS] = "embeddings.position_embeddings.weight",          \
                      HF_ROBERTA_SCORE}},                                                                    \
        {.name = "jina-bert-v3",                                                                             \
         LIKE_BERT,                                                                                          \
         .hf = "jina_bert_v3",                                                                               \
         .tasks = true,                                                                                      \
         .gguf = "jina-bert-v3",                                                                             \
         .act = TN_ACT_GELU_ERF,                                                                             \
         .biases = true,                                                                                     \
         .no_out_bias = true,                                                                                \
         .hf_layers = "encoder.layers.",                                                                     \
         .hf_qkv = "mixer.Wqkv.weight",                                                                      \
         .hf_before = {"roberta"},                                                                           \
         .gguf_names = {GGUF_NORMS_AFTER},                                                                   \
         .hf_names = {HF_FLASH_BERT, HF_FLASH_ROBERTA}},                                                     \
    {                                                                                                        \
        .name = "modern-bert", .hf = "modernbert", .gguf = "modern-bert", .norm = TN_NORM_LAYER,             \
        .act = TN_ACT_GELU_ERF, .gated = true, .bidirectional = true, .modern = true, .window = true,        \
        .window_pattern = 3, .local_rope = true, .local_base = 10000, .hf_layers = "layers.",                \
        .hf_qkv = "attn.Wqkv.weight", .hf_gate_up = "mlp.Wi.weight", .hf_before = {"model"}, .hf_names = {   \
            [TN_W_EMBD] = "embeddings.tok_embeddings.weight",                                                \
            [TN_W_EMBD_NORM] = "embeddings.norm.weight",                                                     \
            [TN_W_OUT_NORM] = "final_norm.weight",                                                           \
            [TN_W_ATTN_NORM] = "attn_norm.weight",                                                           \
            [TN_W_FFN_NORM] = "mlp_norm.weight",                                                             \
            [TN_W_O] = "attn.Wo.weight",                                                                     \
            [TN_W_DOWN] = "mlp.Wo.weight",                                                                   \
            [TN_W_SCORE_IN] = "head.dense.weight",                                                           \
            [TN_W_SCORE_IN_B] = "head.dense.bias",                                                           \
            [TN_W_SCORE_NORM] = "head.norm.weight",                                                          \
            [TN_W_SCORE] = "classifier.weight",                                                              \
            [TN_W_SCORE_B] = "classifier.bias"                                                               \
        }                                                                                                    \
    }

#endif
