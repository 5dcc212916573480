/* engine/sight_place.h - where the encoder of pictures of a model lies, and what it needs: also before the
 * model is opened. */
#ifndef TN_ENGINE_SIGHT_PLACE_H
#define TN_ENGINE_SIGHT_PLACE_H

#include "base/file.h"
#include "formats/package.h"
#include "model/tower.h"
#include "params/options.h"

#include <string.h>

typedef struct tn_encoder_place {
    tn_ctx *ctx;
    char *path;                    /* of a file or a folder; NULL: it is in the package, or there is none */
    const tn_pkg *pkg;             /* borrowed */
    const tn_pkg_section *section; /* of the package, else NULL */
    int32_t n_embd;                /* of the model */
} tn_encoder_place;

/* Named, in the package (pkg NULL: the model is none), or beside the model. No encoder is opened. On failure
 * *out holds nothing. */
tern_status tn_encoder_place_find(tn_ctx *ctx, const char *model, const tn_pkg *pkg, const tern_options *o,
                                  int32_t n_embd, tn_encoder_place *out, tern_error *err);
void tn_encoder_place_free(tn_encoder_place *p);
/* Maps the package that it is in: *at is its first byte. */
tern_status tn_encoder_place_map(const tn_encoder_place *p, tn_file **f, const uint8_t **at, tern_error *err);
/* The encoder without its weights. */
tern_status tn_encoder_place_peek(const tn_encoder_place *p, tn_tower **out, tern_error *err);

/* What it wants of pictures, within the options' limits or within so many rows of a view. */
void tn_encoder_limit(tn_tower_shape *s, const tern_options *o);
void tn_encoder_limit_rows(tn_tower_shape *s, int64_t most);
/* Memory while the largest view is encoded, its picture's views included; for a form that is not known yet,
 * that of judging it. */
uint64_t tn_encoder_bytes(const tn_tower *peeked, const tern_options *o, const tn_kernels *kern,
                          int n_threads, bool is_int8);
static inline bool tn_encoder_wants_int8(const tern_options *o) {
    return o->encoder && !strcmp(o->encoder, "int8");
}
/* The same of the model at a path, as far as it can be told before it is opened; 0: it has no encoder.
 * Without memory to look, TERN_E_MEMORY. */
tern_status tn_encoder_estimate(tn_ctx *ctx, const char *model, const tern_options *o, int32_t n_embd,
                                int n_threads, uint64_t *n_bytes, tern_error *err);

#endif
