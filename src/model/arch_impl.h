/* model/arch_impl.h - what the readers of config.json (arch_hf.c) and of GGUF metadata (arch_gguf.c)
 * share. */
#ifndef TN_MODEL_ARCH_IMPL_H
#define TN_MODEL_ARCH_IMPL_H

#include "model/arch.h"

/* arch_table.c; a new architecture is a row there and, at most, one new operator. */
extern const tn_arch tn_archs[];
extern const int tn_n_archs;

/* What the table's row says, and neutral values for the rest. */
void tn_arch_begin(const tn_arch *a, tn_hparams *h);
/* Checks ranges and fills in what follows from the others. file: for messages. */
tern_status tn_arch_finish(const tn_arch *a, const char *file, tn_hparams *h, tern_error *err);

/* Layers of one block in a config.json (arch_single.c): which they are, and the sizes of state spaces. */
tern_status tn_arch_single_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err);

/* All of them state spaces: what stands in for heads and blocks that there are none of, and which layers there are. */
void tn_arch_alone(const tn_arch *a, tn_hparams *h);
tern_status tn_arch_alone_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err);

/* RWKV-7 and Kimi's delta attention: the form of the memory, and what a config.json says of it (arch_wkv.c). */
void tn_arch_wkv(tn_hparams *h, int32_t n_heads, int32_t d);
/* floor: of the logarithm of a decay, as files say it; 0: none */
void tn_arch_kda(tn_hparams *h, int32_t n_heads, int32_t d, double floor);
tern_status tn_arch_kda_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err);
tern_status tn_arch_wkv_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err);

/* Ling 3 (arch_ling.c); d: values of a key of its memory. */
tern_status tn_arch_ling_hf(const json_t *o, const char *file, tn_hparams *h, tern_error *err);
tern_status tn_arch_ling_gguf(const tn_gguf *g, int32_t d, tn_hparams *h, tern_error *err);

/* Gemma 4's assistants in a config.json (arch_assistant.c). */
bool tn_arch_is_assistant_hf(const json_t *config);
tern_status tn_arch_assistant_hf(const json_t *config, const char *file, tn_hparams *h, tern_error *err);

/* DFlash (arch_dflash.c): any of its forms in a config.json; the one that is read; and what both forms of
 * files must say. */
bool tn_arch_is_dflash_hf(const json_t *config);
tern_status tn_arch_dflash_hf(const json_t *config, const char *file, tn_hparams *h, tern_error *err);
tern_status tn_arch_dflash_ok(const char *file, const tn_hparams *h, tern_error *err);

/* Pairs of each axis. Where they are not all of a head's, only pictures are refused. */
void tn_rope_set_axes(const tn_arch *a, tn_hparams *h, const int64_t axes[TN_AXES]);
/* Frequencies of the model's base, unscaled. */
void tn_rope_plain(const tn_hparams *h, double out[TN_MAX_ROT / 2]);
void tn_rope_set(tn_hparams *h, const double f[TN_MAX_ROT / 2]);
/* The table of the layers with a window: of this base, unscaled. */
void tn_rope_set_local(tn_hparams *h, double base);
/* Phi-3: per-pair factors, short up to the original context and long beyond; scores grow with the stretch. */
void tn_rope_long(tn_hparams *h, const double *short_f, const double *long_f, int32_t orig,
                  double attn_factor);

/* YaRN: pairs that turn more than beta_fast times in the original context are kept, those that turn less
 * than beta_slow times are slowed by `factor`, with a ramp between. whole: the ramp begins and ends at
 * whole pairs. */
typedef struct tn_yarn {
    double factor, orig_ctx, beta_fast, beta_slow;
    bool whole;
} tn_yarn;
tern_status tn_rope_yarn(const char *file, const tn_hparams *h, const tn_yarn *y, double f[TN_MAX_ROT / 2],
                         tern_error *err);
/* By how much cos and sin grow: 1 + 0.1 m ln(factor). */
double tn_yarn_mscale(double factor, double m);

#endif
