#include "cli/draft_args.h"
#include "session/stats.h"

#include "base/json.h"

#include <stdio.h>

/* Returns the share of calibration in the prompts' time without it. */
static double calibration_share(const tn_draft_stats *t, double prefill_s) {
    return prefill_s > t->calibrate_s ? t->calibrate_s / (prefill_s - t->calibrate_s) : 0;
}

static double accepted_length(const tn_draft_stats *t) {
    return t->n_steps ? (double)t->n_accepted / (double)t->n_steps : 0;
}

static double ms(double total_s, uint64_t n) { return n ? total_s * 1e3 / (double)n : 0; }

json_t *cli_draft_json(const tern_session *s, double prefill_s, double decode_s, int32_t n_tokens) {
    tn_draft_stats t;
    tn_session_draft_stats(s, &t);
    return tn_json_pack(
        "{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:I, s:f, s:f, "
        "s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:f}",
        "verifications", (json_int_t)t.n_steps, "rows", (json_int_t)t.n_rows, "accepted",
        (json_int_t)t.n_accepted, "tokens_per_verification", t.tokens_per_step, "accepted_length",
        accepted_length(&t), "valid", t.valid, "wasted", t.wasted, "underutilised", t.underutilised,
        "draft_ms_per_step", ms(t.draft_s, t.n_steps), "draft_ms_max", t.draft_max_s * 1e3,
        "verify_ms_per_step", ms(t.verify_s, t.n_steps), "calibration_ms", t.calibrate_s * 1e3,
        "calibration_share", calibration_share(&t, prefill_s), "calibrated_tokens",
        (json_int_t)t.n_calibrated, "draft_bytes", (json_int_t)t.draft_bytes, "ms_per_token",
        ms(decode_s, n_tokens > 1 ? (uint64_t)n_tokens - 1 : 0), "learned_tokens", (json_int_t)t.n_learned,
        "learn_ms", t.learn_s * 1e3, "commit_ms", t.commit_s * 1e3, "copied", (json_int_t)t.copied,
        "copied_right", (json_int_t)t.copied_right, "recalled", (json_int_t)t.recalled, "recalled_right",
        (json_int_t)t.recalled_right, "by_model", (json_int_t)t.by_model, "by_model_right",
        (json_int_t)t.by_model_right, "by_mtp", (json_int_t)t.by_mtp, "by_mtp_right",
        (json_int_t)t.by_mtp_right, "mtp_ms", t.mtp_s * 1e3, "by_head", (json_int_t)t.by_head,
        "by_head_right", (json_int_t)t.by_head_right, "head_ms", t.head_s * 1e3);
}

void cli_draft_print(const tern_session *s, double prefill_s, double decode_s, int32_t n_tokens) {
    tn_draft_stats t;
    tn_session_draft_stats(s, &t);
    if (!t.n_steps) return;
    fprintf(stderr,
            "drafts: %.2f tokens per verification (accepted length %.2f; %llu of %llu drafts), forward "
            "capacity %.0f %% valid, %.0f %% wasted, %.0f %% unused; "
            "%.3f ms to draft (longest %.3f), %.2f ms to verify, %.2f ms per token; calibration %.1f ms for "
            "%llu tokens (%.1f %% of the prefill); drafters take %.1f MiB\n",
            t.tokens_per_step, accepted_length(&t), (unsigned long long)t.n_accepted,
            (unsigned long long)(t.n_rows - t.n_steps), t.valid * 100, t.wasted * 100, t.underutilised * 100,
            ms(t.draft_s, t.n_steps), t.draft_max_s * 1e3, ms(t.verify_s, t.n_steps),
            ms(decode_s, n_tokens > 1 ? (uint64_t)n_tokens - 1 : 0), t.calibrate_s * 1e3,
            (unsigned long long)t.n_calibrated, calibration_share(&t, prefill_s) * 100,
            (double)t.draft_bytes / 1048576);
    if (t.n_rows > t.n_steps)
        fprintf(stderr,
                "drafts right, of those verified: copied %llu of %llu, recalled %llu of %llu, draft model "
                "%llu of %llu, MTP "
                "layer %llu of %llu (which kept up with the text in %.1f ms)\n",
                (unsigned long long)t.copied_right, (unsigned long long)t.copied,
                (unsigned long long)t.recalled_right, (unsigned long long)t.recalled,
                (unsigned long long)t.by_model_right, (unsigned long long)t.by_model,
                (unsigned long long)t.by_mtp_right, (unsigned long long)t.by_mtp, t.mtp_s * 1e3);
    if (t.head_s > 0)
        fprintf(stderr,
                "head: %llu of %llu verified drafts were right; it kept up with the text in %.1f ms\n",
                (unsigned long long)t.by_head_right, (unsigned long long)t.by_head, t.head_s * 1e3);
    if (t.commit_s > 0)
        fprintf(stderr, "store: drafted from %llu tokens, read in %.1f ms; conversation stored in %.1f ms\n",
                (unsigned long long)t.n_learned, t.learn_s * 1e3, t.commit_s * 1e3);
}
