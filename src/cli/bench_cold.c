/* tern bench --cold - process start to first token with the file out of the page cache, and where the time
 * goes. */
#include "cli/bench.h"
#include "session/stats.h"
#include "cli/output.h"

#include "base/aio.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/process.h"
#include "base/rng.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- one start --------------------------------------------------------------------------------------- */

static tern_status start(const model_args *ma, int32_t n_prompt, tern_session **s, tern_engine **e,
                         int32_t **ids, double ms[3], tn_stats *before, tern_error *err) {
    tern_status st = tern_engine_open(ma->model, &ma->o, e, err);
    if (st != TERN_OK) return st;
    ms[0] = tn_now_s();
    tern_model_info info;
    tern_engine_info(*e, &info);
    tern_session_options so;
    tern_session_options_defaults(&so);
    const int32_t usual = info.ctx_train < 4096 ? info.ctx_train : 4096; /* what a session has by default */
    so.n_ctx = n_prompt < usual ? 0 : n_prompt + 1;
    st = tern_session_open(*e, &so, s, err);
    if (st != TERN_OK) return st;
    ms[1] = tn_now_s();
    tn_session_stats(*s, before);
    *ids = malloc(((size_t)n_prompt + 1) * sizeof **ids);
    if (!*ids) {
        snprintf(err->message, sizeof err->message, "no memory for a prompt of %d tokens", n_prompt);
        return TERN_E_MEMORY;
    }
    tn_rng rng = {42};
    for (int32_t i = 0; i < n_prompt; i++) (*ids)[i] = (int32_t)tn_rng_below(&rng, (uint64_t)info.n_vocab);
    st = tern_session_prefill(*s, *ids, (size_t)n_prompt, err);
    if (st != TERN_OK) return st;
    const float *logits = tern_session_logits(*s);
    int32_t best = 0; /* the first token */
    for (int32_t i = 1; i < info.n_vocab; i++) best = logits[i] > logits[best] ? i : best;
    (*ids)[n_prompt] = best;
    ms[2] = tn_now_s();
    return TERN_OK;
}

int cli_bench_once(const command *c, const model_args *ma, int32_t n_prompt, int64_t start_ns) {
    if (!ma->model) return cli_usage_error(c, "MODEL is required");
    double t0 = (double)start_ns * 1e-9, main_s = tn_now_s(), t[3];
    tern_engine *e = NULL;
    tern_session *s = NULL;
    int32_t *ids = NULL;
    tern_error err = {0};
    tn_stats x = {0}, before = {0}; /* before the prefill: what was loaded when the model was opened */
    tern_status st = start(ma, n_prompt, &s, &e, &ids, t, &before, &err);
    int rc = EXIT_OK;
    uint64_t rss = tn_process_peak_bytes();
    double warm_s = 0;
    if (st == TERN_OK) tn_session_stats(s, &x);
    for (int i = 0; i < 3 && st == TERN_OK; i++) { /* the same again, warm */
        int32_t other = ids[0] ? 0 : 1;
        st = tern_session_prefill(s, &other, 1, &err);
        double w0 = tn_now_s();
        if (st == TERN_OK) st = tern_session_prefill(s, ids, (size_t)n_prompt, &err);
        double w = tn_now_s() - w0;
        if (!i || w < warm_s) warm_s = w;
    }
    if (st == TERN_OK) {
        int n = ma->o.n_threads;
        double busy = (x.cpu_busy_s + x.npu_busy_s - (x.unpack_s - before.unpack_s) -
                       (x.load_s - before.load_s)) /
                      n,
               wait = t[2] - t[1] - (x.cpu_busy_s + x.npu_busy_s) / n;
        json_t *j = tn_json_pack(
            "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:i, s:s}", "ttft_ms", (t[2] - t0) * 1e3,
            "start_ms", (main_s - t0) * 1e3, "open_ms", (t[1] - main_s) * 1e3, "read_ms", x.read_s * 1e3,
            "unpack_ms", x.unpack_s * 1e3 / n, "load_ms", x.load_s * 1e3 / n, "warm_prefill_ms", warm_s * 1e3,
            "read_bytes", (json_int_t)x.read_bytes, "peak_rss_bytes", (json_int_t)rss, "first_token",
            ids[n_prompt], "method", x.read_method ? x.read_method : "float");
        if (x.cpu_busy_s + x.npu_busy_s > 0) { /* only packages run as tasks, whose times are added up */
            tn_json_set(&j, "compute_ms", tn_json_real(busy * 1e3));
            tn_json_set(&j, "wait_ms", tn_json_real(wait * 1e3));
            tn_json_set(&j, "cpu_bubble", tn_json_real(x.cpu_bubble));
            tn_json_set(&j, "npu_bubble", tn_json_real(x.npu_bubble));
        }
        rc = cli_emit_json(j, JSON_COMPACT | JSON_REAL_PRECISION(6));
    }
    free(ids);
    tern_session_close(&s);
    tern_engine_close(&e);
    return st == TERN_OK ? rc : cli_failed(&err);
}

/* ---- many -------------------------------------------------------------------------------------------- */

static bool drop_cache(const char *path) {
    tern_error err;
    double stays;
    if (tn_aio_drop_cache(path, &stays, &err) != TERN_OK) return cli_failed(&err), false;
    if (stays > 0.01)
        fprintf(stderr, "tern: %s: %.0f %% of it stays in the page cache; is it in use?\n", cli_shown(path),
                100 * stays);
    return true;
}

/* A virtual machine may have given free memory back to its host, which then takes seconds to return gigabytes
 * of it. So this touches as much as a start can need, and that is not measured. */
static void prime_memory(const char *path) {
    struct stat sb;
    long free_pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (stat(path, &sb) || free_pages < 0 || page <= 0) return;
    size_t n = (size_t)sb.st_size * 3 + ((size_t)512 << 20), most = (size_t)free_pages / 4 * 3 * (size_t)page;
    if (n > most) n = most;
    char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    (void)madvise(p, n, MADV_HUGEPAGE);
    for (size_t i = 0; i < n; i += 4096) ((volatile char *)p)[i] = 1;
    munmap(p, n);
}

/* Runs this command again in a fresh process for one prompt length. Returns its JSON, or NULL with a message
 * printed. */
static json_t *run_once(int argc, char **argv, int32_t n_prompt) {
    char prompt[16], since[32];
    char **args = calloc((size_t)argc + 6, sizeof *args);
    int fds[2];
    if (!args || pipe(fds)) {
        free(args);
        cli_failed_text("cannot start a process: %s", strerror(errno));
        return NULL;
    }
    int n = 0;
    args[n++] = (char *)"tern";
    for (int i = 0; i < argc; i++) args[n++] = argv[i];
    snprintf(prompt, sizeof prompt, "%d", n_prompt);
    args[n++] = (char *)"-p";
    args[n++] = prompt;
    args[n++] = (char *)"--once";
    args[n] = since;
    snprintf(since, sizeof since, "%lld", (long long)tn_now_ns());
    pid_t pid = fork();
    if (!pid) {
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        execv("/proc/self/exe", args);
        _exit(127);
    }
    close(fds[1]);
    FILE *f = fdopen(fds[0], "r");
    char *text = NULL;
    size_t cap = 0;
    ssize_t n_text = f ? getdelim(&text, &cap, 0, f) : -1;
    json_t *j = n_text > 0 ? tn_json_parse(text, (size_t)n_text, 0, NULL) : NULL;
    free(text);
    if (f) fclose(f);
    int status = 0;
    if (pid > 0) waitpid(pid, &status, 0);
    if (!j && status >> 8 != EXIT_FAILED)
        cli_failed_text("the cold process did not answer (status %d)", status); /* otherwise it said why */
    free(args);
    return j;
}

/* Times reading what a start reads, by the same method, and nothing else: the bound of the disk. */
static double read_alone_s(const model_args *ma, const char *method, uint64_t n_bytes) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_aio_options o;
    tn_aio_defaults(&o);
    struct stat sb;
    double t = 0;
    if (!n_bytes || stat(ma->model, &sb) ||
        (*method && !tn_aio_method_parse(method, &o) && strcmp(method, "mmap")))
        return 0;
    uint64_t all = (uint64_t)sb.st_size / 4096 * 4096, n = n_bytes < all ? n_bytes / 4096 * 4096 : all;
    return tn_aio_measure(&ctx, ma->model, &o, all - n, all, &t, NULL) == TERN_OK ? t : 0;
}

static const char *const keys[] = {"ttft_ms",         "start_ms",   "open_ms",    "read_ms",
                                   "unpack_ms",       "load_ms",    "compute_ms", "wait_ms",
                                   "warm_prefill_ms", "cpu_bubble", "npu_bubble", "read_alone_ms"};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

/* How often the first token takes the slowest of the three that could hide the others. */
static double over_bound(const spread *sp) {
    double alone = sp[N_KEYS - 1].median, warm = sp[8].median, unpack = sp[4].median,
           bound = alone > warm ? alone : warm;
    if (unpack > bound) bound = unpack;
    return bound > 0 ? sp[0].median / bound : 0;
}

/* A prompt's row as JSON; sp: of keys. tasks: whether it ran as tasks, whose times are known. */
static json_t *cold_json(const model_args *ma, const char *test, const spread *sp, bool tasks, json_int_t rss,
                         json_int_t bytes, const char *method, int32_t repeats) {
    json_t *ms = tn_json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "median", sp[0].median, "min", sp[0].min,
                              "max", sp[0].max, "open", sp[1].median + sp[2].median, "read", sp[3].median,
                              "unpack", sp[4].median, "load", sp[5].median);
    json_t *j =
        tn_json_pack("{s:s, s:i, s:f, s:f, s:f, s:I, s:I, s:s, s:s, s:i}", "test", test, "threads",
                     (int)ma->o.n_threads, "read_alone_ms", sp[N_KEYS - 1].median, "warm_prefill_ms",
                     sp[8].median, "ttft_over_bound", over_bound(sp), "read_bytes", bytes, "peak_rss_bytes",
                     rss, "method", method, "model", ma->model, "repeats", (int)repeats);
    if (tasks) {
        tn_json_set(&ms, "compute", tn_json_real(sp[6].median));
        tn_json_set(&ms, "wait", tn_json_real(sp[7].median));
        tn_json_set(&j, "cpu_bubble", tn_json_real(sp[9].median));
        tn_json_set(&j, "npu_bubble", tn_json_real(sp[10].median));
    }
    tn_json_set(&j, "ttft_ms", ms);
    return j;
}

int cli_bench_cold(const command *c, const model_args *ma, int argc, char **argv, const int32_t *prompts,
                   int n_prompts, int32_t repeats, bool prime, bool json) {
    if (!ma->model) return cli_usage_error(c, "MODEL is required");
    json_t *all = json_array();
    double *v = calloc((size_t)repeats * N_KEYS, sizeof *v);
    int rc = v ? EXIT_OK : cli_failed_text("no memory for %d repeats", repeats);
    if (!json && v) {
        printf("cold start of %s, %d threads, medians of %d, ms. unpack, load and compute: per thread; wait: "
               "nothing ran\n\n",
               ma->model, ma->o.n_threads, repeats);
        printf("| prompt |   ttft |   min |   max | start+open |  read | unpack | load | compute | wait | "
               "read alone | warm prefill | ttft / bound | peak MB |\n");
        printf("|--------|--------|-------|-------|------------|-------|--------|------|---------|------|----"
               "--------|--------------|--------------|---------|\n");
    }
    for (int t = 0; t < n_prompts && rc == EXIT_OK; t++) {
        json_int_t rss = 0, bytes = 0;
        char method[24] = "";
        bool tasks = false; /* whether the prompt ran as tasks, whose times are known */
        for (int i = 0; i < repeats && rc == EXIT_OK; i++) {
            bool dropped = drop_cache(ma->model);
            if (dropped && prime)
                prime_memory(ma->model); /* last: what is dropped may be given back as well */
            json_t *j = dropped ? run_once(argc, argv, prompts[t]) : NULL;
            if (!j) rc = EXIT_FAILED;
            for (int k = 0; k < N_KEYS; k++)
                v[k * repeats + i] = json_number_value(json_object_get(j, keys[k]));
            if (json_integer_value(json_object_get(j, "peak_rss_bytes")) > rss)
                rss = json_integer_value(json_object_get(j, "peak_rss_bytes"));
            bytes = json_integer_value(json_object_get(j, "read_bytes"));
            tasks = json_object_get(j, "wait_ms") != NULL;
            if (json_string_value(json_object_get(j, "method")))
                snprintf(method, sizeof method, "%s", json_string_value(json_object_get(j, "method")));
            json_decref(j);
            if (rc == EXIT_OK && drop_cache(ma->model))
                v[(N_KEYS - 1) * repeats + i] = read_alone_s(ma, method, (uint64_t)bytes) * 1e3;
        }
        if (rc != EXIT_OK) break;
        spread sp[N_KEYS];
        for (int k = 0; k < N_KEYS; k++) sp[k] = cli_spread_of(v + k * repeats, repeats);
        if (json) {
            char test[24];
            snprintf(test, sizeof test, "cold%d", prompts[t]);
            tn_json_append(&all, cold_json(ma, test, sp, tasks, rss, bytes, method, repeats));
        } else {
            char compute[16] = "-", wait[16] = "-";
            if (tasks) {
                snprintf(compute, sizeof compute, "%.0f", sp[6].median);
                snprintf(wait, sizeof wait, "%.0f", sp[7].median);
            }
            printf("| %6d | %6.0f | %5.0f | %5.0f | %10.0f | %5.0f | %6.0f | %4.0f | %7s | %4s | %10.0f "
                   "| %12.0f | %12.2f | %7.0f |\n",
                   prompts[t], sp[0].median, sp[0].min, sp[0].max, sp[1].median + sp[2].median, sp[3].median,
                   sp[4].median, sp[5].median, compute, wait, sp[N_KEYS - 1].median, sp[8].median,
                   over_bound(sp), (double)rss * 1e-6);
            fflush(stdout);
        }
    }
    if (json && rc == EXIT_OK) rc = cli_emit_json(json_incref(all), JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(all);
    free(v);
    return rc;
}
