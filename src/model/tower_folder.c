/* The encoder in a Hugging Face folder: its tensors by the names that an mmproj file has for them, most of them where
 * they lie. Those that such a file has in another order are copied. */
#include "model/tower_folder.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What becomes of a tensor on its way. */
typedef enum turn {
    AS_IS,
    PARTS,    /* queries, keys and values are three tensors */
    FILM,     /* two moments of a kernel are two */
    COLOURS,  /* patches are [y][x][colour], and become [colour][y][x] */
    PLUS_ONE, /* the weight is meant to be one more */
    TURNED    /* a row for every input becomes one for every output */
} turn;

/* # is a number, and * the letter of one of PARTS. What is left of a name after that of a module must be one of
 * `ends`. */
typedef struct name_row {
    const char *hf, *gguf;
    turn how;
} name_row;

static const char *const ends[] = {".weight",    ".bias",       "",           ".input_min",
                                   ".input_max", ".output_min", ".output_max"};

#define SIGLIP_LAYER(hf, gguf)                                                                               \
    { "encoder.layers.#." hf, "v.blk.#." gguf, AS_IS }
#define SIGLIP                                                                                               \
    SIGLIP_LAYER("self_attn.q_proj", "attn_q"), SIGLIP_LAYER("self_attn.k_proj", "attn_k"),                  \
        SIGLIP_LAYER("self_attn.v_proj", "attn_v"), SIGLIP_LAYER("self_attn.out_proj", "attn_out"),          \
        SIGLIP_LAYER("layer_norm1", "ln1"), SIGLIP_LAYER("layer_norm2", "ln2"),                              \
        SIGLIP_LAYER("mlp.fc1", "ffn_up"), SIGLIP_LAYER("mlp.fc2", "ffn_down"),                              \
        {"embeddings.position_embedding", "v.position_embd", AS_IS}, {                                       \
        "post_layernorm", "v.post_ln", AS_IS                                                                 \
    }
#define BLOCK(hf, gguf)                                                                                      \
    { "blocks.#." hf, "v.blk.#." gguf, AS_IS }
#define INTERN(hf, gguf)                                                                                     \
    { "encoder.layer.#." hf, "v.blk.#." gguf, AS_IS }
#define CHAT(hf, gguf)                                                                                       \
    { "encoder.layers.#." hf, "v.blk.#." gguf, AS_IS }

static const name_row idefics3_rows[] = {SIGLIP,
                                         {"embeddings.patch_embedding", "v.patch_embd", AS_IS},
                                         {"modality_projection.proj", "mm.model.fc", AS_IS},
                                         {NULL, NULL, AS_IS}};
static const name_row gemma3_rows[] = {SIGLIP,
                                       {"embeddings.patch_embedding", "v.patch_embd", AS_IS},
                                       {"mm_input_projection_weight", "mm.input_projection.weight", AS_IS},
                                       {"mm_soft_emb_norm", "mm.soft_emb_norm", PLUS_ONE},
                                       {NULL, NULL, AS_IS}};
static const name_row lfm2_rows[] = {SIGLIP,
                                     {"embeddings.patch_embedding.weight", "v.patch_embd.weight", COLOURS},
                                     {"embeddings.patch_embedding.bias", "v.patch_embd.bias", AS_IS},
                                     {"layer_norm", "mm.input_norm", AS_IS},
                                     {"linear_1", "mm.1", AS_IS},
                                     {"linear_2", "mm.2", AS_IS},
                                     {NULL, NULL, AS_IS}};
static const name_row qwen25vl_rows[] = {BLOCK("norm1", "ln1"),
                                         BLOCK("norm2", "ln2"),
                                         {"blocks.#.attn.qkv", "v.blk.#.attn_*", PARTS},
                                         BLOCK("attn.proj", "attn_out"),
                                         BLOCK("mlp.gate_proj", "ffn_gate"),
                                         BLOCK("mlp.up_proj", "ffn_up"),
                                         BLOCK("mlp.down_proj", "ffn_down"),
                                         {"patch_embed.proj.weight", "v.patch_embd.weight", FILM},
                                         {"merger.ln_q", "v.post_ln", AS_IS},
                                         {"merger.mlp.0", "mm.0", AS_IS},
                                         {"merger.mlp.2", "mm.2", AS_IS},
                                         {NULL, NULL, AS_IS}};
static const name_row qwen3vl_rows[] = {BLOCK("norm1", "ln1"),
                                        BLOCK("norm2", "ln2"),
                                        BLOCK("attn.qkv", "attn_qkv"),
                                        BLOCK("attn.proj", "attn_out"),
                                        BLOCK("mlp.linear_fc1", "ffn_up"),
                                        BLOCK("mlp.linear_fc2", "ffn_down"),
                                        {"patch_embed.proj.weight", "v.patch_embd.weight", FILM},
                                        {"patch_embed.proj.bias", "v.patch_embd.bias", AS_IS},
                                        {"pos_embed", "v.position_embd", AS_IS},
                                        {"merger.norm", "v.post_ln", AS_IS},
                                        {"merger.linear_fc1", "mm.0", AS_IS},
                                        {"merger.linear_fc2", "mm.2", AS_IS},
                                        {"deepstack_merger_list.#.norm", "v.deepstack.#.norm", AS_IS},
                                        {"deepstack_merger_list.#.linear_fc1", "v.deepstack.#.fc1", AS_IS},
                                        {"deepstack_merger_list.#.linear_fc2", "v.deepstack.#.fc2", AS_IS},
                                        {NULL, NULL, AS_IS}};
/* transformers' own form, and the one that InternVL was published in. */
static const name_row internvl_rows[] = {INTERN("layernorm_before", "ln1"),
                                         INTERN("layernorm_after", "ln2"),
                                         INTERN("attention.q_proj", "attn_q"),
                                         INTERN("attention.k_proj", "attn_k"),
                                         INTERN("attention.v_proj", "attn_v"),
                                         INTERN("attention.projection_layer", "attn_out"),
                                         INTERN("mlp.fc1", "ffn_up"),
                                         INTERN("mlp.fc2", "ffn_down"),
                                         INTERN("lambda_1", "ls1.weight"),
                                         INTERN("lambda_2", "ls2.weight"),
                                         {"embeddings.cls_token", "v.class_embd", AS_IS},
                                         {"embeddings.position_embeddings", "v.position_embd.weight", AS_IS},
                                         {"embeddings.patch_embeddings.projection", "v.patch_embd", AS_IS},
                                         {"layer_norm", "mm.model.mlp.0", AS_IS},
                                         {"linear_1", "mm.model.mlp.1", AS_IS},
                                         {"linear_2", "mm.model.mlp.3", AS_IS},
                                         CHAT("norm1", "ln1"),
                                         CHAT("norm2", "ln2"),
                                         {"encoder.layers.#.attn.qkv", "v.blk.#.attn_*", PARTS},
                                         CHAT("attn.proj", "attn_out"),
                                         CHAT("mlp.fc1", "ffn_up"),
                                         CHAT("mlp.fc2", "ffn_down"),
                                         CHAT("ls1", "ls1.weight"),
                                         CHAT("ls2", "ls2.weight"),
                                         {"embeddings.class_embedding", "v.class_embd", AS_IS},
                                         {"embeddings.position_embedding", "v.position_embd.weight", AS_IS},
                                         {"embeddings.patch_embedding", "v.patch_embd", AS_IS},
                                         {"0", "mm.model.mlp.0", AS_IS},
                                         {"1", "mm.model.mlp.1", AS_IS},
                                         {"3", "mm.model.mlp.3", AS_IS},
                                         {NULL, NULL, AS_IS}};
#define G4_LINEAR(hf, gguf) CHAT(hf ".linear", gguf), CHAT(hf, gguf) /* its limits are named beside it */
static const name_row gemma4_rows[] = {
    CHAT("input_layernorm", "ln1"),
    CHAT("post_attention_layernorm", "attn_post_norm"),
    CHAT("pre_feedforward_layernorm", "ln2"),
    CHAT("post_feedforward_layernorm", "ffn_post_norm"),
    CHAT("self_attn.q_norm", "attn_q_norm"),
    CHAT("self_attn.k_norm", "attn_k_norm"),
    G4_LINEAR("self_attn.q_proj", "attn_q"),
    G4_LINEAR("self_attn.k_proj", "attn_k"),
    G4_LINEAR("self_attn.v_proj", "attn_v"),
    G4_LINEAR("self_attn.o_proj", "attn_out"),
    G4_LINEAR("mlp.gate_proj", "ffn_gate"),
    G4_LINEAR("mlp.up_proj", "ffn_up"),
    G4_LINEAR("mlp.down_proj", "ffn_down"),
    {"patch_embedder.input_proj.weight", "v.patch_embd.weight", COLOURS},
    {"patch_embedder.position_embedding_table", "v.position_embd.weight", AS_IS},
    {"std_bias", "v.std_bias", AS_IS},
    {"std_scale", "v.std_scale", AS_IS},
    {"embedding_projection", "mm.input_projection", AS_IS},
    {NULL, NULL, AS_IS}};

static const name_row minicpm_rows[] = {SIGLIP,
                                        {"embeddings.patch_embedding", "v.patch_embd", AS_IS},
                                        {"query", "resampler.query", AS_IS},
                                        {"kv_proj", "resampler.kv", AS_IS},
                                        {"ln_q", "resampler.ln_q", AS_IS},
                                        {"ln_kv", "resampler.ln_kv", AS_IS},
                                        {"ln_post", "resampler.ln_post", AS_IS},
                                        {"attn.in_proj_weight", "resampler.attn.*.weight", PARTS},
                                        {"attn.in_proj_bias", "resampler.attn.*.bias", PARTS},
                                        {"attn.out_proj", "resampler.attn.out", AS_IS},
                                        {"proj", "resampler.proj.weight", TURNED},
                                        {NULL, NULL, AS_IS}};

/* Which of a folder's tensors are the encoder's, after "model." where it is; the longest first. */
static const struct {
    const char *begins[5];
    const name_row *rows;
} families[TN_N_TOWER_KINDS] = {
    [TN_TOWER_IDEFICS3] = {{"vision_model.", "connector."}, idefics3_rows},
    [TN_TOWER_GEMMA3] = {{"vision_tower.vision_model.", "vision_tower.", "multi_modal_projector."},
                         gemma3_rows},
    [TN_TOWER_QWEN25VL] = {{"visual."}, qwen25vl_rows},
    [TN_TOWER_QWEN3VL] = {{"visual."}, qwen3vl_rows},
    [TN_TOWER_LFM2] = {{"vision_tower.vision_model.", "vision_tower.", "multi_modal_projector."}, lfm2_rows},
    [TN_TOWER_INTERNVL] = {{"vision_tower.", "multi_modal_projector.", "vision_model.", "mlp1."},
                           internvl_rows},
    [TN_TOWER_GEMMA4] = {{"vision_tower.", "embed_vision."}, gemma4_rows},
    [TN_TOWER_MINICPM] = {{"vpm.", "resampler."}, minicpm_rows}};

enum { NAME_BYTES = 48 };

struct tn_tower_folder {
    tn_ctx *ctx;
    tn_tower_config c;
    tn_safetensors *st;
    uint8_t *keys; /* of the file as GGUF has them */
    tn_gguf *g;
    tn_tower_file file;
    tn_tensor *tensors;
    char (*names)[NAME_BYTES]; /* of the tensors */
    void **owned;              /* bytes of those that were copied; NULL: they lie in the folder's files */
    size_t n, cap;
};

/* ---- names ---------------------------------------------------------------------------------------------- */

/* The part of an encoder's tensor that its family's rows name; NULL: it is no tensor of the encoder. */
static const char *of_encoder(tn_tower_kind kind, const char *name) {
    if (!strncmp(name, "model.", 6)) name += 6;
    for (size_t i = 0; i < 5 && families[kind].begins[i]; i++) {
        const char *begins = families[kind].begins[i];
        if (!strncmp(name, begins, strlen(begins))) return name + strlen(begins);
    }
    return NULL;
}

static bool is_end(const char *s) {
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!strcmp(s, ends[i])) return true;
    return false;
}

/* What follows the pattern in the name; NULL: another name. *number: what # is. */
static const char *match(const char *pattern, const char *name, int *number) {
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (*name++ != *pattern) return NULL;
            continue;
        }
        char *end;
        if (*name < '0' || *name > '9' || (*name == '0' && name[1] >= '0' && name[1] <= '9')) return NULL;
        const long n = strtol(name, &end, 10);
        if (n > TN_TOWER_LAYERS) return NULL;
        *number = (int)n;
        name = end;
    }
    return is_end(name) ? name : NULL;
}

static const name_row *find_row(const tn_tower_folder *f, const char *name, int *number, const char **end) {
    for (const name_row *r = families[f->c.s.kind].rows; r->hf; r++)
        if ((*end = match(r->hf, name, number))) return r;
    return NULL;
}

/* Writes the name that GGUF has. */
static void put_name(const char *pattern, int number, char part, const char *end, char out[NAME_BYTES]) {
    int n = 0;
    for (const char *p = pattern; *p && n < NAME_BYTES; p++) {
        const size_t left = (size_t)(NAME_BYTES - n);
        n += *p == '#' ? snprintf(out + n, left, "%d", number)
                       : snprintf(out + n, left, "%c", *p == '*' ? part : *p);
    }
    if (n < NAME_BYTES) snprintf(out + n, (size_t)(NAME_BYTES - n), "%s", end);
}

/* ---- tensors -------------------------------------------------------------------------------------------- */

static tern_status add(tn_tower_folder *f, tn_tensor t, void *owned, const char *pattern, int number,
                       char part, const char *end, tern_error *err) {
    if (f->n == f->cap) {
        const size_t cap = f->cap ? 2 * f->cap : 256;
        tn_tensor *tensors = tn_realloc(f->ctx, TN_MEM_OTHER, f->tensors, cap, sizeof *tensors);
        if (tensors) f->tensors = tensors;
        void *names = tn_realloc(f->ctx, TN_MEM_OTHER, f->names, cap, sizeof *f->names);
        if (names) f->names = names;
        void **all = tn_realloc(f->ctx, TN_MEM_OTHER, f->owned, cap, sizeof *all);
        if (all) f->owned = all;
        if (tensors && names && all) f->cap = cap;
    }
    if (f->n == f->cap) {
        tn_free(f->ctx, owned);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the tensors of an encoder");
    }
    put_name(pattern, number, part, end, f->names[f->n]);
    f->owned[f->n] = owned;
    if (owned) t.data = owned;
    f->tensors[f->n++] = t;
    return TERN_OK;
}

static tern_status add_parts(tn_tower_folder *f, const tn_tensor *t, const name_row *r, int number,
                             const char *end, tern_error *err) {
    TN_FAIL_IF(t->dims[0] % 3 || t->n_dims > 2, err, TERN_E_FORMAT,
               "%s: %s has %" PRIu64 " rows of queries, keys and values", t->file, t->name, t->dims[0]);
    for (uint64_t i = 0; i < 3; i++) {
        tn_tensor part = *t;
        part.dims[0] /= 3;
        part.size_bytes /= 3;
        part.data += i * part.size_bytes;
        TN_TRY(add(f, part, NULL, r->gguf, number, "qkv"[i], end, err));
    }
    return TERN_OK;
}

/* Bytes of n values in an order of their own. */
static uint8_t *room(tn_tower_folder *f, const tn_tensor *t, uint64_t n) {
    return tn_alloc(f->ctx, TN_MEM_OTHER, n ? n : 1, (size_t)tn_dtype_block_bytes(t->dtype));
}

/* [width][colour][moment][y x]: each moment becomes a kernel. */
static tern_status add_film(tn_tower_folder *f, const tn_tensor *t, const name_row *r, tern_error *err) {
    static const char *const ends_of[] = {"", ".1"};
    const uint64_t side = (uint64_t)f->c.s.patch, plane = side * side, n = t->dims[0] * 3,
                   size = (uint64_t)tn_dtype_block_bytes(t->dtype);
    TN_FAIL_IF(t->n_dims != 5 || t->dims[1] != 3 || t->dims[2] != 2 || t->dims[3] != plane, err,
               TERN_E_FORMAT, "%s: %s is no kernel of two moments of %d x %d pixels", t->file, t->name,
               f->c.s.patch, f->c.s.patch);
    for (uint64_t m = 0; m < 2; m++) {
        uint8_t *to = room(f, t, n * plane);
        TN_FAIL_IF(!to, err, TERN_E_MEMORY, "no memory for %s", t->name);
        for (uint64_t i = 0; i < n; i++)
            memcpy(to + i * plane * size, t->data + (2 * i + m) * plane * size, plane * size);
        tn_tensor part = *t;
        part.n_dims = 4;
        part.dims[2] = part.dims[3] = side;
        part.size_bytes = n * plane * size;
        TN_TRY(add(f, part, to, r->gguf, 0, 0, ends_of[m], err));
    }
    return TERN_OK;
}

/* [width][y x colour] becomes [width][colour][y][x]. */
static tern_status add_colours(tn_tower_folder *f, const tn_tensor *t, const name_row *r, tern_error *err) {
    const uint64_t side = (uint64_t)f->c.s.patch, plane = side * side,
                   size = (uint64_t)tn_dtype_block_bytes(t->dtype);
    TN_FAIL_IF(t->n_dims != 2 || t->dims[1] != 3 * plane, err, TERN_E_FORMAT,
               "%s: %s is no linear of patches of %d x %d pixels", t->file, t->name, f->c.s.patch,
               f->c.s.patch);
    uint8_t *to = room(f, t, t->dims[0] * 3 * plane);
    TN_FAIL_IF(!to, err, TERN_E_MEMORY, "no memory for %s", t->name);
    for (uint64_t w = 0; w < t->dims[0]; w++)
        for (uint64_t p = 0; p < plane; p++)
            for (uint64_t c = 0; c < 3; c++)
                memcpy(to + ((w * 3 + c) * plane + p) * size, t->data + ((w * plane + p) * 3 + c) * size,
                       size);
    tn_tensor turned = *t;
    turned.n_dims = 4;
    turned.dims[1] = 3;
    turned.dims[2] = turned.dims[3] = side;
    return add(f, turned, to, r->gguf, 0, 0, "", err);
}

static tern_status add_plus_one(tn_tower_folder *f, const tn_tensor *t, const name_row *r, const char *end,
                                tern_error *err) {
    float *to = tn_alloc(f->ctx, TN_MEM_OTHER, t->dims[0] ? t->dims[0] : 1, sizeof *to);
    TN_FAIL_IF(!to, err, TERN_E_MEMORY, "no memory for %s", t->name);
    if (t->n_dims == 1) tn_dequantise(t->dtype, t->data, to, t->dims[0]);
    for (uint64_t i = 0; t->n_dims == 1 && i < t->dims[0]; i++) to[i] += 1;
    tn_tensor more = *t; /* of another shape it is refused by its reader */
    more.dtype = TN_F32;
    more.size_bytes = t->dims[0] * sizeof *to;
    return add(f, more, to, r->gguf, 0, 0, end, err);
}

static tern_status add_turned(tn_tower_folder *f, const tn_tensor *t, const name_row *r, tern_error *err) {
    const uint64_t rows = t->dims[0], columns = t->dims[1], size = (uint64_t)tn_dtype_block_bytes(t->dtype);
    TN_FAIL_IF(t->n_dims != 2 || tn_dtype_block(t->dtype) != 1, err, TERN_E_FORMAT, "%s: %s is no matrix",
               t->file, t->name);
    uint8_t *to = room(f, t, rows * columns);
    TN_FAIL_IF(!to, err, TERN_E_MEMORY, "no memory for %s", t->name);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t k = 0; k < columns; k++)
            memcpy(to + (k * rows + i) * size, t->data + (i * columns + k) * size, size);
    tn_tensor turned = *t;
    turned.dims[0] = columns;
    turned.dims[1] = rows;
    return add(f, turned, to, r->gguf, 0, 0, "", err);
}

static tern_status add_tensor(tn_tower_folder *f, const tn_tensor *t, const char *name, tern_error *err) {
    const char *end;
    int number = 0;
    const name_row *r = find_row(f, name, &number, &end);
    if (!strncmp(name, "head.", 5) && f->c.s.kind != TN_TOWER_INTERNVL) return TERN_OK; /* SigLIP's own */
    TN_FAIL_IF(!r, err, TERN_E_UNSUPPORTED,
               "%s: the tensor %.100s is not known, and the encoder of pictures would be another without it",
               t->file, t->name);
    TN_FAIL_IF(t->dtype >= TN_N_DTYPES, err, TERN_E_UNSUPPORTED,
               "%s: tensor %.100s has a storage type tern does not read", t->file, t->name);
    if (!strncmp(r->gguf, "v.deepstack.", 12)) {
        TN_FAIL_IF(number >= f->c.s.n_deep, err, TERN_E_FORMAT,
                   "%s: %.100s is of a layer that 'deepstack_visual_indexes' does not have", t->file,
                   t->name);
        number = f->c.deep[number];
    }
    switch (r->how) {
    case PARTS: return add_parts(f, t, r, number, end, err);
    case FILM: return add_film(f, t, r, err);
    case COLOURS: return add_colours(f, t, r, err);
    case PLUS_ONE: return add_plus_one(f, t, r, end, err);
    case TURNED: return add_turned(f, t, r, err);
    default: return add(f, *t, NULL, r->gguf, number, 0, end, err);
    }
}

/* What a file may lack and a folder says that there is: without it the encoder would be another. */
static tern_status check_said(const tn_tower_folder *f, const char *path, tern_error *err) {
    const bool limits = tn_tower_tensor(&f->file, "v.blk.0.attn_q.input_min"),
               standard = tn_tower_tensor(&f->file, "v.std_bias");
    const tn_tensor *places = tn_tower_tensor(&f->file, "v.position_embd.weight");
    const uint64_t n_places = (uint64_t)f->c.s.places * (uint64_t)f->c.s.places;
    TN_FAIL_IF(f->c.s.kind == TN_TOWER_MINICPM && places && places->dims[0] != n_places, err, TERN_E_FORMAT,
               "%s: v.position_embd.weight has %" PRIu64 " places, and config.json says %" PRIu64, path,
               places->dims[0], n_places);
    if (f->c.s.kind != TN_TOWER_GEMMA4) return TERN_OK;
    TN_FAIL_IF(limits != f->c.limited, err, TERN_E_FORMAT,
               "%s: the encoder's linears have %s limits, and 'use_clipped_linears' says otherwise", path,
               limits ? "their" : "no");
    TN_FAIL_IF(standard != f->c.standard, err, TERN_E_FORMAT,
               "%s: the encoder has %s std_bias, and 'standardize' says otherwise", path,
               standard ? "a" : "no");
    return TERN_OK;
}

static tern_status read_tensors(tn_tower_folder *f, const char *path, tern_error *err) {
    for (size_t i = 0; i < tn_safetensors_n_tensors(f->st); i++) {
        const tn_tensor *t = tn_safetensors_tensor_at(f->st, i);
        const char *name = of_encoder(f->c.s.kind, t->name);
        if (name) TN_TRY(add_tensor(f, t, name, err));
    }
    TN_FAIL_IF(!f->n, err, TERN_E_FORMAT,
               "%s: its files hold no encoder of pictures, though config.json has one", path);
    for (size_t i = 0; i < f->n; i++) f->tensors[i].name = f->names[i];
    qsort(f->tensors, f->n, sizeof *f->tensors, tn_tensor_by_name);
    for (size_t i = 1; i < f->n; i++)
        TN_FAIL_IF(!tn_tensor_by_name(&f->tensors[i - 1], &f->tensors[i]), err, TERN_E_FORMAT,
                   "%s: the encoder of pictures has %s twice, as GGUF names it", path, f->tensors[i].name);
    f->file = (tn_tower_file){.g = f->g, .st = f->st, .tensors = f->tensors, .n_tensors = f->n};
    return check_said(f, path, err);
}

/* ---- opening -------------------------------------------------------------------------------------------- */

static tern_status make_keys(tn_tower_folder *f, const char *path, tern_error *err) {
    tn_gguf_writer *w;
    uint64_t n;
    TN_TRY(tn_gguf_create_memory(f->ctx, path, &w, err));
    tn_tower_put_keys(w, &f->c.s);
    tern_status st = tn_gguf_begin_data(w, err);
    if (st == TERN_OK) st = tn_gguf_take(&w, &f->keys, &n, err);
    tn_gguf_abort(&w);
    return st == TERN_OK ? tn_gguf_open_memory(f->ctx, f->keys, n, path, &f->g, err) : st;
}

tern_status tn_tower_folder_make(tn_ctx *ctx, const char *path, const tn_tower_config *c, tn_safetensors **st,
                                 tn_tower_folder **out, tern_error *err) {
    tn_tower_folder *f = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *f);
    *out = NULL;
    if (!f) tn_safetensors_close(st);
    TN_FAIL_IF(!f, err, TERN_E_MEMORY, "no memory for an encoder of pictures");
    *f = (tn_tower_folder){.ctx = ctx, .c = *c, .st = *st};
    *st = NULL;
    tern_status rc = make_keys(f, path, err);
    if (rc == TERN_OK) rc = read_tensors(f, path, err);
    if (rc == TERN_OK) *out = f;
    else tn_tower_folder_close(&f);
    return rc;
}

tern_status tn_tower_folder_open(tn_ctx *ctx, const char *path, tn_tower_folder **out, tern_error *err) {
    tn_tower_config c;
    tn_safetensors *st;
    *out = NULL;
    TN_TRY(tn_tower_config_read(path, &c, err));
    TN_TRY(tn_safetensors_open(ctx, path, &st, err));
    return tn_tower_folder_make(ctx, path, &c, &st, out, err);
}

void tn_tower_folder_close(tn_tower_folder **pf) {
    tn_tower_folder *f = *pf;
    *pf = NULL;
    if (!f) return;
    for (size_t i = 0; i < f->n; i++) tn_free(f->ctx, f->owned[i]);
    tn_free(f->ctx, f->owned);
    tn_free(f->ctx, f->names);
    tn_free(f->ctx, f->tensors);
    tn_gguf_close(&f->g);
    tn_free(f->ctx, f->keys);
    tn_safetensors_close(&f->st);
    tn_free(f->ctx, f);
}

const tn_tower_file *tn_tower_folder_file(const tn_tower_folder *f) { return &f->file; }

tern_status tn_tower_folder_write(const tn_tower_folder *f, uint8_t **bytes, uint64_t *n_bytes,
                                  tern_error *err) {
    tn_gguf_writer *w;
    const char *path = tn_gguf_path(f->g);
    *bytes = NULL;
    TN_TRY(tn_gguf_create_memory(f->ctx, path, &w, err));
    tn_tower_put_keys(w, &f->c.s);
    for (size_t i = 0; i < f->n; i++) {
        const tn_tensor *t = &f->tensors[i];
        tn_gguf_add_tensor(w, t->name, t->dtype, t->n_dims, t->dims);
    }
    tern_status st = tn_gguf_begin_data(w, err);
    for (size_t i = 0; st == TERN_OK && i < f->n; i++)
        st = tn_gguf_write(w, f->tensors[i].data, f->tensors[i].size_bytes, err);
    if (st == TERN_OK && tn_safetensors_changed(f->st))
        st = tn_fail(err, TERN_E_IO, "%s: a file was written to while it was read", path);
    if (st == TERN_OK) st = tn_gguf_take(&w, bytes, n_bytes, err);
    tn_gguf_abort(&w);
    return st;
}

tern_status tn_tower_folder_bytes(tn_ctx *ctx, const char *folder, uint8_t **bytes, uint64_t *n_bytes,
                                  tern_error *err) {
    tn_tower_folder *f;
    *bytes = NULL;
    TN_TRY(tn_tower_folder_open(ctx, folder, &f, err));
    tern_status st = tn_tower_folder_write(f, bytes, n_bytes, err);
    tn_tower_folder_close(&f);
    return st;
}
