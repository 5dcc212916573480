/* tests/text/small_vocab.h - a byte-level vocabulary made on the spot: 256 bytes, merges, special tokens. */
#ifndef TESTS_TEXT_SMALL_VOCAB_H
#define TESTS_TEXT_SMALL_VOCAB_H

#include "base/rng.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <string.h>

enum { SMALL_MERGES = 200, SMALL_SPECIALS = 5, SMALL_VOCAB = 256 + SMALL_MERGES + SMALL_SPECIALS };

typedef struct small_vocab {
    char text[SMALL_VOCAB][96];
    const char *tokens[SMALL_VOCAB];
    size_t token_bytes[SMALL_VOCAB];
    uint8_t types[SMALL_VOCAB];
    uint32_t left[SMALL_MERGES], right[SMALL_MERGES]; /* merge i makes token 256 + i */
    char merge_text[SMALL_MERGES][200];
    const char *merges[SMALL_MERGES];
    size_t merge_bytes[SMALL_MERGES];
    tn_tokenizer_spec spec;
} small_vocab;

/* Ids: 0..255 bytes, then the merges' results, then <s>, </s>, <s><s>, the user-defined "abc" and "<pad>"
 * swallowing spaces. */
static void small_vocab_make(small_vocab *v, uint64_t seed) {
    memset(v, 0, sizeof *v);
    tn_rng rng = {seed};
    for (int b = 0; b < 256; b++) tn_utf8_encode(tn_byte_to_alphabet((uint8_t)b), (uint8_t *)v->text[b]);
    for (uint32_t m = 0; m < SMALL_MERGES;) {
        /* over few letters, so that random words of them merge deeply */
        uint32_t pick[2];
        for (int k = 0; k < 2; k++) {
            uint64_t r = tn_rng_below(&rng, m + 6);
            pick[k] = r < 6 ? (uint32_t) "abcd 1"[r] : 256 + (uint32_t)r - 6;
        }
        char both[200];
        strcpy(both, v->text[pick[0]]);
        strcat(both, v->text[pick[1]]);
        bool fresh = strlen(both) < 40;
        for (uint32_t i = 0; i < 256 + m; i++) fresh &= strcmp(v->text[i], both) != 0;
        if (!fresh) continue;
        v->left[m] = pick[0];
        v->right[m] = pick[1];
        strcpy(v->text[256 + m], both);
        strcpy(v->merge_text[m], v->text[pick[0]]);
        strcat(strcat(v->merge_text[m], " "), v->text[pick[1]]);
        v->merges[m] = v->merge_text[m];
        v->merge_bytes[m] = strlen(v->merge_text[m]);
        m++;
    }
    static const char *const special[SMALL_SPECIALS] = {"<s>", "</s>", "<s><s>", "!user!", "<pad>"};
    for (int i = 0; i < SMALL_SPECIALS; i++) {
        strcpy(v->text[256 + SMALL_MERGES + i], special[i]);
        v->types[256 + SMALL_MERGES + i] =
            (uint8_t)(i == 3   ? TN_TOKEN_USER
                      : i == 4 ? TN_TOKEN_CONTROL | TN_TOKEN_LSTRIP | TN_TOKEN_RSTRIP
                               : TN_TOKEN_CONTROL);
    }
    for (int i = 0; i < SMALL_VOCAB; i++) {
        v->tokens[i] = v->text[i];
        v->token_bytes[i] = strlen(v->text[i]);
    }
    v->spec = (tn_tokenizer_spec){.kind = TN_TOK_BPE_BYTES,
                                  .n_vocab = SMALL_VOCAB,
                                  .tokens = v->tokens,
                                  .token_bytes = v->token_bytes,
                                  .types = v->types,
                                  .merges = v->merges,
                                  .merge_bytes = v->merge_bytes,
                                  .n_merges = SMALL_MERGES,
                                  .pre = "gpt-2",
                                  .bos = 256 + SMALL_MERGES,
                                  .eos = 257 + SMALL_MERGES,
                                  .eot = -1,
                                  .unk = -1,
                                  .pad = -1,
                                  .add_bos = true};
}

#endif
