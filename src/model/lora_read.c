/* Adapters from files: pairs A and B beside the names of the tensors that they change. */
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "model/lora.h"
#include "model/place.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

typedef struct reader {
    tn_lora *l;
    tn_model_file file;
    const tn_program *p;
    const tn_lora_basis *basis;
    const char *path;
    double alpha; /* 0: no scale by it */
    bool by_root; /* divided by the root of the rank */
    int64_t rank; /* that the file says; 0: tensors have ranks of their own */
    size_t n_taken;
    const tn_tensor **taken; /* those that belong to a linear, in no order */
    XXH64_state_t *hash;
    tern_error *err;
} reader;

/* ---- what the file says of itself ---------------------------------------------------------------------- */

static tern_status read_metadata(reader *r) {
    const tn_gguf *g = r->file.gguf;
    const char *s = "";
    size_t n = 0;
    bool is = tn_gguf_str(g, "general.type", &s, &n) && n == 7 && !memcmp(s, "adapter", 7);
    TN_FAIL_IF(!is, r->err, TERN_E_FORMAT, "%s: no adapter: its general.type is '%.*s'", r->path,
               (int)(n < 40 ? n : 40), s);
    s = "", n = 0;
    is = tn_gguf_str(g, "adapter.type", &s, &n) && n == 4 && !memcmp(s, "lora", 4);
    TN_FAIL_IF(!is, r->err, TERN_E_UNSUPPORTED, "%s: an adapter of another kind than lora", r->path);
    is = tn_gguf_str(g, "general.architecture", &s, &n);
    TN_FAIL_IF(!is || n != strlen(r->file.arch->gguf) || memcmp(s, r->file.arch->gguf, n), r->err,
               TERN_E_INVALID, "%s: an adapter for architecture '%.*s', the model is %s", r->path,
               is ? (int)(n < 40 ? n : 40) : 0, s, r->file.arch->gguf);
    for (size_t i = 0; i < tn_gguf_n_keys(g); i++) {
        const char *key = tn_gguf_key_at(g, i, &n);
        if (n < 8 || memcmp(key, "adapter.", 8)) continue;
        static const char *const known[] = {"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name",
                                            "adapter.lora.prompt_prefix"};
        bool found = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            found = found || (n == strlen(known[k]) && !memcmp(key, known[k], n));
        TN_FAIL_IF(!found, r->err, TERN_E_UNSUPPORTED, "%s: key '%.*s' is none that tern knows of an adapter",
                   r->path, (int)(n < 80 ? n : 80), key);
    }
    if (tn_gguf_has(g, "adapter.lora.alpha") && !tn_gguf_f64(g, "adapter.lora.alpha", &r->alpha))
        r->alpha = NAN;
    return TERN_OK;
}

static bool neutral(const json_t *v) {
    return json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) ||
           (json_is_string(v) && (!json_string_length(v) || !strcmp(json_string_value(v), "none")));
}

/* These say nothing about the numbers, or are read; others must say nothing at all. */
static bool says_nothing(const char *key) {
    static const char *const harmless[] = {"auto_mapping",      "base_model_name_or_path",
                                           "corda_config",      "ensure_weight_tying",
                                           "eva_config",        "exclude_modules",
                                           "inference_mode",    "init_lora_weights",
                                           "layers_pattern",    "layers_to_transform",
                                           "loftq_config",      "lora_alpha",
                                           "lora_dropout",      "megatron_core",
                                           "peft_type",         "peft_version",
                                           "qalora_group_size", "r",
                                           "rank_pattern",      "revision",
                                           "runtime_config",    "target_modules",
                                           "task_type",         "use_rslora"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (!strcmp(key, harmless[i])) return true;
    return false;
}

static tern_status read_config(reader *r, const json_t *c) {
    const char *type = json_string_value(json_object_get(c, "peft_type")), *key;
    json_t *v;
    TN_FAIL_IF(!json_is_object(c) || !type, r->err, TERN_E_FORMAT, "%s: no configuration of an adapter",
               r->path);
    TN_FAIL_IF(strcmp(type, "LORA"), r->err, TERN_E_UNSUPPORTED,
               "%s: an adapter of another kind than LORA: '%.40s'", r->path, type);
    json_object_foreach((json_t *)(uintptr_t)c, key, v) {
        TN_FAIL_IF(!says_nothing(key) && !neutral(v), r->err, TERN_E_UNSUPPORTED,
                   "%s: '%.60s' of the adapter's configuration is not supported", r->path, key);
    }
    /* these leave the rest of their weights in a model that was changed for them */
    const char *init = json_string_value(json_object_get(c, "init_lora_weights"));
    TN_FAIL_IF(init && strcmp(init, "gaussian") && strcmp(init, "eva") && strcmp(init, "orthogonal"), r->err,
               TERN_E_UNSUPPORTED, "%s: init_lora_weights '%.40s' changes the model beside the adapter",
               r->path, init);
    const json_t *rank = json_object_get(c, "r"), *alpha = json_object_get(c, "lora_alpha");
    TN_FAIL_IF(!json_is_integer(rank) || !json_is_number(alpha), r->err, TERN_E_FORMAT,
               "%s: the adapter's configuration needs numbers r and lora_alpha", r->path);
    bool uneven = !neutral(json_object_get(c, "rank_pattern")) && json_object_get(c, "rank_pattern");
    r->rank = uneven ? 0 : json_integer_value(rank);
    r->alpha = json_number_value(alpha);
    r->by_root = json_is_true(json_object_get(c, "use_rslora"));
    TN_FAIL_IF(!uneven && (r->rank < 1 || r->rank > TN_LORA_RANK), r->err, TERN_E_FORMAT,
               "%s: rank %lld: want 1 to %d", r->path, (long long)r->rank, TN_LORA_RANK);
    return TERN_OK;
}

/* ---- pairs ------------------------------------------------------------------------------------------- */

static const tn_tensor *tensor_of(const reader *r, const char *name) {
    return r->file.gguf ? tn_gguf_tensor(r->file.gguf, name) : tn_safetensors_tensor(r->file.st, name);
}

/* The other one of a pair: its name has the other letter after the last "lora_". */
static const tn_tensor *partner(const reader *r, const tn_tensor *t) {
    char name[400];
    if ((size_t)snprintf(name, sizeof name, "%s", t->name) >= sizeof name) return NULL;
    char *last = NULL;
    for (char *at = name; (at = strstr(at, "lora_")); at++) last = at + strlen("lora_");
    if (!last || !strchr("aAbB", *last) || !*last) return NULL;
    *last = (char)(*last ^ ('a' ^ 'b'));
    return tensor_of(r, name);
}

static tern_status check_tensor(const reader *r, const tn_tensor *t, int64_t n, int64_t k) {
    TN_FAIL_IF(t->dtype != TN_F32 && t->dtype != TN_F16 && t->dtype != TN_BF16, r->err, TERN_E_UNSUPPORTED,
               "%s: tensor %s is stored as %s; adapters are read in F32, F16 or BF16", r->path, t->name,
               t->dtype < TN_N_DTYPES ? tn_dtype_name(t->dtype) : "a type that tern does not read");
    TN_FAIL_IF(t->dims[0] != (uint64_t)n || t->dims[1] != (uint64_t)k || t->dims[2] != 1 || t->dims[3] != 1,
               r->err, TERN_E_FORMAT,
               "%s: tensor %s is %" PRIu64 " x %" PRIu64 ", the model wants %lld x %lld", r->path, t->name,
               t->dims[0], t->dims[1], (long long)n, (long long)k);
    return TERN_OK;
}

static tern_status row_of(const reader *r, const tn_tensor *t, int64_t row, float *out) {
    size_t k = (size_t)t->dims[1];
    tn_dequantise(t->dtype, t->data + (uint64_t)row * k * (uint64_t)tn_dtype_block_bytes(t->dtype), out, k);
    for (size_t i = 0; i < k; i++)
        TN_FAIL_IF(!isfinite(out[i]), r->err, TERN_E_FORMAT, "%s: tensor %s holds a value that is not finite",
                   r->path, t->name);
    return TERN_OK;
}

typedef struct pair {
    const tn_tensor *a, *b;
    tn_place at; /* of the canonical rows in b */
} pair;

/* Finds the pair of a linear; out->b NULL: it is not changed. */
static tern_status find_pair(reader *r, int32_t layer, tn_role role, int64_t n, int64_t k, pair *out) {
    char name[160];
    uint64_t n_rows = (uint64_t)n;
    const tn_model_file *f = &r->file;
    *out = (pair){0};
    bool named = f->gguf ? tn_arch_gguf_name(f->arch, f->h, layer, role, name, sizeof name)
                         : tn_arch_hf_name(f->arch, f->h, layer, role, name, sizeof name);
    if (!named || role == TN_W_EMBD) return TERN_OK;
    tn_place_find(f, layer, role, name, sizeof name, &out->at, &n_rows);
    out->b = out->at.t;
    if (!out->b) return TERN_OK;
    bool tiled = f->gguf && f->arch->delta_tiled;
    TN_FAIL_IF(tn_role_of_delta(role) && tiled != f->h->delta.tiled, r->err, TERN_E_UNSUPPORTED,
               "%s: tensor %s has its heads in the order of the model's %s, and the model was made from the "
               "other form",
               r->path, out->b->name, f->gguf ? "GGUF files" : "folders");
    out->a = partner(r, out->b);
    TN_FAIL_IF(!out->a, r->err, TERN_E_FORMAT, "%s: tensor %s has no A beside it", r->path, out->b->name);
    int64_t rank = (int64_t)out->a->dims[0];
    TN_FAIL_IF(rank < 1 || rank > TN_LORA_RANK || (r->rank && rank != r->rank), r->err, TERN_E_FORMAT,
               "%s: tensor %s has rank %lld: want %s%lld", r->path, out->a->name, (long long)rank,
               r->rank ? "" : "1 to ", (long long)(r->rank ? r->rank : TN_LORA_RANK));
    TN_TRY(check_tensor(r, out->a, rank, k));
    TN_TRY(check_tensor(r, out->b, (int64_t)n_rows, rank));
    r->taken[r->n_taken++] = out->a;
    r->taken[r->n_taken++] = out->b;
    return TERN_OK;
}

static float *panels_of(reader *r, const float *rows, size_t n, size_t k) {
    size_t bytes = tn_panels_bytes(TN_PANEL_F32, n, k);
    float *out = tn_alloc(r->l->ctx, TN_MEM_WEIGHTS, bytes, 1);
    if (!out) return NULL;
    tn_panels_pack(TN_PANEL_F32, out, rows, 0, n, k);
    XXH64_update(r->hash, out, bytes);
    r->l->n_bytes += bytes;
    return out;
}

static tern_status no_memory(const reader *r) {
    return tn_fail(r->err, TERN_E_MEMORY, "%s: no memory for the adapter", r->path);
}

/* B times alpha / rank, in the model's own scales. */
static tern_status take_b(reader *r, int32_t site, int32_t op, int32_t n, const pair *p) {
    tn_lora_site *s = &r->l->sites[site];
    int32_t rank = (int32_t)p->b->dims[1];
    double by = r->alpha == 0 ? 1 : r->alpha / (r->by_root ? sqrt(rank) : rank);
    float *rows = tn_alloc(r->l->ctx, TN_MEM_OTHER, (size_t)n * (size_t)rank, sizeof *rows);
    tern_status st = rows ? TERN_OK : no_memory(r);
    for (int32_t i = 0; i < n && st == TERN_OK; i++) {
        float *row = rows + (size_t)i * (size_t)rank, scale = (float)by;
        st = row_of(r, p->b, tn_place_row(&r->file, &p->at, i), row);
        if (r->basis) scale *= r->basis->output(r->basis->user, site, op, i);
        for (int32_t c = 0; c < rank; c++) row[c] *= scale;
    }
    if (st == TERN_OK && !(s->op[op].b = panels_of(r, rows, (size_t)n, (size_t)rank))) st = no_memory(r);
    tn_free(r->l->ctx, rows);
    return st;
}

/* The A's of a site's linears, one below the other. */
static tern_status take_a(reader *r, int32_t site, const pair *pairs, const tn_site_ops *ops) {
    tn_lora_site *s = &r->l->sites[site];
    size_t k = (size_t)ops->k;
    float *rows = tn_alloc(r->l->ctx, TN_MEM_OTHER, (size_t)s->rank * k, sizeof *rows), *row = rows;
    tern_status st = rows ? TERN_OK : no_memory(r);
    for (int32_t op = 0; op < ops->n_ops; op++) {
        for (int32_t i = 0; i < s->op[op].rank && st == TERN_OK; i++, row += k) {
            st = row_of(r, pairs[op].a, i, row);
            if (r->basis && st == TERN_OK) r->basis->inputs(r->basis->user, site, row);
        }
    }
    if (st == TERN_OK && !(s->a = panels_of(r, rows, (size_t)s->rank, k))) st = no_memory(r);
    tn_free(r->l->ctx, rows);
    return st;
}

static tern_status read_site(reader *r, int32_t site) {
    const tn_site_ops *ops = tn_program_linears(r->p, site);
    int32_t layer = tn_program_site_layer(r->p, site);
    tn_lora_site *s = &r->l->sites[site];
    pair pairs[TN_SITE_MAX_OPS];
    for (int32_t op = 0; op < ops->n_ops && !ops->n_experts; op++) { /* experts take none */
        TN_TRY(find_pair(r, layer, ops->roles[op], ops->n[op], ops->k, &pairs[op]));
        if (!pairs[op].b) continue;
        s->op[op].rank = (int32_t)pairs[op].b->dims[1];
        s->op[op].first = s->rank;
        s->rank += s->op[op].rank;
        r->l->n_linears++;
        TN_TRY(take_b(r, site, op, ops->n[op], &pairs[op]));
    }
    int32_t head[2] = {site, s->rank};
    XXH64_update(r->hash, head, sizeof head);
    return s->rank ? take_a(r, site, pairs, ops) : TERN_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b) {
    const tn_tensor *x = *(const tn_tensor *const *)a, *y = *(const tn_tensor *const *)b;
    return x < y ? -1 : x > y;
}

/* What changes nothing that is computed is refused: it was learned with the rest. */
static tern_status check_all_taken(reader *r, size_t n_tensors) {
    qsort(r->taken, r->n_taken, sizeof *r->taken, by_address);
    for (size_t i = 0; i < n_tensors; i++) {
        const tn_tensor *t =
            r->file.gguf ? tn_gguf_tensor_at(r->file.gguf, i) : tn_safetensors_tensor_at(r->file.st, i);
        if (bsearch(&t, r->taken, r->n_taken, sizeof *r->taken, by_address)) continue;
        TN_FAIL_IF(strstr(t->name, "lora_") && !partner(r, t), r->err, TERN_E_FORMAT,
                   "%s: tensor %s has no partner: pairs of A and B are wanted", r->path, t->name);
        TN_FAIL_IF(true, r->err, TERN_E_UNSUPPORTED,
                   "%s: tensor %s changes none of the linears that an adapter can change in architecture %s",
                   r->path, t->name, r->file.arch->name);
    }
    return TERN_OK;
}

static tern_status read_all(reader *r, const char *config) {
    size_t n_tensors = r->file.gguf ? tn_gguf_n_tensors(r->file.gguf) : tn_safetensors_n_tensors(r->file.st);
    size_t most = (size_t)r->p->n_sites * TN_SITE_MAX_OPS * 2;
    if (r->file.gguf) {
        TN_TRY(read_metadata(r));
    } else {
        json_error_t je;
        json_t *c = tn_json_parse(config, strlen(config), 0, &je);
        tern_status st =
            c ? read_config(r, c) : tn_fail(r->err, TERN_E_FORMAT, "%s: no JSON: %s", r->path, je.text);
        json_decref(c);
        TN_TRY(st);
    }
    TN_FAIL_IF(!isfinite(r->alpha) || fabs(r->alpha) > 1e6, r->err, TERN_E_FORMAT,
               "%s: the adapter's alpha is no number", r->path);
    TN_FAIL_IF(!n_tensors || n_tensors > most, r->err, TERN_E_FORMAT,
               "%s: %zu tensors: the model's linears have %zu at most", r->path, n_tensors, most);
    r->l->sites = tn_calloc(r->l->ctx, TN_MEM_WEIGHTS, (size_t)r->p->n_sites, sizeof *r->l->sites);
    r->taken = tn_alloc(r->l->ctx, TN_MEM_OTHER, most, sizeof *r->taken);
    r->hash = XXH64_createState();
    if (!r->l->sites || !r->taken || !r->hash) return no_memory(r);
    r->l->n_sites = r->p->n_sites;
    XXH64_reset(r->hash, 0);
    for (int32_t i = 0; i < r->p->n_sites; i++) TN_TRY(read_site(r, i));
    r->l->fingerprint = XXH64_digest(r->hash);
    return check_all_taken(r, n_tensors);
}

tern_status tn_lora_read(tn_ctx *ctx, const tn_gguf *gguf, const tn_safetensors *st, const char *config,
                         const char *path, const tn_hparams *h, const tn_program *p,
                         const tn_lora_basis *basis, tn_lora **out, tern_error *err) {
    *out = NULL;
    const tn_arch *arch = tn_arch_named(h->arch);
    TN_FAIL_IF(!arch, err, TERN_E_UNSUPPORTED, "adapters for architecture %s are not supported", h->arch);
    tn_lora *l = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *l);
    TN_FAIL_IF(!l, err, TERN_E_MEMORY, "%s: no memory for the adapter", path);
    l->ctx = ctx;
    l->scale = 1;
    reader r = {.l = l,
                .file = {.arch = arch, .h = h, .gguf = gguf, .st = st, .adapter = true},
                .p = p,
                .basis = basis,
                .path = path,
                .err = err};
    tern_status rc = read_all(&r, config);
    bool changed = gguf ? tn_gguf_changed(gguf) : tn_safetensors_changed(st);
    if (changed) rc = tn_fail(err, TERN_E_IO, "%s: was written to while it was read", path);
    if (r.hash) XXH64_freeState(r.hash);
    tn_free(ctx, r.taken);
    if (rc == TERN_OK) *out = l;
    else tn_lora_close(&l);
    return rc;
}

static tern_status open_folder(tn_ctx *ctx, const char *path, const tn_hparams *h, const tn_program *p,
                               const tn_lora_basis *basis, tn_lora **out, tern_error *err) {
    enum { CONFIG_BYTES = 1 << 20 };
    char file[4096], *config;
    size_t n;
    tn_safetensors *st = NULL;
    const tn_arch *arch = tn_arch_named(h->arch);
    TN_FAIL_IF(
        arch && arch->mamba_beside, err, TERN_E_UNSUPPORTED,
        "%s: a folder with an adapter for architecture %s, whose configuration multiplies what linears give: "
        "convert it to GGUF, which holds the products",
        path, h->arch);
    TN_FAIL_IF((size_t)snprintf(file, sizeof file, "%s/adapter_model.safetensors", path) >= sizeof file, err,
               TERN_E_INVALID, "%s: path too long", path);
    snprintf(file, sizeof file, "%s/adapter_config.json", path);
    TN_TRY(tn_file_slurp(file, CONFIG_BYTES, &config, &n, err));
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", path);
    tern_status rc = tn_safetensors_open(ctx, file, &st, err);
    if (rc == TERN_OK) rc = tn_lora_read(ctx, NULL, st, config, path, h, p, basis, out, err);
    tn_safetensors_close(&st);
    free(config);
    return rc;
}

tern_status tn_lora_open(tn_ctx *ctx, const char *path, const tn_hparams *h, const tn_program *p,
                         const tn_lora_basis *basis, tn_lora **out, tern_error *err) {
    struct stat sb;
    *out = NULL;
    if (!stat(path, &sb) && S_ISDIR(sb.st_mode)) return open_folder(ctx, path, h, p, basis, out, err);
    tn_gguf *g;
    TN_TRY(tn_gguf_open(ctx, path, &g, err));
    tern_status rc = tn_lora_read(ctx, g, NULL, NULL, path, h, p, basis, out, err);
    tn_gguf_close(&g);
    return rc;
}
