/* quant/pack.h - from a model in any format to a .tern package for an INT8 device (llm.npu 3.3). */
#ifndef TN_QUANT_PACK_H
#define TN_QUANT_PACK_H

#include "base/ctx.h"
#include "formats/tensor.h"
#include "model/hparams.h"
#include "model/tower_judge.h"
#include "quant/stages.h"

typedef enum tn_scheme {
    TN_SCHEME_LLM_NPU,     /* per-tensor W8A8; clipped-off values are added back in float, except at pruned
                          sites */
    TN_SCHEME_NAIVE,       /* per-tensor W8A8, scale from the largest value seen: the baseline that fails with
                              outliers */
    TN_SCHEME_EDGEFLOW,    /* adaptive bits per output channel, weights and scales after NPU-aware smoothing
                              (EdgeFlow 4.1) */
    TN_SCHEME_SMOOTHQUANT, /* naive, after moving the spread of the norms' outputs into the weights (alpha
                              0.5) */
    TN_SCHEME_GRAM, /* smoothing, a rotation and clips by measured error, weights rounded with knowledge of
                       the inputs (quant/recipe.h): the default */
    TN_N_SCHEMES
} tn_scheme;

const char *tn_scheme_name(tn_scheme s); /* "llm-npu", "naive-w8a8", "edgeflow", "smoothquant", "gram" */

typedef enum tn_outlier_mode { TN_OUTLIERS_AUTO, TN_OUTLIERS_OFF, TN_OUTLIERS_ON } tn_outlier_mode;

/* Distribution of the bits of an average B. */
typedef enum tn_allocation {
    TN_ALLOCATE_DEFAULT,
    TN_ALLOCATE_RE,      /* 1..8 bits by relative error (quant/allocate.h) */
    TN_ALLOCATE_UNIFORM, /* everyone B, a whole number */
    TN_ALLOCATE_CMPQ,    /* CMPQ adapted to output channels: the quarter with the largest relative error B +
                         1, that with the smallest B - 1 */
    TN_ALLOCATE_LOSS,    /* 2..8 bits by the measured cost of an error in the channel for the model's
                         predictions (quant/sense.h); one budget for all layers */
    TN_N_ALLOCATIONS
} tn_allocation;

/* Kinds of calibration text. */
typedef enum tn_words {
    TN_WORDS_OWN,  /* written by the model itself, freely (quant/own_words.h) ... */
    TN_WORDS_CHAT, /* ... and in conversations through its template */
    TN_WORDS_TEXT, /* the user's, or a small built-in one */
    TN_N_WORDS
} tn_words;

const char *tn_words_name(tn_words k); /* "the model's own text", ... */

bool tn_allocation_parse(const char *name, tn_allocation *out); /* "re", "uniform", "cmpq", "loss" */

/* Types of a GGUF file that is written (quant/to_gguf.c). */
typedef struct tn_gguf_form tn_gguf_form;
#define TN_GGUF_FORMS "q4_0, q4_k_s, q4_k_m, q5_k_s, q5_k_m, q6_k, iq4_xs, iq4_nl"
const tn_gguf_form *tn_gguf_form_named(const char *name); /* in either case; NULL: there is none */

typedef struct tn_pack_options {
    tn_scheme scheme;
    const char *calib_path; /* text; NULL: a small built-in one */
    /* Most tokens of it; 0 (default): 4096; 2048, with the next option, for models of over 10^9
     * parameters. */
    int32_t calib_tokens;
    /* Tokens that the model writes itself for calibration (quant/own_words.h); -1 (default): with gram and
     * without the user's text 2048, 1024 for models of over 10^9 parameters; else none. */
    int32_t own_tokens;
    int32_t calib_window; /* tokens (default 512) */
    float prune_percent;  /* percentage of the least important sites without an outlier path, 0..100
                             (default 85) */
    float prune_error; /* ... but never a site whose remaining values would lose more than this share of their
                          energy (default 0.001) */
    float outlier_share; /* share of an outlier site's values outside the clip (default 0.002) */
    float hot_coverage;  /* hot channels cover this share of the outliers (default 0.9) ... */
    float hot_max;       /* ... and are at most this share of the channels (default 0.25), but at least one */
    double bits;    /* average per weight, 1..8: with gram of all matrices, else of the layers' linears; 0
                 (default): with gram what the target loss needs, 5 with edgeflow, else 8 */
    double quality; /* gram without bits: target loss of all roundings together, measured on held-out
                       calibration text (0.005 = 0.5 %: a KL divergence of log 1.005, about the most that
                       perplexity can be expected to lose); 0 (default): 0.005 */
    bool quick;     /* gram: in a third of the time, with more loss: one pass with the same width for all (6
                  bits unless given), with errors compensated among few channels (default: false) */
    tn_allocation
        allocation; /* below 8 bits; default: loss with gram, by relative error with edgeflow, else uniform */
    bool bits_of_model;       /* ... of all of them together; false (default): of every one */
    tn_outlier_mode outliers; /* edgeflow: outlier paths at sites that smoothing leaves worse than prune_error
                                 (default), never, or at all */
    bool head_importance;     /* measure the importance of each attention head: one forward per head
                                 (default: false, all the same). Results are kept in OUT.heads until the
                                 package is complete, so that a killed process resumes */
    int32_t n_threads;        /* 0 = one per core */
    bool output_int8;         /* products leave the device in 8 bits with one frozen scale a tensor, except
                        lm_head's (default: false, in float) */
    bool compress;            /* weights below 8 bits are entropy-coded in the file (default: false) ... */
    float compress_rate; /* ... gram: how much their entropy counts when scales are chosen, 0..4 (default 1;
                            0: the same codes as without) */
    const tn_gguf_form
        *gguf_form;     /* not a package but a GGUF file, from another (default: NULL, a package) */
    const char *mmproj; /* an encoder of pictures that becomes part of the package; NULL (default): none */
    float output_beta;  /* ... after their channels are divided by their largest magnitude to this power, 0..1
                        (default 1) */
} tn_pack_options;

void tn_pack_defaults(tn_pack_options *o);
/* A hash of all that the package's bytes depend on: of every field but the corpus' path, which its tokens
 * stand for, and the number of threads. */
uint64_t tn_pack_options_identity(const tn_pack_options *o);

typedef struct tn_pack_report {
    int32_t n_sites, n_outlier_sites;
    int32_t n_unsmoothed;          /* edgeflow: number of sites whose input scales could not be folded into an
                             earlier tensor (tn_pack_unsmoothed says why) */
    uint64_t n_outliers, n_values; /* of outlier sites, on the corpus */
    uint64_t n_hot, n_channels;    /* of outlier sites */
    double hot_coverage;           /* share of the outliers in hot channels */
    uint64_t hot_row_bytes, all_row_bytes; /* resident weight rows for the CPU: hot ones, and what all
                                              would take */
    uint64_t package_bytes, n_calib_tokens;
    uint64_t plain_bytes, coded_bytes; /* weights of the device before and after entropy coding */
    double bits;        /* per weight of all matrices, including the output layer's and the embedding's */
    double source_bits; /* of the weights that the source had in blocks already; 0: floats */
    /* Scheme gram: difference of predictions in nats a token on held-out calibration text (quant/judge.h),
     * and its number of tokens; for every kind of text, and for the kind that loses most. */
    double kl, kl_stderr;
    uint64_t n_held_tokens;
    tn_words worst;
    struct tn_pack_loss {
        double kl, kl_stderr;
        uint64_t n_held_tokens; /* 0: no text of this kind */
    } by_words[TN_N_WORDS];
    uint64_t n_own_tokens; /* that the model wrote */
    bool text_not_read;    /* the model does not know the language of the built-in text, which then does
                              not count */
    double surprise;       /* the model's surprise by a byte of that text, nats; 0: not measured */
    bool not_enough;       /* more loss than the target, with the most bits that were tried */
    int32_t n_passes;      /* scheme gram: number of times that the whole model was rounded ... */
    int32_t n_resumed;     /* ... and of layers that an earlier process had done */
    tn_stage_time stages[TN_N_STAGES];
    bool has_encoder;         /* of pictures */
    tn_tower_verdict encoder; /* whether it computes in INT8 */
} tn_pack_report;

/* tn_pack_options.quality when nothing is asked for. */
#define TN_PACK_QUALITY 0.005

/* Why sites stay unsmoothed. */
extern const char tn_pack_unsmoothed[];

/* Write the package at `out` (atomically). Progress "load", "encoder", "sense", "calibrate", "heads", "pack" through
 * ctx. */
tern_status tn_pack(tn_ctx *ctx, const char *src, const char *out, const tn_pack_options *opt,
                    tn_pack_report *report, tern_error *err);

#endif
