/* Running a tower, tile by tile: each op over a tile's rows is spread over the pool. */
#include "model/tower_impl.h"

#include "base/cpu.h"
#include "base/finite.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

enum { ALIGN = 64 };

typedef tn_tower_run run;

const tn_tower_shape *tn_tower_shape_of(const tn_tower *t) { return &t->s; }
uint64_t tn_tower_fingerprint(const tn_tower *t) { return t->fingerprint; }
tn_tower_scheme tn_tower_scheme_of(const tn_tower *t) { return t->scheme; }
uint64_t tn_tower_bytes(const tn_tower *t) { return t->bytes; }

void tn_tower_tell(tn_tower *t, const char *stage, double from, double to) {
    t->stage = stage;
    t->from = from;
    t->to = to;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static size_t aligned(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

typedef struct slice {
    void **at;
    size_t n_bytes;
} slice;

enum { MOST_SLICES = 32 };

/* One piece of memory, cut into slices. */
static tern_status cut(run *r, const slice *slices, size_t n, tern_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += aligned(slices[i].n_bytes);
    r->base = tn_alloc(r->t->ctx, TN_MEM_ACTIVATIONS, total, 1);
    TN_FAIL_IF(!r->base, err, TERN_E_MEMORY, "no memory to encode a picture (%zu bytes)", total);
    char *at = r->base;
    for (size_t i = 0; i < n; i++) {
        *slices[i].at = at;
        at += aligned(slices[i].n_bytes);
    }
    return TERN_OK;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* levels | turns | windows | gate | x | h | q | k | v | wide | keys | values | scratch of every thread, and what the INT8 form needs,
 * whose queries, keys and values lie in wide */
static size_t list(run *r, size_t n_threads, slice out[MOST_SLICES]) {
    const tn_tower_shape *s = &r->t->s;
    const bool s8 = r->t->scheme == TN_TOWER_INT8;
    const size_t f = sizeof(float), rows = r->n * r->width * f, heads = (size_t)s->n_heads,
                 pixels = 3 * (size_t)s->patch * (size_t)s->patch,
                 keys = (r->n + TN_TILE_N - 1) / TN_TILE_N * TN_TILE_N,
                 channels = (r->d_head + 1 + TN_TILE_N - 1) / TN_TILE_N * TN_TILE_N,
                 cells = r->n_panels * TN_KV_PANEL * r->width * f,
                 /* what the projector's first linear gives is in the one or the other */
        between = (size_t)tn_tower_rows(s, r->size) * (size_t)r->t->fc.n * f,
                 wide = larger(r->n * larger(larger(r->ff, r->width), pixels) * f, between);
    r->in.ld = tn_tower_s8_ld(larger(r->width, r->ff));
    const size_t step = r->kern->cpu & TN_CPU_AMXINT8 ? 64 : TN_TILE_K; /* what that takes at once */
    r->d_padded = (r->d_head + step - 1) / step * step;
    r->key_bytes = aligned(tn_tiles_s8_bytes(r->n, r->d_padded));
    r->value_bytes = aligned(tn_tiles_s8_bytes(channels, r->n));
    r->scratch_stride = s8 ? aligned(tn_tower_s8_scratch(r) * f) / f
                           : aligned(tn_attn_f32_scratch(r->d_head, r->n_panels * TN_KV_PANEL) * f) / f;
    const slice slices[] = {
        {(void **)&r->levels, 3 * 256 * f},
        {(void **)&r->turns, tn_tower_turns_heads(s->kind) ? r->n * r->d_head * f : 0},
        {(void **)&r->from, s->window ? r->n * sizeof *r->from : 0},
        {(void **)&r->first, s->window ? r->n * sizeof *r->first : 0},
        {(void **)&r->end, s->window ? r->n * sizeof *r->end : 0},
        {(void **)&r->gate,
         s->kind == TN_TOWER_QWEN25VL || s->kind == TN_TOWER_GEMMA4 ? r->n * r->ff * f : 0},
        {(void **)&r->limited, s->kind == TN_TOWER_GEMMA4 ? r->n * larger(r->ff, r->width) * f : 0},
        {(void **)&r->x, rows},
        {(void **)&r->h, larger(rows, between)},
        {(void **)&r->q, s8 ? 0 : rows},
        {(void **)&r->k, s8 ? 0 : rows},
        {(void **)&r->v, s8 ? 0 : rows},
        {(void **)&r->wide, s8 ? larger(wide, 3 * rows) : wide},
        {(void **)&r->keys, s8 ? 0 : cells},
        {(void **)&r->values, s8 ? 0 : cells},
        {(void **)&r->scratch, r->scratch_stride * f * n_threads},
        {(void **)&r->in.codes, s8 ? r->n * r->in.ld : 0},
        {(void **)&r->in.scale, s8 ? r->n * f : 0},
        {(void **)&r->queries, s8 ? heads * r->n * r->d_padded : 0},
        {(void **)&r->key_tiles, s8 ? heads * r->key_bytes : 0},
        {(void **)&r->key_sums, s8 ? heads * keys * sizeof *r->key_sums : 0},
        {(void **)&r->key_scale, s8 ? heads * keys * f : 0},
        {(void **)&r->value_tiles, s8 ? heads * r->value_bytes : 0},
        {(void **)&r->value_sums, s8 ? heads * (keys / TN_TILE_N + 1) * channels * sizeof *r->value_sums : 0},
        {(void **)&r->value_scale, s8 ? heads * channels * f : 0},
    };
    _Static_assert(sizeof slices / sizeof *slices <= MOST_SLICES, "room for all");
    memcpy(out, slices, sizeof slices);
    return sizeof slices / sizeof *slices;
}

static tern_status plan(run *r, tern_error *err) {
    const tn_tower_shape *s = &r->t->s;
    const bool s8 = r->t->scheme == TN_TOWER_INT8;
    slice slices[MOST_SLICES];
    const size_t n = list(r, (size_t)tn_pool_size(r->pool), slices),
                 cells = r->n_panels * TN_KV_PANEL * r->width * sizeof(float);
    TN_TRY(cut(r, slices, n, err));
    if (!tn_tower_turns_heads(s->kind)) r->turns = NULL;
    if (!s->window) r->from = NULL;
    if (s8) { /* attention is over when a feed-forward begins */
        r->q = r->wide;
        return TERN_OK;
    }
    memset(r->keys, 0, cells); /* the last panel has positions that nobody sees */
    memset(r->values, 0, cells);
    return TERN_OK;
}

/* ---- ops ------------------------------------------------------------------------------------------------
 */

static void over_rows(run *r, void (*item)(void *arg, int i_item, int i_thread)) {
    tn_pool_for(r->pool, (int)((r->n + TN_TOWER_ROWS - 1) / TN_TOWER_ROWS), item, r);
}

static void product(run *r, const tn_linear *l, const float *x, float *out, size_t n_rows) {
    tn_linear_run(l, r->kern, r->pool, x, (size_t)l->k, out, (size_t)l->n, n_rows, NULL);
}

/* wide [n][3 * patch * patch]: the values of every patch, [channel][y][x] */
static void patches_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *r = arg;
    const size_t p = (size_t)r->t->s.patch, image = (size_t)r->size.width;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    if (row1 > r->n_patches) row1 = r->n_patches;
    for (size_t i = row0; i < row1; i++) {
        const size_t patch = tn_tower_patch(r, i);
        const uint8_t *at = r->rgb + (patch / r->columns * p * image + patch % r->columns * p) * 3;
        float *out = r->wide + i * 3 * p * p;
        for (size_t c = 0; c < 3; c++)
            for (size_t y = 0; y < p; y++)
                for (size_t x = 0; x < p; x++) *out++ = r->levels[c * 256 + at[(y * image + x) * 3 + c]];
    }
}

static void act_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *r = arg;
    size_t row0, row1;
    tn_tower_span(r, i_item, TN_TOWER_ROWS, &row0, &row1);
    r->kern->act_f32(tn_tower_act(r), r->wide + row0 * r->ff, (row1 - row0) * r->ff);
}

/* A linear of the layer, with its limits. */
static void apply(run *r, const tn_linear *l, tn_tower_part part, const float *x, float *out) {
    float *const *of = r->layer->limits[part].of;
    if (!of[0]) {
        product(r, l, x, out, r->n);
        return;
    }
    tn_tower_limit(r, x, r->limited, l->k, of[0], of[1]);
    product(r, l, r->limited, out, r->n);
    tn_tower_limit(r, out, out, l->n, of[2], of[3]);
}

/* wide [n / shuffle^2][shuffle^2 * width]: a block's patches row after row, side by side */
static void shuffle(const run *r, const float *x) {
    const size_t k = (size_t)r->t->s.shuffle, across = r->columns / k, down = r->n_patches / r->columns / k;
    float *out = r->wide;
    for (size_t i = 0; r->from && i < across * down; i++) { /* a block's patches stand together */
        const size_t at = (size_t)r->from[i * k * k];
        memcpy(r->wide + (at / r->columns / k * across + at % r->columns / k) * k * k * r->width,
               x + i * k * k * r->width, k * k * r->width * sizeof *x);
    }
    if (r->from) return;
    for (size_t by = 0; by < down; by++)
        for (size_t bx = 0; bx < across; bx++)
            for (size_t y = 0; y < k; y++, out += k * r->width)
                memcpy(out, x + ((by * k + y) * r->columns + bx * k) * r->width, k * r->width * sizeof *x);
}

/* wide [n / shuffle^2][width]: the mean of a block's patches, normed */
static void pooled(const run *r, const float *x) {
    const size_t k = (size_t)r->t->s.shuffle, across = r->columns / k, width = r->width;
    const float share = (r->t->pool_norm ? 1 : sqrtf((float)width)) / (float)(k * k);
    for (size_t i = 0; i < (size_t)tn_tower_rows(&r->t->s, r->size); i++) {
        float *out = r->wide + i * width;
        memset(out, 0, width * sizeof *out);
        for (size_t j = 0; j < k * k; j++) {
            const size_t row = (i / across * k + j / k) * r->columns + i % across * k + j % k;
            r->kern->add_f32(out, x + row * width, 1, width);
        }
        for (size_t c = 0; c < width; c++) out[c] *= share;
        for (size_t c = 0; r->t->standard[0] && c < width; c++)
            out[c] = (out[c] - r->t->standard[0][c]) * r->t->standard[1][c];
        r->kern->rmsnorm_f32(out, r->t->pool_norm ? r->t->pool_norm : r->t->ones, r->t->s.eps, out, width);
    }
}

static void gelu_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *r = arg;
    r->kern->act_f32(TN_ACT_GELU_ERF, r->to + (size_t)i_item * r->ldo, r->ldo);
}

/* rows [][row_width] = fc2(gelu(fc1(in))); between: what fc1 gives */
static void merge(run *r, const tn_linear *fc1, const tn_linear *fc2, const float *in, float *between,
                  float *rows) {
    const size_t n = (size_t)tn_tower_rows(&r->t->s, r->size), ld = (size_t)fc1->n;
    product(r, fc1, in, between, n);
    r->to = between;
    r->ldo = ld;
    tn_pool_for(r->pool, (int)n, gelu_item, r);
    tn_linear_run(fc2, r->kern, r->pool, between, ld, rows, (size_t)tn_tower_row_width(&r->t->s), n, NULL);
}

static void merger_norm_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const run *r = arg;
    const size_t at = (size_t)i_item * r->row_width;
    r->kern->layernorm_f32(r->wide + at, r->norm[0], r->norm[1], r->norm_eps, r->h + at, r->row_width);
}

/* h = LN of the neighbours side by side in wide */
static void merger_norm(run *r, float *const *weight_bias, float eps, int32_t width) {
    r->norm = weight_bias;
    r->norm_eps = eps;
    r->row_width = (size_t)width;
    tn_pool_for(r->pool, tn_tower_rows(&r->t->s, r->size), merger_norm_item, r);
}

/* What a layer in the middle gives for the language model's layers. */
static void read_deep(run *r, tn_tower_merger *m, float *rows) {
    shuffle(r, r->x);
    merger_norm(r, m->norm, r->t->s.eps, m->fc1.k);
    merge(r, &m->fc1, &m->fc2, r->h, r->wide, rows);
}

/* ---- a tile ---------------------------------------------------------------------------------------------- */

static void run_layer(run *r, const tn_tower_layer *l) {
    tn_tower_norm(r, l->ln1);
    const tn_product p[] = {{.l = &l->q, .m = r->n, .ldo = r->width, .out = r->q},
                            {.l = &l->k, .m = r->n, .ldo = r->width, .out = r->k},
                            {.l = &l->v, .m = r->n, .ldo = r->width, .out = r->v}};
    if (l->limits[TN_TOWER_Q].of[0]) {
        apply(r, &l->q, TN_TOWER_Q, r->h, r->q);
        apply(r, &l->k, TN_TOWER_K, r->h, r->k);
        apply(r, &l->v, TN_TOWER_V, r->h, r->v);
    } else {
        tn_linears_run(p, 3, r->kern, r->pool, r->h, r->width, NULL);
    }
    tn_tower_attend(r);
    apply(r, &l->out, TN_TOWER_OUT, r->h, r->q);
    tn_tower_add(r, r->q, l->gain[0], l->post[0]);
    tn_tower_norm(r, l->ln2);
    apply(r, &l->up, TN_TOWER_UP, r->h, r->wide);
    if (l->gate.n) {
        apply(r, &l->gate, TN_TOWER_GATE, r->h, r->gate);
        tn_tower_gate(r);
    } else {
        over_rows(r, act_item);
    }
    apply(r, &l->down, TN_TOWER_DOWN, r->wide, r->q);
    tn_tower_add(r, r->q, l->gain[1], l->post[1]);
}

static const float PROJECTOR_EPS = 1e-5f; /* PyTorch's own, which no file says */

/* What the last layer gives. */
static void finish(run *r, float *rows) {
    const tn_tower *t = r->t;
    if (t->post_ln[0]) tn_tower_norm(r, t->post_ln);
    if (t->s.kind == TN_TOWER_GEMMA3 || t->s.kind == TN_TOWER_GEMMA4) pooled(r, t->post_ln[0] ? r->h : r->x);
    else shuffle(r, t->post_ln[0] ? r->h : r->x);
    const bool normed = t->fc_norm[0];
    if (normed) merger_norm(r, t->fc_norm, PROJECTOR_EPS, t->fc.k);
    if (t->fc_out.n) merge(r, &t->fc, &t->fc_out, normed ? r->h : r->wide, normed ? r->wide : r->h, rows);
    else product(r, &t->fc, r->wide, rows, (size_t)tn_tower_rows(&t->s, r->size));
}

static tern_status run_tile(run *r, const atomic_bool *cancel, const tn_pause *pause, float *rows,
                            tern_error *err) {
    const tn_tower *t = r->t;
    size_t n_deep = 0;
    tn_tower_windows(r);
    tn_tower_turns(r);
    over_rows(r, patches_item);
    product(r, &t->patch, r->wide, r->x, r->n_patches);
    if (t->class) memcpy(r->x + r->n_patches * r->width, t->class, r->width * sizeof *r->x);
    tn_tower_positions(r);
    for (int i = 0; i < t->s.n_layers; i++) {
        tn_pause_here(pause);
        const bool goes_on =
            !t->stage || tn_progress(t->ctx, t->stage, t->from + (t->to - t->from) * i / t->s.n_layers);
        /* relaxed: no data follows */
        TN_FAIL_IF(!goes_on || (cancel && atomic_load_explicit(cancel, memory_order_relaxed)), err,
                   TERN_E_CANCELLED, "encoding a picture was cancelled");
        r->windowed = r->from && (i + 1) % t->s.full_every;
        r->layer = &t->layers[i];
        if (t->scheme == TN_TOWER_INT8) tn_tower_s8_layer(r, &t->layers[i]);
        else run_layer(r, &t->layers[i]);
        if (t->layers[i].deep) read_deep(r, t->layers[i].deep, rows + ++n_deep * (size_t)t->s.out);
    }
    if (t->s.queries) TN_TRY(tn_tower_resample(r, rows, err));
    else finish(r, rows);
    const size_t n = (size_t)tn_tower_rows(&t->s, r->size) * (size_t)tn_tower_row_width(&t->s);
    TN_FAIL_IF(!tn_all_finite(rows, n), err, TERN_E_FORMAT,
               "the encoder of pictures computes values that are not finite");
    return TERN_OK;
}

enum { MAX_PATCHES = TN_S8_MAX_K }; /* of values, which are inputs of a product in INT8 */

static tern_status check_size(const tn_tower *t, tn_tower_size z, tern_error *err) {
    const tn_tower_shape *s = &t->s;
    const int32_t block = s->patch * s->shuffle;
    const bool any = tn_tower_any_size(s->kind), tile = z.width == s->image && z.height == s->image;
    TN_FAIL_IF(!any && (z.width > s->image || z.height > s->image), err, TERN_E_INVALID,
               "a tile of %d x %d pixels; the encoder's have %d", z.width, z.height, s->image);
    TN_FAIL_IF((any || !tile) && (z.width < 1 || z.height < 1 || z.width % block || z.height % block), err,
               TERN_E_INVALID, "a picture of %d x %d pixels; the encoder reads multiples of %d", z.width,
               z.height, block);
    TN_FAIL_IF((int64_t)(z.width / s->patch) * (z.height / s->patch) > MAX_PATCHES, err, TERN_E_LIMIT,
               "a picture of %d x %d pixels has more than %d patches", z.width, z.height, MAX_PATCHES);
    TN_FAIL_IF(t->n_places && (z.width / s->patch > t->n_places || z.height / s->patch > t->n_places), err,
               TERN_E_LIMIT,
               "a picture of %d x %d pixels, and the encoder has places for %d patches of a side", z.width,
               z.height, t->n_places);
    return TERN_OK;
}

static void begin(run *r, const tn_tower *t, const tn_kernels *kern, tn_pool *pool, tn_tower_size size) {
    const tn_tower_shape *s = &t->s;
    const size_t columns = (size_t)(size.width / s->patch),
                 n_patches = columns * (size_t)(size.height / s->patch),
                 n = n_patches + (s->kind == TN_TOWER_INTERNVL); /* the class */
    *r = (run){.t = t,
               .kern = kern,
               .pool = pool,
               .size = size,
               .n = n,
               .n_patches = n_patches,
               .columns = columns,
               .width = (size_t)s->width,
               .ff = (size_t)s->ff,
               .d_head = (size_t)(s->width / s->n_heads),
               .n_panels = (n + TN_KV_PANEL - 1) / TN_KV_PANEL};
}

tn_tower_need tn_tower_needs(const tn_tower *t, const tn_kernels *kern, int n_threads, tn_tower_scheme scheme,
                             tn_tower_size size) {
    slice slices[MOST_SLICES];
    tn_tower as = *t;
    run r;
    as.scheme = scheme;
    begin(&r, &as, kern, NULL, size);
    tn_tower_need need = {.weight_bytes = t->need_bytes[scheme],
                          .reading_bytes = scheme == TN_TOWER_INT8
                                               ? t->layer_bytes * (uint64_t)tn_tower_at_once(n_threads)
                                               : 0};
    const size_t n = list(&r, (size_t)n_threads, slices);
    for (size_t i = 0; i < n; i++) need.work_bytes += aligned(slices[i].n_bytes);
    return need;
}

tern_status tn_tower_encode(const tn_tower *t, const tn_kernels *kern, tn_pool *pool, const uint8_t *rgb,
                            tn_tower_size size, const atomic_bool *cancel, const tn_pause *pause, float *rows,
                            tern_error *err) {
    const tn_tower_shape *s = &t->s;
    run r;
    TN_TRY(check_size(t, size, err));
    begin(&r, t, kern, pool, size);
    r.rgb = rgb;
    TN_TRY(plan(&r, err));
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++)
            r.levels[c * 256 + i] = ((float)(i * (1 / 255.0)) - s->mean[c]) / s->std[c];
    for (int i = 0; s->kind == TN_TOWER_GEMMA4 && i < 3 * 256; i++) r.levels[i] = 2 * (r.levels[i] - 0.5f);
    tern_status st = run_tile(&r, cancel, pause, rows, err);
    tn_free(t->ctx, r.base);
    return st;
}
