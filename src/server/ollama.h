/* server/ollama.h - Ollama's API (/api/...): its requests become those of a chat or a completion, and
 * sink_ollama.c writes its answers. */
#ifndef TN_SERVER_OLLAMA_H
#define TN_SERVER_OLLAMA_H

#include "server/sink.h"

extern const tn_sink tn_sink_ollama_chat, tn_sink_ollama_generate;

enum { TN_OLLAMA_TIME = 40 };
/* A time since 1970 as RFC 3339 has it. */
void tn_ollama_time(int64_t s, char out[TN_OLLAMA_TIME]);

typedef struct tn_ollama_asked {
    bool keeps;      /* it says how long the model stays */
    int64_t keep_ns; /* -1: for ever */
    bool loads;      /* there is nothing to answer: the model is loaded, or leaves */
} tn_ollama_asked;

/* Reads a body of /api/chat or, with generate, of /api/generate. What it asks beside the answer is in *asked,
 * and where that says `loads` r holds the body alone. On failure *r holds nothing. */
tern_status tn_ollama_read(bool generate, const char *body, size_t n_bytes, tn_request *r,
                           tn_ollama_asked *asked, tern_error *err);
/* Reads a body of /api/embed or, where there is one text alone, of /api/embeddings. r->body is one of OpenAI's form,
 * and its `truncate`; r has the fields that are not followed, and how long the model stays, and no more. */
tern_status tn_ollama_read_embed(bool several, const char *body, size_t n_bytes, tn_request *r,
                                 tn_ollama_asked *asked, tern_error *err);

#endif
