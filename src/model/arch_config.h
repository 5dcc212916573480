/* model/arch_config.h - numbers of a config.json. The first that is wrong fails the reader, which goes on with what
 * stands in for it. */
#ifndef TN_MODEL_ARCH_CONFIG_H
#define TN_MODEL_ARCH_CONFIG_H

#include "model/arch.h"

typedef struct tn_config {
    const json_t *o;
    const char *file;
    tern_error *err;
    tern_status st;
} tn_config;

double tn_config_number(tn_config *c, const json_t *o, const char *key, bool required, double fallback);
/* A whole number from -1 on. */
int32_t tn_config_whole(tn_config *c, const char *key, bool required, int32_t fallback);
/* A number by the first of these names that is there. */
double tn_config_first(tn_config *c, const char *const *keys, double fallback);
bool tn_config_is(const tn_config *c, const char *key);
/* A number, or the same one for every layer; by the first of these names that is there. */
int32_t tn_config_same(tn_config *c, const char *key, bool required, int32_t fallback);
int32_t tn_config_first_whole(tn_config *c, const char *const *keys, bool required, int32_t fallback);

/* The layers that a head or drafter reads, a list: each 1 or more, once `shift` is added. Returns how many there
 * are; 0: it is no such list, or longer than TN_MAX_TAPS. */
int32_t tn_config_layers(const json_t *ids, int32_t shift, int32_t from[TN_MAX_TAPS]);

/* What it says of rope (arch_hf_rope.c). */
tern_status tn_arch_rope_hf(tn_config *c, const tn_arch *a, tn_hparams *h);

#endif
