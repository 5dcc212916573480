/* quant/cache.h - packages made of models, kept for the next time they are opened.
 *
 * A folder of this user's alone (0700) holds for each model KEY.tern, its package, and KEY.source, the
 * model's path, whose time says when the package was last used. KEY stands for what the model's files hold,
 * not for where they lie: their sizes and times, their beginnings and samples of the rest. A package appears
 * whole or not at all. Two processes never make the same one. Those used longest ago go when the folder
 * outgrows its limit. What a killed process did of a package lies beside it as KEY.tern.part (quant/partial.h), and
 * counts like one. */
#ifndef TN_QUANT_CACHE_H
#define TN_QUANT_CACHE_H

#include "base/json.h"
#include "quant/pack.h"

enum { TN_CACHE_KEY = 33, TN_CACHE_PATH = 4096 };
#define TN_CACHE_LIMIT_BYTES (UINT64_C(32) << 30) /* until another limit is set */

/* What is known of a package beside its bytes, in KEY.about. */
typedef struct tn_cache_about {
    double bits, kl, kl_stderr; /* of tn_pack_report; 0: not known */
    uint64_t n_held_tokens;     /* on which kl was measured; 0: it was not */
    bool told;                  /* whoever asks for the model has read that the package answers */
} tn_cache_about;

typedef struct tn_cache_entry {
    char key[TN_CACHE_KEY];
    char source[TN_CACHE_PATH]; /* "": not known */
    uint64_t bytes;
    int64_t used_s;  /* since 1970 */
    bool unfinished; /* no package yet: a process that packed it was killed, or is at it */
    tn_cache_about about;
} tn_cache_entry;

/* Finds $XDG_CACHE_HOME/tern/packages, or ~/.cache/tern/packages. With `make` its folders are made. A folder
 * of another user, or one that others may write to, is an error. */
tern_status tn_cache_folder(char out[TN_CACHE_PATH], bool make, tern_error *err);
/* Computes the key of a GGUF file or a Hugging Face folder. */
tern_status tn_cache_key(const char *model, char key[TN_CACHE_KEY], tern_error *err);
/* Finds the package of a key, when it is there and this user's, and marks it used. */
bool tn_cache_find(const char *folder, const char *key, char path[TN_CACHE_PATH]);
/* What the folder's packages may take together. Setting it removes at once what is too much, used longest
 * ago first. */
tern_status tn_cache_limit(const char *folder, uint64_t *bytes, tern_error *err);
tern_status tn_cache_set_limit(tn_ctx *ctx, const char *folder, uint64_t bytes, tern_error *err);
/* Chooses what a package made by itself is made with: the default scheme, and where the model is quantised
 * already bits enough that it does not lose as much again. */
tern_status tn_cache_options(tn_ctx *ctx, const char *model, tn_pack_options *out, tern_error *err);
/* Makes the package of a model and puts it there; then others go until the folder is within limit_bytes.
 * *busy tells that another process is making it, and that nothing was done. With opt NULL it takes
 * tn_cache_options. */
tern_status tn_cache_make(tn_ctx *ctx, const char *folder, const char *model, const tn_pack_options *opt,
                          uint64_t limit_bytes, bool *busy, tern_error *err);
/* Lists what is there, finished or not, used last first. The caller frees *out with tn_free. */
tern_status tn_cache_list(tn_ctx *ctx, const char *folder, tn_cache_entry **out, size_t *n, tern_error *err);
/* Reads and replaces what is known of a package of the cache, by the package's path. What cannot be read is all zero: packages of
 * earlier versions have none of it. */
void tn_cache_about_get(const char *package, tn_cache_about *out);
/* The same as fields bits, loss_percent, loss_stderr_percent and held_tokens, as far as they are known. */
void tn_cache_about_json(const tn_cache_about *about, json_t **into);
tern_status tn_cache_about_put(tn_ctx *ctx, const char *package, const tn_cache_about *about,
                               tern_error *err);
/* Removes a package, and what there is of one. It fails with TERN_E_INVALID when there is none of that key. */
tern_status tn_cache_remove(const char *folder, const char *key, tern_error *err);

#endif
