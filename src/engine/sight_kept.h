/* engine/sight_kept.h - rows of views on disk, so that a picture which was seen before costs no encoding after a restart.
 *
 * A folder of this user's alone (0700) has a file (0600) for each view, named by its key. What a file holds is checked
 * against its key and its sum; a damaged one goes. Those written or read longest ago go when the folder outgrows its
 * limit. Several processes may use one. */
#ifndef TN_ENGINE_SIGHT_KEPT_H
#define TN_ENGINE_SIGHT_KEPT_H

#include "media/medium.h"

enum { TN_KEPT_PATH = 4096 };

/* Where an engine keeps them. */
typedef struct tn_kept {
    char *folder;         /* [TN_KEPT_PATH]; NULL: nowhere */
    uint64_t limit_bytes; /* 0: nowhere */
    uint64_t total_bytes; /* 0: nobody looked yet; UINT64_MAX: nothing can be written */
} tn_kept;

/* $XDG_CACHE_HOME/tern/pictures, or ~/.cache/tern/pictures; false: neither is set, or too long. */
bool tn_kept_place(char out[TN_KEPT_PATH]);
/* Reads rows [n][width]; false: there are none. */
bool tn_kept_read(const tn_kept *k, const uint8_t key[TN_VIEW_KEY], int32_t n, int32_t width, float *rows);
/* What cannot be written is not kept, and nobody tries again. */
void tn_kept_write(tn_ctx *ctx, tn_kept *k, const uint8_t key[TN_VIEW_KEY], int32_t n, int32_t width,
                   const float *rows);
/* Erases all of the default folder. *n: how many there were. */
tern_status tn_kept_clear(int64_t *n, tern_error *err);

#endif
