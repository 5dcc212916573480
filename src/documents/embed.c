#include "documents/embed.h"

#include "base/status.h"
#include "engine/adapters.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

struct tn_embedding {
    const tern_engine *e;
    tern_session *s;
    int32_t *ids; /* [n_ctx]: a longer text is cut */
    size_t n_ctx, n_embd;
    bool mean;
    /* of a model with adapters of tasks those that passages and questions have; prefix NULL: it has none */
    struct {
        tn_lora_mix mix;
        const char *prefix;
    } task[2];
};

/* What models want in front of passages and questions, as they were published: by architecture, or by a word of the
 * file's name. */
static const struct {
    const char *arch, *name, *passage, *question;
} words[] = {{"nomic-bert", NULL, "search_document: ", "search_query: "},
             {"nomic-bert-moe", NULL, "search_document: ", "search_query: "},
             {"gemma-embedding", NULL, "title: none | text: ", "task: search result | query: "},
             {"qwen3", "embedding", "",
              "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"},
             {"bert", "e5", "passage: ", "query: "},
             {"xlm-roberta", "e5", "passage: ", "query: "}};

static const char *words_before(const tn_hparams *h, bool question) {
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].arch, h->arch) && (!words[i].name || strcasestr(h->name, words[i].name)))
            return question ? words[i].question : words[i].passage;
    return "";
}

static tern_status embed_any(tn_embedding *v, bool question, const char *text, size_t n_bytes, float *out,
                             tern_error *err) {
    const char *before =
        v->task[question].prefix ? v->task[question].prefix : words_before(&v->e->model->h, question);
    if (v->task[question].prefix) tn_session_mix(v->s, &v->task[question].mix);
    size_t n = 0, n_before = strlen(before);
    char *all = malloc(n_before + n_bytes + 1);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory for embeddings");
    memcpy(all, before, n_before);
    memcpy(all + n_before, text, n_bytes);
    tern_status st = tern_tokenize(v->e, all, n_before + n_bytes, true, false, v->ids, v->n_ctx, &n, err);
    free(all);
    if (st == TERN_E_LIMIT && n > v->n_ctx) n = v->n_ctx;
    else TN_TRY(st);
    return tern_session_embed(v->s, v->ids, n, v->mean, out, v->n_embd, err);
}

static tern_status embed_text(void *user, const char *text, size_t n_bytes, float *out, tern_error *err) {
    return embed_any(user, false, text, n_bytes, out, err);
}

static tern_status embed_question(void *user, const char *text, size_t n_bytes, float *out, tern_error *err) {
    return embed_any(user, true, text, n_bytes, out, err);
}

/* Jina's third model has an adapter for either. */
static void find_tasks(tn_embedding *v) {
    static const char *const names[2] = {"retrieval.passage", "retrieval.query"};
    tern_error err;
    for (int i = 0; i < 2; i++) {
        if (tn_task_parse(v->e, names[i], &v->task[i].mix, &v->task[i].prefix, &err) == TERN_OK) continue;
        v->task[0].prefix = v->task[1].prefix = NULL;
        return;
    }
}

/* What the vectors were made with. */
static uint64_t fingerprint_of(const tn_embedding *v) {
    uint64_t print = tn_model_fingerprint(v->e->model) ^ tn_lora_mix_id(&v->s->mix);
    for (int i = 0; i < 2 && v->task[0].prefix; i++) print ^= tn_lora_mix_id(&v->task[i].mix) << i;
    return print;
}

tern_status tn_embedding_open(tern_engine *e, const char *model, bool mean, tn_embedding **out,
                              tn_embedder *as, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    tn_embedding *v = calloc(1, sizeof *v);
    *out = NULL;
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory for embeddings");
    v->e = e;
    v->mean = mean;
    v->n_embd = (size_t)e->model->h.n_embd;
    find_tasks(v);
    tern_status st = tern_session_open(e, &so, &v->s, err);
    if (st == TERN_OK) {
        v->n_ctx = (size_t)tern_session_capacity(v->s);
        v->ids = malloc(v->n_ctx * sizeof *v->ids);
        if (!v->ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for embeddings");
    }
    if (st != TERN_OK) {
        tn_embedding_close(&v);
        return st;
    }
    *out = v;
    *as = (tn_embedder){.model = model,
                        .fingerprint = fingerprint_of(v),
                        .n = e->model->h.n_embd,
                        .mean = mean,
                        .embed = embed_text,
                        .embed_query = embed_question,
                        .user = v};
    return TERN_OK;
}

void tn_embedding_close(tn_embedding **pv) {
    tn_embedding *v = *pv;
    if (!v) return;
    *pv = NULL;
    tern_session_close(&v->s);
    free(v->ids);
    free(v);
}
