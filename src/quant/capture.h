/* quant/capture.h - the inputs of one layer's sites on the calibration corpus, kept, so that everything about
 * the layer is decided from one pass over it. Of a long corpus every n-th token is kept. */
#ifndef TN_QUANT_CAPTURE_H
#define TN_QUANT_CAPTURE_H

#include "model/program.h"

typedef struct tn_capture {
    tn_ctx *ctx;
    int32_t cap_rows;         /* of every site */
    int32_t step;             /* every so many tokens */
    int32_t k[TN_N_SITES];    /* 0: the layer has no such site */
    int32_t rows[TN_N_SITES]; /* kept */
    int64_t seen[TN_N_SITES];
    float *x[TN_N_SITES]; /* [cap_rows][k] */
} tn_capture;

/* For one layer (n_layers: lm_head) and a corpus of n_tok tokens. */
tern_status tn_capture_open(tn_ctx *ctx, const tn_program *p, int32_t layer, size_t n_tok, tn_capture *out,
                            tern_error *err);
void tn_capture_add(tn_capture *c, tn_site site, const float *x, size_t ldx, int32_t n_rows);
void tn_capture_close(tn_capture *c);

#endif
