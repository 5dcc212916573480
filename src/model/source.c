/* Where each canonical tensor lies in the file, and how its rows are reached. */
#include "model/source.h"

#include "base/file.h"
#include "base/finite.h"
#include "base/json.h"
#include "base/status.h"
#include "model/arch_renamed.h"
#include "model/catalogue.h"
#include "model/folder_identity.h"
#include "model/folder_text.h"
#include "model/gguf_vocab.h"
#include "model/head_tensors.h"
#include "model/packed.h"
#include "model/place.h"
#include "model/ternary.h"
#include "model/wrapped.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct tn_source {
    tn_ctx *ctx;
    const tn_arch *arch;
    tn_hparams h;
    tn_gguf *gguf;
    tn_safetensors *st;
    tn_tokenizer *tokenizer;
    tn_model_file file;     /* of the above */
    float by[TN_W_N_ROLES]; /* see tn_arch_multipliers_hf */
    bool ternary;           /* see tn_arch_ternary_hf */
    char packing[48];       /* see tn_packing_apply; "": weights are as they are */
    tn_place *places;       /* [n_layers + 1 + n_next][TN_W_N_ROLES], model level first */
    char path[512];
    char description[64];
    char without_next[800]; /* why a layer that guesses further is not used; "": it is, or there is none */
};

static size_t n_places(const tn_source *s) {
    return ((size_t)s->h.n_layers + 1 + (size_t)s->h.n_next) * TN_W_N_ROLES;
}

/* A layer that guesses further is not needed for the text: where it is not whole, nobody guesses. The first reason is
 * kept. */
static void leave_next(tn_source *s, const char *verb, const char *tensor) {
    if (*s->without_next) return;
    snprintf(s->without_next, sizeof s->without_next,
             "%s: its layer that guesses one token further (MTP) %s %.120s: it is not drafted with", s->path,
             verb, tensor);
}

static tern_status missing(tn_source *s, int layer, const char *tensor, tern_error *err) {
    if (layer == s->h.n_layers) {
        leave_next(s, "lacks tensor", tensor);
        return TERN_OK;
    }
    return tn_fail(err, TERN_E_FORMAT, "%s: tensor %s is missing (architecture %s needs it)", s->path, tensor,
                   s->arch->name);
}

static tn_place *place_of(const tn_source *s, int layer, tn_role role) {
    return &s->places[(size_t)(layer + 1) * TN_W_N_ROLES + (size_t)role];
}

/* What a tensor must be like: `dims` from the outermost; and stored so that it can be read. */
static tern_status check_tensor(const tn_tensor *t, const uint64_t dims[3], bool vector, tern_error *err) {
    TN_FAIL_IF(t->dtype >= TN_N_DTYPES, err, TERN_E_UNSUPPORTED,
               "%s: tensor %s at offset %" PRIu64 " has a storage type tern does not read", t->file, t->name,
               t->off_bytes);
    bool ok = t->dims[0] == dims[0] && t->dims[1] == dims[1] && t->dims[2] == dims[2] && t->dims[3] == 1;
    TN_FAIL_IF(!ok, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " is %" PRIu64 " x %" PRIu64 " x %" PRIu64
               ", the hyperparameters want %" PRIu64 " x %" PRIu64 " x %" PRIu64,
               t->file, t->name, t->off_bytes, t->dims[0], t->dims[1], t->dims[2], dims[0], dims[1], dims[2]);
    TN_FAIL_IF(vector && tn_dtype_block(t->dtype) != 1, err, TERN_E_UNSUPPORTED,
               "%s: vector %s at offset %" PRIu64 " is stored as %s", t->file, t->name, t->off_bytes,
               tn_dtype_name(t->dtype));
    return TERN_OK;
}

/* A tensor for every expert, named by its number. name: that of expert 0. */
static tern_status find_each_expert(tn_source *s, int layer, tn_place *p, const char *name,
                                    const uint64_t dims[3], tern_error *err) {
    const char *zero = strstr(name, ".experts.0.");
    size_t n = (size_t)s->h.n_experts;
    if (!zero) return TERN_OK;
    p->experts = tn_calloc(s->ctx, TN_MEM_OTHER, n, sizeof *p->experts);
    TN_FAIL_IF(!p->experts, err, TERN_E_MEMORY, "no memory for %zu experts", n);
    for (size_t e = 0; e < n; e++) {
        char one[200];
        snprintf(one, sizeof one, "%.*s.experts.%zu.%s", (int)(zero - name), name, e,
                 zero + strlen(".experts.0."));
        p->experts[e] = tn_file_tensor(&s->file, one);
        if (!p->experts[e]) return missing(s, layer, one, err);
        TN_FAIL_IF(p->experts[e]->dtype != p->experts[0]->dtype, err, TERN_E_UNSUPPORTED,
                   "%s: the experts of %s are stored in different types", s->path, one);
        TN_TRY(check_tensor(p->experts[e], dims, false, err));
    }
    p->t = p->experts[0];
    return TERN_OK;
}

static tern_status find_experts(tn_source *s, int layer, tn_role role, const char *name, tern_error *err) {
    tn_place *p = place_of(s, layer, role);
    int64_t rows, cols, x = s->h.n_experts;
    tn_role_shape(&s->h, layer, role, &rows, &cols);
    bool vector = rows == 1, router = role == TN_W_ROUTER || role == TN_W_ROUTER_B;
    uint64_t dims[3] = {(uint64_t)(vector ? cols : rows), (uint64_t)(vector ? 1 : cols), 1};
    if (!router && !vector) dims[0] = (uint64_t)x, dims[1] = (uint64_t)(rows / x), dims[2] = (uint64_t)cols;
    if (!router && vector) dims[0] = (uint64_t)x, dims[1] = (uint64_t)(cols / x);
    p->t = tn_file_tensor(&s->file, name);
    char apart[64]; /* where gate and up are not one tensor */
    snprintf(apart, sizeof apart, "blk.%d.ffn_%s_exps.weight", layer, role == TN_W_UP_EXPS ? "up" : "gate");
    if (!p->t && strstr(name, "gate_up_exps") && (p->t = tn_file_tensor(&s->file, apart))) name = apart;
    char buf[200];
    const bool stacked = !p->t && (p->t = tn_file_stacked(&s->file, role, &name, buf, sizeof buf));
    if (p->t && strstr(name, ".experts.0.")) {
        const uint64_t one[3] = {dims[1], dims[2], 1};
        return find_each_expert(s, layer, p, name, one, err);
    }
    if (!p->t) return tn_arch_required(s->arch, &s->h, role) ? missing(s, layer, name, err) : TERN_OK;
    if (strstr(name, "input_linear") || strstr(name, "gate_up_proj") ||
        strstr(name, "gate_up_exps")) { /* gate, then up */
        p->group_rows = (int64_t)dims[1];
        p->group_stride = 2 * p->group_rows;
        p->row0 = role == TN_W_UP_EXPS ? p->group_rows : 0;
        dims[1] *= 2;
    }
    const bool flat = s->st && s->arch->experts_flat;
    if (!router && s->st && !stacked && (s->arch->experts_turned || (flat && role == TN_W_DOWN_EXPS))) {
        const uint64_t width = dims[1];
        p->columns = (int64_t)width;
        dims[1] = dims[2], dims[2] = width;
    }
    if (!router && flat) dims[0] *= dims[1], dims[1] = dims[2], dims[2] = 1;
    return check_tensor(p->t, dims, vector, err);
}

static tern_status find_place(tn_source *s, int layer, tn_role role, tern_error *err) {
    tn_place *p = place_of(s, layer, role);
    char name[160];
    bool named = s->gguf ? tn_arch_gguf_name(s->arch, &s->h, layer, role, name, sizeof name)
                         : tn_arch_hf_name(s->arch, &s->h, layer, role, name, sizeof name);
    if (!tn_layer_may_have(&s->h, layer, role)) return TERN_OK;
    if (s->st && layer == s->h.n_layers) tn_arch_hf_next(name, sizeof name);
    bool pre_norm = role == TN_W_ATTN_NORM || role == TN_W_ATTN_NORM_B || role == TN_W_FFN_NORM ||
                    role == TN_W_FFN_NORM_B;
    if (!named || (role == TN_W_OUT && s->h.tied) || (role == TN_W_GATE && !s->h.gated) ||
        (pre_norm && s->h.no_pre_norms))
        return TERN_OK;
    if (tn_role_of_experts(role) || role == TN_W_ROUTER || role == TN_W_ROUTER_B)
        return s->h.n_experts ? find_experts(s, layer, role, name, err) : TERN_OK;
    int64_t rows, cols;
    tn_role_shape(&s->h, layer, role, &rows, &cols);
    /* a vector's elements are its rows */
    uint64_t n0 = rows == 1 ? (uint64_t)cols : (uint64_t)rows, n1 = rows == 1 ? 1 : (uint64_t)cols;
    p->turned = role == TN_W_CONV || role == TN_W_DELTA_CONV || tn_role_of_kda_conv(role);
    p->negative_exp = s->st && role == TN_W_DELTA_A;
    p->scale = s->gguf && s->arch->kda_bounded && role == TN_W_DELTA_A ? -1 : s->by[role];
    if (p->turned) n0 = (uint64_t)cols, n1 = (uint64_t)rows;
    if (role == TN_W_EMBD_TYPE) n1 = n0; /* the first row of a few */
    tn_place_find(&s->file, layer, role, name, sizeof name, p, &n0);
    if (!p->t) return tn_arch_required(s->arch, &s->h, role) ? missing(s, layer, name, err) : TERN_OK;
    const tn_tensor *t = p->t;
    TN_FAIL_IF(t->dtype >= TN_N_DTYPES, err, TERN_E_UNSUPPORTED,
               "%s: tensor %s at offset %" PRIu64 " has a storage type tern does not read", t->file, t->name,
               t->off_bytes);
    if (p->crossed) n1 = (uint64_t)s->h.latent.rank;
    bool ok = t->dims[0] == n0 && t->dims[1] == n1 && t->dims[2] == 1 && t->dims[3] == 1;
    if (tn_role_by_head(role) && t->dims[2] != 1) /* head by head */
        ok = t->dims[0] == (uint64_t)s->h.n_heads && t->dims[0] * t->dims[1] == n0 && t->dims[2] == n1 &&
             t->dims[3] == 1;
    if (role == TN_W_EMBD_TYPE)
        ok = t->dims[1] == n1 ? t->dims[2] == 1 && t->dims[3] == 1 : t->dims[0] == n1 && t->dims[1] == 1;
    if (s->gguf && role >= TN_W_ALTUP_IN_1 && role <= TN_W_ALTUP_OUT_3) /* as one more dimension */
        ok = t->dims[0] * t->dims[1] == n0 && t->dims[1] == n1 && t->dims[2] == n1 && t->dims[3] == 1;
    if ((role == TN_W_SHARED_GATE || (!s->gguf && role == TN_W_EXPERTS_BIAS) ||
         (role == TN_W_SCORE && rows == 1)) &&
        t->dims[0] == 1)
        ok = t->dims[1] == n0 && t->dims[2] == 1 && t->dims[3] == 1;
    if (s->gguf && role == TN_W_DELTA_NORM && s->h.delta.mamba) /* group by group */
        ok = t->dims[0] * t->dims[1] == n0 && t->dims[2] == 1 && t->dims[3] == 1;
    const bool kda_vector = s->arch->kda && (role == TN_W_DELTA_A || role == TN_W_DELTA_DT);
    if ((tn_role_of_wkv(role) && rows == 1) ||
        kda_vector) /* head by head, or with more dimensions than one */
        ok = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3] == n0;
    if (!s->gguf && p->turned)
        ok = t->dims[0] == n0 && t->dims[1] == 1 && t->dims[2] == n1 && t->dims[3] == 1;
    if (tn_role_of_kda_conv(role)) /* with dimensions of 1 between them, or in front */
        ok = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3] == n0 * n1 &&
             (t->dims[3] == n1 ||
              (t->dims[3] == 1 && (t->dims[2] == n1 || (t->dims[2] == 1 && t->dims[1] == n1))));
    TN_FAIL_IF(!ok, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " is %" PRIu64 " x %" PRIu64
               ", the hyperparameters want %" PRIu64 " x %" PRIu64,
               t->file, t->name, t->off_bytes, t->dims[0], t->dims[1], n0, n1);
    const bool in_blocks = tn_dtype_block(t->dtype) != 1 && (rows == 1 || p->turned);
    const bool is_packed = t->packed && (p->turned || (rows == 1 && t->packed->rows != 1));
    TN_FAIL_IF(in_blocks || is_packed, err, TERN_E_UNSUPPORTED,
               "%s: vector %s at offset %" PRIu64 " is stored as %s", t->file, t->name, t->off_bytes,
               t->packed ? s->packing : tn_dtype_name(t->dtype));
    bool is_norm = role == TN_W_OUT_NORM || role == TN_W_ATTN_NORM || role == TN_W_FFN_NORM ||
                   role == TN_W_ATTN_POST_NORM || role == TN_W_FFN_POST_NORM || role == TN_W_Q_NORM ||
                   role == TN_W_K_NORM || (tn_role_of_next(role) && rows == 1);
    p->plus_one = s->st && s->arch->norm_plus_one && is_norm;
    return s->ternary && tn_ternary_role(role) ? tn_ternary_scale(p, rows, cols, err) : TERN_OK;
}

/* Of a layer that guesses one token further: which, from 0; -1: of another. */
static int number_of_next(const tn_source *s, const char *name) {
    int layer, first = s->gguf ? s->h.n_layers : 0;
    if (!s->h.n_next) return -1;
    if (sscanf(name, s->gguf ? "blk.%d." : "mtp.layers.%d.", &layer) == 1)
        return layer >= first && layer < first + TN_MAX_NEXT ? layer - first : -1;
    return !s->gguf && !strncmp(name, "mtp.", 4) ? 0 : -1;
}

/* What follows "model.layers." or what stands for it; NULL: the tensor is of no layer. */
static const char *after_layers(const tn_source *s, const char *name) {
    const char *const begins[] = {s->gguf ? "blk." : tn_arch_hf_layers(s->arch),
                                  "model.language_model.layers.", "model.text_model.layers.",
                                  "language_model.model.layers.", "llm.model.layers."},
                      *const before = s->gguf ? NULL : s->arch->hf_before[0];
    const size_t n_before = before ? strlen(before) : 0;
    /* a model with something after it, or without what others have in front of layers */
    if (before && !strncmp(name, before, n_before) && name[n_before] == '.' &&
        strncmp(begins[0], before, n_before))
        name += n_before + 1;
    if (before && !strncmp(begins[0], before, n_before) &&
        !strncmp(name, begins[0] + n_before + 1, strlen(begins[0] + n_before + 1)))
        return name + strlen(begins[0] + n_before + 1);
    for (size_t i = 0; i < (s->gguf ? 1 : sizeof begins / sizeof *begins); i++)
        if (!strncmp(name, begins[i], strlen(begins[i]))) return name + strlen(begins[i]);
    return NULL;
}

/* Names of tensors that some role must take. */
static bool is_of_layer(const tn_source *s, const char *name) {
    if (s->arch->head) return tn_head_tensor_wanted(&s->file, name);
    if (s->gguf) return !strncmp(name, "blk.", 4);
    return after_layers(s, name) || (s->h.n_next && !strncmp(name, "mtp.", 4));
}

/* Some folders hold layers that guess further as layers after the others, and so do GGUF files, whose keys count them. */
static bool is_after_layers(const tn_source *s, const char *name) {
    const char *layers = s->gguf ? "blk." : tn_arch_hf_layers(s->arch);
    const bool may = s->gguf ? *s->without_next && !s->h.n_next : s->arch->next_by_number;
    int layer;
    return may && !strncmp(name, layers, strlen(layers)) &&
           sscanf(name + strlen(layers), "%d.", &layer) == 1 && layer >= s->h.n_layers;
}

/* Keys and values of layers that share those of another: some files have them, and nobody reads them. */
static bool of_sharing_layer(const tn_source *s, const char *number) {
    static const char *const unread[] = {"attn_k.weight",           "attn_v.weight",
                                         "attn_k_norm.weight",      "self_attn.k_proj.weight",
                                         "self_attn.v_proj.weight", "self_attn.k_norm.weight"};
    int layer, n = 0;
    if (sscanf(number, "%d.%n", &layer, &n) != 1 || layer < s->h.n_layers - s->h.n_kv_shared ||
        layer >= s->h.n_layers)
        return false;
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++)
        if (!strcmp(number + n, unread[i])) return true;
    return false;
}

/* What makes a share of the first layer's values, in that layer itself: some files have it, and nobody reads it. */
static bool of_first_values(const tn_source *s, const char *name) {
    const char *begins = s->gguf ? "blk.0.time_mix_v" : "model.layers.0.attn.v_lora.";
    const size_t n = strlen(begins);
    return s->arch->wkv && !strncmp(name, begins, n) && (!s->gguf || strspn(name + n, "012") == 1);
}

/* Of an adapter for one kind of task, which Jina's third model has beside its weights: without a task none is used. */
static bool of_task(const tn_source *s, const char *name) {
    return s->st && s->arch->tasks && strstr(name, ".parametrizations.weight.0.lora_");
}

/* A tensor of a layer that no role takes would be left out of what is computed: it is refused. */
static tern_status check_all_taken(tn_source *s, tern_error *err) {
    for (size_t i = 0; i < tn_source_n_tensors(s); i++) {
        const tn_tensor *t = tn_source_tensor_at(s, i);
        bool taken =
            !is_of_layer(s, t->name) || strstr(t->name, "rotary_emb.inv_freq") ||
            strstr(t->name, "attn_rot_embd") || of_first_values(s, t->name) || of_task(s, t->name) ||
            number_of_next(s, t->name) > 0 || /* not used */
            (!s->arch->head && strncmp(t->name, "mtp.", 4) && of_sharing_layer(s, after_layers(s, t->name)));
        for (size_t k = 0; k < n_places(s) && !taken; k++) {
            const tn_place *p = &s->places[k];
            taken = p->t == t;
            for (int32_t e = 0; p->experts && e < s->h.n_experts && !taken; e++) taken = p->experts[e] == t;
        }
        if (!taken && number_of_next(s, t->name) == 0) {
            leave_next(s, "has an unknown tensor", t->name);
            taken = true;
        }
        if (!taken && is_after_layers(s, t->name)) {
            leave_next(s, "is not read from folders: it has tensor", t->name);
            taken = true;
        }
        TN_FAIL_IF(!taken, err, TERN_E_UNSUPPORTED, "%s: tensor %s is none that architecture %s has", t->file,
                   t->name, s->arch->name);
    }
    return TERN_OK;
}

/* Leaves out the layer that guesses further where it is not whole. A layer of the model that the file's keys take for one
 * is an error: without it the model would be another. */
static tern_status drop_next(tn_source *s, tern_error *err) {
    if (!*s->without_next || !s->h.n_next) return TERN_OK;
    bool any = s->st;
    for (tn_role r = 0; r < TN_W_N_ROLES; r++) {
        tn_place *p = place_of(s, s->h.n_layers, r);
        any |= tn_role_of_next(r) && p->t;
        tn_free(s->ctx, p->experts);
        *p = (tn_place){0};
    }
    TN_FAIL_IF(!any, err, TERN_E_FORMAT,
               "%s: layer %d has no tensor of one that guesses one token further, which its keys take it for",
               s->path, s->h.n_layers);
    s->h.n_next = 0;
    return TERN_OK;
}

double tn_source_bits(const tn_source *s) {
    double bits = 0, values = 0;
    for (int layer = 0; layer < s->h.n_layers; layer++) {
        for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
            const tn_tensor *t = tn_source_tensor(s, layer, role);
            if (!t || (tn_dtype_block(t->dtype) == 1 && !t->packed)) continue;
            values += (double)tn_tensor_values(t);
            bits += 8.0 * (double)t->size_bytes;
        }
    }
    return values > 0 ? bits / values : 0;
}

static void describe(tn_source *s) {
    int32_t last = s->h.n_layers - 1;
    while (last > 0 && !tn_layer_feeds(&s->h, last)) last--;
    const tn_tensor *t = place_of(s, last, s->h.n_experts ? TN_W_DOWN_EXPS : TN_W_DOWN)->t;
    if (!t) t = place_of(s, -1, TN_W_EMBD)->t; /* no layer feeds forward */
    if (s->gguf)
        snprintf(s->description, sizeof s->description, "GGUF v%u, %s", tn_gguf_version(s->gguf),
                 tn_dtype_name(t->dtype));
    else
        snprintf(s->description, sizeof s->description, "safetensors, %s",
                 *s->packing ? s->packing : tn_dtype_name(t->dtype));
}

tern_status tn_source_head_ids(const tn_source *s, int32_t *ids, tern_error *err) {
    return tn_head_ids(&s->file, s->path, ids, err);
}

/* The file is of a head where one is wanted, and of a model where that is. */
static tern_status check_kind(const char *path, bool is_head, bool head, tern_error *err) {
    TN_FAIL_IF(is_head && !head, err, TERN_E_UNSUPPORTED,
               "%s: a head that drafts for a model (EAGLE-3, DFlash, or Gemma 4's assistant), which is no "
               "model by itself: open its model with the option draft-head",
               path);
    TN_FAIL_IF(!is_head && head, err, TERN_E_INVALID,
               "%s: no head that drafts for a model (EAGLE-3, DFlash, or Gemma 4's assistant)", path);
    return TERN_OK;
}

static tern_status open_gguf(tn_source *s, const char *path, bool head, tern_error *err) {
    TN_TRY(tn_gguf_open(s->ctx, path, &s->gguf, err));
    const char *name;
    size_t n;
    TN_FAIL_IF(tn_gguf_str(s->gguf, "general.type", &name, &n) && n == 7 && !memcmp(name, "adapter", n), err,
               TERN_E_INVALID, "%s: an adapter, not a model: open its model with the option lora", path);
    TN_FAIL_IF(!tn_gguf_str(s->gguf, "general.architecture", &name, &n), err, TERN_E_FORMAT,
               "%s: metadata key 'general.architecture' is missing", path);
    const tn_arch *of_head = tn_arch_of_head_gguf(name, n);
    TN_TRY(check_kind(path, of_head, head, err));
    s->arch = of_head ? of_head : tn_arch_by_gguf(name, n);
    char list[320];
    tn_arch_list(list, sizeof list);
    TN_FAIL_IF(
        n == 4 && !memcmp(name, "clip", 4), err, TERN_E_UNSUPPORTED,
        "%s: the part of a model that reads images or sound (mmproj), which is no model by itself: give the "
        "language model's file",
        path);
    TN_FAIL_IF(!s->arch, err, TERN_E_UNSUPPORTED, "%s: architecture '%.*s' is not supported; there are %s",
               path, (int)(n < 40 ? n : 40), name, list);
    TN_FAIL_IF(!tn_gguf_n_tensors(s->gguf), err, TERN_E_FORMAT,
               "%s: a vocabulary without weights (tern tokenize reads it)", path);
    char key[64];
    int64_t n_experts = 0;
    snprintf(key, sizeof key, "%s.expert_count", s->arch->gguf);
    if (!of_head) s->arch = tn_arch_variant(s->arch, tn_gguf_i64(s->gguf, key, &n_experts) && n_experts > 0);
    TN_TRY(tn_arch_hparams_gguf(s->arch, s->gguf, &s->h, err));
    s->file = (tn_model_file){.arch = s->arch, .h = &s->h, .gguf = s->gguf};
    snprintf(key, sizeof key, "blk.%d.nextn.eh_proj.weight", s->h.n_layers);
    if (!s->h.n_next && tn_gguf_tensor(s->gguf, key))
        leave_next(s, "is not supported for architecture", s->arch->name);
    return head ? tn_head_tensors(&s->file, s->path, &s->h, err) : TERN_OK;
}

static bool has_next(const tn_safetensors *st) {
    for (size_t i = 0; i < tn_safetensors_n_tensors(st); i++)
        if (!strncmp(tn_safetensors_tensor_at(st, i)->name, "mtp.", 4)) return true;
    return false;
}

/* Where one name stands for models with experts and without. */
static bool has_experts(const json_t *config) {
    const json_t *text = json_object_get(config, "text_config");
    return json_integer_value(json_object_get(config, "num_local_experts")) > 0 ||
           tn_arch_single_routes(config) ||
           json_is_true(json_object_get(json_is_object(text) ? text : config, "enable_moe_block"));
}

/* The configuration of a model. */
static tern_status read_config(tn_source *s, const json_t *config, const char *file, tern_error *err) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    TN_FAIL_IF(!type, err, TERN_E_FORMAT, "%s: 'model_type' is missing", file);
    s->arch = tn_arch_of_config(config);
    char list[320];
    tn_arch_list(list, sizeof list);
    TN_FAIL_IF(!s->arch, err, TERN_E_UNSUPPORTED, "%s: model type '%.40s' is not supported; there are %s",
               file, type, list);
    s->arch = tn_arch_variant(s->arch, has_experts(config));
    TN_TRY(tn_arch_hparams_hf(s->arch, config, file, &s->h, err));
    TN_TRY(tn_arch_multipliers_hf(s->arch, config, file, s->by, err));
    return tn_arch_ternary_hf(s->arch, config, file, &s->ternary, err);
}

/* The same of a head. */
static tern_status read_head(tn_source *s, const json_t *config, const char *file, tern_error *err) {
    s->arch = tn_arch_of_head_hf(config);
    return tn_arch_head_hf(s->arch, config, file, &s->h, err);
}

static tern_status open_folder(tn_source *s, const char *path, bool head, tern_error *err) {
    char file[4096];
    TN_FAIL_IF((size_t)snprintf(file, sizeof file, "%s/config.json", path) >= sizeof file, err,
               TERN_E_INVALID, "%s: path too long", path);
    json_t *config = NULL, *whole;
    TN_FAIL_IF(!tn_folder_has(path, "config.json") && tn_folder_has(path, "adapter_config.json"), err,
               TERN_E_INVALID, "%s: an adapter, not a model: open its model with the option lora", path);
    if (!tn_folder_has(path, "config.json")) return tn_catalogue_refuse(path, err);
    TN_TRY(tn_json_read(file, 0, &whole, err));
    tn_packing_plan plan;
    tern_status st = tn_wrapped_config(whole, file, &config, err);
    if (st == TERN_OK) st = tn_renamed_config(&config, file, err);
    if (st == TERN_OK) st = check_kind(path, tn_arch_of_head_hf(config), head, err);
    if (st == TERN_OK) st = (head ? read_head : read_config)(s, config, file, err);
    if (st == TERN_OK)
        st = tn_packing_hf(tn_packing_told(config) ? config : whole, s->ternary, file, &plan, err);
    if (st == TERN_OK) st = tn_safetensors_open(s->ctx, path, &s->st, err);
    if (st == TERN_OK) st = tn_packing_apply(s->ctx, &plan, file, s->st, s->packing, sizeof s->packing, err);
    json_decref(whole); /* the plan is of it */
    if (st == TERN_OK && !head) {
        s->arch = tn_folder_arch(s->arch, s->st);
        snprintf(s->h.arch, sizeof s->h.arch, "%s", s->arch->name);
    }
    if (st == TERN_OK) st = tn_arch_next(s->arch, file, s->h.n_next, has_next(s->st), &s->h, err);
    if (st == TERN_OK && !s->h.n_next && has_next(s->st))
        leave_next(s, "is not supported for architecture", s->arch->name);
    s->file = (tn_model_file){.arch = s->arch, .h = &s->h, .st = s->st};
    if (st == TERN_OK && head) st = tn_head_tensors(&s->file, s->path, &s->h, err);
    if (st == TERN_OK && !head) st = tn_folder_text(s->ctx, path, &s->file, &s->h, err);
    /* configs leave the flag out where the family's default ties: then the weights tell */
    if (st == TERN_OK && !head && !json_object_get(config, "tie_word_embeddings") &&
        !tn_file_tensor(&s->file, "lm_head.weight"))
        s->h.tied = true;
    json_decref(config);
    TN_TRY(st);
    return tn_folder_tokenizer(s->ctx, path, &s->file, &s->h, &s->tokenizer, err);
}

/* Zeros that stand for bytes that are gone are no weights, and bytes of two files are no model. */
static tern_status check_whole(const tn_source *s, tern_error *err) {
    bool changed = s->gguf ? tn_gguf_changed(s->gguf) : s->st && tn_safetensors_changed(s->st);
    for (int i = 0; i < 2; i++)
        changed = changed || (s->file.dense[i] && tn_safetensors_changed(s->file.dense[i]));
    TN_FAIL_IF(changed, err, TERN_E_IO, "%s: was written to while it was read", s->path);
    return TERN_OK;
}

/* st, unless a file changed, which explains whatever else went wrong. */
static tern_status unless_changed(const tn_source *s, tern_status st, tern_error *err) {
    const tern_status whole = check_whole(s, err);
    return whole == TERN_OK ? st : whole;
}

tern_status tn_source_read_text(tn_source *s, tern_error *err) {
    if (s->gguf && !s->tokenizer)
        TN_TRY(unless_changed(s, tn_gguf_tokenizer(s->ctx, s->gguf, &s->tokenizer, err), err));
    TN_FAIL_IF(s->tokenizer && tn_tokenizer_n_vocab(s->tokenizer) > (size_t)s->h.n_vocab, err, TERN_E_FORMAT,
               "%s: the tokenizer has %zu tokens, the embedding %d", s->path,
               tn_tokenizer_n_vocab(s->tokenizer), s->h.n_vocab);
    return TERN_OK;
}

static tern_status open_source(tn_ctx *ctx, const char *path, bool head, bool text, tn_source **out,
                               tern_error *err) {
    *out = NULL;
    tn_source *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory to open %s", path);
    s->ctx = ctx;
    snprintf(s->path, sizeof s->path, "%s", path);
    struct stat sb;
    bool is_folder = !stat(path, &sb) && S_ISDIR(sb.st_mode);
    uint64_t before = is_folder ? tn_folder_identity(path) : 0;
    tern_status st = is_folder ? open_folder(s, path, head, err) : open_gguf(s, path, head, err);
    if (is_folder && st == TERN_OK && tn_folder_identity(path) != before)
        st = tn_fail(err, TERN_E_IO, "%s: its files were replaced while they were opened; try again", path);
    if (s->gguf || s->st) st = unless_changed(s, st, err);
    if (st == TERN_OK) {
        s->places = tn_calloc(ctx, TN_MEM_OTHER, n_places(s), sizeof *s->places);
        if (!s->places) st = tn_fail(err, TERN_E_MEMORY, "no memory for %d layers", s->h.n_layers);
    }
    for (int layer = -1; st == TERN_OK && layer < s->h.n_layers + s->h.n_next; layer++) {
        for (int r = 0; st == TERN_OK && r < TN_W_N_ROLES; r++)
            if (tn_role_of_model((tn_role)r) == (layer < 0)) st = find_place(s, layer, (tn_role)r, err);
    }
    if (st == TERN_OK) st = check_all_taken(s, err);
    if (st == TERN_OK) st = drop_next(s, err);
    if (st == TERN_OK && text) st = tn_source_read_text(s, err);
    if (st == TERN_OK) describe(s), *out = s;
    else tn_source_close(&s);
    return st;
}

tern_status tn_source_open(tn_ctx *ctx, const char *path, tn_source **out, tern_error *err) {
    return open_source(ctx, path, false, true, out, err);
}
tern_status tn_source_open_weights(tn_ctx *ctx, const char *path, tn_source **out, tern_error *err) {
    return open_source(ctx, path, false, false, out, err);
}
tern_status tn_source_open_head(tn_ctx *ctx, const char *path, tn_source **out, tern_error *err) {
    return open_source(ctx, path, true, true, out, err);
}

void tn_source_close(tn_source **ps) {
    tn_source *s = *ps;
    if (!s) return;
    *ps = NULL;
    tn_tokenizer_close(&s->tokenizer);
    tn_gguf_close(&s->gguf);
    tn_safetensors_close(&s->st);
    for (int i = 0; i < 2; i++) tn_safetensors_close(&s->file.dense[i]);
    for (size_t k = 0; s->places && k < n_places(s); k++) tn_free(s->ctx, s->places[k].experts);
    tn_free(s->ctx, s->places);
    tn_free(s->ctx, s);
}

const tn_hparams *tn_source_hparams(const tn_source *s) { return &s->h; }
const tn_tokenizer *tn_source_tokenizer(const tn_source *s) { return s->tokenizer; }
size_t tn_source_n_tensors(const tn_source *s) {
    return s->gguf ? tn_gguf_n_tensors(s->gguf) : tn_safetensors_n_tensors(s->st);
}

const tn_tensor *tn_source_tensor_at(const tn_source *s, size_t i) {
    return s->gguf ? tn_gguf_tensor_at(s->gguf, i) : tn_safetensors_tensor_at(s->st, i);
}

const tn_file *tn_source_file(const tn_source *s) { return s->gguf ? tn_gguf_file(s->gguf) : NULL; }
const char *tn_source_without_next(const tn_source *s) { return *s->without_next ? s->without_next : NULL; }
const char *tn_source_description(const tn_source *s) { return s->description; }
bool tn_source_has(const tn_source *s, int layer, tn_role role) {
    return place_of(s, layer, role)->t != NULL;
}

tn_tokenizer *tn_source_take_tokenizer(tn_source *s) {
    tn_tokenizer *t = s->tokenizer;
    s->tokenizer = NULL;
    return t;
}

tn_panel_dtype tn_source_panel_dtype(const tn_source *s, int layer, tn_role role) {
    const tn_place *p = place_of(s, layer, role);
    if (!p->t || p->scale != 0) return TN_PANEL_F32; /* products are not rounded again */
    return p->t->dtype == TN_F16 ? TN_PANEL_F16 : p->t->dtype == TN_BF16 ? TN_PANEL_BF16 : TN_PANEL_F32;
}

static tern_status check_finite(const tn_place *p, const float *v, int64_t n, int64_t first,
                                tern_error *err) {
    if (tn_all_finite(v, (size_t)n)) return TERN_OK;
    for (int64_t i = 0; i < n; i++)
        TN_FAIL_IF(!isfinite(v[i]), err, TERN_E_FORMAT,
                   "%s: tensor %s at offset %" PRIu64 " holds %s at element %lld", p->t->file, p->t->name,
                   p->t->off_bytes, isnan(v[i]) ? "NaN" : "an infinity", (long long)(first + i));
    return TERN_OK;
}

bool tn_source_crossed(const tn_source *s, int layer, tn_role role) {
    return place_of(s, layer, role)->crossed;
}

/* Rows of a tensor that the file has as columns: those of a head are read whole for as many as are wanted of it. */
static tern_status read_crossed(const tn_source *s, const tn_place *p, const uint8_t *tensor, int64_t row0,
                                int64_t row1, float *dst, tern_error *err) {
    float column[1024];
    const int64_t rank = s->h.latent.rank, n = p->group_rows;
    const uint64_t row_bytes = tn_dtype_row_bytes(p->t->dtype, (uint64_t)rank);
    for (int64_t head = row0 / rank; head * rank < row1; head++) {
        const int64_t first = row0 > head * rank ? row0 - head * rank : 0,
                      end = row1 < (head + 1) * rank ? row1 - head * rank : rank;
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = head * p->group_stride + p->row0 + i;
            if (p->t->packed) tn_packed_row(p->t->packed, (uint64_t)at, column);
            else tn_dequantise(p->t->dtype, tensor + (uint64_t)at * row_bytes, column, (uint64_t)rank);
            TN_TRY(check_finite(p, column, rank, at * rank, err));
            for (int64_t r = first; r < end; r++) dst[(head * rank + r - row0) * n + i] = column[r];
        }
    }
    return check_whole(s, err);
}

/* Rows of experts that the file has as columns: those of one expert together, as many as are wanted of it. */
static tern_status read_columns(const tn_source *s, const tn_place *p, const uint8_t *tensor, int64_t cols,
                                int64_t each, int64_t row0, int64_t row1, float *dst, tern_error *err) {
    const uint64_t size = (uint64_t)tn_dtype_block_bytes(p->t->dtype);
    float some[256];
    for (int64_t r = row0, n; r < row1; r += n) {
        const int64_t e = r / each, left = (e + 1) * each - r;
        n = row1 - r < left ? row1 - r : left;
        if (n > 256) n = 256;
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = (e * cols + c) * p->columns + p->row0 + r % each;
            tn_dequantise(p->t->dtype, tensor + (uint64_t)at * size, some, (uint64_t)n);
            TN_TRY(check_finite(p, some, n, at, err));
            for (int64_t i = 0; i < n; i++) dst[(r - row0 + i) * cols + c] = some[i];
        }
    }
    return check_whole(s, err);
}

/* The tensor that holds a row of a role, and the row's number in it. */
static const tn_tensor *tensor_of_row(const tn_source *s, int layer, tn_role role, int64_t *row) {
    const tn_place *p = place_of(s, layer, role);
    int64_t rows, cols;
    tn_role_shape(&s->h, layer, role, &rows, &cols);
    if (!p->experts) {
        *row = tn_place_row(&s->file, p, *row);
        return p->t;
    }
    const int64_t each = rows / s->h.n_experts;
    const tn_tensor *t = p->experts[*row / each];
    *row %= each;
    return t;
}

tern_status tn_source_read_from(const tn_source *s, int layer, tn_role role, const uint8_t *tensor,
                                int64_t row0, int64_t row1, float *dst, tern_error *err) {
    const tn_place *p = place_of(s, layer, role);
    int64_t rows, cols;
    tn_role_shape(&s->h, layer, role, &rows, &cols);
    TN_FAIL_IF(row0 < 0 || row1 > rows || row0 > row1, err, TERN_E_INVALID, "rows %lld to %lld of %lld",
               (long long)row0, (long long)row1, (long long)rows);
    if (row0 == row1) return TERN_OK;
    tn_dtype d = p->t->dtype;
    if (p->crossed) return read_crossed(s, p, tensor, row0, row1, dst, err);
    if (p->columns) return read_columns(s, p, tensor, cols, rows / s->h.n_experts, row0, row1, dst, err);
    if (p->turned) {
        for (int64_t c = 0; c < cols; c++) {
            float taps[TN_MAX_CONV];
            int64_t at = tn_place_row(&s->file, p, c) * rows;
            tn_dequantise(d, tensor + (uint64_t)at * (uint64_t)tn_dtype_block_bytes(d), taps, (uint64_t)rows);
            TN_TRY(check_finite(p, taps, rows, at, err));
            for (int64_t k = row0; k < row1; k++) dst[(k - row0) * cols + c] = taps[k];
        }
        return check_whole(s, err);
    }
    if (rows == 1) { /* a vector; elements are its rows when it is part of a fused one or permuted */
        if (p->t->packed) tn_packed_row(p->t->packed, 0, dst);
        else
            for (int64_t i = 0; i < cols; i++)
                tn_dequantise(
                    d, tensor + (uint64_t)tn_place_row(&s->file, p, i) * (uint64_t)tn_dtype_block_bytes(d),
                    dst + i, 1);
        TN_TRY(check_whole(s, err));
        TN_TRY(check_finite(p, dst, cols, 0, err));
        for (int64_t i = 0; p->plus_one && i < cols; i++) dst[i] += 1.0f;
        for (int64_t i = 0; p->negative_exp && i < cols; i++) dst[i] = -expf(dst[i]);
        for (int64_t i = 0; p->scale != 0 && i < cols; i++) dst[i] *= p->scale;
        return TERN_OK;
    }
    for (int64_t r = row0; r < row1; r++) {
        float *out = dst + (r - row0) * cols;
        int64_t at = r;
        const tn_tensor *t = tensor_of_row(s, layer, role, &at);
        const uint64_t at_bytes = (uint64_t)at * tn_dtype_row_bytes(d, (uint64_t)cols);
        if (t->packed) tn_packed_row(t->packed, (uint64_t)at, out);
        else tn_dequantise(d, (p->experts ? t->data : tensor) + at_bytes, out, (uint64_t)cols);
        for (int64_t c = 0; p->scale != 0 && c < cols; c++) out[c] *= p->scale;
        if (p->ternary > 0) tn_ternary_row(p, out, cols);
        TN_TRY(check_whole(s, err));
        TN_TRY(check_finite(p, out, cols, tn_place_row(&s->file, p, r) * cols, err));
    }
    return TERN_OK;
}

tern_status tn_source_read(const tn_source *s, int layer, tn_role role, int64_t row0, int64_t row1,
                           float *dst, tern_error *err) {
    const tn_place *p = place_of(s, layer, role);
    TN_FAIL_IF(!p->t, err, TERN_E_INVALID, "%s of layer %d is not in the file", tn_role_name(role), layer);
    return tn_source_read_from(s, layer, role, p->t->data, row0, row1, dst, err);
}

bool tn_source_has_halves(const tn_source *s, int layer, tn_role role) {
    const tn_place *p = place_of(s, layer, role);
    int64_t rows, cols;
    tn_role_shape(&s->h, layer, role, &rows, &cols);
    return p->t && rows > 1 && !p->turned && !p->crossed && !p->columns && p->scale == 0 && p->ternary == 0 &&
           (p->t->dtype == TN_F16 || p->t->dtype == TN_BF16);
}

/* Whether the exponents of n halves are those of finite values. */
static bool all_finite(const uint16_t *h, int64_t n, uint16_t exponent) {
    int64_t i = 0;
    uint32_t any = 0;
    for (; i + 32 <= n; i += 32) {
        uint16_t some = 0;
        for (int l = 0; l < 32; l++) some |= (h[i + l] & exponent) == exponent;
        any |= some;
    }
    for (; i < n; i++) any |= (h[i] & exponent) == exponent;
    return !any;
}

tern_status tn_source_read_halves(const tn_source *s, int layer, tn_role role, int64_t row0, int64_t row1,
                                  uint16_t *dst, tern_error *err) {
    const tn_place *p = place_of(s, layer, role);
    int64_t rows, cols;
    tn_role_shape(&s->h, layer, role, &rows, &cols);
    const uint16_t exponent = p->t->dtype == TN_F16 ? 0x7c00 : 0x7f80;
    assert(tn_source_has_halves(s, layer, role) && row0 >= 0 && row1 <= rows);
    for (int64_t r = row0; r < row1; r++) {
        uint16_t *out = dst + (r - row0) * cols;
        memcpy(out, tn_source_row(s, layer, role, r), (size_t)cols * sizeof *out);
        TN_TRY(check_whole(s, err));
        if (all_finite(out, cols, exponent)) continue;
        for (int64_t i = 0; i < cols; i++) {
            float v;
            tn_dequantise(p->t->dtype, (const uint8_t *)(out + i), &v, 1);
            TN_TRY(check_finite(p, &v, 1, tn_place_row(&s->file, p, r) * cols + i, err));
        }
    }
    return TERN_OK;
}

const tn_tensor *tn_source_tensor(const tn_source *s, int layer, tn_role role) {
    return place_of(s, layer, role)->t;
}

const uint8_t *tn_source_row(const tn_source *s, int layer, tn_role role, int64_t row) {
    int64_t rows, cols;
    tn_role_shape(&s->h, layer, role, &rows, &cols);
    const tn_tensor *t = tensor_of_row(s, layer, role, &row);
    assert(!t->packed);
    return t->data + (uint64_t)row * tn_dtype_row_bytes(t->dtype, (uint64_t)cols);
}

const tn_packed *tn_source_packed_row(const tn_source *s, int layer, tn_role role, int64_t *row) {
    const tn_place *p = place_of(s, layer, role);
    if (!p->t || p->turned || p->crossed || p->columns || p->scale != 0 || p->ternary > 0) return NULL;
    return tensor_of_row(s, layer, role, row)->packed;
}

bool tn_source_rows_in_order(const tn_source *s, int layer, tn_role role) {
    const tn_place *p = place_of(s, layer, role);
    return !p->t->packed && !p->experts && !p->parts[0] && !p->group_rows && !p->permuted_heads;
}

static void release(const tn_tensor *t) {
    tn_file_release(t->data, t->packed ? t->packed->q.size_bytes : t->size_bytes);
}

void tn_source_release(const tn_source *s, int layer) {
    for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
        const tn_tensor *t = tn_source_has(s, layer, role) ? place_of(s, layer, role)->t : NULL;
        if (t) release(t);
        const tn_tensor **experts = t ? place_of(s, layer, role)->experts : NULL;
        for (int32_t e = 1; experts && e < s->h.n_experts; e++) release(experts[e]);
    }
}
