/* tern cache - the packages that were made of models: what is there, and away with it. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/packing.h"

#include "params/params.h"
#include "quant/cache.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Prints a name. One from outside never becomes a terminal's escape. */
static void print_name(const char *s) {
    for (; *s; s++) putchar((unsigned char)*s < 32 || *s == 127 ? '?' : *s);
}

static int list(const char *folder, tn_ctx *ctx, bool json) {
    tn_cache_entry *e;
    size_t n, n_unfinished = 0;
    tern_error err;
    if (tn_cache_list(ctx, folder, &e, &n, &err) != TERN_OK) return cli_failed(&err);
    uint64_t total = 0;
    json_t *all = json ? json_array() : NULL;
    for (size_t i = 0; i < n; i++) {
        total += e[i].bytes;
        if (json) {
            json_t *j = tn_json_pack("{s:s, s:s, s:I, s:I, s:b}", "key", e[i].key, "source", e[i].source,
                                     "bytes", (json_int_t)e[i].bytes, "used", (json_int_t)e[i].used_s,
                                     "unfinished", e[i].unfinished);
            tn_cache_about_json(&e[i].about, &j);
            tn_json_append(&all, j);
            continue;
        }
        char when[32] = "", words[160];
        struct tm tm;
        time_t t = (time_t)e[i].used_s;
        if (localtime_r(&t, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
        printf("%s  %8.1f MiB  %s  ", e[i].key, (double)e[i].bytes / 1048576, when);
        print_name(e[i].source);
        if (e[i].unfinished) fputs("  (unfinished)", stdout);
        else printf("\n    %s", cli_packing_words(&e[i].about, words, sizeof words));
        n_unfinished += e[i].unfinished;
        putchar('\n');
    }
    tn_free(ctx, e);
    if (json) return cli_emit_json(all, JSON_INDENT(2));
    printf("%zu package%s, ", n - n_unfinished, n - n_unfinished == 1 ? "" : "s");
    if (n_unfinished) printf("%zu unfinished, ", n_unfinished);
    printf("%.1f MiB, in %s\n", (double)total / 1048576, folder);
    return EXIT_OK;
}

static int clear(const char *folder, tn_ctx *ctx) {
    tn_cache_entry *e;
    size_t n;
    tern_error err;
    tern_status st = tn_cache_list(ctx, folder, &e, &n, &err);
    for (size_t i = 0; st == TERN_OK && i < n; i++) {
        st = tn_cache_remove(folder, e[i].key, &err);
        if (st == TERN_E_INVALID) st = TERN_OK; /* somebody else removed it */
    }
    if (st == TERN_OK) tn_free(ctx, e);
    if (st == TERN_OK) st = tn_cache_forget_profiles(&err);
    return st == TERN_OK ? EXIT_OK : cli_failed(&err);
}

enum { LEAST_BYTES = 1 << 12 }; /* of a limit: who writes less forgot the unit */

/* Sets the limit where one is given, and says what it is and what left for it. */
static int limit(const char *size, tn_ctx *ctx, bool json) {
    char folder[TN_CACHE_PATH];
    uint64_t bytes, total = 0;
    tn_cache_entry *e;
    size_t n, n_before = 0;
    tern_error err;
    if (size && !tn_params_u64(size, true, &bytes)) {
        fprintf(stderr, "tern cache limit: '%s': want bytes, or K, M or G of them\n", cli_shown(size));
        return EXIT_USAGE;
    }
    if (size && bytes && bytes < LEAST_BYTES) {
        fprintf(stderr, "tern cache limit: '%s' is %llu bytes, less than any package; 0 keeps none\n",
                cli_shown(size), (unsigned long long)bytes);
        return EXIT_USAGE;
    }
    tern_status st = tn_cache_folder(folder, size != NULL, &err);
    if (st == TERN_OK && size) st = tn_cache_list(ctx, folder, &e, &n_before, &err);
    if (st == TERN_OK && size) tn_free(ctx, e);
    if (st == TERN_OK && size) st = tn_cache_set_limit(ctx, folder, bytes, &err);
    if (st == TERN_OK) st = tn_cache_limit(folder, &bytes, &err);
    if (st == TERN_OK) st = tn_cache_list(ctx, folder, &e, &n, &err);
    if (st != TERN_OK) return cli_failed(&err);
    for (size_t i = 0; i < n; i++) total += e[i].bytes;
    tn_free(ctx, e);
    if (n < n_before)
        fprintf(stderr, "tern: %zu package%s that did not fit removed\n", n_before - n,
                n_before - n > 1 ? "s" : "");
    if (json)
        return cli_emit_json(
            tn_json_pack("{s:I, s:I}", "limit_bytes", (json_int_t)bytes, "used_bytes", (json_int_t)total),
            JSON_INDENT(2));
    printf("%.1f MiB at most, %.1f MiB taken, in %s\n", (double)bytes / 1048576, (double)total / 1048576,
           folder);
    return EXIT_OK;
}

int cmd_cache(int argc, char **argv) {
    bool json = false;
    const arg_spec specs[] = {
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "ls, limit: print JSON"},
        {0},
    };
    const command c = {
        "cache", "[ls] | add MODEL | measure MODEL | rm KEY | clear | limit [SIZE] | path",
        "Packages that tern keeps so that a model starts quickly. ls: list them, most recently used first, "
        "and unfinished ones, which continue when the model is packed again. add: make the package of a "
        "model now and measure this machine for it (of a package: only measure). "
        "measure: measure this machine for a package or a quantised file, which stays as it is. rm, clear: "
        "remove one, or "
        "all. limit: show or set the space they may take together, such as 20G; the least recently used goes "
        "first. path: print the folder.",
        specs, 2};
    const char *words[3] = {0};
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (!words[0]) words[0] = "ls";
    bool measure = !strcmp(words[0], "measure");
    bool add = measure || !strcmp(words[0], "add"), rm = !strcmp(words[0], "rm");
    bool limits = !strcmp(words[0], "limit"), later = !strcmp(words[0], "later"); /* said by a start alone */
    if (!limits && (add || rm || later) != (words[1] != NULL))
        return cli_usage_error(&c,
                               add  ? "add or measure what? a MODEL"
                               : rm ? "rm what? a KEY"
                                    : "unexpected argument '%s'",
                               words[1]);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    char folder[TN_CACHE_PATH];
    tern_error err;
    if (limits) return limit(words[1], &ctx, json);
    if (later) return cli_packing_later(words[1]) ? EXIT_OK : EXIT_FAILED;
    char path[MODEL_PATH_MAX];
    if (add && (rc = cli_model_word(&words[1], path)) >= 0) return rc;
    if (add) return (measure ? cli_packing_measure : cli_packing_now)(words[1]) ? EXIT_OK : EXIT_FAILED;
    if (tn_cache_folder(folder, false, &err) != TERN_OK) return cli_failed(&err);
    if (!strcmp(words[0], "ls")) return list(folder, &ctx, json);
    if (!strcmp(words[0], "path")) return puts(folder) < 0 ? EXIT_FAILED : EXIT_OK;
    if (!strcmp(words[0], "clear")) return clear(folder, &ctx);
    if (rm) return tn_cache_remove(folder, words[1], &err) == TERN_OK ? EXIT_OK : cli_failed(&err);
    return cli_usage_error(&c, "'%s' is unknown; there are ls, add, measure, rm, clear, limit, path",
                           words[0]);
}
