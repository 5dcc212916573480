#include "engine/sight_place.h"

#include "base/cpu.h"
#include "base/status.h"
#include "engine/sight_find.h"

#include <stdlib.h>

/* ---- where it lies ------------------------------------------------------------------------------------------ */

tern_status tn_encoder_place_find(tn_ctx *ctx, const char *model, const tn_pkg *pkg, const tern_options *o,
                                  int32_t n_embd, tn_encoder_place *out, tern_error *err) {
    tern_error why = {0};
    char *found = NULL;
    *out = (tn_encoder_place){.ctx = ctx, .pkg = pkg, .n_embd = n_embd};
    if (!o->mmproj && pkg) out->section = tn_pkg_find(pkg, TN_PKG_ENCODER, -1);
    if (out->section) return TERN_OK;
    if (!o->mmproj && !(found = tn_sight_find(o->beside ? o->beside : model, n_embd, &why)))
        return tn_fail(err, why.code, "%s", why.message);
    out->path = tn_strdup(ctx, TN_MEM_TEXT, found ? found : o->mmproj);
    free(found);
    TN_FAIL_IF(!out->path, err, TERN_E_MEMORY, "no memory for an encoder of pictures");
    return TERN_OK;
}

void tn_encoder_place_free(tn_encoder_place *p) {
    if (p->ctx) tn_free(p->ctx, p->path);
    *p = (tn_encoder_place){0};
}

tern_status tn_encoder_place_map(const tn_encoder_place *p, tn_file **f, const uint8_t **at,
                                 tern_error *err) {
    const tn_pkg_section *s = p->section;
    TN_TRY(tn_file_map(p->ctx, tn_pkg_fd(p->pkg), tn_pkg_path(p->pkg), f, err));
    const bool inside = s->off_bytes <= (*f)->size_bytes && s->size_bytes <= (*f)->size_bytes - s->off_bytes;
    if (!inside) tn_file_close(f);
    TN_FAIL_IF(!inside, err, TERN_E_IO, "%s ends before its encoder of pictures", tn_pkg_path(p->pkg));
    *at = (*f)->data + s->off_bytes;
    return TERN_OK;
}

tern_status tn_encoder_place_peek(const tn_encoder_place *p, tn_tower **out, tern_error *err) {
    const uint8_t *at;
    tn_file *f;
    *out = NULL;
    if (!p->section) return tn_tower_peek(p->ctx, p->path, p->n_embd, out, err);
    TN_TRY(tn_encoder_place_map(p, &f, &at, err));
    tern_status st = tn_tower_peek_memory(p->ctx, at, p->section->size_bytes, p->n_embd, out, err);
    tn_file_close(&f);
    return st;
}

/* ---- what it needs ------------------------------------------------------------------------------------------ */

void tn_encoder_limit_rows(tn_tower_shape *s, int64_t most) {
    const int64_t block = (int64_t)s->patch * s->shuffle, pixels = most * block * block;
    if (s->max_pixels > pixels) s->max_pixels = pixels;
    if (s->min_pixels > s->max_pixels / 4) s->min_pixels = s->max_pixels / 4;
}

void tn_encoder_limit(tn_tower_shape *s, const tern_options *o) {
    enum { ROWS = 1280 };
    tn_encoder_limit_rows(s, o->picture_rows ? o->picture_rows : ROWS);
}

/* The largest view: a tile, or a square of as many pixels as a view may have. */
static tn_tower_size largest_view(const tn_tower_shape *s) {
    const int64_t block = (int64_t)s->patch * s->shuffle;
    int64_t area = (int64_t)s->image * s->image, side = 1;
    if (!tn_tower_any_size(s->kind)) return tn_tower_tile(s);
    if (area < s->max_pixels) area = s->max_pixels;
    while (side * side * block * block < area) side++;
    return (tn_tower_size){(int32_t)(side * block), (int32_t)(side * block)};
}

uint64_t tn_encoder_bytes(const tn_tower *peeked, const tern_options *o, const tn_kernels *kern,
                          int n_threads, bool is_int8) {
    tn_tower_shape s = *tn_tower_shape_of(peeked);
    tn_encoder_limit(&s, o);
    const tn_tower_size z = largest_view(&s);
    const tn_tower_need n =
        tn_tower_needs(peeked, kern, n_threads, is_int8 ? TN_TOWER_INT8 : TN_TOWER_FLOAT, z);
    const uint64_t longest = s.longest > z.width ? (uint64_t)s.longest : (uint64_t)z.width,
                   pixels = 3 * (o->one_view ? (uint64_t)z.width * (uint64_t)z.height : longest * longest),
                   rows = (uint64_t)tn_tower_rows(&s, z) * (uint64_t)tn_tower_row_width(&s) * sizeof(float);
    return n.weight_bytes + 2 * (pixels + rows) +
           (n.reading_bytes > n.work_bytes ? n.reading_bytes : n.work_bytes);
}

tern_status tn_encoder_estimate(tn_ctx *ctx, const char *model, const tern_options *o, int32_t n_embd,
                                int n_threads, uint64_t *n_bytes, tern_error *err) {
    tn_encoder_place place;
    tn_pkg *pkg = NULL;
    tn_tower *t = NULL;
    tern_error why;
    *n_bytes = 0;
    tern_status st = tn_pkg_open_if(ctx, model, &pkg, &why);
    if (st == TERN_OK) st = tn_encoder_place_find(ctx, model, pkg, o, n_embd, &place, &why);
    if (st == TERN_OK) {
        st = tn_encoder_place_peek(&place, &t, &why);
        tn_encoder_place_free(&place);
    }
    if (st == TERN_OK) {
        tn_kernels kern;
        tn_kernels_init(&kern, tn_cpu_flags(NULL));
        *n_bytes = tn_encoder_bytes(t, o, &kern, n_threads, tn_encoder_wants_int8(o));
        tn_tower_close(&t);
    }
    tn_pkg_close(&pkg);
    TN_FAIL_IF(st == TERN_E_MEMORY, err, st, "%s", why.message);
    return TERN_OK; /* what is wrong with it is told when the model is opened */
}
