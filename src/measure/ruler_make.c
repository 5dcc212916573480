/* measure/ruler_make.c - RULER's texts, after its published description (arXiv 2404.06654), in words of our own.
 *
 * A text is made by a seed for a number of units (sentences, words, documents); the largest number whose tokens fit is found by
 * doubling and halving. Every draw begins with the seed again, so that a text depends on nothing else. */
#include "base/rng.h"
#include "base/status.h"
#include "measure/ruler_words.h"
#include "measure/suite_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum hay { NOISE, TEXT, NEEDLES } hay;
typedef enum kind { NEEDLE, TRACK, COMMON, FREQUENT, QUESTION } kind;

typedef struct ruler_task {
    const char *name;
    kind kind;
    int32_t tokens; /* room for the answer */
    hay hay;
    bool code_keys, codes; /* keys and values are random codes, not words and numbers */
    int n_keys, n_values, n_asked;
    const char *needs; /* of shared */
} ruler_task;

/* RULER's thirteen. Where it hides needles in essays, the text is the user's, or the noise of the others where there is none;
 * niah_single_2 would be niah_single_1 then. */
static const ruler_task tasks[] = {{"niah_single_1", NEEDLE, 128, NOISE, false, false, 1, 1, 1, NULL},
                                   {"niah_single_2", NEEDLE, 128, TEXT, false, false, 1, 1, 1, "text"},
                                   {"niah_single_3", NEEDLE, 128, TEXT, false, true, 1, 1, 1, NULL},
                                   {"niah_multikey_1", NEEDLE, 128, TEXT, false, false, 4, 1, 1, NULL},
                                   {"niah_multikey_2", NEEDLE, 128, NEEDLES, false, false, 1, 1, 1, NULL},
                                   {"niah_multikey_3", NEEDLE, 128, NEEDLES, true, true, 1, 1, 1, NULL},
                                   {"niah_multivalue", NEEDLE, 128, TEXT, false, false, 1, 4, 1, NULL},
                                   {"niah_multiquery", NEEDLE, 128, TEXT, false, false, 4, 1, 4, NULL},
                                   {"vt", TRACK, 30, NOISE, false, false, 5, 1, 1, NULL},
                                   {"cwe", COMMON, 120, NOISE, false, false, 10, 1, 1, NULL},
                                   {"fwe", FREQUENT, 50, NOISE, false, false, 3, 1, 1, NULL},
                                   {"qa_1", QUESTION, 32, TEXT, false, false, 0, 0, 0, "squad"},
                                   {"qa_2", QUESTION, 32, TEXT, false, false, 0, 0, 0, "hotpotqa"}};
enum { N_TASKS = sizeof tasks / sizeof *tasks, MOST_KEYS = 10, NAMES = TN_RULER_WORDS * TN_RULER_WORDS };
static const size_t MOST_UNITS = (size_t)1 << 22;

static const char noise[] =
    "The kettle is warm. The road is long. The door is open. On we go. Out and home again.";

const char *tn_ruler_task(size_t i, int32_t *tokens, const char **needs) {
    if (i >= N_TASKS) return NULL;
    *tokens = tasks[i].tokens;
    *needs = tasks[i].needs;
    return tasks[i].name;
}

/* What a text is made of. */
typedef struct maker {
    const ruler_task *t;
    const json_t *shared;
    uint64_t seed;
    size_t most;    /* tokens */
    size_t n_units; /* now */
    size_t last;    /* there are no more units than these */
    tn_rng r;
    uint64_t from, step; /* of names: number i is from + i * step */
} maker;

/* ---- draws --------------------------------------------------------------------------------------- */

static void put_code(tn_rng *r, tn_bytes *out) {
    uint64_t a = tn_rng_u64(r), b = tn_rng_u64(r);
    tn_bytes_addf(out, "%08x-%04x-4%03x-%x%03x-%012llx", (unsigned)(a >> 32), (unsigned)(a >> 16 & 0xffff),
                  (unsigned)(a & 0xfff), (unsigned)(8 + (b >> 60 & 3)), (unsigned)(b >> 48 & 0xfff),
                  (unsigned long long)(b & 0xffffffffffff));
}

/* Name number i of this text; no two are the same. */
static void put_name(const maker *m, size_t i, tn_bytes *out) {
    uint64_t k = (m->from + i % NAMES * m->step) % NAMES;
    if (i >= NAMES) tn_bytes_addf(out, "%s-", tn_ruler_first[i / NAMES % TN_RULER_WORDS]);
    tn_bytes_addf(out, "%s-%s", tn_ruler_first[k / TN_RULER_WORDS], tn_ruler_second[k % TN_RULER_WORDS]);
}

static void put_value(maker *m, tn_bytes *out) {
    if (m->t->codes) put_code(&m->r, out);
    else tn_bytes_addf(out, "%llu", (unsigned long long)(1000000 + tn_rng_below(&m->r, 9000000)));
}

static void put_key(maker *m, size_t i, tn_bytes *out) {
    if (m->t->code_keys) put_code(&m->r, out);
    else put_name(m, i, out);
}

static void begin(maker *m) {
    m->r = (tn_rng){m->seed};
    m->from = tn_rng_below(&m->r, NAMES);
    do m->step = tn_rng_below(&m->r, NAMES);
    while (m->step % 2 == 0 || m->step % 5 == 0); /* prime to NAMES: every name comes once */
}

static void shuffle(tn_rng *r, uint32_t *x, size_t n) {
    for (size_t i = n; i > 1; i--) {
        size_t k = tn_rng_below(r, i);
        uint32_t t = x[i - 1];
        x[i - 1] = x[k];
        x[k] = t;
    }
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void take(json_t **list, const tn_bytes *t) {
    tn_json_append(list, tn_json_string(t->p ? t->p : "", t->n));
}

/* ---- sentences with something among them --------------------------------------------------------- */

/* n things at places that are drawn: place[i] units come before thing i. */
static void places(maker *m, uint64_t *place, size_t n) {
    for (size_t i = 0; i < n; i++) place[i] = tn_rng_below(&m->r, m->n_units + 1);
    qsort(place, n, sizeof *place, ascending);
}

static void put_unit(maker *m, size_t i, tn_bytes *out) {
    const json_t *text = json_object_get(m->shared, "text");
    const char *what = m->t->codes ? "code" : "number";
    if (m->t->hay == NEEDLES) {
        tn_bytes_addf(out, "The secret %s of ", what);
        put_key(m, MOST_KEYS + i, out);
        tn_bytes_addf(out, " is ");
        put_value(m, out);
        tn_bytes_addf(out, ".\n");
    } else if (m->t->hay == TEXT && json_array_size(text)) {
        tn_bytes_addf(out, "%s ", json_string_value(json_array_get(text, i % json_array_size(text))));
    } else {
        tn_bytes_addf(out, "%s\n", noise);
    }
}

/* Units, and among them the lines of things, each of which ends with a newline. */
static void put_hay(maker *m, const char *const *things, size_t n_things, tn_bytes *out) {
    uint64_t place[MOST_KEYS * 4];
    size_t at = 0;
    places(m, place, n_things);
    for (size_t i = 0; i <= m->n_units; i++) {
        for (; at < n_things && place[at] == i; at++) tn_bytes_addf(out, "%s", things[at]);
        if (i < m->n_units) put_unit(m, i, out);
    }
}

/* "a, b and c" */
static void put_list(tn_bytes *out, tn_bytes *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        tn_bytes_addf(out, "%s%s", !i ? "" : i + 1 < n ? ", " : " and ", words[i]->p ? words[i]->p : "");
}

static void needles(maker *m, tn_ruler_text *out) {
    const ruler_task *t = m->t;
    size_t n = (size_t)(t->n_keys * t->n_values);
    tn_bytes key[MOST_KEYS] = {0}, line[MOST_KEYS * 4] = {0}, asked = {0}, hay = {0}, *names[MOST_KEYS];
    const char *lines[MOST_KEYS * 4], *what = t->codes ? "code" : "number";
    uint32_t order[MOST_KEYS * 4];
    for (int k = 0; k < t->n_keys; k++) put_key(m, (size_t)k, names[k] = &key[k]);
    for (size_t i = 0; i < n; i++) {
        tn_bytes value = {0};
        size_t k = i / (size_t)t->n_values;
        put_value(m, &value);
        tn_bytes_addf(&line[i], "The secret %s of %s is %s.\n", what, key[k].p ? key[k].p : "",
                      value.p ? value.p : "");
        if (k < (size_t)t->n_asked) take(&out->answers, &value);
        out->prompt.failed |= value.failed || line[i].failed || key[k].failed;
        order[i] = (uint32_t)i;
        free(value.p);
    }
    shuffle(&m->r, order, n);
    for (size_t i = 0; i < n; i++) lines[i] = line[order[i]].p ? line[order[i]].p : "";
    put_hay(m, lines, n, &hay);
    put_list(&asked, names, (size_t)t->n_asked);
    const char *q = asked.p ? asked.p : "";
    bool one = t->n_asked * t->n_values == 1;
    tn_bytes_addf(
        &out->prompt,
        "The text below tells secret %ss. Read it with care: afterwards you will be asked for %s.\n\n", what,
        one ? "one" : "some");
    tn_bytes_add(&out->prompt, hay.p ? hay.p : "", hay.n);
    if (one) tn_bytes_addf(&out->prompt, "\nWhich secret %s of %s does the text tell?", what, q);
    else tn_bytes_addf(&out->prompt, "\nWhich are all the secret %ss of %s that the text tells?", what, q);
    tn_bytes_addf(&out->begins, "The secret %s%s of %s that the text tells %s", what, one ? "" : "s", q,
                  one ? "is" : "are");
    out->prompt.failed |= hay.failed || asked.failed;
    for (int k = 0; k < t->n_keys; k++) free(key[k].p);
    for (size_t i = 0; i < n; i++) free(line[i].p);
    free(asked.p);
    free(hay.p);
}

/* A chain of variables: the first gets a number, every further one the value of the one before. */
static void track(maker *m, tn_ruler_text *out) {
    size_t n = (size_t)m->t->n_keys;
    char name[MOST_KEYS][6], text[MOST_KEYS][160];
    const char *lines[MOST_KEYS];
    unsigned value = (unsigned)(10000 + tn_rng_below(&m->r, 90000));
    for (size_t i = 0; i < n; i++) {
        for (bool known = true; known;) {
            for (int k = 0; k < 5; k++) name[i][k] = (char)('A' + tn_rng_below(&m->r, 26));
            name[i][5] = 0;
            known = false;
            for (size_t k = 0; k < i; k++) known = known || !strcmp(name[k], name[i]);
        }
        if (i) snprintf(text[i], sizeof text[i], "VAR %s = VAR %s\n", name[i], name[i - 1]);
        else snprintf(text[i], sizeof text[i], "VAR %s = %u\n", name[i], value);
        lines[i] = text[i];
        tn_json_append(&out->answers, tn_json_string(name[i], 5));
    }
    tn_bytes_addf(&out->prompt, "In the text below variables are given values: a number, or the value of "
                                "another variable. Keep track "
                                "of them.\n\n");
    put_hay(m, lines, n, &out->prompt);
    tn_bytes_addf(&out->prompt, "\nQuestion: which variables have the value %u in the text above?", value);
    tn_bytes_addf(&out->begins, "In the text above %zu variables have the value %u. They are:", n, value);
}

/* ---- words that are counted ---------------------------------------------------------------------- */

/* Ten words that come often among others that come seldom; fewer times in short texts. */
static void common(maker *m, tn_ruler_text *out) {
    size_t often = m->most < 4000 ? 6 : 30, seldom = m->most < 4000 ? 1 : 3, n_keys = (size_t)m->t->n_keys,
           n = n_keys * often + m->n_units * seldom;
    uint32_t *word = malloc((n + 1) * sizeof *word);
    tn_bytes one = {0};
    out->prompt.failed |= !word;
    if (!word) return;
    for (size_t i = 0; i < n; i++)
        word[i] = (uint32_t)(i < n_keys * often ? i / often : n_keys + (i - n_keys * often) / seldom);
    shuffle(&m->r, word, n);
    tn_bytes_addf(
        &out->prompt,
        "Below is a numbered list of words. Some of them come more often than the others. Keep in mind those "
        "that come most often.\n\n");
    for (size_t i = 0; i < n; i++) {
        tn_bytes_addf(&out->prompt, "%s%zu. ", i ? " " : "", i + 1);
        put_name(m, word[i], &out->prompt);
    }
    tn_bytes_addf(&out->prompt, "\n\nQuestion: which %zu words come most often in the list above?", n_keys);
    tn_bytes_addf(&out->begins, "The %zu words that come most often in the list are:", n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        one.n = 0;
        put_name(m, i, &one);
        take(&out->answers, &one);
    }
    out->prompt.failed |= one.failed;
    free(one.p);
    free(word);
}

/* Words of six random letters, as often as 1/rank^2; the first rank is dots. The next three are asked for. */
static void frequent(maker *m, tn_ruler_text *out) {
    enum { LETTERS = 6, RANKS = 2000 };
    char word[RANKS][LETTERS + 1];
    size_t cap = m->n_units + RANKS, n = 0;
    uint32_t *list = malloc(cap * sizeof *list);
    out->prompt.failed |= !list;
    if (!list) return;
    const double zeta = 1.6449340668482264; /* pi^2 / 6 */
    for (size_t k = 0; k < RANKS; k++) {
        for (int i = 0; i < LETTERS; i++) word[k][i] = (char)('a' + tn_rng_below(&m->r, 26));
        word[k][LETTERS] = 0;
        size_t times = (size_t)((double)m->n_units / (zeta * (double)(k + 1) * (double)(k + 1)));
        for (size_t i = 0; i < times && n < cap; i++) list[n++] = (uint32_t)k;
    }
    shuffle(&m->r, list, n);
    tn_bytes_addf(&out->prompt, "Below is a text of coded words. Count how often each of them comes.\n\n");
    for (size_t i = 0; i < n; i++)
        tn_bytes_addf(&out->prompt, "%s%s", i ? " " : "", list[i] ? word[list[i]] : "....");
    tn_bytes_addf(&out->prompt, "\n\nQuestion: the dots do not count. Which three coded words come most "
                                "often in the text above? Give "
                                "only the words.");
    tn_bytes_addf(&out->begins, "The three coded words that come most often are:");
    for (int k = 1; k <= m->t->n_keys; k++) tn_json_append(&out->answers, tn_json_string(word[k], LETTERS));
    free(list);
}

/* ---- questions ----------------------------------------------------------------------------------- */

/* Documents with the answer among others, which are drawn. */
static void question(maker *m, tn_ruler_text *out) {
    const json_t *set = json_object_get(m->shared, m->t->needs), *docs = json_object_get(set, "docs"),
                 *qas = json_object_get(set, "qas"),
                 *qa = json_array_get(qas, tn_rng_below(&m->r, json_array_size(qas))),
                 *gold = json_object_get(qa, "gold"), *g;
    size_t n_docs = json_array_size(docs), n = 0, i;
    uint32_t *order = malloc((n_docs + 1) * sizeof *order);
    uint8_t *in = calloc(n_docs + 1, 1);
    if (order && in) {
        json_array_foreach(gold, i, g) {
            in[json_integer_value(g)] = 1;
            order[n++] = (uint32_t)json_integer_value(g);
        }
        size_t n_gold = n;
        for (i = 0; i < n_docs; i++)
            if (!in[i]) order[n++] = (uint32_t)i;
        m->last = n - n_gold;
        shuffle(&m->r, order + n_gold, n - n_gold);
        n = m->n_units < m->last ? n_gold + m->n_units : n;
        shuffle(&m->r, order, n);
        const char *rule =
            "Answer the question from the documents. Give only the answer, and no other words.";
        tn_bytes_addf(&out->prompt, "%s\n\nThe documents:\n\n", rule);
        for (i = 0; i < n; i++)
            tn_bytes_addf(&out->prompt, "Document %zu:\n%s\n\n", i + 1,
                          json_string_value(json_array_get(docs, order[i])));
        tn_bytes_addf(&out->prompt, "%s\n\nQuestion: %s", rule,
                      json_string_value(json_object_get(qa, "question")));
        tn_bytes_addf(&out->begins, "Answer:");
        json_decref(out->answers);
        out->answers = tn_json_copy(json_object_get(qa, "answers"));
        out->any = true;
    } else {
        out->prompt.failed = true;
    }
    free(order);
    free(in);
}

/* ---- as long as fits ----------------------------------------------------------------------------- */

void tn_ruler_free(tn_ruler_text *t) {
    free(t->prompt.p);
    free(t->begins.p);
    json_decref(t->answers);
    *t = (tn_ruler_text){0};
}

static tern_status make(maker *m, size_t n_units, tn_ruler_text *out, tern_error *err) {
    static void (*const makers[])(maker *, tn_ruler_text *) = {
        [NEEDLE] = needles, [TRACK] = track, [COMMON] = common, [FREQUENT] = frequent, [QUESTION] = question};
    tn_ruler_free(out);
    out->answers = json_array();
    m->n_units = n_units;
    begin(m);
    makers[m->t->kind](m, out);
    TN_FAIL_IF(out->prompt.failed || out->begins.failed || !out->answers, err, TERN_E_MEMORY,
               "no memory for a text of %s", m->t->name);
    return TERN_OK;
}

tern_status tn_ruler_make(const char *task, uint64_t seed, size_t most, const json_t *shared,
                          tn_ruler_count count, void *user, tn_ruler_text *out, tern_error *err) {
    const ruler_task *t = NULL;
    for (size_t i = 0; i < N_TASKS; i++)
        if (!strcmp(tasks[i].name, task)) t = &tasks[i];
    *out = (tn_ruler_text){0};
    TN_FAIL_IF(!t, err, TERN_E_INVALID, "ruler has no task %s", task);
    maker m = {.t = t, .shared = shared, .seed = seed, .most = most, .last = MOST_UNITS};
    /* words that are counted must come often enough to be told apart: 4 and 3 times for the last two of fwe */
    size_t least = t->kind == FREQUENT ? 110 : t->kind == QUESTION ? 0 : 1, good = least, bad = 0, n_tokens;
    TN_TRY(make(&m, least, out, err));
    TN_TRY(count(user, out, &n_tokens, err));
    TN_FAIL_IF(n_tokens > most, err, TERN_E_LIMIT,
               "the shortest text of %s has %zu tokens and there is room for %zu", task, n_tokens, most);
    while (!bad || bad - good > 1) {
        size_t n = bad ? good + (bad - good) / 2 : good < 32 ? 64 : 2 * good;
        if (n > m.last) n = m.last;
        if (n == good) break; /* all there is */
        TN_TRY(make(&m, n, out, err));
        TN_TRY(count(user, out, &n_tokens, err));
        if (n_tokens > most) bad = n;
        else good = n;
    }
    return make(&m, good, out, err);
}

bool tn_ruler_score(const json_t *answers, bool any, const char *answer, double *score) {
    tn_bytes has = {0}, want = {0};
    const json_t *v;
    size_t i, n = json_array_size(answers), found = 0;
    tn_suite_lower(&has, answer, strlen(answer));
    json_array_foreach(answers, i, v) {
        want.n = 0;
        tn_suite_lower(&want, json_string_value(v), json_string_length(v));
        found += has.p && want.p && strstr(has.p, want.p);
    }
    bool ok = !has.failed && !want.failed;
    free(has.p);
    free(want.p);
    *score = any ? found > 0 : n ? (double)found / (double)n : 0;
    return ok;
}
