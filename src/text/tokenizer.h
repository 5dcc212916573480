/* text/tokenizer.h - text to token ids and back, for every supported family.
 *
 * A tokenizer is immutable after open and shared by threads. It is made from a plain description
 * (tn_tokenizer_spec) that the formats fill: GGUF metadata or a tokenizer.json. */
#ifndef TN_TEXT_TOKENIZER_H
#define TN_TEXT_TOKENIZER_H

#include "base/ctx.h"
#include "text/segments.h"

typedef struct tn_tokenizer tn_tokenizer;

/* The last three do not merge (pieces.h); of the last the longest token that stands at a place is taken (RWKV). Packages
 * hold the numbers. */
typedef enum tn_tok_kind {
    TN_TOK_BPE_BYTES,
    TN_TOK_BPE_SPM,
    TN_TOK_WORDPIECE,
    TN_TOK_UNIGRAM,
    TN_TOK_LONGEST
} tn_tok_kind;
typedef enum tn_token_type {
    TN_TOKEN_NORMAL,
    TN_TOKEN_UNKNOWN,
    TN_TOKEN_CONTROL,
    TN_TOKEN_USER,
    TN_TOKEN_UNUSED,
    TN_TOKEN_BYTE
} tn_token_type;

/* Flags on a tn_token_type: the special token swallows the white space before (after) it. */
#define TN_TOKEN_LSTRIP 0x40
#define TN_TOKEN_RSTRIP 0x80

/* tn_tokenizer_open borrows this and copies what it keeps. Strings carry lengths, since tokens may hold any
 * bytes. */
typedef struct tn_tokenizer_spec {
    tn_tok_kind kind;
    size_t n_vocab;
    const char *const *tokens; /* BPE_BYTES: in the GPT-2 byte alphabet (special tokens: plain text); SPM:
                                  U+2581 for space; WORDPIECE: the same before pieces that begin words;
                                  LONGEST: as Python writes bytes, without the quotes */
    const size_t *token_bytes;
    const float *scores;       /* SPM: merge priority (higher first), or NULL: then merges are used */
    const uint8_t *types;      /* tn_token_type per token, or NULL (all normal) */
    const char *const *merges; /* "left right", best first (BPE_BYTES; SPM from tokenizer.json), or NULL;
                                * BPE_BYTES without merges but with scores: tiktoken ranks, score = -rank */
    const size_t *merge_bytes;
    size_t n_merges;
    const char *pre;              /* pre-tokenisation by name as GGUF has it ("gpt-2", "llama-bpe", "qwen2",
                                                  "deepseek-coder", "smollm", "default", ...) or NULL */
    const char *const *pre_regex; /* or explicit patterns, applied in order, splits isolated; NULL-terminated;
                                     overrides pre */
    bool pre_digits;              /* split every digit on its own first (tokenizer.json "Digits") */
    bool ignore_merges;           /* a pre-token that is in the vocabulary is one token (Llama 3) */
    bool add_space_prefix;        /* a space in front of the text, and of what follows a special token */
    bool space_prefix_first;      /* ... in front of the text only */
    bool space_prefix_missing;    /* ... only where there is no space yet (tokenizer.json's Metaspace and
                                    ByteLevel) */
    bool nfc;                     /* normalise to NFC first (Qwen2) */
    bool lowercase, strip_accents; /* WORDPIECE */
    bool merge_spaces;             /* UNIGRAM: a run of spaces becomes one; spaces at the ends are dropped */
    const uint8_t *charsmap;       /* UNIGRAM: SentencePiece's precompiled map, or NULL */
    size_t charsmap_bytes;
    bool add_bos, add_eos;
    bool end_twice;                  /* two end tokens between two texts: RoBERTa's kind */
    int32_t bos, eos, eot, unk, pad; /* -1: none */
    const int32_t *ends; /* further end-of-generation ids; the well-known names are found without this */
    size_t n_ends;
    const char *chat_template;   /* Jinja source or NULL */
    const char *tool_template;   /* the one for conversations with tools, where a model has two; or NULL */
    const char *rerank_template; /* a text in which {query} and {document} stand for the two; or NULL */
} tn_tokenizer_spec;

/* The defaults of a kind and family (GGUF: "llama" is SPM, "gpt2" is BPE_BYTES, and tokenizer.ggml.pre): no
 * special ids, and the family's add_bos, add_space_prefix, ignore_merges and nfc. The file's own keys
 * override them. GGUF's token_type is tn_token_type + 1. pre may be NULL. */
void tn_tokenizer_spec_defaults(tn_tokenizer_spec *s, tn_tok_kind kind, const char *pre);

tern_status tn_tokenizer_open(tn_ctx *ctx, const tn_tokenizer_spec *spec, tn_tokenizer **out,
                              tern_error *err);
void tn_tokenizer_close(tn_tokenizer **t);

/* Gives the tokenizer a rerank_template, before others have it. */
tern_status tn_tokenizer_read_pairs_by(tn_tokenizer *t, const char *template, tern_error *err);

/* RWKV's vocabulary in a folder. */
#define TN_RWKV_VOCAB "rwkv_vocab_v20230424.txt"

/* Opens a Hugging Face folder: tokenizer.json (+ tokenizer_config.json, generation_config.json when present).
 * A folder with only a vocab.json + merges.txt, a tiktoken tokenizer.model, or RWKV's vocabulary, is read from those. */
tern_status tn_tokenizer_open_hf(tn_ctx *ctx, const char *folder, tn_tokenizer **out, tern_error *err);

/* Saves the whole tokenizer as one relocatable little-endian blob, as .tern packages hold it. The caller
 * frees it with tn_free. */
tern_status tn_tokenizer_save(const tn_tokenizer *t, uint8_t **blob, size_t *n_bytes, tern_error *err);
tern_status tn_tokenizer_load(tn_ctx *ctx, const uint8_t *blob, size_t n_bytes, tn_tokenizer **out,
                              tern_error *err);

/* See tern_tokenize in tern.h. */
tern_status tn_tokenize(const tn_tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                        bool parse_special, int32_t *ids, size_t cap, size_t *n_ids, tern_error *err);
/* The same for a text of which only the template's bytes may become control tokens, other marks of turns
 * (tokenizer_impl.h, guarded) or markup of `template` (may be NULL). Otherwise the segments are one text:
 * words merge across their borders. */
tern_status tn_tokenize_segments(const tn_tokenizer *t, const tn_segments *s, const char *template,
                                 bool add_bos, int32_t *ids, size_t cap, size_t *n_ids, tern_error *err);
/* A question and a text as a model reads both: with the tokens around and between them, or in the model's template for
 * both, of which alone bytes become control tokens. They make at most tn_tokenize_pair_max tokens. */
tern_status tn_tokenize_pair(const tn_tokenizer *t, const char *const text[2], const size_t n_bytes[2],
                             int32_t *ids, size_t cap, size_t *n_ids, tern_error *err);
size_t tn_tokenize_pair_max(const tn_tokenizer *t, const size_t n_bytes[2]);
/* See tern_token_bytes. For SPM the detokeniser applies the first token's leading-space rule; this function
 * does not. */
size_t tn_token_bytes(const tn_tokenizer *t, int32_t id, bool special, char *buf, size_t cap);

size_t tn_tokenizer_n_vocab(const tn_tokenizer *t);
bool tn_tokenizer_has_template(const tn_tokenizer *t);
tn_tok_kind tn_tokenizer_kind(const tn_tokenizer *t);
int32_t tn_tokenizer_bos(const tn_tokenizer *t); /* -1: none */
int32_t tn_tokenizer_eos(const tn_tokenizer *t);
int32_t tn_tokenizer_eot(const tn_tokenizer *t);
bool tn_tokenizer_is_end(const tn_tokenizer *t,
                         int32_t id); /* eos, eot and further end-of-generation tokens by name */
int32_t tn_tokenizer_find(const tn_tokenizer *t, const char *token_text); /* exact text, -1 if absent */

/* Identifies a vocabulary: a hash of every token's bytes, in order. */
uint64_t tn_tokenizer_fingerprint(const tn_tokenizer *t);

/* Detokenises incrementally: push tokens, take complete UTF-8. Invalid sequences become U+FFFD. */
typedef struct tn_detok {
    const tn_tokenizer *t;
    bool special; /* print special tokens */
    bool started; /* SPM: the leading space has been handled */
    size_t n_pending;
    char pending[8];
} tn_detok;

void tn_detok_init(tn_detok *d, const tn_tokenizer *t, bool special, bool at_start);
/* Writes the text that became complete to buf and returns its bytes. cap >= 4 * longest token + 16 always
 * suffices. */
size_t tn_detok_push(tn_detok *d, int32_t id, char *buf, size_t cap);
size_t tn_detok_flush(tn_detok *d, char *buf, size_t cap);
size_t tn_tokenizer_max_token_bytes(const tn_tokenizer *t);

#endif
