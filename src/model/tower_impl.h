/* model/tower_impl.h - what the files of a tower share. */
#ifndef TN_MODEL_TOWER_IMPL_H
#define TN_MODEL_TOWER_IMPL_H

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/model.h"
#include "model/tower.h"
#include "model/tower_s8.h"

/* fc2(gelu(fc1(norm(x)))) of neighbours side by side. */
typedef struct tn_tower_merger {
    float *norm[2]; /* weight, bias */
    tn_linear fc1, fc2;
} tn_tower_merger;

/* Limits of what a linear reads and gives: least and most of both. [0] NULL: none. */
typedef struct tn_tower_limits {
    float *of[4];
} tn_tower_limits;

/* MiniCPM-V: what makes rows of patches. */
typedef struct tn_tower_resampler {
    float *query;                           /* [queries][out] */
    float *ln_q[2], *ln_kv[2], *ln_post[2]; /* weight, bias */
    tn_linear kv, q, k, v, given, proj;     /* given: of what attention gives */
} tn_tower_resampler;

typedef enum tn_tower_part {
    TN_TOWER_Q,
    TN_TOWER_K,
    TN_TOWER_V,
    TN_TOWER_OUT,
    TN_TOWER_GATE,
    TN_TOWER_UP,
    TN_TOWER_DOWN,
    TN_N_TOWER_PARTS
} tn_tower_part;

typedef struct tn_tower_layer {
    float *ln1[2], *ln2[2]; /* weight, bias; without a bias the norm is RMS */
    tn_linear q, k, v, out, up, down;
    tn_linear gate;         /* Qwen2.5-VL, else n == 0 */
    tn_tower_s8 part_s8[3]; /* q, k and v, where they have limits, and no qkv_s8 */
    tn_tower_s8 qkv_s8, out_s8, up_s8, down_s8, gate_s8; /* TN_TOWER_INT8: in their place */
    tn_tower_merger *deep;                               /* NULL: the layer is not read */
    float *gain[2];      /* of what attention and the feed-forward add, [width]; NULL: 1 */
    float *post[2];      /* RMS norms of the same; NULL: none */
    float *head_norm[2]; /* RMS norms of a head's queries and keys, [d_head]; NULL: none */
    tn_tower_limits limits[TN_N_TOWER_PARTS];
} tn_tower_layer;

struct tn_tower {
    tn_ctx *ctx;
    tn_tower_shape s;
    tn_tower_scheme scheme;
    tn_linear patch;    /* inputs [channel][y][x] */
    float *moment[2];   /* of a film, while the file is read: their sum is patch */
    float *class;       /* [width] InternVL: what the row is that no patch is; else NULL */
    float *position;    /* [side^2][width]; of the class in front of them; Gemma 4: [2][n_places][width] */
    int32_t n_places;   /* of columns, and of lines */
    float *ones;        /* [width] Gemma 4; else NULL */
    float *standard[2]; /* [width] bias and scale of a pooled row; NULL: none */
    tn_tower_layer *layers;
    float *post_ln[2];
    float *pool_norm;             /* [width] Gemma 3; else NULL */
    float *fc_norm[2];            /* of what fc reads; NULL: none */
    tn_linear fc, fc_out;         /* fc_out.n == 0: fc is not the first of two */
    tn_tower_resampler resampler; /* MiniCPM-V; else zeros */
    uint64_t fingerprint, bytes;
    uint64_t need_bytes[2], layer_bytes; /* weights, by form; the largest layer's in floats */
    const char *stage;                   /* under which progress is told; NULL: none is */
    double from, to;                     /* in it, of a picture */
};

/* A tile on its way. */
typedef struct tn_tower_run {
    const tn_tower *t;
    const tn_kernels *kern;
    tn_pool *pool;
    tn_tower_size size;
    size_t n, n_patches, columns, width, ff, d_head, n_panels; /* n: rows, patches and then the class */
    const uint8_t *rgb;                                        /* of the tile */
    float *levels; /* [3][256]: what a byte of each colour stands for */
    float *turns;  /* [n][d_head] cos and sin of every pair; NULL: nothing is rotated */
    /* Windows: patches stand window by window, and in these block by block. Where each comes from, row after row of the
     * picture, and which ones it sees; NULL: all in their order, and all of them. */
    int32_t *from, *first, *end;
    bool windowed;    /* the layer at work */
    float *gate;      /* [n][ff] */
    float *x, *h;     /* [n][width] */
    float *q, *k, *v; /* [n][width]; TN_TOWER_INT8: q is [n][3 * width], all three side by side, in wide */
    float *wide;      /* [n][widest] */
    float *keys, *values; /* of all heads, as kv_cells.h has them */
    float *scratch;       /* of every thread */
    size_t scratch_stride;
    float *const *norm;          /* of the op at work */
    const float *gain;           /* the same; NULL: 1 */
    const float *post;           /* the same; NULL: none */
    const tn_tower_layer *layer; /* at work */
    float *limited;              /* [n][widest] what a linear with limits reads */
    float least, most;           /* the limits at work */
    float norm_eps;              /* of the projector's */
    /* TN_TOWER_INT8: */
    tn_tower_codes in;          /* of the product at work */
    uint8_t *queries;           /* [n_heads][n][d_padded] */
    int8_t *key_tiles;          /* [n_heads], as gemm_s8.h has them: a key is an output */
    int32_t *key_sums;          /* [n_heads][n rounded up to 16] */
    float *key_scale;           /* the same; the queries' is in it */
    size_t d_padded, key_bytes; /* d_head rounded up; of a head's tiles */
    int8_t *value_tiles;        /* [n_heads], as gemm_s8.h has them: a channel is an output */
    int32_t *value_sums;        /* [n_heads][n / 16 rounded up, and 1][d_head + 1 rounded up to 16] */
    float *value_scale;         /* [n_heads][d_head + 1 rounded up to 16] */
    size_t value_bytes;         /* of a head's tiles */
    const float *rows;          /* what is quantised, [n][row_width] */
    size_t row_width, row_padded;
    const tn_tower_s8 *s8; /* the product at work */
    tn_tower_then then;
    float *to;
    size_t ldo;
    void *base; /* of all memory */
} tn_tower_run;

/* What a tower is read from: an mmproj file, or a folder as the same file would have it. Borrowed. */
typedef struct tn_tower_file {
    const tn_gguf *g;         /* the keys; the tensors too, unless it is a folder */
    const tn_safetensors *st; /* of a folder, else NULL */
    const tn_tensor
        *tensors; /* [n_tensors] of a folder, with the names and shapes that an mmproj file has; sorted */
    size_t n_tensors;
    bool mapped; /* the tensors are pages of a file, which need not stay in memory */
} tn_tower_file;

static inline const tn_tensor *tn_tower_tensor_at(const tn_tower_file *f, size_t i) {
    return f->st ? &f->tensors[i] : tn_gguf_tensor_at(f->g, i);
}
static inline size_t tn_tower_n_tensors(const tn_tower_file *f) {
    return f->st ? f->n_tensors : tn_gguf_n_tensors(f->g);
}
const tn_tensor *tn_tower_tensor(const tn_tower_file *f, const char *name); /* NULL: absent */

typedef struct tn_tower_how {
    tn_ctx *ctx;
    tn_pool *pool; /* NULL: no weight is read */
    int32_t n_embd;
    tn_tower_scheme scheme;
} tn_tower_how;

/* Opens a tower, as tn_tower_open and tn_tower_peek do. */
tern_status tn_tower_open_file(const tn_tower_how *how, const tn_tower_file *f, tn_tower **out,
                               tern_error *err);

/* The encoder in a Hugging Face folder (tower_folder.c). */
typedef struct tn_tower_folder tn_tower_folder;
tern_status tn_tower_folder_open(tn_ctx *ctx, const char *path, tn_tower_folder **out, tern_error *err);
void tn_tower_folder_close(tn_tower_folder **f);
const tn_tower_file *tn_tower_folder_file(const tn_tower_folder *f);

enum { TN_TOWER_ROWS = 32, TN_TOWER_ATTEND_ROWS = 64 }; /* of a part of an op */

/* Finds the tensors of a tower whose shape is read, and reads them unless pool is NULL. On failure
 * tn_tower_close frees what is there. */
tern_status tn_tower_read_tensors(tn_tower *t, const tn_tower_file *f, tn_pool *pool, tern_error *err);

/* Layers that are read together before they become codes. */
static inline int32_t tn_tower_at_once(int n_threads) { return 1 + n_threads / 4; }

/* Part i_item of rows: *row0..*row1-1. */
void tn_tower_span(const tn_tower_run *r, int i_item, int rows, size_t *row0, size_t *row1);
/* h = LN(x) */
void tn_tower_norm(tn_tower_run *r, float *const *weight_bias);
static inline float tn_tower_within(float x, float least, float most) {
    return x < least ? least : x > most ? most : x;
}
/* to [n][width] = x within least .. most */
void tn_tower_limit(tn_tower_run *r, const float *x, float *to, int32_t width, const float *least,
                    const float *most);
/* x += gain y [n][width], or its norm; y is overwritten. */
void tn_tower_add(tn_tower_run *r, float *y, const float *gain, const float *post);
/* h = attention of q, k and v, which are normed and rotated in place where the family does it. */
void tn_tower_attend(tn_tower_run *r);
/* Fills from, first and end. */
void tn_tower_windows(tn_tower_run *r);
static inline size_t tn_tower_patch(const tn_tower_run *r, size_t i) {
    return r->from ? (size_t)r->from[i] : i;
}
static inline void tn_tower_seen(const tn_tower_run *r, size_t i, int32_t *first, int32_t *end) {
    *first = r->windowed ? r->first[i] : 0;
    *end = r->windowed ? r->end[i] : (int32_t)r->n;
}
/* wide = silu(gate) wide; Gemma 4: gelu */
void tn_tower_gate(tn_tower_run *r);
static inline int tn_tower_act(const tn_tower_run *r) {
    return r->t->s.kind == TN_TOWER_INTERNVL ? TN_ACT_GELU_ERF : TN_ACT_GELU_TANH;
}
/* Fills turns, and rotates a head of patch i, where the family does. */
void tn_tower_turns(tn_tower_run *r);
static inline void tn_tower_turn(const tn_tower_run *r, size_t i, float *x) {
    const size_t half = r->d_head / 2;
    if (!r->turns) return;
    const float *turns = r->turns + i * r->d_head;
    if (r->t->s.kind != TN_TOWER_GEMMA4) {
        r->kern->rope_f32(x, turns, r->d_head);
        return;
    }
    r->kern->rope_f32(x, turns, half);
    r->kern->rope_f32(x + half, turns + half, half);
}
/* What the tile's patches stand for where they stand: x += their positions. */
void tn_tower_positions(tn_tower_run *r);
/* rows = what queries make of the patches in h. */
tern_status tn_tower_resample(tn_tower_run *r, float *rows, tern_error *err);
/* The INT8 form's scratch of a thread, in floats, and its layer. */
size_t tn_tower_s8_scratch(const tn_tower_run *r);
static inline size_t tn_tower_s8_ld(size_t n) { /* rows a page apart share a set of the cache */
    n = (n + 63) / 64 * 64;
    return n % 4096 ? n : n + 64;
}
void tn_tower_s8_layer(tn_tower_run *r, const tn_tower_layer *l);

#endif
