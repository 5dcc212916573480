/* text/spm.h - SentencePiece's own files (tokenizer.model), a protocol buffer: pieces with scores and types,
 * and the settings of the trainer and the normaliser. */
#ifndef TN_TEXT_SPM_H
#define TN_TEXT_SPM_H

#include "base/status.h"
#include "text/tokenizer.h"

typedef struct tn_spm {
    int32_t unk, bos, eos, pad; /* -1: none */
    bool dummy_prefix;          /* a space in front of the text */
} tn_spm;

/* Called for every piece, in the order of ids; text is not zero-terminated. */
typedef tern_status (*tn_spm_piece)(void *user, int32_t id, const char *text, size_t n, float score,
                                    tn_token_type type);

/* Whether the bytes begin like such a file. */
bool tn_spm_is(const void *data, size_t n_bytes);
/* Reads a file of kind BPE. Another kind, and normalisation beyond spaces, is TERN_E_UNSUPPORTED. */
tern_status tn_spm_read(const void *data, size_t n_bytes, tn_spm *out, tn_spm_piece on_piece, void *user,
                        tern_error *err);

#endif
