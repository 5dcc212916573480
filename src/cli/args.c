#include "cli/args.h"
#include "cli/output.h"

#include "base/clock.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int usage_error(const command *c, const char *fmt, ...) {
    va_list ap;
    fprintf(stderr, "tern %s: ", c->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, " (see tern %s --help)\n", c->name);
    return EXIT_USAGE;
}

int failed(const tern_error *err) {
    fprintf(stderr, "tern: %s\n", shown(err->message));
    return EXIT_FAILED;
}

int failed_text(const char *fmt, ...) {
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "tern: %s\n", shown(line));
    return EXIT_FAILED;
}

static void print_help(const command *c) {
    printf("usage: tern %s %s\n\n%s\n\n", c->name, c->usage, c->summary);
    for (const arg_spec *s = c->specs; s->name || s->letter; s++) {
        char left[64];
        int n =
            s->letter ? snprintf(left, sizeof left, "  -%c", s->letter) : snprintf(left, sizeof left, "    ");
        if (s->name)
            n += snprintf(left + n, sizeof left - (size_t)n, "%s--%s", s->letter ? ", " : "  ", s->name);
        if (s->value) snprintf(left + n, sizeof left - (size_t)n, " %s", s->value);
        printf("%-30s %s\n", left, s->help);
    }
    printf("%-30s %s\n", "  -h, --help", "this text");
}

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
    switch (s->kind) {
    case ARG_FLAG: *(bool *)s->dst = true; return -1;
    case ARG_STR: *(const char **)s->dst = value; return -1;
    case ARG_LIST: {
        arg_list *l = s->dst;
        if (l->n == ARG_LIST_MAX)
            return usage_error(c, "%s can be given at most %d times", arg, ARG_LIST_MAX);
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
        return usage_error(c, "%s %s: want %s from %.9g to %.9g", arg, value,
                           s->value && !strcmp(s->value, "PERCENT") ? "a percentage" : "a number", s->min,
                           s->max);
    return usage_error(c, "%s %s: want a %s number", arg, value, s->kind == ARG_FLOAT ? "finite" : "whole");
}

int args_parse(const command *c, int argc, char **argv, const char **words) {
    int n_words = 0;
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (only_words || a[0] != '-' || !a[1]) {
            if (n_words == c->max_words) return usage_error(c, "unexpected argument '%s'", a);
            words[n_words++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            only_words = true;
            continue;
        }
        if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
            print_help(c);
            return EXIT_OK;
        }
        const char *eq = a[1] == '-' ? strchr(a, '=') : NULL;
        const arg_spec *s = find(c, a, eq ? (size_t)(eq - a) : strlen(a));
        if (!s) return usage_error(c, "unknown option '%s'", a);
        const char *value = NULL;
        if (s->kind == ARG_FLAG) {
            if (eq) return usage_error(c, "%s takes no value", a);
        } else if (eq) {
            value = eq + 1;
        } else if (++i < argc) {
            value = argv[i];
        } else {
            return usage_error(c, "%s needs a value", a);
        }
        int rc = store(c, s, a, value);
        if (rc >= 0) return rc;
    }
    if (words) words[n_words] = NULL;
    return -1;
}

int parse_int_list(const char *text, int32_t *out, int cap, int32_t max) {
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

char *read_text_file(const char *path, size_t *n_bytes) {
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!f) {
        failed_text("%s: cannot read: %s", path, strerror(errno));
        return NULL;
    }
    size_t n = 0, cap = 1 << 16;
    char *buf = malloc(cap + 1);
    while (buf) {
        n += fread(buf + n, 1, cap - n, f);
        if (n < cap) break;
        char *more = realloc(buf, cap * 2 + 1);
        if (!more) free(buf);
        buf = more;
        cap *= 2;
    }
    bool bad = !buf || ferror(f);
    if (f != stdin) fclose(f);
    if (bad) {
        failed_text("%s: cannot read: %s", path, buf ? strerror(errno) : "out of memory");
        free(buf);
        return NULL;
    }
    buf[n] = 0;
    *n_bytes = n;
    return buf;
}

void log_line(void *user, tern_log_level level, const char *line) {
    (void)user;
    if (level <= TERN_LOG_WARN) fprintf(stderr, "tern: %s\n", shown(line));
}

static bool show_progress(void *user, const char *stage, double fraction) {
    (void)user;
    if (fraction < 1) fprintf(stderr, "\r%s %3.0f %%", stage, fraction * 100);
    else fprintf(stderr, "\r\033[K");
    return true;
}

void model_options(const model_args *a, tern_options *o) {
    o->n_threads = a->n_threads;
    o->npu = a->npu;
    o->policy = a->policy;
    o->npu_threads = a->npu_threads;
    o->cpu_threads = a->cpu_threads;
    o->npu_memory_bytes = a->npu_memory;
    o->npu_vtcm_bytes = a->npu_vtcm;
    o->chunk = a->chunk;
    o->no_steal = a->no_steal;
    o->no_chunk_sharing = a->no_chunk_sharing;
    o->cold_rows = a->cold_rows;
    o->scheme = a->scheme;
    o->npu_separate_weights = a->npu_separate;
    o->npu_apart = a->npu_apart;
    o->graph_switch = a->graph_switch;
    o->switch_blocks = a->switch_blocks;
    o->load = a->load;
    o->read = a->read;
    o->weights = a->weights;
    o->steal_above = a->steal_above;
    o->attention = a->attention;
    o->attention_ratio = a->attention_percent / 100;
    o->attention_buckets = a->attention_buckets;
    o->no_head_ratios = a->no_head_ratios;
    o->attention_share = a->attention_share;
    o->attention_pool = a->attention_pool;
    o->attention_whole = a->attention_whole;
    o->attention_pipeline = a->attention_pipeline;
    o->attention_plan = a->attention_plan;
    o->attention_threshold = a->attention_threshold;
    o->attention_check = a->attention_check;
    o->attention_decode = a->attention_decode;
    o->trace = a->trace;
}

int open_engine(const command *c, const model_args *a, tern_engine **out) {
    if (!a->model) return usage_error(c, "-m MODEL is required");
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = log_line;
    if (isatty(STDERR_FILENO)) hooks.progress = show_progress;
    tern_options o;
    tern_options_defaults(&o);
    model_options(a, &o);
    o.hooks = &hooks;
    tern_error err;
    tern_status st = tern_engine_open(a->model, &o, out, &err);
    if (st == TERN_OK) return -1;
    (void)failed(&err);
    return st == TERN_E_INVALID ? EXIT_USAGE
                                : EXIT_FAILED; /* a flag's value that only the engine knows to be wrong */
}

double process_age_s(void) {
    /* field 22 of /proc/self/stat: start time in clock ticks since boot */
    FILE *f = fopen("/proc/self/stat", "r");
    if (!f) return 0;
    char line[1024];
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    char *p = strrchr(line, ')');
    unsigned long long start = 0;
    if (!p ||
        sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &start) != 1)
        return 0;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)start / (double)sysconf(_SC_CLK_TCK);
}

uint64_t peak_rss_bytes(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (uint64_t)u.ru_maxrss * 1024;
}
