#include "cli/args.h"

#include "cli/foreign.h"
#include "cli/live.h"
#include "cli/output.h"
#include "cli/packing.h"
#include "cli/pull_name.h"

#include "base/clock.h"
#include "params/params.h"
#include "model/catalogue.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int cli_usage_error(const command *c, const char *fmt, ...) {
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "tern %s: %s (see tern %s --help)\n", c->name, cli_shown(line), c->name);
    return EXIT_USAGE;
}

int cli_failed(const tern_error *err) {
    cli_progress_done();
    fprintf(stderr, "tern: %s\n", cli_shown(err->message));
    return EXIT_FAILED;
}

int cli_failed_text(const char *fmt, ...) {
    char line[4096];
    va_list ap;
    cli_progress_done();
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "tern: %s\n", cli_shown(line));
    return EXIT_FAILED;
}

/* ---- help ---------------------------------------------------------------------------------------- */

static void print_left(char letter, const char *name, const char *value) {
    char left[64];
    int n = letter ? snprintf(left, sizeof left, "  -%c", letter) : snprintf(left, sizeof left, "    ");
    if (name) n += snprintf(left + n, sizeof left - (size_t)n, "%s--%s", letter ? ", " : "  ", name);
    if (value) snprintf(left + n, sizeof left - (size_t)n, " %s", value);
    printf("%-30s ", left);
}

static void print_help_text(const char *text) {
    enum { LEFT = 31 };
    cli_print_wrapped(stdout, text, LEFT, cli_columns(STDOUT_FILENO));
}

static void print_specs(const command *c, arg_kind place) {
    for (const arg_spec *s = c->specs; s->name || s->letter; s++) {
        if ((s->kind & ARG_PLACES) != place) continue;
        print_left(s->letter, s->name, s->value);
        print_help_text(s->help);
    }
}

/* Returns where the parameters go that the command takes, or NULL when it takes none. */
static model_args *params_of(const command *c) {
    for (const arg_spec *s = c->specs; s->name || s->letter; s++)
        if (s->kind == ARG_MODEL) return s->dst;
    return NULL;
}

/* Prints what a parameter does and its default, where the command has one of its own. */
static void print_param(const model_args *a, const tn_param *p) {
    tern_options standard;
    char usual[64], here[64];
    tn_options_defaults(&standard);
    tn_param_format(&standard, p, usual, sizeof usual);
    tn_param_format(&a->o, p, here, sizeof here);
    char text[1024];
    snprintf(text, sizeof text, "%s (default: %s)", p->help, strcmp(usual, here) ? here : p->dflt);
    print_help_text(text);
}

static void print_params(const model_args *a, bool of_answer) {
    for (size_t i = 0; i < tn_params_count(); i++) {
        const tn_param *p = tn_param_at(i);
        if (!(p->commands & a->takes) || p->audience != TN_FOR_USERS || p->of_answer != of_answer) continue;
        print_left(p->letter, p->name, p->unit);
        if (p->kind == TN_PARAM_FLAG) print_help_text(p->help);
        else print_param(a, p);
    }
}

/* Prints the options, in three groups where the command takes parameters. With `all` come those that --help
 * leaves out. */
static void print_help(const command *c, bool all) {
    printf("usage: tern %s %s\n\n", c->name, c->usage);
    cli_print_wrapped(stdout, c->summary, 0, cli_columns(STDOUT_FILENO));
    putchar('\n');
    const model_args *a = params_of(c);
    bool groups = false;
    for (const arg_spec *s = c->specs; s->name || s->letter; s++) groups |= s->kind & ARG_ANSWER;
    print_specs(c, 0);
    if (groups) puts("\nThe answer:");
    print_specs(c, ARG_ANSWER);
    if (a) {
        print_params(a, true);
        puts("\nThe machine:");
        print_params(a, false);
        print_left(0, "set", "NAME=VALUE");
        print_help_text("any other parameter (tern help set lists them); may be repeated");
    }
    if (all) print_specs(c, ARG_MORE);
    print_left('h', "help", NULL);
    printf("this text%s\n", all ? "" : a ? "; tern help COMMAND lists all options" : "");
}

/* "; run, chat": those that take a parameter, where not all do. */
static const char *commands_of(uint32_t mask, char out[64]) {
    static const char *const names[] = {"run",   "chat",  "ask",  "eval",
                                        "bench", "serve", "embed"}; /* by TN_IN_'s bits */
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; mask != TN_IN_ALL && i < sizeof names / sizeof names[0]; i++)
        if (mask >> i & 1) n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? ", " : "; ", names[i]);
    return out;
}

int cli_help_set(void) {
    static const char *const heads[TN_N_AUDIENCES] = {"Common (also as --NAME VALUE)",
                                                      "Speed and memory on this machine",
                                                      "For experiments: mechanisms one by one"};
    enum { MARGIN = 25 };
    const int columns = cli_columns(STDOUT_FILENO);
    puts("tern COMMAND --set NAME=VALUE, for every command that opens a model. A flag alone is NAME=on.");
    for (int a = 0; a < TN_N_AUDIENCES; a++) {
        printf("\n%s:\n", heads[a]);
        for (size_t i = 0; i < tn_params_count(); i++) {
            const tn_param *p = tn_param_at(i);
            char range[160], commands[64];
            if (p->audience != (tn_audience)a || !p->commands) continue;
            tn_param_range(p, range, sizeof range);
            printf("  %-22s ", p->name);
            cli_print_wrapped(stdout, p->help, MARGIN, columns);
            char text[512];
            snprintf(text, sizeof text, "%s; default: %s%s", range, p->dflt,
                     commands_of(p->commands, commands));
            printf("%*s", MARGIN + 2, "");
            cli_print_wrapped(stdout, text, MARGIN + 2, columns);
        }
    }
    return EXIT_OK;
}

/* ---- parsing ------------------------------------------------------------------------------------- */

static const arg_spec *find(const command *c, const char *arg, size_t n_name) {
    for (const arg_spec *s = c->specs; s->name || s->letter; s++) {
        if (arg[0] == '-' && arg[1] == '-') {
            if (s->name && strlen(s->name) == n_name - 2 && !strncmp(s->name, arg + 2, n_name - 2)) return s;
        } else if (s->letter && n_name == 2 && arg[1] == s->letter) {
            return s;
        }
    }
    return NULL;
}

static int store(const command *c, const arg_spec *s, const char *arg, const char *value) {
    char *end;
    errno = 0;
    bool bounded = s->min != 0 || s->max != 0;
    switch ((int)s->kind & ~ARG_PLACES) {
    case ARG_FLAG: *(bool *)s->dst = true; return -1;
    case ARG_LEVEL: *(int32_t *)s->dst = value ? 2 : 1; return -1;
    case ARG_STR: *(const char **)s->dst = value; return -1;
    case ARG_MODEL: ((model_args *)s->dst)->model = value; return -1;
    case ARG_LIST: {
        arg_list *l = s->dst;
        if (l->n == ARG_LIST_MAX)
            return cli_usage_error(c, "%s can be given at most %d times", arg, ARG_LIST_MAX);
        l->items[l->n++] = value;
        l->items[l->n] = NULL;
        return -1;
    }
    case ARG_U64:
        if (*value == '-') break;
        *(uint64_t *)s->dst = strtoull(value, &end, 10);
        if (end == value || *end || errno) break;
        return -1;
    case ARG_INT: {
        long v = strtol(value, &end, 10);
        if (end == value || *end || errno || v < INT32_MIN || v > INT32_MAX) break;
        if (bounded && ((double)v < s->min || (double)v > s->max)) break;
        *(int32_t *)s->dst = (int32_t)v;
        return -1;
    }
    case ARG_FLOAT: {
        double v = strtod(value, &end);
        if (end == value || *end || !isfinite(v)) break;
        if (bounded && (v < s->min || v > s->max)) break;
        *(float *)s->dst = (float)v;
        return -1;
    }
    }
    if (bounded)
        return cli_usage_error(c, "%s %s: want %s from %.9g to %.9g", arg, value,
                               s->value && !strcmp(s->value, "PERCENT") ? "a percentage" : "a number", s->min,
                               s->max);
    return cli_usage_error(c, "%s %s: want a %s number", arg, value,
                           (s->kind & ~ARG_PLACES) == ARG_FLOAT ? "finite" : "whole");
}

/* Finds a parameter of the table, under its name, its letter or an old name. Returns NULL when there is none
 * that the command takes. *value is what an old name says. */
static const tn_param *find_param(const command *c, const char *arg, size_t n, const char **value) {
    const tn_param *p = NULL;
    *value = NULL;
    if (arg[1] == '-') {
        const tn_param_alias *alias = tn_param_alias_find(arg + 2, n - 2);
        p = alias ? tn_param_find(alias->now, strlen(alias->now)) : tn_param_find(arg + 2, n - 2);
        if (alias) *value = alias->value;
    } else {
        for (size_t i = 0; n == 2 && i < tn_params_count(); i++)
            if (tn_param_at(i)->letter == arg[1]) p = tn_param_at(i);
    }
    const model_args *a = params_of(c);
    return p && a && p->commands & a->takes ? p : NULL;
}

static int set_param(const command *c, const char *assignment) {
    tern_error err;
    size_t n = strcspn(assignment, "=");
    const tn_param *p = tn_param_find(assignment, n);
    model_args *a = params_of(c);
    if (p && !(p->commands & a->takes)) return cli_usage_error(c, "--set %s: not for this command", p->name);
    if (tn_params_assign(&a->o, assignment, &err) == TERN_OK) return -1;
    return cli_usage_error(c, "--set %s: %s", assignment, err.message);
}

static int parse_option(const command *c, int argc, char **argv, int *i);

static bool known(const command *c, const char *option) {
    const char *fixed;
    return find(c, option, strlen(option)) || find_param(c, option, strlen(option), &fixed);
}

/* Takes an option of n letters as other programs spell it, and says what it means here. Returns -1, or an
 * exit status. */
static int parse_foreign(const command *c, const foreign_option *f, size_t n, int argc, char **argv, int *i) {
    char word[4096], name[32];
    const char *value = argv[*i][n] ? argv[*i] + n + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", (int)n, argv[*i]);
    if (value && !f->values) return cli_usage_error(c, "%s takes no value", name);
    bool more = !value && f->values && *i + 1 < argc && (f->values == 1 || cli_foreign_value(argv[*i + 1]));
    if (more) value = argv[++*i];
    if (f->values < 0) return cli_usage_error(c, "%s: %s", name, f->says);
    if (f->values == 1 && !value) return cli_usage_error(c, "%s needs a value", name);
    if (f->instead && !known(c, f->instead)) return cli_usage_error(c, "%s: %s", name, f->says);
    fprintf(stderr, "tern: %s%s%s: %s\n", name, value ? " " : "", value ? cli_shown(value) : "", f->says);
    if (!f->instead) return -1;
    const char *at = !strcmp(f->instead, "--grammar") ? "@" : !strcmp(f->instead, "--draft") ? "model:" : "";
    const char *as = cli_foreign_word(f, value);
    if ((size_t)snprintf(word, sizeof word, "%s%s", at, as) >= sizeof word)
        return cli_usage_error(c, "%s: its value is too long", name);
    if (!strcmp(f->instead, "--model"))
        word[strcspn(word, ":")] = 0; /* of the quantised ones the cache has what it has */
    char *kept = strdup(word);        /* options keep what they are given until the process ends */
    if (!kept) return cli_failed_text("no memory for the options");
    char option[32], *both[] = {option, kept};
    snprintf(option, sizeof option, "%s", f->instead);
    int at_first = 0;
    return parse_option(c, 2, both, &at_first);
}

/* Says that there is no such option, and which one may be meant. */
static int unknown_option(const command *c, const char *arg, size_t n_name) {
    char word[SPELLING_MAX] = "", known[SPELLING_MAX + 2];
    spelling near;
    if (n_name < sizeof word) memcpy(word, arg, n_name);
    cli_spelling_begin(&near, word);
    const model_args *a = params_of(c);
    cli_spelling_try(&near, "--help", 6);
    if (a) cli_spelling_try(&near, "--set", 5);
    for (const arg_spec *s = c->specs; s->name || s->letter; s++) {
        int n = s->name ? snprintf(known, sizeof known, "--%s", s->name) : 0;
        if (n > 0 && n < (int)sizeof known) cli_spelling_try(&near, known, (size_t)n);
    }
    for (size_t i = 0; a && i < tn_params_count(); i++) {
        int n = snprintf(known, sizeof known, "--%s", tn_param_at(i)->name);
        if (tn_param_at(i)->commands & a->takes && n < (int)sizeof known)
            cli_spelling_try(&near, known, (size_t)n);
    }
    if (a) cli_foreign_try(&near);
    const bool meant = *near.meant && !strncmp(arg, "--", 2);
    return cli_usage_error(c, "unknown option '%s'%s%s%s", arg, meant ? "; did you mean " : "",
                           meant ? near.meant : "", meant ? "?" : "");
}

/* Parses one option at argv[*i], with its value from after = or from the next argument. Returns -1 or an
 * exit status. */
static int parse_option(const command *c, int argc, char **argv, int *i) {
    const char *a = argv[*i], *eq = a[1] == '-' ? strchr(a, '=') : NULL, *fixed = NULL;
    size_t n = eq ? (size_t)(eq - a) : strlen(a);
    const arg_spec *s = find(c, a, n);
    const tn_param *p = s ? NULL : find_param(c, a, n, &fixed);
    bool set = !s && !p && params_of(c) && n == 5 && !strncmp(a, "--set", 5);
    if (!s && !p && !set) {
        const foreign_option *f = params_of(c) ? cli_foreign_find(a, n) : NULL;
        return f ? parse_foreign(c, f, n, argc, argv, i) : unknown_option(c, a, n);
    }
    const int kind = s ? (int)s->kind & ~ARG_PLACES : ARG_STR;
    if (kind == ARG_LEVEL && eq && !strcmp(eq, "=all")) return store(c, s, a, eq + 1);
    bool flag = s ? kind == ARG_FLAG || kind == ARG_LEVEL : p ? fixed || p->kind == TN_PARAM_FLAG : false;
    const char *value = fixed;
    if (flag) {
        if (eq) return cli_usage_error(c, "%s takes no value%s", a, kind == ARG_LEVEL ? " but all" : "");
    } else if (eq) {
        value = eq + 1;
    } else if (++*i < argc) {
        value = argv[*i];
    } else {
        return cli_usage_error(c, "%s needs a value", a);
    }
    if (set) return set_param(c, value);
    if (p && !strcmp(p->name, "seed") && !strcmp(value, "-1")) return -1; /* random, as without it */
    if (p && !strcmp(p->name, "ctx-size") && !strcmp(value, "0")) {
        params_of(c)->whole_context = true;
        return -1;
    }
    if (s) return store(c, s, a, value);
    tern_error err;
    if (tn_param_set(&params_of(c)->o, p, value, &err) == TERN_OK) return -1;
    return cli_usage_error(c, "--%s", err.message);
}

int cli_args_parse(const command *c, int argc, char **argv, const char **words) {
    int n_words = 0;
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (only_words || a[0] != '-' || !a[1]) {
            if (n_words == c->max_words) return cli_usage_error(c, "unexpected argument '%s'", a);
            words[n_words++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            only_words = true;
            continue;
        }
        if (!strcmp(a, "-h") || !strcmp(a, "--help") || !strcmp(a, "--help=all")) {
            print_help(c, a[1] == '-' && a[6]);
            return EXIT_OK;
        }
        int rc = parse_option(c, argc, argv, &i);
        if (rc >= 0) return rc;
    }
    if (words) words[n_words] = NULL;
    model_args *a = params_of(c);
    if (!a) return -1;
    cli_args_model_path(a);
    packing_when when;
    if (a->packs && !cli_packing_parse(a->pack, &when))
        return cli_usage_error(c, "--pack %s: want auto, never, later or now",
                               a->pack ? a->pack : getenv("TERN_PACK"));
    if (a->pack && a->o.scheme)
        return cli_usage_error(c,
                               "--pack and --scheme exclude each other: packages have a scheme of their own");
    if (cli_args_given(a, "seed")) return -1;
    if (getrandom(&a->o.generate.sampling.seed, sizeof(uint64_t), 0) != (ssize_t)sizeof(uint64_t))
        a->o.generate.sampling.seed = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    return -1;
}

void cli_model_args_defaults(model_args *a, uint32_t takes) {
    a->model = NULL;
    a->takes = takes;
    a->pack = NULL;
    a->whole_context = false;
    a->from = NULL;
    a->packs = takes & (TN_IN_RUN | TN_IN_CHAT | TN_IN_ASK | TN_IN_SERVE);
    tn_options_defaults(&a->o);
    a->o.picture_cache_bytes = (uint64_t)1 << 30;
}

/* The one model of a folder; a second one makes it none. */
typedef struct only_model {
    char *path;
    int n;
} only_model;

static bool count_model(void *user, const tn_catalogue_entry *e) {
    only_model *m = user;
    if (!tn_catalogue_is_model(e)) return true; /* reads images for the other one, or drafts for it */
    snprintf(m->path, MODEL_PATH_MAX, "%s", e->path);
    return ++m->n < 2;
}

const char *cli_model_path(const char *name, char path[MODEL_PATH_MAX]) {
    char config[MODEL_PATH_MAX];
    struct stat sb;
    if (stat(name, &sb))
        return tn_catalogue_find(name, path, MODEL_PATH_MAX) || cli_pull_found(name, path, MODEL_PATH_MAX)
                   ? path
                   : name;
    if (!S_ISDIR(sb.st_mode) ||
        (size_t)snprintf(config, sizeof config, "%s/config.json", name) >= sizeof config ||
        !access(config, F_OK))
        return name;
    only_model m = {.path = path};
    tn_catalogue_folder(name, count_model, &m);
    return m.n == 1 ? path : name; /* a folder with a GGUF file in it */
}

int cli_model_word(const char **word, char path[MODEL_PATH_MAX]) {
    *word = cli_model_path(*word, path);
    return access(*word, F_OK) && errno == ENOENT ? cli_no_model(*word) : -1;
}

void cli_args_model_path(model_args *a) {
    static char path[MODEL_PATH_MAX];
    if (a->model && a->model != path) a->model = cli_model_path(a->model, path);
}

int cli_args_model_word(const command *c, model_args *a, const char *word) {
    if (word && a->model) return cli_usage_error(c, "unexpected argument '%s'", word);
    if (!word) return -1;
    a->model = word;
    cli_args_model_path(a);
    return -1;
}

bool cli_args_given(const model_args *a, const char *name) {
    return tn_param_given(&a->o, tn_param_find(name, strlen(name)));
}

int cli_parse_int_list(const char *text, int32_t *out, int cap, int32_t max) {
    int n = 0;
    for (const char *p = text;;) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 1 || v > max || n == cap) return -1;
        out[n++] = (int32_t)v;
        if (!*end) return n;
        if (*end != ',') return -1;
        p = end + 1;
    }
}

enum { ENDLESS_BYTES = 256 << 20 }; /* of a pipe or a device, which may go on for ever */

char *cli_read_text_file(const char *path, size_t *n_bytes) {
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!f) {
        cli_failed_text("%s: cannot read: %s", path, strerror(errno));
        return NULL;
    }
    struct stat sb;
    bool ends = !fstat(fileno(f), &sb) && S_ISREG(sb.st_mode), endless = false;
    size_t n = 0, cap = 1 << 16;
    char *buf = malloc(cap + 1);
    while (buf) {
        n += fread(buf + n, 1, cap - n, f);
        endless = !ends && n >= ENDLESS_BYTES;
        if (n < cap || endless) break;
        char *more = realloc(buf, cap * 2 + 1);
        if (!more) free(buf);
        buf = more;
        cap *= 2;
    }
    bool bad = !buf || ferror(f);
    if (f != stdin) fclose(f);
    if (bad || endless) {
        if (bad) cli_failed_text("%s: cannot read: %s", path, buf ? strerror(errno) : "out of memory");
        else cli_failed_text("%s: not a file, and longer than %d MiB", path, ENDLESS_BYTES >> 20);
        free(buf);
        return NULL;
    }
    buf[n] = 0;
    *n_bytes = n;
    return buf;
}

void cli_log_line(void *user, tern_log_level level, const char *line) {
    (void)user;
    if (level > TERN_LOG_WARN) return;
    cli_progress_done();
    fprintf(stderr, "tern: %s\n", cli_shown(line));
}

/* ---- progress ------------------------------------------------------------------------------------ */

static atomic_bool stopped;
static atomic_bool line_open; /* something stands on the terminal's last line */
static bool quiet;            /* set before threads are there */
static size_t n_prompt;
static double prompt_s; /* when reading it began */

void cli_progress_stop(void) { atomic_store(&stopped, true); }
void cli_progress_go_on(void) { atomic_store(&stopped, false); }

void cli_progress_quiet(void) { quiet = true; }

void cli_progress_of_prompt(size_t n) {
    n_prompt = n;
    prompt_s = tn_now_s();
}

void cli_progress_done(void) {
    if (atomic_exchange(&line_open, false)) cli_live_clear();
}

static bool show_progress(void *user, const char *stage, double fraction) {
    (void)user;
    if (atomic_load(&stopped)) return false;
    if (quiet || !cli_live()) return true;
    if (fraction >= 1) {
        cli_progress_done();
        return true;
    }
    const bool of_prompt = !strcmp(stage, "prompt");
    if (of_prompt && !n_prompt) return true; /* a command that reads many and tells of none, as bench */
    atomic_store(&line_open, true);
    if (!of_prompt) {
        const char *words = strcmp(stage, "encoder") ? stage : "judging the encoder of pictures:";
        cli_live_line("%s %3.0f %%", words, fraction * 100);
        return true;
    }
    double s = tn_now_s() - prompt_s, left = fraction > 0 ? s * (1 - fraction) / fraction : 0;
    char estimate[48] = "";
    if (left >= 1) snprintf(estimate, sizeof estimate, ", about %.0f s left", left);
    cli_live_line("prompt: %.0f of %zu tokens%s", fraction * (double)n_prompt, n_prompt, estimate);
    return true;
}

void cli_use_context(model_args *a, const tern_engine *e) {
    tern_model_info info;
    if (!a->whole_context) return;
    tern_engine_info(e, &info);
    a->o.session.n_ctx = info.ctx_train;
    fprintf(stderr, "tern: -c 0: the model's own context, %d tokens\n", info.ctx_train);
}

int cli_open_engine(const command *c, const model_args *a, tern_engine **out) {
    if (!a->model) return cli_usage_error(c, "MODEL is required");
    if (access(a->model, F_OK) && errno == ENOENT) return cli_no_model(a->model);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = cli_log_line;
    if (isatty(STDERR_FILENO)) hooks.progress = show_progress;
    tern_options o = a->o;
    o.hooks = &hooks;
    o.beside = a->model;
    tern_error err;
    packing_when when = PACKING_NEVER; /* where the file itself was asked for too */
    if (a->packs && (a->pack || !(o.exact || o.scheme))) (void)cli_packing_parse(a->pack, &when);
    tern_status st = tern_engine_open(a->packs ? cli_packing_model(when, a->model) : a->model, &o, out, &err);
    size_t n_ids;
    if (st == TERN_OK &&
        a->packs) { /* a command that answers needs text: better told before than after a package */
        st = tern_tokenize(*out, "", 0, false, false, NULL, 0, &n_ids, &err);
        if (st != TERN_OK) {
            tern_engine_close(out);
            return cli_failed_text("%s: %s", a->model, err.message);
        }
    }
    if (st == TERN_OK) {
        if (a->packs)
            cli_packing_opened(when, a->model, *out, !o.max_memory_bytes); /* measuring takes as much again */
        return -1;
    }
    (void)cli_failed(&err);
    return st == TERN_E_INVALID ? EXIT_USAGE
                                : EXIT_FAILED; /* a flag's value that only the engine knows to be wrong */
}
