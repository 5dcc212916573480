/* quant/partial.h - what packing by scheme gram has done so far, in a file beside the package until that is there.
 *
 * A process that was killed leaves it, and the next one that packs the same model with the same options into the
 * same place goes on after the last whole layer; the package is the same, byte for byte. The codes of layers that
 * are done lie here and not in memory. The file, of this user alone (0600):
 *
 *   header        what is packed, and how; what the passes that have ended lost
 *   costs         what errors cost (sense.h), floats
 *   2 places      the residuals after a layer: an even one's and an odd one's, so that one of them is always whole
 *   records       of the pass at hand: one a layer, then one of the output layer and the embedding
 *
 * Everything has a check, which is written last; what is damaged or of another run is not used. Without the file,
 * on a full disk say, packing goes on with everything in memory. */
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
    uint64_t check; /* of what is in front of it */
} tn_partial_header;

/* What a record holds besides a site's codes. */
typedef struct tn_partial_layer {
    const tn_program *program;
    int32_t layer;         /* n_layers: the output layer and the embedding */
    tn_recipe_site *made;  /* of its sites */
    const uint8_t *bits;   /* of the rows of all its linears, in order, then of the embedding */
    tn_rounded *embedding; /* NULL: none of its own */
    double head[4];        /* what was seen of its attention heads */
    float *residuals[2];   /* after the layer: of the calibration text, and of what is kept apart */
    size_t n_residuals[2];
} tn_partial_layer;

typedef struct tn_partial {
    tn_ctx *ctx;
    const char *path;
    int fd;       /* -1: there is no file */
    bool is_full; /* nothing more can be written */
    tn_partial_header head;
    uint64_t pass;                                /* at hand; records of others do not count */
    uint64_t places_at, place_bytes, log_at, end; /* end: of the records that are whole */
    uint64_t residuals_check;                     /* of the last record that was read */
    struct tn_partial_codes {
        uint64_t at, check; /* at 0: not in the file */
    } * codes;              /* [n_sites][TN_SITE_MAX_OPS] */
} tn_partial;

/* Opens or makes the file. Where that fails there is none, and the log says so. n_residuals: floats of both. */
tern_status tn_partial_open(tn_partial *f, tn_ctx *ctx, const char *path, const uint64_t id[2],
                            const tn_program *program, size_t n_costs, size_t n_residuals, tern_error *err);
/* keep: for a process that goes on later. */
void tn_partial_close(tn_partial *f, bool keep);

bool tn_partial_costs(tn_partial *f, float *cost, size_t n); /* false: not there */
void tn_partial_put_costs(tn_partial *f, const float *cost, size_t n);
/* Begins with the first record of a pass. What is there of another becomes worthless. */
void tn_partial_begin_pass(tn_partial *f, uint64_t pass);
/* The pass at hand has ended. */
void tn_partial_put_loss(tn_partial *f, const tn_losses *loss);
/* A pass that has ended, and those after it, are to be made again. */
void tn_partial_drop_losses(tn_partial *f, uint64_t n_left);

/* Writes the record of a layer, of which the codes then leave the memory, if it can. */
void tn_partial_put_layer(tn_partial *f, tn_partial_layer *l);
/* Reads the next record, which is to be the layer's; the codes stay in the file, but for those of the output layer
 * and the embedding. False: it is not there, and nothing is changed. */
bool tn_partial_next_layer(tn_partial *f, tn_partial_layer *l);
/* The residuals after a layer; false: they are damaged. */
bool tn_partial_residuals(tn_partial *f, tn_partial_layer *l);
/* Brings a layer's codes into memory, where they are not. */
tern_status tn_partial_fetch(const tn_partial *f, const tn_program *program, int32_t layer,
                             tn_recipe_site *made, tern_error *err);

#endif
