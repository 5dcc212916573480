/* model/rows.h - the row-wise operators of a decoder layer, each over rows [row0, row1) of a chunk.
 * The float forward and the NPU pipeline are both made of these and of linears, so they cannot drift apart.
 * A row's result depends on that row, its position and the cache only (decision 5). */
#ifndef TN_MODEL_ROWS_H
#define TN_MODEL_ROWS_H

#include "model/conv.h"
#include "model/delta.h"
#include "model/kv.h"
#include "model/model.h"

enum { TN_MAX_TEXTS = 8 }; /* texts whose next rows one forward evaluates together */

struct tn_rows;

/* Rows that stand in a text in place of tokens' embeddings: what an encoder made of a picture. Their ids begin where
 * the vocabulary ends. */
typedef struct tn_extra_span {
    int32_t first, n; /* ids first .. first + n - 1 */
    const float *x;   /* [n][width]; NULL: not at hand */
    bool whole;       /* its rows see each other */
    int32_t columns;  /* they form a grid of so many columns (axes.h); 0: they stand one after another */
    /* Where they see each other: in layers with a window alone, and later rows within it alone. */
    bool in_windows;
} tn_extra_span;
typedef struct tn_extra_rows {
    int32_t first; /* ids from here on are rows */
    size_t width;  /* of a row: its embedding, then what layers add to it (deepstack) */
    size_t n;
    const tn_extra_span *spans; /* [n] in the order of their ids */
} tn_extra_rows;

/* The span of an id; NULL: there is none. */
static inline const tn_extra_span *tn_extra_span_of(const tn_extra_rows *e, int32_t id) {
    size_t low = 0, high = e->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const tn_extra_span *s = &e->spans[mid];
        if (id < s->first) high = mid;
        else if (id - s->first >= s->n) low = mid + 1;
        else return s;
    }
    return NULL;
}

/* The row of an id; NULL: it is not at hand. */
static inline const float *tn_extra_row(const tn_extra_rows *e, int32_t id) {
    const tn_extra_span *s = tn_extra_span_of(e, id);
    return s && s->x ? s->x + (size_t)(id - s->first) * e->width : NULL;
}

/* Positions first .. end - 1 of a picture whose rows see each other; end 0: the row belongs to none. */
typedef struct tn_row_picture {
    int32_t first, end;
    bool in_windows;
} tn_row_picture;

/* Fills out [n] for the rows of these ids, the first of them at pos0. Returns false where none is of a
 * picture whose rows see each other. A picture that is not whole in these rows and the text before them is
 * none. e may be NULL. */
bool tn_rows_pictures(const tn_extra_rows *e, const int32_t *ids, int32_t n, int32_t pos0,
                      tn_row_picture *out);

/* Where a row stands on the axes of rope, and what the first layers add to it (axes.h). */
typedef struct tn_row_axes {
    int32_t at[TN_AXES];
    const float *deep; /* [n_deepstack][n_embd]; NULL: nothing */
} tn_row_axes;

/* Attends with a text's rows in one layer in place of full attention, spread over the pool. q and out are
 * [n_rows][n_heads * d_head]. run returns false where full attention is wanted. */
typedef struct tn_rows_attend {
    bool (*run)(void *user, const struct tn_rows *r, int layer, const float *q, float *out, tn_pool *pool);
    void *user;
} tn_rows_attend;

/* One chunk of consecutive or tree positions, borrowed by the calls below. */
typedef struct tn_rows {
    const tn_hparams *h;
    const tn_kernels *kern;
    const tn_kv *kv;
    const tn_conv *conv; /* NULL: no layer convolves */
    tn_delta *delta;     /* NULL: no layer is a gated delta net */
    int32_t n_rows;
    const int32_t *pos;  /* [n_rows] position of each row (rope angle) */
    const int32_t *slot; /* [n_rows] cache slot the row's K and V go to; equals pos except in draft trees */
    int32_t tree_base;   /* first slot of a draft tree, or -1 */
    const uint64_t *tree_mask; /* see attn_f32.h; NULL unless a tree */
    size_t n_tree_words;
    const tn_lora_mix *lora;       /* adapters that this text is read with; NULL: none */
    const tn_rows_attend *attend;  /* of the float forward; NULL: attention is full */
    const tn_extra_rows *extra;    /* NULL: every id is a token's */
    const tn_row_picture *picture; /* [n_rows], each whole in this chunk or before it; NULL: there are none */
    const tn_row_axes *axes;       /* [n_rows]; NULL: rows stand at pos */
    const struct tn_pause *pause;  /* between layers, where the text is read alone; NULL: never */
    float *rope_cs; /* [n_rows][tn_rope_tables][n_rot] cos,sin pairs, filled by tn_rows_rope_table */
} tn_rows;

/* Cos and sin of a row's position by a rope table. */
static inline float *tn_rows_rope(const tn_rows *r, int32_t row, int32_t table) {
    return r->rope_cs + (size_t)(row * tn_rope_tables(r->h) + table) * (size_t)r->h->n_rot;
}

/* The row of this chunk that is `back` positions before row i, or where it is none of them, its position
 * in the text: *in_frame tells which. -1: in front of the text. A row of a draft tree looks back along its
 * own branch. */
int32_t tn_rows_before(const tn_rows *r, int32_t i, int32_t back, bool *in_frame);
/* cos/sin for every row's position in every table. use_long: longrope's long factors. */
void tn_rows_rope_table(const tn_rows *r, bool use_long);
/* out = norm(x) with weight w, bias b over columns n_embd; strides in floats. */
void tn_rows_norm(const tn_rows *r, const float *w, const float *b, const float *x, float *out, int32_t row0,
                  int32_t row1);
/* Positions *first .. *end - 1 that row i sees in `layer`: its own and those before it, with the whole picture that it is
 * a row of; or those of the whole text, whose rows are then all here. Of a draft tree: those in front of the tree. */
void tn_rows_seen(const tn_rows *r, int layer, int32_t i, int32_t *first, int32_t *end);
/* Attention of query head `head` for rows [row0,row1). scratch: tn_rows_scratch floats. sinks: of the
 * layer's query heads, or NULL. out
 * [n_rows][n_heads*d]. */
void tn_rows_attention(const tn_rows *r, int layer, const float *sinks, int head, const float *q, float *out,
                       int32_t row0, int32_t row1, float *scratch);
/* The same for a group of query heads that share a KV head: its K and V are read once. For few rows. Where one KV head
 * serves all (latent attention), its heads are several groups, so that threads have one each; else a KV head has one. */
int32_t tn_rows_groups(const tn_hparams *h, int layer);
void tn_rows_attention_group(const tn_rows *r, int layer, const float *sinks, int group, const float *q,
                             float *out, int32_t row0, int32_t row1, float *scratch);
size_t tn_rows_scratch(const tn_hparams *h, int32_t cap_tok);
/* First position a row at `pos` sees in `layer` (sliding windows). */
int32_t tn_rows_first_pos(const tn_hparams *h, int layer, int32_t pos);

#endif
