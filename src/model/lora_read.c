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
    const tn_lora_task *task; /* the one of a folder's that is read; NULL: a file of its own */
    double alpha;             /* 0: no scale by it */
    bool by_root;             /* divided by the root of the rank */
    int64_t rank;             /* that the file says; 0: tensors have ranks of their own */
    size_t n_taken;
    const tn_tensor **taken; /* those that belong to a linear, in no order */
    XXH64_state_t *hash;
    tern_error *err;
} reader;

/* ---- what the file says of itself ---------------------------------------------------------------------- */

/* Notes what an adapter is for. Refuses names that cannot be written as one word, and prefixes that are too long. */
static tern_status for_task(tn_lora *l, const char *path, const char *task, size_t n_task, const char *prefix,
                            size_t n_prefix, tern_error *err) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    TN_FAIL_IF(n_task >= sizeof l->task || strnlen(task, n_task) < n_task, err, TERN_E_FORMAT,
               "%s: a task's name has %zu bytes: up to %d are wanted", path, n_task, TN_LORA_NAME - 1);
    snprintf(l->task, sizeof l->task, "%.*s", (int)n_task, task);
    TN_FAIL_IF(!*l->task || strspn(l->task, letters) < n_task || !strcmp(l->task, "none"), err, TERN_E_FORMAT,
               "%s: '%.63s' is no name of a task: letters, digits, '.', '-' and '_' are wanted", path,
               l->task);
    TN_FAIL_IF(n_prefix > TN_LORA_PREFIX || strnlen(prefix, n_prefix) < n_prefix, err, TERN_E_FORMAT,
               "%s: what texts of task %s begin with has %zu bytes: up to %d are wanted, none of them 0",
               path, l->task, n_prefix, TN_LORA_PREFIX);
    if (!n_prefix) return TERN_OK;
    l->prefix = tn_calloc(l->ctx, TN_MEM_OTHER, n_prefix + 1, 1);
    TN_FAIL_IF(!l->prefix, err, TERN_E_MEMORY, "%s: no memory for the adapter", path);
    memcpy(l->prefix, prefix, n_prefix);
    return TERN_OK;
}

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
    const char *task = "", *prefix = "";
    size_t n_task = 0, n_prefix = 0;
    (void)tn_gguf_str(g, "adapter.lora.task_name", &task, &n_task);
    (void)tn_gguf_str(g, "adapter.lora.prompt_prefix", &prefix, &n_prefix);
    return n_task ? for_task(r->l, r->path, task, n_task, prefix, n_prefix, r->err) : TERN_OK;
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

/* Of a folder's adapters one below the other the matrix of this one: *out. */
static tern_status one_task(const reader *r, const tn_tensor *t, tn_tensor *out) {
    *out = *t;
    if (!r->task) return TERN_OK;
    TN_FAIL_IF(t->n_dims != 3 || t->dims[0] != (uint64_t)r->task->n, r->err, TERN_E_FORMAT,
               "%s: tensor %s holds %" PRIu64 " matrices, and lora_adaptations has %d names", r->path,
               t->name, t->n_dims == 3 ? t->dims[0] : 1, r->task->n);
    out->n_dims = 2;
    memmove(out->dims, t->dims + 1, 3 * sizeof *t->dims);
    out->dims[3] = 1;
    out->size_bytes = t->size_bytes / t->dims[0];
    out->data = t->data + out->size_bytes * (uint64_t)r->task->i;
    return TERN_OK;
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
    tn_tensor a, b;
    bool found;
    tn_place at; /* of the canonical rows in b */
} pair;

/* The A and B of what the file changes, of one task: as they are stored. */
static tern_status take_pair(reader *r, const tn_tensor *b, pair *out) {
    const tn_tensor *a = partner(r, b);
    TN_FAIL_IF(!a, r->err, TERN_E_FORMAT, "%s: tensor %s has no A beside it", r->path, b->name);
    TN_TRY(one_task(r, a, &out->a));
    TN_TRY(one_task(r, b, &out->b));
    r->taken[r->n_taken++] = a;
    r->taken[r->n_taken++] = b;
    out->found = true;
    return TERN_OK;
}

static tern_status check_rank(const reader *r, int64_t rank, const char *name) {
    TN_FAIL_IF(rank < 1 || rank > TN_LORA_RANK || (r->rank && rank != r->rank), r->err, TERN_E_FORMAT,
               "%s: tensor %s has rank %lld: want %s%lld", r->path, name, (long long)rank,
               r->rank ? "" : "1 to ", (long long)(r->rank ? r->rank : TN_LORA_RANK));
    return TERN_OK;
}

static double scale_of(const reader *r, int64_t rank) {
    return r->alpha == 0 ? 1 : r->alpha / (r->by_root ? sqrt((double)rank) : (double)rank);
}

/* Finds the pair of a linear, which need not be changed. */
static tern_status find_pair(reader *r, int32_t layer, tn_role role, int64_t n, int64_t k, pair *out) {
    char name[160];
    uint64_t n_rows = (uint64_t)n;
    const tn_model_file *f = &r->file;
    *out = (pair){0};
    bool named = f->gguf ? tn_arch_gguf_name(f->arch, f->h, layer, role, name, sizeof name)
                         : tn_arch_hf_name(f->arch, f->h, layer, role, name, sizeof name);
    if (!named || role == TN_W_EMBD) return TERN_OK;
    tn_place_find(f, layer, role, name, sizeof name, &out->at, &n_rows);
    if (!out->at.t) return TERN_OK;
    bool tiled = f->gguf && f->arch->delta_tiled;
    TN_FAIL_IF(tn_role_of_delta(role) && tiled != f->h->delta.tiled, r->err, TERN_E_UNSUPPORTED,
               "%s: tensor %s has its heads in the order of the model's %s, and the model was made from the "
               "other form",
               r->path, out->at.t->name, f->gguf ? "GGUF files" : "folders");
    TN_TRY(take_pair(r, out->at.t, out));
    int64_t rank = (int64_t)out->a.dims[0];
    TN_TRY(check_rank(r, rank, out->a.name));
    TN_TRY(check_tensor(r, &out->a, rank, k));
    return check_tensor(r, &out->b, (int64_t)n_rows, rank);
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
    int32_t rank = (int32_t)p->b.dims[1];
    double by = scale_of(r, rank);
    float *rows = tn_alloc(r->l->ctx, TN_MEM_OTHER, (size_t)n * (size_t)rank, sizeof *rows);
    tern_status st = rows ? TERN_OK : no_memory(r);
    for (int32_t i = 0; i < n && st == TERN_OK; i++) {
        float *row = rows + (size_t)i * (size_t)rank, scale = (float)by;
        st = row_of(r, &p->b, tn_place_row(&r->file, &p->at, i), row);
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
            st = row_of(r, &pairs[op].a, i, row);
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
        if (!pairs[op].found) continue;
        s->op[op].rank = (int32_t)pairs[op].b.dims[1];
        s->op[op].first = s->rank;
        s->rank += s->op[op].rank;
        r->l->n_linears++;
        TN_TRY(take_b(r, site, op, ops->n[op], &pairs[op]));
    }
    int32_t head[2] = {site, s->rank};
    XXH64_update(r->hash, head, sizeof head);
    return s->rank ? take_a(r, site, pairs, ops) : TERN_OK;
}

/* ---- an encoder's embedding -------------------------------------------------------------------------- */

/* Rows [n][k] of a tensor, or where it is turned its columns, times `by`. */
static tern_status plain_rows(reader *r, const tn_tensor *t, bool turned, size_t n, size_t k, double by,
                              float **out) {
    float *row = tn_alloc(r->l->ctx, TN_MEM_OTHER, turned ? n : 1, sizeof *row),
          *rows = tn_alloc(r->l->ctx, TN_MEM_WEIGHTS, n * k, sizeof *rows);
    tern_status st = row && rows ? TERN_OK : no_memory(r);
    for (size_t i = 0; i < (turned ? k : n) && st == TERN_OK; i++) {
        st = row_of(r, t, (int64_t)i, turned ? row : rows + i * k);
        for (size_t c = 0; turned && c < n && st == TERN_OK; c++) rows[c * k + i] = row[c];
    }
    for (size_t i = 0; i < n * k && st == TERN_OK; i++) rows[i] = (float)(by * (double)rows[i]);
    tn_free(r->l->ctx, row);
    if (st != TERN_OK) {
        tn_free(r->l->ctx, rows);
        return st;
    }
    XXH64_update(r->hash, rows, n * k * sizeof *rows);
    r->l->n_bytes += n * k * sizeof *rows;
    *out = rows;
    return TERN_OK;
}

/* What the file changes by this role's name. */
static tern_status find_rows(reader *r, tn_role role, pair *out) {
    char name[160];
    const tn_model_file *f = &r->file;
    *out = (pair){0};
    bool named = f->gguf ? tn_arch_gguf_name(f->arch, f->h, 0, role, name, sizeof name)
                         : tn_arch_hf_name(f->arch, f->h, 0, role, name, sizeof name);
    const tn_tensor *b = named ? tn_file_tensor(f, name) : NULL;
    return b ? take_pair(r, b, out) : TERN_OK;
}

/* Tokens: A [n_vocab][rank], and B [n_embd][rank] in GGUF files, [rank][n_embd] in folders. */
static tern_status read_tokens(reader *r) {
    pair p;
    const tn_hparams *h = r->file.h;
    tn_lora_embedding *e = &r->l->embd;
    const bool gguf = r->file.gguf;
    const size_t n = (size_t)h->n_embd, n_vocab = (size_t)(h->n_vocab + h->n_vocab_rest);
    TN_TRY(find_rows(r, TN_W_EMBD, &p));
    if (!p.found) return TERN_OK;
    const int64_t rank = (int64_t)p.a.dims[1];
    TN_TRY(check_rank(r, rank, p.a.name));
    TN_TRY(check_tensor(r, &p.a, (int64_t)n_vocab, rank));
    TN_TRY(check_tensor(r, &p.b, gguf ? h->n_embd : rank, gguf ? rank : h->n_embd));
    TN_TRY(plain_rows(r, &p.a, false, n_vocab, (size_t)rank, 1, &e->a));
    TN_TRY(plain_rows(r, &p.b, gguf, (size_t)rank, n, scale_of(r, rank), &e->b));
    e->rank = (int32_t)rank;
    r->l->n_linears++;
    return TERN_OK;
}

/* The first type, which all texts have: a row [rank] of the types', times [rank][n_embd]. GGUF files call them the other
 * way round. */
static tern_status read_type(reader *r) {
    pair p;
    const tn_hparams *h = r->file.h;
    TN_TRY(find_rows(r, TN_W_EMBD_TYPE, &p));
    if (!p.found) return TERN_OK;
    const tn_tensor *types = r->file.gguf ? &p.b : &p.a, *rows = r->file.gguf ? &p.a : &p.b;
    const int64_t rank = (int64_t)types->dims[1];
    const size_t n = (size_t)h->n_embd;
    float *of_type = NULL, *wide = NULL, *sum = NULL;
    TN_TRY(check_rank(r, rank, types->name));
    TN_FAIL_IF(!types->dims[0] || types->dims[0] > 1 << 10, r->err, TERN_E_FORMAT,
               "%s: tensor %s has %" PRIu64 " types of texts", r->path, types->name, types->dims[0]);
    TN_TRY(check_tensor(r, types, (int64_t)types->dims[0], rank));
    TN_TRY(check_tensor(r, rows, rank, h->n_embd));
    tern_status st = plain_rows(r, types, false, 1, (size_t)rank, 1, &of_type);
    if (st == TERN_OK) st = plain_rows(r, rows, false, (size_t)rank, n, scale_of(r, rank), &wide);
    if (st == TERN_OK && !(sum = tn_calloc(r->l->ctx, TN_MEM_WEIGHTS, n, sizeof *sum))) st = no_memory(r);
    for (size_t i = 0; i < (size_t)rank * n && st == TERN_OK; i++) sum[i % n] += of_type[i / n] * wide[i];
    tn_free(r->l->ctx, of_type);
    tn_free(r->l->ctx, wide);
    r->l->embd.type = sum;
    r->l->n_linears += st == TERN_OK;
    return st;
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
        const bool of_task =
            strstr(t->name, ".parametrizations.weight.0.lora_") && !strstr(t->name, "pooler.");
        if (r->task && !of_task) continue; /* a weight, or of a layer that makes no vectors */
        if (bsearch(&t, r->taken, r->n_taken, sizeof *r->taken, by_address)) continue;
        TN_FAIL_IF(strstr(t->name, "lora_") && !partner(r, t), r->err, TERN_E_FORMAT,
                   "%s: tensor %s has no partner: pairs of A and B are wanted", r->path, t->name);
        TN_FAIL_IF(true, r->err, TERN_E_UNSUPPORTED,
                   "%s: tensor %s changes none of the linears that an adapter can change in architecture %s",
                   r->path, t->name, r->file.arch->name);
    }
    return TERN_OK;
}

static tern_status read_config_text(reader *r, const char *config) {
    json_error_t je;
    json_t *c = tn_json_parse(config, strlen(config), 0, &je);
    tern_status st =
        c ? read_config(r, c) : tn_fail(r->err, TERN_E_FORMAT, "%s: no JSON: %s", r->path, je.text);
    json_decref(c);
    return st;
}

static tern_status read_all(reader *r, const char *config) {
    size_t n_tensors = r->file.gguf ? tn_gguf_n_tensors(r->file.gguf) : tn_safetensors_n_tensors(r->file.st);
    size_t most = (size_t)r->p->n_sites * TN_SITE_MAX_OPS * 2 + 4; /* of linears, and of an embedding */
    TN_TRY(r->task ? TERN_OK : r->file.gguf ? read_metadata(r) : read_config_text(r, config));
    TN_FAIL_IF(!isfinite(r->alpha) || fabs(r->alpha) > 1e6, r->err, TERN_E_FORMAT,
               "%s: the adapter's alpha is no number", r->path);
    TN_FAIL_IF(!r->task && (!n_tensors || n_tensors > most), r->err, TERN_E_FORMAT,
               "%s: %zu tensors: the model's linears have %zu at most", r->path, n_tensors, most);
    r->l->sites = tn_calloc(r->l->ctx, TN_MEM_WEIGHTS, (size_t)r->p->n_sites, sizeof *r->l->sites);
    r->taken = tn_alloc(r->l->ctx, TN_MEM_OTHER, most, sizeof *r->taken);
    r->hash = XXH64_createState();
    if (!r->l->sites || !r->taken || !r->hash) return no_memory(r);
    r->l->n_sites = r->p->n_sites;
    XXH64_reset(r->hash, 0);
    for (int32_t i = 0; i < r->p->n_sites; i++) TN_TRY(read_site(r, i));
    if (r->file.arch->encoder && (r->file.gguf || r->task)) {
        TN_TRY(read_tokens(r));
        TN_TRY(read_type(r));
    }
    r->l->fingerprint = XXH64_digest(r->hash);
    return check_all_taken(r, n_tensors);
}

/* r has its file, the program and the path. */
static tern_status read_any(tn_ctx *ctx, reader r, const char *config, tn_lora **out) {
    *out = NULL;
    TN_FAIL_IF(!r.file.arch, r.err, TERN_E_UNSUPPORTED, "adapters for architecture %s are not supported",
               r.file.h->arch);
    tn_lora *l = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *l);
    TN_FAIL_IF(!l, r.err, TERN_E_MEMORY, "%s: no memory for the adapter", r.path);
    l->ctx = ctx;
    l->scale = 1;
    r.l = l;
    tern_status rc = read_all(&r, config);
    bool changed = r.file.gguf ? tn_gguf_changed(r.file.gguf) : tn_safetensors_changed(r.file.st);
    if (changed) rc = tn_fail(r.err, TERN_E_IO, "%s: was written to while it was read", r.path);
    if (r.hash) XXH64_freeState(r.hash);
    tn_free(ctx, r.taken);
    if (rc == TERN_OK) *out = l;
    else tn_lora_close(&l);
    return rc;
}

tern_status tn_lora_read(tn_ctx *ctx, const tn_gguf *gguf, const tn_safetensors *st, const char *config,
                         const char *path, const tn_hparams *h, const tn_program *p,
                         const tn_lora_basis *basis, tn_lora **out, tern_error *err) {
    const reader r = {
        .file = {.arch = tn_arch_named(h->arch), .h = h, .gguf = gguf, .st = st, .adapter = true},
        .p = p,
        .basis = basis,
        .path = path,
        .err = err};
    return read_any(ctx, r, config, out);
}

tern_status tn_lora_read_task(tn_ctx *ctx, const tn_safetensors *st, const tn_lora_task *task,
                              const char *path, const tn_hparams *h, const tn_program *p, tn_lora **out,
                              tern_error *err) {
    const reader r = {
        .file = {.arch = tn_arch_named(h->arch), .h = h, .st = st, .adapter = true, .tasks = true},
        .p = p,
        .path = path,
        .task = task,
        .alpha = task->alpha,
        .rank = task->rank,
        .err = err};
    TN_TRY(read_any(ctx, r, NULL, out));
    tern_status rc =
        for_task(*out, path, task->name, strlen(task->name), task->prefix, strlen(task->prefix), err);
    if (rc != TERN_OK) tn_lora_close(out);
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
