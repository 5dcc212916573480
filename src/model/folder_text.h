/* model/folder_text.h - what a folder says of how a text becomes a vector or a score. */
#ifndef TN_MODEL_FOLDER_TEXT_H
#define TN_MODEL_FOLDER_TEXT_H

#include "model/place.h"
#include "text/tokenizer.h"

/* Two forms of a model share all but the names of their tensors, which tell them (Jina's second; that of code, and the first
 * rerankers): a, or its other form. */
const tn_arch *tn_folder_arch(const tn_arch *a, const tn_safetensors *st);
/* Fills in h, which has the configuration: pooling by the folder's 1_Pooling, what the tensors say of embeddings, and
 * scores. Opens the products after pooling (f->dense), which the caller closes. Refuses steps of sentence-transformers
 * that it does not know. */
tern_status tn_folder_text(tn_ctx *ctx, const char *folder, tn_model_file *f, tn_hparams *h, tern_error *err);
/* Opens the folder's tokenizer, NULL where it has none. A reranker among the models that write (Qwen3-Reranker) is told by
 * its modules or by its README.md: its scores are of the words yes and no, and its tokenizer has the template for a
 * question and a text. */
tern_status tn_folder_tokenizer(tn_ctx *ctx, const char *folder, tn_model_file *f, tn_hparams *h,
                                tn_tokenizer **out, tern_error *err);
/* Does a GGUF file or a folder hold a model that makes vectors of texts, and no scores? By its metadata alone. */
bool tn_file_embeds(tn_ctx *ctx, const char *path);
/* ... one that reads a question with a text and gives the two one score? */
bool tn_file_reranks(tn_ctx *ctx, const char *path);

/* Whether a folder holds a file or folder of that name. */
bool tn_folder_has(const char *folder, const char *name);

#endif
