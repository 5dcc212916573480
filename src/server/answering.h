/* server/answering.h - one answer: from a request to a prompt's tokens, and from the tokens that the model
 * draws to events (sink.h), written into `put` in the form of the API. It knows no queue. */
#ifndef TN_SERVER_ANSWERING_H
#define TN_SERVER_ANSWERING_H

#include "model/lora.h"
#include "server/images.h"
#include "server/prompts.h"
#include "session/session.h"
#include "text/toolcall.h"

#include <stdatomic.h>

typedef struct tn_answering_options {
    tern_engine *e;
    const char *model; /* its name in replies */
    int32_t n_ctx;
    const char *chat_template; /* its source, or NULL: the model's */
    const tn_usual *usual;     /* of requests that do not say it; NULL: nothing was settled */
    tn_lora_mix own;           /* adapters of requests that name none */
    tn_images_from images;     /* who decodes pictures */
    bool shift;                /* the oldest turns of a conversation that is too long leave it */
    /* Of whoever has the answer. */
    bool (*put)(void *user, const char *text, size_t n); /* a stream goes on; false: no memory */
    void (*token)(void *user);                           /* a token is drawn */
    bool (*keep_probs)(void *user, size_t n); /* so many probabilities wait for the reply; false: too many */
    const atomic_bool *cancelled;
    void *user;
} tn_answering_options;

typedef struct tn_answering {
    tn_request r;
    tn_said said;
    tn_answering_options o;
    const tn_sink *sink;
    tn_lora_mix mix; /* adapters that it is answered with */
    tn_answer_form form;
    bool thinking;     /* the prompt ends within a thought */
    tn_answer *reader; /* of chats */
    tn_shaping shaping;
    tn_look **looks; /* at the pictures of the request, [json_array_size(r.pictures)]; NULL: there are none */
    tn_look **shown; /* [n_shown] those that are in the prompt, in their order */
    size_t n_shown;
    json_t *top;                   /* alternatives of the token drawn next */
    json_t *untold;                /* of r.text_logprobs: tokens whose text has not come */
    const struct tern_session *on; /* what it is made on; whoever has the answer says so */
    tn_scorer scorer;              /* of the prompt's log-probabilities */
    tn_bytes piece;                /* what an event says */
    tn_bytes arguments;            /* of a call that comes in pieces */
    bool skips;                    /* ... which is one too many */
    bool apart;                    /* the format holds for what is added to r.begun alone */
    bool begun, enough;            /* enough: the one call asked for is there */
    bool told;                     /* the last event of its stream says how it ended */
} tn_answering;

/* Takes the request, also on failure, and makes its prompt. a stays where it is until it is freed. */
tern_status tn_answering_open(tn_answering *a, tn_request *r, const tn_answering_options *o, tern_error *err);
/* What is asked of the engine. */
void tn_answering_options_of(tn_answering *a, tern_generate_options *o);
/* So many tokens of the prompt are read. false: no memory. */
bool tn_answering_read(tn_answering *a, size_t n_read);
/* The request wants log-probabilities of its prompt, which begins to be read: a->scorer makes them. */
tern_status tn_answering_score(tn_answering *a, tern_error *err);
/* All of the prompt is read, and they are there. false: no memory. */
bool tn_answering_scored(tn_answering *a);
/* The answer ended with this token, drawn from these logits. It has no text, but clients count on one entry for each token
 * drawn, where they asked for the prompt's too. false: no memory. */
bool tn_answering_ended(tn_answering *a, int32_t token, const float *logits);
/* What an answer may begin with in place of text of its format: a call of a tool. NULL: nothing. */
const char *tn_answering_mark(const tn_answering *a);
/* Where the answer goes on from a text, and keeps to a grammar: that text, borrowed. The grammar begins with it, where it
 * can. NULL: none. */
const char *tn_answering_begun(const tn_answering *a, size_t *n_bytes);
/* What of this grammar cannot be held while the answer is written is noted; the finished answer is checked for it. */
tern_status tn_answering_grammar(tn_answering *a, struct tn_grammar *g, tern_error *err);
/* The end, good or bad. false: no memory. */
bool tn_answering_finish(tn_answering *a, tern_status st, const tern_error *err);
/* Encodes the next view of the prompt's pictures that is not known and stands after the first n_known tokens, which
 * need no evaluation; *more tells whether one is left. */
tern_status tn_answering_see(tn_answering *a, size_t n_known, bool *more, tern_error *err);
void tn_answering_free(tn_answering *a);

#endif
