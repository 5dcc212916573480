/* engine/beside.h - a file that belongs to a model and lies beside it. */
#ifndef TN_ENGINE_BESIDE_H
#define TN_ENGINE_BESIDE_H

/* The GGUF file in the model's folder whose name has this word: the only one, or the one that shares most of the model's
 * name. To be freed with free; NULL: there is none (*n_found 0), several are as good (their number), or there is no memory or
 * descriptor to look (-1). */
char *tn_beside_find(const char *model, const char *word, int *n_found);

#endif
