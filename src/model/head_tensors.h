/* model/head_tensors.h - what the tensors of a head's file tell: of EAGLE-3 (next.h), of an assistant
 * (assistant.h). */
#ifndef TN_MODEL_HEAD_TENSORS_H
#define TN_MODEL_HEAD_TENSORS_H

#include "model/place.h"

/* Which of an embedding, an output layer and a list of tokens there are: h->head, which is checked. path: for
 * messages. */
tern_status tn_head_tensors(const tn_model_file *f, const char *path, tn_hparams *h, tern_error *err);
/* The tokens that its output layer knows, [head.n_vocab]. */
tern_status tn_head_ids(const tn_model_file *f, const char *path, int32_t *ids, tern_error *err);
/* Must some role take the tensor? */
bool tn_head_tensor_wanted(const tn_model_file *f, const char *name);

#endif
