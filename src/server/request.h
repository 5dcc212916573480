/* server/request.h - the body of a request for an answer, read and checked. What is wrong is refused by its
 * name; fields that are not followed are named in `ignored`, and clients are told of them. */
#ifndef TN_SERVER_REQUEST_H
#define TN_SERVER_REQUEST_H

#include "base/json.h"
#include "base/status.h"

#include <stdatomic.h>

enum {
    TN_REQUEST_TOP = 20,
    TN_REQUEST_STOPS = 16,
    TN_REQUEST_MESSAGES = 4096,
    TN_REQUEST_TOKENS = 1 << 20,      /* no answer is longer; */
    TN_REQUEST_UNLIMITED = INT32_MAX, /* clients say so for as many as there may be */
    TN_REQUEST_ANSWERS = 128
};

/* What is meant by a limit that a request gives, up to TN_REQUEST_UNLIMITED; -1: none. */
static inline int32_t tn_request_most(double tokens) {
    return tokens > TN_REQUEST_TOKENS ? TN_REQUEST_TOKENS : (int32_t)tokens;
}

typedef enum tn_api {
    TN_API_COMPLETIONS, /* OpenAI's */
    TN_API_CHAT,
    TN_API_MESSAGES, /* Anthropic's */
    TN_API_LLAMA,    /* /completion of llama.cpp's server */
    TN_API_N
} tn_api;

/* What a request did not leave to the server. */
enum {
    TN_SAYS_TEMPERATURE = 1,
    TN_SAYS_TOP_K = 2,
    TN_SAYS_TOP_P = 4,
    TN_SAYS_MIN_P = 8,
    TN_SAYS_REPEAT = 16,
    TN_SAYS_REPEAT_LAST = 32,
    TN_SAYS_SEED = 64,
    TN_SAYS_MAX = 128
};

/* What holds for requests that do not say it themselves, as the server was told. */
typedef struct tn_usual {
    tern_sampling sampling;
    int32_t max_tokens;
    bool known;           /* sampling is */
    bool seeded, limited; /* seed and max_tokens are, too */
    int thinking; /* 1: thoughts come first where the template has them, -1: none do, 0: as it likes */
    bool verbose;
} tn_usual;

typedef struct tn_request {
    tn_api api;
    uint32_t says; /* TN_SAYS_... */
    json_t *body;  /* what texts below point into */
    /* Requests that share body, messages, pictures, tools, begun, sources and kept, which none of them changes; the last to be
     * freed frees these. NULL: this one alone has them. */
    atomic_int *sharers;
    /* These are of chats, and owned: messages and tools in OpenAI's form, every content a text, or texts and pictures; variables of
     * the template or NULL. */
    json_t *messages, *tools, *variables;
    json_t *pictures;        /* owned: of the messages (server/images.h); NULL: none */
    json_t *call_names;      /* owned: of the tools that the messages call, by the calls' ids; NULL: none */
    json_t *begun;           /* owned: the answer goes on from this text; NULL: it begins anew */
    bool no_answer;          /* the prompt ends with the last message */
    bool forced, one_call;   /* the answer is a call; no second one */
    const char *forced_tool; /* of this tool, or NULL: any */
    const json_t *prompt;    /* completions: a text, a list of tokens and texts, or {"prompt_string"} */
    bool several;            /* the body has a list of prompts, of which that is one */
    bool echo;               /* the text begins with the prompt, */
    bool scores;             /* and the log-probabilities with those of its tokens */
    bool anew; /* the prompt is read from its beginning: for its scores, or because the client says so */
    const char *suffix; /* what comes after the text, or NULL */
    bool renders;       /* the prompt is wanted as a text, and no answer */
    bool infill;        /* a place in a file is filled in */
    bool counts;        /* max_tokens is not needed */
    bool stream, include_usage, logprobs;
    bool text_logprobs; /* ... of the text's tokens alone, which streams keep to their end */
    int32_t n_top;      /* alternatives told for every token */
    int32_t max_tokens; /* -1: until the end */
    tern_sampling sampling;
    const char *stop[TN_REQUEST_STOPS + 1];
    const char *grammar;
    char *schema;     /* owned */
    json_t *sources;  /* owned, or NULL: the passages that the prompt quotes, told with the answer */
    json_t *kept;     /* owned, or NULL: what the sink keeps of the request */
    int32_t slot;     /* the session that answers: 1 + its number; 0: any */
    uint64_t client;  /* who asks, for fair turns */
    int priority;     /* server/priority.h */
    int64_t asked_ns; /* when; 0: when it is put into the queue */
    int32_t n, per_prompt, choice; /* answers wanted; to every prompt; which of them */
    bool embeds;                   /* a vector or a score is wanted, and no answer */
    bool keeps;                    /* it says how long the model stays in memory after it: */
    int64_t keep_ns;               /* -1: for ever */
    uint64_t id[2];                /* of all answers to it; 0: one is made */
    float presence, frequency;     /* penalties of tokens that the answer has */
    bool ignore_end, tokens;       /* do not stop at the end; tell the tokens' numbers */
    bool verbose;                  /* the reply has what llama.cpp's server tells of it besides */
    bool drawn_probs;              /* log-probabilities are those that tokens are drawn with, told as such */
    char ignored[1024];            /* fields that are not followed: "a, b" */
    bool progress;                 /* a stream tells how much of the prompt is read, */
    bool timings;                  /* and with every piece of text how long it took so far */
    struct tn_watch *watch;     /* borrowed: told what the request does (server/watch.h); NULL: nobody asks */
    const struct tn_sink *sink; /* what the answer is given to (server/sink.h); NULL: that of the API */
    void *sink_user;
} tn_request;

/* The JSON object that a body is. */
tern_status tn_request_object(const char *body, size_t n_bytes, json_t **out, tern_error *err);
/* TERN_E_MEMORY, "no memory for the request". */
tern_status tn_request_no_memory(tern_error *err);
/* Reads a request. On failure *r holds nothing and err says what is wrong with the body. */
tern_status tn_request_read(tn_api api, const char *body, size_t n_bytes, tn_request *r, tern_error *err);
/* The same of a body that is parsed; takes it, also on failure. */
tern_status tn_request_of(tn_api api, json_t *body, tn_request *r, tern_error *err);
/* The same of Anthropic's that only counts tokens, which needs no max_tokens. */
tern_status tn_request_of_count(json_t *body, tn_request *r, tern_error *err);
/* Reads what llama.cpp's server takes at /infill. */
tern_status tn_request_read_infill(const char *body, size_t n_bytes, tn_request *r, tern_error *err);
void tn_request_free(tn_request *r);
/* Gives it an id, where it has none. */
void tn_request_name(tn_request *r);
/* Fills in what it does not say. */
void tn_request_settle(tn_request *r, const tn_usual *usual);
/* The request of one of its r->n answers, as if it were alone: with a seed of its own. */
tern_status tn_request_copy(tn_request *r, int32_t choice, tn_request *out, tern_error *err);

/* ---- for the readers of each API --------------------------------------------------------------------- */

/* Reads what OpenAI's chats have besides the fields of all. */
tern_status tn_chat_read(tn_request *r, tern_error *err);
/* Reads temperature, top_p, top_k, min_p, the repetition penalty and the seed. */
tern_status tn_request_sampling(tn_request *r, tern_error *err);
/* A message of the assistant that stands last, without calls, is the beginning of the answer. */
void tn_request_split_begun(tn_request *r);
/* The calls of a message: results name them by their ids, and the last of an id counts. */
tern_status tn_request_note_calls(tn_request *r, const json_t *calls, tern_error *err);
void tn_request_ignore(tn_request *r, const char *name);

/* Reads the rest of a body of Anthropic's form. */
tern_status tn_messages_read(tn_request *r, tern_error *err);

/* Refuses a part of a content that is no text, in the words that clients of llama.cpp's server know where it is a picture.
 * Clients ask again where a status is 500, so that it is 400 here. */
tern_status tn_content_refuse(const char *where, const char *type, const char *there_are, tern_error *err);
bool tn_says_nothing(const json_t *v); /* null, false, empty, "none" */
/* Reads a number in [lo, hi]. *out stays as it is where the field is absent or null. */
tern_status tn_field_number(const json_t *body, const char *name, double lo, double hi, bool whole,
                            double *out, tern_error *err);
tern_status tn_field_flag(const json_t *body, const char *name, bool *out, tern_error *err);
/* Absent, null, or of the kind: JSON_STRING, JSON_ARRAY or JSON_OBJECT. */
tern_status tn_field_kind(const json_t *body, const char *name, json_type kind, tern_error *err);
/* How much to think, in the words of all APIs; how much to say. */
#define TN_EFFORTS "none, minimal, low, medium, high, xhigh, max"
#define TN_VERBOSITIES "low, medium, high"
/* Absent, null, empty, or one of these words, "a, b, c"; where names the field. */
tern_status tn_field_word(const json_t *v, const char *where, const char *words, tern_error *err);
/* Reads `stop`, or what it is called there. */
tern_status tn_field_stops(tn_request *r, const char *name, tern_error *err);
/* Reads a text, or joins parts of type text, as lines or as they are; where says whose it is. *out is a new
 * value. */
tern_status tn_content_text(const json_t *content, const char *where, bool lines, json_t **out,
                            tern_error *err);

#endif
