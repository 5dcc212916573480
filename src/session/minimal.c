/* session/minimal.c - what a build for packages alone (TERN_MINIMAL) has in place of storing.c and lora.c. */
#include "base/status.h"
#include "engine/adapters.h"
#include "session/session.h"

tern_status tn_storing_open(tern_session *s, const char *path, uint64_t cap_bytes, tern_error *err) {
    (void)s, (void)cap_bytes;
    TN_FAIL_IF(path, err, TERN_E_UNSUPPORTED, "%s: this build of tern has no store of conversations", path);
    return TERN_OK;
}

void tn_storing_close(tern_session *s) { (void)s; }

tern_status tn_storing_learn(tern_session *s, tern_error *err) {
    (void)s, (void)err;
    return TERN_OK;
}

void tn_storing_commit(tern_session *s, int32_t n_prompt) { (void)s, (void)n_prompt; }

tern_status tern_session_lora(tern_session *s, const char *adapters, tern_error *err) {
    tn_lora_mix mix;
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    return tn_mix_parse(s->e, adapters, &mix, err);
}
