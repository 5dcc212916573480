/* cli/packing.h - a model's package from the cache in place of the model, and the making of it. What goes
 * wrong here costs one notice on standard error, never the answer. */
#ifndef TN_CLI_PACKING_H
#define TN_CLI_PACKING_H

#include "cli/args.h"

#include "quant/cache.h"

/* --pack WHEN, which $TERN_PACK says where the option does not:
 * never  the model as it is
 * now    its package, made before the answer where there is none
 * later  its package where there is one, else the model as it is, and a process in the background makes the package
 *        when the command has ended
 * auto   (default) later for a model in floats, whose package is smaller and faster; the package of any model where there is one */
typedef enum packing_when { PACKING_AUTO, PACKING_NEVER, PACKING_LATER, PACKING_NOW, PACKING_N } packing_when;

/* False: no such word. NULL: what $TERN_PACK says, or auto. */
bool cli_packing_parse(const char *text, packing_when *out);
/* What to open for `model`: itself, or its package. One model a process. */
const char *cli_packing_model(packing_when when, const char *model);
/* For a command that measures or describes: a->model becomes what answers come from, which is the package in the cache where
 * there is one and --pack and $TERN_PACK allow it; none is made unless --pack says so. Standard error is told of one.
 * a->from becomes "file", "package" (which a->model was), or "cache". */
void cli_packing_measured(model_args *a);
/* "5.50 bits per weight, about 0.4 % lost (...)"; without a measurement what is known. */
const char *cli_packing_words(const tn_cache_about *about, char *out, size_t cap);
/* What a KL divergence means in words: "0.41 ± 0.03 %", or "about 0.4 %" where it was measured on too little for more. */
const char *cli_loss_words(double kl, double kl_stderr, uint64_t n_tokens, char out[48]);
/* It is open. A package for which this machine was never measured is measured for when the command has
 * ended if `measures`, unless `when` is never. */
void cli_packing_opened(packing_when when, const char *model, const tern_engine *e, bool measures);
/* The command has ended, well or with EXIT_FAILED: starts the background process where it is wanted. A
 * package that turned out to be damaged goes, with a notice, and is made anew by the next --pack. */
void cli_packing_end(bool failed);
/* The package of any model in the cache, where there is a sound one; it may be asked about several. */
bool cli_packing_find(const char *model, char path[TN_CACHE_PATH]);
/* Standard error hears that a package answers in the place of a model, unless it heard it before. */
void cli_packing_tell(const char *model, const char *package);
/* For a process that will not be allowed to start others: now, while it has one thread, it starts the one
 * that waits for packing_end. */
void cli_packing_prepare(packing_when when);
/* Makes the package of a model and measures this machine for it, or for a package alone, with progress on a
 * terminal. False: a message was printed. */
bool cli_packing_now(const char *model);
/* Measures this machine for a package or a quantised file, and packs nothing. */
bool cli_packing_measure(const char *model);
/* What a start leaves for the background: that for a quantised file, else cli_packing_now. */
bool cli_packing_later(const char *model);
#endif
