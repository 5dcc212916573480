/* cli/render.h - an answer on a terminal, as it is generated: control characters made harmless, thinking
 * dimmed, Markdown lightly rendered (headings, bold, code). Without colours only the first of these is done.
 * Escape sequences come from here alone: none that the text holds reaches the terminal. */
#ifndef TN_CLI_RENDER_H
#define TN_CLI_RENDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct render {
    FILE *out;
    bool colours; /* styles and thinking; else plain text */
    bool bold, code, heading, fence, thinking;
    bool line_begin;
    char held[16]; /* bytes whose meaning the next ones decide */
    size_t n_held;
} render;

void cli_render_begin(render *r, FILE *out, bool colours);
/* Takes any bytes, also parts of characters. Nothing is flushed. */
void cli_render_put(render *r, const char *text, size_t n);
/* Puts out what is held and ends styles. */
void cli_render_end(render *r);

#endif
