// Dumps the logits of every position that libllama computes for given tokens, and a greedy continuation.
// -DIK_LLAMA: against ik_llama.cpp.
//   oracle MODEL.gguf IDS.txt OUT.f32 [N_GREEDY N_PROMPT]   (greedy ids go to stdout)
#include "llama.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>
static void die(const char *what) { fprintf(stderr, "oracle: %s\n", what); exit(1); }
static llama_context *open_context(llama_model *m, int n_ctx, int n_batch) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = n_ctx; p.n_batch = n_batch; p.n_ubatch = n_batch; p.n_threads = p.n_threads_batch = 2;
    p.type_k = p.type_v = GGML_TYPE_F32;
#ifdef IK_LLAMA // its fused forms and its caches of angles are other arithmetic
    p.flash_attn = p.fused_moe_up_gate = p.fused_up_gate = p.fused_mmad = p.rope_cache = p.graph_reuse = false;
    p.grouped_expert_routing = true;
#else
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.swa_full = true;
#endif
    llama_context *c = llama_init_from_model(m, p);
    if (!c) die("no context");
    return c;
}
static void eval(llama_context *c, const std::vector<int> &ids, int at, int n, bool all) {
    llama_batch b = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        b.token[i] = ids[at + i]; b.pos[i] = at + i; b.n_seq_id[i] = 1; b.seq_id[i][0] = 0; b.logits[i] = all || i == n - 1;
    }
    b.n_tokens = n;
    if (llama_decode(c, b)) die("decode failed");
    llama_batch_free(b);
}
int main(int argc, char **argv) {
    if (argc < 4) die("MODEL IDS OUT [N_GREEDY N_PROMPT]");
    llama_log_set([](ggml_log_level l, const char *t, void *) { if (l >= GGML_LOG_LEVEL_ERROR) fputs(t, stderr); }, nullptr);
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
#ifndef IK_LLAMA
    mp.use_extra_bufts = false;
#endif
    llama_model *m = llama_model_load_from_file(argv[1], mp);
    if (!m) die("no model");
    const int nv = llama_vocab_n_tokens(llama_model_get_vocab(m));
    std::vector<int> ids; int id;
    FILE *f = fopen(argv[2], "r");
    while (f && fscanf(f, "%d", &id) == 1) ids.push_back(id);
    FILE *o = fopen(argv[3], "wb");
    if (!f || !o || ids.empty()) die("files");
    const int step = 256;
    llama_context *c = open_context(m, (int)ids.size() + 64, step);
    for (int at = 0; at < (int)ids.size(); at += step) {
        int n = std::min(step, (int)ids.size() - at);
        eval(c, ids, at, n, true);
        for (int i = 0; i < n; i++) fwrite(llama_get_logits_ith(c, i), sizeof(float), nv, o);
    }
    fclose(o); llama_free(c);
    if (argc > 5) {
        int n_greedy = atoi(argv[4]); ids.resize(atoi(argv[5]));
        c = open_context(m, (int)ids.size() + n_greedy + 8, step);
        eval(c, ids, 0, ids.size(), false);
        for (int i = 0; i < n_greedy; i++) {
            const float *l = llama_get_logits_ith(c, -1);
            int best = std::max_element(l, l + nv) - l;
            printf("%d\n", best);
            ids.push_back(best);
            eval(c, ids, ids.size() - 1, 1, false);
        }
        llama_free(c);
    }
    return 0;
}
