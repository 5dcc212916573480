/* text/hf_impl.h - a description being read from a Hugging Face folder; shared by the readers of its files.
 */
#ifndef TN_TEXT_HF_IMPL_H
#define TN_TEXT_HF_IMPL_H

#include "text/tokenizer.h"

#include <jansson.h>
#include <string.h>

enum { TN_HF_PATTERNS = 15, TN_HF_ENDS = 64, TN_HF_VOCAB = 1 << 21 };

/* A draft is a description being assembled. Its strings are borrowed from the documents (JSON values, files)
 * or from `made`; all live until it is opened. */
typedef struct tn_hf_draft {
    tn_ctx *ctx;
    tern_error *err;
    tn_tokenizer_spec spec;
    const char **tokens;
    size_t *token_bytes;
    uint8_t *types;
    float *scores;
    const char **merges;
    size_t *merge_bytes;
    size_t n_vocab, cap_vocab, n_merges, cap_merges, n_scores;
    const char *patterns[TN_HF_PATTERNS + 1];
    size_t n_patterns;
    bool byte_level, spaces_visible; /* which of the two alphabets was seen */
    int32_t ends[TN_HF_ENDS];
    size_t n_ends;
    char **made; /* strings built here */
    size_t n_made, cap_made;
} tn_hf_draft;

/* hf_draft.c */
void tn_hf_draft_init(tn_hf_draft *d, tn_ctx *ctx, tern_error *err);
void tn_hf_draft_free(tn_hf_draft *d);
/* Makes room for cap_new elements at *array_at, a pointer to elements of any type. */
bool tn_hf_grow(tn_ctx *ctx, void *array_at, size_t size, size_t cap_new);
/* A zeroed string of n bytes that lives as long as the draft. */
char *tn_hf_make(tn_hf_draft *d, size_t n);
/* Sets token `id` to text. Ids may come in any order, and holes stay empty. */
tern_status tn_hf_set_token(tn_hf_draft *d, json_int_t id, const char *text, size_t n, uint8_t type);
/* Gives a score to tokens that have none. */
tern_status tn_hf_score_all(tn_hf_draft *d);
tern_status tn_hf_no_memory(tn_hf_draft *d);

static inline const char *tn_hf_text(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}
static inline bool tn_hf_is(const json_t *o, const char *key, const char *value) {
    return !strcmp(tn_hf_text(o, key), value);
}

/* hf_pieces.c */
int tn_hf_base64(char c); /* a digit's value, or -1 */
tern_status tn_hf_charsmap(tn_hf_draft *d, const json_t *normalizer);
tern_status tn_hf_bert_normalizer(tn_hf_draft *d, const json_t *normalizer);
tern_status tn_hf_wordpieces(tn_hf_draft *d, const json_t *model);
tern_status tn_hf_unigrams(tn_hf_draft *d, const json_t *model);

#endif
