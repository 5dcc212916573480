#include "model/folder_text.h"

#include "base/json.h"
#include "base/status.h"

#include <stdio.h>
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

/* What comes after the model: pooling, and a norm, which every vector gets. */
static tern_status check_modules(const char *folder, const tn_hparams *h, tern_error *err) {
    json_t *o, *module;
    size_t i;
    char other[80] = "";
    TN_TRY(read_json(folder, "modules.json", &o, err));
    json_array_foreach(o, i, module) {
        const char *type = json_string_value(json_object_get(module, "type")),
                   *last = type ? strrchr(type, '.') : "";
        last = last ? last + (*last == '.') : type;
        if (strcmp(last, "Transformer") && strcmp(last, "Pooling") && strcmp(last, "Normalize"))
            snprintf(other, sizeof other, "%s", last);
    }
    json_decref(o);
    TN_FAIL_IF(*other && !h->n_between, err, TERN_E_UNSUPPORTED,
               "%s/modules.json: '%s' after the model is not read from folders; GGUF files have it", folder,
               other);
    return TERN_OK;
}

tern_status tn_folder_text(const char *folder, const tn_model_file *f, tn_hparams *h, tern_error *err) {
    if (f->arch->encoder) {
        char name[160];
        const tn_tensor *t;
        (void)tn_arch_hf_name(f->arch, h, 0, TN_W_EMBD_TYPE, name, sizeof name);
        h->embd_type = tn_file_tensor(f, name);
        t = tn_file_tensor(f, f->arch->hf_names[TN_W_SCORE]);
        h->n_scores = !t ? 0 : t->dims[0] <= 1 << 10 ? (int32_t)t->dims[0] : 1 << 11;
        h->score_layer = t && tn_file_tensor(f, f->arch->hf_names[TN_W_SCORE_IN]);
        TN_FAIL_IF(h->n_scores > 1 << 10, err, TERN_E_FORMAT, "%s: %s has %d scores", folder, t->name,
                   h->n_scores);
        if (t) h->pooling = TN_POOL_RANK;
    }
    if (h->pooling == TN_POOL_UNSAID) TN_TRY(read_pooling(folder, h, err));
    return check_modules(folder, h, err);
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
    if (!*a || !tn_gguf_i64(g, key, &pooling)) return TN_POOL_UNSAID;
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
    const char *type = json_string_value(json_object_get(o, "model_type")),
               *kind = json_string_value(json_array_get(json_object_get(o, "architectures"), 0));
    const json_t *names = json_object_get(o, "id2label"), *n = json_object_get(o, "num_labels");
    const tn_arch *a = type ? tn_arch_by_hf(type) : NULL;
    const bool yes = a && a->encoder && kind && strstr(kind, "ForSequenceClassification") &&
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
