/* session/minimal.c - stands in for storing.c, lora.c and mtp.c in a build for packages alone
 * (TERN_MINIMAL). */
#include "base/status.h"
#include "engine/adapters.h"
#include "model/next.h"
#include "session/session.h"

tern_status tn_storing_open(tern_session *s, const char *path, uint64_t cap_bytes, tern_error *err) {
    (void)s, (void)cap_bytes;
    TN_FAIL_IF(path, err, TERN_E_UNSUPPORTED, "%s: this build of tern has no store of conversations", path);
    return TERN_OK;
}

void tn_storing_close(tern_session *s) { (void)s; }

tern_status tern_image_decode(const void *bytes, size_t n_bytes, tern_image *out, tern_error *err) {
    (void)bytes, (void)n_bytes, (void)out;
    return tn_fail(err, TERN_E_UNSUPPORTED, "this build of tern sees no pictures");
}

void tern_image_free(tern_image *image) { (void)image; }

bool tern_engine_sees(const tern_engine *e) {
    (void)e;
    return false;
}

tern_status tern_session_look(tern_session *s, const tern_message *msgs, size_t n_msgs,
                              const tern_chat_options *opt, const tern_image *images, size_t n_images,
                              int32_t *ids, size_t cap, size_t *n_ids, tern_error *err) {
    (void)s, (void)msgs, (void)n_msgs, (void)opt, (void)images, (void)n_images, (void)ids, (void)cap,
        (void)n_ids;
    return tn_fail(err, TERN_E_UNSUPPORTED, "this build of tern sees no pictures");
}

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

/* Never opened: the layer that guesses one token further stays in its package (package/no_on_demand.c). */
tern_status tn_mtp_open(tern_engine *e, uint32_t drafter, tn_evaluator *evaluator, const tn_state *state,
                        int32_t n_ctx, tn_mtp **out, tern_error *err) {
    (void)e, (void)drafter, (void)evaluator, (void)state, (void)n_ctx, (void)out;
    return tn_fail(err, TERN_E_UNSUPPORTED, "this build of tern has no drafts by an MTP layer");
}

void tn_mtp_close(tn_mtp **m) { (void)m; }

void tn_mtp_note(tn_mtp *m, int32_t pos, int32_t token, const float *x) {
    (void)m, (void)pos, (void)token, (void)x;
}

void tn_mtp_copy(tn_mtp *dst, const tn_mtp *src, int32_t n) { (void)dst, (void)src, (void)n; }

void tn_mtp_propose(void *m, tn_proposals *p, const int32_t *text, int32_t n) {
    (void)m, (void)p, (void)text, (void)n;
}

int64_t tn_mtp_note_ns(const tn_mtp *m) {
    (void)m;
    return 0;
}

uint64_t tn_next_bytes_of(const tn_hparams *h, int32_t n_ctx) {
    (void)h, (void)n_ctx;
    return 0;
}

uint64_t tn_next_work_bytes(const tn_hparams *h, int32_t n_ctx, int n_threads) {
    (void)h, (void)n_ctx, (void)n_threads;
    return 0;
}
