/* model/folder_identity.h - whether a folder is still the one that was begun to be read. */
#ifndef TN_MODEL_FOLDER_IDENTITY_H
#define TN_MODEL_FOLDER_IDENTITY_H

#include <stdint.h>

/* Which files the names of a model's folder stand for now. They are opened one after the other; when this is the same
 * before and after, they belong together. */
uint64_t tn_folder_identity(const char *folder);

#endif
