/* measure/tune.h - what suits this machine and this package best, measured once (tern bench --tune) and kept in
 * the profile beside the package. That is the chunk length and the equivalent shapes of the prefill's
 * products (llm.npu 3.2), on which bits do not depend; from which length on sparse attention pays, and what
 * its stages take, by which heads are planned; and how long every stage takes when all is warm, by which the
 * policies decide and from which the simulator predicts. */
#ifndef TN_MEASURE_TUNE_H
#define TN_MEASURE_TUNE_H

#include "params/options.h"
#include "package/tuned.h"

enum {
    TN_TUNE_LENGTHS = 6, /* 32, 64, 128, 256, 512, 1024 */
    TN_TUNE_ATTN = 3,
    TN_TUNE_FARTHEST = 16384,
    TN_TUNE_NEVER = 1 << 24
};

typedef struct tn_tune_report {
    tn_tuned tuned;
    int32_t n_prompt;
    bool has_shape[TN_N_SITES]; /* kinds of products that the layers have, but experts */
    int32_t chunk[TN_TUNE_LENGTHS];
    double tokens_per_second[TN_TUNE_LENGTHS]; /* 0: not tried, longer than the prompt */
    int32_t attn_length[TN_TUNE_ATTN];         /* prompts of a quarter, half and all of the tokens */
    double attn_speed[TN_TUNE_ATTN][2];      /* tokens per second in full, and with sparse attention from the
                                           beginning; 0: not measured */
    const tn_packed_form *forms;             /* of the engine's processor; NULL: nothing to choose from */
    double form_speed[TN_PACKED_FORMS_MOST]; /* tokens per second of decoding with each form of one row's
                                                products over packed weights; 0: not measured */
    double read_gb_per_second[TN_TUNED_READS]; /* of a file that is not in the page cache, by
                                                  tn_tuned_read_names; 0: not measured */
    int32_t i_read;                            /* the fastest */
} tn_tune_report;

/* Prefills n_prompt random tokens with every chunk length up to it and keeps the fastest. Then it profiles
 * equivalent shapes with that length, measures how the storage is read fastest, and with what was found the
 * time of every stage. It writes all into the profile, and fails with TERN_E_IO when it cannot be written.
 * opt->chunk is ignored. */
tern_status tn_tune(const char *path, const tern_options *opt, int32_t n_prompt, tn_tune_report *out,
                    tern_error *err);

/* Measures what is measured without being asked for, once for a machine and a package, or for a quantised file, whose
 * profile lies in the user's cache. Of a file: where sparse attention begins, and how the storage is read fastest. Of a
 * package: a chunk length of 128,
 * 256 or 512 and where sparse attention begins (a power of two, so that a busy machine seldom moves it), as far
 * as each takes no more than some seconds, the shapes of the products, what sparse attention's stages take, how
 * the storage is read fastest (from 256 MiB of the package), and the time of every stage. Nothing is measured
 * where the profile holds it already for this machine and these lanes, or while another process measures, which
 * busy tells. */
tern_status tn_tune_by_itself(const char *path, const tern_options *opt, bool *busy, tern_error *err);

/* Whether it would measure with the default options: the engine has their lanes, the profile of its package holds
 * nothing for them and may be written, and no other process measures. */
bool tn_tune_wanted(const tern_engine *e, const char *path);

/* Finds where sparse attention begins to pay. us[0][i] is the time of the i-th piece of a prompt in full, us[1][i]
 * with sparse attention; a piece has n_piece tokens. It begins with the first piece that is faster and has none
 * after it that is not, or where the lines through both kinds' times cross, at the next power of two. Returns
 * TN_TUNE_NEVER where it pays nowhere up to TN_TUNE_FARTHEST tokens. */
int32_t tn_tune_begins(const double *const us[2], int32_t n_pieces, int32_t n_piece);

#endif
