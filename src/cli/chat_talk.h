/* cli/chat_talk.h - a conversation in a terminal: its messages, what of them is in the context, its
 * commands. */
#ifndef TN_CLI_CHAT_TALK_H
#define TN_CLI_CHAT_TALK_H

#include "cli/answer.h"
#include "cli/terminal.h"
#include "lab/explain.h"

enum { CHAT_MESSAGES = 1024 };

typedef struct chat {
    tern_engine *e;
    tern_session *s;
    tern_generate_options g;
    tern_message msgs[CHAT_MESSAGES];
    size_t n_msgs;
    size_t n_left; /* oldest messages behind the system message that are no longer in the context */
    answer answer;
    double prefill_s, decode_s; /* of all turns */
    int32_t n_decoded, n_turns;
    bool terminal, keeps; /* keeps: the history of what was typed lasts */
    bool leaves, cut;     /* turns have left the context; the last answer ended with it */
    bool shift, told;     /* a full context: the oldest turns leave; that was told */
    bool explains;        /* what each mechanism did is told behind every answer */
    tn_explain_mark mark; /* what was before the last answer */
    bool plain;           /* no template: what is typed is continued */
    terminal *typed;
    char *source;      /* of the chat template, or NULL: the model's */
    const char *model; /* its file */
    char *store;       /* the file, or NULL */
    char *attached;    /* goes in front of the next question */
} chat;

/* One turn: the user's text in, the answer out. A failed turn leaves the conversation as it was. */
bool cli_chat_turn(chat *c, const char *text);
bool cli_chat_push(chat *c, const char *role, const char *content);
void cli_chat_pop(chat *c, size_t n);
/* A line that begins with a slash. false: leave. */
bool cli_chat_command(chat *c, const char *text);

#endif
