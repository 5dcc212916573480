/* model/source.h - one in-memory view of a model in any file format: hyperparameters, tokenizer, weights by
 * role. Weights stay in the (mapped) file and are widened to float on request, so that packing needs bounded
 * memory. */
#ifndef TN_MODEL_SOURCE_H
#define TN_MODEL_SOURCE_H

#include "base/file.h"
#include "formats/packed.h"
#include "kernels/gemm_f32.h"
#include "model/hparams.h"
#include "text/tokenizer.h"

typedef struct tn_source tn_source;

/* GGUF file or Hugging Face folder. Checks that every tensor of the architecture is there with the right
 * shape and dtype; errors name file, tensor and offset. */
tern_status tn_source_open(tn_ctx *ctx, const char *path, tn_source **out, tern_error *err);
/* The same without a GGUF file's tokenizer, and tn_source_read_text, which makes it: so that weights are being read
 * meanwhile. */
tern_status tn_source_open_weights(tn_ctx *ctx, const char *path, tn_source **out, tern_error *err);
tern_status tn_source_read_text(tn_source *s, tern_error *err);
/* The same of a head that drafts for a model (EAGLE-3, DFlash, Gemma 4's assistant); n_vocab is that
 * model's. */
tern_status tn_source_open_head(tn_ctx *ctx, const char *path, tn_source **out, tern_error *err);
/* The tokens that a head's output layer knows, [head.n_vocab]. */
tern_status tn_source_head_ids(const tn_source *s, int32_t *ids, tern_error *err);
void tn_source_close(tn_source **s);

const tn_hparams *tn_source_hparams(const tn_source *s);
/* Owned by the source; NULL when the file has no tokenizer. tn_source_take_tokenizer passes ownership to the
 * caller. */
const tn_tokenizer *tn_source_tokenizer(const tn_source *s);
tn_tokenizer *tn_source_take_tokenizer(tn_source *s);

/* Why a layer of the file that guesses one token further is not among the hyperparameters'; NULL: it is, or there is none. */
const char *tn_source_without_next(const tn_source *s);

bool tn_source_has(const tn_source *s, int layer, tn_role role);
/* Narrowest panel type that holds the stored values exactly (F16 and BF16 files: those; everything else F32).
 */
tn_panel_dtype tn_source_panel_dtype(const tn_source *s, int layer, tn_role role);
/* Rows row0..row1-1 of the canonical tensor as float: dst [(row1-row0)][cols]. Thread-safe. NaN or infinite
 * weights are an error that names the tensor and the element. */
tern_status tn_source_read(const tn_source *s, int layer, tn_role role, int64_t row0, int64_t row1,
                           float *dst, tern_error *err);
/* The same of a tensor whose bytes were read to another place. */
tern_status tn_source_read_from(const tn_source *s, int layer, tn_role role, const uint8_t *tensor,
                                int64_t row0, int64_t row1, float *dst, tern_error *err);
/* Whether rows of a matrix are panels' elements of two bytes as the file has them; and these rows. */
bool tn_source_has_halves(const tn_source *s, int layer, tn_role role);
tern_status tn_source_read_halves(const tn_source *s, int layer, tn_role role, int64_t row0, int64_t row1,
                                  uint16_t *dst, tern_error *err);
/* As the file stores it: the tensor a role is (a part of), NULL when it is absent; and a row of a matrix,
 * the bytes of its blocks. */
const tn_tensor *tn_source_tensor(const tn_source *s, int layer, tn_role role);
const uint8_t *tn_source_row(const tn_source *s, int layer, tn_role role, int64_t row);
/* The packed matrix of a folder (formats/packed.h) that holds a role's row as it is, and in *row its number there; NULL: it is
 * not packed. */
const tn_packed *tn_source_packed_row(const tn_source *s, int layer, tn_role role, int64_t *row);
/* Are its rows columns of the file's tensor? They can be read, and there is no row of bytes (tn_source_row). */
bool tn_source_crossed(const tn_source *s, int layer, tn_role role);
/* Tells whether the rows lie one after another. */
bool tn_source_rows_in_order(const tn_source *s, int layer, tn_role role);
/* The GGUF file, where the model is all in one; else NULL. */
const tn_file *tn_source_file(const tn_source *s);
/* The layer's tensors (-1: the model's own) are not needed for now: their pages leave this process's memory
 * until they are read again. */
void tn_source_release(const tn_source *s, int layer);
/* The tensors as the file stores them. */
size_t tn_source_n_tensors(const tn_source *s);
const tn_tensor *tn_source_tensor_at(const tn_source *s, size_t i);
/* One line for `tern inspect`: file format and the storage type of most weights ("GGUF v3, Q4_K"). */
const char *tn_source_description(const tn_source *s);
/* Average bits of the weights that the source stores in blocks; 0: it has none. */
double tn_source_bits(const tn_source *s);

#endif
