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

tern_status tn_keeper_open(const char *const *commands, size_t n, tn_keeper **out, tern_error *err) {
    (void)commands;
    (void)n;
    *out = NULL;
    return tn_fail(err, TERN_E_UNSUPPORTED, "programs cannot be started on Windows yet");
}

void tn_keeper_close(tn_keeper **k) { *k = NULL; }

tern_status tn_keeper_start(tn_keeper *k, size_t i, tn_child *out, tern_error *err) {
    (void)k;
    (void)i;
    *out = (tn_child){.to = -1, .from = -1, .messages = -1};
    return tn_fail(err, TERN_E_UNSUPPORTED, "programs cannot be started on Windows yet");
}
