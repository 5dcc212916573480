/* text/grammar/machine.h - runs a grammar's program: from bytes to states, each computed once.
 *
 * A configuration is a node that reads a byte, and a frame: where its rule returns to, and so on up to the
 * root rule. A state is a set of configurations. Frames and states are stored once each and known by number,
 * so the second time a state and a byte meet, the result is a look-up.
 *
 * The frame `hole` stands for any frame. What a configuration over the hole may read is valid under every
 * frame (mask.c keeps it); where its rule ends, the state gets an escape. Over a loop's body the hole carries
 * a number: rounds begun since. */
#ifndef TN_TEXT_GRAMMAR_MACHINE_H
#define TN_TEXT_GRAMMAR_MACHINE_H

#include "text/grammar/program.h"

enum { TN_GS_DEAD = 0 };                /* the state without configurations */
enum { TN_GF_TOP = 0, TN_GF_HOLE = 1 }; /* frames */
#define TN_GC_ACCEPT UINT32_MAX         /* as a node: the grammar may end here */
#define TN_GC_ESCAPE (UINT32_MAX - 1)   /* as a node: left through the hole; "frame" is the round */

typedef enum tn_gframe_kind { TN_GFK_END, TN_GFK_RETURN, TN_GFK_LOOP, TN_GFK_ROUND } tn_gframe_kind;

typedef struct tn_gframe {
    uint32_t kind;
    uint32_t node;  /* RETURN: where to continue; LOOP, ROUND: loops[node] */
    uint32_t count; /* LOOP: the round, from 1; ROUND: rounds since, from 0 */
    uint32_t below;
    uint32_t round; /* of the ROUND frame at the bottom, else 0 */
} tn_gframe;

typedef struct tn_gconf {
    uint32_t node, frame;
} tn_gconf;

typedef struct tn_gstate {
    uint32_t first, n; /* confs[first..first+n), ascending: readers, then escapes, then accept */
    uint32_t n_readers;
    uint32_t round; /* least of the readers */
    bool accept;
    uint64_t *mask; /* kept by mask.c or NULL */
} tn_gstate;

typedef struct tn_gmachine {
    tn_ctx *ctx;
    tn_gprog prog;
    tern_status st; /* of the first failure; then all states are dead */
    tn_gframe *frames;
    size_t n_frames, cap_frames;
    uint32_t *frame_table; /* open addressing, frame + 1 */
    size_t cap_frame_table;
    tn_gconf *confs;
    size_t n_confs, cap_confs;
    tn_gstate *states;
    size_t n_states, cap_states;
    uint32_t *state_table; /* state + 1 */
    size_t cap_state_table;
    uint32_t *next; /* [state][class], UINT32_MAX: not known yet */
    size_t cap_next;
    /* the set being made */
    tn_gconf *set, *todo;
    size_t n_set, cap_set, n_todo, cap_todo;
    uint64_t *mark; /* open addressing: node << 32 | frame reached in generation mark_gen */
    uint32_t *mark_gen, gen;
    size_t cap_mark, n_mark;
} tn_gmachine;

/* Opens a machine. Takes the program. */
tern_status tn_gmachine_open(tn_gmachine *m, tn_gprog *prog, tern_error *err);
void tn_gmachine_close(tn_gmachine *m);
tern_status tn_gmachine_status(const tn_gmachine *m, tern_error *err);

uint32_t tn_gmachine_start(tn_gmachine *m);
/* Computes the state after one more byte of this class. */
uint32_t tn_gmachine_compute(tn_gmachine *m, uint32_t state, uint8_t byte_class);
static inline uint32_t tn_gmachine_step(tn_gmachine *m, uint32_t state, uint8_t byte_class) {
    uint32_t to = m->next[(size_t)state * m->prog.n_classes + byte_class];
    return to != UINT32_MAX ? to : tn_gmachine_compute(m, state, byte_class);
}
/* Returns the state of one configuration. */
uint32_t tn_gmachine_single(tn_gmachine *m, uint32_t node, uint32_t frame);
/* Returns the state of only those configurations whose node is not wide. */
uint32_t tn_gmachine_narrow(tn_gmachine *m, uint32_t state);
/* Returns the state after the end of the rule that runs over this frame; for a LOOP frame, after its last
 * round. */
uint32_t tn_gmachine_return(tn_gmachine *m, uint32_t frame);
/* Returns the frame under a loop's body when walked over the hole. */
uint32_t tn_gmachine_round(tn_gmachine *m, uint32_t loop);
/* Forgets all states and frames except those that `state` needs. Returns its new number. */
uint32_t tn_gmachine_forget(tn_gmachine *m, uint32_t state);

#endif
