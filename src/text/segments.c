#include "text/segments.h"

#include <string.h>

void tn_segments_init(tn_segments *s, tn_ctx *ctx) { *s = (tn_segments){.ctx = ctx}; }

void tn_segments_free(tn_segments *s) {
    tn_free(s->ctx, s->text);
    tn_free(s->ctx, s->seg);
    tn_segments_init(s, s->ctx);
}

void tn_segments_add(tn_segments *s, const char *text, size_t n_bytes, bool content) {
    if (s->failed || !n_bytes) return;
    if (n_bytes > s->cap_bytes - s->n_bytes) {
        size_t cap = s->n_bytes + n_bytes + s->n_bytes / 2 + 256;
        char *p = tn_realloc(s->ctx, TN_MEM_TEXT, s->text, cap, 1);
        s->failed = !p;
        if (!p) return;
        s->text = p;
        s->cap_bytes = cap;
    }
    bool joins = s->n_seg && s->seg[s->n_seg - 1].content == content;
    if (!joins && s->n_seg == s->cap_seg) {
        size_t cap = s->cap_seg * 2 + 16;
        tn_segment *p = tn_realloc(s->ctx, TN_MEM_TEXT, s->seg, cap, sizeof *p);
        s->failed = !p;
        if (!p) return;
        s->seg = p;
        s->cap_seg = cap;
    }
    memcpy(s->text + s->n_bytes, text, n_bytes);
    s->n_bytes += n_bytes;
    s->n_seg += !joins;
    s->seg[s->n_seg - 1] = (tn_segment){s->n_bytes, content};
}
