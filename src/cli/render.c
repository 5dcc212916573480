#include "cli/render.h"

#include "cli/harmful.h"

#include <string.h>

static const char *const openers[] = {"<think>", "<thinking>"}, *const closers[] = {"</think>",
                                                                                    "</thinking>"};

static void style(render *r) {
    if (!r->colours) return;
    fputs("\033[0", r->out);
    if (r->thinking) fputs(";2", r->out);
    if (r->bold || r->heading) fputs(";1", r->out);
    if (r->code || r->fence) fputs(";36", r->out);
    fputc('m', r->out);
}

void cli_render_begin(render *r, FILE *out, bool colours) {
    *r = (render){.out = out, .colours = colours, .line_begin = true};
}

/* Returns the bytes of the character that begins with c. */
static size_t char_bytes(unsigned char c) {
    return c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
}

static bool is_harmful(const char *p, size_t n) {
    return harmful_bytes(p, n) && !(n == 1 && (*p == '\n' || *p == '\t'));
}

static bool is_whole(const char *p, size_t n) {
    if (n != char_bytes((unsigned char)p[0])) return false;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)p[i] & 0xc0) != 0x80) return false;
    return n > 1 || (unsigned char)p[0] < 0x80;
}

static void emit(render *r, const char *p, size_t n) {
    if (!is_whole(p, n) || is_harmful(p, n)) fputs("\xef\xbf\xbd", r->out);
    else fwrite(p, 1, n, r->out);
    r->line_begin = n == 1 && *p == '\n';
    if (r->line_begin && r->heading) {
        r->heading = false;
        style(r);
    }
}

static bool begins(const char *whole, const char *p, size_t n) {
    return n < strlen(whole) && !memcmp(whole, p, n);
}

/* Tells whether more bytes could make a mark of what is held. */
static bool may_be_mark(const render *r) {
    const char *p = r->held;
    size_t n = r->n_held;
    if (n && n < char_bytes((unsigned char)p[0]) && (unsigned char)p[0] >= 0xc0) return true;
    if (!r->colours) return false;
    for (int i = 0; i < 2; i++)
        if (begins(openers[i], p, n) || begins(closers[i], p, n)) return true;
    if (n == 1 && *p == '*' && !r->fence && !r->code) return true;
    if (r->line_begin && (begins("```", p, n) || (n < 7 && strspn(p, "#") == n && !r->fence))) return true;
    return false;
}

/* Changes the style where what is held is a mark. Returns the bytes that it takes, 0 when it is none. */
static size_t take_mark(render *r) {
    const char *p = r->held;
    size_t n = r->n_held;
    for (int i = 0; r->colours && i < 2; i++) {
        bool opens = n == strlen(openers[i]) && !memcmp(p, openers[i], n);
        if (!opens && (n != strlen(closers[i]) || memcmp(p, closers[i], n) != 0)) continue;
        r->thinking = opens;
        style(r);
        return n;
    }
    if (!r->colours) return 0;
    if (r->line_begin && n == 3 && !memcmp(p, "```", 3)) {
        r->fence = !r->fence;
        style(r);
        fputs("```", r->out);
        r->line_begin = false;
        return 3;
    }
    if (r->fence) return 0;
    if (r->line_begin && n > 1 && p[n - 1] == ' ' && strspn(p, "#") == n - 1) {
        r->heading = true;
        style(r);
        fwrite(p, 1, n, r->out);
        r->line_begin = false;
        return n;
    }
    if (n == 2 && !memcmp(p, "**", 2) && !r->code) {
        r->bold = !r->bold;
        style(r);
        return 2;
    }
    if (n == 1 && *p == '`' && !r->line_begin) {
        r->code = !r->code;
        style(r);
        return 1;
    }
    return 0;
}

static void drop(render *r, size_t n) {
    r->n_held -= n;
    memmove(r->held, r->held + n, r->n_held);
    r->held[r->n_held] = 0;
}

/* Puts out everything held that can mean nothing else any more. last says that nothing follows. */
static void settle(render *r, bool last) {
    while (r->n_held) {
        size_t n_all = r->n_held, took = 0;
        /* the longest prefix that is a mark */
        for (size_t n = n_all; n && !took; n--) {
            r->n_held = n;
            took = take_mark(r);
        }
        r->n_held = n_all;
        if (took) {
            drop(r, took);
            continue;
        }
        if (!last && may_be_mark(r)) return;
        if (!last && r->colours && r->line_begin && r->held[0] == '`' && n_all < 3 &&
            strspn(r->held, "`") == n_all)
            return;
        size_t n = char_bytes((unsigned char)r->held[0]);
        if (n > n_all) n = 1;                               /* cut off */
        if (r->held[0] == '`' && r->colours && !r->fence) { /* a line that begins with code */
            r->code = !r->code;
            style(r);
        } else {
            emit(r, r->held, n);
        }
        drop(r, n);
    }
}

void cli_render_put(render *r, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        r->held[r->n_held++] = text[i];
        r->held[r->n_held] = 0;
        settle(r, r->n_held + 1 == sizeof r->held);
    }
}

void cli_render_end(render *r) {
    settle(r, true);
    if (r->colours && (r->bold || r->code || r->heading || r->fence || r->thinking)) fputs("\033[0m", r->out);
    cli_render_begin(r, r->out, r->colours);
}
