/* text/jinja/jinja.h - an interpreter for chat templates: Jinja as Hugging Face runs it (jinja2's sandbox
 * with trim_blocks, lstrip_blocks and loop controls; its tojson, raise_exception, strftime_now and
 * generation).
 *
 * The output is segments: what the template wrote, and what came from values marked as content, byte by
 * byte, through concatenation, slices, filters and methods. Nothing is silently rendered wrong: an
 * unsupported feature is TERN_E_UNSUPPORTED with its name and the template's line, and a template's refusal
 * (raise_exception) is TERN_E_INVALID with its message. Steps, depth and memory are limited. */
#ifndef TN_TEXT_JINJA_JINJA_H
#define TN_TEXT_JINJA_JINJA_H

#include "text/segments.h"

#include <jansson.h>

typedef struct tn_jinja_input {
    const char *source; /* the template */
    size_t n_source;
    /* The template's variables, an object. Its strings are content, except those in `trusted` and well-known
     * roles ("role" of the objects in "messages"). */
    const json_t *variables, *trusted;
    int64_t now_s;                 /* the time of strftime_now, seconds since 1970 */
    uint64_t max_bytes, max_steps; /* 0 = 64 MiB plus 32 times the input; 0 = 20 million */
} tn_jinja_input;

/* Renders a template and appends to out. */
tern_status tn_jinja_render(tn_ctx *ctx, const tn_jinja_input *in, tn_segments *out, tern_error *err);

#endif
