/* base/pause.h - long work that lets more urgent work go first, between two of its parts (a layer, a task). */
#ifndef TN_BASE_PAUSE_H
#define TN_BASE_PAUSE_H

#include <stdbool.h>
#include <stddef.h>

/* wanted is asked between parts, often and by any of the threads at work, so it is quick. Then the work's caller has
 * run do what is urgent, on its own thread; the work goes on afterwards, to the same bits. run may use other sessions
 * of the engine, but not the one that pauses. Work that run does is not paused itself. */
typedef struct tn_pause {
    bool (*wanted)(void *user);
    void (*run)(void *user);
    void *user;
} tn_pause;

/* NULL: nothing is more urgent. */
static inline void tn_pause_here(const tn_pause *p) {
    if (p && p->wanted(p->user)) p->run(p->user);
}

#endif
