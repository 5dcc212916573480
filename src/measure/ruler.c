/* measure/ruler.c - RULER: what is hidden in long texts, of lengths that are given.
 *
 * A length counts the tokens of the prompt, the chat template's with them, and the room for the answer. The answer is begun as
 * RULER does it; its score is the share of the hidden texts that it has, and of questions whether it has one of the answers.
 *
 * Data is not needed. A folder may hold what is hidden in and asked about: text.txt or PaulGrahamEssays.json ({"text"}),
 * squad.json (SQuAD 2.0), hotpotqa.json (HotpotQA, distractors). */
#include "base/status.h"
#include "measure/suite_impl.h"

#include <stdlib.h>
#include <string.h>

enum { GENERATOR = 1 }; /* another number: other texts for a seed */

/* ---- data ---------------------------------------------------------------------------------------- */

/* The place of a text in a list, which each text is in once; SIZE_MAX: no memory. */
static size_t place_of(json_t **list, json_t **by_text, const char *text) {
    const json_t *known = json_object_get(*by_text, text);
    size_t i = known ? (size_t)json_integer_value(known) : json_array_size(*list);
    if (known) return i;
    tn_json_append(list, tn_json_string(text, strlen(text)));
    tn_json_set(by_text, text, json_integer((json_int_t)i));
    return *list && *by_text ? i : SIZE_MAX;
}

typedef struct questions {
    json_t *docs, *by_text, *qas;
} questions;

static void add_question(questions *q, const json_t *question, json_t *answers, json_t *gold) {
    json_t *one = tn_json_pack("{s:O}", "question", question);
    tn_json_set(&one, "answers", answers);
    tn_json_set(&one, "gold", gold);
    tn_json_append(&q->qas, one);
}

static tern_status end_questions(questions *q, tern_status st, const char *name, json_t **out,
                                 tern_error *err) {
    if (st == TERN_OK && q->docs && q->qas && q->by_text && !json_array_size(q->qas))
        st = tn_fail(err, TERN_E_FORMAT, "%s has no question with an answer", name);
    if (st == TERN_OK) *out = tn_json_pack("{s:O, s:O}", "docs", q->docs, "qas", q->qas);
    if (st == TERN_OK && !*out) st = tn_fail(err, TERN_E_MEMORY, "no memory for %s", name);
    json_decref(q->docs);
    json_decref(q->by_text);
    json_decref(q->qas);
    return st;
}

/* The texts of a question's answers; an empty list: it has none. NULL: no memory. *ok: they are such. */
static json_t *squad_answers(const json_t *qa, bool *ok) {
    const json_t *list = json_object_get(qa, "answers"), *a;
    json_t *texts = json_array();
    size_t i;
    *ok = json_is_array(list) && json_string_length(json_object_get(qa, "question"));
    json_array_foreach(list, i, a) {
        const json_t *t = json_object_get(a, "text");
        *ok = *ok && json_string_length(t);
        if (*ok) tn_json_append(&texts, json_incref((json_t *)t));
    }
    return texts;
}

tern_status tn_ruler_squad(const json_t *v, const char *name, json_t **out, tern_error *err) {
    questions q = {json_array(), json_object(), json_array()};
    const json_t *article, *paragraph, *qa;
    size_t i, k, l;
    tern_status st = TERN_OK;
    *out = NULL;
    if (!json_is_array(json_object_get(v, "data")))
        st = tn_fail(err, TERN_E_FORMAT, "%s: no list 'data', as SQuAD has it", name);
    json_array_foreach(json_object_get(v, "data"), i, article)
        json_array_foreach(json_object_get(article, "paragraphs"), k, paragraph) {
        const char *context = json_string_value(json_object_get(paragraph, "context"));
        if (st == TERN_OK && !context)
            st = tn_fail(err, TERN_E_FORMAT, "%s: paragraph %zu of article %zu has no context", name, k + 1,
                         i + 1);
        size_t doc = st == TERN_OK ? place_of(&q.docs, &q.by_text, context) : 0;
        json_array_foreach(json_object_get(paragraph, "qas"), l, qa) {
            bool ok;
            json_t *texts = squad_answers(qa, &ok), *gold = json_array();
            tn_json_append(&gold, json_integer((json_int_t)doc));
            if (st == TERN_OK && !ok)
                st = tn_fail(err, TERN_E_FORMAT,
                             "%s: question %zu of paragraph %zu of article %zu has no text or no answers",
                             name, l + 1, k + 1, i + 1);
            if (st == TERN_OK && (json_array_size(texts) || !texts))
                add_question(&q, json_object_get(qa, "question"), json_incref(texts), json_incref(gold));
            json_decref(texts);
            json_decref(gold);
        }
    }
    return end_questions(&q, st, name, out, err);
}

/* A title and its sentences, as one document. false: it is none. */
static bool hotpot_doc(const json_t *pair, tn_bytes *t) {
    const json_t *title = json_array_get(pair, 0), *sentences = json_array_get(pair, 1), *s;
    size_t i;
    t->n = 0;
    if (!json_is_string(title) || !json_is_array(sentences)) return false;
    tn_bytes_addf(t, "%s\n", json_string_value(title));
    json_array_foreach(sentences, i, s) {
        if (!json_is_string(s)) return false;
        tn_bytes_add(t, json_string_value(s), json_string_length(s));
    }
    return true;
}

tern_status tn_ruler_hotpotqa(const json_t *v, const char *name, json_t **out, tern_error *err) {
    questions q = {json_array(), json_object(), json_array()};
    tn_bytes t = {0};
    const json_t *qa, *pair;
    size_t i, k;
    tern_status st = TERN_OK;
    *out = NULL;
    if (!json_is_array(v)) st = tn_fail(err, TERN_E_FORMAT, "%s: not a list, as HotpotQA has it", name);
    json_array_foreach(v, i, qa) {
        const json_t *text = json_object_get(qa, "question"), *answer = json_object_get(qa, "answer"),
                     *context = json_object_get(qa, "context");
        json_t *answers = json_array(), *gold = json_array();
        if (st == TERN_OK &&
            (!json_string_length(text) || !json_string_length(answer) || !json_is_array(context)))
            st = tn_fail(err, TERN_E_FORMAT,
                         "%s: element %zu needs a question, an answer and a list 'context'", name, i + 1);
        json_array_foreach(context, k, pair) {
            if (st == TERN_OK && !hotpot_doc(pair, &t))
                st = tn_fail(err, TERN_E_FORMAT, "%s: document %zu of element %zu is no title with sentences",
                             name, k + 1, i + 1);
            if (st != TERN_OK || t.failed) break;
            tn_json_append(&gold, json_integer((json_int_t)place_of(&q.docs, &q.by_text, t.p)));
        }
        if (st == TERN_OK) tn_json_append(&answers, json_incref((json_t *)answer));
        if (st == TERN_OK) add_question(&q, text, json_incref(answers), json_incref(gold));
        json_decref(answers);
        json_decref(gold);
    }
    if (st == TERN_OK && t.failed) st = tn_fail(err, TERN_E_MEMORY, "no memory for %s", name);
    free(t.p);
    return end_questions(&q, st, name, out, err);
}

/* Sentences: each ends after a full stop, a question or an exclamation mark before white space, or at the end of its paragraph. */
static json_t *sentences(const char *text, size_t n) {
    json_t *list = json_array();
    for (size_t at = 0; at < n && list;) {
        while (at < n && strchr(" \t\r\n", text[at]) && text[at]) at++;
        size_t from = at;
        for (; at < n && text[at] != '\n'; at++)
            if (strchr(".?!", text[at]) && text[at] && at + 1 < n &&
                (text[at + 1] == ' ' || text[at + 1] == '\n'))
                break;
        if (at < n && text[at] != '\n') at++;
        if (at > from) tn_json_append(&list, tn_json_string(text + from, at - from));
    }
    return list;
}

/* Reads a file of the folder, where it is there. *text: NULL if not. */
static tern_status read_if(tn_suite *u, const char *name, char **path, char **text, size_t *n,
                           tern_error *err) {
    *text = NULL;
    *path = tn_suite_path(u->o->data, name);
    TN_FAIL_IF(!*path, err, TERN_E_MEMORY, "no memory for a path");
    struct stat sb;
    return stat(*path, &sb) ? TERN_OK : tn_suite_slurp(u, *path, text, n, err);
}

static tern_status parse(const char *path, const char *text, size_t n, json_t **v, tern_error *err) {
    json_error_t je;
    *v = tn_json_parse(text, n, JSON_REJECT_DUPLICATES, &je);
    TN_FAIL_IF(!*v, err, json_error_code(&je) == json_error_out_of_memory ? TERN_E_MEMORY : TERN_E_FORMAT,
               "%s: not JSON: %s", path, je.text);
    return TERN_OK;
}

static tern_status read_text(tn_suite *u, const char *name, bool json, tern_error *err) {
    char *path = NULL, *text = NULL;
    size_t n = 0;
    json_t *v = NULL;
    tern_status st = read_if(u, name, &path, &text, &n, err);
    const char *p = text;
    if (st == TERN_OK && text && json) {
        st = parse(path, text, n, &v, err);
        p = json_string_value(json_object_get(v, "text"));
        n = json_string_length(json_object_get(v, "text"));
        if (st == TERN_OK && !p) st = tn_fail(err, TERN_E_FORMAT, "%s has no 'text'", path);
    }
    if (st == TERN_OK && text) {
        json_t *list = sentences(p, n);
        if (list && !json_array_size(list)) st = tn_fail(err, TERN_E_FORMAT, "%s has no sentence", path);
        if (st == TERN_OK) tn_json_set(&u->shared, "text", json_incref(list));
        json_decref(list);
    }
    json_decref(v);
    free(path);
    free(text);
    return st;
}

static tern_status read_questions(tn_suite *u, const char *name, const char *key,
                                  tern_status (*take)(const json_t *v, const char *name, json_t **out,
                                                      tern_error *err),
                                  tern_error *err) {
    char *path = NULL, *text = NULL;
    size_t n = 0;
    json_t *v = NULL, *set = NULL;
    tern_status st = read_if(u, name, &path, &text, &n, err);
    if (st == TERN_OK && text) st = parse(path, text, n, &v, err);
    if (st == TERN_OK && text) st = take(v, path, &set, err);
    if (set) tn_json_set(&u->shared, key, set);
    json_decref(v);
    free(path);
    free(text);
    return st;
}

static tern_status read_folder(tn_suite *u, tern_error *err) {
    TN_FAIL_IF(!tn_suite_is_folder(u->o->data), err, TERN_E_INVALID,
               "%s is no folder: ruler's data are text.txt or PaulGrahamEssays.json, squad.json and "
               "hotpotqa.json in one",
               u->o->data);
    TN_TRY(read_text(u, "PaulGrahamEssays.json", true, err));
    TN_TRY(read_text(u, "text.txt", false, err));
    TN_TRY(read_questions(u, "squad.json", "squad", tn_ruler_squad, err));
    TN_TRY(read_questions(u, "hotpotqa.json", "hotpotqa", tn_ruler_hotpotqa, err));
    TN_FAIL_IF(u->shared && !json_object_size(u->shared), err, TERN_E_INVALID,
               "%s has none of text.txt, PaulGrahamEssays.json, squad.json and hotpotqa.json", u->o->data);
    return TERN_OK;
}

/* ---- items --------------------------------------------------------------------------------------- */

static void add_items(tn_suite *u, int32_t length, const char *task) {
    for (int32_t k = 0; k < u->o->n_samples; k++) {
        char id[80], both[60];
        snprintf(both, sizeof both, "%d/%s", (int)length, task);
        int n = snprintf(id, sizeof id, "%s/%d", both, (int)k);
        json_t *one = tn_json_pack("{s:s, s:i}", "task", task, "length", (int)length), *groups = json_array();
        tn_json_append(&groups, tn_json_string(both, strcspn(both, "/")));
        tn_json_append(&groups, tn_json_string(both, strlen(both)));
        tn_json_set(&one, "id", tn_json_string(id, (size_t)n));
        tn_json_set(&one, "groups", groups);
        tn_json_append(&u->items, one);
    }
}

static tern_status open_ruler(tn_suite *u, tern_error *err) {
    const tn_suite_options *o = u->o;
    const char *task, *needs;
    int32_t tokens, usual = u->e->model->h.ctx_train < 4096 ? u->e->model->h.ctx_train : 4096;
    size_t n_lengths = o->n_lengths ? o->n_lengths : 1;
    u->items = json_array();
    u->shared = json_object();
    if (o->data) TN_TRY(read_folder(u, err));
    for (size_t l = 0; l < n_lengths; l++) {
        int32_t length = o->n_lengths ? o->lengths[l] : usual;
        for (size_t k = 0; k < l; k++)
            TN_FAIL_IF(o->lengths[k] == length, err, TERN_E_INVALID, "length %d is named twice", (int)length);
        TN_FAIL_IF(o->n_ctx && length > o->n_ctx, err, TERN_E_INVALID,
                   "a text of %d tokens does not fit the context of %d", (int)length, (int)o->n_ctx);
        if (length > u->n_ctx) u->n_ctx = length;
        for (size_t i = 0; (task = tn_ruler_task(i, &tokens, &needs)); i++) {
            if (!needs || json_object_get(u->shared, needs)) add_items(u, length, task);
            else if (!l)
                tn_suite_notice(u, "%s is left out: it needs %s in the folder of --data", task,
                                !strcmp(needs, "text")    ? "text.txt or PaulGrahamEssays.json"
                                : !strcmp(needs, "squad") ? "squad.json"
                                                          : "hotpotqa.json");
        }
    }
    char seed[24];
    int n = snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    if (o->max_tokens) tn_json_set(&u->asked, "max_tokens", json_integer(o->max_tokens));
    tn_json_set(&u->asked, "generator", json_integer(GENERATOR));
    tn_json_set(&u->asked, "seed", tn_json_string(seed, (size_t)n));
    return TERN_OK;
}

/* ---- asking -------------------------------------------------------------------------------------- */

typedef struct counter {
    const tn_suite *u;
    tn_suite_prompt p;
} counter;

/* Through the chat template, where the model has one; else one text. */
static tern_status prompt_of(const tn_suite *u, const tn_ruler_text *t, tn_suite_prompt *p, tern_error *err) {
    if (!tern_has_chat_template(u->e)) {
        tn_bytes all = {0};
        tn_bytes_addf(&all, "%s\n%s", t->prompt.p, t->begins.p);
        tern_status st = all.failed ? tn_fail(err, TERN_E_MEMORY, "no memory for a prompt")
                                    : tn_suite_tokens(u, all.p, all.n, true, p, err);
        free(all.p);
        return st;
    }
    json_t *messages = json_array();
    tn_json_append(&messages, tn_json_pack("{s:s, s:s}", "role", "user", "content", t->prompt.p));
    tern_status st = messages ? tn_suite_chat(u, messages, NULL, t->begins.p, p, err)
                              : tn_fail(err, TERN_E_MEMORY, "no memory for a prompt");
    json_decref(messages);
    return st;
}

static tern_status count(void *user, const tn_ruler_text *t, size_t *n_tokens, tern_error *err) {
    counter *c = user;
    TN_TRY(prompt_of(c->u, t, &c->p, err));
    *n_tokens = c->p.n;
    return TERN_OK;
}

static tern_status answer(tn_suite *u, const tn_ruler_text *t, const tn_suite_prompt *p, int32_t tokens,
                          json_t **record, tern_error *err) {
    tn_suite_answer a = {0};
    double score = 0;
    tern_status st = tn_suite_generate(u, p, NULL, tokens, &a, err);
    if (st == TERN_OK && !tn_ruler_score(t->answers, t->any, a.text.p, &score))
        st = tn_fail(err, TERN_E_MEMORY, "no memory for an answer");
    a.cut = false; /* answers have a length of their own */
    if (st == TERN_OK) {
        tn_json_set(record, "score", tn_json_real(score));
        tn_json_set(record, "want", json_incref(t->answers));
        tn_json_set(record, "prompt_tokens", json_integer((json_int_t)p->n));
        tn_suite_tell(record, &a);
    }
    tn_suite_answer_free(&a);
    return st;
}

static tern_status ask_ruler(tn_suite *u, const json_t *item, json_t **record, tern_error *err) {
    const char *task = json_string_value(json_object_get(item, "task")), *name, *needs;
    int32_t length = (int32_t)json_integer_value(json_object_get(item, "length")), tokens = 0;
    for (size_t i = 0; (name = tn_ruler_task(i, &tokens, &needs)) && strcmp(name, task); i++) continue;
    if (u->o->max_tokens) tokens = u->o->max_tokens;
    TN_FAIL_IF(tokens >= length, err, TERN_E_INVALID,
               "length %d has no room for a prompt and %d tokens of an answer", (int)length, (int)tokens);
    counter c = {.u = u};
    tn_ruler_text t;
    tern_status st =
        tn_ruler_make(task, tn_suite_number(u->o->seed, json_string_value(json_object_get(item, "id"))),
                      (size_t)(length - tokens), u->shared, count, &c, &t, err);
    if (st == TERN_E_LIMIT) {
        tn_suite_skip(record, "%s", err->message);
        st = TERN_OK;
    } else if (st == TERN_OK) {
        st = prompt_of(u, &t, &c.p, err);
        if (st == TERN_OK) st = answer(u, &t, &c.p, tokens, record, err);
    }
    tn_ruler_free(&t);
    free(c.p.ids);
    return st;
}

const tn_suite_task tn_suite_ruler = {"ruler", 0, false, open_ruler, ask_ruler, false, false};
