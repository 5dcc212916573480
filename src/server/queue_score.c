/* Log-probabilities of a prompt: what a job asks of the session that reads it. */
#include "server/queue.h"
#include "session/session.h"

/* They take less than those of an answer, four likeliest tokens as much as one entry. A stream has them in one event. */
tern_status tn_job_keep_scores(tn_job *j, tern_error *err) {
    const size_t n = j->a.said.n_ids * (((size_t)j->a.r.n_top + 4) / 4);
    TN_FAIL_IF(
        !j->a.o.keep_probs(j->a.o.user, n), err, TERN_E_LIMIT,
        "log-probabilities of %zu tokens of a prompt, with %d of the likeliest, are too many beside the "
        "others: ask for fewer at once",
        j->a.said.n_ids, j->a.r.n_top);
    return TERN_OK;
}

tern_status tn_job_score(tn_job *j, tn_prefill *p, tern_error *err) {
    TN_TRY(tn_answering_score(&j->a, err));
    return tn_prefill_score(p, &j->a.scorer, err);
}

tern_status tn_job_unsaid(const tn_job *j, tern_error *err) {
    return j->why ? tn_fail(err, TERN_E_LIMIT, "%s", j->why)
                  : tn_fail(err, TERN_E_MEMORY, "no memory for the answer");
}

tern_status tn_job_ended(tn_job *j, const tern_session *s, tern_error *err) {
    const float *logits = tern_session_logits(s);
    if (j->a.said.res.reason != TERN_STOP_END || s->ended_with < 0 || !logits) return TERN_OK;
    return tn_answering_ended(&j->a, s->ended_with, logits) ? TERN_OK : tn_job_unsaid(j, err);
}
