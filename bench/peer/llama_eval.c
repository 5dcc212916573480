/* bench/peer/llama_eval.c - `tern eval --task exact` and `--task ppl` computed by llama.cpp's library, so
 * that accuracy can be compared item by item. llama_eval MODEL.gguf exact|ppl FILE [THREADS] exact prints a 1
 * or a 0 for every item and then its line; ppl cuts the text into windows of 512 tokens and scores every
 * token but the first. */
#include <jansson.h>
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CTX = 4096, WINDOW = 512 };

typedef struct peer {
    struct llama_context *ctx;
    const struct llama_vocab *vocab;
    struct llama_batch batch;
    int n_vocab;
} peer;

static void silent(enum ggml_log_level level, const char *text, void *user) {
    (void)level, (void)text, (void)user;
}

static void die(const char *what) {
    fprintf(stderr, "llama_eval: %s\n", what);
    exit(1);
}

/* One forward over all tokens; logits of positions from `first` on. */
static void forward(peer *p, const llama_token *ids, int n, int first) {
    llama_memory_clear(llama_get_memory(p->ctx), true);
    p->batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        p->batch.token[i] = ids[i];
        p->batch.pos[i] = i;
        p->batch.n_seq_id[i] = 1;
        p->batch.seq_id[i][0] = 0;
        p->batch.logits[i] = i >= first;
    }
    if (llama_decode(p->ctx, p->batch)) die("llama_decode failed");
}

static int tokens_of(const peer *p, const char *text, size_t n, llama_token *ids, int cap, bool special) {
    int got = llama_tokenize(p->vocab, text, (int32_t)n, ids, cap, special, special);
    if (got < 0) die("a text is longer than the room for it");
    return got;
}

static int argmax(const float *v, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) best = v[i] > v[best] ? i : best;
    return best;
}

static void exact(peer *p, FILE *f) {
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) {
        json_error_t e;
        json_t *item = json_loads(line, 0, &e);
        const char *prompt = json_string_value(json_object_get(item, "prompt")),
                   *answer = json_string_value(json_object_get(item, "answer"));
        if (!prompt || !answer) die("an item has no prompt or no answer");
        char *all;
        if (asprintf(&all, "%s%s", prompt, answer) < 0) die("no memory");
        static llama_token before[CTX], ids[CTX];
        int n_before = tokens_of(p, all, strlen(prompt), before, CTX, true),
            n = tokens_of(p, all, strlen(all), ids, CTX, true), same = 0;
        while (same < n_before && same < n && before[same] == ids[same]) same++;
        forward(p, ids, n, same - 1);
        bool right = true;
        for (int i = same - 1; i < n && right; i++) {
            llama_token best = argmax(llama_get_logits_ith(p->ctx, i), p->n_vocab);
            right = i + 1 < n ? best == ids[i + 1] : llama_vocab_is_eog(p->vocab, best);
        }
        printf("%d\n", right);
        free(all);
        json_decref(item);
    }
    free(line);
}

static void ppl(peer *p, FILE *f) {
    char *text = malloc(1 << 24);
    llama_token *ids = malloc((1 << 24) * sizeof *ids);
    if (!text || !ids) die("no memory");
    size_t n_bytes = fread(text, 1, 1 << 24, f);
    int n = tokens_of(p, text, n_bytes, ids, 1 << 24, false);
    double sum = 0;
    long count = 0;
    for (int at = 0; at + 1 < n; at += WINDOW) {
        int len = n - at < WINDOW ? n - at : WINDOW;
        forward(p, ids + at, len, 0);
        for (int i = 0; i + 1 < len; i++, count++) {
            const float *v = llama_get_logits_ith(p->ctx, i);
            double top = v[argmax(v, p->n_vocab)], z = 0;
            for (int j = 0; j < p->n_vocab; j++) z += exp((double)v[j] - top);
            sum -= (double)v[ids[at + i + 1]] - top - log(z);
        }
    }
    printf("%.4f\n", exp(sum / (double)count));
    free(text);
    free(ids);
}

int main(int argc, char **argv) {
    if (argc < 4) die("usage: llama_eval MODEL.gguf exact|ppl FILE [THREADS]");
    llama_log_set(silent, NULL);
    llama_backend_init();
    struct llama_model *m = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!m) die("the model cannot be loaded");
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = CTX;
    cp.n_threads = cp.n_threads_batch = argc > 4 ? atoi(argv[4]) : 2;
    peer p = {.ctx = llama_init_from_model(m, cp),
              .vocab = llama_model_get_vocab(m),
              .batch = llama_batch_init(CTX, 0, 1)};
    if (!p.ctx) die("no context");
    p.n_vocab = llama_vocab_n_tokens(p.vocab);
    FILE *f = fopen(argv[3], "rb");
    if (!f) die("the data cannot be read");
    if (!strcmp(argv[2], "exact")) exact(&p, f);
    else ppl(&p, f);
    fclose(f);
    llama_batch_free(p.batch);
    llama_free(p.ctx);
    llama_model_free(m);
    llama_backend_free();
    return 0;
}
