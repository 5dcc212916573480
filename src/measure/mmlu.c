/* measure/mmlu.c - MMLU: questions with four answers, by subject.
 *
 * The prompt is the published one: a line that names the subject, examples of the dev file with their letters, the question, its
 * choices and "Answer:". The likeliest of " A" to " D" is the answer. Where the prompt does not fit the context, examples are
 * left out from the last on, as the authors do it. */
#include "base/status.h"
#include "measure/suite_impl.h"
#include "model/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICES = 4, FIELDS = CHOICES + 2 };

tern_status tn_mmlu_items(const json_t *rows, const char *subject, const char *name, json_t **items,
                          tern_error *err) {
    json_t *list = json_array(), *row;
    tern_status st = TERN_OK;
    size_t i;
    *items = NULL;
    json_array_foreach(rows, i, row) {
        const char *gold = json_string_value(json_array_get(row, FIELDS - 1));
        if (json_array_size(row) != FIELDS)
            st = tn_fail(err, TERN_E_FORMAT,
                         "%s row %zu has %zu fields: a question, four choices and a letter are wanted", name,
                         i + 1, json_array_size(row));
        else if (strlen(gold) != 1 || gold[0] < 'A' || gold[0] >= 'A' + CHOICES)
            st = tn_fail(err, TERN_E_FORMAT, "%s row %zu: the answer is '%.20s', not a letter from A to D",
                         name, i + 1, gold);
        if (st != TERN_OK) break;
        char id[300];
        int n = snprintf(id, sizeof id, "%s/%zu", subject, i + 1);
        json_t *one = json_object(), *groups = json_array();
        tn_json_append(&groups, tn_json_string(subject, strlen(subject)));
        tn_json_set(&one, "id", tn_json_string(id, (size_t)n));
        tn_json_set(&one, "groups", groups);
        tn_json_set(&one, "row", json_incref(row));
        tn_json_append(&list, one);
    }
    if (st == TERN_OK && !list) st = tn_fail(err, TERN_E_MEMORY, "no memory for %s", name);
    if (st == TERN_OK) *items = list;
    else json_decref(list);
    return st;
}

/* ---- data ---------------------------------------------------------------------------------------- */

static tern_status read_rows(tn_suite *u, const char *part, const char *subject, json_t **items,
                             tern_error *err) {
    char *path = NULL, *text = NULL;
    size_t n = 0;
    json_t *rows = NULL;
    *items = NULL;
    TN_FAIL_IF(asprintf(&path, "%s/%s/%s_%s.csv", u->o->data, part, subject, part) < 0, err, TERN_E_MEMORY,
               "no memory for a path");
    tern_status st = tn_suite_slurp(u, path, &text, &n, err);
    if (st == TERN_OK) st = tn_suite_csv(text, n, path, &rows, err);
    if (st == TERN_OK) st = tn_mmlu_items(rows, subject, path, items, err);
    json_decref(rows);
    free(text);
    free(path);
    return st;
}

static tern_status open_subject(tn_suite *u, const char *subject, tern_error *err) {
    json_t *items = NULL, *shots = NULL, *item;
    size_t i;
    TN_FAIL_IF(strlen(subject) > 200, err, TERN_E_FORMAT, "%s: the name of subject %.40s... is too long",
               u->o->data, subject);
    tn_sum_add(&u->sum, subject, strlen(subject) + 1);
    TN_TRY(read_rows(u, "test", subject, &items, err));
    tern_status st = u->o->n_shots ? read_rows(u, "dev", subject, &shots, err) : TERN_OK;
    if (st == TERN_OK && shots && json_array_size(shots) < (size_t)u->o->n_shots)
        st = tn_fail(err, TERN_E_FORMAT, "%s/dev/%s_dev.csv has %zu examples, and --shots %d are asked for",
                     u->o->data, subject, json_array_size(shots), (int)u->o->n_shots);
    json_array_foreach(items, i, item) if (st == TERN_OK) tn_json_append(&u->items, json_incref(item));
    if (shots) tn_json_set(&u->shared, subject, json_incref(shots));
    json_decref(items);
    json_decref(shots);
    if (st == TERN_OK && (!u->items || !u->shared))
        st = tn_fail(err, TERN_E_MEMORY, "no memory for the items");
    return st;
}

static tern_status open_mmlu(tn_suite *u, tern_error *err) {
    json_t *subjects = NULL, *name;
    size_t i;
    char *test = tn_suite_path(u->o->data, "test");
    TN_FAIL_IF(!test, err, TERN_E_MEMORY, "no memory for a path");
    u->items = json_array();
    u->shared = json_object();
    tn_json_set(&u->asked, "shots", json_integer(u->o->n_shots));
    tern_status st = tn_suite_names(test, "_test.csv", &subjects, err);
    if (st == TERN_OK && !json_array_size(subjects))
        st = tn_fail(err, TERN_E_FORMAT, "%s has no SUBJECT_test.csv", test);
    json_array_foreach(subjects, i, name) if (st == TERN_OK) st =
        open_subject(u, json_string_value(name), err);
    json_decref(subjects);
    free(test);
    return st;
}

/* ---- asking -------------------------------------------------------------------------------------- */

static void add_question(tn_bytes *t, const json_t *item, bool answered) {
    const json_t *row = json_object_get(item, "row");
    tn_bytes_addf(t, "%s", json_string_value(json_array_get(row, 0)));
    for (size_t k = 0; k < CHOICES; k++)
        tn_bytes_addf(t, "\n%c. %s", (int)('A' + k), json_string_value(json_array_get(row, 1 + k)));
    tn_bytes_addf(t, "\nAnswer:");
    if (answered) tn_bytes_addf(t, " %s\n\n", json_string_value(json_array_get(row, FIELDS - 1)));
}

static tern_status prompt_of(const tn_suite *u, const json_t *item, int32_t n_shots, tn_bytes *t,
                             tern_error *err) {
    const char *subject = json_string_value(json_array_get(json_object_get(item, "groups"), 0));
    const json_t *shots = json_object_get(u->shared, subject);
    t->n = 0;
    tn_bytes_addf(t, "The following are multiple choice questions (with answers) about ");
    for (const char *p = subject; *p; p++) tn_bytes_add(t, *p == '_' ? " " : p, 1);
    tn_bytes_addf(t, ".\n\n");
    for (int32_t k = 0; k < n_shots; k++) add_question(t, json_array_get(shots, (size_t)k), true);
    add_question(t, item, false);
    TN_FAIL_IF(t->failed, err, TERN_E_MEMORY, "no memory for a prompt");
    return TERN_OK;
}

/* The tokens of the prompt with each letter; base: how many all of them and the prompt begin with. */
static tern_status letters(const tn_suite *u, tn_bytes *t, tn_suite_prompt p[CHOICES], size_t *base,
                           size_t *most, tern_error *err) {
    tn_suite_prompt bare = {0};
    size_t n = t->n;
    tern_status st = tn_suite_tokens(u, t->p, n, true, &bare, err);
    *base = bare.n;
    *most = 0;
    for (size_t k = 0; k < CHOICES && st == TERN_OK; k++) {
        tn_bytes_addf(t, " %c", (int)('A' + k));
        if (t->failed) st = tn_fail(err, TERN_E_MEMORY, "no memory for a prompt");
        else st = tn_suite_tokens(u, t->p, t->n, true, &p[k], err);
        t->p[t->n = n] = 0;
        size_t same = 0;
        while (st == TERN_OK && same < *base && same < p[k].n && bare.ids[same] == p[k].ids[same]) same++;
        *base = same < *base ? same : *base;
        *most = p[k].n > *most ? p[k].n : *most;
    }
    free(bare.ids);
    return st;
}

/* The log-probability of each letter's tokens after what all begin with. */
static tern_status weigh(tn_suite *u, const tn_suite_prompt p[CHOICES], size_t base, double logprob[CHOICES],
                         tern_error *err) {
    const size_t n_vocab = (size_t)u->e->model->h.n_vocab;
    TN_TRY(tn_suite_prefill(u, p[0].ids, base, err));
    for (size_t k = 0; k < CHOICES; k++)
        logprob[k] = (double)tn_logprob(tern_session_logits(u->s), n_vocab, p[k].ids[base]);
    for (size_t k = 0; k < CHOICES; k++) { /* a letter of several tokens */
        if (p[k].n == base + 1) continue;
        TN_TRY(tern_session_prefill(u->s, p[k].ids, base, err));
        for (size_t i = base + 1; i < p[k].n; i++) {
            TN_TRY(tern_session_step(u->s, p[k].ids[i - 1], err));
            logprob[k] += (double)tn_logprob(tern_session_logits(u->s), n_vocab, p[k].ids[i]);
        }
    }
    return TERN_OK;
}

static void judge(json_t **record, const json_t *item, const double logprob[CHOICES], int32_t n_shots,
                  int32_t asked) {
    const char *gold = json_string_value(json_array_get(json_object_get(item, "row"), FIELDS - 1));
    size_t best = 0;
    json_t *list = json_array();
    for (size_t k = 0; k < CHOICES; k++) {
        if (logprob[k] > logprob[best]) best = k;
        tn_json_append(&list, tn_json_real(logprob[k]));
    }
    const char letter[2] = {(char)('A' + best), 0};
    tn_json_set(record, "score", json_integer(letter[0] == gold[0]));
    tn_json_set(record, "answer", tn_json_string(letter, 1));
    tn_json_set(record, "want", tn_json_string(gold, 1));
    tn_json_set(record, "logprobs", list);
    if (n_shots < asked) tn_json_set(record, "shots", json_integer(n_shots));
}

static tern_status ask_mmlu(tn_suite *u, const json_t *item, json_t **record, tern_error *err) {
    tn_suite_prompt p[CHOICES] = {0};
    tn_bytes t = {0};
    double logprob[CHOICES];
    size_t base = 0, most = 0;
    int32_t n_shots = u->o->n_shots;
    tern_status st;
    for (;; n_shots--) {
        st = prompt_of(u, item, n_shots, &t, err);
        if (st == TERN_OK) st = letters(u, &t, p, &base, &most, err);
        if (st != TERN_OK || most <= (size_t)tern_session_capacity(u->s) || !n_shots) break;
    }
    bool fits = st == TERN_OK && most <= (size_t)tern_session_capacity(u->s);
    for (size_t k = 0; k < CHOICES && fits; k++)
        if (!base || p[k].n <= base)
            st = tn_fail(err, TERN_E_UNSUPPORTED, "the tokenizer joins a prompt and its answer");
    if (fits && st == TERN_OK) st = weigh(u, p, base, logprob, err);
    if (fits && st == TERN_OK) judge(record, item, logprob, n_shots, u->o->n_shots);
    if (!fits && st == TERN_OK) tn_suite_skip_long(record, u, most, 0);
    for (size_t k = 0; k < CHOICES; k++) free(p[k].ids);
    free(t.p);
    return st;
}

const tn_suite_task tn_suite_mmlu = {"mmlu", 0, true, open_mmlu, ask_mmlu, false, false};
