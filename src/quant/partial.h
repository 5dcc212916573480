/* quant/partial.h - progress of packing by scheme gram, in a file beside the package until that is
 * complete.
 *
 * A killed process leaves it. The next process that packs the same model with the same options to the same
 * place continues after the last complete layer; the package is the same, byte for byte. The codes of
 * finished layers are kept here and not in memory. The file, private to the user (0600):
 *
 *   header        model and options; the loss of finished passes
 *   costs         cost of errors (sense.h), floats
 *   2 places      the residuals after a layer, alternating between two places, so that one is always complete
 *   records       of the current pass: one a layer, then one of the output layer and the embedding
 *
 * Everything has a checksum, written last; damaged parts and those of another run are not used. Without
 * the file, for example on a full disk, packing continues with everything in memory. */
#ifndef TN_QUANT_PARTIAL_H
#define TN_QUANT_PARTIAL_H

#include "base/outfile.h"
#include "quant/judge.h"

enum { TN_PARTIAL_PASSES = 8 };

extern const tn_outkind tn_partial_kind;
#define TN_PARTIAL_ENDING ".part" /* after the package's name */

typedef struct tn_partial_header {
    char magic[8];
    uint64_t id[2];   /* of the model, the options and the text */
    uint64_t n_costs; /* 0: not measured yet */
    uint64_t costs_check;
    uint64_t n_losses;
    tn_losses losses[TN_PARTIAL_PASSES];
    uint64_t check; /* of everything before it */
} tn_partial_header;

/* Contents of a record besides a site's codes. */
typedef struct tn_partial_layer {
    const tn_program *program;
    int32_t layer;         /* n_layers: the output layer and the embedding */
    tn_recipe_site *made;  /* of its sites */
    const uint8_t *bits;   /* of the rows of all its linears, in order, then of the embedding */
    tn_rounded *embedding; /* NULL: none of its own */
    double head[4];        /* statistics of its attention heads */
    float *residuals[2];   /* after the layer: of the calibration text, and of the held-out text */
    size_t n_residuals[2];
} tn_partial_layer;

typedef struct tn_partial {
    tn_ctx *ctx;
    const char *path;
    int fd;       /* -1: there is no file */
    bool is_full; /* nothing more can be written */
    tn_partial_header head;
    uint64_t pass;                                /* current; records of others do not count */
    uint64_t places_at, place_bytes, log_at, end; /* end of the complete records */
    uint64_t residuals_check;                     /* of the last record read */
    struct tn_partial_codes {
        uint64_t at, check; /* at 0: not in the file */
    } * codes;              /* [n_sites][TN_SITE_MAX_OPS] */
} tn_partial;

/* Opens or makes the file. On failure there is none, and the log says so. n_residuals: floats of both. */
tern_status tn_partial_open(tn_partial *f, tn_ctx *ctx, const char *path, const uint64_t id[2],
                            const tn_program *program, size_t n_costs, size_t n_residuals, tern_error *err);
/* keep: leave the file for a process that continues later. */
void tn_partial_close(tn_partial *f, bool keep);

bool tn_partial_costs(tn_partial *f, float *cost, size_t n); /* false: not there */
void tn_partial_put_costs(tn_partial *f, const float *cost, size_t n);
/* Begins with the first record of a pass. Records of another pass become invalid. */
void tn_partial_begin_pass(tn_partial *f, uint64_t pass);
/* The pass at hand has ended. */
void tn_partial_put_loss(tn_partial *f, const tn_losses *loss);
/* Discards a finished pass and those after it. */
void tn_partial_drop_losses(tn_partial *f, uint64_t n_left);

/* Writes the record of a layer, and then frees its codes if it can. */
void tn_partial_put_layer(tn_partial *f, tn_partial_layer *l);
/* Reads the next record, which must be the layer's. Codes stay in the file, except those of the output layer
 * and the embedding. False: there is none, and nothing is changed. */
bool tn_partial_next_layer(tn_partial *f, tn_partial_layer *l);
/* The residuals after a layer; false: they are damaged. */
bool tn_partial_residuals(tn_partial *f, tn_partial_layer *l);
/* Reads a layer's codes into memory, if they are not there. */
tern_status tn_partial_fetch(const tn_partial *f, const tn_program *program, int32_t layer,
                             tn_recipe_site *made, tern_error *err);

#endif
