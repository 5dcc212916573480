#include "media/medium.h"

#include "base/status.h"
#include "base/sum.h"
#include "media/resample.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- sizes, as transformers' image_processing_idefics3.py has them ------------------------------------- */

enum { MAX_SIDE = 4096 };

typedef struct size {
    int32_t width, height;
} size;

/* The longest side becomes `longest`, also upwards; the other one becomes even. */
static size to_longest(size s, int32_t longest) {
    double aspect = (double)s.width / s.height;
    size out;
    if (s.width >= s.height) {
        out = (size){longest, (int32_t)(longest / aspect)};
        out.height += out.height % 2;
    } else {
        out = (size){(int32_t)(longest * aspect), longest};
        out.width += out.width % 2;
    }
    if (out.width < 1) out.width = 1;
    if (out.height < 1) out.height = 1;
    return out;
}

static size below_most(size s) {
    double aspect = (double)s.width / s.height;
    if (s.width >= s.height && s.width > MAX_SIDE) s = (size){MAX_SIDE, (int32_t)(MAX_SIDE / aspect)};
    else if (s.height > s.width && s.height > MAX_SIDE) s = (size){(int32_t)(MAX_SIDE * aspect), MAX_SIDE};
    if (s.width < 1) s.width = 1;
    if (s.height < 1) s.height = 1;
    return s;
}

static int32_t up_to_multiple(int32_t n, int32_t of) { return (n + of - 1) / of * of; }

static size to_tiles(size s, int32_t tile) {
    double aspect = (double)s.width / s.height;
    if (s.width >= s.height) {
        s.width = up_to_multiple(s.width, tile);
        s.height = up_to_multiple((int32_t)(s.width / aspect), tile);
    } else {
        s.height = up_to_multiple(s.height, tile);
        s.width = up_to_multiple((int32_t)(s.height * aspect), tile);
    }
    return s;
}

/* ---- sizes, as image_processing_qwen2_vl.py has them ---------------------------------------------------- */

enum { MAX_ASPECT = 200 };

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Whole blocks of `of` pixels in x, which is scaled by `by`: the nearest, halves to even ones, or those below or above. */
static int32_t nearest_multiple(int32_t x, int32_t of) { return (int32_t)nearbyint((double)x / of) * of; }
static int32_t below(int32_t x, double by, int32_t of) {
    const int32_t n = (int32_t)floor(x / by / of) * of;
    return n > of ? n : of;
}
static int32_t above(int32_t x, double by, int32_t of) { return (int32_t)ceil(x * by / of) * of; }

static void to_blocks(const tn_tower_shape *s, size from, int32_t least, size *out) {
    const int32_t of = s->patch * s->shuffle;
    const double area = (double)from.width * from.height;
    *out = (size){larger(least, nearest_multiple(from.width, of)),
                  larger(least, nearest_multiple(from.height, of))};
    const int64_t now = (int64_t)out->width * out->height;
    if (now > s->max_pixels) {
        const double by = sqrt(area / (double)s->max_pixels);
        *out = (size){below(from.width, by, of), below(from.height, by, of)};
    } else if (now < s->min_pixels) {
        const double by = sqrt((double)s->min_pixels / area);
        *out = (size){above(from.width, by, of), above(from.height, by, of)};
    }
}

static tern_status to_qwen(const tn_tower_shape *s, size from, size *out, tern_error *err) {
    const int32_t longer = larger(from.width, from.height), shorter = from.width + from.height - longer;
    TN_FAIL_IF(longer > MAX_ASPECT * (int64_t)shorter, err, TERN_E_UNSUPPORTED,
               "a picture of %d x %d pixels: the model reads none with a side more than %d times the other",
               from.width, from.height, MAX_ASPECT);
    to_blocks(s, from, 0, out);
    return TERN_OK;
}

/* ---- sizes, as image_processing_lfm2_vl.py has them ----------------------------------------------------- */

/* The processor fails where a side of one block leaves more patches than it has places for. */
static tern_status to_lfm2(const tn_tower_shape *s, size from, size *out, tern_error *err) {
    to_blocks(s, from, s->patch * s->shuffle, out);
    TN_FAIL_IF((int64_t)out->width * out->height > s->max_pixels, err, TERN_E_UNSUPPORTED,
               "a picture of %d x %d pixels: the model reads none of which one side is so much longer than "
               "the other",
               from.width, from.height);
    return TERN_OK;
}

/* ---- sizes, as image_processing_gemma4.py has them ------------------------------------------------------ */

static size to_gemma4(const tn_tower_shape *s, size from) {
    const int32_t of = s->patch * s->shuffle;
    const double by = sqrt((double)s->max_pixels / ((double)from.width * from.height));
    size to = {(int32_t)floor(by * from.width / of) * of, (int32_t)floor(by * from.height / of) * of};
    const double most = (double)(s->max_pixels / of / of);
    if (!to.height) to.width = (int32_t)fmin(floor((double)from.width / from.height), most) * of;
    else if (!to.width) to.height = (int32_t)fmin(floor((double)from.height / from.width), most) * of;
    return (size){larger(to.width, of), larger(to.height, of)};
}

/* ---- sizes, as image_processing_minicpmv.py has them ---------------------------------------------------- */

static int32_t divided(double length, int32_t by) { return larger((int32_t)nearbyint(length / by) * by, by); }

/* The side's pixels at the tile's area, upwards too where `grow`; whole patches. */
static size to_minicpm(const tn_tower_shape *s, double width, double height, bool grow) {
    if (grow || width * height > (double)s->image * s->image) {
        const double aspect = width / height;
        height = (double)(int32_t)(s->image / sqrt(aspect));
        width = (double)(int32_t)(height * aspect);
    }
    return (size){divided(width, s->patch), divided(height, s->patch)};
}

/* Of as many slices as the picture has tiles' areas, one less or one more, the grid whose aspect is the nearest; of one
 * slice there is none. */
static size minicpm_grid(const tn_tower_shape *s, size from) {
    enum { MOST = 9 };
    const double area = (double)from.width * from.height, aspect = log((double)from.width / from.height);
    const int32_t n = (int32_t)fmin(ceil(area / ((double)s->image * s->image)), MOST);
    double least = INFINITY;
    size best = {1, 1};
    if (n <= 1) return (size){0, 0};
    for (int32_t i = n - 1; i <= n + 1; i++)
        for (int32_t columns = 1; i > 1 && i <= MOST && columns <= i; columns++) {
            if (i % columns) continue;
            const double off = fabs(aspect - log((double)columns / (i / columns)));
            if (off < least) best = (size){columns, i / columns}, least = off;
        }
    return best;
}

/* ---- tiles of a grid ------------------------------------------------------------------------------------ */

static bool is_cut(const tn_tower_shape *s, size from) {
    const int32_t of = s->patch * s->shuffle;
    const int64_t width = larger(s->patch, nearest_multiple(from.width, of)),
                  height = larger(s->patch, nearest_multiple(from.height, of));
    return width * height > 2 * (int64_t)s->tile * s->tile;
}

/* The grid of min_tiles to max_tiles tiles whose aspect is the nearest to the picture's. Of several, that of more tiles
 * while the picture has more than half their pixels. */
static size nearest_grid(const tn_tower_shape *s, size from, int32_t tile) {
    const double aspect = (double)from.width / from.height, area = (double)from.width * from.height;
    double least = INFINITY;
    size best = {1, 1};
    for (int32_t n = s->min_tiles; n <= s->max_tiles; n++)
        for (int32_t columns = 1; columns <= n; columns++) {
            if (n % columns) continue;
            const size grid = {columns, n / columns};
            const double off = fabs(aspect - (double)grid.width / grid.height);
            if (off < least || (off == least && area > 0.5 * tile * tile * n)) best = grid;
            if (off < least) least = off;
        }
    return best;
}

/* ---- views ------------------------------------------------------------------------------------------------ */

static void cut(const tn_picture *p, int32_t row, int32_t column, int32_t view, tn_medium *m) {
    const tn_view *v = &m->views[view];
    size_t n = (size_t)v->width * 3;
    for (int32_t y = 0; y < v->height; y++)
        memcpy(m->rgb + v->at + (size_t)y * n,
               p->rgb + ((size_t)(row * v->height + y) * (size_t)p->width + (size_t)(column * v->width)) * 3,
               n);
}

/* Room for rows x columns tiles, and for a view of the whole of another size. */
static tern_status make_room(tn_ctx *ctx, const tn_tower_shape *s, int32_t rows, int32_t columns, size whole,
                             tn_medium *m, tern_error *err) {
    const int32_t tile = s->tile ? s->tile : s->image;
    const size_t n_bytes = (size_t)tile * (size_t)tile * 3;
    *m = (tn_medium){
        .ctx = ctx, .kind = s->kind, .rows = rows, .columns = columns, .n_views = rows * columns + 1};
    m->views = tn_alloc(ctx, TN_MEM_OTHER, (size_t)m->n_views, sizeof *m->views);
    m->rgb = tn_alloc(ctx, TN_MEM_OTHER,
                      (size_t)(m->n_views - 1) * n_bytes + (size_t)whole.width * (size_t)whole.height * 3, 1);
    TN_FAIL_IF(!m->rgb || !m->views, err, TERN_E_MEMORY, "no memory for %d tiles of a picture", m->n_views);
    for (int32_t i = 0; i < m->n_views; i++) {
        const size z = i < m->n_views - 1 ? (size){tile, tile} : whole;
        m->views[i] = (tn_view){z.width, z.height, tn_tower_rows(s, (tn_tower_size){z.width, z.height}),
                                (size_t)i * n_bytes, 0};
    }
    return TERN_OK;
}

/* The view of the whole is made of the picture as it is by then, in whatever size. */
static tern_status add_overview(const tn_picture *p, tn_filter filter, tn_medium *m, tern_error *err) {
    const tn_view *v = &m->views[m->n_views - 1];
    tn_picture whole;
    TN_TRY(tn_picture_resize(p, filter, v->width, v->height, &whole, err));
    memcpy(m->rgb + v->at, whole.rgb, (size_t)v->width * (size_t)v->height * 3);
    tn_picture_free(&whole);
    return TERN_OK;
}

/* The picture stretched to a grid, and cut. */
static tern_status add_grid(const tn_picture *p, tn_filter filter, tn_medium *m, tern_error *err) {
    tn_picture stretched;
    if (!m->rows) return TERN_OK;
    TN_TRY(tn_picture_resize(p, filter, m->columns * m->views->width, m->rows * m->views->height, &stretched,
                             err));
    for (int32_t r = 0; r < m->rows; r++)
        for (int32_t c = 0; c < m->columns; c++) cut(&stretched, r, c, r * m->columns + c, m);
    tn_picture_free(&stretched);
    return TERN_OK;
}

static tern_status add_tiles(tn_picture *p, const tn_tower_shape *s, tn_medium *m, tern_error *err) {
    const int32_t tile = s->image;
    const size to = to_tiles((size){p->width, p->height}, tile);
    tn_picture stretched;
    TN_TRY(tn_picture_resize(p, TN_FILTER_LANCZOS, to.width, to.height, &stretched, err));
    tn_picture_free(p);
    *p = stretched;
    bool several = to.width > tile || to.height > tile;
    TN_TRY(make_room(p->ctx, s, several ? to.height / tile : 0, several ? to.width / tile : 0,
                     (size){tile, tile}, m, err));
    for (int32_t r = 0; r < m->rows; r++)
        for (int32_t c = 0; c < m->columns; c++) cut(p, r, c, r * m->columns + c, m);
    return TERN_OK;
}

static tern_status make_idefics3(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, bool one_view,
                                 tn_medium *out, tern_error *err) {
    const size to = below_most(to_longest((size){p->width, p->height}, s->longest));
    tn_picture work;
    TN_TRY(tn_picture_resize(p, TN_FILTER_LANCZOS, to.width, to.height, &work, err));
    const size tile = {s->image, s->image};
    tern_status st = one_view ? make_room(ctx, s, 0, 0, tile, out, err) : add_tiles(&work, s, out, err);
    if (st == TERN_OK) st = add_overview(&work, TN_FILTER_LANCZOS, out, err);
    tn_picture_free(&work);
    return st;
}

static tern_status make_gemma3(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, tn_medium *out,
                               tern_error *err) {
    TN_TRY(make_room(ctx, s, 0, 0, (size){s->image, s->image}, out, err));
    return add_overview(p, TN_FILTER_BILINEAR, out, err);
}

static tern_status make_lfm2(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, bool one_view,
                             tn_medium *out, tern_error *err) {
    const size from = {p->width, p->height};
    size whole, grid = {0, 0};
    TN_TRY(to_lfm2(s, from, &whole, err));
    if (!one_view && is_cut(s, from)) grid = nearest_grid(s, from, s->tile);
    TN_TRY(make_room(ctx, s, grid.height, grid.width, whole, out, err));
    TN_TRY(add_grid(p, TN_FILTER_BILINEAR, out, err));
    return add_overview(p, TN_FILTER_BILINEAR, out, err);
}

/* As image_processing_got_ocr2.py has it, which is InternVL's. */
static tern_status make_internvl(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, bool one_view,
                                 tn_medium *out, tern_error *err) {
    const size whole = {s->image, s->image};
    size grid = {0, 0};
    if (!one_view) grid = nearest_grid(s, (size){p->width, p->height}, s->image);
    if (grid.width * grid.height == 1) grid = (size){0, 0};
    TN_TRY(make_room(ctx, s, grid.height, grid.width, whole, out, err));
    TN_TRY(add_grid(p, TN_FILTER_BICUBIC, out, err));
    return add_overview(p, TN_FILTER_BICUBIC, out, err);
}

static tern_status make_gemma4(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, tn_medium *out,
                               tern_error *err) {
    TN_TRY(make_room(ctx, s, 0, 0, to_gemma4(s, (size){p->width, p->height}), out, err));
    return add_overview(p, TN_FILTER_BICUBIC, out, err);
}

/* The view of the whole, then a grid of slices of one size. */
static tern_status make_minicpm(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, bool one_view,
                                tn_medium *out, tern_error *err) {
    const size from = {p->width, p->height}, grid = one_view ? (size){0, 0} : minicpm_grid(s, from),
               whole = to_minicpm(s, from.width, from.height, !grid.width);
    size slice = {0, 0};
    if (grid.width) /* each of them in its own share of the picture, which has whole pixels */
        slice = to_minicpm(s, divided(from.width, grid.width) / grid.width,
                           divided(from.height, grid.height) / grid.height, true);
    const size_t n_whole = (size_t)whole.width * (size_t)whole.height * 3,
                 n_slice = (size_t)slice.width * (size_t)slice.height * 3;
    const int32_t n = grid.width * grid.height;
    tn_picture now;
    *out = (tn_medium){
        .ctx = ctx, .kind = s->kind, .rows = grid.height, .columns = grid.width, .n_views = n + 1};
    out->views = tn_alloc(ctx, TN_MEM_OTHER, (size_t)n + 1, sizeof *out->views);
    out->rgb = tn_alloc(ctx, TN_MEM_OTHER, n_whole + (size_t)n * n_slice, 1);
    TN_FAIL_IF(!out->rgb || !out->views, err, TERN_E_MEMORY, "no memory for %d slices of a picture", n + 1);
    for (int32_t i = 0; i <= n; i++)
        out->views[i] = (tn_view){i ? slice.width : whole.width, i ? slice.height : whole.height, s->queries,
                                  i ? n_whole + (size_t)(i - 1) * n_slice : 0, 0};
    TN_TRY(tn_picture_resize(p, TN_FILTER_BICUBIC, whole.width, whole.height, &now, err));
    memcpy(out->rgb, now.rgb, n_whole);
    tn_picture_free(&now);
    if (!n) return TERN_OK;
    TN_TRY(tn_picture_resize(p, TN_FILTER_BICUBIC, grid.width * slice.width, grid.height * slice.height, &now,
                             err));
    for (int32_t i = 0; i < n; i++) cut(&now, i / grid.width, i % grid.width, 1 + i, out);
    tn_picture_free(&now);
    return TERN_OK;
}

static tern_status make_qwen(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, tn_medium *out,
                             tern_error *err) {
    size to;
    tn_picture stretched;
    TN_TRY(to_qwen(s, (size){p->width, p->height}, &to, err));
    const tn_tower_size z = {to.width, to.height};
    *out = (tn_medium){.ctx = ctx, .kind = s->kind, .n_views = 1};
    out->views = tn_alloc(ctx, TN_MEM_OTHER, 1, sizeof *out->views);
    TN_FAIL_IF(!out->views, err, TERN_E_MEMORY, "no memory for a picture");
    *out->views = (tn_view){to.width, to.height, tn_tower_rows(s, z), 0, tn_tower_columns(s, z)};
    TN_TRY(tn_picture_resize(p, TN_FILTER_BICUBIC, to.width, to.height, &stretched, err));
    out->rgb = stretched.rgb;
    return TERN_OK;
}

tern_status tn_medium_make(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, bool one_view,
                           tn_medium *out, tern_error *err) {
    tn_picture from = *p;
    *out = (tn_medium){0};
    from.ctx = ctx;
    tern_status st = s->kind == TN_TOWER_GEMMA3     ? make_gemma3(ctx, s, &from, out, err)
                     : tn_tower_has_axes(s->kind)   ? make_qwen(ctx, s, &from, out, err)
                     : s->kind == TN_TOWER_LFM2     ? make_lfm2(ctx, s, &from, one_view, out, err)
                     : s->kind == TN_TOWER_INTERNVL ? make_internvl(ctx, s, &from, one_view, out, err)
                     : s->kind == TN_TOWER_GEMMA4   ? make_gemma4(ctx, s, &from, out, err)
                     : s->kind == TN_TOWER_MINICPM  ? make_minicpm(ctx, s, &from, one_view, out, err)
                                                    : make_idefics3(ctx, s, &from, one_view, out, err);
    if (st != TERN_OK) tn_medium_free(out);
    return st;
}

void tn_medium_free(tn_medium *m) {
    if (!m) return;
    if (m->ctx) {
        tn_free(m->ctx, m->rgb);
        tn_free(m->ctx, m->views);
    }
    *m = (tn_medium){0};
}

/* ---- in the prompt ---------------------------------------------------------------------------------------- */

int32_t tn_medium_rows(const tn_medium *m) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_views; i++) n += m->views[i].n_rows;
    return n;
}

#define QWEN                                                                                                 \
    { "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>" }
static const struct {
    const char *mark, *begin, *row, *end;
} families[TN_N_TOWER_KINDS] = {
    [TN_TOWER_IDEFICS3] = {"<image>", "<fake_token_around_image>", "<image>", "<fake_token_around_image>"},
    [TN_TOWER_GEMMA3] = {"<start_of_image>", "<start_of_image>", "<image_soft_token>", "<end_of_image>"},
    [TN_TOWER_QWEN25VL] = QWEN,
    [TN_TOWER_QWEN3VL] = QWEN,
    [TN_TOWER_LFM2] = {"<image>", "<|image_start|>", "<image>", "<|image_end|>"},
    [TN_TOWER_INTERNVL] = {"<IMG_CONTEXT>", "<img>", "<IMG_CONTEXT>", "</img>"},
    [TN_TOWER_GEMMA4] = {"<|image|>", "<|image>", "<|image|>", "<image|>"},
    [TN_TOWER_MINICPM] = {"(<image>./</image>)", "<image>", "<unk>", "</image>"}};

const char *tn_medium_mark(tn_tower_kind kind) { return families[kind].mark; }
const char *tn_medium_begin(tn_tower_kind kind) { return families[kind].begin; }
const char *tn_medium_row(tn_tower_kind kind) { return families[kind].row; }
const char *tn_medium_end(tn_tower_kind kind) { return families[kind].end; }
const char *tn_medium_apart(tn_tower_kind kind) {
    return kind == TN_TOWER_INTERNVL || kind == TN_TOWER_MINICPM ? "\n" : "";
}

static void put(tn_segments *out, const char *text) { tn_segments_add(out, text, strlen(text), false); }

static void put_view(const tn_medium *m, int32_t view, tn_segments *out) {
    for (int32_t i = 0; i < m->views[view].n_rows; i++) put(out, families[m->kind].row);
}

static void idefics3_marks(const tn_medium *m, tn_segments *out) {
    static const char around[] = "<fake_token_around_image>";
    char place[48];
    for (int32_t r = 0; r < m->rows; r++) {
        for (int32_t c = 0; c < m->columns; c++) {
            snprintf(place, sizeof place, "<row_%d_col_%d>", r + 1, c + 1);
            put(out, around);
            put(out, place);
            put_view(m, r * m->columns + c, out);
        }
        put(out, "\n");
    }
    if (m->rows) put(out, "\n");
    put(out, around);
    put(out, "<global-img>");
    put_view(m, m->n_views - 1, out);
    put(out, around);
}

static void lfm2_marks(const tn_medium *m, tn_segments *out) {
    char place[48];
    put(out, "<|image_start|>");
    for (int32_t i = 0; i < m->rows * m->columns; i++) {
        snprintf(place, sizeof place, "<|img_row_%d_col_%d|>", i / m->columns + 1, i % m->columns + 1);
        put(out, place);
        put_view(m, i, out);
    }
    if (m->rows) put(out, "<|img_thumbnail|>");
    put_view(m, m->n_views - 1, out);
    put(out, "<|image_end|>");
}

static void minicpm_marks(const tn_medium *m, int32_t number, tn_segments *out) {
    char id[48];
    snprintf(id, sizeof id, "<image_id>%d</image_id>", number);
    put(out, id);
    put(out, "<image>");
    put_view(m, 0, out);
    put(out, "</image>");
    for (int32_t i = 0; i < m->rows * m->columns; i++) {
        if (i && i % m->columns == 0) put(out, "\n");
        put(out, "<slice>");
        put_view(m, 1 + i, out);
        put(out, "</slice>");
    }
}

void tn_medium_marks(const tn_medium *m, int32_t number, tn_segments *out) {
    static const struct {
        const char *before, *after;
    } around[TN_N_TOWER_KINDS] = {[TN_TOWER_GEMMA3] = {"\n\n<start_of_image>", "<end_of_image>\n\n"},
                                  [TN_TOWER_QWEN25VL] = {"<|vision_start|>", "<|vision_end|>"},
                                  [TN_TOWER_QWEN3VL] = {"<|vision_start|>", "<|vision_end|>"},
                                  [TN_TOWER_INTERNVL] = {"<img>", "</img>"},
                                  [TN_TOWER_GEMMA4] = {"<|image>", "<image|>"}};
    if (m->kind == TN_TOWER_MINICPM) {
        minicpm_marks(m, number, out);
    } else if (m->kind == TN_TOWER_IDEFICS3) {
        idefics3_marks(m, out);
    } else if (m->kind == TN_TOWER_LFM2) {
        lfm2_marks(m, out);
    } else {
        put(out, around[m->kind].before);
        for (int32_t i = 0; i < m->n_views; i++) put_view(m, i, out);
        put(out, around[m->kind].after);
    }
}

void tn_view_pixels(const tn_medium *m, int32_t view, uint8_t pixels[TN_VIEW_KEY]) {
    const tn_view *v = &m->views[view];
    const uint64_t about[] = {(uint64_t)v->width, (uint64_t)v->height};
    tn_sum s;
    tn_sum_begin(&s, false);
    tn_sum_add(&s, about, sizeof about);
    tn_sum_add(&s, m->rgb + v->at, (size_t)v->width * (size_t)v->height * 3);
    tn_sum_bytes(&s, pixels);
}

void tn_view_key(const uint8_t pixels[TN_VIEW_KEY], uint64_t tower, uint8_t key[TN_VIEW_KEY]) {
    tn_sum s;
    tn_sum_begin(&s, false);
    tn_sum_add(&s, &tower, sizeof tower);
    tn_sum_add(&s, pixels, TN_VIEW_KEY);
    tn_sum_bytes(&s, key);
}
