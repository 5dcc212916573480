/* base/windows/line.c - lines that are typed: of the console, and of pipes. */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <histedit.h>
#include <stdarg.h>

#include "base/windows/names.h"

enum { LONGEST = 32768 }; /* characters of a line that the console gives at once */

struct tn_win_edit {
    char *(*prompt)(EditLine *e);
    void *client;
    FILE *out;
    char *line;
};

struct tn_win_history {
    int n_entered;
};

EditLine *el_init(const char *name, FILE *in, FILE *out, FILE *err) {
    (void)name, (void)in, (void)err;
    EditLine *e = calloc(1, sizeof *e);
    if (e) e->out = out;
    return e;
}

void el_end(EditLine *e) {
    free(e->line);
    free(e);
}

int el_set(EditLine *e, int what, ...) {
    va_list ap;
    va_start(ap, what);
    if (what == EL_PROMPT) e->prompt = va_arg(ap, char *(*)(EditLine *));
    if (what == EL_CLIENTDATA) e->client = va_arg(ap, void *);
    va_end(ap);
    return 0;
}

int el_get(EditLine *e, int what, ...) {
    va_list ap;
    va_start(ap, what);
    if (what == EL_CLIENTDATA) *va_arg(ap, void **) = e->client;
    va_end(ap);
    return what == EL_CLIENTDATA ? 0 : -1;
}

const char *el_gets(EditLine *e, int *n) {
    static wchar_t wide[LONGEST];
    DWORD got = 0;
    *n = 0;
    if (e->prompt) fputs(e->prompt(e), e->out);
    fflush(e->out);
    if (!ReadConsoleW(GetStdHandle(STD_INPUT_HANDLE), wide, LONGEST - 2, &got, NULL) || !got) return NULL;
    if (wide[0] == 26) return NULL; /* Ctrl-Z, the end of what is typed */
    if (got >= 2 && wide[got - 2] == L'\r') wide[got-- - 2] = L'\n';
    wide[got] = 0;
    free(e->line);
    e->line = tn_win_utf8(wide);
    if (e->line) *n = (int)strlen(e->line);
    return e->line;
}

void el_reset(EditLine *e) { (void)e; }

void el_push(EditLine *e, const char *text) { fprintf(e->out, "%s\n", text); }

History *history_init(void) { return calloc(1, sizeof(History)); }

void history_end(History *h) { free(h); }

int history(History *h, HistEvent *ev, int what, ...) {
    *ev = (HistEvent){0};
    if (what == H_ENTER) h->n_entered++;
    return what == H_ENTER || what == H_SETSIZE || what == H_SETUNIQUE ? 0 : -1;
}

ssize_t tn_win_getline(char **line, size_t *cap, FILE *f) {
    size_t n = 0;
    for (int c; (c = getc(f)) != EOF;) {
        if (n + 2 > *cap) {
            size_t more = *cap * 2 + 128;
            char *p = realloc(*line, more);
            if (!p) return -1;
            *line = p;
            *cap = more;
        }
        (*line)[n++] = (char)c;
        if (c == '\n') break;
    }
    if (!n) return -1;
    if (n > 1 && (*line)[n - 2] == '\r' && (*line)[n - 1] == '\n')
        (*line)[--n - 1] = '\n'; /* as programs there write */
    (*line)[n] = 0;
    return (ssize_t)n;
}
