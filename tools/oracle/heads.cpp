// Logits that llama.cpp's heads (EAGLE-3) give for the first two drafts after places of a text, as JSON lines.
//
//   heads MODEL HEAD LAYER,LAYER,LAYER ID,ID,... PLACE...
//
// The layers are those whose inputs the head reads. Of a head's decoder every row is asked for: it does not leave out others.
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

static void add(llama_batch &b, int token, int pos) {
    const int i = b.n_tokens++;
    b.token[i] = token;
    b.pos[i] = pos;
    b.n_seq_id[i] = 1;
    b.seq_id[i][0] = 0;
    b.logits[i] = true;
}

static void print(const float *logits, int n, int place, int draft) {
    printf("[%d, %d", place, draft);
    for (int i = 0; i < n; i++) printf(", %.9g", logits[i] > -1e30f ? logits[i] : -1e30f);
    puts("]");
}

// The drafts after ids[0..place], whose next two tokens are the text's.
static bool drafts(llama_context *model, llama_context *head, const std::vector<int> &layers, const std::vector<int> &ids,
                   int place) {
    const int n = place + 1, wide = llama_model_n_embd(llama_get_model(model)),
              e = llama_model_n_embd(llama_get_model(head)),
              n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(head)));
    for (int layer : layers) llama_set_embeddings_layer_inp(model, layer, true);
    llama_set_embeddings_nextn(head, true, true);
    llama_batch text = llama_batch_init(n, 0, 1), rows = llama_batch_init(n + 1, e, 1);
    rows.token = (llama_token *)malloc(sizeof(llama_token) * (n + 1));
    for (int i = 0; i < n; i++) add(text, ids[i], i);
    if (llama_decode(model, text)) return false;
    std::vector<float> taken((size_t)n * 3 * wide);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++)
            memcpy(&taken[((size_t)i * 3 + k) * wide], llama_get_embeddings_layer_inp(model, layers[k]) + (size_t)i * wide,
                   wide * sizeof(float));
    llama_batch joined = {n, nullptr, taken.data(), nullptr, nullptr, nullptr, nullptr};
    if (llama_encode(head, joined)) return false;
    memcpy(rows.embd, llama_get_embeddings_nextn(head), (size_t)n * e * sizeof(float));
    for (int i = 0; i < n; i++) add(rows, ids[i + 1], i);
    if (llama_decode(head, rows)) return false;
    print(llama_get_logits_ith(head, n - 1), n_vocab, place, 0);
    std::vector<float> state(e);
    memcpy(state.data(), llama_get_embeddings_nextn_ith(head, n - 1), e * sizeof(float));
    memcpy(rows.embd, state.data(), e * sizeof(float));
    rows.n_tokens = 0;
    add(rows, ids[n + 1], n);
    if (llama_decode(head, rows)) return false;
    print(llama_get_logits_ith(head, 0), n_vocab, place, 1);
    return true;
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = false;
    llama_model *m = llama_model_load_from_file(argv[1], mp), *h = llama_model_load_from_file(argv[2], mp);
    const std::vector<int> layers = numbers(argv[3]), ids = numbers(argv[4]);
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 256;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    if (!m || !h || layers.size() != 3) return 1;
    for (int a = 5; a < argc; a++) {
        llama_context_params of_head = cp;
        llama_context *model = llama_init_from_model(m, cp);
        of_head.ctx_other = model;
        llama_context *head = llama_init_from_model(h, of_head);
        if (!model || !head || !drafts(model, head, layers, ids, atoi(argv[a]))) return 1;
        llama_free(head);
        llama_free(model);
    }
}
