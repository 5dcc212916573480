/* text/tokenizer_impl.h - the inside of a tokenizer, for the files of text/ only.
 *
 * Tokens are kept as the bytes they stand for: byte-level tokens out of the GPT-2 alphabet, SentencePiece
 * tokens with plain spaces. Encoding works on those bytes, so nothing is translated at run time. A blob
 * stores `core`; tn_tokenizer_derive computes the rest. */
#ifndef TN_TEXT_TOKENIZER_IMPL_H
#define TN_TEXT_TOKENIZER_IMPL_H

#include "text/pretok.h"
#include "text/tokenizer.h"

#include <stdatomic.h>
#include <string.h>

#define TN_TOK_TYPE_MASK 0x0f
#define TN_TOK_MAX_VOCAB (1u << 21) /* eight times the largest known */
#define TN_TOK_NONE UINT32_MAX
/* Special tokens are searched at every place of a text, so their length adds to its cost. The longest known
 * are runs of 128 spaces. */
#define TN_TOK_MAX_SPECIAL 512u
/* So are tokens of which the longest is taken, at every place: eight times the longest of RWKV's. */
#define TN_TOK_MAX_LONGEST 1024u
#define TN_TOK_REPORT_BYTES ((size_t)256 << 10) /* of text between two calls of the progress hook */

typedef struct tn_merge {
    uint32_t left, right, result;
} tn_merge;

/* Open-addressing slot of the pair table; rank TN_TOK_NONE = empty */
typedef struct tn_pair {
    uint64_t key; /* left << 32 | right */
    uint32_t rank, result;
} tn_pair;

struct tn_tokenizer {
    tn_ctx *ctx;

    /* core */
    tn_tok_kind kind;
    uint32_t n_vocab;
    uint32_t *off; /* [n_vocab + 1] into bytes */
    uint8_t *bytes;
    uint8_t *types; /* [n_vocab] tn_token_type | strip flags */
    float *scores;  /* [n_vocab] or NULL: then merges decide */
    tn_merge *merges;
    uint32_t n_merges;
    /* Bit per token: merging its own bytes gives just this token. It is set when that was seen, relaxed: any thread that
     * does not see it yet merges once more. */
    _Atomic uint64_t *direct;
    char *patterns[TN_PRETOK_MAX];
    uint32_t n_patterns;
    bool ignore_merges, space_prefix, space_prefix_first, space_prefix_missing, nfc, add_bos, add_eos,
        end_twice;
    bool lowercase, strip_accents, merge_spaces;
    uint8_t *charsmap; /* or NULL */
    uint32_t charsmap_bytes;
    int32_t bos, eos, eot, unk, pad;
    int32_t *ends; /* ascending */
    uint32_t n_ends;
    char *chat_template, *tool_template, *rerank_template; /* or NULL */

    /* derived */
    uint64_t seed;   /* of the hash tables; random, so no vocabulary can be crafted to collide */
    uint64_t *table; /* text -> mergeable token: hash high half << 32 | id + 1, 0 = empty */
    uint64_t table_mask;
    bool has_twins; /* two mergeable tokens have the same text */
    tn_pair *pairs;
    uint64_t pairs_mask;
    uint32_t byte_id[256]; /* TN_TOK_NONE: the vocabulary lacks this byte */
    uint32_t longest[256]; /* LONGEST: bytes of the longest token that begins with this one */
    uint32_t *specials;    /* ids matched in raw text, sorted by text */
    uint32_t n_specials;
    uint32_t special_at[257]; /* specials starting with byte b: [special_at[b], special_at[b + 1]) */
    bool user_start[256];     /* a user-defined token starts with this byte */
    bool has_user;
    /* Bit per token: user-defined, but it marks turns or parts of them, so content must not produce it:
     * markup of the chat template, and ends of generation. NULL: there are none. */
    uint64_t *guarded;
    bool cut_at_spaces; /* no token has a space after a non-space: words merge on their own */
    uint32_t max_token_bytes;
    tn_pretok *pretok;
};

/* Computes everything that derives from a complete core. */
tern_status tn_tokenizer_derive(tn_tokenizer *t, tern_error *err);

/* -1: no such token. */
static inline int32_t tn_tok_checked_id(const tn_tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->n_vocab ? id : -1;
}
static inline tn_token_type tn_tok_type(const tn_tokenizer *t, uint32_t id) {
    return (tn_token_type)(t->types[id] & TN_TOK_TYPE_MASK);
}
static inline const uint8_t *tn_tok_text(const tn_tokenizer *t, uint32_t id, size_t *n) {
    *n = t->off[id + 1] - t->off[id];
    return t->bytes + t->off[id];
}
static inline bool tn_tok_guarded(const tn_tokenizer *t, uint32_t id) {
    return t->guarded && t->guarded[id / 64] >> (id % 64) & 1;
}
/* Sets the bit of every special token that the template writes as markup, like <think>, but not of `<h1>` or
 * runs of spaces. bits: [n_vocab / 64 rounded up], template may be NULL. Time grows with the template alone.
 */
void tn_tok_mark_markup(const tn_tokenizer *t, const char *template, uint64_t *bits);
static inline uint64_t tn_tok_pair_hash(const tn_tokenizer *t, uint64_t key) {
    uint64_t h = (key ^ t->seed) * 0x9e3779b97f4a7c15u;
    return ((h ^ h >> 29) * (t->seed | 1)) >> 32;
}

/* Whether merging text can produce it. */
static inline bool tn_tok_mergeable(const tn_tokenizer *t, uint32_t id) {
    tn_token_type ty = tn_tok_type(t, id);
    return (ty == TN_TOKEN_NORMAL || ty == TN_TOKEN_USER) && t->off[id + 1] > t->off[id];
}

/* The mergeable token with exactly these bytes, or TN_TOK_NONE. */
uint32_t tn_tok_lookup(const tn_tokenizer *t, const uint8_t *p, size_t n);
/* The same with their hash. */
uint64_t tn_tok_hash(const tn_tokenizer *t, const uint8_t *p, size_t n);
uint32_t tn_tok_lookup_hashed(const tn_tokenizer *t, const uint8_t *p, size_t n, uint64_t hash);

/* Longer tokens are no words, and never direct: a vocabulary of such tokens must not make packing slow. */
#define TN_TOK_MAX_DIRECT 1024u
static inline bool tn_tok_direct(const tn_tokenizer *t, uint32_t id) {
    return atomic_load_explicit(&t->direct[id / 64], memory_order_relaxed) >> (id % 64) & 1;
}
static inline void tn_tok_set_direct(const tn_tokenizer *t, uint32_t id) {
    atomic_fetch_or_explicit(&t->direct[id / 64], 1ull << (id % 64), memory_order_relaxed);
}
/* Sets the `direct` bits of all tokens (a blob has them). */
tern_status tn_tok_mark_direct(const tn_tokenizer *t, tern_error *err);

/* Merges one pre-token into ids[0..cap) without the direct look-up. *n_ids gets the number needed. */
tern_status tn_tok_merge_piece(const tn_tokenizer *t, const uint8_t *p, size_t n, int32_t *ids, size_t cap,
                               size_t *n_ids);

#endif
