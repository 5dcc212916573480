/* prefill/profile.h - times of steps and forwards, measured once per machine, model and settings and kept in
 * a small JSON file beside the package. */
#ifndef TN_PREFILL_PROFILE_H
#define TN_PREFILL_PROFILE_H

#include "prefill/pipeline.h"

#include <jansson.h>

/* path is NULL for a temporary package: nothing is kept. The key names everything the times depend on; a file
 * with another key is measured anew. */
typedef struct tn_profile_file {
    const char *path;
    char key[96];
} tn_profile_file;

/* Reads the times of a program's steps. A missing or foreign file leaves *p unmeasured. */
void tn_profile_load(const tn_profile_file *f, const tn_program *program, tn_step_profile *p);
/* Stores them. A file that cannot be written costs one measured wave per process, and nothing else. */
void tn_profile_save(tn_ctx *ctx, const tn_profile_file *f, const tn_program *program,
                     const tn_step_profile *p);
/* Replaces the file atomically: others read it and add to it. Without room for more, its contents stay. */
bool tn_profile_put(tn_ctx *ctx, const char *path, const json_t *j);

#endif
