// Logits that llama.cpp's DFlash drafters give for every draft of a block after places of a text, as JSON lines.
//
//   dflash MODEL DRAFTER LAYER,LAYER... ROWS MASK ID,ID,... PLACE...
//
// The layers are those whose inputs the drafter reads.
#include "llama-ext.h"
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static std::vector<int> numbers(char *text) {
    std::vector<int> out;
    for (char *p = strtok(text, ","); p; p = strtok(nullptr, ",")) out.push_back(atoi(p));
    return out;
}

static void add(llama_batch &b, int token, int pos, bool logits) {
    const int i = b.n_tokens++;
    if (b.token) b.token[i] = token;
    b.pos[i] = pos;
    b.n_seq_id[i] = 1;
    b.seq_id[i][0] = 0;
    b.logits[i] = logits;
}

// The drafts after ids[0..place] and the text's next token, which is drawn.
static bool drafts(llama_context *model, llama_context *drafter, const std::vector<int> &layers, int n_rows, int mask,
                   const std::vector<int> &ids, int place) {
    const int n = place + 1, wide = llama_model_n_embd(llama_get_model(model)),
              e = llama_model_n_embd(llama_get_model(drafter)), n_layers = (int)layers.size(),
              n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(model)));
    for (int layer : layers) llama_set_embeddings_layer_inp(model, layer, true);
    llama_set_embeddings_nextn(drafter, true, true);
    llama_set_causal_attn(drafter, false);
    llama_batch text = llama_batch_init(n, 0, 1), kept = llama_batch_init(n, e, 1), block = llama_batch_init(n_rows, 0, 1);
    for (int i = 0; i < n; i++) add(text, ids[i], i, true);
    if (llama_decode(model, text)) return false;
    std::vector<float> taken((size_t)n * n_layers * wide);
    for (int k = 0; k < n_layers; k++)
        for (int i = 0; i < n; i++)
            memcpy(&taken[((size_t)i * n_layers + k) * wide],
                   llama_get_embeddings_layer_inp(model, layers[k]) + (size_t)i * wide, wide * sizeof(float));
    llama_batch joined = {n, nullptr, taken.data(), nullptr, nullptr, nullptr, nullptr};
    if (llama_encode(drafter, joined)) return false;
    memcpy(kept.embd, llama_get_embeddings_nextn(drafter), (size_t)n * e * sizeof(float));
    for (int i = 0; i < n; i++) add(kept, 0, i, false);
    if (llama_decode(drafter, kept)) return false;
    for (int i = 0; i < n_rows; i++) add(block, i ? mask : ids[n], n + i, true);
    if (llama_decode(drafter, block)) return false;
    for (int draft = 1; draft < n_rows; draft++) {
        const float *logits = llama_get_logits_ith(drafter, draft);
        printf("[%d, %d", place, draft - 1);
        for (int i = 0; i < n_vocab; i++) printf(", %.9g", logits[i]);
        puts("]");
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc < 8) return 2;
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = false;
    llama_model *m = llama_model_load_from_file(argv[1], mp), *h = llama_model_load_from_file(argv[2], mp);
    const std::vector<int> layers = numbers(argv[3]), ids = numbers(argv[6]);
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 256;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    if (!m || !h) return 1;
    for (int a = 7; a < argc; a++) {
        llama_context_params of_drafter = cp;
        llama_context *model = llama_init_from_model(m, cp);
        of_drafter.ctx_other = model;
        llama_context *drafter = llama_init_from_model(h, of_drafter);
        if (!model || !drafter || !drafts(model, drafter, layers, atoi(argv[4]), atoi(argv[5]), ids, atoi(argv[a]))) return 1;
        llama_free(drafter);
        llama_free(model);
    }
}
