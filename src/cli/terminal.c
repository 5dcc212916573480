#include "cli/terminal.h"

#include "cli/live.h"

#include "base/outfile.h"
#include "base/status.h"
#include "libraries/library.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

/* A line editor knows lines alone, so pasted ends of lines are shown as this sign until the message is
 * given. */
#define NEWLINE_SIGN L'\x2424'
#define NEWLINE_UTF8 "\xe2\x90\xa4"
#define PAST_BEGINS "_HiStOrY_V2_" /* libedit's */

struct terminal {
    bool interactive;
    EditLine *edit;
    History *past;
    char *history_path;
    bool has_typed; /* since the last forgetting; the first such line has the number first_typed */
    int first_typed;
    bool more, pasting;
    bool failed; /* the terminal could not be read, and errno tells why */
    bool told;   /* that lines are not kept */
    tn_ctx ctx;
    char *text, *line; /* the message; a line of a pipe */
    size_t n, cap, cap_line;
};

static volatile sig_atomic_t interrupted;
/* Ctrl-C is written here too: it may come to another thread, or just before the terminal is waited for. */
static int wake[2] = {-1, -1};

static void on_interrupt(int sig) {
    int before = errno;
    (void)sig;
    interrupted = 1;
    (void)!write(wake[1], "", 1);
    errno = before;
}

static void calm(void) {
    char c[16];
    while (read(wake[0], c, sizeof c) > 0) {
    }
    interrupted = 0;
}

/* Waits for a key. Returns false where Ctrl-C came first. */
static bool wait_for_key(void) {
    struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    for (;;) {
        int n = poll(p, 2, -1);
        if (n > 0 && p[1].revents) return false;
        if (n > 0 || errno != EINTR) return true;
    }
}

static char *prompt(EditLine *e) {
    terminal *t;
    el_get(e, EL_CLIENTDATA, (void *)&t);
    return t->more ? "... " : "> ";
}

/* Reads one character from the terminal's bytes. Returns 0 at the end, -1 when it failed or was
 * interrupted. */
static int read_char(wchar_t *out) {
    mbstate_t state = {0};
    for (;;) {
        char c;
        if (!wait_for_key()) {
            errno = EINTR;
            return -1;
        }
        ssize_t got = read(STDIN_FILENO, &c, 1);
        if (got < 0 && errno == EINTR && !interrupted) continue;
        if (got <= 0) return got < 0 || interrupted ? -1 : 0;
        size_t n = mbrtowc(out, &c, 1, &state);
        if (n == (size_t)-2) continue;
        if (n == (size_t)-1) { /* no character of this locale */
            *out = L'?';
            memset(&state, 0, sizeof state);
        }
        return 1;
    }
}

/* "\033[200~" begins a paste and "\033[201~" ends it. These go, and ends of lines within are held back. Other
 * escape sequences reach the editor. */
static int get_char(EditLine *e, wchar_t *out) {
    static wchar_t queue[8];
    static size_t n_queue, at;
    terminal *t;
    el_get(e, EL_CLIENTDATA, (void *)&t);
    while (at < n_queue) {
        *out = queue[at++];
        return 1;
    }
    for (;;) {
        int rc = read_char(out);
        if (rc != 1) return rc;
        if (*out != L'\033') break;
        const wchar_t mark[] = L"\033[20";
        queue[0] = L'\033', n_queue = 1, at = 0;
        while (n_queue < 6) {
            wchar_t c;
            if ((rc = read_char(&c)) != 1) return rc;
            queue[n_queue++] = c;
            if (n_queue <= 4 ? c != mark[n_queue - 1] : n_queue == 5 ? c != L'0' && c != L'1' : c != L'~')
                break;
        }
        bool is_mark =
            n_queue == 6 && queue[5] == L'~' && (queue[4] == L'0' || queue[4] == L'1') && queue[3] == L'0';
        if (!is_mark) {
            *out = queue[at++];
            return 1;
        }
        t->pasting = queue[4] == L'0';
        n_queue = at = 0;
    }
    /* A Ctrl-D typed before the editor had the terminal was its end of input, which the system keeps as a zero. */
    if (!*out) *out = L'\004';
    if (t->pasting && (*out == L'\r' || *out == L'\n')) *out = NEWLINE_SIGN;
    else if (t->pasting && *out == L'\t') *out = L' ';
    return 1;
}

/* Reads the lines of earlier days. A history that cannot be read is not written over. */
static void load_past(terminal *t) {
    HistEvent ev;
    struct stat st;
    if (!t->history_path || history(t->past, &ev, H_LOAD, t->history_path) >= 0) return;
    int why = errno;
    if (stat(t->history_path, &st) ? errno == ENOENT : !st.st_size) return; /* there is none yet */
    fprintf(stderr, "tern: the history %s cannot be read, so nothing is added to it: %s\n", t->history_path,
            why ? strerror(why) : "not its format");
    free(t->history_path);
    t->history_path = NULL;
}

static bool open_editor(terminal *t) {
    HistEvent ev;
    t->edit = el_init("tern", stdin, stderr, stderr);
    t->past = history_init();
    if (!t->edit || !t->past) return false;
    history(t->past, &ev, H_SETSIZE, 1000);
    history(t->past, &ev, H_SETUNIQUE, 1);
    load_past(t);
    el_set(t->edit, EL_CLIENTDATA, t);
    el_set(t->edit, EL_PROMPT, prompt);
    el_set(t->edit, EL_EDITOR, "emacs");
    el_set(t->edit, EL_HIST, history, t->past);
    el_set(t->edit, EL_GETCFN, get_char);
    el_set(t->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    if (cli_live()) fputs("\033[?2004h", stderr);
    return true;
}

terminal *cli_terminal_open(const char *history_path, tern_error *err) {
    terminal *t = calloc(1, sizeof *t);
    (void)tn_fail(err, TERN_E_MEMORY, "no memory for a line editor");
    if (!t) return NULL;
    tn_ctx_init(&t->ctx, NULL);
    t->interactive = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    if (!t->interactive) return t;
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    if (tn_library_need(TN_LIBRARY_EDIT, err) != TERN_OK) {
        free(t);
        return NULL;
    }
    bool kept = !history_path || (t->history_path = strdup(history_path));
    if (kept && (wake[0] >= 0 || !pipe2(wake, O_CLOEXEC | O_NONBLOCK)) && open_editor(t)) return t;
    cli_terminal_close(&t);
    return NULL;
}

void cli_terminal_close(terminal **pt) {
    terminal *t = *pt;
    *pt = NULL;
    if (!t) return;
    if (t->edit && cli_live()) fputs("\033[?2004l", stderr);
    if (t->past) history_end(t->past);
    if (t->edit) el_end(t->edit);
    free(t->history_path);
    free(t->text);
    free(t->line);
    free(t);
}

bool cli_terminal_is_interactive(const terminal *t) { return t->interactive; }

/* Lets the message grow by a line. */
static bool append(terminal *t, const char *s, size_t n) {
    if (t->cap - t->n < n + 2) {
        size_t cap = t->cap * 2 + n + 256;
        char *p = realloc(t->text, cap);
        if (!p) return false;
        t->text = p;
        t->cap = cap;
    }
    memcpy(t->text + t->n, s, n);
    t->text[t->n += n] = 0;
    return true;
}

/* Writes the history, whole or not at all: lines of last week are not lost with this one. Its file is a
 * regular one of the user's own, and private whatever the umask. What cannot be written is said once. */
static void save_history(terminal *t) {
    static const tn_outkind kind = {
        .what = "a history of typed lines", .begins = {PAST_BEGINS}, .is_private = true};
    HistEvent ev;
    struct stat st;
    tn_outfile *f = NULL;
    tern_error err = {0};
    if (!t->history_path ||
        (!lstat(t->history_path, &st) && (!S_ISREG(st.st_mode) || st.st_uid != geteuid())))
        return;
    bool ok = tn_outfile_open(&t->ctx, t->history_path, &kind, &f, &err) == TERN_OK;
    int fd = ok ? dup(tn_outfile_fd(f)) : -1;
    FILE *to = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!to && fd >= 0) close(fd);
    bool written = to && history(t->past, &ev, H_SAVE_FP, to) >= 0;
    written = to && !fclose(to) && written;
    if (ok && !written)
        (void)tn_fail(&err, TERN_E_IO, "%s: cannot write: %s", t->history_path, strerror(errno));
    ok = written && tn_outfile_commit(&f, &err) == TERN_OK;
    tn_outfile_abort(&f);
    if (!ok && !t->told) fprintf(stderr, "tern: typed lines are not kept: %s\n", err.message);
    t->told = t->told || !ok;
}

static void keep(terminal *t, const char *line) {
    HistEvent ev;
    history(t->past, &ev, H_ENTER, line);
    if (!t->has_typed && history(t->past, &ev, H_FIRST) >= 0) { /* the newest one is the first for libedit */
        t->has_typed = true;
        t->first_typed = ev.num;
    }
    save_history(t);
}

void cli_terminal_forget(terminal *t) {
    HistEvent ev;
    while (t->has_typed && history(t->past, &ev, H_FIRST) >= 0 && ev.num >= t->first_typed) {
        if (history(t->past, &ev, H_DEL, ev.num) < 0) break;
        free((char *)(uintptr_t)ev.str); /* a copy, the caller's */
    }
    if (t->has_typed) save_history(t);
    t->has_typed = false;
}

static void restore_newlines(char *s) {
    char *to = s;
    for (; *s; s++) {
        if (!strncmp(s, NEWLINE_UTF8, 3)) {
            *to++ = '\n';
            s += 2;
        } else {
            *to++ = *s;
        }
    }
    *to = 0;
}

/* Returns a line of the editor, its end included, or NULL at the end of input or when interrupted. */
static const char *edit_line(terminal *t) {
    struct sigaction ours = {.sa_handler = on_interrupt}, before;
    int n = 0;
    calm();
    t->pasting = false;
    sigaction(SIGINT, &ours, &before);
    errno = 0;
    const char *line = el_gets(t->edit, &n);
    t->failed = !line && n < 0 && errno && !interrupted;
    sigaction(SIGINT, &before, NULL);
    if (!line || n <= 0) return NULL;
    if (interrupted) raise(SIGINT); /* it came after the line: it is for what the line begins */
    return line;
}

/* Returns a line of a pipe, or NULL at its end or where it cannot be read. */
static const char *next_line(terminal *t) {
    return getline(&t->line, &t->cap_line, stdin) < 0 ? NULL : t->line;
}

/* What ends a message without a line. In a pipe what came before its end is one. */
static terminal_event no_line(terminal *t) {
    bool clear = interrupted != 0;
    if (t->failed) return TERMINAL_FAILED;
    if (!t->interactive) return !feof(stdin) ? TERMINAL_FAILED : t->n ? TERMINAL_TEXT : TERMINAL_END;
    fputc('\n', stderr);
    el_reset(t->edit);
    return clear || t->more ? TERMINAL_CLEAR : TERMINAL_END;
}

/* Reads a line, those between two of """, or one that ends in a backslash with the next. */
static terminal_event read_message(terminal *t) {
    const char *newline = t->interactive ? NEWLINE_UTF8 : "\n";
    bool quoted = false;
    t->n = 0;
    t->more = false;
    do {
        const char *line = t->interactive ? edit_line(t) : next_line(t);
        if (!line) return no_line(t);
        size_t n = strcspn(line, "\n");
        bool is_quote = n == 3 && !memcmp(line, "\"\"\"", 3), goes_on = n && line[n - 1] == '\\' && !quoted;
        if (!is_quote && !append(t, line, n - goes_on)) return TERMINAL_FAILED;
        if (is_quote) quoted = !quoted;
        t->more = quoted || goes_on;
        if (t->more && !is_quote && !append(t, newline, strlen(newline))) return TERMINAL_FAILED;
    } while (t->more);
    return TERMINAL_TEXT;
}

bool cli_terminal_ask(terminal *t, const char *question, char *line, size_t cap) {
    struct sigaction ours = {.sa_handler = on_interrupt}, before;
    struct pollfd typed = {.fd = STDIN_FILENO, .events = POLLIN};
    size_t n = 0;
    char c = 0;
    if (!t->interactive) return false;
    calm();
    sigaction(SIGINT, &ours, &before);
    while (poll(&typed, 1, 0) > 0 &&
           read(STDIN_FILENO, &c, 1) == 1) { /* nobody answers before the question */
    }
    fputs(question, stderr);
    fflush(stderr);
    bool ok = true;
    for (c = 0; ok && c != '\n';) {
        ok = wait_for_key() && read(STDIN_FILENO, &c, 1) == 1;
        if (ok && c != '\n' && n + 1 < cap) line[n++] = c;
    }
    line[n] = 0;
    if (!ok) fputc('\n', stderr);
    sigaction(SIGINT, &before, NULL);
    return ok;
}

bool cli_terminal_suggest(terminal *t, const char *text) {
    char *copy = t->interactive ? malloc(3 * strlen(text) + 1) : NULL, *to = copy;
    if (!copy) return false;
    for (; *text; text++) {
        if (*text == '\n') to = memcpy(to, NEWLINE_UTF8, 3), to += 3;
        else *to++ = *text;
    }
    *to = 0;
    el_push(t->edit, copy);
    free(copy);
    return true;
}

terminal_event cli_terminal_read(terminal *t, const char **text) {
    for (;;) {
        terminal_event e = read_message(t);
        if (e != TERMINAL_TEXT) return e;
        if (!t->n) continue;
        if (t->interactive) {
            keep(t, t->text);
            restore_newlines(t->text);
        }
        for (size_t n = strlen(t->text); n && t->text[n - 1] == '\n';) t->text[--n] = 0;
        if (t->text[strspn(t->text, " \t\n")]) {
            *text = t->text;
            return TERMINAL_TEXT;
        }
    }
}
