/* base/child.h - a program of the user's, with pipes to its input and from its output and messages.
 *
 * It begins with nothing else of this process open, in a process group of its own, so that Ctrl-C in a terminal does
 * not reach it. On Linux it is told to end when the thread that started it ends. On Windows none can be started yet
 * (base/windows/child.c). */
#ifndef TN_BASE_CHILD_H
#define TN_BASE_CHILD_H

#include "base/status.h"

typedef struct tn_child {
    int64_t pid;              /* and of its group; 0: there is none */
    bool ended;               /* it has, and waits to be told of: its number is nobody else's yet */
    int to, from, messages;   /* its input, output and errors; they do not block; -1: closed */
    struct tn_keeper *keeper; /* that started it as its number i (below); NULL: this process did */
    size_t i;
} tn_child;

/* Starts what a shell makes of the command. It fails where there is no process, not where the command is none: that
 * one ends at once. */
tern_status tn_child_start(const char *command, tn_child *out, tern_error *err);
/* Has it ended? Then `how` says "ended with status 3", or which signal ended it. */
bool tn_child_ended(tn_child *c, char *how, size_t cap);
/* Closes its input, which tells most programs to end, and waits for that up to grace_ms; then it is told by a signal,
 * and after as long again it is ended. So are those that it started and left in its group. */
void tn_child_end(tn_child *c, int grace_ms);

/* A keeper is a process that keeps programs of the user's for one that will be allowed to start none and to send no signals
 * (documents/sandbox.h): it starts them when it is asked to, tells what became of them, and ends them, at the latest when the
 * process that asks has ended, however that was. It knows its commands from the beginning, and takes numbers of them alone.
 * A program that it started is a tn_child like others. Any thread may ask; one at a time is answered. */
enum { TN_KEPT = 16 }; /* programs of a keeper, at most */

typedef struct tn_keeper tn_keeper;

/* Call it while there is one thread. It copies the commands. */
tern_status tn_keeper_open(const char *const *commands, size_t n, tn_keeper **out, tern_error *err);
/* Ends what it keeps, and itself; it waits for neither. After the last tn_child_end of its programs. */
void tn_keeper_close(tn_keeper **k);
/* Starts command i; a program that it was started as before is ended first. It must outlive the child. */
tern_status tn_keeper_start(tn_keeper *k, size_t i, tn_child *out, tern_error *err);

#endif
