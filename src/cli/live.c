#include "cli/live.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { USUAL = 80 }; /* columns, where the terminal does not say */

bool cli_live(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb"));
}

int cli_columns(int fd) {
    struct winsize w;
    if (!isatty(fd)) return 0;
    return !ioctl(fd, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : USUAL;
}

size_t cli_live_fit(const char *text, int columns) {
    const size_t n = strlen(text);
    size_t at = 0;
    while (at < n) {
        uint32_t c = 0;
        size_t len = tn_utf8_decode((const uint8_t *)text + at, (const uint8_t *)text + n, &c);
        if (!len) len = 1; /* a byte that is no character */
        columns -=
            c >= 0x1100 ? 2 : 1; /* wide letters begin there; what is narrow beyond leaves room unused */
        if (columns < 0) break;
        at += len;
    }
    return at;
}

void cli_live_line(const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\r\033[K%.*s", (int)cli_live_fit(line, cli_columns(STDERR_FILENO) - 1), line);
}

void cli_live_clear(void) { fputs("\r\033[K", stderr); }

void cli_print_wrapped(FILE *f, const char *text, int margin, int columns) {
    enum { LEAST = 24 }; /* columns for words */
    const int room = columns - margin;
    int at = 0;
    for (const char *p = text; room >= LEAST && *p;) {
        if (!at && *p == ' ') { /* no line begins with a space */
            p++;
            continue;
        }
        int gap = *p == ' ', n = (int)strcspn(p + gap, " \n");
        if (at + gap + n > room && at > 0) {
            fprintf(f, "\n%*s", margin, "");
            at = 0;
            p += gap;
            continue;
        }
        fwrite(p, 1, (size_t)(gap + n), f);
        at += gap + n;
        p += gap + n;
        if (*p == '\n') {
            fprintf(f, "\n%*s", margin, "");
            at = 0;
            p++;
        }
    }
    fprintf(f, "%s\n", room < LEAST ? text : "");
}
