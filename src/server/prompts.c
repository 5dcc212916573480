#include "server/prompts.h"

#include "engine/engine.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- prompts ------------------------------------------------------------------------------------------ */

typedef struct ids {
    int32_t *at;
    size_t n, cap;
} ids;

static tern_status room(ids *x, size_t more, tern_error *err) {
    if (x->n + more <= x->cap) return TERN_OK;
    size_t cap = 2 * (x->n + more);
    int32_t *grown = realloc(x->at, cap * sizeof *grown);
    TN_FAIL_IF(!grown, err, TERN_E_MEMORY, "no memory for the prompt");
    x->at = grown;
    x->cap = cap;
    return TERN_OK;
}

static int32_t n_vocab(const tern_engine *e) {
    tern_model_info info;
    tern_engine_info(e, &info);
    return info.n_vocab;
}

static tern_status put_text(ids *x, const tern_engine *e, const json_t *text, bool first, tern_error *err) {
    size_t n = json_string_length(text), got = 0;
    TN_TRY(room(x, n + 16, err));
    TN_TRY(tern_tokenize(e, json_string_value(text), n, first, true, x->at + x->n, n + 16, &got, err));
    x->n += got;
    return TERN_OK;
}

static tern_status put_token(ids *x, const tern_engine *e, const json_t *token, tern_error *err) {
    json_int_t id = json_integer_value(token);
    TN_FAIL_IF(id < 0 || id >= n_vocab(e), err, TERN_E_INVALID,
               "'prompt' has the token %" JSON_INTEGER_FORMAT ", which the model has not: want 0 to %d", id,
               n_vocab(e) - 1);
    TN_TRY(room(x, 1, err));
    x->at[x->n++] = (int32_t)id;
    return TERN_OK;
}

/* The marks in front of what comes before, of what comes after and of what is between. */
static const char *const fill_in[][3] = {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
                                         {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
                                         {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
                                         {"<|fim begin|>", "<|fim hole|>", "<|fim end|>"},
                                         {"<PRE>", "<SUF>", "<MID>"}};

static bool is_one_token(const tern_engine *e, const char *text, int32_t *id) {
    size_t n = 0;
    tern_error err;
    return tern_tokenize(e, text, strlen(text), false, true, id, 1, &n, &err) == TERN_OK && n == 1;
}

static bool marks_of(const tern_engine *e, int32_t mark[3]) {
    bool known = false;
    for (size_t i = 0; !known && i < sizeof fill_in / sizeof *fill_in; i++) {
        known = true;
        for (int k = 0; k < 3; k++) known = known && is_one_token(e, fill_in[i][k], &mark[k]);
    }
    return known;
}

bool tn_fills_in(const tern_engine *e) {
    int32_t mark[3];
    return marks_of(e, mark);
}

static tern_status put_fill_in(ids *x, const tn_request *r, const tern_engine *e, tern_error *err) {
    int32_t mark[3];
    TN_FAIL_IF(!marks_of(e, mark), err, TERN_E_UNSUPPORTED,
               "the model does not fill in: its vocabulary has no marks for what comes before and after");
    json_t *suffix = tn_json_string(r->suffix, strlen(r->suffix));
    tern_status st = suffix ? room(x, 3, err) : tn_fail(err, TERN_E_MEMORY, "no memory for the prompt");
    if (st == TERN_OK) x->at[x->n++] = mark[0];
    if (st == TERN_OK) st = put_text(x, e, r->prompt, false, err);
    if (st == TERN_OK) st = room(x, 2, err);
    if (st == TERN_OK) x->at[x->n++] = mark[1];
    if (st == TERN_OK) st = put_text(x, e, suffix, false, err);
    if (st == TERN_OK) st = room(x, 1, err);
    if (st == TERN_OK) x->at[x->n++] = mark[2];
    json_decref(suffix);
    return st;
}

static tern_status put_prompt(ids *x, const tn_request *r, const tern_engine *e, tern_error *err) {
    const json_t *p = r->prompt;
    if (json_is_object(p)) p = json_object_get(p, "prompt_string");
    if (r->suffix) return put_fill_in(x, r, e, err);
    if (json_is_string(p)) return put_text(x, e, p, true, err);
    for (size_t i = 0; i < json_array_size(p); i++) {
        const json_t *part = json_array_get(p, i);
        if (json_is_string(part)) TN_TRY(put_text(x, e, part, !i, err));
        else TN_TRY(put_token(x, e, part, err));
    }
    return TERN_OK;
}

tern_status tn_prompt_ids(const tn_request *r, tn_said *s, tern_error *err) {
    ids x = {0};
    tern_status st = put_prompt(&x, r, s->e, err);
    s->ids = x.at; /* freed with what was said */
    s->n_ids = x.n;
    return st;
}

tern_status tn_text_ids(const tern_engine *e, const char *text, size_t n_bytes, int32_t *ids, size_t cap,
                        size_t *n_ids, tern_error *err) {
    enum { LINE = 8 };
    int32_t line[LINE];
    size_t n_line = 0;
    char *after = malloc(n_bytes + 1);
    TN_FAIL_IF(!after, err, TERN_E_MEMORY, "no memory for the prompt");
    after[0] = '\n';
    memcpy(after + 1, text, n_bytes);
    tern_status st = tern_tokenize(e, "\n", 1, false, false, line, LINE, &n_line, err);
    if (st == TERN_OK) st = tern_tokenize(e, after, n_bytes + 1, false, false, ids, cap, n_ids, err);
    if (st == TERN_OK && *n_ids >= n_line && !memcmp(ids, line, n_line * sizeof *ids)) {
        *n_ids -= n_line;
        memmove(ids, ids + n_line, *n_ids * sizeof *ids);
    } else if (st == TERN_OK) { /* a line's end and the text are one token */
        st = tern_tokenize(e, text, n_bytes, false, false, ids, cap, n_ids, err);
    }
    free(after);
    return st;
}

tern_status tn_ids_text(const tern_engine *e, const int32_t *ids, size_t n, char **text, size_t *n_bytes,
                        tern_error *err) {
    size_t need = 0, at = 0;
    for (size_t i = 0; i < n; i++) need += tern_token_bytes(e, ids[i], true, NULL, 0);
    *text = malloc(need + 1);
    TN_FAIL_IF(!*text, err, TERN_E_MEMORY, "no memory for the text");
    for (size_t i = 0; i < n; i++) at += tern_token_bytes(e, ids[i], true, *text + at, need - at);
    (*text)[at] = 0;
    *n_bytes = at;
    return TERN_OK;
}

/* ---- shaping ------------------------------------------------------------------------------------------ */

static tern_status add_bias(tn_shaping *x, int32_t token, float bias, tern_error *err) {
    if (x->n_bias == x->cap) {
        size_t cap = 2 * x->cap + 16;
        int32_t *tokens = realloc(x->token, cap * sizeof *tokens);
        if (tokens) x->token = tokens;
        float *biases = realloc(x->bias, cap * sizeof *biases);
        if (biases) x->bias = biases;
        TN_FAIL_IF(!tokens || !biases, err, TERN_E_MEMORY, "no memory for 'logit_bias'");
        x->cap = cap;
    }
    x->token[x->n_bias] = token;
    x->bias[x->n_bias++] = bias;
    return TERN_OK;
}

/* A text of digits is a token's number, as in OpenAI's API. */
static tern_status bias_of(tn_shaping *x, const tern_engine *e, const json_t *key, const json_t *value,
                           tern_error *err) {
    float bias = json_is_false(value) ? -INFINITY : (float)json_number_value(value);
    TN_FAIL_IF(!json_is_number(value) && !json_is_false(value), err, TERN_E_INVALID,
               "'logit_bias' wants numbers, or false");
    const char *text = json_string_value(key);
    json_int_t id = json_is_integer(key) ? json_integer_value(key) : -1;
    if (text && isdigit((unsigned char)*text)) {
        char *end;
        long long v = strtoll(text, &end, 10);
        if (!*end) id = v, text = NULL;
    }
    if (!text) {
        TN_FAIL_IF(id < 0 || id >= n_vocab(e), err, TERN_E_INVALID,
                   "'logit_bias' has a token that the model has not: want 0 to %d", n_vocab(e) - 1);
        return add_bias(x, (int32_t)id, bias, err);
    }
    ids tokens = {0};
    json_t *whole = tn_json_string(text, strlen(text));
    tern_status st =
        whole ? put_text(&tokens, e, whole, false, err) : tn_fail(err, TERN_E_MEMORY, "no memory");
    for (size_t i = 0; st == TERN_OK && i < tokens.n; i++) st = add_bias(x, tokens.at[i], bias, err);
    json_decref(whole);
    free(tokens.at);
    return st;
}

static tern_status read_bias(tn_shaping *x, const json_t *v, const tern_engine *e, tern_error *err) {
    const char *name;
    json_t *bias;
    TN_FAIL_IF(v && !json_is_null(v) && !json_is_object(v) && !json_is_array(v), err, TERN_E_INVALID,
               "'logit_bias' must be {TOKEN: BIAS} or [[TOKEN, BIAS]]");
    json_object_foreach((json_t *)(uintptr_t)v, name, bias) {
        json_t *key = tn_json_string(name, strlen(name));
        tern_status st = key ? bias_of(x, e, key, bias, err) : tn_fail(err, TERN_E_MEMORY, "no memory");
        json_decref(key);
        TN_TRY(st);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *pair = json_array_get(v, i);
        TN_FAIL_IF(json_array_size(pair) != 2, err, TERN_E_INVALID, "logit_bias[%zu] must be [TOKEN, BIAS]",
                   i);
        TN_TRY(bias_of(x, e, json_array_get(pair, 0), json_array_get(pair, 1), err));
    }
    return TERN_OK;
}

tern_status tn_shaping_open(tn_shaping *x, const tn_request *r, const tern_engine *e, tern_error *err) {
    *x = (tn_shaping){.presence = r->presence, .frequency = r->frequency};
    if (x->presence != 0 || x->frequency != 0) {
        x->times = calloc((size_t)n_vocab(e), sizeof *x->times);
        TN_FAIL_IF(!x->times, err, TERN_E_MEMORY, "no memory for the penalties");
    }
    return r->api == TN_API_MESSAGES ? TERN_OK : read_bias(x, json_object_get(r->body, "logit_bias"), e, err);
}

void tn_shaping_close(tn_shaping *x) {
    free(x->times);
    free(x->token);
    free(x->bias);
    *x = (tn_shaping){0};
}

bool tn_shaping_any(const tn_shaping *x) { return x->times || x->n_bias; }

void tn_shaping_apply(const tn_shaping *x, float *logits, size_t n_vocab) {
    for (size_t i = 0; x->times && i < n_vocab; i++)
        if (x->times[i]) logits[i] -= x->presence + x->frequency * (float)x->times[i];
    for (size_t i = 0; i < x->n_bias; i++)
        if ((size_t)x->token[i] < n_vocab) logits[x->token[i]] += x->bias[i];
}

void tn_shaping_took(tn_shaping *x, int32_t token) {
    if (x->times) x->times[token]++;
}
