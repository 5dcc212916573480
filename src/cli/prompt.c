#include "cli/prompt.h"

#include "cli/args.h"

#include <stdlib.h>

int32_t *prompt_ids(const tern_engine *e, const char *text, size_t n_bytes, bool add_special, size_t *n_ids) {
    tern_error err;
    size_t cap = n_bytes + 16;
    int32_t *ids = malloc(cap * sizeof *ids);
    if (!ids) {
        failed_text("no memory for a prompt of %zu bytes", n_bytes);
        return NULL;
    }
    tern_status st = tern_tokenize(e, text, n_bytes, add_special, true, ids, cap, n_ids, &err);
    if (st == TERN_OK) return ids;
    free(ids);
    failed(&err);
    return NULL;
}

char *prompt_render(const tern_engine *e, const tern_message *msgs, size_t n_msgs, size_t *n_bytes) {
    tern_error err;
    tern_status st = tern_chat_render(e, msgs, n_msgs, NULL, 0, n_bytes, &err);
    if (st != TERN_OK && st != TERN_E_LIMIT) {
        failed(&err);
        return NULL;
    }
    char *text = malloc(*n_bytes + 1);
    if (!text) {
        failed_text("no memory for a prompt of %zu bytes", *n_bytes);
        return NULL;
    }
    if (tern_chat_render(e, msgs, n_msgs, text, *n_bytes, n_bytes, &err) != TERN_OK) {
        free(text);
        failed(&err);
        return NULL;
    }
    text[*n_bytes] = 0;
    return text;
}
