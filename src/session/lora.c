/* The adapters that a session is read with. */
#include "base/status.h"
#include "engine/adapters.h"
#include "session/session.h"

void tn_session_mix(tern_session *s, const tn_lora_mix *mix) {
    if (tn_lora_mix_id(mix) == tn_lora_mix_id(&s->mix)) return;
    s->evaluator->ops->forget(s->evaluator);
    tn_session_truncate(s, 0); /* its contents were computed with others */
    s->has_logits = false;
    s->mix = *mix;
    s->evaluator->ops->adapt(s->evaluator, &s->mix);
}

tern_status tern_session_lora(tern_session *s, const char *adapters, tern_error *err) {
    tn_lora_mix mix;
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_TRY(tn_mix_parse(s->e, adapters, &mix, err));
    tn_session_mix(s, &mix);
    return TERN_OK;
}
