/* cli/chat_talk.h - a conversation in a terminal: its messages, what of them is in the context, its
 * commands. */
#ifndef TN_CLI_CHAT_TALK_H
#define TN_CLI_CHAT_TALK_H

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
    bool undone;              /* the last command could not be done, and why was printed */
} chat;

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
