#include "server/request.h"

#include "base/clock.h"
#include "base/bytes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { CHAT = 1, TEXT = 2, BOTH = 3 };
static const double ANY = -1e300; /* whatever it is */

/* The fields that are followed, and by which requests. */
static const struct {
    const char *name;
    int where;
} followed[] = {{"model", BOTH},
                {"stream", BOTH},
                {"stream_options", BOTH},
                {"seed", BOTH},
                {"stop", BOTH},
                {"temperature", BOTH},
                {"top_p", BOTH},
                {"top_k", BOTH},
                {"min_p", BOTH},
                {"n", BOTH},
                {"id_slot", BOTH},
                {"cache_prompt", BOTH},
                {"n_cmpl", BOTH},
                {"max_tokens", BOTH},
                {"max_completion_tokens", BOTH},
                {"n_predict", BOTH},
                {"response_format", BOTH},
                {"grammar", BOTH},
                {"json_schema", BOTH},
                {"logprobs", BOTH},
                {"n_probs", BOTH},
                {"post_sampling_probs", BOTH},
                {"verbose", BOTH},
                {"repeat_penalty", BOTH},
                {"repeat_last_n", BOTH},
                {"presence_penalty", BOTH},
                {"frequency_penalty", BOTH},
                {"logit_bias", BOTH},
                {"ignore_eos", BOTH},
                {"return_tokens", BOTH},
                {"return_progress", BOTH},
                {"timings_per_token", BOTH},
                {"lora", BOTH},
                {"priority", BOTH},
                {"prompt", TEXT},
                {"echo", TEXT},
                {"suffix", TEXT},
                {"response_fields", TEXT},
                {"input_prefix", TEXT},
                {"input_suffix", TEXT},
                {"input_extra", TEXT},
                {"messages", CHAT},
                {"parallel_tool_calls", CHAT},
                {"tools", CHAT},
                {"tool_choice", CHAT},
                {"top_logprobs", CHAT},
                {"reasoning_effort", CHAT},
                {"chat_template_kwargs", CHAT},
                {"add_generation_prompt", CHAT},
                {"continue_final_message", CHAT}};

/* Fields that change nothing where they have this value, and are ignored where they have another. */
static const struct {
    const char *name;
    double neutral;
} neutral[] = {{"user", ANY},
               {"metadata", ANY},
               {"store", ANY},
               {"service_tier", ANY},
               {"safety_identifier", ANY},
               {"prompt_cache_key", ANY},
               {"prompt_cache_retention", ANY},
               {"prediction", ANY},
               {"best_of", 1},
               {"typical_p", 1},
               {"typ_p", 1},
               {"dynatemp_range", 0},
               {"xtc_probability", 0},
               {"dry_multiplier", 0},
               {"mirostat", 0},
               {"min_keep", 0},
               {"n_keep", 0},
               {"n_indent", 0},
               {"n_discard", 0},
               {"t_max_predict_ms", 0}};

/* What would answer in another form is refused. */
static const char *const refused[] = {"functions", "function_call", "audio", "web_search_options"};

bool tn_says_nothing(const json_t *v) {
    return !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) ||
           (json_is_string(v) && (!strcmp(json_string_value(v), "none") || !json_string_length(v)));
}

/* Names that go into a header are printable, and no list grows without end. */
void tn_request_ignore(tn_request *r, const char *name) {
    size_t at = strlen(r->ignored);
    if (at + strlen(name) + 3 > sizeof r->ignored || strlen(name) > 60) return;
    if (at) at += (size_t)snprintf(r->ignored + at, sizeof r->ignored - at, ", ");
    for (; *name; name++) r->ignored[at++] = *name > ' ' && *name < 127 && *name != ',' ? *name : '?';
    r->ignored[at] = 0;
}

static bool is_followed(const tn_request *r, const char *name) {
    int where = r->api == TN_API_CHAT ? CHAT : TEXT;
    for (size_t i = 0; i < sizeof followed / sizeof *followed; i++)
        if (!strcmp(followed[i].name, name)) return (followed[i].where & where) != 0;
    return false;
}

static bool changes_nothing(const char *name, const json_t *v) {
    if (tn_says_nothing(v)) return true;
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) {
        if (strcmp(neutral[i].name, name)) continue;
        double x = json_is_true(v) ? 1 : json_is_number(v) ? json_number_value(v) : NAN;
        return neutral[i].neutral == ANY || x == neutral[i].neutral;
    }
    const bool verbosity = !strcmp(name, "verbosity");
    if (!verbosity && strcmp(name, "modalities")) return false;
    const char *one = json_string_value(verbosity ? v : json_array_get(v, 0));
    return one && (verbosity ? !strcmp(one, "medium") : json_array_size(v) == 1 && !strcmp(one, "text"));
}

static tern_status check_fields(tn_request *r, tern_error *err) {
    const char *name;
    json_t *v;
    json_object_foreach(r->body, name, v) {
        if (is_followed(r, name) || json_is_null(v))
            continue; /* clients write null for what they do not say */
        bool known = false;
        for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) known |= !strcmp(neutral[i].name, name);
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
            known |= !strcmp(refused[i], name);
            TN_FAIL_IF(!strcmp(refused[i], name) && !tn_says_nothing(v), err, TERN_E_UNSUPPORTED,
                       "'%.60s' is not supported", name);
        }
        known |= !strcmp(name, "modalities") || !strcmp(name, "verbosity");
        if (!known || !changes_nothing(name, v)) tn_request_ignore(r, name);
    }
    return tn_field_word(json_object_get(r->body, "verbosity"), "verbosity", TN_VERBOSITIES, err);
}

tern_status tn_field_number(const json_t *body, const char *name, double lo, double hi, bool whole,
                            double *out, tern_error *err) {
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v)) return TERN_OK;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    TN_FAIL_IF(!(x >= lo && x <= hi) || (whole && x != floor(x)), err, TERN_E_INVALID,
               whole ? "'%s' must be a whole number from %.0f to %.0f"
                     : "'%s' must be a number from %g to %g",
               name, lo, hi);
    *out = x;
    return TERN_OK;
}

tern_status tn_field_flag(const json_t *body, const char *name, bool *out, tern_error *err) {
    const json_t *v = json_object_get(body, name);
    TN_FAIL_IF(v && !json_is_boolean(v) && !json_is_null(v), err, TERN_E_INVALID,
               "'%s' must be true or false", name);
    *out = json_is_true(v);
    return TERN_OK;
}

tern_status tn_field_kind(const json_t *body, const char *name, json_type kind, tern_error *err) {
    const json_t *v = json_object_get(body, name);
    TN_FAIL_IF(v && json_typeof(v) != kind && !json_is_null(v), err, TERN_E_INVALID, "'%s' must be %s", name,
               kind == JSON_STRING  ? "a text"
               : kind == JSON_ARRAY ? "a list"
                                    : "an object");
    return TERN_OK;
}

static bool is_among(const char *word, const char *words) {
    const size_t n = strlen(word);
    for (const char *p = words; *p; p += strspn(p, ", ")) {
        const size_t k = strcspn(p, ",");
        if (k == n && !memcmp(p, word, n)) return true;
        p += k;
    }
    return !n;
}

tern_status tn_field_word(const json_t *v, const char *where, const char *words, tern_error *err) {
    if (!v || json_is_null(v) || (json_is_string(v) && is_among(json_string_value(v), words))) return TERN_OK;
    return tn_fail(err, TERN_E_INVALID, "'%s' must be one of %s", where, words);
}

tern_status tn_field_stops(tn_request *r, const char *name, tern_error *err) {
    const json_t *v = json_object_get(r->body, name);
    if (!v || json_is_null(v)) return TERN_OK;
    size_t n = json_is_string(v) ? 1 : json_array_size(v), n_stops = 0;
    TN_FAIL_IF(!json_is_string(v) && !json_is_array(v), err, TERN_E_INVALID,
               "'%s' must be a text or a list of texts", name);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_string(v) ? v : json_array_get(v, i);
        TN_FAIL_IF(!json_is_string(s) || json_string_length(s) > 1000, err, TERN_E_INVALID,
                   "'%s' must hold texts of at most 1000 bytes", name);
        if (!json_string_length(s)) continue; /* clients send an empty field for none */
        TN_FAIL_IF(n_stops == TN_REQUEST_STOPS, err, TERN_E_LIMIT, "%zu stop texts: at most %d", n,
                   TN_REQUEST_STOPS);
        r->stop[n_stops++] = json_string_value(s);
    }
    return TERN_OK;
}

/* Reads response_format of OpenAI, and grammar and json_schema as llama.cpp's server has them. */
static tern_status format(tn_request *r, tern_error *err) {
    const json_t *f = json_object_get(r->body, "response_format"), *g = json_object_get(r->body, "grammar");
    const json_t *schema = json_object_get(r->body, "json_schema");
    if (json_is_null(schema)) schema = NULL;
    if (g && !json_is_null(g)) {
        TN_FAIL_IF(!json_is_string(g), err, TERN_E_INVALID, "'grammar' must be a text");
        if (json_string_length(g))
            r->grammar = json_string_value(g); /* clients send an empty field for none */
    }
    if (f && !json_is_null(f)) {
        const char *type = json_string_value(json_object_get(f, "type"));
        TN_FAIL_IF(!type, err, TERN_E_INVALID, "'response_format' has no type");
        TN_FAIL_IF(schema && strcmp(type, "text"), err, TERN_E_INVALID,
                   "'response_format' and 'json_schema': want one of them");
        if (!strcmp(type, "json_object")) {
            schema = json_object_get(f, "schema");
            TN_FAIL_IF(schema && !json_is_object(schema) && !json_is_boolean(schema), err, TERN_E_INVALID,
                       "'response_format.schema' must be an object");
            /* one that says nothing takes any value, and an object is asked for */
            if (json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema))) schema = NULL;
            if (!schema) r->schema = strdup("{\"type\":\"object\"}");
            TN_FAIL_IF(!schema && !r->schema, err, TERN_E_MEMORY, "no memory for the request");
        } else if (!strcmp(type, "json_schema")) {
            schema = json_object_get(json_object_get(f, "json_schema"), "schema");
            TN_FAIL_IF(!schema, err, TERN_E_INVALID, "'response_format.json_schema' has no schema");
        } else {
            TN_FAIL_IF(strcmp(type, "text"), err, TERN_E_UNSUPPORTED,
                       "response_format '%.40s' is not supported", type);
        }
    }
    if (schema) TN_TRY(tn_json_text(schema, JSON_ENCODE_ANY | JSON_COMPACT, &r->schema, err));
    TN_FAIL_IF(r->schema && r->grammar, err, TERN_E_INVALID, "a grammar and a JSON schema: want one of them");
    return TERN_OK;
}

/* A seed that nobody gave is another one each time. */
static tern_status read_seed(tn_request *r, tern_error *err) {
    const json_t *v = json_object_get(r->body, "seed");
    double seed = -1;
    uint64_t any = 0;
    if (json_is_integer(v)) seed = json_integer_value(v) == -1 ? -1 : 0; /* all of its 64 bits count */
    else TN_TRY(tn_field_number(r->body, "seed", -9007199254740992, 9007199254740992, true, &seed, err));
    if (seed == -1 && getrandom(&any, sizeof any, 0) != sizeof any) any = (uint64_t)tn_now_ns();
    if (seed != -1) r->says |= TN_SAYS_SEED;
    r->sampling.seed = seed == -1           ? any >> 32
                       : json_is_integer(v) ? (uint64_t)json_integer_value(v)
                                            : (uint64_t)(int64_t)seed;
    return TERN_OK;
}

/* Reads a number that the server may have settled otherwise. */
static tern_status usual_number(tn_request *r, const char *name, double lo, double hi, bool whole,
                                uint32_t which, double *out, tern_error *err) {
    const json_t *v = json_object_get(r->body, name);
    if (v && !json_is_null(v)) r->says |= which;
    return tn_field_number(r->body, name, lo, hi, whole, out, err);
}

void tn_request_settle(tn_request *r, const tn_usual *usual) {
    const tern_sampling *u = &usual->sampling;
    tern_sampling *s = &r->sampling;
    if (usual->limited && !(r->says & TN_SAYS_MAX)) r->max_tokens = usual->max_tokens;
    if (usual->seeded && !(r->says & TN_SAYS_SEED)) s->seed = u->seed + (uint64_t)(r->choice % r->per_prompt);
    r->verbose |= usual->verbose;
    if (!usual->known) return;
    if (!(r->says & TN_SAYS_TEMPERATURE)) s->temperature = u->temperature;
    if (!(r->says & TN_SAYS_TOP_K)) s->top_k = u->top_k;
    if (!(r->says & TN_SAYS_TOP_P)) s->top_p = u->top_p;
    if (!(r->says & TN_SAYS_MIN_P)) s->min_p = u->min_p;
    if (!(r->says & TN_SAYS_REPEAT)) s->repeat_penalty = u->repeat_penalty;
    if (!(r->says & TN_SAYS_REPEAT_LAST)) s->repeat_last_n = u->repeat_last_n;
}

tern_status tn_request_sampling(tn_request *r, tern_error *err) {
    tern_sampling *s = &r->sampling;
    tern_sampling_defaults(s);
    double temperature = (double)s->temperature, top_p = (double)s->top_p, top_k = s->top_k,
           min_p = (double)s->min_p, penalty = 1, last = 64;
    TN_TRY(usual_number(r, "temperature", 0, 100, false, TN_SAYS_TEMPERATURE, &temperature, err));
    TN_TRY(usual_number(r, "top_p", 0, 1, false, TN_SAYS_TOP_P, &top_p, err));
    TN_TRY(usual_number(r, "top_k", -1, 1e9, true, TN_SAYS_TOP_K, &top_k, err));
    TN_TRY(usual_number(r, "min_p", 0, 0.999, false, TN_SAYS_MIN_P, &min_p, err));
    TN_TRY(usual_number(r, "repeat_penalty", 0.01, 100, false, TN_SAYS_REPEAT, &penalty, err));
    TN_TRY(usual_number(r, "repeat_last_n", -1, 1 << 24, true, TN_SAYS_REPEAT_LAST, &last, err));
    if (top_p < 1e-6) r->says |= TN_SAYS_TOP_K;
    s->temperature = (float)temperature;
    s->top_p = top_p >= 1e-6 ? (float)top_p : 1;
    s->top_k = top_p >= 1e-6 ? top_k > 0 ? (int32_t)top_k : 0 : 1; /* nothing but the likeliest is left */
    s->min_p = (float)min_p;
    s->repeat_penalty = last == 0 ? 1 : (float)penalty;
    s->repeat_last_n = last == 0 ? 64 : (int32_t)last;
    return read_seed(r, err);
}

static tern_status read_penalties(tn_request *r, tern_error *err) {
    double presence = 0, frequency = 0;
    TN_TRY(tn_field_number(r->body, "presence_penalty", -100, 100, false, &presence, err));
    TN_TRY(tn_field_number(r->body, "frequency_penalty", -100, 100, false, &frequency, err));
    r->presence = (float)presence;
    r->frequency = (float)frequency;
    return TERN_OK;
}

/* Whether what is known of the prompt may be used. llama.cpp takes numbers, too. */
static tern_status read_known(tn_request *r, tern_error *err) {
    const json_t *v = json_object_get(r->body, "cache_prompt");
    bool flag;
    if (!json_is_integer(v)) TN_TRY(tn_field_flag(r->body, "cache_prompt", &flag, err));
    r->anew = json_is_integer(v) ? !json_integer_value(v) : json_is_false(v);
    return TERN_OK;
}

static tern_status read_limits(tn_request *r, tern_error *err) {
    double max = r->api == TN_API_COMPLETIONS ? 16 : -1, n = 1, slot = -1; /* 16 as the API has it */
    TN_TRY(tn_field_number(r->body, "n_predict", -1, TN_REQUEST_UNLIMITED, true, &max, err));
    TN_TRY(tn_field_number(r->body, "max_tokens", -1, TN_REQUEST_UNLIMITED, true, &max, err));
    TN_TRY(tn_field_number(r->body, "max_completion_tokens", -1, TN_REQUEST_UNLIMITED, true, &max, err));
    TN_TRY(tn_field_number(r->body, "n", 1, TN_REQUEST_ANSWERS, true, &n, err));
    TN_TRY(tn_field_number(r->body, "n_cmpl", 1, TN_REQUEST_ANSWERS, true, &n, err)); /* llama.cpp's word */
    static const char *const limits[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const json_t *v = json_object_get(r->body, limits[i]);
        if (v && !json_is_null(v)) r->says |= TN_SAYS_MAX;
    }
    TN_TRY(tn_field_number(r->body, "id_slot", -1, INT16_MAX, true, &slot, err));
    r->slot = (int32_t)slot + 1;
    r->max_tokens = tn_request_most(max);
    r->per_prompt = r->n = (int32_t)n;
    return TERN_OK;
}

/* How many of the likeliest tokens are told; each API has its own words for that. */
static tern_status read_logprobs(tn_request *r, tern_error *err) {
    double top = -1, n_probs = 0;
    TN_TRY(tn_field_number(r->body, "n_probs", 0, TN_REQUEST_TOP, true, &n_probs, err));
    if (r->api == TN_API_CHAT) {
        TN_TRY(tn_field_flag(r->body, "logprobs", &r->logprobs, err));
        TN_TRY(tn_field_number(r->body, "top_logprobs", 0, TN_REQUEST_TOP, true, &top, err));
        TN_FAIL_IF(top > 0 && !r->logprobs, err, TERN_E_INVALID, "'top_logprobs' goes with 'logprobs'");
    } else if (r->api == TN_API_COMPLETIONS) {
        TN_TRY(tn_field_number(r->body, "logprobs", 0, TN_REQUEST_TOP, true, &top, err));
        r->logprobs = top >= 0;
    }
    if (n_probs > 0) r->logprobs = true;
    r->n_top = (int32_t)(top > n_probs ? top : n_probs);
    return TERN_OK;
}

/* A prompt is a text, a list of tokens and texts, or {"prompt_string"}; several are a list of those. */
static bool is_sequence(const json_t *p) {
    for (size_t i = 0; i < json_array_size(p); i++)
        if (json_is_integer(json_array_get(p, i))) return true;
    return false;
}

static tern_status check_prompt(const json_t *p, tern_error *err) {
    if (json_is_object(p)) {
        TN_FAIL_IF(
            !tn_says_nothing(json_object_get(p, "multimodal_data")), err, TERN_E_UNSUPPORTED,
            "'multimodal_data' is not supported here: pictures go with messages (/v1/chat/completions)");
        p = json_object_get(p, "prompt_string");
    }
    bool ok = json_is_string(p) || is_sequence(p);
    for (size_t i = 0; i < json_array_size(p); i++) {
        const json_t *x = json_array_get(p, i);
        ok &= json_is_string(x) || json_is_integer(x);
    }
    TN_FAIL_IF(!ok, err, TERN_E_INVALID,
               "'prompt' must be a text, a list of tokens and texts, or a list of those");
    return TERN_OK;
}

static tern_status read_prompts(tn_request *r, tern_error *err) {
    json_t *p = json_object_get(r->body, "prompt");
    r->several = json_is_array(p) && !is_sequence(p);
    size_t n = r->several ? json_array_size(p) : 1;
    TN_FAIL_IF(!n || (size_t)r->per_prompt * n > TN_REQUEST_ANSWERS, err, TERN_E_LIMIT,
               "'prompt' and 'n' ask for %zu answers: want 1 to %d", (size_t)r->per_prompt * n,
               TN_REQUEST_ANSWERS);
    for (size_t i = 0; i < n; i++) TN_TRY(check_prompt(r->several ? json_array_get(p, i) : p, err));
    r->n = (int32_t)n * r->per_prompt;
    r->prompt = r->several ? json_array_get(p, 0) : p;
    TN_TRY(tn_field_kind(r->body, "response_fields", JSON_ARRAY, err));
    TN_TRY(tn_field_flag(r->body, "echo", &r->echo, err));
    r->scores = r->echo && r->logprobs;
    r->anew |= r->scores; /* what is kept has no log-probabilities */
    TN_FAIL_IF(r->scores && r->api != TN_API_COMPLETIONS, err, TERN_E_UNSUPPORTED,
               "'echo' with log-probabilities is not supported here: /v1/completions has them");
    TN_FAIL_IF(r->scores && r->drawn_probs, err, TERN_E_UNSUPPORTED,
               "'echo' with 'post_sampling_probs' is not supported: a prompt is not drawn");
    const json_t *suffix = json_object_get(r->body, "suffix");
    TN_FAIL_IF(suffix && !json_is_null(suffix) && !json_is_string(suffix), err, TERN_E_INVALID,
               "'suffix' must be a text");
    if (json_string_length(suffix)) r->suffix = json_string_value(suffix);
    TN_FAIL_IF(r->suffix && !json_is_string(r->prompt), err, TERN_E_INVALID,
               "'suffix' goes with a 'prompt' that is one text");
    TN_FAIL_IF(r->suffix && r->scores, err, TERN_E_UNSUPPORTED,
               "'suffix' with 'echo' and 'logprobs' is not supported: the prompt is not the text");
    return TERN_OK;
}

static tern_status read_all(tn_request *r, tern_error *err) {
    TN_TRY(check_fields(r, err));
    TN_TRY(tn_field_flag(r->body, "stream", &r->stream, err));
    const json_t *so = json_object_get(r->body, "stream_options");
    if (so && !json_is_null(so)) {
        TN_FAIL_IF(!json_is_object(so) || !r->stream, err, TERN_E_INVALID,
                   "'stream_options' goes with 'stream'");
        TN_TRY(tn_field_flag(so, "include_usage", &r->include_usage, err));
    }
    TN_TRY(tn_request_sampling(r, err));
    TN_TRY(read_penalties(r, err));
    TN_TRY(read_limits(r, err));
    TN_TRY(read_known(r, err));
    TN_TRY(tn_field_flag(r->body, "verbose", &r->verbose, err));
    TN_TRY(tn_field_flag(r->body, "post_sampling_probs", &r->drawn_probs, err));
    TN_TRY(read_logprobs(r, err));
    TN_TRY(tn_field_flag(r->body, "ignore_eos", &r->ignore_end, err));
    TN_TRY(tn_field_flag(r->body, "return_tokens", &r->tokens, err));
    r->tokens |= r->api == TN_API_LLAMA; /* whose streams have them */
    TN_TRY(tn_field_flag(r->body, "return_progress", &r->progress, err));
    TN_TRY(tn_field_flag(r->body, "timings_per_token", &r->timings, err));
    TN_TRY(tn_field_stops(r, "stop", err));
    /* tokens of what a stop text takes away are not told: they come with the text that they are */
    r->text_logprobs = r->logprobs && r->stop[0] && !r->echo && !r->drawn_probs && r->api != TN_API_LLAMA;
    TN_TRY(format(r, err));
    return r->api == TN_API_CHAT ? tn_chat_read(r, err) : read_prompts(r, err);
}

/* A file is filled in at one place: what is before, with other files in front of it, and what is after. */
static tern_status read_infill(tn_request *r, tern_error *err) {
    const json_t *before = json_object_get(r->body, "input_prefix"),
                 *after = json_object_get(r->body, "input_suffix"),
                 *here = json_object_get(r->body, "prompt"), *files = json_object_get(r->body, "input_extra");
    TN_FAIL_IF(!json_is_string(before) || !json_is_string(after), err, TERN_E_INVALID,
               "'input_prefix' and 'input_suffix' must be texts");
    TN_FAIL_IF(here && !json_is_string(here), err, TERN_E_INVALID, "'prompt' must be a text");
    TN_FAIL_IF(files && !json_is_array(files), err, TERN_E_INVALID, "'input_extra' must be a list");
    tn_bytes text = {0};
    bool ok = true;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i), *name = json_object_get(f, "filename"),
                     *content = json_object_get(f, "text");
        if (!json_is_string(content) || (name && !json_is_string(name))) {
            free(text.p);
            return tn_fail(err, TERN_E_INVALID, "input_extra[%zu]: want {\"filename\", \"text\"}, both texts",
                           i);
        }
        ok = ok && (!name || (tn_bytes_put(&text, json_string_value(name)) && tn_bytes_put(&text, "\n"))) &&
             tn_bytes_add(&text, json_string_value(content), json_string_length(content)) &&
             tn_bytes_put(&text, "\n");
    }
    ok = ok && tn_bytes_add(&text, json_string_value(before), json_string_length(before)) &&
         tn_bytes_add(&text, here ? json_string_value(here) : "", json_string_length(here));
    if (ok) tn_json_set(&r->body, "prompt", tn_json_string(text.p, text.n));
    free(text.p);
    TN_FAIL_IF(!ok || !r->body, err, TERN_E_MEMORY, "no memory for the request");
    TN_TRY(read_all(r, err));
    r->suffix = json_string_value(json_object_get(r->body, "input_suffix"));
    return TERN_OK;
}

tern_status tn_request_object(const char *body, size_t n_bytes, json_t **out, tern_error *err) {
    json_error_t je;
    json_t *v = tn_json_parse(body, n_bytes, TN_JSON_REQUEST, &je);
    *out = NULL;
    TN_FAIL_IF(!v, err, TERN_E_INVALID, "the body is not valid JSON, line %d: %.200s", je.line, je.text);
    if (json_is_object(v)) {
        *out = v;
        return TERN_OK;
    }
    json_decref(v);
    return tn_fail(err, TERN_E_INVALID, "the body is not a JSON object");
}

tern_status tn_request_no_memory(tern_error *err) {
    return tn_fail(err, TERN_E_MEMORY, "no memory for the request");
}

/* Reads r->body, which it takes as its own. */
static tern_status read_parsed(tn_request *r, tern_error *err) {
    tern_status st = TERN_OK;
    if (!json_is_object(r->body)) st = tn_fail(err, TERN_E_INVALID, "the body is not a JSON object");
    if (st == TERN_OK)
        st = r->api == TN_API_MESSAGES ? tn_messages_read(r, err)
             : r->infill               ? read_infill(r, err)
                                       : read_all(r, err);
    if (st != TERN_OK) tn_request_free(r);
    return st;
}

static tern_status read_body(const char *body, size_t n_bytes, tn_request *r, tern_error *err) {
    TN_TRY(tn_request_object(body, n_bytes, &r->body, err));
    return read_parsed(r, err);
}

tern_status tn_request_of(tn_api api, json_t *body, tn_request *r, tern_error *err) {
    *r = (tn_request){.api = api, .n = 1, .per_prompt = 1, .body = body};
    return read_parsed(r, err);
}

tern_status tn_request_read(tn_api api, const char *body, size_t n_bytes, tn_request *r, tern_error *err) {
    *r = (tn_request){.api = api, .n = 1, .per_prompt = 1};
    return read_body(body, n_bytes, r, err);
}

tern_status tn_request_read_infill(const char *body, size_t n_bytes, tn_request *r, tern_error *err) {
    *r = (tn_request){.api = TN_API_LLAMA, .n = 1, .per_prompt = 1, .infill = true};
    return read_body(body, n_bytes, r, err);
}

tern_status tn_request_of_count(json_t *body, tn_request *r, tern_error *err) {
    *r = (tn_request){.api = TN_API_MESSAGES, .n = 1, .per_prompt = 1, .counts = true, .body = body};
    return read_parsed(r, err);
}

void tn_request_free(tn_request *r) {
    const bool last = !r->sharers || atomic_fetch_sub(r->sharers, 1) == 1;
    json_decref(r->variables);
    free(r->schema);
    if (last) {
        json_decref(r->messages);
        json_decref(r->pictures);
        json_decref(r->call_names);
        json_decref(r->tools);
        json_decref(r->begun);
        json_decref(r->sources);
        json_decref(r->kept);
        json_decref(r->body);
        free(r->sharers);
    }
    *r = (tn_request){0};
}

void tn_request_name(tn_request *r) {
    if (!r->id[0] && getrandom(r->id, sizeof r->id, 0) != sizeof r->id) r->id[0] = (uint64_t)tn_now_ns();
}

/* Answers are made by other threads than the one that reads the request, so what they share is counted as a whole: a
 * value's own count is read by jansson without care for other threads. */
tern_status tn_request_copy(tn_request *r, int32_t choice, tn_request *out, tern_error *err) {
    if (!r->sharers) {
        r->sharers = malloc(sizeof *r->sharers);
        TN_FAIL_IF(!r->sharers, err, TERN_E_MEMORY, "no memory for the request");
        atomic_init(r->sharers, 1);
    }
    *out = *r;
    atomic_fetch_add(r->sharers, 1);
    out->choice = choice;
    out->schema = r->schema ? strdup(r->schema) : NULL;
    out->variables = r->variables ? tn_json_copy(r->variables) : NULL;
    if (r->several)
        out->prompt = json_array_get(json_object_get(r->body, "prompt"), (size_t)(choice / r->per_prompt));
    out->sampling.seed += (uint64_t)(choice % r->per_prompt);
    if ((!r->schema || out->schema) && (!r->variables || out->variables)) return TERN_OK;
    tn_request_free(out);
    return tn_request_no_memory(err);
}
