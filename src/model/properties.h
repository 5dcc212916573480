/* model/properties.h - the hyperparameters as a table: how each is called in a package's metadata, its type, its
 * place in tn_hparams, its neutral value and its range. What reads and writes packages walks this table, so a
 * hyperparameter of a new architecture is one row. What config.json and GGUF call them stands in keys.c. */
#ifndef TN_MODEL_PROPERTIES_H
#define TN_MODEL_PROPERTIES_H

#include "model/hparams.h"

#include <stddef.h>

typedef enum tn_property_type {
    TN_PROPERTY_INT,
    TN_PROPERTY_BOOL,
    TN_PROPERTY_FLOAT,
    TN_PROPERTY_DOUBLE,
    TN_PROPERTY_KINDS,  /* layer_kind: a letter of tn_layer_letters a layer */
    TN_PROPERTY_NUMBERS /* a float a layer: a list, absent where all are `none` */
} tn_property_type;

typedef struct tn_property {
    const char *section, *key; /* of the metadata */
    tn_property_type type;
    size_t at; /* in tn_hparams */
    /* Every package has it, in the type's own JSON. Else it is a number, which stands there only where it is not
     * `none`: packages of older architectures stay the same bytes. */
    bool always;
    double none, min, max;
    bool open; /* min and max themselves are out of range; 0 is not where it is `none` */
} tn_property;

/* In the order of the metadata. */
const tn_property *tn_properties(size_t *n);
bool tn_property_ok(const tn_property *p, double value);
/* Is it one number or boolean? The two functions after this take no others. */
static inline bool tn_property_single(const tn_property *p) { return p->type < TN_PROPERTY_KINDS; }
double tn_property_get(const tn_property *p, const tn_hparams *h);
void tn_property_set(const tn_property *p, tn_hparams *h, double value);
/* Of numbers layer by layer: the first. */
static inline float *tn_property_numbers(const tn_property *p, tn_hparams *h) {
    return (float *)(void *)((char *)h + p->at);
}
static inline float tn_property_number(const tn_property *p, const tn_hparams *h, int32_t layer) {
    return ((const float *)(const void *)((const char *)h + p->at))[layer];
}

/* Of tn_layer_kind, in its order. */
extern const char tn_layer_letters[TN_N_LAYER_KINDS + 1];

#endif
