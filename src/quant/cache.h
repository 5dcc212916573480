/* quant/cache.h - automatic packages of models, kept for the next time that the models are opened.
 *
 * A folder private to the user (0700) holds for each model KEY.tern, its package, and KEY.source, the
 * model's path, whose time is that of the package's last use. KEY depends on every byte of the model's
 * files, not on their place or times (quant/content.h). A package appears whole or not at all. Two processes
 * never make the same one. The least recently used are removed when the folder exceeds its limit. An
 * interrupted package lies beside it as KEY.tern.part (quant/partial.h) and counts like one. */
#ifndef TN_QUANT_CACHE_H
#define TN_QUANT_CACHE_H

#include "base/json.h"
#include "quant/content.h"
#include "quant/pack.h"

enum { TN_CACHE_KEY = 33, TN_CACHE_PATH = 4096 };
#define TN_CACHE_LIMIT_BYTES (UINT64_C(32) << 30) /* the limit until another is set */

/* Facts about a package that are not in it, stored in KEY.about. */
typedef struct tn_cache_about {
    double bits, kl, kl_stderr; /* of tn_pack_report; 0: not known */
    uint64_t n_held_tokens;     /* number of tokens on which kl was measured; 0: it was not */
    bool told;                  /* the user has been told that the package is used for this model */
} tn_cache_about;

typedef struct tn_cache_entry {
    char key[TN_CACHE_KEY];
    char source[TN_CACHE_PATH]; /* "": not known */
    uint64_t bytes;
    int64_t used_s;  /* since 1970 */
    bool unfinished; /* no package yet: a process that packed it was killed, or is still packing */
    tn_cache_about about;
} tn_cache_entry;

/* Finds $XDG_CACHE_HOME/tern/packages, or ~/.cache/tern/packages. With `make` its folders are made. A folder
 * of another user, or one that others may write to, is an error. */
tern_status tn_cache_folder(char out[TN_CACHE_PATH], bool make, tern_error *err);
/* The folder beside it in which profiles of quantised files lie (engine/imports.h), made where it is missing or not. */
tern_status tn_cache_profiles(char out[TN_CACHE_PATH], bool make, tern_error *err);
/* Removes what lies there. */
tern_status tn_cache_forget_profiles(tern_error *err);
/* Computes the key of a GGUF file or a Hugging Face folder. "": what its files hold is not known (quant/content.h), and
 * so no package of it is. folder: where hashes of files are kept; NULL: nowhere. */
tern_status tn_cache_key(tn_ctx *ctx, const char *folder, const char *model, tn_content_from from,
                         char key[TN_CACHE_KEY], tern_error *err);
/* Finds the package of a key, when it is there and this user's, and marks it used. */
bool tn_cache_find(const char *folder, const char *key, char path[TN_CACHE_PATH]);
/* Sets the limit of the folder's packages together, and removes the excess at once, least recently used
 * first. */
tern_status tn_cache_limit(const char *folder, uint64_t *bytes, tern_error *err);
tern_status tn_cache_set_limit(tn_ctx *ctx, const char *folder, uint64_t bytes, tern_error *err);
/* Chooses the options of an automatic package: the default scheme, and for an already quantised model
 * enough bits not to lose as much again. */
tern_status tn_cache_options(tn_ctx *ctx, const char *model, tn_pack_options *out, tern_error *err);
/* Makes the package of a model in the folder, then removes others until the folder is within limit_bytes.
 * *busy: another process is making it, and nothing was done. opt NULL: tn_cache_options. */
tern_status tn_cache_make(tn_ctx *ctx, const char *folder, const char *model, const tn_pack_options *opt,
                          uint64_t limit_bytes, bool *busy, tern_error *err);
/* Whether a process makes the package of a key now. */
bool tn_cache_making(const char *folder, const char *key);
/* Lists the packages, finished or not, most recently used first. The caller frees *out with tn_free. */
tern_status tn_cache_list(tn_ctx *ctx, const char *folder, tn_cache_entry **out, size_t *n, tern_error *err);
/* Reads and replaces the facts about a package of the cache, by its path. Unreadable ones are all zero;
 * packages of earlier versions have none. */
void tn_cache_about_get(const char *package, tn_cache_about *out);
/* The known facts as fields bits, loss_percent, loss_stderr_percent and held_tokens. */
void tn_cache_about_json(const tn_cache_about *about, json_t **into);
tern_status tn_cache_about_put(tn_ctx *ctx, const char *package, const tn_cache_about *about,
                               tern_error *err);
/* Removes a package, finished or not. TERN_E_INVALID: there is none with that key. */
tern_status tn_cache_remove(const char *folder, const char *key, tern_error *err);

#endif
