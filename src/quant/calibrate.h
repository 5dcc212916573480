/* quant/calibrate.h - statistics of every site's activations on a corpus (llm.npu 3.3, EdgeFlow 4.1). The
 * float model runs over the corpus layer by layer; each site keeps a histogram of magnitudes, and each of its
 * channels a maximum. */
#ifndef TN_QUANT_CALIBRATE_H
#define TN_QUANT_CALIBRATE_H

#include "model/program.h"
#include "quant/corpus.h"

enum {
    TN_HIST_BINS = 4096,
    TN_HIST_SHIFT = 19
}; /* bin of x: the bits of |x| above TN_HIST_SHIFT: 16 bins an octave */

typedef struct tn_site_stats {
    int32_t k;
    int32_t n_experts; /* experts that read the inputs; 0: not an expert site */
    uint64_t n_values, n_tokens;
    float max;
    float *channel_max;     /* [k] largest magnitude */
    double *channel_square; /* [k] sum of squares */
    uint64_t *hist;         /* [TN_HIST_BINS] */
    /* second pass, against threshold: */
    float threshold; /* magnitudes above it are outliers */
    uint64_t n_outliers;
    uint32_t *channel_count; /* [k] outliers per channel */
} tn_site_stats;

typedef struct tn_calibration {
    tn_ctx *ctx;
    const tn_program *program;
    tn_site_stats *sites; /* as the program's */
} tn_calibration;

tern_status tn_calibration_open(tn_ctx *ctx, const tn_program *p, tn_calibration *out, tern_error *err);
/* Passes the layer, begun by the caller, twice: for magnitudes, then for outliers above the threshold that
 * leaves `outlier_share` of the values outside. qk, with qk_user, may be NULL: sees Q and K of the first pass
 * (forward.h). keep: the corpus advances past the layer. */
void tn_calibrate_layer(tn_calibration *c, tn_corpus *corpus, int layer, double outlier_share,
                        void (*qk)(void *, int, const float *, const float *, int32_t), void *qk_user,
                        bool keep);
/* Again for the layer's sites with divide_by[kind] ([k] each; NULL: leave the site): their histogram, max,
 * threshold and outliers become those of the inputs divided by it, channel by channel. */
void tn_calibrate_smoothed(tn_calibration *c, tn_corpus *corpus, int layer, const float *const *divide_by,
                           double outlier_share, bool keep);
/* lm_head's inputs, from the residuals after the last layer. */
void tn_calibrate_lm_head(tn_calibration *c, tn_corpus *corpus, double outlier_share);
void tn_calibration_close(tn_calibration *c);
/* NULL if the layer has no such site; layer is ignored for lm_head. */
tn_site_stats *tn_calibration_site(const tn_calibration *c, int layer, tn_site s);

/* Smallest magnitude with at most `share` of the values above it. */
float tn_stats_quantile(const tn_site_stats *s, double share);
/* The clipping threshold that minimises the mean squared error of symmetric 8-bit quantisation: rounding
 * below it, clipping above it. */
float tn_stats_best_clip(const tn_site_stats *s);

/* Damage that clipping at `clip` does to values that are not outliers (magnitude at most s->threshold): mean
 * squared error over their mean square. Near 1e-4 for well-behaved activations, near 1 where outliers stretch
 * the scale until the rest is lost. */
double tn_stats_bulk_error(const tn_site_stats *s, float clip);

#endif
