#include "server/answering.h"

#include "engine/adapters.h"
#include "session/session.h"
#include "server/reply.h"
#include "server/watch.h"
#include "text/tokenizer_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

bool tn_bytes_add(tn_bytes *b, const char *p, size_t n) {
    if (b->n + n + 1 > b->cap) {
        size_t cap = 2 * (b->n + n + 1);
        char *more = realloc(b->p, cap);
        if (!more) return false;
        b->p = more;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->p[b->n += n] = 0;
    return true;
}

/* ---- out to the connection ------------------------------------------------------------------------- */

/* Takes text (free). false without memory; text may be NULL for that. */
static bool put_out(tn_job *j, const char *before, char *text, const char *after) {
    tn_queue_lock(j->q);
    size_t n = j->out.n;
    bool ok = text && tn_bytes_add(&j->out, before, strlen(before)) &&
              tn_bytes_add(&j->out, text, strlen(text)) && tn_bytes_add(&j->out, after, strlen(after));
    if (!ok) j->out.n = n; /* never a part of an event */
    else pthread_cond_signal(&j->changed);
    tn_queue_unlock(j->q);
    free(text);
    return ok;
}

/* Takes value. Anthropic's events have their type as a name. */
static bool event(tn_job *j, json_t *value) {
    char *text = NULL, head[64] = "data: ";
    const char *type = json_string_value(json_object_get(value, "type"));
    if (j->r.api == TN_API_MESSAGES && type) snprintf(head, sizeof head, "event: %.40s\ndata: ", type);
    (void)tn_json_text(value, JSON_COMPACT, &text, NULL);
    json_decref(value);
    return put_out(j, head, text, "\n\n");
}

static bool begin(tn_job *j) {
    if (j->begun) return true;
    j->begun = true;
    return j->r.api == TN_API_CHAT       ? event(j, tn_reply_role(j))
           : j->r.api == TN_API_MESSAGES ? event(j, tn_message_start(j))
                                         : true;
}

static bool close_block(tn_job *j) {
    if (!j->block) return true;
    j->block = 0;
    bool ok = event(j, tn_message_block_stop(j));
    j->n_blocks++;
    return ok;
}

/* Log-probabilities that wait, for the next event; NULL: none. */
static json_t *waiting_logprobs(tn_job *j) {
    if (!j->r.logprobs || !json_array_size(j->logprobs)) return NULL;
    json_t *v = j->logprobs;
    j->logprobs = json_array();
    return v;
}

static bool stream_text(tn_job *j, char kind, const char *p, size_t n) {
    if (!begin(j)) return false;
    if (j->r.api != TN_API_MESSAGES)
        return event(
            j, tn_reply_delta(j, kind == 't' ? "content" : "reasoning_content", p, n, waiting_logprobs(j)));
    if (j->block != kind) {
        if (!close_block(j) || !event(j, tn_message_block_start(j, kind, 0))) return false;
        j->block = kind;
    }
    return event(j, tn_message_block_delta(j, kind, p, n));
}

/* ---- what the answer is made of -------------------------------------------------------------------- */

static bool on_text(void *user, const char *p, size_t n) {
    tn_job *j = user;
    return j->r.stream ? stream_text(j, 't', p, n) : tn_bytes_add(&j->text, p, n);
}

static bool on_thought(void *user, const char *p, size_t n) {
    tn_job *j = user;
    return j->r.stream ? stream_text(j, 'T', p, n) : tn_bytes_add(&j->thought, p, n);
}

/* Nine letters and digits: the only form that every template takes. */
static void new_id(char out[10]) {
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t rnd[9] = {0};
    if (getrandom(rnd, sizeof rnd, 0) != sizeof rnd) rnd[0] = 1;
    for (int i = 0; i < 9; i++) out[i] = set[rnd[i] % (sizeof set - 1)];
    out[9] = 0;
}

static bool on_call(void *user, const char *name, const char *arguments) {
    tn_job *j = user;
    char id[10];
    if (j->r.one_call && j->n_calls) return true;
    new_id(id);
    tn_json_append(&j->calls,
                   tn_json_pack("{s:s, s:s, s:s}", "id", id, "name", name, "arguments", arguments));
    if (!j->calls) return false;
    size_t i = j->n_calls++;
    j->enough = j->r.one_call;
    if (!j->r.stream) return true;
    if (!begin(j)) return false;
    if (j->r.api == TN_API_CHAT) return event(j, tn_reply_call(j, i));
    if (!close_block(j) || !event(j, tn_message_block_start(j, 'c', i))) return false;
    j->block = 'c';
    return event(j, tn_message_block_delta(j, 'c', arguments, strlen(arguments))) && close_block(j);
}

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    tn_job *j = user;
    if (atomic_load(&j->cancelled)) return false;
    tn_watch_token(j->r.watch, token);
    if (token >= 0) tn_queue_first(j);
    if (j->r.logprobs && token >= 0) {
        tn_json_append(&j->logprobs, tn_reply_logprob(tn_queue_opts(j->q)->e, token, logprob,
                                                      j->top ? j->top : json_array()));
        j->top = NULL;
        if (!j->logprobs) return false;
    }
    if (j->r.stream && !begin(j)) return false;
    if (j->reader) {
        if (!tn_answer_put(j->reader, text, n) || j->enough) return false;
    } else if (n && !on_text(j, text, n)) {
        return false;
    }
    json_t *lps = j->r.stream ? waiting_logprobs(j) : NULL; /* of a token whose text is held back */
    return !lps || event(j, tn_reply_delta(j, "content", "", 0, lps));
}

/* The likeliest tokens, told with the one drawn next. */
static bool on_logits(void *user, float *logits, size_t n_vocab) {
    tn_job *j = user;
    int32_t best[TN_REQUEST_TOP];
    int32_t n = 0, want = j->r.n_top;
    float max = logits[0];
    for (size_t i = 1; i < n_vocab; i++) max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (size_t i = 0; i < n_vocab; i++) {
        sum += exp((double)(logits[i] - max));
        if (n == want && logits[i] <= logits[best[n - 1]]) continue;
        int32_t k = n < want ? n++ : n - 1;
        for (; k && logits[best[k - 1]] < logits[i]; k--) best[k] = best[k - 1];
        best[k] = (int32_t)i;
    }
    json_decref(j->top);
    j->top = json_array();
    for (int32_t k = 0; k < n; k++)
        tn_json_append(&j->top, tn_reply_logprob(tn_queue_opts(j->q)->e, best[k],
                                                 (float)((double)(logits[best[k]] - max) - log(sum)), NULL));
    return j->top != NULL;
}

/* ---- the prompt ------------------------------------------------------------------------------------ */

/* One prompt after the other until it fits: the number needed is told. */
static tern_status chat_ids(tn_job *j, const tern_engine *e, tern_error *err) {
    tn_request *r = &j->r;
    char *messages = NULL, *tools = NULL, *variables = NULL;
    json_t *as_text = NULL;
    tern_status st = TERN_OK;
    if (!j->form.knows_tools) st = tn_tools_as_text(r->messages, r->tools, &as_text, err);
    if (st == TERN_OK) st = tn_json_text(as_text ? as_text : r->messages, JSON_COMPACT, &messages, err);
    if (st == TERN_OK && r->tools && !as_text) st = tn_json_text(r->tools, JSON_COMPACT, &tools, err);
    if (st == TERN_OK && json_object_size(r->variables))
        st = tn_json_text(r->variables, JSON_COMPACT, &variables, err);
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.messages = messages;
    o.tools = tools;
    o.variables = variables;
    o.chat_template = tn_queue_opts(j->q)->chat_template;
    for (size_t cap = 0; st == TERN_OK || (st == TERN_E_LIMIT && cap < j->n_ids);) {
        free(j->ids);
        cap = j->n_ids;
        j->ids = malloc((cap + 64) * sizeof *j->ids); /* and a prefix */
        if (!j->ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for the prompt");
        else st = tern_chat_tokens(e, NULL, 0, &o, j->ids, cap, &j->n_ids, err);
        if (st == TERN_OK) break;
    }
    free(messages);
    free(tools);
    free(variables);
    json_decref(as_text);
    return st;
}

/* The first message of a user behind `from`, but not the last message; 0: there is none. */
static size_t next_turn(const json_t *messages, size_t from) {
    for (size_t i = from + 1; i + 1 < json_array_size(messages); i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (role && !strcmp(role, "user")) return i;
    }
    return 0;
}

/* Oldest turns leave until the prompt leaves a quarter of the context to the answer; by halves of what is
 * too much, so that the cut stays where it is for some turns. */
static tern_status shift(tn_job *j, const tern_engine *e, tern_error *err) {
    size_t n_ctx = (size_t)tn_queue_opts(j->q)->n_ctx, most = n_ctx - n_ctx / 4, wanted = n_ctx / 2;
    json_t *all = j->r.messages;
    const char *role = json_string_value(json_object_get(json_array_get(all, 0), "role"));
    size_t sys = role && !strcmp(role, "system");
    if (j->n_ids <= most) return TERN_OK;
    for (size_t cut = next_turn(all, sys), block = 0; cut; cut = next_turn(all, cut)) {
        if (cut / 8 == block && next_turn(all, cut)) continue; /* eight messages at a time */
        block = cut / 8;
        json_t *rest = json_array();
        for (size_t i = 0; i < json_array_size(all); i++)
            if (i < sys || i >= cut) tn_json_append(&rest, json_incref(json_array_get(all, i)));
        TN_FAIL_IF(!rest, err, TERN_E_MEMORY, "no memory for the request");
        j->r.messages = rest;
        tern_status st = chat_ids(j, e, err);
        j->r.messages = all;
        json_decref(rest);
        if (st != TERN_OK || j->n_ids <= wanted) return st;
    }
    return TERN_OK;
}

/* The markup in front of a call that must come, where the model would have written it. */
static tern_status put_prefix(tn_job *j, const tern_engine *e, tern_error *err) {
    const char *p = tn_tools_prefix(j->form.calls);
    size_t n = 0;
    if (!*p || !j->form.knows_tools || j->thinking) return TERN_OK;
    TN_TRY(tern_tokenize(e, p, strlen(p), false, true, j->ids + j->n_ids, 64, &n, err));
    j->n_ids += n;
    return TERN_OK;
}

static tern_status open_chat(tn_job *j, const tern_engine *e, tern_error *err) {
    const tn_tokenizer *t = e->model->tokenizer;
    tn_request *r = &j->r;
    const char *source = tn_queue_opts(j->q)->chat_template;
    if (!source && t) source = r->tools && t->tool_template ? t->tool_template : t->chat_template;
    j->form = tn_answer_form_of(source);
    TN_FAIL_IF(r->tools && j->form.foreign, err, TERN_E_UNSUPPORTED,
               "the model writes calls of tools in a form that is not read (%s)", j->form.foreign);
    TN_TRY(chat_ids(j, e, err));
    if (tn_queue_opts(j->q)->shift) TN_TRY(shift(j, e, err));
    j->thinking = j->form.think && tn_prompt_ends_with(t, j->ids, j->n_ids, j->form.think);
    if (r->forced) {
        tn_call_form form = j->form.knows_tools ? j->form.calls : TN_CALLS_GENERIC;
        TN_TRY(tn_tools_schema(r->tools, r->forced_tool, form, &r->schema, err));
        TN_TRY(put_prefix(j, e, err));
    }
    const tn_answer_options o = {.form = j->form,
                                 .tools = r->tools,
                                 .thinking = j->thinking,
                                 .forced = r->forced,
                                 .on = {on_text, on_thought, on_call, j}};
    return tn_answer_open((tn_ctx *)&e->ctx, &o, &j->reader, err);
}

/* Reads `lora`: adapters by name, "NAME[:SCALE],...", or as llama.cpp's server has it, [{"id": 0, "scale":
 * 0.5}], where those that are not in the list have no part. */
static tern_status read_adapters(tn_job *j, const tern_engine *e, tern_error *err) {
    enum { EACH = TN_LORA_NAME + 32 };
    const json_t *v = json_object_get(j->r.body, "lora");
    char text[TN_LORA_MIX * EACH] = "none";
    size_t n = 0;
    if (!v || json_is_null(v)) return tn_mix_parse(e, NULL, &j->mix, err);
    if (json_is_string(v)) return tn_mix_parse(e, json_string_value(v), &j->mix, err);
    TN_FAIL_IF(!json_is_array(v), err, TERN_E_INVALID,
               "'lora' must be a text or a list of {\"id\", \"scale\"}");
    TN_FAIL_IF(json_array_size(v) > TN_LORA_MIX, err, TERN_E_LIMIT, "'lora' has more than %d adapters",
               TN_LORA_MIX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *id = json_object_get(json_array_get(v, i), "id"),
                     *scale = json_object_get(json_array_get(v, i), "scale");
        const char *name = json_is_integer(id) && json_integer_value(id) >= 0
                               ? tern_engine_lora(e, (size_t)json_integer_value(id))
                               : NULL;
        TN_FAIL_IF(!name || !json_is_number(scale), err, TERN_E_INVALID,
                   "lora[%zu]: want the \"id\" of an adapter, counted from 0, and a \"scale\"", i);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s:%.9g", i ? "," : "", name,
                              json_number_value(scale));
    }
    return tn_mix_parse(e, text, &j->mix, err);
}

tern_status tn_answering_open(tn_job *j, const tern_engine *e, tern_error *err) {
    int32_t n_ctx = tn_queue_opts(j->q)->n_ctx;
    TN_TRY(read_adapters(j, e, err));
    if (j->r.api != TN_API_COMPLETIONS) {
        TN_TRY(open_chat(j, e, err));
    } else {
        size_t cap = j->r.n_prompt + 16;
        j->ids = malloc(cap * sizeof *j->ids);
        TN_FAIL_IF(!j->ids, err, TERN_E_MEMORY, "no memory for the prompt");
        TN_TRY(tern_tokenize(e, j->r.prompt, j->r.n_prompt, true, false, j->ids, cap, &j->n_ids, err));
    }
    TN_FAIL_IF(!j->n_ids, err, TERN_E_INVALID, "the prompt is empty: it has no tokens");
    TN_FAIL_IF(j->n_ids >= (size_t)n_ctx, err, TERN_E_LIMIT,
               "the prompt has %zu tokens and the context %d, of which one at least is for the answer",
               j->n_ids, n_ctx);
    return TERN_OK;
}

void tn_answering_options(tn_job *j, tern_generate_options *o) {
    tern_generate_options_defaults(o);
    o->max_tokens = j->r.max_tokens;
    o->sampling = j->r.sampling;
    o->stop = j->r.stop;
    o->grammar = j->r.grammar;
    o->json_schema = j->r.schema;
    if (j->thinking && (o->grammar || o->json_schema)) o->grammar_after = j->form.think_ends;
    o->special_text = j->reader && j->form.has_markers &&
                      (j->r.tools || j->form.calls == TN_CALLS_HARMONY || j->form.think);
    o->no_logprobs = !j->r.logprobs;
    o->on_token = on_token;
    if (j->r.n_top) o->on_logits = on_logits;
    o->user = j;
}

static bool finish_stream(tn_job *j) {
    if (!begin(j)) return false;
    if (j->r.api == TN_API_MESSAGES)
        return close_block(j) && event(j, tn_message_delta(j)) &&
               event(j, tn_json_pack("{s:s}", "type", "message_stop"));
    return event(j, tn_reply_end(j)) && (!j->r.include_usage || event(j, tn_reply_usage_event(j))) &&
           put_out(j, "data: ", strdup("[DONE]"), "\n\n");
}

bool tn_answering_finish(tn_job *j, tern_status st, const tern_error *err) {
    if (st == TERN_OK && j->reader && !tn_answer_end(j->reader)) return false;
    if (st == TERN_OK && j->r.stream) return finish_stream(j);
    if (st == TERN_OK) {
        char *text = NULL;
        json_t *v = j->r.api == TN_API_MESSAGES ? tn_message_whole(j) : tn_reply_whole(j);
        (void)tn_json_text(v, JSON_COMPACT, &text, NULL);
        json_decref(v);
        return put_out(j, "", text, "\n");
    }
    if (j->r.stream && j->out.n)
        (void)event(j, tn_reply_error(err, tn_reply_status(err), j->r.api == TN_API_MESSAGES));
    return true;
}

void tn_answering_free(tn_job *j) {
    tn_answer_close(&j->reader);
    json_decref(j->calls);
    json_decref(j->logprobs);
    json_decref(j->top);
    free(j->ids);
    free(j->out.p);
    free(j->text.p);
    free(j->thought.p);
    free(j->vector);
}
