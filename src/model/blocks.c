#include "model/blocks.h"

#include "base/file.h"
#include "base/status.h"
#include "formats/code_books.h"
#include "formats/gguf.h"
#include "formats/ik_types.h"

#include <string.h>

enum { TILES_PER_ITEM = 8, ROWS_AT_ONCE = 4, BAND_BYTES = 8 << 20, LINE = 64 };

static const struct {
    tn_dtype dtype;
    tn_blocks_type type;
} types[] = {
    {TN_Q8_0, TN_BLOCKS_Q8_0},     {TN_Q4_0, TN_BLOCKS_Q4_0},       {TN_Q4_1, TN_BLOCKS_Q4_1},
    {TN_Q5_0, TN_BLOCKS_Q5_0},     {TN_Q5_1, TN_BLOCKS_Q5_1},       {TN_Q2_K, TN_BLOCKS_Q2_K},
    {TN_Q3_K, TN_BLOCKS_Q3_K},     {TN_Q4_K, TN_BLOCKS_Q4_K},       {TN_Q5_K, TN_BLOCKS_Q5_K},
    {TN_Q6_K, TN_BLOCKS_Q6_K},     {TN_Q6_0, TN_BLOCKS_Q8_0},       {TN_IQ4_NL, TN_BLOCKS_IQ4_NL},
    {TN_IQ4_XS, TN_BLOCKS_IQ4_XS}, {TN_MXFP4, TN_BLOCKS_MXFP4},     {TN_IQ1_S, TN_BLOCKS_IQ1},
    {TN_IQ1_M, TN_BLOCKS_IQ1},     {TN_IQ2_XXS, TN_BLOCKS_IQ2},     {TN_IQ2_XS, TN_BLOCKS_IQ2},
    {TN_IQ2_S, TN_BLOCKS_IQ2},     {TN_IQ3_XXS, TN_BLOCKS_IQ3_XXS}, {TN_IQ3_S, TN_BLOCKS_IQ3_S},
    {TN_TQ1_0, TN_BLOCKS_TQ},      {TN_TQ2_0, TN_BLOCKS_TQ},        {TN_Q1_0, TN_BLOCKS_Q1_0},
    {TN_Q2_0, TN_BLOCKS_Q2_0},     {TN_NVFP4, TN_BLOCKS_NVFP4},     {TN_IQ2_K, TN_BLOCKS_IQ2_K},
    {TN_IQ3_K, TN_BLOCKS_IQ3_K},   {TN_IQ4_K, TN_BLOCKS_IQ4_K},     {TN_IQ5_K, TN_BLOCKS_IQ5_K},
    {TN_IQ6_K, TN_BLOCKS_IQ6_K},   {TN_IQ4_KS, TN_BLOCKS_IQ4_KS},   {TN_IQ4_KSS, TN_BLOCKS_IQ4_KS},
    {TN_IQ5_KS, TN_BLOCKS_IQ5_KS}, {TN_IQ2_KS, TN_BLOCKS_IQ2_KS},   {TN_IQ3_KS, TN_BLOCKS_IQ3_KS},
    {TN_IQ2_KL, TN_BLOCKS_IQ3_KS}, {TN_IQ1_KT, TN_BLOCKS_KT},       {TN_IQ2_KT, TN_BLOCKS_KT},
    {TN_IQ3_KT, TN_BLOCKS_KT},     {TN_IQ4_KT, TN_BLOCKS_KT},
};

/* Whether a type's rows are other ones than those that its tiles are made of. */
static bool has_other_rows(tn_dtype d) {
    return (tn_code_type(d) && d != TN_TQ2_0) || d == TN_Q6_0 || tn_dtype_head_bytes(d);
}

static bool type_of(tn_dtype d, tn_blocks_type *out) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].dtype != d) continue;
        *out = types[i].type;
        return true;
    }
    return false;
}

/* What packed weights of a role become: TN_Q4_1 where all of them keep their codes so, else TN_Q8_0; TN_N_DTYPES: an expert is
 * not packed, or has no blocks. */
static tn_dtype packed_dtype(const tn_source *s, int layer, tn_role role) {
    const tn_hparams *h = tn_source_hparams(s);
    tn_dtype type = TN_Q4_1;
    int64_t rows, cols, n = 1;
    tn_role_shape(h, layer, role, &rows, &cols);
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++)
        if (tn_expert_linears[i].role == role) n = h->n_experts;
    for (int64_t e = 0; e < n; e++) {
        int64_t row = e * (rows / n);
        const tn_packed *p = tn_source_packed_row(s, layer, role, &row);
        if (!p || p->blocks == TN_N_DTYPES) return TN_N_DTYPES;
        if (p->blocks == TN_Q8_0) type = TN_Q8_0;
    }
    return type;
}

/* The type of a role's rows: the file's, or what packed weights become. */
static tn_dtype dtype_in(const tn_source *s, int layer, tn_role role) {
    const tn_tensor *t = tn_source_tensor(s, layer, role);
    if (!t) return TN_N_DTYPES;
    return t->packed ? packed_dtype(s, layer, role) : t->dtype;
}

/* The type that a role's tensor is stored in; false: in none that has blocks, or its rows are not the file's. */
static bool type_in(const tn_source *s, int layer, tn_role role, tn_blocks_type *out) {
    const tn_dtype d = dtype_in(s, layer, role);
    return d != TN_N_DTYPES && !tn_source_crossed(s, layer, role) && type_of(d, out);
}

bool tn_blocks_in_source(const tn_source *s) {
    for (int layer = -1; layer < tn_source_hparams(s)->n_layers; layer++) {
        for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
            tn_blocks_type type;
            if (type_in(s, layer, role, &type)) return true;
        }
    }
    return false;
}

size_t tn_blocks_role_bytes(const tn_source *s, int layer, tn_role role, int64_t rows, int64_t cols) {
    tn_blocks_type type;
    return type_in(s, layer, role, &type) ? tn_blocks_bytes(type, (size_t)rows, (size_t)cols) : 0;
}

/* What a linear takes of a room: whole lines. */
static size_t room_of(tn_blocks_type type, size_t n, size_t k) {
    return (tn_blocks_bytes(type, n, k) + LINE - 1) / LINE * LINE;
}

size_t tn_blocks_linear_room(const tn_source *s, int layer, tn_role role, int64_t rows, int64_t cols) {
    tn_blocks_type type;
    return type_in(s, layer, role, &type) ? room_of(type, (size_t)rows, (size_t)cols) : 0;
}

static size_t tensor_room(const tn_source *s, int layer, tn_role role, int64_t n_linears) {
    int64_t rows, cols;
    tn_role_shape(tn_source_hparams(s), layer, role, &rows, &cols);
    return (size_t)n_linears * tn_blocks_linear_room(s, layer, role, rows / n_linears, cols);
}

size_t tn_blocks_room(const tn_source *s, int layer, bool experts) {
    size_t n = tensor_room(s, layer, TN_W_ROUTER, 1);
    int64_t n_experts = tn_source_hparams(s)->n_experts;
    for (int i = 0; i < TN_N_LAYER_LINEARS; i++) n += tensor_room(s, layer, tn_layer_linears[i].role, 1);
    for (int i = 0; experts && n_experts && i < TN_N_EXPERT_LINEARS; i++)
        n += tensor_room(s, layer, tn_expert_linears[i].role, n_experts);
    return n;
}

/* ---- loading -------------------------------------------------------------------------------------- */

typedef struct load_job {
    const tn_source *src;
    tn_linear *l;
    int layer;
    tn_role role;
    int64_t row0;
    size_t row_bytes;
    int item0;            /* of the band */
    uint8_t *scratch;     /* [threads][tile] for tiles that are turned in place; else NULL */
    const uint8_t *copy;  /* of all rows, where a tile's lie in several tiles; else NULL */
    const uint8_t *first; /* of the file's rows that are in copy */
    tn_dtype dtype;
    uint8_t *
        turned; /* types of other rows: [threads][TN_BLOCKS_N] of them (tn_blocks_from_codes, _from_ik); else NULL */
    float *values;           /* packed weights, whose rows are made in turned: [threads][k]; else NULL */
    _Atomic int64_t bad_row; /* -1: none; relaxed: read when the loop has ended */
} load_job;

static const uint8_t *file_row(const load_job *j, int64_t n) {
    return tn_source_row(j->src, j->layer, j->role, j->row0 + n);
}

/* Q6_0 becomes Q8_0: the same scale, and values of a byte. */
static void widen_q6_0(const uint8_t *row, int32_t k, uint8_t *out) {
    for (; k > 0;
         k -= 32, row += tn_dtype_block_bytes(TN_Q6_0), out += tn_blocks_traits_of[TN_BLOCKS_Q8_0].bytes) {
        memcpy(out, row, 2);
        tn_q6_0_values(row, (int8_t *)out + 2);
    }
}

static bool q6_0_finite(const uint8_t *row, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += (size_t)tn_dtype_block_bytes(TN_Q6_0))
        if ((row[i + 1] & 0x7c) == 0x7c) return false;
    return true;
}

/* A file's row as tn_blocks_repack takes it. */
static void turn_row(const load_job *j, const uint8_t *row, uint8_t *out) {
    if (j->dtype == TN_Q6_0) {
        widen_q6_0(row, j->l->k, out);
        return;
    }
    const int32_t head = tn_dtype_head_bytes(j->dtype);
    const float d = head ? tn_ik_d(j->dtype, row) : 0;
    tn_code_block b;
    row += head;
    for (int32_t k = 0; head && k < j->l->k; k += TN_IK_BLOCK) {
        tn_ik_block ik;
        tn_ik_read(j->dtype, row, &ik);
        tn_blocks_from_ik(j->l->blocks_type, ik.code, ik.scale, ik.second, d, out);
        row += tn_dtype_block_bytes(j->dtype);
        out += tn_blocks_traits_of[j->l->blocks_type].bytes;
    }
    if (head) return;
    for (int32_t k = 0; k < j->l->k; k += TN_CODE_BLOCK) {
        tn_code_read(j->dtype, row, &b);
        tn_blocks_from_codes(j->l->blocks_type, b.code, b.scale, b.d, out);
        row += tn_dtype_block_bytes(j->dtype);
        out += tn_blocks_traits_of[j->l->blocks_type].bytes;
    }
}

static bool row_finite(const load_job *j, const uint8_t *row) {
    if (!j->turned) return tn_blocks_finite(j->l->blocks_type, row, j->row_bytes);
    if (j->dtype == TN_Q6_0) return q6_0_finite(row, j->row_bytes);
    return tn_ik_type(j->dtype) ? tn_ik_finite(j->dtype, row, j->row_bytes)
                                : tn_code_finite(j->dtype, row, j->row_bytes);
}

/* Rows n .. of a tile, from weights that a folder has packed: those that lie together there at once. */
static void make_tile(load_job *j, int32_t n, int64_t n_rows, int i_thread, uint8_t *tile) {
    uint8_t *made = j->turned + (size_t)i_thread * TN_BLOCKS_N * j->row_bytes;
    float *values = j->values + (size_t)i_thread * (size_t)j->l->k;
    const uint8_t *rows[TN_BLOCKS_N];
    for (int64_t i = 0, together; i < n_rows; i += together) {
        int64_t first = j->row0 + n + i;
        const tn_packed *p = tn_source_packed_row(j->src, j->layer, j->role, &first);
        for (together = 1; i + together < n_rows; together++) {
            int64_t next = j->row0 + n + i + together;
            if (tn_source_packed_row(j->src, j->layer, j->role, &next) != p || next != first + together)
                break;
        }
        tn_packed_blocks(p, (uint64_t)first, (uint64_t)together, j->dtype, values,
                         made + (size_t)i * j->row_bytes);
    }
    for (int64_t i = 0; i < n_rows; i++) {
        rows[i] = made + (size_t)i * j->row_bytes;
        if (!tn_blocks_finite(j->l->blocks_type, rows[i], j->row_bytes))
            atomic_store_explicit(&j->bad_row, n + i, memory_order_relaxed);
    }
    tn_blocks_repack(j->l->blocks_type, rows, (size_t)n_rows, (size_t)j->l->k, tile);
}

static void load_item(void *arg, int i_item, int i_thread) {
    load_job *j = arg;
    tn_linear *l = j->l;
    const size_t tile_bytes = TN_BLOCKS_N * j->row_bytes;
    const size_t turned_bytes = tn_blocks_bytes(l->blocks_type, TN_BLOCKS_N, (size_t)l->k);
    int32_t n0 = (j->item0 + i_item) * TILES_PER_ITEM * TN_BLOCKS_N, n1 = n0 + TILES_PER_ITEM * TN_BLOCKS_N;
    if (n1 > l->n) n1 = l->n;
    for (int32_t n = n0; n < n1; n += TN_BLOCKS_N) {
        const uint8_t *rows[TN_BLOCKS_N];
        size_t n_rows = n1 - n < TN_BLOCKS_N ? (size_t)(n1 - n) : TN_BLOCKS_N;
        uint8_t *tile = (uint8_t *)l->blocks + tn_blocks_bytes(l->blocks_type, (size_t)n, (size_t)l->k);
        uint8_t *mine = j->scratch ? j->scratch + (size_t)i_thread * tile_bytes : NULL;
        if (j->values) {
            make_tile(j, n, (int64_t)n_rows, i_thread, tile);
            continue;
        }
        if (mine) memcpy(mine, tile, n_rows * j->row_bytes);
        for (size_t i = 0; i < n_rows; i++) {
            if (j->copy) rows[i] = j->copy + (file_row(j, n + (int64_t)i) - j->first);
            else rows[i] = mine ? mine + i * j->row_bytes : file_row(j, n + (int64_t)i);
            if (!row_finite(j, rows[i]))
                atomic_store_explicit(&j->bad_row, n + (int64_t)i, memory_order_relaxed);
            if (!j->turned) continue;
            uint8_t *turned = j->turned + (size_t)i_thread * turned_bytes + i * (turned_bytes / TN_BLOCKS_N);
            turn_row(j, rows[i], turned);
            rows[i] = turned;
        }
        tn_blocks_repack(l->blocks_type, rows, n_rows, (size_t)l->k, tile);
    }
}

static size_t row_bytes_of(tn_dtype dtype, int64_t k) {
    return (size_t)tn_dtype_row_bytes(dtype, (uint64_t)k);
}

static tern_status check_numbers(const load_job *j, tern_error *err) {
    const tn_tensor *t = tn_source_tensor(j->src, j->layer, j->role);
    int64_t bad = atomic_load_explicit(&j->bad_row, memory_order_relaxed), row = j->row0 + bad;
    const tn_packed *p = bad >= 0 && t->packed ? tn_source_packed_row(j->src, j->layer, j->role, &row) : NULL;
    TN_FAIL_IF(p, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " has a scale or an offset in row %lld that is no number "
               "of 16 bits (--scheme float reads larger ones)",
               p->q.file, p->q.name, p->q.off_bytes, (long long)row);
    TN_FAIL_IF(bad >= 0, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64
               " has a block in row %lld whose scale is NaN or an infinity",
               t->file, t->name, t->off_bytes, (long long)bad);
    return TERN_OK;
}

tern_status tn_blocks_load(tn_ctx *ctx, tn_pool *pool, const tn_source *src, int layer, tn_role role,
                           int64_t row0, uint8_t **room, tn_linear *l, tern_error *err) {
    const tn_tensor *t = tn_source_tensor(src, layer, role);
    if (!type_in(src, layer, role, &l->blocks_type)) return TERN_OK;
    size_t bytes = tn_blocks_bytes(l->blocks_type, (size_t)l->n, (size_t)l->k);
    l->blocks_in_room = room && *room;
    if (l->blocks_in_room) {
        l->blocks = *room;
        *room += room_of(l->blocks_type, (size_t)l->n, (size_t)l->k);
    } else {
        l->blocks = tn_alloc(ctx, TN_MEM_WEIGHTS, bytes, 1);
    }
    TN_FAIL_IF(!l->blocks, err, TERN_E_MEMORY, "no memory for %s of layer %d (%zu bytes)", tn_role_name(role),
               layer, bytes);
    load_job j = {.src = src,
                  .l = l,
                  .layer = layer,
                  .role = role,
                  .row0 = row0,
                  .dtype = dtype_in(src, layer, role),
                  .bad_row = -1};
    j.row_bytes = row_bytes_of(j.dtype, l->k);
    const size_t n_threads = (size_t)tn_pool_size(pool);
    bool ok = true;
    if (has_other_rows(j.dtype) || t->packed) {
        bytes = tn_blocks_bytes(l->blocks_type, TN_BLOCKS_N, (size_t)l->k);
        j.turned = tn_alloc(ctx, TN_MEM_OTHER, n_threads, bytes);
        ok = j.turned;
    }
    if (t->packed) {
        j.values = tn_alloc(ctx, TN_MEM_OTHER, n_threads * (size_t)l->k, sizeof *j.values);
        ok = ok && j.values;
    }
    if (!ok) {
        tn_free(ctx, j.turned);
        tn_free(ctx, j.values);
        return tn_fail(err, TERN_E_MEMORY, "no memory to read %s of layer %d", tn_role_name(role), layer);
    }
    /* A band's pages of the embedding and of the output layer are given back before the next one is read, so
     * that these large matrices are never there twice. Their rows lie in order; a layer's rows may not, and
     * its pages go when the layer is complete. */
    int32_t rows = TILES_PER_ITEM * TN_BLOCKS_N;
    int n_items = (l->n + rows - 1) / rows, band = (int)(BAND_BYTES / (rows * j.row_bytes)) + 1;
    for (; j.item0 < n_items; j.item0 += band) {
        int n = n_items - j.item0 < band ? n_items - j.item0 : band;
        int64_t r0 = (int64_t)j.item0 * rows,
                r1 = r0 + (int64_t)n * rows < l->n ? r0 + (int64_t)n * rows : l->n;
        tn_pool_for(pool, n, load_item, &j);
        if (layer < 0 && !t->packed)
            tn_file_release(tn_source_row(src, layer, role, row0 + r0), (uint64_t)(r1 - r0) * j.row_bytes);
    }
    tn_free(ctx, j.turned);
    tn_free(ctx, j.values);
    return check_numbers(&j, err);
}

/* Where the file's rows row0 .. row0 + n - 1 of a role begin; NULL: others lie between them. *in_order: each lies
 * after the one before. */
static const uint8_t *rows_together(const tn_source *src, int layer, tn_role role, int64_t row0, int64_t n,
                                    size_t row_bytes, bool *in_order) {
    const uint8_t *first = tn_source_row(src, layer, role, row0), *last = first;
    *in_order = tn_source_rows_in_order(src, layer, role);
    if (*in_order) return first;
    for (int64_t i = 1; i < n; i++) {
        const uint8_t *row = tn_source_row(src, layer, role, row0 + i);
        first = row < first ? row : first;
        last = row > last ? row : last;
    }
    return (size_t)(last - first) == (size_t)(n - 1) * row_bytes ? first : NULL;
}

bool tn_blocks_stay(const tn_source *s, int layer, tn_role role) {
    tn_blocks_type type;
    const tn_tensor *t = tn_source_tensor(s, layer, role);
    return type_in(s, layer, role, &type) && !t->packed && !has_other_rows(t->dtype);
}

bool tn_blocks_place(const tn_source *src, int layer, tn_role role, int64_t row0, uint8_t *tensor,
                     bool has_more, tn_linear *l) {
    const tn_tensor *t = tn_source_tensor(src, layer, role);
    bool in_order;
    if (!tn_blocks_stay(src, layer, role) || !type_of(t->dtype, &l->blocks_type)) return false;
    const size_t row_bytes = row_bytes_of(t->dtype, l->k);
    const size_t n_tiled =
        has_more ? ((size_t)l->n + TN_BLOCKS_N - 1) / TN_BLOCKS_N * TN_BLOCKS_N : (size_t)l->n;
    if (tn_blocks_bytes(l->blocks_type, (size_t)l->n, (size_t)l->k) != n_tiled * row_bytes) return false;
    const uint8_t *first = rows_together(src, layer, role, row0, l->n, row_bytes, &in_order);
    if (!first) return false;
    l->blocks = tensor + (first - t->data);
    l->blocks_in_room = true;
    return true;
}

tern_status tn_blocks_turn(tn_ctx *ctx, tn_pool *pool, const tn_source *src, int layer, tn_role role,
                           int64_t row0, tn_linear *l, tern_error *err) {
    const int n_items = (l->n + TILES_PER_ITEM * TN_BLOCKS_N - 1) / (TILES_PER_ITEM * TN_BLOCKS_N);
    load_job j = {.src = src, .l = l, .layer = layer, .role = role, .row0 = row0, .bad_row = -1};
    bool in_order;
    j.row_bytes = row_bytes_of(tn_source_tensor(src, layer, role)->dtype, l->k);
    j.first = rows_together(src, layer, role, row0, l->n, j.row_bytes, &in_order);
    const size_t n_scratch = in_order ? (size_t)tn_pool_size(pool) * TN_BLOCKS_N : (size_t)l->n;
    uint8_t *room = tn_alloc(ctx, TN_MEM_OTHER, n_scratch, j.row_bytes);
    TN_FAIL_IF(!room, err, TERN_E_MEMORY, "no memory to turn %s of layer %d", tn_role_name(role), layer);
    if (in_order) j.scratch = room;
    else j.copy = memcpy(room, l->blocks, (size_t)l->n * j.row_bytes);
    tn_pool_for(pool, n_items, load_item, &j);
    tn_free(ctx, room);
    return check_numbers(&j, err);
}

typedef struct turn_job {
    tn_linear *l;
    size_t row_bytes; /* of TN_BLOCKS_Q8_0 */
    float *rows;      /* [threads][k] */
    uint8_t *blocks;  /* [threads][TN_BLOCKS_N][row_bytes] */
} turn_job;

static void turn_item(void *arg, int i_item, int i_thread) {
    turn_job *j = arg;
    tn_linear *l = j->l;
    size_t k = (size_t)l->k, n = (size_t)i_item * TN_BLOCKS_N, n_rows = (size_t)l->n - n;
    const uint8_t *rows[TN_BLOCKS_N];
    if (n_rows > TN_BLOCKS_N) n_rows = TN_BLOCKS_N;
    for (size_t i = 0; i < n_rows; i++) {
        uint8_t *row = j->blocks + ((size_t)i_thread * TN_BLOCKS_N + i) * j->row_bytes;
        tn_panels_row(l->dtype, l->panels, n + i, k, j->rows + (size_t)i_thread * k);
        tn_quantise_q8_0(j->rows + (size_t)i_thread * k, row, k);
        rows[i] = row;
    }
    tn_blocks_repack(TN_BLOCKS_Q8_0, rows, n_rows, k,
                     (uint8_t *)l->blocks + tn_blocks_bytes(TN_BLOCKS_Q8_0, n, k));
}

tern_status tn_blocks_from_panels(tn_ctx *ctx, tn_pool *pool, tn_linear *l, size_t *n_bytes,
                                  tern_error *err) {
    if (l->k % 32) return TERN_OK;
    size_t bytes = tn_blocks_bytes(TN_BLOCKS_Q8_0, (size_t)l->n, (size_t)l->k),
           n_threads = (size_t)tn_pool_size(pool);
    turn_job j = {.l = l, .row_bytes = (size_t)l->k / 32 * 34};
    void *tiles = tn_alloc(ctx, TN_MEM_WEIGHTS, bytes, 1);
    j.rows = tn_alloc(ctx, TN_MEM_OTHER, n_threads * (size_t)l->k, sizeof *j.rows);
    j.blocks = tn_alloc(ctx, TN_MEM_OTHER, n_threads * TN_BLOCKS_N * j.row_bytes, 1);
    tern_status st = TERN_OK;
    if (tiles && j.rows && j.blocks) {
        l->blocks = tiles;
        l->blocks_type = TN_BLOCKS_Q8_0;
        tn_pool_for(pool, (l->n + TN_BLOCKS_N - 1) / TN_BLOCKS_N, turn_item, &j);
        tn_free(ctx, l->panels);
        l->panels = NULL;
        *n_bytes = bytes;
    } else {
        tn_free(ctx, tiles);
        st = tn_fail(err, TERN_E_MEMORY, "no memory for weights in blocks (%zu bytes)", bytes);
    }
    tn_free(ctx, j.rows);
    tn_free(ctx, j.blocks);
    return st;
}

/* ---- running -------------------------------------------------------------------------------------- */

size_t tn_blocks_acts(size_t k, size_t n_rows) { return tn_blocks_n_chunks(k) * n_rows; }

/* Products of one form of quantised rows. */
typedef struct run_job {
    const tn_product *p;
    size_t n_products, k, ldx;
    const tn_kernels *kern;
    const float *x;
    tn_blocks_act *acts;
    size_t n_per_item;
    int first_rows[TN_MAX_PRODUCTS + 1], first_item[TN_MAX_PRODUCTS + 1]; /* items before each product */
} run_job;

static tn_blocks_act *acts_of(const run_job *j, const tn_product *p) {
    return j->acts + tn_blocks_acts(j->k, p->row0);
}

/* The product that an item is of; *i_item is left counted from its own first one. */
static const tn_product *product_of(const run_job *j, const int *first, int *i_item) {
    size_t i = 0;
    while (*i_item >= first[i + 1]) i++;
    *i_item -= first[i];
    return &j->p[i];
}

static void quantise_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run_job *j = arg;
    const tn_product *p = product_of(j, j->first_rows, &i_item);
    size_t m0 = (size_t)i_item * ROWS_AT_ONCE, m1 = m0 + ROWS_AT_ONCE < p->m ? m0 + ROWS_AT_ONCE : p->m;
    for (size_t m = m0; m < m1; m++)
        j->kern->blocks_quantise(p->l->blocks_type, j->x + (p->row0 + m) * j->ldx, j->k, acts_of(j, p) + m,
                                 p->m);
}

static void product_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run_job *j = arg;
    const tn_product *p = product_of(j, j->first_item, &i_item);
    size_t n = (size_t)p->l->n, n0 = (size_t)i_item * j->n_per_item, n1 = n0 + j->n_per_item;
    j->kern->blocks_gemm(&(tn_blocks_args){.type = p->l->blocks_type,
                                           .tiles = p->l->blocks,
                                           .a = acts_of(j, p),
                                           .bias = p->l->bias,
                                           .out = p->out,
                                           .ldo = p->ldo,
                                           .m = p->m,
                                           .n = n,
                                           .k = j->k,
                                           .n0 = n0,
                                           .n1 = n1 < n ? n1 : n});
}

static size_t n_pairs(const tn_linear *l) { return ((size_t)l->n + 2 * TN_BLOCKS_N - 1) / (2 * TN_BLOCKS_N); }

static bool same_form(const tn_linear *a, const tn_linear *b) {
    const tn_blocks_traits *s = &tn_blocks_traits_of[a->blocks_type],
                           *t = &tn_blocks_traits_of[b->blocks_type];
    return s->group == t->group && s->offset == t->offset && s->has_min == t->has_min;
}

void tn_blocks_run(const tn_product *p, size_t n, const tn_kernels *kern, tn_pool *pool, const float *x,
                   size_t ldx, tn_blocks_act *acts) {
    run_job j = {.kern = kern, .x = x, .ldx = ldx, .k = (size_t)p->l->k, .acts = acts, .p = p};
    while (j.n_products < n && j.n_products < TN_MAX_PRODUCTS && same_form(p->l, p[j.n_products].l))
        j.n_products++;
    /* Pairs of tiles are what the products work on; few enough an item that threads of unequal speed
     * finish together, and two at least, because an item's first lines are not prefetched. */
    size_t pairs = 0, n_threads = (size_t)tn_pool_size(pool);
    for (size_t i = 0; i < j.n_products; i++) pairs += n_pairs(p[i].l);
    size_t per_item = pairs / (n_threads * 16);
    if (per_item < 2) per_item = pairs < 4 * n_threads ? 1 : 2;
    j.n_per_item = per_item * 2 * TN_BLOCKS_N;
    for (size_t i = 0; i < j.n_products; i++) { /* the same rows are quantised once */
        bool known = i && p[i].row0 == p[i - 1].row0;
        j.first_rows[i + 1] =
            j.first_rows[i] + (known ? 0 : (int)((p[i].m + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE));
        j.first_item[i + 1] = j.first_item[i] + (int)((n_pairs(p[i].l) + per_item - 1) / per_item);
    }
    tn_pool_for(pool, j.first_rows[j.n_products], quantise_item, &j);
    tn_pool_for(pool, j.first_item[j.n_products], product_item, &j);
    if (j.n_products < n) tn_blocks_run(p + j.n_products, n - j.n_products, kern, pool, x, ldx, acts);
}
