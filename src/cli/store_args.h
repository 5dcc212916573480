/* cli/store_args.h - where conversations and documents are kept. */
#ifndef TN_CLI_STORE_ARGS_H
#define TN_CLI_STORE_ARGS_H

#include "cli/args.h"

#include "store/store.h"

#define STORE_ARGS(path, none)                                                                               \
    {"store", 0,                                                                                             \
     "FILE",  ARG_STR,                                                                                       \
     &(path), 0,                                                                                             \
     0,       "file that holds conversations and documents (default: $XDG_DATA_HOME/tern/store.db)"},        \
    {                                                                                                        \
        "no-store", 0, NULL, ARG_FLAG, &(none), 0, 0, "neither keep conversations nor draft from kept ones"  \
    }

#define STORE_OF_DOCUMENTS                                                                                   \
    "file that holds documents and conversations (default: $XDG_DATA_HOME/tern/store.db)"

/* Opens a session with its store. A store in the default place that cannot be used is left out with a notice;
 * one that was asked for is an error. Returns -1 to go on or an exit status. */
int cli_open_stored_session(tern_engine *e, tern_session_options *so, const char *given, bool none,
                            tern_session **out);

/* Returns the file to use: the one given, or the default place. Returns NULL with a message printed when
 * there is no such place. The caller frees it with free(). */
char *cli_store_path(const char *given);

/* Opens a store and makes none. NULL with EXIT_OK in *rc where the default place has none yet, and with
 * another status after a message where it cannot be opened. */
tn_store *cli_store_open_existing(tn_ctx *ctx, const char *given, int *rc);

/* The lines typed in chat: $XDG_STATE_HOME/tern-history or ~/.tern_history. false: there is no such place. */
bool cli_history_path(char *out, size_t cap);

/* This is for a store that is used without an engine: notices go to standard error. */
void cli_store_ctx(tn_ctx *ctx);

#endif
