#include "media/pixels.h"

#include "base/status.h"

tern_status tn_picture_check(const char *what, uint64_t width, uint64_t height, tern_error *err) {
    TN_FAIL_IF(!width || !height, err, TERN_E_FORMAT, "the %s has no pixels", what);
    TN_FAIL_IF(width > TN_PICTURE_MAX_SIDE || height > TN_PICTURE_MAX_SIDE ||
                   width * height > TN_PICTURE_MAX_PIXELS,
               err, TERN_E_LIMIT,
               "the %s has %" PRIu64 " x %" PRIu64
               " pixels; up to %d million, and %d on a side, are read: make it smaller",
               what, width, height, TN_PICTURE_MAX_PIXELS / 1000000, TN_PICTURE_MAX_SIDE);
    return TERN_OK;
}

tern_status tn_picture_make(tn_ctx *ctx, const char *what, uint64_t width, uint64_t height, tn_picture *out,
                            tern_error *err) {
    TN_TRY(tn_picture_check(what, width, height, err));
    *out = (tn_picture){.ctx = ctx, .width = (int32_t)width, .height = (int32_t)height};
    out->rgb = tn_alloc(ctx, TN_MEM_OTHER, (size_t)width * (size_t)height, 3);
    TN_FAIL_IF(!out->rgb, err, TERN_E_MEMORY,
               "no memory for a picture of %" PRIu64 " x %" PRIu64 " pixels (%" PRIu64 " bytes)", width,
               height, width * height * 3);
    return TERN_OK;
}

void tn_picture_free(tn_picture *p) {
    if (!p) return;
    if (p->ctx) tn_free(p->ctx, p->rgb);
    *p = (tn_picture){0};
}
