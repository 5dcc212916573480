/* engine/sight_find.h - the encoder of pictures that lies beside a model. */
#ifndef TN_ENGINE_SIGHT_FIND_H
#define TN_ENGINE_SIGHT_FIND_H

#include "tern.h"

/* The mmproj file in the model's folder: the only one, or the one that shares most of the model's name. To be freed with
 * free; NULL with a message: there is none, or several are as good. */
char *tn_sight_find(const char *model, tern_error *err);

#endif
