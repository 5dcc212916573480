/* server/priority.h - which requests go first: those marked interactive before the others, those that are background
 * work after them. Embeddings and scores are background work by themselves, answers of the page interactive. */
#ifndef TN_SERVER_PRIORITY_H
#define TN_SERVER_PRIORITY_H

#include "base/json.h"
#include "base/status.h"

enum { TN_BACKGROUND = -1, TN_ORDINARY = 0, TN_INTERACTIVE = 1, TN_PRIORITIES = 3 };

/* What a header says: interactive, ordinary or background; NULL says nothing. */
tern_status tn_priority_word(const char *word, int *out, tern_error *err);
/* What a body says: `priority` with such a word, or a number as vLLM has it (below 0 interactive, above 0 background),
 * or OpenAI's `service_tier` (priority; flex). *out stays as it is where it says nothing. */
tern_status tn_priority_read(const json_t *body, int *out, tern_error *err);

/* How long prompts that go first may hold up those that are paused for them: a 24th of the time that these are read
 * for, and two seconds at once. With the steps of answers that go first, a fifth of that time, what is paused keeps
 * four fifths of its rate in the long run, whatever comes. */
typedef struct tn_credit {
    double s;
} tn_credit;
static const double TN_CREDIT_MOST_S = 2, TN_CREDIT_SHARE = 1.0 / 24;
static inline void tn_credit_earn(tn_credit *c, double read_s) {
    c->s += TN_CREDIT_SHARE * read_s;
    if (c->s > TN_CREDIT_MOST_S) c->s = TN_CREDIT_MOST_S;
}

#endif
