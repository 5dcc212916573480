/* base/child.h - a program of the user's, with pipes to its input and from its output and messages.
 *
 * It begins with nothing else of this process open, in a process group of its own, so that Ctrl-C in a terminal does
 * not reach it. On Linux it is told to end when the thread that started it ends. On Windows none can be started yet
 * (base/windows/child.c). */
#ifndef TN_BASE_CHILD_H
#define TN_BASE_CHILD_H

#include "base/status.h"

typedef struct tn_child {
    int64_t pid;            /* and of its group; 0: there is none */
    bool ended;             /* it has, and waits to be told of: its number is nobody else's yet */
    int to, from, messages; /* its input, output and errors; they do not block; -1: closed */
} tn_child;

/* Starts what a shell makes of the command. It fails where there is no process, not where the command is none: that
 * one ends at once. */
tern_status tn_child_start(const char *command, tn_child *out, tern_error *err);
/* Has it ended? Then `how` says "ended with status 3", or which signal ended it. */
bool tn_child_ended(tn_child *c, char *how, size_t cap);
/* Closes its input, which tells most programs to end, and waits for that up to grace_ms; then it is told by a signal,
 * and after as long again it is ended. So are those that it started and left in its group. A process that may send no
 * signals only waits. */
void tn_child_end(tn_child *c, int grace_ms);
/* For a process that will be allowed to send no signals: starts another one, which outlives it by a moment and ends the
 * groups of these, however it ended. Call it while there is one thread; none of them may be started again. */
tern_status tn_child_guard(const tn_child *const *all, size_t n, tern_error *err);

#endif
