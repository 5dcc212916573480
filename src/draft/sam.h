/* draft/sam.h - a suffix automaton over token texts: finds the longest suffix of a text that occurred before,
 * in amortised constant time per token. It grows token by token (Blumer et al.); a text of n tokens has at
 * most 2n states and 3n transitions. */
#ifndef TN_DRAFT_SAM_H
#define TN_DRAFT_SAM_H

#include "base/ctx.h"

typedef struct tn_sam tn_sam;

enum { TN_SAM_SEPARATOR = -1 }; /* between texts: no match or draft crosses it */

/* Opens an automaton. reserve is the number of tokens that may be pushed without allocating. */
tern_status tn_sam_open(tn_ctx *ctx, int32_t reserve, tn_sam **out, tern_error *err);
void tn_sam_close(tn_sam **s);
void tn_sam_clear(tn_sam *s);
tern_status tn_sam_push(tn_sam *s, int32_t token, tern_error *err);
int32_t tn_sam_length(const tn_sam *s);
int32_t tn_sam_token(const tn_sam *s, int32_t i); /* TN_SAM_SEPARATOR beyond the end */
size_t tn_sam_bytes(const tn_sam *s);             /* memory it takes */

/* A match is an occurrence: `length` tokens that end before position `end`. length 0 is none. */
typedef struct tn_sam_match {
    int32_t state, length, end;
} tn_sam_match;

/* Returns the longest suffix of the whole text that occurs earlier in it, at its latest known earlier
 * place. */
tn_sam_match tn_sam_self(const tn_sam *s);
/* Advances a match with a foreign text by its next token. Begin with a zeroed match. */
void tn_sam_follow(const tn_sam *s, tn_sam_match *m, int32_t token);
/* Returns a shorter suffix of the match that occurs in more places. */
tn_sam_match tn_sam_shorter(const tn_sam *s, const tn_sam_match *m);
/* Lists tokens seen after the match, each with the position where it was last seen: at most cap, the latest
 * first. */
int32_t tn_sam_next(const tn_sam *s, const tn_sam_match *m, int32_t *pos, int32_t cap);

#endif
