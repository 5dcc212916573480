/* model/keys.h - what each key of config.json and of GGUF metadata means, once: which architectures read it, and its
 * neutral value for the others. A key that is not known is refused by its name, whatever the file. */
#ifndef TN_MODEL_KEYS_H
#define TN_MODEL_KEYS_H

#include "model/arch.h"

/* May a file of this architecture have the key with this value? It may where the architecture reads the key, where
 * the key says nothing of what is computed, or where the value is the neutral one. Any other key asks for maths that
 * the model would not get. */
bool tn_key_ok_hf(const tn_arch *a, const char *key,
                  const json_t *value); /* "rope.x": x in an object of rope */
/* Does the key say nothing of what anything computes, or is its value 0, false or empty? */
bool tn_key_idle_hf(const char *key, const json_t *value);
/* Is the key one of these n? */
bool tn_key_listed(const char *key, const char *const *list, size_t n);
bool tn_key_ok_gguf(const tn_arch *a, const char *key, const double *value); /* NULL: no single number */

#endif
