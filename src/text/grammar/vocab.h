/* text/grammar/vocab.h - a vocabulary's tokens as a tree of bytes, in preorder. It is immutable and shared by
 * threads. */
#ifndef TN_TEXT_GRAMMAR_VOCAB_H
#define TN_TEXT_GRAMMAR_VOCAB_H

#include "text/tokenizer.h"

typedef struct tn_gvocab_node {
    uint32_t past;          /* the node behind this one's subtree */
    uint32_t first_id : 31, /* ids[first_id..) are the tokens that end here */
        has_ids : 1;
    uint16_t depth; /* bytes to here, from 1 */
    uint8_t byte;
    uint8_t n_ids; /* 255 at most: further tokens of the same bytes are never allowed */
} tn_gvocab_node;

typedef struct tn_gvocab {
    tn_ctx *ctx;
    const tn_tokenizer *tok;
    size_t n_vocab;
    tn_gvocab_node *nodes; /* preorder, without a root */
    size_t n_nodes;
    uint32_t *ids; /* in the order of their bytes */
    size_t n_ids;
    uint32_t max_depth;
    uint32_t *ends; /* tokens that end a text */
    size_t n_ends;
} tn_gvocab;

/* Makes the tree of tokens that stand for text. Control, unknown and unused ones are left out, and those of
 * more than 65535 bytes. n_vocab is the model's, at least the tokenizer's. It borrows the tokenizer. */
tern_status tn_gvocab_open(tn_ctx *ctx, const tn_tokenizer *tok, size_t n_vocab, tn_gvocab **out,
                           tern_error *err);
void tn_gvocab_close(tn_gvocab **v);

#endif
