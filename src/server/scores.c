#include "server/scores.h"

#include "base/utf8.h"
#include "model/sampler.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_BYTES = 512 }; /* longer ones are cut */

tern_status tn_scores_open(tn_scores *x, size_t n_ids, int32_t n_top, tern_error *err) {
    const size_t n = n_ids * (size_t)n_top + 1;
    tn_scores_close(x);
    *x = (tn_scores){.n_top = n_top,
                     .logprob = calloc(n_ids, sizeof *x->logprob),
                     .top = calloc(n, sizeof *x->top),
                     .top_logprob = calloc(n, sizeof *x->top_logprob)};
    TN_FAIL_IF(!x->logprob || !x->top || !x->top_logprob, err, TERN_E_MEMORY,
               "no memory for the log-probabilities of %zu tokens", n_ids);
    return TERN_OK;
}

void tn_scores_put(tn_scores *x, size_t i, int32_t token, const float *logits, size_t n_vocab) {
    int32_t *top = x->top + i * (size_t)x->n_top;
    int n = tn_top_logprobs(logits, n_vocab, x->n_top, top, x->top_logprob + i * (size_t)x->n_top);
    for (; n < x->n_top; n++) top[n] = -1;
    x->logprob[i] = tn_logprob(logits, n_vocab, token);
}

void tn_scores_close(tn_scores *x) {
    free(x->logprob);
    free(x->top);
    free(x->top_logprob);
    *x = (tn_scores){0};
}

/* ---- offsets ------------------------------------------------------------------------------------------ */

/* Whether more bytes can make a character of these. */
static bool may_become(const uint8_t *p, int n) {
    uint8_t whole[4] = {p[0], 0x80, 0x80, 0x80};
    uint32_t cp;
    if (n == 1) return p[0] >= 0xc2 && p[0] <= 0xf4;
    memcpy(whole, p, (size_t)n);
    return n < 4 && tn_utf8_decode(whole, whole + 4, &cp) > (size_t)n;
}

void tn_place_pass(tn_place *p, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        p->part[p->n_part++] = (uint8_t)text[i];
        while (p->n_part) {
            uint32_t cp;
            int len = (int)tn_utf8_decode(p->part, p->part + p->n_part, &cp);
            if (!len && may_become(p->part, p->n_part)) break;
            if (!len) len = 1;
            p->n_part -= len;
            memmove(p->part, p->part + len, (size_t)p->n_part);
            p->n_chars++;
        }
    }
}

/* ---- lists -------------------------------------------------------------------------------------------- */

void tn_score_lists_begin(tn_score_lists *x) {
    *x = (tn_score_lists){json_array(), json_array(), json_array(), json_array()};
}

json_t *tn_score_lists_end(tn_score_lists *x) {
    return tn_json_pack("{s:o, s:o, s:o, s:o}", "tokens", x->tokens, "token_logprobs", x->logprobs,
                        "top_logprobs", x->tops, "text_offset", x->offsets);
}

/* Takes them. Of tokens with one text the likeliest, which comes first, stays. */
static void set_top(json_t **top, json_t *text, json_t *value) {
    const char *key = json_string_value(text);
    if (key && json_object_get(*top, key)) json_decref(value);
    else if (key) tn_json_set(top, key, value);
    else {
        json_decref(*top);
        json_decref(value);
        *top = NULL;
    }
    json_decref(text);
}

/* Takes text, value and top. */
static void put(tn_score_lists *x, json_t *text, json_t *value, json_t *top, const tn_place *at) {
    tn_json_append(&x->tokens, text);
    tn_json_append(&x->logprobs, value);
    tn_json_append(&x->tops, top);
    tn_json_append(&x->offsets, json_integer((json_int_t)at->n_chars));
}

static size_t bytes_of(const tern_engine *e, int32_t id, char buf[TOKEN_BYTES]) {
    size_t n = tern_token_bytes(e, id, true, buf, TOKEN_BYTES);
    return n < TOKEN_BYTES ? n : TOKEN_BYTES;
}

static json_t *text_of(const tern_engine *e, int32_t id) {
    char buf[TOKEN_BYTES];
    return tn_json_string(buf, bytes_of(e, id, buf));
}

/* How many bytes of the text are the token's. */
static size_t taken(const tern_engine *e, int32_t id, const char *piece, size_t n, const char *text,
                    size_t n_text) {
    if (n <= n_text && !memcmp(text, piece, n)) return n;
    if (n && *piece == ' ' && n - 1 <= n_text && !memcmp(text, piece + 1, n - 1)) return n - 1;
    if (!tern_token_bytes(e, id, false, NULL, 0)) return 0;
    return n < n_text ? n : n_text; /* the tokenizer reads another text in its place */
}

void tn_score_lists_prompt(tn_score_lists *x, const tn_scores *scores, const tern_engine *e,
                           const int32_t *ids, size_t n_ids, const char *text, size_t n_text, tn_place *at) {
    size_t done = 0;
    for (size_t i = 0; i < n_ids; i++) {
        char piece[TOKEN_BYTES];
        const size_t n = bytes_of(e, ids[i], piece), n_top = (size_t)scores->n_top;
        const int32_t *id = scores->top + i * n_top;
        const float *logprob = scores->top_logprob + i * n_top;
        json_t *top = i ? json_object() : json_null();
        for (size_t k = 0; i && k < n_top && id[k] >= 0; k++)
            set_top(&top, text_of(e, id[k]), tn_json_real((double)logprob[k]));
        json_t *value = i ? tn_json_real((double)scores->logprob[i]) : json_null();
        if (i) set_top(&top, text_of(e, ids[i]), json_incref(value));
        put(x, tn_json_string(piece, n), value, top, at);
        const size_t more = taken(e, ids[i], piece, n, text + done, n_text - done);
        tn_place_pass(at, text + done, more);
        done += more;
    }
    tn_place_pass(at, text + done, n_text - done);
}

void tn_score_lists_token(tn_score_lists *x, const tern_engine *e, const json_t *token, bool drawn,
                          tn_place *at) {
    const char *key = drawn ? "prob" : "logprob"; /* whose numbers are told in their place */
    const json_t *all = json_object_get(token, drawn ? "top_probs" : "top_logprobs");
    json_t *top = json_object(), *text = json_object_get(token, "token"),
           *value = json_object_get(token, key);
    for (size_t k = 0; k < json_array_size(all); k++) {
        const json_t *one = json_array_get(all, k);
        set_top(&top, json_incref(json_object_get(one, "token")), json_incref(json_object_get(one, key)));
    }
    set_top(&top, json_incref(text), json_incref(value));
    put(x, json_incref(text), json_incref(value), top, at);
    char piece[TOKEN_BYTES];
    const int32_t id = (int32_t)json_integer_value(json_object_get(token, "id"));
    if (tern_token_bytes(e, id, false, NULL, 0)) tn_place_pass(at, piece, bytes_of(e, id, piece));
}
