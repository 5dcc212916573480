/* model/recipes.h - lists of ops that program.c makes a model's program of. An architecture of known ops is, at most,
 * one more list in recipes.c. */
#ifndef TN_MODEL_RECIPES_H
#define TN_MODEL_RECIPES_H

#include "model/program.h"

enum { TN_MAX_LAYER_OPS = 64, TN_MAX_PARTS = 5 };

/* An op before it knows its model. Tensors the architecture has not drop out. */
typedef struct tn_recipe {
    tn_op_kind kind;
    const char *name, *beside;
    tn_buffer in, out;
    tn_role weight, bias; /* norms; 0: none (no norm's weight has the number 0) */
    tn_site site;
    int32_t stream;                       /* COPY, ALTUP_MERGE; SHIFT: which of a layer's */
    tn_role linears[TN_SITE_MAX_OPS + 1]; /* ends with 0, the embedding, which no layer multiplies by */
} tn_recipe;

typedef struct tn_recipes {
    const tn_recipe *at;
    int32_t n;
} tn_recipes;

/* The list of a layer, in parts; where the layers of a model differ, they differ here. */
void tn_recipes_of(const tn_hparams *h, int32_t layer, tn_recipes out[TN_MAX_PARTS]);

#endif
