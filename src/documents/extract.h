/* documents/extract.h - plain UTF-8 text out of files that people keep (text in some encoding, HTML), and its
 * division into passages. Bytes from outside go in, valid UTF-8 comes out, whatever they are. */
#ifndef TN_DOCUMENTS_EXTRACT_H
#define TN_DOCUMENTS_EXTRACT_H

#include "base/ctx.h"

/* Tells whether there is a zero byte (outside UTF-16), or more than a few control characters. */
bool tn_text_is_binary(const char *bytes, size_t n);

/* Decodes UTF-8 and UTF-16 (by its byte order mark) as they are, anything else as Windows-1252. Each end of
 * line becomes one newline, and so does a form feed; other control characters go. *out is zero-terminated; the caller frees it with
 * tn_free. */
tern_status tn_text_decode(tn_ctx *ctx, const char *bytes, size_t n, char **out, size_t *n_out,
                           tern_error *err);
/* The same, but form feeds stay. */
tern_status tn_text_decode_pages(tn_ctx *ctx, const char *bytes, size_t n, char **out, size_t *n_out,
                                 tern_error *err);

/* Returns what a reader sees of an HTML page given as UTF-8: tags, comments, scripts and styles go, blocks
 * become paragraphs, entities their characters, white space collapses except in <pre>. It is no browser:
 * broken markup gives text, never an error. */
tern_status tn_text_from_html(tn_ctx *ctx, const char *html, size_t n, char **out, size_t *n_out,
                              tern_error *err);

/* ---- passages -------------------------------------------------------------------------------------- */

typedef struct tn_passage_options {
    size_t max_tokens;     /* per passage, > 0 */
    size_t overlap_tokens; /* of the passage before, repeated; < max_tokens */
    size_t (*count)(void *user, const char *text, size_t n); /* tokens of a piece; NULL: tn_text_count */
    void *user;
} tn_passage_options;

/* Counts about as many tokens as a subword tokenizer makes: a token for each 4 bytes of a word, begun ones
 * included, and one for each sign. */
size_t tn_text_count(const char *text, size_t n);

/* Cuts UTF-8 text into passages. They are substrings of it: whole paragraphs where they fit, else lines,
 * sentences, words. Each begins a little before the end of the one before. fn gets them in order, without
 * white space at their ends; it returns false to stop. */
void tn_passages(const char *text, size_t n, const tn_passage_options *o,
                 bool (*fn)(void *user, const char *passage, size_t n), void *user);

#endif
