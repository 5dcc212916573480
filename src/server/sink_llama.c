/* Completions as llama.cpp's server has them at /completion. */
#include "server/prompts.h"
#include "server/reply.h"

#include <stdlib.h>
#include <string.h>

static const char *stop_type(const tn_said *s) {
    switch (s->res.reason) {
    case TERN_STOP_END: return "eos";
    case TERN_STOP_STRING: return "word";
    default: return "limit";
    }
}

/* Biases as they were given; those of the tokens that end a text, where they may not. */
static json_t *biases(const tn_said *s) {
    json_t *given = json_object_get(s->r->body, "logit_bias");
    if (!s->r->ignore_end) return given && !json_is_null(given) ? json_incref(given) : json_array();
    tern_model_info info;
    tern_engine_info(s->e, &info);
    json_t *list = json_array();
    for (int32_t id = 0; id < info.n_vocab; id++)
        if (tern_token_is_end(s->e, id))
            tn_json_append(&list, tn_json_pack("{s:i, s:o}", "token", (int)id, "bias", json_null()));
    return list;
}

/* Samplers that there are not, with the values that turn them off. */
static void put_absent(json_t **v) {
    static const struct {
        const char *name;
        double value;
    } off[] = {{"dynatemp_range", 0},   {"dynatemp_exponent", 1}, {"typical_p", 1},
               {"xtc_probability", 0},  {"dry_multiplier", 0},    {"mirostat", 0},
               {"adaptive_target", -1}, {"adaptive_decay", 0}};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        tn_json_set(v, off[i].name, tn_json_real(off[i].value));
}

/* What the answer was made with; its names are those of the request's fields. */
static json_t *settings(const tn_said *s) {
    const tern_sampling *p = &s->r->sampling;
    json_t *stops = json_array();
    for (const char *const *x = s->r->stop; *x; x++) tn_json_append(&stops, tn_json_string(*x, strlen(*x)));
    json_t *v = tn_json_pack(
        "{s:I, s:f, s:i, s:f, s:f, s:f, s:i, s:f, s:f}", "seed", (json_int_t)p->seed, "temperature",
        (double)p->temperature, "top_k", (int)p->top_k, "top_p", (double)p->top_p, "min_p", (double)p->min_p,
        "repeat_penalty", (double)p->repeat_penalty, "repeat_last_n", (int)p->repeat_last_n,
        "presence_penalty", (double)s->r->presence, "frequency_penalty", (double)s->r->frequency);
    tn_json_set(&v, "n_predict", json_integer(s->r->max_tokens));
    tn_json_set(&v, "max_tokens", json_integer(s->r->max_tokens));
    tn_json_set(&v, "n_probs", json_integer(s->r->n_top));
    tn_json_set(&v, "stop", stops);
    tn_json_set(&v, "logit_bias", biases(s));
    put_absent(&v);
    tn_json_set(&v, "ignore_eos", json_boolean(s->r->ignore_end));
    tn_json_set(&v, "stream", json_boolean(s->r->stream));
    tn_json_set(
        &v, "grammar",
        tn_json_string(s->r->grammar ? s->r->grammar : "", s->r->grammar ? strlen(s->r->grammar) : 0));
    return v;
}

static json_t *prompt_text(const tn_said *s) {
    char *text = NULL;
    size_t n = 0;
    json_t *v = NULL;
    if (tn_ids_text(s->e, s->ids, s->n_ids, &text, &n, NULL) == TERN_OK) v = tn_json_string(text, n);
    free(text);
    return v;
}

/* The one that was asked for; else which of them answered is nobody's affair, and clients want a number. */
static int id_slot(const tn_said *s) { return s->r->slot ? (int)s->r->slot - 1 : 0; }

/* The end, with this text and these tokens, which it takes. */
static json_t * final(const tn_said *s, json_t *content, json_t *tokens) {
    bool context = s->res.reason == TERN_STOP_CONTEXT, line = s->text.n && memchr(s->text.p, '\n', s->text.n);
    const char *word = s->res.reason == TERN_STOP_STRING && s->stopped_by ? s->stopped_by : "";
    json_t *v =
        tn_json_pack("{s:i, s:o, s:o, s:i, s:b, s:s, s:I, s:I, s:o, s:o}", "index", (int)s->choice, "content",
                     content, "tokens", tokens, "id_slot", id_slot(s), "stop", 1, "model", s->model,
                     "tokens_predicted", (json_int_t)s->res.n_tokens, "tokens_evaluated",
                     (json_int_t)s->n_ids, "generation_settings", settings(s), "prompt", prompt_text(s));
    tn_json_set(&v, "has_new_line", json_boolean(line));
    tn_json_set(&v, "truncated", json_boolean(context));
    tn_json_set(&v, "stop_type", tn_json_string(stop_type(s), strlen(stop_type(s))));
    tn_json_set(&v, "stopping_word", tn_json_string(word, strlen(word)));
    tn_json_set(&v, "tokens_cached", json_integer((json_int_t)s->n_ids + s->n_evaluated));
    tn_json_set(&v, "timings", tn_said_timings(s));
    tn_said_set_check(s, &v);
    return v;
}

json_t *tn_said_verbose(const tn_said *s) {
    return final(s, tn_said_text(&s->text), s->tokens ? json_incref(s->tokens) : json_array());
}

/* Keeps the fields that the request names; "a/b" is b of a, under that name. Takes v. */
static json_t *chosen(const tn_said *s, json_t *v) {
    const json_t *names = json_object_get(s->r->body, "response_fields");
    if (!v || !json_array_size(names)) return v;
    json_t *out = json_object();
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i)),
                   *slash = name ? strchr(name, '/') : NULL;
        char outer[64] = "";
        json_t *x = NULL;
        if (!name) continue;
        if (slash) {
            strncat(outer, name, (size_t)(slash - name) < sizeof outer ? (size_t)(slash - name) : 0);
            x = json_object_get(json_object_get(v, outer), slash + 1);
        } else {
            x = json_object_get(v, name);
        }
        if (x) tn_json_set(&out, name, json_incref(x));
    }
    json_decref(v);
    return out;
}

/* ---- streams: an event a token ------------------------------------------------------------------------ */

static bool put_token(tn_said *s, tn_bytes *out) {
    size_t n = json_array_size(s->tokens);
    if (n == s->n_tokens_sent) return true; /* text that was held back, told at the end */
    json_t *tokens = json_array(), *lps = tn_said_waiting(s);
    for (size_t i = s->n_tokens_sent; i < n; i++)
        tn_json_append(&tokens, json_incref(json_array_get(s->tokens, i)));
    s->n_tokens_sent = n;
    json_t *v = tn_json_pack("{s:i, s:s%, s:o, s:b, s:i, s:I, s:I}", "index", (int)s->choice, "content",
                             s->text.p ? s->text.p + s->n_sent : "", s->text.n - s->n_sent, "tokens", tokens,
                             "stop", 0, "id_slot", id_slot(s), "tokens_predicted", (json_int_t)n,
                             "tokens_evaluated", (json_int_t)s->n_ids);
    s->n_sent = s->text.n;
    if (lps) tn_json_set(&v, "completion_probabilities", lps);
    tn_said_set_timings(s, &v);
    return tn_sink_event(out, NULL, v);
}

static bool put_progress(const tn_said *s, tn_bytes *out) {
    json_t *v = tn_json_pack("{s:i, s:s, s:o, s:b, s:o}", "index", (int)s->choice, "content", "", "tokens",
                             json_array(), "stop", 0, "prompt_progress", tn_said_progress(s));
    return tn_sink_event(out, NULL, v);
}

static bool say(tn_said *s, const tn_saying *e, tn_bytes *out) {
    switch (e->kind) {
    case TN_SAYS_PROGRESS: return put_progress(s, out);
    case TN_SAYS_TOKEN: return put_token(s, out);
    case TN_SAYS_END: {
        json_t *rest = tn_json_string(s->text.p ? s->text.p + s->n_sent : "", s->text.n - s->n_sent);
        return tn_sink_event(out, NULL, chosen(s, final(s, rest, json_array())));
    }
    default: return true;
    }
}

/* ---- whole replies ------------------------------------------------------------------------------------ */

static json_t *whole(tn_said *const *all, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const tn_said *s = all[i];
        bool told = json_is_true(json_object_get(s->r->body, "return_tokens"));
        json_t *v = final(s, tn_said_text(&s->text), told ? json_incref(s->tokens) : json_array());
        if (s->r->logprobs) tn_json_set(&v, "completion_probabilities", json_incref(s->logprobs));
        tn_json_append(&list, chosen(s, v));
    }
    if (n > 1) return list;
    json_t *one = json_incref(json_array_get(list, 0));
    json_decref(list);
    return one;
}

const tn_sink tn_sink_llama = {.prefix = "cmpl-",
                               .type = "text/event-stream",
                               .say = say,
                               .ping = tn_sink_ping,
                               .fail = tn_sink_fail,
                               .whole = whole,
                               .error = tn_sink_error};
