/* text/toolcall.h - the parts of a model's answer: content, thoughts, tool calls.
 *
 *   tn_answer_form_of      which markup a chat template teaches its model
 *   tn_answer_open, put    the answer's text as it comes, cut at any byte, to three kinds of events
 *   tn_tools_schema        a JSON schema whose texts are calls of the tools given, for text/grammar
 *   tn_tools_as_text       a conversation with tools for a template that knows none
 *
 * A call is given out whole: a name and the text of a JSON object. What only looks like one (it never ends,
 * is not JSON, has no name) is content, byte for byte: nothing is lost. White space around calls and thoughts
 * is dropped. The events do not depend on how the text was cut.
 *
 * Who wants them in pieces gets a call as soon as it is certain that it is one of a known tool and that its
 * arguments begin: where they are JSON, and the name stands before them. Together the pieces are the arguments
 * that would have been given out whole. What has begun cannot be taken back: if it turns out to be no call, its end
 * says so, and its text up to the end of its markup, or of the line where that is missing, is not content too. Other
 * calls come whole all the same. */
#ifndef TN_TEXT_TOOLCALL_H
#define TN_TEXT_TOOLCALL_H

#include "base/ctx.h"

#include <jansson.h>

typedef enum tn_call_form {
    TN_CALLS_GENERIC, /* {"name", "arguments"} as the whole answer, bare or in a fence; also as HERMES */
    TN_CALLS_HERMES,  /* <tool_call>{"name", "arguments"}</tool_call>; <function=NAME><parameter=KEY>VALUE...
                       */
    TN_CALLS_LLAMA3, /* {"name", "parameters"} as the whole answer; <|python_tag|>JSON, name.call(...) or code
                      */
    TN_CALLS_MISTRAL, /* [TOOL_CALLS][{"name", "arguments"}], or NAME[ARGS]{...} */
    TN_CALLS_GEMMA,   /* <start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call> */
    TN_CALLS_LFM2,    /* <|tool_call_start|>[name(key="text")]<|tool_call_end|> */
    TN_CALLS_HARMONY  /* <|channel|>commentary to=functions.NAME<|message|>{...}<|call|> */
} tn_call_form;

typedef struct tn_answer_form {
    tn_call_form calls;
    bool knows_tools; /* the template writes tools and their results */
    bool has_markers; /* control tokens are part of the markup: their text must be given to tn_answer_put */
    const char *think, *think_ends; /* "<think>", "</think>"; NULL: thoughts are not marked */
    const char *foreign;            /* call markup that is not supported, or NULL */
} tn_answer_form;

/* Finds the form that a template teaches. template may be NULL. */
tn_answer_form tn_answer_form_of(const char *template);

typedef enum tn_call_piece {
    TN_PIECE_NAME,  /* a call begins: its name, which ends in a zero */
    TN_PIECE_MORE,  /* more of its arguments */
    TN_PIECE_WHOLE, /* it has ended; no text */
    TN_PIECE_BROKEN /* it is no call: it was cut, or is no JSON; no text */
} tn_call_piece;

/* Callbacks return false to stop; tn_answer_put then returns false. Texts are given out as soon as they are
 * certain. */
typedef struct tn_answer_events {
    bool (*on_text)(void *user, const char *text, size_t n);
    bool (*on_thought)(void *user, const char *text, size_t n);
    bool (*on_call)(void *user, const char *name, const char *arguments); /* arguments: JSON of an object */
    void *user;
    bool (*on_piece)(void *user, tn_call_piece what, const char *text, size_t n); /* NULL: calls come whole */
} tn_answer_events;

typedef struct tn_answer_options {
    tn_answer_form form;
    const json_t *tools; /* in the form of OpenAI's API: names, and types of arguments; NULL: no calls are
                            read. Borrowed */
    bool thinking;       /* the prompt ended inside a thought */
    bool forced;         /* after its thoughts the answer must follow tn_tools_schema */
    tn_answer_events on;
} tn_answer_options;

typedef struct tn_answer tn_answer;

tern_status tn_answer_open(tn_ctx *ctx, const tn_answer_options *o, tn_answer **out, tern_error *err);
void tn_answer_close(tn_answer **a);
/* Puts text. Returns false if a callback stopped it or memory ran out (tn_answer_failed). */
bool tn_answer_put(tn_answer *a, const char *text, size_t n);
/* Ends the answer: text held back is given out. */
bool tn_answer_end(tn_answer *a);
bool tn_answer_failed(const tn_answer *a);

/* ---- tools ----------------------------------------------------------------------------------------- */

/* Checks that it is an array of {"type": "function", "function": {"name", ...}}. */
tern_status tn_tools_check(const json_t *tools, tern_error *err);
/* Writes the schema of one call, of tool `name`, or of any tool if that is NULL. The caller frees *out with
 * free. */
tern_status tn_tools_schema(const json_t *tools, const char *name, tn_call_form form, char **out,
                            tern_error *err);
/* Returns what a model writes before a call, for prompts that end where a call must begin; "" for none. */
const char *tn_tools_prefix(tn_call_form form);
/* Returns what calls begin with, and nothing else does; NULL: a call is not told from other JSON by its beginning. */
const char *tn_tools_mark(tn_call_form form);
/* Writes messages with calls and results as plain text, after a system message with the tools. The caller
 * owns *out. */
tern_status tn_tools_as_text(const json_t *messages, const json_t *tools, json_t **out, tern_error *err);

#endif
