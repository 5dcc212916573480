/* text/grammar/vocab.h - a vocabulary's tokens as a tree of bytes, in preorder. It is immutable and shared by
 * threads. */
#ifndef TN_TEXT_GRAMMAR_VOCAB_H
#define TN_TEXT_GRAMMAR_VOCAB_H

#include "text/tokenizer.h"

typedef struct tn_gvocab_node {
    uint32_t past;          /* the node after this one's subtree */
    uint32_t first_id : 31, /* ids[first_id..) are the tokens of the subtree, those that end here first */
        has_ids : 1;
    uint16_t depth; /* bytes to here, from 1 */
    uint8_t byte;
    uint8_t n_ids; /* 255 at most; further tokens with the same bytes are never allowed */
} tn_gvocab_node;

/* A node's bytes as UTF-8, if its token begins a character. An invalid byte ends no character, and the next
 * byte begins one. */
typedef struct tn_gvocab_text {
    uint32_t below; /* groups of the bytes below the node, as bits (tn_gvocab_group) */
    uint16_t chars; /* characters that are complete */
    uint8_t need;   /* bytes that the last one still needs */
} tn_gvocab_text;

/* A node and its parent (UINT32_MAX: the root). */
typedef struct tn_gvocab_edge {
    uint32_t node, parent;
} tn_gvocab_edge;

typedef struct tn_gvocab {
    tn_ctx *ctx;
    const tn_tokenizer *tok;
    size_t n_vocab;
    tn_gvocab_node *nodes; /* preorder, without a root */
    size_t n_nodes;
    uint32_t *ids; /* in the order of their bytes */
    size_t n_ids;
    uint32_t *id_chars;      /* [n_ids] complete characters << 1 | the last one is */
    tn_gvocab_text *text;    /* [n_nodes] */
    tn_gvocab_edge *by_byte; /* [n_nodes] the nodes of byte 0, then those of 1..., each ascending */
    uint32_t by_byte_at[257];
    bool crowded; /* some bytes have more tokens than a node can count, so ranges of ids are too wide */
    uint32_t max_depth;
    uint32_t *ends; /* tokens that end a text */
    size_t n_ends;
} tn_gvocab;

/* Makes the tree of the tokens that stand for text: without control, unknown and unused tokens and those of
 * more than 65535 bytes. n_vocab is the model's, at least the tokenizer's. Borrows the tokenizer. */
tern_status tn_gvocab_open(tn_ctx *ctx, const tn_tokenizer *tok, size_t n_vocab, tn_gvocab **out,
                           tern_error *err);
void tn_gvocab_close(tn_gvocab **v);

/* Groups of bytes. Bytes that grammars often distinguish are in different groups. */
uint8_t tn_gvocab_group(uint8_t byte);
enum {
    TN_GVOCAB_HIGH = 30 /* bytes of 0x80 and above */,
    TN_GVOCAB_BAD = 31 /* not a byte: invalid UTF-8 */
};
/* The bytes [lo, hi] that may continue a character; *need: how many are missing, 0 at the start. Both are
 * updated by the byte. Returns false for a byte that is not allowed there. */
bool tn_gvocab_utf8(uint8_t byte, uint8_t *need, uint8_t *lo, uint8_t *hi);
/* One past the last token of a node's subtree, in ids. */
static inline uint32_t tn_gvocab_past_id(const tn_gvocab *v, uint32_t node) {
    uint32_t past = v->nodes[node].past;
    return past < v->n_nodes ? v->nodes[past].first_id : (uint32_t)v->n_ids;
}

#endif
