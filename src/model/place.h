/* model/place.h - where a canonical tensor lies in a model's file, or in an adapter's, and how its rows
 * are reached. */
#ifndef TN_MODEL_PLACE_H
#define TN_MODEL_PLACE_H

#include "formats/safetensors.h"
#include "model/arch.h"

/* A file and what its names mean. Borrowed. One of gguf and st is there. */
typedef struct tn_model_file {
    const tn_arch *arch;
    const tn_hparams *h;
    const tn_gguf *gguf;
    const tn_safetensors *st;
    tn_safetensors *dense[2]; /* what a folder has of products after pooling; NULL: none */
    int32_t score_rows[2];    /* rows of the output layer that score a text, a yes and a no; 0, 0: none do */
    bool adapter; /* it holds what changes the tensors: pairs A and B in place of each; B is what is found */
    bool tasks;   /* ... of several tasks, one below the other, beside the weights */
} tn_model_file;

typedef struct tn_place {
    const tn_tensor *t;              /* NULL: absent */
    int64_t row0;                    /* of the canonical tensor inside a fused one */
    int32_t permuted_heads;          /* > 0: rows of each of so many heads are in interleaved rope order */
    int32_t permuted_d, permuted_at; /* of such a head: its rows, and the first one that is rotated */
    bool crossed; /* rows of a head are columns of the file's, which is that of K and V together (MLA) */
    bool plus_one;
    const tn_tensor **experts; /* folders: a tensor for every expert; NULL: one for all */
    int64_t group_rows,
        group_stride; /* rows of an expert or head, and of what it is a part of in the tensor; 0: as they come */
    bool turned;      /* the file holds columns as rows: a convolution's channels */
    bool negative_exp; /* and of a value x -exp(x) is meant */
    float ternary,
        ternary_mean; /* values beyond half the mean stand for one of -ternary and ternary, the others for
                                    0; 0: they are as they are (ternary.h) */
    float scale;      /* rows are multiplied by it; 0: they are as they are */
    int64_t columns;  /* > 0: rows of an expert are columns of the file's, which are so many (Llama 4) */
    int64_t parts[3]; /* rows of three parts that the file holds in the opposite order; 0: none */
} tn_place;

/* The tensor of that name; NULL: absent. */
const tn_tensor *tn_file_tensor(const tn_model_file *f, const char *name);
/* The experts' matrices as folders for MLX have them, one after another in one tensor: of their role, where `name` names
 * those of the first or of all. name (cap bytes) becomes its own. NULL: absent, and name stays. */
const tn_tensor *tn_file_stacked(const tn_model_file *f, tn_role role, const char **name, char *buf,
                                 size_t cap);
/* Finds the tensor of a role (p->t, NULL: absent), which may be a part of one with more rows; name (cap
 * bytes) is the role's own name and becomes that of what was looked for. *n_rows: in, of the role; out, of
 * the whole tensor. */
void tn_place_find(const tn_model_file *f, int layer, tn_role role, char *name, size_t cap, tn_place *p,
                   uint64_t *n_rows);
/* Row of the stored tensor that holds canonical row `row`. */
int64_t tn_place_row(const tn_model_file *f, const tn_place *p, int64_t row);

#endif
