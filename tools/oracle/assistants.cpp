// Logits that llama.cpp's Gemma 4 assistants give for the first three drafts after places of a text, as JSON lines.
//
//   assistants MODEL ASSISTANT ID,ID,... PLACE...
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

// The drafts after ids[0..place], whose next tokens are the text's. All are at the position of the first of these.
static bool drafts(llama_context *model, llama_context *assistant, const std::vector<int> &ids, int place) {
    const int n = place + 1, wide = llama_model_n_embd(llama_get_model(model)),
              n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(model)));
    llama_set_embeddings_nextn(model, true, false);
    llama_set_embeddings_nextn(assistant, true, true);
    llama_batch text = llama_batch_init(n, 0, 1), row = llama_batch_init(1, wide, 1);
    row.token = (llama_token *)malloc(sizeof(llama_token));
    for (int i = 0; i < n; i++) add(text, ids[i], i);
    if (llama_decode(model, text)) return false;
    std::vector<float> state(wide);
    memcpy(state.data(), llama_get_embeddings_nextn_ith(model, n - 1), wide * sizeof(float));
    for (int draft = 0; draft < 3; draft++) {
        memcpy(row.embd, state.data(), wide * sizeof(float));
        row.n_tokens = 0;
        add(row, ids[n + draft], n);
        if (llama_decode(assistant, row)) return false;
        const float *logits = llama_get_logits_ith(assistant, 0);
        printf("[%d, %d", place, draft);
        for (int i = 0; i < n_vocab; i++) printf(", %.9g", logits[i]);
        puts("]");
        memcpy(state.data(), llama_get_embeddings_nextn_ith(assistant, 0), wide * sizeof(float));
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = false;
    llama_model *m = llama_model_load_from_file(argv[1], mp), *h = llama_model_load_from_file(argv[2], mp);
    const std::vector<int> ids = numbers(argv[3]);
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 256;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    if (!m || !h) return 1;
    for (int a = 4; a < argc; a++) {
        llama_context_params of_assistant = cp;
        llama_context *model = llama_init_from_model(m, cp);
        of_assistant.ctx_other = model;
        llama_context *assistant = llama_init_from_model(h, of_assistant);
        if (!model || !assistant || !drafts(model, assistant, ids, atoi(argv[a]))) return 1;
        llama_free(assistant);
        llama_free(model);
    }
}
