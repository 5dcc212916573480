/* Reading a tower's tensors from a file whose keys are read (tower_read.c). */
#include "model/tower_impl.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A tensor, and where it goes: a vector of n * k values, or a linear. */
typedef struct want {
    char name[40];
    const tn_tensor *t;
    float **vector;
    tn_linear *linear;
    int64_t n, k;
    int64_t row0,
        all; /* where it is a part of the file's tensor: its first row, and all rows; all 0: the whole */
    int32_t layer; /* that it is read with; n_layers: with none */
    int n_dims;    /* 4: of a convolution */
    bool limit;    /* may be infinite */
    bool loose;    /* further dimensions of 1 may stand in front */
    bool turned;   /* the file has [k][n] */
    uint64_t hash;
    tern_status status;
    tern_error err;
} want;

typedef struct reading {
    tn_tower *t;
    const tn_tower_file *f;
    tn_pool *pool;
    want *wants;
    size_t n, cap;
    int32_t layer; /* of the wants that are listed */
    size_t first;  /* of the wants that are read */
} reading;

const tn_tensor *tn_tower_tensor(const tn_tower_file *f, const char *name) {
    const tn_tensor key = {.name = name};
    return f->st ? bsearch(&key, f->tensors, f->n_tensors, sizeof key, tn_tensor_by_name)
                 : tn_gguf_tensor(f->g, name);
}

static want *add(reading *r, int layer, const char *name, const char *suffix, int64_t n, int64_t k) {
    assert(r->n < r->cap);
    want *w = &r->wants[r->n++];
    *w = (want){.n = n, .k = k, .n_dims = k > 1 ? 2 : 1, .layer = r->layer};
    if (layer < 0) snprintf(w->name, sizeof w->name, "%s.%s", name, suffix);
    else snprintf(w->name, sizeof w->name, "v.blk.%d.%s.%s", layer, name, suffix);
    return w;
}

static void add_norm(reading *r, int layer, const char *name, float **weight_bias) {
    add(r, layer, name, "weight", r->t->s.width, 1)->vector = &weight_bias[0];
    if (r->t->s.kind != TN_TOWER_QWEN25VL && r->t->s.kind != TN_TOWER_GEMMA4)
        add(r, layer, name, "bias", r->t->s.width, 1)->vector = &weight_bias[1];
}

static void add_linear(reading *r, int layer, const char *name, int64_t n, int64_t k, bool bias,
                       tn_linear *l) {
    add(r, layer, name, "weight", n, k)->linear = l;
    if (bias) add(r, layer, name, "bias", n, 1)->vector = &l->bias;
}

/* Queries, keys and values, one after another in one tensor of the file. */
static void add_joint(reading *r, int layer, tn_tower_layer *l) {
    tn_linear *const parts[] = {&l->q, &l->k, &l->v};
    const int64_t width = r->t->s.width;
    for (int i = 0; i < 3; i++) {
        add_linear(r, layer, "attn_qkv", width, width, true, parts[i]);
        for (size_t j = r->n - 2; j < r->n; j++) {
            r->wants[j].row0 = i * width;
            r->wants[j].all = 3 * width;
        }
    }
}

static void add_merger(reading *r, int layer, tn_tower_merger *m) {
    const tn_tower_shape *s = &r->t->s;
    const int64_t wide = (int64_t)s->width * s->shuffle * s->shuffle;
    char name[32];
    snprintf(name, sizeof name, "v.deepstack.%d.norm", layer);
    add(r, -1, name, "weight", wide, 1)->vector = &m->norm[0];
    add(r, -1, name, "bias", wide, 1)->vector = &m->norm[1];
    snprintf(name, sizeof name, "v.deepstack.%d.fc1", layer);
    add_linear(r, -1, name, wide, wide, true, &m->fc1);
    snprintf(name, sizeof name, "v.deepstack.%d.fc2", layer);
    add_linear(r, -1, name, s->out, wide, true, &m->fc2);
}

/* The patches' kernel; that of a film has two moments. */
static void add_patches(reading *r) {
    tn_tower *t = r->t;
    const int64_t width = t->s.width, k = 3 * (int64_t)t->s.patch * t->s.patch;
    if (tn_tower_has_axes(t->s.kind)) {
        add(r, -1, "v.patch_embd", "weight", width, k)->vector = &t->moment[0];
        add(r, -1, "v.patch_embd", "weight.1", width, k)->vector = &t->moment[1];
        if (t->s.kind == TN_TOWER_QWEN3VL)
            add(r, -1, "v.patch_embd", "bias", width, 1)->vector = &t->patch.bias;
        r->wants[1].n_dims = 4;
    } else {
        add_linear(r, -1, "v.patch_embd", width, k, t->s.kind != TN_TOWER_GEMMA4, &t->patch);
    }
    r->wants[0].n_dims = 4;
}

/* Old files call the two linears of a feed-forward by each other's names: the shapes tell. */
static bool is_swapped(const reading *r) {
    const tn_tensor *up = tn_tower_tensor(r->f, "v.blk.0.ffn_up.weight");
    const tn_tower_shape *s = &r->t->s;
    return up && up->n_dims == 2 && s->ff != s->width && up->dims[0] == (uint64_t)s->width &&
           up->dims[1] == (uint64_t)s->ff;
}

/* A vector whose name has no suffix. */
static want *add_plain(reading *r, const char *name, float **to) {
    want *w = add(r, -1, name, "", r->t->s.width, 1);
    w->name[strlen(name)] = '\0';
    w->vector = to;
    return w;
}

/* The class and n positions, its own in front; both may be batches of one. */
static void add_class(reading *r, int64_t n) {
    add_plain(r, "v.class_embd", &r->t->class)->loose = true;
    want *w = add(r, -1, "v.position_embd", "weight", n, r->t->s.width);
    w->vector = &r->t->position;
    w->loose = true;
}

/* Outputs of a linear that no key tells: what its tensor has. */
static int64_t outputs(const reading *r, const char *name) {
    const tn_tensor *t = tn_tower_tensor(r->f, name);
    return t && t->n_dims == 2 && t->dims[0] >= 1 && t->dims[0] <= 65536 ? (int64_t)t->dims[0] : 1;
}

/* Two linears, the first of `wide` inputs; with a layer norm before it where `norm` is named and there. */
static void add_mlp(reading *r, const char *norm, const char *fc1, const char *fc2, int64_t wide) {
    tn_tower *t = r->t;
    char weight[40];
    snprintf(weight, sizeof weight, "%s.weight", fc1);
    const int64_t between = tn_tower_has_axes(t->s.kind) ? wide : outputs(r, weight);
    if (norm) {
        add(r, -1, norm, "weight", wide, 1)->vector = &t->fc_norm[0];
        add(r, -1, norm, "bias", wide, 1)->vector = &t->fc_norm[1];
    }
    add_linear(r, -1, fc1, between, wide, true, &t->fc);
    add_linear(r, -1, fc2, t->s.out, between, true, &t->fc_out);
}

/* A layer of Gemma 4: norms before and after, norms of heads, linears without biases and maybe with limits. */
static void add_gemma4_layer(reading *r, int i, tn_tower_layer *l) {
    static const char *const suffixes[] = {"input_min", "input_max", "output_min", "output_max"};
    const tn_tower_shape *s = &r->t->s;
    const int64_t width = s->width, d_head = width / s->n_heads;
    r->layer = i;
    const struct {
        const char *name;
        int64_t n, k;
        tn_linear *l;
    } linears[TN_N_TOWER_PARTS] = {[TN_TOWER_Q] = {"attn_q", width, width, &l->q},
                                   [TN_TOWER_K] = {"attn_k", width, width, &l->k},
                                   [TN_TOWER_V] = {"attn_v", width, width, &l->v},
                                   [TN_TOWER_OUT] = {"attn_out", width, width, &l->out},
                                   [TN_TOWER_GATE] = {"ffn_gate", s->ff, width, &l->gate},
                                   [TN_TOWER_UP] = {"ffn_up", s->ff, width, &l->up},
                                   [TN_TOWER_DOWN] = {"ffn_down", width, s->ff, &l->down}};
    add_norm(r, i, "ln1", l->ln1);
    add_norm(r, i, "ln2", l->ln2);
    add(r, i, "attn_post_norm", "weight", width, 1)->vector = &l->post[0];
    add(r, i, "ffn_post_norm", "weight", width, 1)->vector = &l->post[1];
    add(r, i, "attn_q_norm", "weight", d_head, 1)->vector = &l->head_norm[0];
    add(r, i, "attn_k_norm", "weight", d_head, 1)->vector = &l->head_norm[1];
    for (int p = 0; p < TN_N_TOWER_PARTS; p++) {
        char first[64];
        add_linear(r, i, linears[p].name, linears[p].n, linears[p].k, false, linears[p].l);
        snprintf(first, sizeof first, "v.blk.%d.%s.input_min", i, linears[p].name);
        for (int k = 0; k < 4 && tn_tower_tensor(r->f, first); k++) {
            want *w = add(r, i, linears[p].name, suffixes[k], 1, 1);
            w->vector = &l->limits[p].of[k];
            w->limit = true;
        }
    }
}

static void list_gemma4(reading *r) {
    tn_tower *t = r->t;
    const tn_tensor *table = tn_tower_tensor(r->f, "v.position_embd.weight");
    const bool fits = table && table->n_dims == 3 && table->dims[1] >= 1 && table->dims[1] <= 1 << 20;
    add_patches(r);
    t->n_places = fits ? (int32_t)table->dims[1] : 1;
    want *w = add(r, -1, "v.position_embd", "weight", 2 * (int64_t)t->n_places, t->s.width);
    w->vector = &t->position;
    w->n_dims = 3;
    for (int i = 0; i < t->s.n_layers; i++) add_gemma4_layer(r, i, &t->layers[i]);
    r->layer = t->s.n_layers;
    if (tn_tower_tensor(r->f, "v.std_bias")) {
        add_plain(r, "v.std_bias", &t->standard[0]);
        add_plain(r, "v.std_scale", &t->standard[1]);
    }
    add_linear(r, -1, "mm.input_projection", t->s.out, t->s.width, false, &t->fc);
}

static void add_norm_of(reading *r, const char *name, int64_t n, float **weight_bias) {
    add(r, -1, name, "weight", n, 1)->vector = &weight_bias[0];
    add(r, -1, name, "bias", n, 1)->vector = &weight_bias[1];
}

static void list_resampler(reading *r) {
    tn_tower_resampler *m = &r->t->resampler;
    const int64_t out = r->t->s.out;
    want *query = add(r, -1, "resampler.query", "", r->t->s.queries, out);
    query->name[strlen("resampler.query")] = 0;
    query->vector = &m->query;
    add_linear(r, -1, "resampler.kv", out, r->t->s.width, false, &m->kv);
    add_norm_of(r, "resampler.ln_q", out, m->ln_q);
    add_norm_of(r, "resampler.ln_kv", out, m->ln_kv);
    add_norm_of(r, "resampler.ln_post", out, m->ln_post);
    add_linear(r, -1, "resampler.attn.q", out, out, true, &m->q);
    add_linear(r, -1, "resampler.attn.k", out, out, true, &m->k);
    add_linear(r, -1, "resampler.attn.v", out, out, true, &m->v);
    add_linear(r, -1, "resampler.attn.out", out, out, true, &m->given);
    add_linear(r, -1, "resampler.proj", out, out, false, &m->proj);
}

static void list_wants(reading *r) {
    tn_tower *t = r->t;
    const tn_tower_shape *s = &t->s;
    const int64_t side = s->places ? s->places : tn_tower_side(s), width = s->width;
    const char *up = is_swapped(r) ? "ffn_down" : "ffn_up", *down = is_swapped(r) ? "ffn_up" : "ffn_down";
    if (s->kind == TN_TOWER_GEMMA4) {
        list_gemma4(r);
        return;
    }
    add_patches(r);
    if (s->kind == TN_TOWER_INTERNVL) add_class(r, side * side + 1);
    else if (s->kind != TN_TOWER_QWEN25VL)
        add(r, -1, "v.position_embd", "weight", side * side, width)->vector = &t->position;
    for (int i = 0; i < s->n_layers; i++) {
        tn_tower_layer *l = &t->layers[i];
        r->layer = i;
        add_norm(r, i, "ln1", l->ln1);
        if (s->kind == TN_TOWER_QWEN3VL) {
            add_joint(r, i, l);
        } else {
            add_linear(r, i, "attn_q", width, width, true, &l->q);
            add_linear(r, i, "attn_k", width, width, true, &l->k);
            add_linear(r, i, "attn_v", width, width, true, &l->v);
        }
        add_linear(r, i, "attn_out", width, width, true, &l->out);
        add_norm(r, i, "ln2", l->ln2);
        if (s->kind == TN_TOWER_QWEN25VL) add_linear(r, i, "ffn_gate", s->ff, width, true, &l->gate);
        add_linear(r, i, up, s->ff, width, true, &l->up);
        add_linear(r, i, down, width, s->ff, true, &l->down);
        if (s->kind == TN_TOWER_INTERNVL) {
            add(r, i, "ls1", "weight", width, 1)->vector = &l->gain[0];
            add(r, i, "ls2", "weight", width, 1)->vector = &l->gain[1];
        }
        if (l->deep) add_merger(r, i, l->deep);
    }
    r->layer = s->n_layers;
    if (s->kind != TN_TOWER_INTERNVL) add_norm(r, -1, "v.post_ln", t->post_ln);
    const int64_t wide = width * s->shuffle * s->shuffle;
    if (s->kind == TN_TOWER_MINICPM) {
        list_resampler(r);
    } else if (s->kind == TN_TOWER_IDEFICS3) {
        add_linear(r, -1, "mm.model.fc", s->out, wide, false, &t->fc);
    } else if (tn_tower_has_axes(s->kind)) {
        add_mlp(r, NULL, "mm.0", "mm.2", wide);
    } else if (s->kind == TN_TOWER_LFM2) {
        const bool normed = tn_tower_tensor(r->f, "mm.input_norm.weight");
        add_mlp(r, normed ? "mm.input_norm" : NULL, "mm.1", "mm.2", wide);
    } else if (s->kind == TN_TOWER_INTERNVL) {
        add_mlp(r, "mm.model.mlp.0", "mm.model.mlp.1", "mm.model.mlp.3", wide);
    } else {
        add(r, -1, "mm.soft_emb_norm", "weight", width, 1)->vector = &t->pool_norm;
        add_linear(r, -1, "mm.input_projection", s->out, width, false, &t->fc);
        r->wants[r->n - 1].turned = true;
    }
}

static bool has_shape(const tn_tensor *t, const want *w, const tn_tower_shape *s) {
    const uint64_t n = (uint64_t)(w->all ? w->all : w->n);
    if (w->loose) {
        const int in_front = t->n_dims - w->n_dims;
        bool is =
            in_front >= 0 && t->dims[in_front] == n && (w->k == 1 || t->dims[in_front + 1] == (uint64_t)w->k);
        for (int i = 0; i < in_front; i++) is = is && t->dims[i] == 1;
        return is;
    }
    if (w->n_dims == 4)
        return t->n_dims == 4 && t->dims[0] == (uint64_t)w->n && t->dims[1] == 3 &&
               t->dims[2] == (uint64_t)s->patch && t->dims[3] == (uint64_t)s->patch;
    if (w->n_dims == 3)
        return t->n_dims == 3 && t->dims[0] == 2 && 2 * t->dims[1] == n && t->dims[2] == (uint64_t)w->k;
    if (w->turned) return t->n_dims == 2 && t->dims[0] == (uint64_t)w->k && t->dims[1] == (uint64_t)w->n;
    if (w->k == 1) return t->n_dims == 1 && t->dims[0] == n;
    return t->n_dims == 2 && t->dims[0] == n && t->dims[1] == (uint64_t)w->k;
}

/* Finds every tensor, and finds that there are no others, before one is read. */
static tern_status find_tensors(reading *r, tern_error *err) {
    const char *path = tn_gguf_path(r->f->g);
    const tn_tower_shape *s = &r->t->s;
    for (size_t i = 0; i < r->n; i++) {
        want *w = &r->wants[i];
        w->t = tn_tower_tensor(r->f, w->name);
        TN_FAIL_IF(!w->t, err, TERN_E_FORMAT, "%s lacks the tensor %s%s", path, w->name,
                   r->f->st ? ", as GGUF names it" : "");
        TN_FAIL_IF(!has_shape(w->t, w, &r->t->s), err, TERN_E_FORMAT,
                   "%s: %s has %" PRIu64 " x %" PRIu64 " values in %d dimensions, not %" PRId64 " x %" PRId64,
                   path, w->name, w->t->dims[0], w->t->dims[1], w->t->n_dims, w->all ? w->all : w->n, w->k);
        TN_FAIL_IF(w->t->dtype != TN_F32 && w->t->dtype != TN_F16 && w->t->dtype != TN_BF16 &&
                       w->t->dtype != TN_Q8_0,
                   err, TERN_E_UNSUPPORTED, "%s: %s is of type %s; F32, F16, BF16 and Q8_0 are read", path,
                   w->name, tn_dtype_name(w->t->dtype));
        TN_FAIL_IF(w->row0 * w->k % tn_dtype_block(w->t->dtype), err, TERN_E_UNSUPPORTED,
                   "%s: queries and keys of %s share a block of %s", path, w->name,
                   tn_dtype_name(w->t->dtype));
    }
    for (size_t i = 0; i < tn_tower_n_tensors(r->f); i++) {
        const char *name = tn_tower_tensor_at(r->f, i)->name;
        bool known = s->kind == TN_TOWER_GEMMA4 && /* of the encoder of sound beside it */
                     (!strncmp(name, "a.", 2) || !strncmp(name, "mm.a.", 5));
        known |= s->kind == TN_TOWER_MINICPM && /* sines and cosines, which are computed */
                 (!strcmp(name, "resampler.pos_embed") || !strcmp(name, "resampler.pos_embed_k"));
        for (size_t j = 0; j < r->n && !known; j++) known = !strcmp(name, r->wants[j].name);
        TN_FAIL_IF(!known, err, TERN_E_UNSUPPORTED,
                   "%s: the tensor %.60s is not known, and the tower would be another without it", path,
                   name);
    }
    return TERN_OK;
}

static tn_panel_dtype panel_dtype(tn_dtype d) {
    return d == TN_F16 ? TN_PANEL_F16 : d == TN_BF16 ? TN_PANEL_BF16 : TN_PANEL_F32;
}

/* Values at .. at + n - 1 of what is wanted. */
static tern_status read_values(const reading *r, want *w, size_t at, size_t n, float *values) {
    const tn_dtype d = w->t->dtype;
    const size_t block = (size_t)tn_dtype_block(d), bytes = (size_t)tn_dtype_block_bytes(d);
    const uint8_t *from = (const uint8_t *)w->t->data + ((size_t)w->row0 * (size_t)w->k + at) / block * bytes;
    tn_dequantise(d, from, values, n);
    if (r->f->mapped) tn_file_release(from, n / block * bytes);
    w->hash = XXH64(values, n * sizeof *values, w->hash);
    return tn_all_finite(values, n) || (w->limit && !isnan(*values))
               ? TERN_OK
               : tn_fail(&w->err, TERN_E_FORMAT, "%s: %s holds values that are not finite",
                         tn_gguf_path(r->f->g), w->name);
}

/* A vector, or all values of what the file has turned: its [k][n] become [n][k]. */
static tern_status read_whole(const reading *r, want *w, float *values) {
    const size_t n = (size_t)w->n, k = (size_t)w->k;
    if (!w->turned) return read_values(r, w, 0, n * k, values);
    float *from = tn_alloc(r->t->ctx, TN_MEM_OTHER, n * k, sizeof *from);
    TN_FAIL_IF(!from, &w->err, TERN_E_MEMORY, "no memory for %s", w->name);
    tern_status st = read_values(r, w, 0, n * k, from);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++) values[i * k + j] = from[j * n + i];
    tn_free(r->t->ctx, from);
    return st;
}

/* Panels of the values, in the narrowest type that holds them exactly: a panel's rows at a time. */
static tern_status read_linear(reading *r, want *w) {
    tn_ctx *ctx = r->t->ctx;
    tn_linear *l = w->linear;
    const size_t n = (size_t)w->n, k = (size_t)w->k, each = w->turned ? n : TN_PANEL_N;
    l->n = (int32_t)w->n;
    l->k = (int32_t)w->k;
    l->dtype = panel_dtype(w->t->dtype);
    l->panels = tn_alloc(ctx, TN_MEM_WEIGHTS, tn_panels_bytes(l->dtype, n, k), 1);
    float *values = tn_alloc(ctx, TN_MEM_OTHER, each * k, sizeof *values);
    tern_status st =
        l->panels && values ? TERN_OK : tn_fail(&w->err, TERN_E_MEMORY, "no memory for %s", w->name);
    for (size_t n0 = 0; st == TERN_OK && n0 < n; n0 += each) {
        const size_t n1 = n - n0 < each ? n : n0 + each;
        st = w->turned ? read_whole(r, w, values) : read_values(r, w, n0 * k, (n1 - n0) * k, values);
        if (st == TERN_OK) tn_panels_pack(l->dtype, l->panels, values, n0, n1, k);
    }
    tn_free(ctx, values);
    return st;
}

static tern_status read_tensor(reading *r, want *w) {
    if (w->linear) return read_linear(r, w);
    *w->vector = tn_alloc(r->t->ctx, TN_MEM_WEIGHTS, (size_t)w->n * (size_t)w->k, sizeof **w->vector);
    TN_FAIL_IF(!*w->vector, &w->err, TERN_E_MEMORY, "no memory for %s", w->name);
    return read_whole(r, w, *w->vector);
}

static void read_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    reading *r = arg;
    want *w = &r->wants[r->first + (size_t)i_item];
    w->status = read_tensor(r, w);
}

/* A layer's linears become codes. */
static tern_status to_int8(reading *r, const tn_kernels *kern, tn_tower_layer *l, tern_error *err) {
    tn_tower *t = r->t;
    tn_linear *const qkv[] = {&l->q, &l->k, &l->v}, *const out[] = {&l->out}, *const up[] = {&l->up},
                     *const down[] = {&l->down}, *const gate[] = {&l->gate};
    const bool apart = l->limits[TN_TOWER_Q].of[0];
    if (!apart) TN_TRY(tn_tower_s8_make(t->ctx, kern, r->pool, qkv, 3, NULL, &l->qkv_s8, &t->bytes, err));
    for (int p = 0; apart && p < 3; p++)
        TN_TRY(tn_tower_s8_make(t->ctx, kern, r->pool, &qkv[p], 1, NULL, &l->part_s8[p], &t->bytes, err));
    TN_TRY(tn_tower_s8_make(t->ctx, kern, r->pool, out, 1, l->gain[0], &l->out_s8, &t->bytes, err));
    TN_TRY(tn_tower_s8_make(t->ctx, kern, r->pool, up, 1, NULL, &l->up_s8, &t->bytes, err));
    if (l->gate.n)
        TN_TRY(tn_tower_s8_make(t->ctx, kern, r->pool, gate, 1, NULL, &l->gate_s8, &t->bytes, err));
    return tn_tower_s8_make(t->ctx, kern, r->pool, down, 1, l->gain[1], &l->down_s8, &t->bytes, err);
}

/* Reads all wants; in INT8 a few layers at a time, which become codes before the next are read, so that the file is
 * never in memory as a whole. */
static tern_status read_wants(reading *r, tern_error *err) {
    tn_tower *t = r->t;
    const bool s8 = t->scheme == TN_TOWER_INT8;
    const int32_t at_once = s8 ? tn_tower_at_once(tn_pool_size(r->pool)) : TN_TOWER_LAYERS + 1;
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    for (size_t end; r->first < r->n; r->first = end) {
        const int32_t layer = r->wants[r->first].layer;
        end = r->first;
        while (end < r->n && r->wants[end].layer >= layer && r->wants[end].layer < layer + at_once) end++;
        tn_pool_for(r->pool, (int)(end - r->first), read_item, r);
        for (size_t i = r->first; i < end; i++) {
            want *w = &r->wants[i];
            if (w->status != TERN_OK && err) *err = w->err;
            if (w->status != TERN_OK) return w->status;
            t->fingerprint = XXH64(&w->hash, sizeof w->hash, t->fingerprint);
        }
        for (int32_t i = layer; s8 && i < layer + at_once && i < t->s.n_layers; i++)
            TN_TRY(to_int8(r, &kern, &t->layers[i], err));
    }
    return TERN_OK;
}

/* A picture is two equal moments of a film. */
static tern_status sum_moments(reading *r, tern_error *err) {
    tn_tower *t = r->t;
    tn_linear *l = &t->patch;
    if (!t->moment[0]) return TERN_OK;
    l->n = t->s.width;
    l->k = 3 * t->s.patch * t->s.patch;
    l->dtype = TN_PANEL_F32;
    const size_t n = (size_t)l->n, k = (size_t)l->k;
    l->panels = tn_alloc(t->ctx, TN_MEM_WEIGHTS, tn_panels_bytes(l->dtype, n, k), 1);
    TN_FAIL_IF(!l->panels, err, TERN_E_MEMORY, "no memory for the kernel of an encoder's patches");
    for (size_t i = 0; i < n * k; i++) t->moment[0][i] += t->moment[1][i];
    tn_panels_pack(l->dtype, l->panels, t->moment[0], 0, n, k);
    for (int i = 0; i < 2; i++) {
        tn_free(t->ctx, t->moment[i]);
        t->moment[i] = NULL;
    }
    t->bytes += tn_panels_bytes(l->dtype, n, k);
    return TERN_OK;
}

/* The weights of norms without weights. */
static tern_status make_ones(tn_tower *t, tern_error *err) {
    if (t->s.kind != TN_TOWER_GEMMA4) return TERN_OK;
    t->ones = tn_alloc(t->ctx, TN_MEM_WEIGHTS, (size_t)t->s.width, sizeof *t->ones);
    TN_FAIL_IF(!t->ones, err, TERN_E_MEMORY, "no memory for an encoder of pictures");
    for (int32_t i = 0; i < t->s.width; i++) t->ones[i] = 1;
    return TERN_OK;
}

static tern_status read_tensors(reading *r, tern_error *err) {
    tn_tower *t = r->t;
    t->fingerprint = XXH64(&t->s, offsetof(tn_tower_shape, tile), (XXH64_hash_t)t->scheme);
    TN_TRY(read_wants(r, err));
    TN_TRY(sum_moments(r, err));
    TN_TRY(make_ones(t, err));
    for (size_t i = 0; i < r->n; i++) { /* what is still held in floats */
        want *w = &r->wants[i];
        if (w->vector && *w->vector) t->bytes += (uint64_t)w->n * (uint64_t)w->k * sizeof(float);
        if (w->linear && w->linear->panels)
            t->bytes += tn_panels_bytes(w->linear->dtype, (size_t)w->n, (size_t)w->k);
    }
    TN_FAIL_IF(r->f->st ? tn_safetensors_changed(r->f->st) : tn_gguf_changed(r->f->g), err, TERN_E_IO,
               "%s was written to while it was read", tn_gguf_path(r->f->g));
    return TERN_OK;
}

/* Whether a linear is of those that become codes. */
static bool is_coded(const reading *r, const want *w) {
    const char *at = (const char *)w->linear, *first = (const char *)r->t->layers;
    return at >= first && at < first + (size_t)r->t->s.n_layers * sizeof *r->t->layers;
}

static uint64_t coded_bytes(const want *w) {
    const size_t n = (size_t)w->n, padded = ((size_t)w->k + 63) / 64 * 64;
    return tn_tiles_s8_bytes(n, padded) + (n + TN_TILE_N) * sizeof(int32_t) + 2 * n * sizeof(float);
}

/* What the tensors will take. Linears get their sizes. */
static void count_needs(reading *r) {
    tn_tower *t = r->t;
    uint64_t layer = 0;
    for (size_t i = 0; i < r->n; i++) {
        const want *w = &r->wants[i];
        const size_t n = (size_t)w->n, k = (size_t)w->k;
        uint64_t plain = n * k * sizeof(float);
        if (w->linear) {
            w->linear->n = (int32_t)w->n;
            w->linear->k = (int32_t)w->k;
            plain = tn_panels_bytes(panel_dtype(w->t->dtype), n, k);
        }
        if (i && r->wants[i - 1].layer != w->layer) layer = 0;
        layer += plain;
        if (w->layer < t->s.n_layers && layer > t->layer_bytes) t->layer_bytes = layer;
        t->need_bytes[TN_TOWER_FLOAT] += plain;
        t->need_bytes[TN_TOWER_INT8] += w->linear && is_coded(r, w) ? coded_bytes(w) : plain;
    }
}

tern_status tn_tower_read_tensors(tn_tower *t, const tn_tower_file *f, tn_pool *pool, tern_error *err) {
    enum { OF_A_LAYER = 48, OTHERS = 24 };
    tern_status st = TERN_OK;
    reading r = {.t = t,
                 .f = f,
                 .pool = pool,
                 .cap = (size_t)t->s.n_layers * OF_A_LAYER + OTHERS,
                 .layer = t->s.n_layers};
    r.wants = tn_calloc(t->ctx, TN_MEM_OTHER, r.cap, sizeof *r.wants);
    if (!r.wants) st = tn_fail(err, TERN_E_MEMORY, "no memory for an encoder of %d layers", t->s.n_layers);
    else list_wants(&r);
    if (st == TERN_OK) st = find_tensors(&r, err);
    if (st == TERN_OK) count_needs(&r);
    if (st == TERN_OK && pool) st = read_tensors(&r, err);
    tn_free(t->ctx, r.wants);
    return st;
}
