/* text/no_pieces.c - replaces pieces.c in minimal builds (TERN_MINIMAL): models with such tokenizers embed
 * whole texts, and no packages are made of them. */
#include "text/pieces.h"

#include "base/status.h"

static tern_status none(tern_error *err) {
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "this build of tern has no tokenizers of WordPiece and unigram pieces");
}

tern_status tn_tok_wordpiece(const tn_tokenizer *t, const uint8_t *p, size_t n, tn_tok_emit *emit, void *user,
                             tern_error *err) {
    (void)t, (void)p, (void)n, (void)emit, (void)user;
    return none(err);
}

tern_status tn_tok_unigram(const tn_tokenizer *t, const uint8_t *p, size_t n, tn_tok_emit *emit, void *user,
                           tern_error *err) {
    (void)t, (void)p, (void)n, (void)emit, (void)user;
    return none(err);
}

bool tn_tok_charsmap_ok(const uint8_t *map, size_t n) { return (void)map, (void)n, false; }
