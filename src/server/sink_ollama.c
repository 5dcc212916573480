/* Chats and completions as Ollama's API has them: a line of JSON an event. */
#include "base/clock.h"
#include "server/ollama.h"
#include "server/reply.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void tn_ollama_time(int64_t s, char out[TN_OLLAMA_TIME]) {
    time_t t = (time_t)s;
    struct tm day;
    if (!gmtime_r(&t, &day) || !strftime(out, TN_OLLAMA_TIME, "%Y-%m-%dT%H:%M:%SZ", &day)) out[0] = 0;
}

static bool is_chat(const tn_said *s) { return s->r->sink == &tn_sink_ollama_chat; }

/* Takes part, the message of a chat or NULL for none. */
static json_t *line(const tn_said *s, json_t *part, const char *text, size_t n, bool done) {
    char now[TN_OLLAMA_TIME];
    tn_ollama_time((int64_t)time(NULL), now);
    json_t *v = tn_json_pack("{s:s, s:s}", "model", s->model, "created_at", now);
    if (is_chat(s)) tn_json_set(&v, "message", part);
    else tn_json_set(&v, "response", tn_json_string(text, n));
    tn_json_set(&v, "done", json_boolean(done));
    return v;
}

/* The log-probabilities that wait to be told, or all of a whole reply. Takes list, which may be NULL. */
static json_t *with_logprobs(json_t *v, json_t *list) {
    if (list) tn_json_set(&v, "logprobs", list);
    return v;
}

static json_t *message(const char *text, size_t n) {
    return tn_json_pack("{s:s, s:s%}", "role", "assistant", "content", text, n);
}

static bool put(tn_bytes *out, json_t *v) { /* takes v */
    char *text = NULL;
    size_t n = out->n;
    (void)tn_json_text(v, JSON_COMPACT, &text, NULL);
    json_decref(v);
    bool ok = text && tn_bytes_put(out, text) && tn_bytes_put(out, "\n");
    if (!ok) out->n = n;
    free(text);
    return ok;
}

/* Its arguments are an object, where OpenAI has their text. */
static json_t *call_of(const tn_said *s, size_t i) {
    const json_t *c = json_array_get(s->calls, i);
    const char *args = json_string_value(json_object_get(c, "arguments"));
    json_t *v = tn_json_parse(args, strlen(args), 0, NULL);
    if (!v) v = tn_json_parse(args, strlen(args), JSON_DECODE_INT_AS_REAL, NULL);
    return tn_json_pack("{s:O, s:{s:i, s:O, s:o}}", "id", json_object_get(c, "id"), "function", "index",
                        (int)i, "name", json_object_get(c, "name"), "arguments", v);
}

static const char *reason(const tn_said *s) { return tn_said_length(s) ? "length" : "stop"; }

/* Times are in nanoseconds. The load is part of the total where the model had to be loaded. */
static void put_figures(const tn_said *s, json_t **v) {
    int64_t total = tn_now_ns() - s->r->asked_ns, prompt = (int64_t)(1e9 * s->prefill_s),
            eval = (int64_t)(1e9 * s->res.decode_s), load = total - prompt - eval;
    const struct {
        const char *name;
        int64_t n;
    } all[] = {{"total_duration", total},
               {"load_duration", load > 0 ? load : 0},
               {"prompt_eval_count", (int64_t)s->n_ids},
               {"prompt_eval_duration", prompt},
               {"eval_count", s->res.n_tokens},
               {"eval_duration", eval}};
    tn_json_set(v, "done_reason", tn_json_string(reason(s), strlen(reason(s))));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tn_json_set(v, all[i].name, json_integer(all[i].n));
    tn_said_set_check(s, v);
}

/* ---- streams ------------------------------------------------------------------------------------------ */

static json_t *thought_line(const tn_said *s, const char *text, size_t n) {
    json_t *thinking = tn_json_string(text, n), *m = is_chat(s) ? message("", 0) : NULL;
    if (is_chat(s)) tn_json_set(&m, "thinking", thinking);
    json_t *v = line(s, m, "", 0, false);
    if (!is_chat(s)) tn_json_set(&v, "thinking", thinking);
    return v;
}

static json_t *call_line(const tn_said *s) {
    json_t *calls = json_array(), *m = message("", 0);
    tn_json_append(&calls, call_of(s, s->n_calls - 1));
    tn_json_set(&m, "tool_calls", calls);
    return line(s, m, "", 0, false);
}

static bool say(tn_said *s, const tn_saying *e, tn_bytes *out) {
    json_t *v;
    switch (e->kind) {
    case TN_SAYS_TEXT:
        v = line(s, is_chat(s) ? message(e->text, e->n) : NULL, e->text, e->n, false);
        return put(out, with_logprobs(v, tn_said_waiting(s)));
    case TN_SAYS_THOUGHT: return put(out, with_logprobs(thought_line(s, e->text, e->n), tn_said_waiting(s)));
    case TN_SAYS_CALLED: return put(out, with_logprobs(call_line(s), tn_said_waiting(s)));
    case TN_SAYS_END:
        v = line(s, is_chat(s) ? message("", 0) : NULL, "", 0, true);
        put_figures(s, &v);
        return put(out, with_logprobs(v, tn_said_waiting(s)));
    default: return true;
    }
}

/* There are no comments: an event of no text says that the stream lives. */
static bool ping(const tn_said *s, tn_bytes *out) {
    return put(out, line(s, is_chat(s) ? message("", 0) : NULL, "", 0, false));
}

static json_t *error(const tern_error *err, int status) {
    (void)status;
    return tn_json_pack("{s:s}", "error", err->message);
}

static bool fail(const tern_error *err, tn_bytes *out) { return put(out, error(err, 0)); }

/* ---- whole replies ------------------------------------------------------------------------------------ */

static json_t *whole(tn_said *const *all, size_t n) {
    const tn_said *s = all[0];
    json_t *m = NULL, *calls = json_array();
    (void)n; /* there is one answer */
    for (size_t i = 0; i < s->n_calls; i++) tn_json_append(&calls, call_of(s, i));
    if (is_chat(s)) {
        m = message(s->text.p ? s->text.p : "", s->text.n);
        if (s->thought.n) tn_json_set(&m, "thinking", tn_said_text(&s->thought));
        if (s->n_calls) tn_json_set(&m, "tool_calls", json_incref(calls));
    }
    json_decref(calls);
    json_t *v = line(s, m, s->text.p ? s->text.p : "", s->text.n, true);
    if (!is_chat(s) && s->thought.n) tn_json_set(&v, "thinking", tn_said_text(&s->thought));
    put_figures(s, &v);
    return with_logprobs(v, s->r->logprobs ? json_incref(s->logprobs) : NULL);
}

const tn_sink tn_sink_ollama_chat = {.prefix = "ollama-",
                                     .type = "application/x-ndjson",
                                     .say = say,
                                     .ping = ping,
                                     .fail = fail,
                                     .whole = whole,
                                     .error = error};
const tn_sink tn_sink_ollama_generate = {.prefix = "ollama-",
                                         .type = "application/x-ndjson",
                                         .say = say,
                                         .ping = ping,
                                         .fail = fail,
                                         .whole = whole,
                                         .error = error};
