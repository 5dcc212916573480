#include "base/json.h"
#include "measure/eval_text.h"

#include "base/status.h"
#include "session/session.h"
#include "model/sampler.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* This is what one pass over prompt + answer tokens tells of the answer. */
typedef struct answer_score {
    const int32_t *ids;
    size_t first; /* index of the answer's first token */
    size_t n;     /* of prompt and answer */
    size_t n_vocab;
    const tern_engine *e;
    double logprob;
    bool greedy;    /* every answer token is the argmax */
    bool then_ends; /* and after the answer comes an end token */
} answer_score;

static bool on_logits(void *user, size_t i, const float *logits) {
    answer_score *a = user;
    int32_t best = tn_argmax(logits, a->n_vocab);
    if (i + 1 < a->n) {
        a->logprob += (double)tn_logprob(logits, a->n_vocab, a->ids[i + 1]);
        a->greedy = a->greedy && best == a->ids[i + 1];
    } else {
        a->then_ends = tern_token_is_end(a->e, best);
    }
    return true;
}

typedef struct evaluator {
    tern_engine *e;
    tern_session *s;
    int32_t *ids;
    size_t cap_ids;
    const tn_eval_options *o;
    tn_eval_result res;
    double sum_logprob;
    int64_t n_answer_tokens, n_right, n_by_sum;
    tern_error *err;
} evaluator;

/* Puts the ids of text into ev->ids at `at`. Returns SIZE_MAX when they do not fit the context. */
static tern_status tokens_of(evaluator *ev, const char *text, size_t n_bytes, bool add_special,
                             size_t *n_ids) {
    tern_status st =
        tern_tokenize(ev->e, text, n_bytes, add_special, true, ev->ids, ev->cap_ids, n_ids, ev->err);
    if (st == TERN_E_LIMIT) {
        *n_ids = SIZE_MAX;
        return TERN_OK;
    }
    return st;
}

/* Scores `answer` after `prompt`. *fits is false when the item is longer than the context. */
static tern_status score(evaluator *ev, const char *prompt, const char *answer, answer_score *a, bool *fits) {
    size_t n_prompt = strlen(prompt), n_answer = strlen(answer), n_before, n_all;
    *fits = false;
    char *all = malloc(n_prompt + n_answer + 1);
    TN_FAIL_IF(!all, ev->err, TERN_E_MEMORY, "no memory for an item of %zu bytes", n_prompt + n_answer);
    memcpy(all, prompt, n_prompt);
    memcpy(all + n_prompt, answer, n_answer + 1);
    tern_status st = tokens_of(ev, all, n_prompt, true, &n_before);
    int32_t *before = NULL;
    if (st == TERN_OK && n_before != SIZE_MAX) {
        before = malloc((n_before + 1) * sizeof *before);
        if (before) memcpy(before, ev->ids, n_before * sizeof *before);
        st = before ? tokens_of(ev, all, n_prompt + n_answer, true, &n_all)
                    : tn_fail(ev->err, TERN_E_MEMORY, "no memory for an item");
    }
    free(all);
    if (st != TERN_OK || n_before == SIZE_MAX || n_all == SIZE_MAX) {
        free(before);
        return st;
    }
    size_t same = 0; /* a token that straddles the border belongs to the answer */
    while (same < n_before && same < n_all && before[same] == ev->ids[same]) same++;
    free(before);
    if (same == n_all || same == 0 || n_all > (size_t)tern_session_capacity(ev->s)) return TERN_OK;
    *a = (answer_score){.ids = ev->ids,
                        .first = same,
                        .n = n_all,
                        .n_vocab = (size_t)ev->e->model->h.n_vocab,
                        .e = ev->e,
                        .greedy = true};
    *fits = true;
    if (!ev->e->npu || !ev->e->attention.decode)
        return tern_session_score(ev->s, ev->ids, n_all, same - 1, on_logits, a, ev->err);
    /* decoding attends in its own way: the answer token by token */
    tn_session_truncate(ev->s, 0);
    st = tern_session_prefill(ev->s, ev->ids, same, ev->err);
    for (size_t i = same; st == TERN_OK && on_logits(a, i - 1, tern_session_logits(ev->s)) && i < n_all; i++)
        st = tern_session_step(ev->s, ev->ids[i], ev->err);
    return st;
}

static void count_answer(evaluator *ev, bool right, bool by_sum, const answer_score *a) {
    ev->res.n_items++;
    ev->n_right += right;
    ev->n_by_sum += by_sum;
    if (ev->o->on_item) ev->o->on_item(ev->o->user, right, by_sum);
    ev->sum_logprob += a->logprob;
    ev->n_answer_tokens += (int64_t)(a->n - a->first);
}

/* ---- items --------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *item, const char *key) {
    return json_string_value(json_object_get(item, key));
}

static tern_status eval_pair(evaluator *ev, const char *prompt, const char *answer, bool must_end,
                             bool *known) {
    *known = prompt && answer && *answer;
    if (!*known) return TERN_OK;
    answer_score a;
    bool fits;
    TN_TRY(score(ev, prompt, answer, &a, &fits));
    if (!fits) {
        ev->res.n_skipped++;
        return TERN_OK;
    }
    bool right = a.greedy && (!must_end || a.then_ends);
    count_answer(ev, right, right, &a);
    return TERN_OK;
}

enum { MAX_CHOICES = 16 };

/* Scores n prompts and n endings (either may be one text shared by all). It is right when ending `gold` wins
 * per byte. The papers' tables count the ending that wins with all its tokens, so that is counted too. */
static tern_status eval_choices(evaluator *ev, const char *const *prompts, const char *const *endings,
                                size_t n, int64_t gold) {
    double best = -INFINITY, best_sum = -INFINITY;
    size_t best_i = 0, best_sum_i = 0;
    answer_score gold_score = {0};
    for (size_t i = 0; i < n; i++) {
        answer_score a;
        bool fits;
        TN_TRY(score(ev, prompts[i], endings[i], &a, &fits));
        if (!fits) {
            ev->res.n_skipped++;
            return TERN_OK;
        }
        double per_byte = a.logprob / (double)strlen(endings[i]);
        if (per_byte > best) {
            best = per_byte;
            best_i = i;
        }
        if (a.logprob > best_sum) {
            best_sum = a.logprob;
            best_sum_i = i;
        }
        if ((int64_t)i == gold) gold_score = a;
    }
    count_answer(ev, (int64_t)best_i == gold, (int64_t)best_sum_i == gold, &gold_score);
    return TERN_OK;
}

static tern_status eval_choice_item(evaluator *ev, const json_t *item, bool *known) {
    const char *query = text_of(item, "query"), *continuation = text_of(item, "continuation");
    const json_t *list = json_object_get(item, query ? "choices" : "context_options"),
                 *gold = json_object_get(item, "gold");
    size_t n = json_array_size(list);
    *known = (query || continuation) && n >= 2 && n <= MAX_CHOICES && json_is_integer(gold) &&
             json_integer_value(gold) >= 0 && (size_t)json_integer_value(gold) < n;
    if (!*known) return TERN_OK;
    /* A question in plain words gets a line of its own for the answer; where the query ends or the choices
     * begin with white space, the item is taken as it stands. */
    char *prompt = NULL, *ending = NULL;
    if (query) {
        size_t len = strlen(query);
        const char *first = json_string_value(json_array_get(list, 0));
        bool rendered =
            len && (query[len - 1] == '\n' || query[len - 1] == ' ' || (first && first[0] == ' '));
        if (asprintf(&prompt, "%s%s", query, rendered ? "" : "\nAnswer: ") < 0) prompt = NULL;
    } else if (asprintf(&ending, " %s", continuation) < 0) {
        ending = NULL;
    }
    const char *prompts[MAX_CHOICES], *endings[MAX_CHOICES];
    bool ok = prompt || ending;
    for (size_t i = 0; i < n && ok; i++) {
        const char *v = json_string_value(json_array_get(list, i));
        ok = v && *v;
        prompts[i] = prompt ? prompt : v;
        endings[i] = prompt ? v : ending;
    }
    *known = ok;
    tern_status st = ok ? eval_choices(ev, prompts, endings, n, json_integer_value(gold)) : TERN_OK;
    free(prompt);
    free(ending);
    return st;
}

static tern_status eval_json_item(evaluator *ev, const json_t *item, bool *known) {
    if (!strcmp(ev->o->task, "lambada")) {
        const char *continuation = text_of(item, "continuation");
        char *answer = NULL;
        *known = false;
        if (!continuation || asprintf(&answer, " %s", continuation) < 0) return TERN_OK;
        tern_status st = eval_pair(ev, text_of(item, "context"), answer, false, known);
        free(answer);
        return st;
    }
    if (!strcmp(ev->o->task, "exact"))
        return eval_pair(ev, text_of(item, "prompt"), text_of(item, "answer"), true, known);
    return eval_choice_item(ev, item, known);
}

static void report(evaluator *ev, int64_t done, int64_t total) {
    if (ev->o->progress)
        ev->o->progress(ev->o->user, done, total,
                        ev->res.n_items ? (double)ev->n_right / (double)ev->res.n_items : 0);
}

static tern_status eval_jsonl(evaluator *ev, char *text) {
    int64_t n_lines = 0, i_line = 0;
    for (const char *p = text; *p; p++) n_lines += *p == '\n';
    if (ev->o->limit > 0 && n_lines > ev->o->limit) n_lines = ev->o->limit;
    for (char *line = text; line && *line && (ev->o->limit <= 0 || i_line < ev->o->limit);) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        i_line++;
        if (line[strspn(line, " \t\r")]) {
            json_error_t je;
            json_t *item = tn_json_parse(line, strlen(line), 0, &je);
            TN_FAIL_IF(!item, ev->err, TERN_E_FORMAT, "%s line %lld: not JSON: %s", ev->o->data,
                       (long long)i_line, je.text);
            bool known;
            tern_status st = eval_json_item(ev, item, &known);
            json_decref(item);
            TN_TRY(st);
            TN_FAIL_IF(!known, ev->err, TERN_E_FORMAT, "%s line %lld: not an item of task %s", ev->o->data,
                       (long long)i_line, ev->o->task);
        }
        report(ev, i_line, n_lines);
        line = end ? end + 1 : NULL;
    }
    return TERN_OK;
}

/* Reads HellaSwag as text: context, label, four endings. */
static tern_status eval_hellaswag(evaluator *ev, char *text) {
    int64_t n = 0, done = 0;
    for (const char *p = text; *p; p++) n += *p == '\n';
    n /= 6;
    for (char *p = text; *p && (ev->o->limit <= 0 || done < ev->o->limit); done++) {
        char *lines[6];
        for (int i = 0; i < 6; i++) {
            TN_FAIL_IF(!*p, ev->err, TERN_E_FORMAT, "%s: item %lld has %d of 6 lines", ev->o->data,
                       (long long)done + 1, i);
            lines[i] = p;
            p += strcspn(p, "\n");
            if (*p) *p++ = 0;
        }
        char *end;
        long gold = strtol(lines[1], &end, 10);
        TN_FAIL_IF(end == lines[1] || gold < 0 || gold > 3, ev->err, TERN_E_FORMAT,
                   "%s: item %lld has label '%.20s', want 0 to 3", ev->o->data, (long long)done + 1,
                   lines[1]);
        const char *prompts[4], *endings[4];
        char *spaced[4] = {0};
        bool ok = true;
        for (int i = 0; i < 4; i++) {
            prompts[i] = lines[0];
            if (asprintf(&spaced[i], " %s", lines[2 + i]) < 0) spaced[i] = NULL;
            endings[i] = spaced[i];
            ok = ok && spaced[i];
        }
        tern_status st = ok ? eval_choices(ev, prompts, endings, 4, gold)
                            : tn_fail(ev->err, TERN_E_MEMORY, "no memory for an item");
        for (int i = 0; i < 4; i++) free(spaced[i]);
        TN_TRY(st);
        report(ev, done + 1, n);
    }
    return TERN_OK;
}

static tern_status read_data(const char *path, char **text, size_t *n, tern_error *err) {
    FILE *f = fopen(path, "rb");
    TN_FAIL_IF(!f, err, TERN_E_IO, "%s: cannot read: %s", path, strerror(errno));
    long size = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    rewind(f);
    *text = size >= 0 ? malloc((size_t)size + 1) : NULL;
    bool ok = *text && fread(*text, 1, (size_t)size, f) == (size_t)size;
    fclose(f);
    TN_FAIL_IF(!ok, err, TERN_E_IO, "%s: cannot read all of it", path);
    (*text)[size] = 0;
    *n = (size_t)size;
    return TERN_OK;
}

/* Scores the items of a task with one model. */
static tern_status eval_items(tern_engine *e, const tn_eval_options *o, char *text, tn_eval_result *out,
                              tern_error *err) {
    evaluator ev = {.e = e, .o = o, .err = err};
    bool is_choice = !strcmp(o->task, "choice");
    TN_FAIL_IF(!e->model->tokenizer, err, TERN_E_UNSUPPORTED, "this model has no tokenizer");
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = o->n_ctx;
    tern_status st = tern_session_open(e, &so, &ev.s, err);
    if (st == TERN_OK) {
        ev.cap_ids = (size_t)tern_session_capacity(ev.s);
        ev.ids = malloc(ev.cap_ids * sizeof *ev.ids);
        if (!ev.ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for the tokens of an item");
    }
    if (st == TERN_OK) {
        size_t len = strlen(o->data);
        bool is_txt = len > 4 && !strcmp(o->data + len - 4, ".txt");
        st = is_choice && is_txt ? eval_hellaswag(&ev, text) : eval_jsonl(&ev, text);
    }
    if (st == TERN_OK) {
        if (!ev.res.n_items) {
            st = tn_fail(err, TERN_E_FORMAT, "%s: no item fits (%lld are longer than the context)", o->data,
                         (long long)ev.res.n_skipped);
        } else {
            double acc = (double)ev.n_right / (double)ev.res.n_items;
            ev.res.value = acc;
            ev.res.by_sum = (double)ev.n_by_sum / (double)ev.res.n_items;
            ev.res.stderr_ = sqrt(acc * (1 - acc) / (double)ev.res.n_items);
            ev.res.perplexity = ev.n_answer_tokens ? exp(-ev.sum_logprob / (double)ev.n_answer_tokens) : 0;
        }
    }
    free(ev.ids);
    if (ev.s) tn_session_stats(ev.s, &ev.res.stats);
    tern_session_close(&ev.s);
    if (st == TERN_OK) *out = ev.res;
    return st;
}

/* ---- two models over the same items -------------------------------------------------------------- */

typedef struct verdicts {
    const tn_eval_options *o; /* the caller's hooks; NULL: nobody listens */
    uint8_t *right;
    size_t n, cap;
    bool no_memory;
} verdicts;

static void note_verdict(void *user, bool right, bool by_sum) {
    verdicts *v = user;
    if (v->o && v->o->on_item) v->o->on_item(v->o->user, right, by_sum);
    if (v->n == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 1024;
        uint8_t *more = realloc(v->right, cap);
        v->no_memory = v->no_memory || !more;
        if (!more) return;
        v->right = more;
        v->cap = cap;
    }
    v->right[v->n++] = right;
}

static void note_progress(void *user, int64_t done, int64_t total, double value) {
    const verdicts *v = user;
    if (v->o && v->o->progress) v->o->progress(v->o->user, done, total, value);
}

/* Scores them with both models. Items are skipped by their tokens, so models with one tokenizer skip the
 * same. */
static tern_status eval_both(tern_engine *e, const tn_eval_options *o, const char *text, tn_eval_result *out,
                             tern_error *err) {
    verdicts v[2] = {{.o = o}, {0}};
    tn_eval_result res[2];
    tern_status st = TERN_OK;
    for (int i = 0; i < 2 && st == TERN_OK; i++) {
        char *copy = strdup(text); /* it is cut into lines */
        tn_eval_options one = *o;
        one.on_item = note_verdict;
        one.progress = note_progress;
        one.user = &v[i];
        st = copy ? eval_items(i ? o->against : e, &one, copy, &res[i], err)
                  : tn_fail(err, TERN_E_MEMORY, "no memory for the items");
        free(copy);
        if (st == TERN_OK && v[i].no_memory) st = tn_fail(err, TERN_E_MEMORY, "no memory for the verdicts");
    }
    if (st == TERN_OK && v[0].n != v[1].n)
        st =
            tn_fail(err, TERN_E_INVALID,
                    "the models see different items (%zu and %zu): have they one tokenizer?", v[0].n, v[1].n);
    double *diff = st == TERN_OK ? malloc((v[0].n + 1) * sizeof *diff) : NULL;
    if (st == TERN_OK && !diff) st = tn_fail(err, TERN_E_MEMORY, "no memory for the verdicts");
    if (st == TERN_OK) {
        for (size_t i = 0; i < v[0].n; i++) diff[i] = (double)v[0].right[i] - (double)v[1].right[i];
        *out = res[0];
        out->has_against = true;
        out->against_value = res[1].value;
        out->paired = tn_eval_estimate(diff, v[0].n);
    }
    free(diff);
    free(v[0].right);
    free(v[1].right);
    return st;
}

tern_status tn_eval(tern_engine *e, const tn_eval_options *o, tn_eval_result *out, tern_error *err) {
    *out = (tn_eval_result){0};
    bool is_ppl = !strcmp(o->task, "ppl");
    TN_FAIL_IF(!is_ppl && strcmp(o->task, "choice") && strcmp(o->task, "lambada") && strcmp(o->task, "exact"),
               err, TERN_E_INVALID,
               "task '%s' is unknown; there are ppl, lambada, choice, exact, "
               "mmlu, ruler, bfcl, ifeval",
               o->task);
    TN_FAIL_IF(!is_ppl && (o->source || o->protocol), err, TERN_E_INVALID,
               "task %s scores answers: a protocol and a KL divergence belong to ppl", o->task);
    char *text = NULL;
    size_t n_bytes = 0;
    TN_TRY(read_data(o->data, &text, &n_bytes, err));
    tern_status st = is_ppl       ? tn_eval_text(e, o, text, n_bytes, out, err)
                     : o->against ? eval_both(e, o, text, out, err)
                                  : eval_items(e, o, text, out, err);
    free(text);
    return st;
}
