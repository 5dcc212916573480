/* formats/safetensors.h - a Hugging Face model's weights: one safetensors file, or shards named by an index.
 * They are immutable after open and shared by threads; tensor data points into the mapped files. */
#ifndef TN_FORMATS_SAFETENSORS_H
#define TN_FORMATS_SAFETENSORS_H

#include "base/ctx.h"
#include "formats/packed.h"

typedef struct tn_safetensors tn_safetensors;

/* Opens a folder with model.safetensors or model.safetensors.index.json and its shards, or one .safetensors
 * file. */
tern_status tn_safetensors_open(tn_ctx *ctx, const char *path, tn_safetensors **out, tern_error *err);
/* Opens one file's bytes, which the caller keeps until close; name stands for the path in messages. */
tern_status tn_safetensors_open_memory(tn_ctx *ctx, const void *data, uint64_t n_bytes, const char *name,
                                       tn_safetensors **out, tern_error *err);
/* Whether a file was truncated or written to while open. What was read from it may then be anything. */
bool tn_safetensors_changed(const tn_safetensors *s);
void tn_safetensors_close(tn_safetensors **s);

size_t tn_safetensors_n_tensors(const tn_safetensors *s);
const tn_tensor *tn_safetensors_tensor_at(const tn_safetensors *s, size_t i);
/* Returns NULL for an absent tensor. A tensor of an unsupported type is listed with dtype TN_N_DTYPES. */
const tn_tensor *tn_safetensors_tensor(const tn_safetensors *s, const char *name);
/* Takes the tensors away that are marked in gone [n_tensors], and adds one of type F32 for each of `made`, named as its q
 * with the ending ".weight". made is taken over, also on failure; it was allocated with the same context. */
tern_status tn_safetensors_replace(tn_safetensors *s, const bool *gone, tn_packed *made, size_t n_made,
                                   tern_error *err);

#endif
