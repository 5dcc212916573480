#include "lab/eval.h"

#include "base/status.h"
#include "engine/engine.h"
#include "model/sampler.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one pass over prompt + answer tokens tells of the answer. */
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
    int64_t n_answer_tokens, n_right;
    tern_error *err;
} evaluator;

/* ids of text into ev->ids at `at`; SIZE_MAX when they do not fit the context */
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

/* Score `answer` behind `prompt`. *fits false: the item is longer than the context. */
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

static void count_answer(evaluator *ev, bool right, const answer_score *a) {
    ev->res.n_items++;
    ev->n_right += right;
    if (ev->o->on_item) ev->o->on_item(ev->o->user, right);
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
    if (!fits) ev->res.n_skipped++;
    else count_answer(ev, a.greedy && (!must_end || a.then_ends), &a);
    return TERN_OK;
}

enum { MAX_CHOICES = 16 };

/* n prompts and n endings (either may be one text shared by all); right when ending `gold` wins per byte. */
static tern_status eval_choices(evaluator *ev, const char *const *prompts, const char *const *endings,
                                size_t n, int64_t gold) {
    double best = -INFINITY;
    size_t best_i = 0;
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
        if ((int64_t)i == gold) gold_score = a;
    }
    count_answer(ev, (int64_t)best_i == gold, &gold_score);
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
            json_t *item = json_loads(line, 0, &je);
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

/* HellaSwag as text: context, label, four endings. */
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

typedef struct ppl {
    const int32_t *ids;
    size_t n, n_vocab;
    double sum, sum_sq;
    int64_t count;
} ppl;

static bool on_ppl_logits(void *user, size_t i, const float *logits) {
    ppl *p = user;
    if (i + 1 >= p->n) return true;
    double nll = -(double)tn_logprob(logits, p->n_vocab, p->ids[i + 1]);
    p->sum += nll;
    p->sum_sq += nll * nll;
    p->count++;
    return true;
}

static tern_status eval_ppl(evaluator *ev, const char *text, size_t n_bytes) {
    size_t cap = n_bytes + 16, n = 0;
    int32_t *ids = malloc(cap * sizeof *ids);
    TN_FAIL_IF(!ids, ev->err, TERN_E_MEMORY, "no memory for the tokens of %s", ev->o->data);
    tern_status st = tern_tokenize(ev->e, text, n_bytes, false, false, ids, cap, &n, ev->err);
    int32_t bos = tn_tokenizer_bos(ev->e->model->tokenizer);
    size_t window = (size_t)tern_session_capacity(ev->s),
           n_windows = st == TERN_OK ? (n + window - 1) / window : 0, done = 0;
    if (st == TERN_OK && n < 2)
        st = tn_fail(ev->err, TERN_E_FORMAT, "%s has %zu tokens, perplexity needs 2", ev->o->data, n);
    if (ev->o->limit > 0 && n_windows > (size_t)ev->o->limit) n_windows = (size_t)ev->o->limit;
    ppl p = {.n_vocab = (size_t)ev->e->model->h.n_vocab};
    for (; st == TERN_OK && done < n_windows; done++) {
        int32_t *w = ids + done * window;
        size_t len = n - done * window < window ? n - done * window : window;
        if (len < 2) break;
        int32_t first = w[0];
        size_t probe = 0;
        int32_t one;
        bool adds_bos = bos >= 0 &&
                        tern_tokenize(ev->e, "", 0, true, false, &one, 1, &probe, NULL) == TERN_OK &&
                        probe == 1 && one == bos;
        if (adds_bos) w[0] = bos; /* a model that expects BOS gets it in place of the window's first token */
        p.ids = w;
        p.n = len;
        st = tern_session_score(ev->s, w, len, 0, on_ppl_logits, &p, ev->err);
        w[0] = first;
        if (ev->o->progress && p.count)
            ev->o->progress(ev->o->user, (int64_t)done + 1, (int64_t)n_windows, exp(p.sum / (double)p.count));
    }
    free(ids);
    if (st != TERN_OK) return st;
    double mean = p.sum / (double)p.count, var = p.sum_sq / (double)p.count - mean * mean;
    ev->res.is_ppl = true;
    ev->res.n_items = p.count;
    ev->res.value = ev->res.perplexity = exp(mean);
    ev->res.stderr_ = ev->res.value * sqrt((var > 0 ? var : 0) / (double)p.count); /* delta method */
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

tern_status tn_eval(tern_engine *e, const tn_eval_options *o, tn_eval_result *out, tern_error *err) {
    *out = (tn_eval_result){0};
    bool is_ppl = !strcmp(o->task, "ppl"), is_choice = !strcmp(o->task, "choice");
    TN_FAIL_IF(!is_ppl && !is_choice && strcmp(o->task, "lambada") && strcmp(o->task, "exact"), err,
               TERN_E_INVALID, "task '%s' is unknown; there are ppl, lambada, choice, exact", o->task);
    TN_FAIL_IF(!e->model->tokenizer, err, TERN_E_UNSUPPORTED, "this model has no tokenizer");
    char *text = NULL;
    size_t n_bytes = 0;
    evaluator ev = {.e = e, .o = o, .err = err};
    TN_TRY(read_data(o->data, &text, &n_bytes, err));
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = o->n_ctx ? o->n_ctx : is_ppl && e->model->h.ctx_train > 512 ? 512 : 0;
    tern_status st = tern_session_open(e, &so, &ev.s, err);
    if (st == TERN_OK) {
        ev.cap_ids = (size_t)tern_session_capacity(ev.s);
        ev.ids = malloc(ev.cap_ids * sizeof *ev.ids);
        if (!ev.ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for the tokens of an item");
    }
    if (st == TERN_OK) {
        size_t len = strlen(o->data);
        bool is_txt = len > 4 && !strcmp(o->data + len - 4, ".txt");
        st = is_ppl                ? eval_ppl(&ev, text, n_bytes)
             : is_choice && is_txt ? eval_hellaswag(&ev, text)
                                   : eval_jsonl(&ev, text);
    }
    if (st == TERN_OK && !is_ppl) {
        if (!ev.res.n_items) {
            st = tn_fail(err, TERN_E_FORMAT, "%s: no item fits (%lld are longer than the context)", o->data,
                         (long long)ev.res.n_skipped);
        } else {
            double acc = (double)ev.n_right / (double)ev.res.n_items;
            ev.res.value = acc;
            ev.res.stderr_ = sqrt(acc * (1 - acc) / (double)ev.res.n_items);
            ev.res.perplexity = ev.n_answer_tokens ? exp(-ev.sum_logprob / (double)ev.n_answer_tokens) : 0;
        }
    }
    free(ev.ids);
    free(text);
    if (ev.s) tern_session_stats(ev.s, &ev.res.stats);
    tern_session_close(&ev.s);
    if (st == TERN_OK) *out = ev.res;
    return st;
}
