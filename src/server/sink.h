/* server/sink.h - an answer as it is made, and how each API writes it.
 *
 * answering.c makes events of an answer and knows no API; a sink writes them in the form of one and knows
 * neither the queue nor the connection. What was said so far stands in tn_said, which the worker changes
 * until the answer has ended and nobody afterwards.
 *
 *   BEGIN  PROGRESS*  PROMPT?  (TEXT | THOUGHT | CALL ARGUMENTS* (CALLED | BROKEN) | TOKEN)*  END
 *
 * Several answers to one request (choices, prompts) are several tn_said, each with its events; whole and tail
 * write what belongs to all of them. */
#ifndef TN_SERVER_SINK_H
#define TN_SERVER_SINK_H

#include "base/bytes.h"
#include "server/request.h"
#include "server/scores.h"

typedef struct tn_said {
    const tn_request *r;
    const tern_engine *e;
    const char *model; /* its name in replies */
    char id[48];       /* the same for all answers to a request */
    int64_t created;   /* seconds since 1970 */
    int32_t choice;    /* which of the answers to the request */
    int32_t n_ctx;
    int32_t *ids; /* the prompt */
    size_t n_ids, n_cached, n_read;
    tn_bytes text, thought;   /* all of it */
    json_t *calls;            /* [{id, name, arguments}] */
    size_t n_calls, n_broken; /* n_broken of them were begun and are none, and have "broken": true */
    json_t *logprobs;         /* one of tn_said_logprob a token; a stream takes them out as it sends them */
    json_t *tokens;           /* their numbers, where the request wants them */
    tn_scores scores;         /* of the prompt, where it wants those */
    tern_generate_result res;
    const char *stopped_by; /* one of r->stop, or NULL */
    double prefill_s;
    int64_t first_ns; /* when the first token came; 0: not yet */
    char *later;      /* keywords of the schema that the finished text was checked for, or NULL; owned */
    bool fits;        /* the text, the schema; where later is not NULL */
    /* Of n_shared tokens it is known what they became, of which n_thought thoughts: when there were so many bytes of those,
     * and so much of everything else. */
    int32_t n_shared, n_thought;
    int32_t
        n_evaluated; /* of res.n_tokens: not the last one, unless the answer ended after it. Its time is theirs */
    size_t shared_thought, shared_rest;
    void *user; /* of whoever brought its own sink */
    /* the sink's own */
    size_t n_sent, n_tokens_sent; /* of text; of tokens */
    tn_place place;               /* in the text, of the next token */
    char block;                   /* the kind of the open block, or 0 */
    int n_blocks, n_events;
    json_t *items;          /* blocks that are whole; owned, or NULL */
    json_t *block_logprobs; /* of the open one's tokens; owned, or NULL */
} tn_said;

typedef enum tn_saying_kind {
    TN_SAYS_BEGIN,    /* what is known of the prompt is known: said.n_ids, n_cached */
    TN_SAYS_PROGRESS, /* n_read tokens of the prompt are read; for requests that want it */
    TN_SAYS_PROMPT, /* all of it is read, and said.scores has its log-probabilities; for requests that want them */
    TN_SAYS_TEXT,      /* more text */
    TN_SAYS_THOUGHT,   /* more of a thought */
    TN_SAYS_CALL,      /* a call begins: the last of said.calls */
    TN_SAYS_ARGUMENTS, /* more of its arguments */
    TN_SAYS_CALLED,    /* it is whole */
    TN_SAYS_BROKEN,    /* it will never be: it was cut, or is no call */
    TN_SAYS_TOKEN,     /* a token is done: what text came of it has been given out, the rest is held back */
    TN_SAYS_END        /* said.res says why */
} tn_saying_kind;

typedef struct tn_saying {
    tn_saying_kind kind;
    const char *text; /* [n]; "" where the kind has none */
    size_t n;
} tn_saying;

typedef struct tn_sink {
    const char *prefix; /* of ids */
    bool pieces;        /* its streams have the arguments of calls as they are written */
    const char *type;   /* of a stream's content; NULL: it has no stream */
    /* Appends what a stream says of the event, whole events only. false: no memory. */
    bool (*say)(tn_said *s, const tn_saying *e, tn_bytes *out);
    /* Appends what ends a stream in which all went well; NULL: its last event has said it. */
    bool (*tail)(tn_said *const *all, size_t n, tn_bytes *out);
    /* Appends what tells a client that its stream lives. */
    bool (*ping)(const tn_said *s, tn_bytes *out);
    /* Appends a failure, where a stream is under way. */
    bool (*fail)(const tern_error *err, tn_bytes *out);
    json_t *(*whole)(tn_said *const *all, size_t n); /* the reply of a request that wants no stream */
    json_t *(*error)(const tern_error *err, int status);
} tn_sink;

extern const tn_sink tn_sink_chat, tn_sink_completions; /* OpenAI's (sink_openai.c) */
extern const tn_sink tn_sink_messages;                  /* Anthropic's (sink_messages.c) */
extern const tn_sink tn_sink_llama;                     /* llama.cpp's server's (sink_llama.c) */

const tn_sink *tn_sink_of(tn_api api);

/* ---- what sinks have in common ------------------------------------------------------------------------ */

/* Appends a server-sent event. It takes value; name may be NULL. false, with nothing added: no memory. */
bool tn_sink_event(tn_bytes *out, const char *name, json_t *value);
/* OpenAI's form of a sink's ping (a comment), error and fail. */
bool tn_sink_ping(const tn_said *s, tn_bytes *out);
json_t *tn_sink_error(const tern_error *err, int status);
bool tn_sink_fail(const tern_error *err, tn_bytes *out);
/* A token and its log-probability, {id, token, logprob, bytes, top_logprobs}. It takes top, an array or
 * NULL. */
json_t *tn_said_logprob(const tern_engine *e, int32_t token, float logprob, json_t *top);
/* The same with the probability that it was drawn with, {id, token, prob, bytes, top_probs}. */
json_t *tn_said_prob(const tern_engine *e, int32_t token, double prob, json_t *top);
/* Everything that llama.cpp's server tells of an answer, as /completion has it. */
json_t *tn_said_verbose(const tn_said *s);
/* Log-probabilities that no event has told yet; NULL: none. */
json_t *tn_said_waiting(tn_said *s);
/* Where the finished answer was checked for keywords of its schema: which, and whether it fits. */
void tn_said_set_check(const tn_said *s, json_t **v);
/* A text gathered, which may be empty. */
json_t *tn_said_text(const tn_bytes *b);
/* {cache_n, prompt_n, prompt_ms, ..., predicted_per_second} as llama-server has them. */
json_t *tn_said_timings(const tn_said *s);
/* One token more came: s->res has how many, and how long they took, until the end tells it. */
void tn_said_took(tn_said *s);
/* Of its tokens, those of thoughts, with the marks in front of them. */
int32_t tn_said_thoughts(const tn_said *s);
/* What an event of a stream has besides, where the request wants timings with every one. */
void tn_said_set_timings(const tn_said *s, json_t **event);
/* {total, cache, processed, time_ms} of the prompt, likewise */
json_t *tn_said_progress(const tn_said *s);
bool tn_said_calls(const tn_said *s);  /* there is a whole call in it */
bool tn_said_length(const tn_said *s); /* it ended because there was no room */

#endif
