#include "base/child.h"

tern_status tn_child_start(const char *command, tn_child *out, tern_error *err) {
    (void)command;
    *out = (tn_child){.to = -1, .from = -1, .messages = -1};
    return tn_fail(err, TERN_E_UNSUPPORTED, "programs cannot be started on Windows yet");
}

bool tn_child_ended(tn_child *c, char *how, size_t cap) {
    (void)c;
    if (cap) how[0] = 0;
    return true;
}

void tn_child_end(tn_child *c, int grace_ms) {
    (void)grace_ms;
    *c = (tn_child){.to = -1, .from = -1, .messages = -1};
}

tern_status tn_child_guard(const tn_child *const *all, size_t n, tern_error *err) {
    (void)all;
    (void)n;
    (void)err;
    return TERN_OK; /* there are none */
}
