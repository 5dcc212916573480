/* tern bench --cold - process start to first token with the file out of the page cache, and where the time goes. */
#include "cli/bench.h"

#include "base/aio.h"
#include "base/clock.h"
#include "base/rng.h"
#include "formats/package.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

spread spread_of(double *v, int n) {
    for (int i = 1; i < n; i++) {
        for (int j = i; j > 0 && v[j] < v[j - 1]; j--) {
            double t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    }
    return (spread){.median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, .min = v[0], .max = v[n - 1]};
}

/* ---- one start ------------------------------------------------------------------------------------------ */

static tern_status start(const model_args *ma, int32_t n_prompt, tern_session **s, tern_engine **e, int32_t **ids, double ms[3], tern_error *err) {
    tern_options o;
    tern_options_defaults(&o);
    model_options(ma, &o);
    tern_status st = tern_engine_open(ma->model, &o, e, err);
    if (st != TERN_OK) return st;
    ms[0] = tn_now_s();
    tern_model_info info;
    tern_engine_info(*e, &info);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n_prompt + 1;
    st = tern_session_open(*e, &so, s, err);
    if (st != TERN_OK) return st;
    ms[1] = tn_now_s();
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

int bench_once(const command *c, const model_args *ma, int32_t n_prompt, int64_t start_ns) {
    if (!ma->model) return usage_error(c, "-m MODEL is required");
    double t0 = (double)start_ns * 1e-9, main_s = tn_now_s(), t[3];
    tern_engine *e = NULL;
    tern_session *s = NULL;
    int32_t *ids = NULL;
    tern_error err = {0};
    tern_status st = start(ma, n_prompt, &s, &e, &ids, t, &err);
    tern_stats x = {0};
    uint64_t rss = peak_rss_bytes();
    double warm_s = 0;
    if (st == TERN_OK) tern_session_stats(s, &x);
    for (int i = 0; i < 3 && st == TERN_OK; i++) { /* the same again, warm */
        int32_t other = ids[0] ? 0 : 1;
        st = tern_session_prefill(s, &other, 1, &err);
        double w0 = tn_now_s();
        if (st == TERN_OK) st = tern_session_prefill(s, ids, (size_t)n_prompt, &err);
        double w = tn_now_s() - w0;
        if (!i || w < warm_s) warm_s = w;
    }
    if (st == TERN_OK) {
        int n = ma->n_threads;
        double busy = (x.cpu_busy_s + x.npu_busy_s - x.unpack_s - x.load_s) / n, wait = t[2] - t[1] - (x.cpu_busy_s + x.npu_busy_s) / n;
        json_t *j = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:i, s:s}", "ttft_ms", (t[2] - t0) * 1e3, "start_ms", (main_s - t0) * 1e3,
                              "open_ms", (t[1] - main_s) * 1e3, "read_ms", x.read_s * 1e3, "unpack_ms", x.unpack_s * 1e3 / n, "load_ms", x.load_s * 1e3 / n,
                              "compute_ms", busy * 1e3, "wait_ms", wait * 1e3, "warm_prefill_ms", warm_s * 1e3, "read_bytes", (json_int_t)x.read_bytes,
                              "peak_rss_bytes", (json_int_t)rss, "first_token", ids[n_prompt], "method", x.read_method ? x.read_method : "float");
        json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(j);
    }
    free(ids);
    tern_session_close(&s);
    tern_engine_close(&e);
    return st == TERN_OK ? EXIT_OK : failed(&err);
}

/* ---- many ------------------------------------------------------------------------------------------------- */

/* Write the file's pages back and drop them from the page cache; a share that stays (another process has it mapped) is told. */
static bool drop_cache(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat sb;
    bool ok = fd >= 0 && !fstat(fd, &sb) && S_ISREG(sb.st_mode);
    if (!ok) failed_text("%s: not a file that can be dropped from the page cache", path);
    if (ok) {
        (void)fsync(fd);
        ok = !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        size_t n_pages = ((size_t)sb.st_size + 4095) / 4096, n_left = 0;
        unsigned char *in = malloc(n_pages);
        void *map = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (in && map != MAP_FAILED && !mincore(map, (size_t)sb.st_size, in)) {
            for (size_t i = 0; i < n_pages; i++) n_left += in[i] & 1;
        }
        if (map != MAP_FAILED) munmap(map, (size_t)sb.st_size);
        free(in);
        if (n_left * 100 > n_pages) fprintf(stderr, "tern: %s: %.0f %% of it stays in the page cache; is it in use?\n", path, 100.0 * (double)n_left / (double)n_pages);
    }
    if (fd >= 0) close(fd);
    return ok;
}

/* Runs this command again in a fresh process for one prompt length; its JSON, or NULL with a message printed. */
static json_t *run_once(int argc, char **argv, int32_t n_prompt) {
    char prompt[16], since[32];
    char **args = calloc((size_t)argc + 6, sizeof *args);
    int fds[2];
    if (!args || pipe(fds)) {
        free(args);
        failed_text("cannot start a process: %s", strerror(errno));
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
    json_t *j = f ? json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    if (f) fclose(f);
    int status = 0;
    if (pid > 0) waitpid(pid, &status, 0);
    if (!j && status >> 8 != EXIT_FAILED) failed_text("the cold process did not answer (status %d)", status); /* otherwise it said why */
    free(args);
    return j;
}

/* Reading what a start reads, and nothing else: the bound of the disk. */
static double read_alone_s(const model_args *ma) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_aio_options o;
    tn_aio_defaults(&o);
    if (ma->read && !tn_aio_method_parse(ma->read, &o)) return 0;
    tn_pkg *p = NULL;
    tn_aio *a = NULL;
    enum { SLOTS = 8, SLOT = 8 << 20 };
    char *block = tn_alloc(&ctx, TN_MEM_OTHER, SLOTS * (size_t)SLOT + 4096, 1), *buf = block ? block + (4096 - (uintptr_t)block % 4096) : NULL;
    if (block) memset(block, 1, SLOTS * (size_t)SLOT);
    double t = 0;
    tn_aio_read r[SLOTS] = {0};
    if (block && tn_pkg_is(ma->model) && tn_pkg_open(&ctx, ma->model, &p, NULL) == TERN_OK && tn_aio_open(&ctx, ma->model, &o, &a, NULL) == TERN_OK) {
        double t0 = tn_now_s();
        int k = 0;
        for (size_t i = 0; i < tn_pkg_n_sections(p); i++) {
            const tn_pkg_section *s = tn_pkg_section_at(p, i);
            if (s->kind == TN_PKG_SHADOW) continue;
            uint64_t size = (s->size_bytes + 4095) / 4096 * 4096;
            for (uint64_t at = 0; at < size; at += SLOT, k = (k + 1) % SLOTS) {
                if (r[k].submitted) (void)tn_aio_wait(a, &r[k], NULL);
                r[k] = (tn_aio_read){.off_bytes = s->off_bytes + at, .n_bytes = size - at < SLOT ? size - at : SLOT, .dst = buf + (size_t)k * SLOT};
                tn_aio_submit(a, &r[k], false);
            }
        }
        for (k = 0; k < SLOTS; k++) {
            if (r[k].submitted) (void)tn_aio_wait(a, &r[k], NULL);
        }
        t = tn_now_s() - t0;
    }
    tn_aio_close(&a);
    tn_pkg_close(&p);
    tn_free(&ctx, block);
    return t;
}

static const char *const keys[] = {"ttft_ms", "start_ms", "open_ms", "read_ms", "unpack_ms", "load_ms", "compute_ms", "wait_ms", "warm_prefill_ms", "read_alone_ms"};
enum { N_KEYS = sizeof keys / sizeof keys[0] };

int bench_cold(const command *c, const model_args *ma, int argc, char **argv, const int32_t *prompts, int n_prompts, int32_t repeats, bool json) {
    if (!ma->model) return usage_error(c, "-m MODEL is required");
    json_t *all = json_array();
    double *v = calloc((size_t)repeats * N_KEYS, sizeof *v);
    int rc = v ? EXIT_OK : failed_text("no memory for %d repeats", repeats);
    if (!json && v) {
        printf("cold start of %s, %d threads, medians of %d, ms. unpack, load and compute: per thread; wait: nothing ran\n\n", ma->model, ma->n_threads, repeats);
        printf("| prompt |   ttft |   min |   max | start+open |  read | unpack | load | compute | wait | read alone | warm prefill | ttft / bound | peak MB |\n");
        printf("|--------|--------|-------|-------|------------|-------|--------|------|---------|------|------------|--------------|--------------|---------|\n");
    }
    for (int t = 0; t < n_prompts && rc == EXIT_OK; t++) {
        json_int_t rss = 0, bytes = 0;
        char method[24] = "";
        for (int i = 0; i < repeats && rc == EXIT_OK; i++) {
            double alone = drop_cache(ma->model) ? read_alone_s(ma) : -1;
            json_t *j = alone >= 0 && drop_cache(ma->model) ? run_once(argc, argv, prompts[t]) : NULL;
            if (!j) rc = EXIT_FAILED;
            for (int k = 0; k < N_KEYS; k++) v[k * repeats + i] = json_number_value(json_object_get(j, keys[k]));
            v[(N_KEYS - 1) * repeats + i] = alone * 1e3;
            if (json_integer_value(json_object_get(j, "peak_rss_bytes")) > rss) rss = json_integer_value(json_object_get(j, "peak_rss_bytes"));
            bytes = json_integer_value(json_object_get(j, "read_bytes"));
            if (json_string_value(json_object_get(j, "method"))) snprintf(method, sizeof method, "%s", json_string_value(json_object_get(j, "method")));
            json_decref(j);
        }
        if (rc != EXIT_OK) break;
        spread sp[N_KEYS];
        for (int k = 0; k < N_KEYS; k++) sp[k] = spread_of(v + k * repeats, repeats);
        /* the slowest of the three that could hide the others */
        double bound = sp[9].median > sp[8].median ? sp[9].median : sp[8].median;
        if (sp[4].median > bound) bound = sp[4].median;
        if (json) {
            char test[24];
            snprintf(test, sizeof test, "cold%d", prompts[t]);
            json_array_append_new(all, json_pack("{s:s, s:i, s:{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}, s:f, s:f, s:f, s:I, s:I, s:s, s:s, s:i}", "test", test, "threads",
                                                 (int)ma->n_threads, "ttft_ms", "median", sp[0].median, "min", sp[0].min, "max", sp[0].max, "open", sp[1].median + sp[2].median,
                                                 "read", sp[3].median, "unpack", sp[4].median, "load", sp[5].median, "compute", sp[6].median, "wait", sp[7].median, "read_alone_ms",
                                                 sp[9].median, "warm_prefill_ms", sp[8].median, "ttft_over_bound", bound > 0 ? sp[0].median / bound : 0, "read_bytes", bytes,
                                                 "peak_rss_bytes", rss, "method", method, "model", ma->model, "repeats", (int)repeats));
        } else {
            printf("| %6d | %6.0f | %5.0f | %5.0f | %10.0f | %5.0f | %6.0f | %4.0f | %7.0f | %4.0f | %10.0f | %12.0f | %12.2f | %7.0f |\n", prompts[t], sp[0].median, sp[0].min, sp[0].max,
                   sp[1].median + sp[2].median, sp[3].median, sp[4].median, sp[5].median, sp[6].median, sp[7].median, sp[9].median, sp[8].median, bound > 0 ? sp[0].median / bound : 0,
                   (double)rss * 1e-6);
            fflush(stdout);
        }
    }
    if (json && rc == EXIT_OK) {
        json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        putchar('\n');
    }
    json_decref(all);
    free(v);
    return rc;
}
