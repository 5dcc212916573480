#include "cli/prompt.h"

#include "cli/args.h"

#include <stdlib.h>

int32_t *prompt_ids(const tern_engine *e, const char *text, size_t n_bytes, bool parse_special,
                    size_t *n_ids) {
    tern_error err;
    size_t cap = n_bytes + 16;
    int32_t *ids = malloc(cap * sizeof *ids);
    if (!ids) {
        failed_text("no memory for a prompt of %zu bytes", n_bytes);
        return NULL;
    }
    tern_status st = tern_tokenize(e, text, n_bytes, true, parse_special, ids, cap, n_ids, &err);
    if (st == TERN_OK) return ids;
    free(ids);
    failed(&err);
    return NULL;
}

int32_t *prompt_chat(const tern_engine *e, const tern_message *msgs, size_t n_msgs, size_t *n_ids,
                     bool *plain) {
    tern_error err;
    tern_status st = tern_chat_tokens(e, msgs, n_msgs, NULL, 0, n_ids, &err);
    if (plain) *plain = st == TERN_E_UNSUPPORTED;
    if (plain && *plain) return NULL;
    int32_t *ids = NULL;
    if (st == TERN_OK || st == TERN_E_LIMIT) {
        ids = malloc((*n_ids + 1) * sizeof *ids);
        if (!ids) {
            failed_text("no memory for a prompt of %zu tokens", *n_ids);
            return NULL;
        }
        st = tern_chat_tokens(e, msgs, n_msgs, ids, *n_ids, n_ids, &err);
    }
    if (st == TERN_OK) return ids;
    free(ids);
    failed(&err);
    return NULL;
}
