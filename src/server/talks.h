/* server/talks.h - the page's conversations on disk, each a JSON file of its own.
 *
 * The folder ($XDG_DATA_HOME/tern/conversations, or under ~/.local/share) is this user's alone (0700), its
 * files too (0600). A file appears whole or not at all (base/outfile.h), so a server that is killed leaves
 * every conversation as it was saved last. What is replaced or erased is overwritten with zeros. A file is
 * named by its conversation's id, sixteen hexadecimal digits: no name from outside becomes a path.
 *
 * Threads: whoever reads in order to write holds the lock, which other servers of the folder honour too. */
#ifndef TN_SERVER_TALKS_H
#define TN_SERVER_TALKS_H

#include "base/ctx.h"
#include "base/json.h"

typedef struct tn_talks tn_talks;

enum { TN_TALK_ID = 17, TN_TALK_BYTES = 8 << 20, TN_TALKS_MAX = 2000, TN_TALK_QUERY = 256 };

tern_status tn_talks_open(tn_ctx *ctx, tn_talks **out, tern_error *err);
void tn_talks_close(tn_talks **t);
const char *tn_talks_folder(const tn_talks *t);

void tn_talks_lock(tn_talks *t);
void tn_talks_unlock(tn_talks *t);

bool tn_talk_id_ok(const char *id);
tern_status tn_talk_new_id(char out[TN_TALK_ID], tern_error *err);

/* [{id, title, created, updated, n_nodes}], the one changed last first. With words in query only those
 * that hold all of them, in any case, and what stands around the first ("found"). Files that are damaged
 * are left out. */
tern_status tn_talks_list(tn_talks *t, const char *query, json_t **out, tern_error *err);
/* TN_E_GONE: there is none of this id. */
tern_status tn_talks_get(tn_talks *t, const char *id, json_t **out, tern_error *err);
/* It replaces the conversation, or adds one. TERN_E_LIMIT: too large, or too many. */
tern_status tn_talks_put(tn_talks *t, const char *id, const json_t *talk, tern_error *err);
tern_status tn_talks_erase(tn_talks *t, const char *id, tern_error *err);

/* Erases all of the default folder. *n gets how many there were. */
tern_status tn_talks_clear(int64_t *n, tern_error *err);

/* ---- for server/uploads.c, whose files are kept likewise ---------------------------------------------- */

enum { TN_TALKS_FOLDER = 4000 };

/* Makes the folder of this name among tern's own. */
tern_status tn_talks_make_folder(const char *name, char out[TN_TALKS_FOLDER], tern_error *err);
/* Zeros over its bytes, then away with the file; nothing where there is none. */
tern_status tn_talks_erase_file(const char *path, tern_error *err);
/* Erases what is named by sixteen digits and this ending. */
tern_status tn_talks_clear_folder(const char *name, const char *ending, int64_t *n, tern_error *err);

#endif
