/* cli/chat_talk.h - a conversation in a terminal: its messages, what of them is in the context, its
 * commands. */
#ifndef TN_CLI_CHAT_TALK_H
#define TN_CLI_CHAT_TALK_H

#include "base/json.h"
#include "cli/answer.h"
#include "cli/looking.h"
#include "cli/terminal.h"
#include "measure/explain.h"

enum { CHAT_MESSAGES = 1024 };

typedef struct chat {
    tern_engine *e;
    tern_session *s;
    tern_generate_options g;
    tern_message msgs[CHAT_MESSAGES];
    size_t n_msgs;
    json_t *as[CHAT_MESSAGES]; /* a message with calls of tools, or of a tool, as templates have it; NULL */
    looking *seen[CHAT_MESSAGES]; /* the pictures of a message; NULL: it has none */
    looking *next;                /* those of the next question; NULL: none */
    size_t n_left; /* oldest messages after the system message that are no longer in the context */
    answer answer;
    double prefill_s, decode_s; /* of all turns */
    int32_t n_decoded, n_turns;
    bool terminal, keeps;   /* keeps: the history of what was typed lasts */
    bool leaves;            /* turns have left the context */
    tern_stop_reason ended; /* the last answer, of `said` tokens */
    int32_t said;
    bool shift, told;     /* a full context: the oldest turns leave; that was told */
    bool explains;        /* what each mechanism did is told after every answer */
    tn_explain_mark mark; /* what was before the last answer */
    bool plain;           /* no template: what is typed is continued */
    terminal *typed;
    char *source;             /* of the chat template, or NULL: the model's */
    const char *model;        /* its file */
    char *store;              /* the file, or NULL */
    struct tn_reader *reader; /* of files that go with a question (documents/reader.h) */
    char *attached;           /* goes in front of the next question */
    bool refused;             /* the last message was longer than the context, or than what is left of it */
    char *too_long;           /* that message, for /cut; or NULL */
    struct chat_tools *tools; /* of servers that the user named (cli/chat_tools.h); NULL: none */
    bool stopped;             /* the last answer is not whole: its calls are not made */
    bool undone;              /* the last command could not be done, and why was printed */
} chat;

/* The prompt of the messages that are in the context, malloc'ed; NULL: why was printed. */
int32_t *cli_chat_render(const chat *c, size_t *n_ids);
/* Oldest turns leave until half of the context is free, or none can. Takes ids, as the last returned them. */
int32_t *cli_chat_make_room(chat *c, int32_t *ids, size_t *n_ids);
/* The last message of the user; n_msgs: there is none. */
size_t cli_chat_question(const chat *c);

/* One turn: the user's text in, the answer out. A failed turn leaves the conversation as it was. */
bool cli_chat_turn(chat *c, const char *text);
/* The last message that was too long, as far as it fits. */
bool cli_chat_cut(chat *c);
bool cli_chat_push(chat *c, const char *role, const char *content);
void cli_chat_pop(chat *c, size_t n);
/* A line that begins with a slash. false: leave. */
bool cli_chat_command(chat *c, const char *text);
void cli_chat_print_stats(const chat *c);

#endif
