/* text/pieces.h - the two ways of cutting words into pieces that do not merge: WordPiece (BERT) takes the
 * longest piece first, unigram (XLM-R, T5) the likeliest pieces together.
 *
 * WordPiece: the text is cleaned of control characters, lower-cased and stripped of accents if the vocabulary
 * is; white space ends words, and every punctuation mark and CJK ideograph is a word. A word without pieces,
 * or of more than 100 characters, is the unknown token. Unigram: SentencePiece's normalisation (a precompiled
 * map of prefixes), runs of spaces as one, a space in front of the text; then the path of the largest sum of
 * scores. A character without a piece is the unknown token, 10 below the least score; runs of them are one.
 */
#ifndef TN_TEXT_PIECES_H
#define TN_TEXT_PIECES_H

#include "text/tokenizer_impl.h"

static inline uint32_t tn_tok_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

typedef void tn_tok_emit(void *user, uint32_t id);

tern_status tn_tok_wordpiece(const tn_tokenizer *t, const uint8_t *p, size_t n, tn_tok_emit *emit, void *user,
                             tern_error *err);
tern_status tn_tok_unigram(const tn_tokenizer *t, const uint8_t *p, size_t n, tn_tok_emit *emit, void *user,
                           tern_error *err);
/* Whether it is such a map: a size in bytes, a double array of that size, and terminated strings. */
bool tn_tok_charsmap_ok(const uint8_t *map, size_t n);

#endif
