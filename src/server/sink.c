/* What the sinks have in common. */
#include "base/clock.h"
#include "server/reply.h"
#include "server/sink.h"

#include <stdlib.h>
#include <string.h>

const tn_sink *tn_sink_of(tn_api api) {
    static const tn_sink *const all[] = {&tn_sink_completions, &tn_sink_chat, &tn_sink_messages,
                                         &tn_sink_llama};
    return all[api];
}

bool tn_sink_event(tn_bytes *out, const char *name, json_t *value) {
    char *text = NULL;
    size_t n = out->n;
    (void)tn_json_text(value, JSON_COMPACT, &text, NULL);
    json_decref(value);
    bool ok = text &&
              (!name || (tn_bytes_put(out, "event: ") && tn_bytes_put(out, name) && tn_bytes_put(out, "\n")));
    ok = ok && tn_bytes_put(out, "data: ") && tn_bytes_put(out, text) && tn_bytes_put(out, "\n\n");
    if (!ok) out->n = n; /* never a part of an event */
    free(text);
    return ok;
}

bool tn_sink_ping(const tn_said *s, tn_bytes *out) {
    (void)s;
    return tn_bytes_put(out, ": ping\n\n");
}

json_t *tn_sink_error(const tern_error *err, int status) { return tn_reply_error(err, status, false); }

bool tn_sink_fail(const tern_error *err, tn_bytes *out) {
    return tn_sink_event(out, NULL, tn_sink_error(err, tn_reply_status(err)));
}

static json_t *token_of(const tern_engine *e, int32_t token, const char *key, double value, const char *tops,
                        json_t *top) {
    char buf[512];
    size_t n = tern_token_bytes(e, token, true, buf, sizeof buf);
    if (n > sizeof buf) n = sizeof buf;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(&bytes, json_integer((uint8_t)buf[i]));
    json_t *v =
        tn_json_pack("{s:i, s:s%, s:f, s:o}", "id", (int)token, "token", buf, n, key, value, "bytes", bytes);
    if (top) tn_json_set(&v, tops, top);
    return v;
}

json_t *tn_said_logprob(const tern_engine *e, int32_t token, float logprob, json_t *top) {
    return token_of(e, token, "logprob", (double)logprob, "top_logprobs", top);
}

json_t *tn_said_prob(const tern_engine *e, int32_t token, double prob, json_t *top) {
    return token_of(e, token, "prob", prob, "top_probs", top);
}

json_t *tn_said_waiting(tn_said *s) {
    if (!s->r->logprobs || !json_array_size(s->logprobs)) return NULL;
    json_t *v = s->logprobs;
    s->logprobs = json_array();
    return v;
}

void tn_said_set_check(const tn_said *s, json_t **v) {
    if (s->later)
        tn_json_set(v, "schema_check", tn_json_pack("{s:s, s:b}", "checked", s->later, "fits", (int)s->fits));
}

json_t *tn_said_text(const tn_bytes *b) { return tn_json_string(b->p ? b->p : "", b->n); }

json_t *tn_said_timings(const tn_said *s) {
    const int32_t n_timed = s->n_evaluated;
    double prompt_ms = 1e3 * s->prefill_s, predicted_ms = 1e3 * s->res.decode_s;
    size_t n_prompt = s->n_ids - s->n_cached, n = (size_t)s->res.n_tokens;
    return tn_json_pack("{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n", (json_int_t)s->n_cached,
                        "prompt_n", (json_int_t)n_prompt, "prompt_ms", prompt_ms, "prompt_per_token_ms",
                        n_prompt ? prompt_ms / (double)n_prompt : 0.0, "prompt_per_second",
                        prompt_ms > 0 ? 1e3 * (double)n_prompt / prompt_ms : 0.0, "predicted_n",
                        (json_int_t)n, "predicted_ms", predicted_ms, "predicted_per_token_ms",
                        n_timed ? predicted_ms / n_timed : 0.0, "predicted_per_second",
                        predicted_ms > 0 ? 1e3 * n_timed / predicted_ms : 0.0);
}

int32_t tn_said_thoughts(const tn_said *s) {
    const bool thinks = s->thought.n > s->shared_thought;
    return s->n_thought + (thinks ? s->res.n_tokens - s->n_shared : 0);
}

/* What tokens became is told by what grew since: text is held back where a mark may begin. */
static void share_out(tn_said *s) {
    const size_t rest = s->text.n + s->n_calls;
    if (s->thought.n == s->shared_thought && rest == s->shared_rest) return;
    s->n_thought = tn_said_thoughts(s);
    s->n_shared = s->res.n_tokens;
    s->shared_thought = s->thought.n;
    s->shared_rest = rest;
}

void tn_said_took(tn_said *s) {
    const int64_t now = tn_now_ns();
    share_out(s);
    if (!s->first_ns) s->first_ns = now;
    s->n_evaluated = s->res.n_tokens++;
    s->res.decode_s = 1e-9 * (double)(now - s->first_ns);
}

void tn_said_set_timings(const tn_said *s, json_t **event) {
    if (s->r->timings) tn_json_set(event, "timings", tn_said_timings(s));
}

bool tn_said_calls(const tn_said *s) { return s->n_calls > s->n_broken; }

bool tn_said_length(const tn_said *s) {
    return s->res.reason == TERN_STOP_LENGTH || s->res.reason == TERN_STOP_CONTEXT;
}

json_t *tn_said_progress(const tn_said *s) {
    return tn_json_pack("{s:I, s:I, s:I, s:f}", "total", (json_int_t)s->n_ids, "cache",
                        (json_int_t)s->n_cached, "processed", (json_int_t)s->n_read, "time_ms",
                        1e3 * s->prefill_s);
}
