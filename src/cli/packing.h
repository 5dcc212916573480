/* cli/packing.h - a model's package from the cache in place of the model, and the making of it. What goes wrong
 * here costs one notice on standard error, never the answer. */
#ifndef TN_CLI_PACKING_H
#define TN_CLI_PACKING_H

#include "engine/cache.h"

/* This is --pack. never (default) takes the model as it is. now takes its package, made before the answer
 * where there is none. later takes its package where there is one, else the model as it is, and a process in
 * the background makes the package when the answer is there. */
typedef struct packing {
    const char *when; /* NULL: never */
    char package[TN_CACHE_PATH];
    bool wanted; /* the package is to be made behind the answer */
} packing;

/* Returns what to open for `model`: itself, or its package (p->package). Returns NULL when p->when is
 * unknown. */
const char *packing_model(packing *p, const char *model);
/* Notes that something went wrong with p->package. Where it is damaged it goes, with a notice, and is made
 * anew by the next --pack. */
void packing_failed(const packing *p, const char *model);
/* Starts the background process where it is wanted, behind the answer. */
void packing_after(const packing *p, const char *model);
/* Makes the package of a model, with progress on a terminal. Returns false with a message printed. */
bool packing_now(const char *model);
#endif
