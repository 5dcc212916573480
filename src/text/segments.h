/* text/segments.h - a text whose bytes remember where they come from: a chat template, or content (messages,
 * documents, tools). Only the template's bytes may become control tokens.
 *
 * An append without memory sets `failed`, and later appends are dropped. The owner checks once, at the end.
 */
#ifndef TN_TEXT_SEGMENTS_H
#define TN_TEXT_SEGMENTS_H

#include "base/ctx.h"

/* A segment spans the bytes from the end of the previous one to `end`. Neighbours differ in `content`. */
typedef struct tn_segment {
    size_t end;
    bool content;
} tn_segment;

typedef struct tn_segments {
    tn_ctx *ctx;
    char *text; /* [n_bytes], no terminating zero */
    size_t n_bytes, cap_bytes;
    tn_segment *seg;
    size_t n_seg, cap_seg;
    bool failed;
} tn_segments;

void tn_segments_init(tn_segments *s, tn_ctx *ctx);
void tn_segments_free(tn_segments *s);
void tn_segments_add(tn_segments *s, const char *text, size_t n_bytes, bool content);

#endif
