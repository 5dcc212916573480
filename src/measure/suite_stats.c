/* measure/suite_stats.c - what results say: means with intervals, and two results item by item. */
#include "base/status.h"
#include "measure/eval.h"
#include "measure/suite_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double Z =
    1.959963984540054; /* of a normal distribution, 95 % lie within so many standard deviations */

void tn_suite_wilson(double share, double n, double *from, double *to) {
    if (!(n > 0)) {
        *from = 0;
        *to = 1;
        return;
    }
    double middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n),
           half = Z / (1 + Z * Z / n) * sqrt(share * (1 - share) / n + Z * Z / (4 * n * n));
    *from = fmax(0, middle - half);
    *to = fmin(1, middle + half);
}

double tn_suite_mcnemar(int64_t a, int64_t b) {
    int64_t n = a + b, few = a < b ? a : b;
    double sum = 0;
    for (int64_t k = 0; k <= few; k++) /* binomial coefficients, as logarithms */
        sum += exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) -
                   (double)n * log(2));
    return fmin(1, 2 * sum);
}

/* ---- one file ------------------------------------------------------------------------------------ */

static json_t *interval_json(double from, double to) {
    json_t *v = json_array();
    tn_json_append(&v, tn_json_real(from));
    tn_json_append(&v, tn_json_real(to));
    return v;
}

/* A mean of n scores whose sum is known. */
static json_t *share_json(double sum, int64_t n) {
    double from, to, mean = n ? sum / (double)n : 0;
    tn_suite_wilson(mean, (double)n, &from, &to);
    json_t *v = tn_json_pack("{s:I, s:f}", "items", (json_int_t)n, "accuracy", mean);
    tn_json_set(&v, "interval", interval_json(from, to));
    return v;
}

/* A list of sums in the order in which names came. */
typedef struct tally {
    json_t *order, *by_name; /* {name: index} */
    double *sum;
    int64_t *n;
    size_t cap;
    bool failed;
} tally;

static void count(tally *t, const char *name, double x) {
    const json_t *at = json_object_get(t->by_name, name);
    size_t i = at ? (size_t)json_integer_value(at) : json_array_size(t->order);
    if (t->failed) return;
    if (i == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        double *sum = realloc(t->sum, cap * sizeof *sum);
        if (sum) t->sum = sum;
        int64_t *n = sum ? realloc(t->n, cap * sizeof *n) : NULL;
        if (n) t->n = n;
        if (n) t->cap = cap;
        if (!n) t->failed = true;
        if (!n) return;
    }
    if (!at) {
        tn_json_append(&t->order, tn_json_string(name, strlen(name)));
        tn_json_set(&t->by_name, name, json_integer((json_int_t)i));
        t->sum[i] = 0;
        t->n[i] = 0;
        t->failed = !t->order || !t->by_name;
        if (t->failed) return;
    }
    t->sum[i] += x;
    t->n[i]++;
}

static void tally_begin(tally *t) {
    *t = (tally){.order = json_array(), .by_name = json_object()};
    t->failed = !t->order || !t->by_name;
}

/* [{"group", "items", "accuracy", "interval"}] */
static json_t *tally_json(const tally *t) {
    json_t *list = t->failed ? NULL : json_array(), *name;
    size_t i;
    json_array_foreach(t->order, i, name) {
        json_t *one = share_json(t->sum[i], t->n[i]);
        tn_json_set(&one, "group", json_incref(name));
        tn_json_append(&list, one);
    }
    return list;
}

static void tally_end(tally *t) {
    json_decref(t->order);
    json_decref(t->by_name);
    free(t->sum);
    free(t->n);
}

/* Element i of a tally's list, or a share of none; NULL: no memory. */
static json_t *nth(const json_t *list, size_t i) {
    if (!list) return NULL;
    return i < json_array_size(list) ? json_incref(json_array_get(list, i)) : share_json(0, 0);
}

enum { LOOSE, WHOLE, BY_NAME, MISSING, N_TALLIES };

/* What a record says of each instruction. A prompt counts where all of its instructions are checked. */
static void count_instructions(const json_t *item, tally t[N_TALLIES]) {
    const json_t *mark;
    size_t k;
    bool all = true;
    json_array_foreach(json_object_get(item, "instructions"), k, mark) {
        const char *id = json_string_value(json_object_get(mark, "id"));
        const json_t *s = json_object_get(mark, "strict"), *l = json_object_get(mark, "loose");
        if (id && json_is_boolean(s) && json_is_boolean(l)) {
            count(&t[BY_NAME], id, json_is_true(s));
            count(&t[WHOLE], "strict", json_is_true(s));
            count(&t[WHOLE], "loose", json_is_true(l));
            all = all && json_is_true(l);
        } else if (id) {
            count(&t[MISSING], id, 0);
        }
    }
    if (json_is_number(json_object_get(item, "score"))) count(&t[LOOSE], "loose", all);
}

/* Prompts by the loose reading, instructions by both, instructions by name, and those that nothing checks. */
static void add_instructions(const json_t *items, json_t **out) {
    tally t[N_TALLIES];
    json_t *lists[N_TALLIES], *names = json_object(), *item;
    size_t i;
    for (i = 0; i < N_TALLIES; i++) tally_begin(&t[i]);
    json_array_foreach(items, i, item) count_instructions(item, t);
    for (i = 0; i < N_TALLIES; i++) lists[i] = tally_json(&t[i]);
    tn_json_set(out, "loose", nth(lists[LOOSE], 0));
    tn_json_set(out, "instructions", nth(lists[WHOLE], 0));
    tn_json_set(out, "instructions_loose", nth(lists[WHOLE], 1));
    tn_json_set(out, "by_instruction", json_incref(lists[BY_NAME]));
    json_array_foreach(lists[MISSING], i, item)
        tn_json_set(&names, json_string_value(json_object_get(item, "group")),
                    json_incref(json_object_get(item, "items")));
    tn_json_set(out, "not_checked", lists[MISSING] ? json_incref(names) : NULL);
    for (i = 0; i < N_TALLIES; i++) tally_end(&t[i]);
    for (i = 0; i < N_TALLIES; i++) json_decref(lists[i]);
    json_decref(names);
}

tern_status tn_suite_summary(const json_t *results, json_t **out, tern_error *err) {
    const json_t *items = json_object_get(results, "items"), *item;
    const char *task = json_string_value(json_object_get(json_object_get(results, "head"), "task"));
    double sum = 0, squares = 0;
    int64_t n = 0, skipped = 0, cut = 0;
    size_t i;
    tally t;
    tally_begin(&t);
    json_array_foreach(items, i, item) {
        const json_t *score = json_object_get(item, "score");
        double x = json_number_value(score);
        skipped += json_is_null(score);
        cut += json_is_true(json_object_get(item, "cut"));
        if (json_is_null(score)) continue;
        n++;
        sum += x;
        squares += x * x;
    }
    for (size_t k = 0, more = 1; more; k++) { /* first the groups that items name first */
        more = 0;
        json_array_foreach(items, i, item) {
            const json_t *score = json_object_get(item, "score"),
                         *group = json_array_get(json_object_get(item, "groups"), k);
            if (group && json_is_number(score)) count(&t, json_string_value(group), json_number_value(score));
            more += group != NULL;
        }
    }
    double mean = n ? sum / (double)n : 0, variance = n ? fmax(0, squares / (double)n - mean * mean) : 0;
    *out = share_json(sum, n);
    tn_json_set(out, "stderr", tn_json_real(n ? sqrt(variance / (double)n) : 0));
    tn_json_set(out, "skipped", json_integer(skipped));
    tn_json_set(out, "cut", json_integer(cut));
    tn_json_set(out, "groups", tally_json(&t));
    tally_end(&t);
    if (task && !strcmp(task, "ifeval")) add_instructions(items, out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the summary");
    return TERN_OK;
}

/* ---- two files ----------------------------------------------------------------------------------- */

/* What is summed up of pairs of scores. */
typedef struct pairs {
    double a, b, diff, squares;                     /* squares: of the differences */
    int64_t n, first_better, second_better, broken; /* broken: a score that is neither 0 nor 1 */
} pairs;

static tern_status comparable(const json_t *a, const json_t *b, tern_error *err) {
    static const char *const keys[] = {"task", "data", "asked"};
    const json_t *x = json_object_get(a, "head"), *y = json_object_get(b, "head");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        TN_FAIL_IF(
            !json_equal(json_object_get(x, keys[i]), json_object_get(y, keys[i])), err, TERN_E_INVALID,
            "the results cannot be compared item by item: the first lines of the two files differ in '%s'",
            keys[i]);
    return TERN_OK;
}

static void pair_up(pairs *p, double s, double t) {
    p->n++;
    p->a += s;
    p->b += t;
    p->diff += s - t;
    p->squares += (s - t) * (s - t);
    p->first_better += s > t;
    p->second_better += s < t;
    p->broken += (s != 0 && s != 1) || (t != 0 && t != 1);
}

static json_t *pairs_json(const pairs *p) {
    double n = (double)p->n, mean = p->diff / n,
           variance = p->n > 1 ? fmax(0, p->squares - n * mean * mean) / (n - 1) : 0;
    const tn_estimate d = {mean, sqrt(variance / n)};
    json_t *v = tn_json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "items", (json_int_t)p->n, "first",
                             p->a / n, "second", p->b / n, "difference", d.value, "stderr", d.stderr_, "p",
                             tn_eval_p(d), "first_better", (json_int_t)p->first_better, "second_better",
                             (json_int_t)p->second_better);
    tn_json_set(&v, "interval", interval_json(d.value - Z * d.stderr_, d.value + Z * d.stderr_));
    if (!p->broken)
        tn_json_set(&v, "mcnemar_p", tn_json_real(tn_suite_mcnemar(p->first_better, p->second_better)));
    return v;
}

/* Items with a score in both: all of them, and those of each group of the first's. */
typedef struct paired {
    pairs all, *by_group;   /* [number of groups] */
    json_t *groups, *index; /* names; {name: number} */
    int64_t n_common;       /* items that are in both, scored or not */
} paired;

static bool open_paired(paired *p, const json_t *a) {
    tally t;
    const json_t *item, *g;
    size_t i, k;
    tally_begin(&t);
    json_array_foreach(json_object_get(a, "items"), i, item)
        json_array_foreach(json_object_get(item, "groups"), k, g) count(&t, json_string_value(g), 0);
    *p = (paired){.groups = t.failed ? NULL : json_incref(t.order),
                  .index = t.failed ? NULL : json_incref(t.by_name)};
    tally_end(&t);
    p->by_group = calloc(json_array_size(p->groups) + 1, sizeof *p->by_group);
    return p->groups && p->index && p->by_group;
}

static void pair_items(paired *p, const json_t *a, const json_t *b_by_id) {
    const json_t *item, *g;
    size_t i, k;
    json_array_foreach(json_object_get(a, "items"), i, item) {
        const json_t *other = json_object_get(b_by_id, json_string_value(json_object_get(item, "id"))),
                     *x = json_object_get(item, "score"), *y = json_object_get(other, "score");
        p->n_common += other != NULL;
        if (!json_is_number(x) || !json_is_number(y)) continue;
        pair_up(&p->all, json_number_value(x), json_number_value(y));
        json_array_foreach(json_object_get(item, "groups"), k, g)
            pair_up(&p->by_group[json_integer_value(json_object_get(p->index, json_string_value(g)))],
                    json_number_value(x), json_number_value(y));
    }
}

static json_t *paired_json(const paired *p, size_t n_both) {
    json_t *list = json_array(), *g;
    size_t i;
    json_array_foreach(p->groups, i, g) {
        if (!p->by_group[i].n) continue;
        json_t *one = pairs_json(&p->by_group[i]);
        tn_json_set(&one, "group", json_incref(g));
        tn_json_append(&list, one);
    }
    json_t *v = pairs_json(&p->all);
    tn_json_set(&v, "unpaired", json_integer((json_int_t)n_both - p->n_common - p->all.n));
    tn_json_set(&v, "groups", list);
    return v;
}

tern_status tn_suite_compare(const json_t *a, const json_t *b, json_t **out, tern_error *err) {
    const json_t *first = json_object_get(a, "items"), *second = json_object_get(b, "items");
    json_t *by_id = json_object(), *item;
    paired p = {0};
    size_t i;
    *out = NULL;
    tern_status st = comparable(a, b, err);
    json_array_foreach(second, i, item)
        tn_json_set(&by_id, json_string_value(json_object_get(item, "id")), json_incref(item));
    if (st == TERN_OK && (!by_id || !open_paired(&p, a)))
        st = tn_fail(err, TERN_E_MEMORY, "no memory for the comparison");
    if (st == TERN_OK) pair_items(&p, a, by_id);
    if (st == TERN_OK && !p.all.n) st = tn_fail(err, TERN_E_INVALID, "the two have no scored item in common");
    if (st == TERN_OK) *out = paired_json(&p, json_array_size(first) + json_array_size(second));
    if (st == TERN_OK && !*out) st = tn_fail(err, TERN_E_MEMORY, "no memory for the comparison");
    json_decref(by_id);
    json_decref(p.groups);
    json_decref(p.index);
    free(p.by_group);
    return st;
}
