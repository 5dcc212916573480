/* cli/packing.h - a model's package from the cache in place of the model, and the making of it. What goes wrong
 * here costs one notice on standard error, never the answer. */
#ifndef TN_CLI_PACKING_H
#define TN_CLI_PACKING_H

#include "engine/cache.h"

/* --pack: never (default): the model as it is; now: its package, made before the answer where there is none; later: its
 * package where there is one, else the model as it is, and a process in the background makes the package
 * when the answer is there. */
typedef struct packing {
    const char *when; /* NULL: never */
    char package[TN_CACHE_PATH];
    bool wanted; /* the package is to be made behind the answer */
} packing;

/* What to open for `model`: itself, or its package (p->package). NULL: p->when is unknown. */
const char *packing_model(packing *p, const char *model);
/* Something went wrong with p->package: where it is damaged, it goes, with a notice, and is made anew by the next --pack. */
void packing_failed(const packing *p, const char *model);
/* Behind the answer: starts the background process where it is wanted. */
void packing_after(const packing *p, const char *model);
/* Makes the package of a model, with progress on a terminal. False: a message was printed. */
bool packing_now(const char *model);
#endif
