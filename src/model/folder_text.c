#include "model/folder_text.h"

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "model/arch_renamed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* NULL where the folder has no such file. */
static tern_status read_json(const char *folder, const char *name, json_t **out, tern_error *err) {
    char path[4096];
    struct stat sb;
    *out = NULL;
    TN_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path, err, TERN_E_INVALID,
               "%s: path too long", folder);
    return stat(path, &sb) ? TERN_OK : tn_json_read(path, 0, out, err);
}

static tern_status read_pooling(const char *folder, tn_hparams *h, tern_error *err) {
    static const struct {
        const char *key;
        tn_pooling is;
    } ways[] = {{"pooling_mode_cls_token", TN_POOL_FIRST},
                {"pooling_mode_mean_tokens", TN_POOL_MEAN},
                {"pooling_mode_lasttoken", TN_POOL_LAST},
                {"pooling_mode_max_tokens", TN_POOL_UNSAID},
                {"pooling_mode_mean_sqrt_len_tokens", TN_POOL_UNSAID},
                {"pooling_mode_weightedmean_tokens", TN_POOL_UNSAID}};
    json_t *o;
    int n = 0;
    TN_TRY(read_json(folder, "1_Pooling/config.json", &o, err));
    const char *unknown = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (!json_is_true(json_object_get(o, ways[i].key))) continue;
        h->pooling = ways[i].is;
        if (ways[i].is == TN_POOL_UNSAID) unknown = ways[i].key;
        n++;
    }
    json_decref(o);
    TN_FAIL_IF(unknown || n > 1, err, TERN_E_UNSUPPORTED,
               "%s/1_Pooling: %s is not supported (one of cls, mean and last tokens is)", folder,
               unknown ? unknown : "pooling in several ways");
    return TERN_OK;
}

/* A product without a bias and without anything after it, in a folder of its own. */
static tern_status read_dense(tn_ctx *ctx, const char *folder, const char *where, tn_safetensors **out,
                              tern_error *err) {
    char path[4096];
    json_t *o;
    TN_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/config.json", where) >= sizeof path, err,
               TERN_E_INVALID, "%s: path too long", where);
    TN_TRY(read_json(folder, path, &o, err));
    const char *act = json_string_value(json_object_get(o, "activation_function"));
    const bool plain = act && strstr(act, "Identity") && !json_is_true(json_object_get(o, "bias"));
    json_decref(o);
    TN_FAIL_IF(!plain, err, TERN_E_UNSUPPORTED,
               "%s/%s: a product with a bias, or with another activation than Identity, is not supported",
               folder, where);
    TN_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/%s", folder, where) >= sizeof path, err,
               TERN_E_INVALID, "%s: path too long", folder);
    TN_TRY(tn_safetensors_open(ctx, path, out, err));
    TN_FAIL_IF(tn_safetensors_n_tensors(*out) != 1, err, TERN_E_UNSUPPORTED,
               "%s: holds %zu tensors; a product without a bias has one", path,
               tn_safetensors_n_tensors(*out));
    return TERN_OK;
}

bool tn_folder_has(const char *folder, const char *name) {
    char path[4096];
    struct stat sb;
    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path && !stat(path, &sb);
}

/* The name of a module's kind, after its last dot. */
static const char *kind_of(const json_t *module) {
    const char *type = json_string_value(json_object_get(module, "type")),
               *last = type ? strrchr(type, '.') : NULL;
    return last ? last + 1 : type ? type : "";
}

/* A module's files are in a folder beside the model's. */
static bool is_elsewhere(const char *where) {
    return !where || !*where || strchr(where, '/') || strstr(where, "..");
}

/* The family whose models may be rerankers that say yes or no. */
static bool may_write_scores(const tn_arch *a) { return !strcmp(a->name, "qwen3"); }

/* Of which tokens the scores are: a yes and a no. */
static tern_status read_score_rows(const char *folder, const char *where, tn_model_file *f,
                                   const tn_hparams *h, tern_error *err) {
    static const char *const keys[] = {"true_token_id", "false_token_id"};
    char path[4096];
    json_t *o;
    bool ok = true;
    TN_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/config.json", where) >= sizeof path, err,
               TERN_E_INVALID, "%s: path too long", where);
    TN_TRY(read_json(folder, path, &o, err));
    for (int i = 0; i < 2; i++) {
        const json_t *id = json_object_get(o, keys[i]);
        ok = ok && json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < h->n_vocab;
        f->score_rows[i] = ok ? (int32_t)json_integer_value(id) : 0;
    }
    json_decref(o);
    TN_FAIL_IF(
        !ok || f->score_rows[0] == f->score_rows[1], err, TERN_E_UNSUPPORTED,
        "%s/%s: scores of other tokens than a 'true_token_id' and a 'false_token_id' are not supported",
        folder, where);
    return TERN_OK;
}

/* What comes after the model: pooling, products where the architecture has two of them, and a norm, which every vector
 * gets. */
static tern_status read_modules(tn_ctx *ctx, const char *folder, const json_t *modules, tn_model_file *f,
                                tn_hparams *h, tern_error *err) {
    const json_t *module;
    static const char *const order[] = {"Transformer", "Pooling", "Dense", "Normalize", "LogitScore"};
    enum { POOLING = 1, DENSE, NORMALIZE, LOGITS, N_KINDS = sizeof order / sizeof *order };
    size_t i;
    int n = 0, before = 0;
    const char *last = "Dense";
    TN_FAIL_IF(modules && !json_is_array(modules), err, TERN_E_FORMAT, "%s/modules.json is no list", folder);
    json_array_foreach(modules, i, module) {
        const char *kind = kind_of(module), *where = json_string_value(json_object_get(module, "path"));
        int k = 0;
        while (k < N_KINDS && strcmp(kind, order[k])) k++;
        TN_FAIL_IF(k == N_KINDS || k < before || (k == POOLING && where && strcmp(where, "1_Pooling")) ||
                       (k >= DENSE && k != NORMALIZE && is_elsewhere(where)) ||
                       (k == DENSE && (!f->arch->hf_names[TN_W_DENSE_1] || n == 2)) ||
                       (k == LOGITS && (before || !may_write_scores(f->arch))),
                   err, TERN_E_UNSUPPORTED,
                   "%s/modules.json: '%.40s' in this place is not supported for model type %s", folder, kind,
                   f->arch->hf);
        before = k;
        if (k == DENSE) TN_TRY(read_dense(ctx, folder, where, &f->dense[n++], err));
        if (k == LOGITS) TN_TRY(read_score_rows(folder, where, f, h, err));
    }
    TN_FAIL_IF(!n && f->arch->hf_names[TN_W_DENSE_1] && tn_folder_has(folder, "2_Dense"), err, TERN_E_FORMAT,
               "%s: has products after pooling (2_Dense) that no modules.json names", folder);
    const tn_tensor *t = n ? tn_file_tensor(f, TN_FOLDER_DENSE_1) : NULL;
    TN_FAIL_IF(n == 1 || (n && !t), err, TERN_E_UNSUPPORTED,
               "%s/modules.json: one '%s' after the model, or one without linear.weight, is not supported",
               folder, last);
    TN_FAIL_IF(t && (!t->dims[0] || t->dims[0] > 1 << 20), err, TERN_E_FORMAT,
               "%s: the first product after pooling has %" PRIu64 " rows", folder, t->dims[0]);
    h->n_between = t ? (int32_t)t->dims[0] : 0;
    return TERN_OK;
}

const tn_arch *tn_folder_arch(const tn_arch *a, const tn_safetensors *st) {
    const char *type = "jina_bert_v2";
    if (!a->norm_2_found) return a;
    for (size_t i = 0; i < tn_safetensors_n_tensors(st); i++)
        if (strstr(tn_safetensors_tensor_at(st, i)->name, ".mlp.up_gated_layer.")) type = "jina_bert_v2_code";
    return tn_arch_by_hf(type);
}

/* What only the tensors tell of a model that reads in both directions. */
static tern_status tell_tensors(const char *folder, const tn_model_file *f, tn_hparams *h, tern_error *err) {
    char name[160];
    const char *const *names = f->arch->hf_names;
    (void)tn_arch_hf_name(f->arch, h, 0, TN_W_EMBD_TYPE, name, sizeof name);
    h->embd_type = f->arch->encoder && tn_file_tensor(f, name);
    if (f->arch->qk_norm_found) {
        (void)tn_arch_hf_name(f->arch, h, 0, TN_W_Q_NORM, name, sizeof name);
        h->qk_norm = tn_file_tensor(f, name);
        h->attn_norm_twice = names[TN_W_ATTN_NORM_2];
    }
    if (f->arch->experts_flat && h->experts_every) {
        (void)tn_arch_hf_name(f->arch, h, h->experts_every - 1, TN_W_EXPERTS_OUT_B, name, sizeof name);
        h->experts_out_bias = tn_file_tensor(f, name);
    }
    const tn_tensor *t = names[TN_W_SCORE] ? tn_file_tensor(f, names[TN_W_SCORE]) : NULL;
    if (!t) return TERN_OK;
    h->n_scores = t->dims[0] <= 1 << 10 ? (int32_t)t->dims[0] : 1 << 11;
    h->score_layer = tn_file_tensor(f, names[TN_W_SCORE_IN]);
    h->score_norm = names[TN_W_SCORE_NORM] && tn_file_tensor(f, names[TN_W_SCORE_NORM]);
    TN_FAIL_IF(h->n_scores > 1 << 10, err, TERN_E_FORMAT, "%s: %s has %d scores", folder, t->name,
               h->n_scores);
    h->pooling = TN_POOL_RANK;
    return TERN_OK;
}

tern_status tn_folder_text(tn_ctx *ctx, const char *folder, tn_model_file *f, tn_hparams *h,
                           tern_error *err) {
    json_t *modules;
    if (f->arch->bidirectional) TN_TRY(tell_tensors(folder, f, h, err));
    if (h->pooling == TN_POOL_UNSAID) TN_TRY(read_pooling(folder, h, err));
    TN_TRY(read_json(folder, "modules.json", &modules, err));
    const tern_status st = read_modules(ctx, folder, modules, f, h, err);
    json_decref(modules);
    return st;
}

/* As the models are published, with the question that they were trained with most. */
static const char qwen3_pair[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    "Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: "
    "Given a web search query, retrieve relevant passages that answer the query\n<Query>: "
    "{query}\n<Document>: "
    "{document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/* Does a text of the folder say it (begins: at the beginning of a line)? Not where there is none, or one that is far too long. */
static tern_status says(const char *folder, const char *name, const char *what, bool begins, bool *found,
                        tern_error *err) {
    char path[4096], *text;
    size_t n;
    *found = false;
    if (!tn_folder_has(folder, name)) return TERN_OK;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const tern_status st = tn_file_slurp(path, 1 << 20, &text, &n, err);
    if (st != TERN_OK) return st == TERN_E_LIMIT ? TERN_OK : st;
    const char *at = memmem(text, n, what, strlen(what));
    while (begins && at && at > text && at[-1] != '\n')
        at = memmem(at + 1, n - (size_t)(at + 1 - text), what, strlen(what));
    *found = at;
    free(text);
    return TERN_OK;
}

/* Older folders have no modules: their card names the model, and the words are those of the vocabulary. */
static tern_status tell_scores(const char *folder, tn_model_file *f, tn_hparams *h, tn_tokenizer *t,
                               tern_error *err) {
    const bool by_modules = f->score_rows[0] != f->score_rows[1];
    bool named = false;
    if (!may_write_scores(f->arch)) return TERN_OK;
    TN_TRY(says(folder, "README.md", "# Qwen3-Reranker", true, &named, err));
    if (!by_modules && !named) return TERN_OK;
    if (!named)
        TN_TRY(says(folder, "chat_template.jinja", "Judge whether the Document meets", false, &named, err));
    TN_FAIL_IF(!named, err, TERN_E_UNSUPPORTED,
               "%s: how it wants a question and a text is not known (no Qwen3-Reranker by its README.md or "
               "chat_template.jinja)",
               folder);
    TN_FAIL_IF(tn_file_tensor(f, "score.weight"), err, TERN_E_UNSUPPORTED,
               "%s: a reranker with a head of its own (score.weight), which is not read", folder);
    TN_FAIL_IF(!t, err, TERN_E_UNSUPPORTED, "%s: a reranker without a tokenizer", folder);
    static const char *const words[] = {"yes", "no"};
    for (int i = 0; i < 2 && !by_modules; i++) {
        f->score_rows[i] = tn_tokenizer_find(t, words[i]);
        TN_FAIL_IF(f->score_rows[i] < 0 || f->score_rows[i] >= h->n_vocab, err, TERN_E_FORMAT,
                   "%s: a reranker whose vocabulary has no '%s'", folder, words[i]);
    }
    h->n_scores = 2;
    h->pooling = TN_POOL_RANK;
    return tn_tokenizer_read_pairs_by(t, qwen3_pair, err);
}

tern_status tn_folder_tokenizer(tn_ctx *ctx, const char *folder, tn_model_file *f, tn_hparams *h,
                                tn_tokenizer **out, tern_error *err) {
    static const char *const vocabularies[] = {"tokenizer.json", "tokenizer.model", "merges.txt",
                                               TN_RWKV_VOCAB};
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies && !*out; i++)
        if (tn_folder_has(folder, vocabularies[i])) TN_TRY(tn_tokenizer_open_hf(ctx, folder, out, err));
    return f->arch->head ? TERN_OK : tell_scores(folder, f, h, *out, err);
}

/* How a GGUF file says that rows become one; UNSAID where it says nothing that is known. *a is NULL for an unknown
 * architecture, and for a file without weights. */
static tn_pooling gguf_pooling(const tn_gguf *g, const tn_arch **a) {
    const char *name;
    size_t n;
    char key[96];
    int64_t pooling;
    *a = NULL;
    if (!tn_gguf_str(g, "general.architecture", &name, &n) || !tn_gguf_n_tensors(g)) return TN_POOL_UNSAID;
    *a = tn_arch_by_gguf(name, n);
    snprintf(key, sizeof key, "%s.pooling_type", *a ? (*a)->gguf : "");
    if (!*a || !tn_gguf_i64(g, key, &pooling))
        return *a && (*a)->encoder && tn_gguf_tensor(g, "cls.weight") ? TN_POOL_RANK : TN_POOL_UNSAID;
    return pooling < 0 || pooling + 1 >= TN_N_POOLINGS ? TN_POOL_NONE : (tn_pooling)(pooling + 1);
}

bool tn_file_embeds(tn_ctx *ctx, const char *path) {
    struct stat sb;
    char inside[4096];
    tern_error err;
    const tn_arch *a;
    if (stat(path, &sb)) return false;
    if (S_ISDIR(sb.st_mode))
        return (size_t)snprintf(inside, sizeof inside, "%s/1_Pooling/config.json", path) < sizeof inside &&
               !stat(inside, &sb);
    tn_gguf *g;
    if (tn_gguf_open(ctx, path, &g, &err) != TERN_OK) return false;
    const tn_pooling by = gguf_pooling(g, &a);
    tn_gguf_close(&g);
    return a && (by == TN_POOL_UNSAID ? a->bidirectional : by > TN_POOL_NONE && by < TN_POOL_RANK);
}

/* A classifier of one class. One of several tells kinds of texts apart, which is something else. */
static bool folder_reranks(const char *folder) {
    json_t *o = NULL;
    tern_error err;
    if (read_json(folder, "config.json", &o, &err) != TERN_OK) return false;
    if (o && tn_renamed_config(&o, folder, &err) != TERN_OK) {
        json_decref(o);
        return false;
    }
    const char *type = json_string_value(json_object_get(o, "model_type")),
               *kind = json_string_value(json_array_get(json_object_get(o, "architectures"), 0));
    const json_t *names = json_object_get(o, "id2label"), *n = json_object_get(o, "num_labels");
    const tn_arch *a = type ? tn_arch_by_hf(type) : NULL;
    const bool yes = a && a->bidirectional && kind && strstr(kind, "ForSequenceClassification") &&
                     (json_object_size(names) == 1 || json_integer_value(n) == 1);
    json_decref(o);
    return yes;
}

bool tn_file_reranks(tn_ctx *ctx, const char *path) {
    struct stat sb;
    tern_error err;
    const tn_arch *a;
    tn_gguf *g;
    if (stat(path, &sb)) return false;
    if (S_ISDIR(sb.st_mode)) return folder_reranks(path);
    if (tn_gguf_open(ctx, path, &g, &err) != TERN_OK) return false;
    const bool yes = gguf_pooling(g, &a) == TN_POOL_RANK && a->bidirectional;
    tn_gguf_close(&g);
    return yes;
}
