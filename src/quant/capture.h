/* quant/capture.h - the captured inputs of one layer's sites on the calibration corpus, so that one pass
 * decides everything about the layer. From a long corpus every n-th token is kept. Rows of expert sites
 * carry the numbers of the experts that read them. */
#ifndef TN_QUANT_CAPTURE_H
#define TN_QUANT_CAPTURE_H

#include "model/program.h"

typedef struct tn_capture {
    tn_ctx *ctx;
    int32_t cap_tok;              /* of every site */
    int32_t step;                 /* one of this many tokens */
    int32_t k[TN_N_SITES];        /* 0: the layer has no such site */
    int32_t rows[TN_N_SITES];     /* kept */
    int32_t per_tok[TN_N_SITES];  /* rows of a token: 1, or the number of its experts */
    int64_t seen[TN_N_SITES];     /* tokens */
    float *x[TN_N_SITES];         /* [cap_tok * per_tok][k] */
    int16_t *readers[TN_N_SITES]; /* experts: [cap_tok * per_tok][n_readers], else NULL */
    int32_t n_readers[TN_N_SITES];
    int32_t n_used;
    const float *chosen; /* of the coming chunk */
} tn_capture;

/* The inputs for which one site's linears are quantised. */
typedef struct tn_inputs {
    float *x; /* [n_rows][k] */
    int32_t n_rows;
    const int16_t *readers; /* [n_rows][n_readers] experts that read a row; NULL: one matrix reads all */
    int32_t n_readers;
} tn_inputs;

static inline tn_inputs tn_capture_inputs(const tn_capture *c, tn_site s) {
    return (tn_inputs){c->x[s], c->rows[s], c->readers[s], c->n_readers[s]};
}

/* For one layer (n_layers: lm_head) and a corpus of n_tok tokens. */
tern_status tn_capture_open(tn_ctx *ctx, const tn_program *p, int32_t layer, size_t n_tok, tn_capture *out,
                            tern_error *err);
/* The routes of the next chunk of expert inputs: CHOSEN (model/experts.h), borrowed until then. */
void tn_capture_route(tn_capture *c, const float *chosen);
void tn_capture_add(tn_capture *c, tn_site site, const float *x, size_t ldx, int32_t n_rows);
void tn_capture_close(tn_capture *c);

#endif
