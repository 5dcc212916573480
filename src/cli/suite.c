#include "cli/suite.h"

#include "base/status.h"
#include "cli/live.h"
#include "cli/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void cli_suite_defaults(suite_args *a) { *a = (suite_args){.shots = -1, .samples = -1, .max_tokens = -1}; }

const char *cli_suite_given(const suite_args *a) {
    return a->o.results        ? "results"
           : a->o.only         ? "only"
           : a->o.seed         ? "seed"
           : a->shots >= 0     ? "shots"
           : a->lengths        ? "lengths"
           : a->samples > 0    ? "samples"
           : a->max_tokens > 0 ? "n-predict"
           : a->thinking       ? "thinking"
                               : NULL;
}

/* An option that another task has. */
static const char *misplaced(const suite_args *a) {
    bool mmlu = !strcmp(a->o.task, "mmlu"), ruler = !strcmp(a->o.task, "ruler");
    if (a->shots >= 0 && !mmlu) return "shots belong to mmlu";
    if ((a->lengths || a->samples > 0) && !ruler) return "lengths and samples belong to ruler";
    if ((a->max_tokens > 0 || a->thinking) && mmlu)
        return "mmlu compares letters and writes no answer: -n and --thinking mean nothing";
    return NULL;
}

int cli_suite_check(const command *c, suite_args *a) {
    const char *why = misplaced(a);
    if (why) return cli_usage_error(c, "--task %s: %s", a->o.task, why);
    if (a->lengths) {
        int n = cli_parse_int_list(a->lengths, a->o.lengths, TN_SUITE_LENGTHS, 1 << 24);
        if (n < 1)
            return cli_usage_error(
                c, "--lengths %s: want numbers of tokens with commas between them, at most %d", a->lengths,
                (int)TN_SUITE_LENGTHS);
        a->o.n_lengths = (size_t)n;
    }
    if (a->thinking && strcmp(a->thinking, "on") != 0 && strcmp(a->thinking, "off") != 0)
        return cli_usage_error(c, "--thinking %s: want on or off", a->thinking);
    a->o.thinking = !a->thinking ? 0 : strcmp(a->thinking, "on") ? -1 : 1;
    a->o.limit = a->limit;
    a->o.n_ctx = a->ctx;
    a->o.n_shots = a->shots >= 0 ? a->shots : 5;
    a->o.n_samples = a->samples > 0 ? a->samples : 20;
    a->o.max_tokens = a->max_tokens > 0 ? a->max_tokens : 0;
    return -1;
}

/* ---- for people ---------------------------------------------------------------------------------- */

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }
static double bound(const json_t *o, size_t i) {
    return json_number_value(json_array_get(json_object_get(o, "interval"), i));
}
static long long whole(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

static void print_share(const char *what, const json_t *v) {
    printf("%s %.2f %% (95 %%: %.2f to %.2f) over %lld items", what, 100 * number(v, "accuracy"),
           100 * bound(v, 0), 100 * bound(v, 1), whole(v, "items"));
}

static void print_groups(const json_t *list, const char *key) {
    const json_t *g;
    size_t i;
    int width = 0;
    json_array_foreach(list, i, g) {
        int n = (int)strlen(cli_shown(json_string_value(json_object_get(g, key))));
        if (n > width) width = n;
    }
    json_array_foreach(list, i, g)
        printf("  %-*s %6.2f %% (%.2f to %.2f) of %lld\n", width,
               cli_shown(json_string_value(json_object_get(g, key))), 100 * number(g, "accuracy"),
               100 * bound(g, 0), 100 * bound(g, 1), whole(g, "items"));
}

static void print_summary(const json_t *s) {
    const json_t *missing = json_object_get(s, "not_checked"), *n;
    const char *name;
    print_share("accuracy", s);
    if (whole(s, "skipped")) printf(" (%lld left out)", whole(s, "skipped"));
    if (whole(s, "cut")) printf("; %lld answers were cut at the limit of tokens", whole(s, "cut"));
    putchar('\n');
    print_groups(json_object_get(s, "groups"), "group");
    if (!missing) return;
    print_share("prompts, read loosely:", json_object_get(s, "loose"));
    print_share("\ninstructions:", json_object_get(s, "instructions"));
    print_share("\ninstructions, read loosely:", json_object_get(s, "instructions_loose"));
    putchar('\n');
    print_groups(json_object_get(s, "by_instruction"), "group");
    json_object_foreach((json_t *)missing, name, n)
        printf("  %s is not checked (%lld times)\n", cli_shown(name), (long long)json_integer_value(n));
}

static void print_pair(const char *what, const json_t *c) {
    printf("%s: %.2f %% and %.2f %% over %lld items; first less second %+.2f +- %.2f (95 %%: %+.2f to %+.2f, "
           "p %.2g)",
           what, 100 * number(c, "first"), 100 * number(c, "second"), whole(c, "items"),
           100 * number(c, "difference"), 100 * number(c, "stderr"), 100 * bound(c, 0), 100 * bound(c, 1),
           number(c, "p"));
    printf("; the first alone is better at %lld, the second at %lld", whole(c, "first_better"),
           whole(c, "second_better"));
    if (json_object_get(c, "mcnemar_p")) printf(" (exact McNemar p %.2g)", number(c, "mcnemar_p"));
    putchar('\n');
}

static void print_comparison(const json_t *c) {
    const json_t *g;
    size_t i;
    char what[200];
    print_pair("accuracy", c);
    if (json_array_size(json_object_get(c, "groups")) > 1)
        json_array_foreach(json_object_get(c, "groups"), i, g) {
            snprintf(what, sizeof what, "  %s", cli_shown(json_string_value(json_object_get(g, "group"))));
            print_pair(what, g);
        }
    if (whole(c, "unpaired"))
        printf("%lld items are not in both, or have no score in one\n", whole(c, "unpaired"));
}

/* ---- a run --------------------------------------------------------------------------------------- */

static void show(void *user, int64_t done, int64_t total, double value) {
    const suite_args *a = user;
    cli_live_line("%s %lld/%lld: %.4f", a->o.task, (long long)done, (long long)total, value);
    if (done == total) cli_live_clear();
}

static void notice(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "tern: %s\n", cli_shown(line));
}

static tern_status scores(const json_t *results, json_t **out, tern_error *err) {
    const json_t *item;
    size_t i;
    *out = json_array();
    json_array_foreach(json_object_get(results, "items"), i, item)
        tn_json_append(out, json_incref(json_object_get(item, "score")));
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the scores");
    return TERN_OK;
}

/* Before the first is, whose results would be lost. */
static tern_status check_second(const suite_args *a, tern_engine *e, tern_error *err) {
    tern_error why;
    tern_status st = tn_suite_check(e, &a->o, &why);
    return st == TERN_OK ? st : tn_fail(err, st, "--against: %.400s", why.message);
}

/* The second model's results lie beside the first's. */
static tern_status run_second(const suite_args *a, tern_engine *e, json_t **results, tern_error *err) {
    tn_suite_options o = a->o;
    char *path = NULL;
    TN_FAIL_IF(o.results && asprintf(&path, "%s.against", o.results) < 0, err, TERN_E_MEMORY,
               "no memory for a path");
    if (path) o.results = path;
    o.of_file = NULL; /* the second is opened as it is named */
    tern_status st = tn_suite_run(e, &o, results, err);
    free(path);
    return st;
}

/* Why the first item that was left out was. */
static const char *first_reason(const json_t *results) {
    const json_t *item, *why;
    size_t i;
    json_array_foreach(json_object_get(results, "items"), i,
                       item) if ((why = json_object_get(item, "skipped")) &&
                                 json_is_string(why)) return json_string_value(why);
    return "there is none";
}

static json_t *report(const suite_args *a, json_t *summary, const json_t *results, const json_t *paired) {
    json_t *j = tn_json_pack("{s:s, s:s, s:s}", "task", a->o.task, "model", a->model, "from", a->from);
    const char *key;
    json_t *v;
    json_object_foreach(summary, key, v) tn_json_set(&j, key, json_incref(v));
    tn_json_set(&j, "measured", tn_json_copy(json_object_get(results, "head")));
    if (a->o.results) tn_json_set(&j, "results", tn_json_string(a->o.results, strlen(a->o.results)));
    if (paired) tn_json_set(&j, "paired", tn_json_copy(paired));
    return j;
}

static int tell(const suite_args *a, json_t *summary, const json_t *results, const json_t *paired) {
    tern_error err;
    json_t *list = NULL;
    if (!a->json) {
        print_summary(summary);
        if (paired) print_comparison(paired);
        printf("measured: %s\n", !strcmp(a->from, "cache")  ? "the model's package (tern cache)"
                                 : !strcmp(a->from, "file") ? "the model's file"
                                                            : "a package");
        return EXIT_OK;
    }
    json_t *j = report(a, summary, results, paired);
    if (a->items && scores(results, &list, &err) != TERN_OK) return json_decref(j), cli_failed(&err);
    if (a->items) tn_json_set(&j, "items_right", list);
    return cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(8));
}

int cli_suite_run(suite_args *a, tern_engine *e, tern_engine *against) {
    json_t *first = NULL, *second = NULL, *summary = NULL, *paired = NULL;
    tern_error err;
    a->o.notice = notice;
    a->o.user = a;
    if (!strcmp(a->from, "cache")) a->o.of_file = "--pack never";
    if (cli_live()) a->o.progress = show, cli_progress_quiet();
    tern_status st = against ? check_second(a, against, &err) : TERN_OK;
    if (st == TERN_OK) st = tn_suite_run(e, &a->o, &first, &err);
    if (st == TERN_OK && against) st = run_second(a, against, &second, &err);
    if (st == TERN_OK) st = tn_suite_summary(first, &summary, &err);
    if (st == TERN_OK && against) st = tn_suite_compare(first, second, &paired, &err);
    if (st == TERN_OK && !json_integer_value(json_object_get(summary, "items")) &&
        !json_integer_value(json_object_get(json_object_get(summary, "instructions"), "items")))
        st = tn_fail(&err, TERN_E_INVALID, "no item has a score: %.300s", first_reason(first));
    int rc = st == TERN_OK ? tell(a, summary, first, paired) : cli_failed(&err);
    json_decref(first);
    json_decref(second);
    json_decref(summary);
    json_decref(paired);
    return rc;
}

int cli_suite_compare(const char *first, const char *second, bool json) {
    json_t *a = NULL, *b = NULL, *c = NULL;
    tern_error err;
    tern_status st = tn_suite_read(first, &a, &err);
    if (st == TERN_OK) st = tn_suite_read(second, &b, &err);
    if (st == TERN_OK) st = tn_suite_compare(a, b, &c, &err);
    int rc = EXIT_OK;
    if (st != TERN_OK) rc = cli_failed(&err);
    else if (!json) print_comparison(c);
    else {
        tn_json_set(&c, "task", json_incref(json_object_get(json_object_get(a, "head"), "task")));
        rc = cli_emit_json(json_incref(c), JSON_INDENT(2) | JSON_REAL_PRECISION(8));
    }
    json_decref(a);
    json_decref(b);
    json_decref(c);
    return rc;
}
