#include "cli/prompt.h"

#include "cli/args.h"

#include "text/chat.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int32_t *cli_prompt_ids(const tern_engine *e, const char *text, size_t n_bytes, bool parse_special,
                        size_t *n_ids) {
    tern_error err;
    size_t cap = n_bytes + 16;
    int32_t *ids = malloc(cap * sizeof *ids);
    if (!ids) {
        cli_failed_text("no memory for a prompt of %zu bytes", n_bytes);
        return NULL;
    }
    tern_status st = tern_tokenize(e, text, n_bytes, true, parse_special, ids, cap, n_ids, &err);
    if (st == TERN_OK) return ids;
    free(ids);
    cli_failed(&err);
    return NULL;
}

bool cli_prompt_template(const char *given, char **source) {
    size_t n;
    *source = NULL;
    if (!given) return true;
    if (tn_chat_builtin(given)) {
        *source = strdup(given);
        if (!*source) cli_failed_text("no memory for a name");
    } else if (access(given, F_OK)) {
        cli_failed_text("--chat-template %.120s: neither a file nor one of " TN_CHAT_NAMES, given);
    } else {
        *source = cli_read_text_file(given, &n);
    }
    return *source != NULL;
}

int32_t *cli_prompt_chat(const tern_engine *e, const tern_message *msgs, size_t n_msgs, const char *source,
                         size_t *n_ids) {
    tern_error err;
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.chat_template = source;
    tern_status st = tern_chat_tokens(e, msgs, n_msgs, &o, NULL, 0, n_ids, &err);
    int32_t *ids = NULL;
    if (st == TERN_OK || st == TERN_E_LIMIT) {
        ids = malloc((*n_ids + 1) * sizeof *ids);
        if (!ids) {
            cli_failed_text("no memory for a prompt of %zu tokens", *n_ids);
            return NULL;
        }
        st = tern_chat_tokens(e, msgs, n_msgs, &o, ids, *n_ids, n_ids, &err);
    }
    if (st == TERN_OK) return ids;
    free(ids);
    cli_failed(&err);
    return NULL;
}
