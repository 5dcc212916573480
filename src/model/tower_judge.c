#include "model/tower_judge.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* ---- the drawing ---------------------------------------------------------------------------------------------- */

int tn_tower_drawings(const tn_tower_shape *s, tn_tower_size out[TN_TOWER_DRAWINGS]) {
    static const int32_t sides[] = {256, 384};
    const bool any = tn_tower_any_size(s->kind);
    const int32_t block = s->patch * s->shuffle;
    int n = 0;
    for (int i = 0; i < 2; i++) {
        const int32_t blocks = sides[i] / block > 1 ? sides[i] / block : 1, side = blocks * block;
        if (!any && side * (i + 1) >= s->image) break;
        if (n && out[n - 1].width == side) continue;
        out[n++] = (tn_tower_size){side, side};
    }
    if (!any) out[n++] = tn_tower_tile(s);
    return n;
}

static uint32_t mixed(int32_t x, int32_t y) {
    uint32_t h = (uint32_t)x * 2654435761u ^ (uint32_t)y * 2246822519u;
    h = (h ^ h >> 15) * 3266489917u;
    return h ^ h >> 13;
}

/* Lines of 12 pixels with signs of 6 x 8, dots of which are dark. */
static void draw_text(int32_t x, int32_t y, uint8_t *c) {
    const bool ink = x % 7 < 6 && y % 12 < 8 && mixed(x / 7, y / 12) % 6 && mixed(x / 2, y / 2) % 2;
    memset(c, ink ? 20 : 245, 3);
}

/* Buttons of one colour each, with a dark edge, on grey. */
static void draw_buttons(int32_t x, int32_t y, uint8_t *c) {
    const int32_t in_x = x % 48, in_y = y % 28;
    const uint32_t colour = mixed(x / 48 + 1, y / 28 + 1);
    for (int i = 0; i < 3; i++)
        c[i] = in_x < 8 || in_y < 8                                 ? 220
               : in_x == 8 || in_x == 47 || in_y == 8 || in_y == 27 ? 40
                                                                    : (uint8_t)(colour >> 8 * i);
}

/* A disc that grows darker outwards, in front of shades. */
static void draw_shades(int32_t x, int32_t y, tn_tower_size half, uint8_t *c) {
    const int32_t dx = 2 * x - half.width, dy = 2 * y - half.height, r = dx * dx + dy * dy,
                  all = half.width * half.height;
    c[0] = (uint8_t)(r < all / 2 ? 250 - 300 * (int64_t)r / all : 255 * x / half.width);
    c[1] = (uint8_t)(255 * y / half.height);
    c[2] = (uint8_t)(r < all / 2 ? 40 : 255 - 255 * x / half.width);
}

static void draw_noise(int32_t x, int32_t y, uint8_t *c) {
    const uint32_t h = mixed(x + 1, y + 1);
    for (int i = 0; i < 3; i++) c[i] = (uint8_t)(h >> 8 * i);
}

void tn_tower_draw(uint8_t *rgb, tn_tower_size z) {
    const tn_tower_size half = {(z.width + 1) / 2, (z.height + 1) / 2};
    for (int32_t y = 0; y < z.height; y++)
        for (int32_t x = 0; x < z.width; x++, rgb += 3) {
            const bool right = x >= half.width, low = y >= half.height;
            const int32_t in_x = right ? x - half.width : x, in_y = low ? y - half.height : y;
            if (low) right ? draw_noise(in_x, in_y, rgb) : draw_shades(in_x, in_y, half, rgb);
            else right ? draw_buttons(in_x, in_y, rgb) : draw_text(in_x, in_y, rgb);
        }
}

/* ---- the verdict ---------------------------------------------------------------------------------------------- */

tn_tower_verdict tn_tower_compare(const float *a, const float *b, size_t n, size_t width) {
    double sum = 0, least = 1;
    for (size_t i = 0; i < n; i++, a += width, b += width) {
        double ab = 0, aa = 0, bb = 0;
        for (size_t j = 0; j < width; j++) {
            ab += (double)a[j] * (double)b[j];
            aa += (double)a[j] * (double)a[j];
            bb += (double)b[j] * (double)b[j];
        }
        const double cosine = aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : aa == bb;
        sum += cosine;
        least = cosine < least ? cosine : least;
    }
    return (tn_tower_verdict){(float)(sum / (double)n), (float)least};
}

bool tn_tower_is_clear(tn_tower_verdict v) {
    const float mean = (1 - v.mean) / (1 - TN_TOWER_MEAN), least = (1 - v.least) / (1 - TN_TOWER_LEAST);
    return (mean < 0.4f && least < 0.4f) || mean > 2.5f || least > 2.5f;
}

/* A judging on its way. */
typedef struct judged {
    const tn_tower_judging *j;
    tn_tower **t;
    double done, all; /* work, in products of a form in INT8 */
} judged;

/* In floats a product takes some three times as long. */
static double work_of(const tn_tower_shape *s, tn_tower_size z, tn_tower_scheme scheme) {
    const double n = (double)(z.width / s->patch) * (z.height / s->patch),
                 each = n * ((double)s->width * (4.0 * s->width + 2.0 * s->ff) + 2 * n * s->width);
    return scheme == TN_TOWER_INT8 ? each : 3 * each;
}

/* The drawing's rows in that form of the encoder, which is opened if it is not: rows, malloc'ed by the context. */
static tern_status see(judged *g, tn_tower_scheme scheme, tn_tower_size z, float **rows, tern_error *err) {
    const tn_tower_judging *j = g->j;
    if (*g->t && tn_tower_scheme_of(*g->t) != scheme) tn_tower_close(g->t);
    if (!*g->t) TN_TRY(j->open(j->user, scheme, g->t, err));
    const tn_tower_shape *s = tn_tower_shape_of(*g->t);
    const double work = work_of(s, z, scheme);
    uint8_t *rgb = tn_alloc(j->ctx, TN_MEM_OTHER, (size_t)z.width * (size_t)z.height, 3);
    *rows = tn_alloc(j->ctx, TN_MEM_OTHER, (size_t)tn_tower_rows(s, z) * (size_t)tn_tower_row_width(s),
                     sizeof **rows);
    tern_status st = rgb && *rows ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for a drawing");
    if (st == TERN_OK) {
        tn_tower_draw(rgb, z);
        tn_tower_tell(*g->t, "encoder", g->done / g->all, (g->done + work) / g->all);
        st = tn_tower_encode(*g->t, j->kern, j->pool, rgb, z, NULL, NULL, *rows, err);
        tn_tower_tell(*g->t, NULL, 0, 0);
    }
    g->done += work;
    tn_free(j->ctx, rgb);
    return st;
}

/* The form that is open goes first. */
static tern_status judge_by(judged *g, tn_tower_size z, tn_tower_verdict *out, tern_error *err) {
    const tn_tower_scheme first = *g->t ? tn_tower_scheme_of(*g->t) : TN_TOWER_INT8;
    float *rows[2] = {NULL, NULL};
    tern_status st = see(g, first, z, &rows[0], err);
    if (st == TERN_OK) st = see(g, first == TN_TOWER_INT8 ? TN_TOWER_FLOAT : TN_TOWER_INT8, z, &rows[1], err);
    if (st == TERN_OK) {
        const tn_tower_shape *s = tn_tower_shape_of(*g->t);
        *out = tn_tower_compare(rows[0], rows[1], (size_t)tn_tower_rows(s, z) * (size_t)(1 + s->n_deep),
                                (size_t)s->out);
    }
    tn_free(g->j->ctx, rows[0]);
    tn_free(g->j->ctx, rows[1]);
    return st;
}

tern_status tn_tower_judge(const tn_tower_judging *j, tn_tower **t, tn_tower_verdict *out, tern_error *err) {
    judged g = {.j = j, .t = t};
    tn_tower_size sizes[TN_TOWER_DRAWINGS];
    if (!*t) TN_TRY(j->open(j->user, TN_TOWER_INT8, t, err));
    const tn_tower_shape *s = tn_tower_shape_of(*t);
    const int n = tn_tower_drawings(s, sizes);
    for (int i = 0; i < n; i++)
        g.all += work_of(s, sizes[i], TN_TOWER_INT8) + work_of(s, sizes[i], TN_TOWER_FLOAT);
    tern_status st = TERN_OK;
    for (int i = 0; i < n && st == TERN_OK; i++) {
        st = judge_by(&g, sizes[i], out, err);
        if (st == TERN_OK && tn_tower_is_clear(*out)) break;
    }
    (void)tn_progress(j->ctx, "encoder", 1);
    return st;
}
