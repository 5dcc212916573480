/* engine/sight_find.h - the encoder of pictures that lies beside a model. */
#ifndef TN_ENGINE_SIGHT_FIND_H
#define TN_ENGINE_SIGHT_FIND_H

#include "tern.h"

/* The mmproj file in the model's folder: the only one, or the one that shares most of the model's name; where there is
 * none and the model is a Hugging Face folder with an encoder, that folder. To be freed with free; NULL with a message:
 * there is none, several are as good, or (TERN_E_INVALID) it gives rows for a model of another width than n_embd (0: any). */
char *tn_sight_find(const char *model, int32_t n_embd, tern_error *err);

#endif
