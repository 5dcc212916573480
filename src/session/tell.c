/* What sessions and engines tell item by item: likeliest tokens, hyperparameters, counters. */
#include "session/session.h"

#include "model/properties.h"
#include "model/sampler.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

size_t tern_session_likeliest(const tern_session *s, size_t k, int32_t *tokens, float *logprobs) {
    if (!s || !tokens || !logprobs || !s->has_logits) return 0;
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    if (k > n_vocab) k = n_vocab;
    return (size_t)tn_top_logprobs(s->logits, n_vocab, (int)k, tokens, logprobs);
}

/* As many as there is room for, with commas between; one, where all are the same. */
static const char *tell_numbers(const tn_property *p, const tn_hparams *h, char *buf, size_t n_bytes) {
    int32_t n = 1;
    for (int32_t l = 1; l < h->n_layers; l++)
        if (tn_property_number(p, h, l) != tn_property_number(p, h, 0)) n = h->n_layers;
    size_t at = 0;
    for (int32_t l = 0; l < n && at < n_bytes; l++)
        at += (size_t)snprintf(buf + at, n_bytes - at, l ? ",%.9g" : "%.9g",
                               (double)tn_property_number(p, h, l));
    return p->key;
}

const char *tern_engine_property(const tern_engine *e, size_t i, char *buf, size_t n_bytes) {
    size_t n;
    const tn_property *p = tn_properties(&n);
    if (!e || i >= n || (n_bytes && !buf)) return NULL;
    const tn_hparams *h = &e->model->h;
    if (tn_property_single(&p[i])) {
        snprintf(buf, n_bytes, "%.17g", tn_property_get(&p[i], h));
        return p[i].key;
    }
    if (p[i].type == TN_PROPERTY_NUMBERS) return tell_numbers(&p[i], h, buf, n_bytes);
    size_t n_layers = (size_t)h->n_layers, n_out = n_bytes ? n_bytes - 1 : 0;
    if (n_out > n_layers) n_out = n_layers;
    for (size_t k = 0; k < n_out; k++) buf[k] = tn_layer_letters[h->layer_kind[k]];
    if (n_bytes) buf[n_out] = 0;
    return p[i].key;
}

/* ---- counters --------------------------------------------------------------------------------------- */

typedef struct counter {
    const char *name;
    bool of_drafts; /* a field of tn_draft_stats, else of tn_stats */
    enum { A_COUNT, AN_INT, A_REAL } type;
    size_t at;
} counter;

#define OF(kind, name, which, field)                                                                         \
    { name, sizeof(which) == sizeof(tn_draft_stats), kind, offsetof(which, field) }
#define COUNT(which, name, field) OF(A_COUNT, name, which, field)
#define INT(which, name, field) OF(AN_INT, name, which, field)
#define REAL(which, name, field) OF(A_REAL, name, which, field)
_Static_assert(sizeof(tn_draft_stats) != sizeof(tn_stats), "the table tells them by their size");

/* Every field of both but texts. */
static const counter counters[] = {
    REAL(tn_stats, "wall_s", wall_s),
    REAL(tn_stats, "cpu_busy_s", cpu_busy_s),
    REAL(tn_stats, "npu_busy_s", npu_busy_s),
    REAL(tn_stats, "cpu_bubble", cpu_bubble),
    REAL(tn_stats, "npu_bubble", npu_bubble),
    REAL(tn_stats, "decision_us", decision_us),
    REAL(tn_stats, "decision_max_us", decision_max_us),
    COUNT(tn_stats, "n_decisions", n_decisions),
    COUNT(tn_stats, "n_stolen", n_stolen),
    COUNT(tn_stats, "n_outliers", n_outliers),
    COUNT(tn_stats, "n_dropped", n_dropped),
    COUNT(tn_stats, "hot_hits", hot_hits),
    COUNT(tn_stats, "cold_misses", cold_misses),
    INT(tn_stats, "n_subgraphs", n_subgraphs),
    INT(tn_stats, "n_shared", n_shared),
    COUNT(tn_stats, "kv_bytes", kv_bytes),
    COUNT(tn_stats, "activation_bytes", activation_bytes),
    COUNT(tn_stats, "graph_bytes", graph_bytes),
    COUNT(tn_stats, "graph_bytes_unshared", graph_bytes_unshared),
    COUNT(tn_stats, "n_switched", n_switched),
    REAL(tn_stats, "switch_s", switch_s),
    REAL(tn_stats, "switch_exposed_s", switch_exposed_s),
    REAL(tn_stats, "switch_planned_stall_s", switch_planned_stall_s),
    INT(tn_stats, "switch_blocks", switch_blocks),
    COUNT(tn_stats, "read_bytes", read_bytes),
    REAL(tn_stats, "read_s", read_s),
    REAL(tn_stats, "unpack_s", unpack_s),
    REAL(tn_stats, "load_s", load_s),
    REAL(tn_stats, "loaded_s", loaded_s),
    COUNT(tn_stats, "unpacked_by_device", unpacked_by_device),
    COUNT(tn_stats, "attn_rows", attn_rows),
    COUNT(tn_stats, "attn_seen", attn_seen),
    COUNT(tn_stats, "attn_selected", attn_selected),
    COUNT(tn_stats, "attn_true", attn_true),
    COUNT(tn_stats, "attn_found", attn_found),
    COUNT(tn_stats, "attn_launches", attn_launches),
    COUNT(tn_stats, "attn_requantised", attn_requantised),
    COUNT(tn_stats, "attn_bytes", attn_bytes),
    COUNT(tn_stats, "attn_fused", attn_fused),
    COUNT(tn_stats, "attn_fused_launches", attn_fused_launches),
    COUNT(tn_stats, "attn_plans", attn_plans),
    REAL(tn_stats, "attn_plan_us", attn_plan_us),
    REAL(tn_stats, "attn_plan_max_us", attn_plan_max_us),
    REAL(tn_stats, "attn_planned_s", attn_planned_s),
    REAL(tn_stats, "attn_took_s", attn_took_s),
    REAL(tn_stats, "attn_mass", attn_mass),
    COUNT(tn_stats, "experts_bytes", experts_bytes),
    COUNT(tn_stats, "experts_room_bytes", experts_room_bytes),
    COUNT(tn_stats, "experts_taken", experts_taken),
    COUNT(tn_stats, "experts_hits", experts_hits),
    COUNT(tn_stats, "experts_ahead", experts_ahead),
    COUNT(tn_stats, "experts_read_bytes", experts_read_bytes),
    REAL(tn_stats, "experts_wait_s", experts_wait_s),
    COUNT(tn_stats, "experts_chosen", experts_chosen),
    COUNT(tn_stats, "experts_foreseen", experts_foreseen),
    COUNT(tn_draft_stats, "draft_forwards", n_steps),
    COUNT(tn_draft_stats, "draft_rows", n_rows),
    COUNT(tn_draft_stats, "draft_accepted", n_accepted),
    REAL(tn_draft_stats, "draft_tokens_per_step", tokens_per_step),
    REAL(tn_draft_stats, "draft_valid", valid),
    REAL(tn_draft_stats, "draft_wasted", wasted),
    REAL(tn_draft_stats, "draft_underutilised", underutilised),
    REAL(tn_draft_stats, "draft_s", draft_s),
    REAL(tn_draft_stats, "draft_max_s", draft_max_s),
    REAL(tn_draft_stats, "draft_verify_s", verify_s),
    REAL(tn_draft_stats, "draft_calibrate_s", calibrate_s),
    COUNT(tn_draft_stats, "draft_calibrated", n_calibrated),
    COUNT(tn_draft_stats, "draft_bytes", draft_bytes),
    COUNT(tn_draft_stats, "draft_learned", n_learned),
    REAL(tn_draft_stats, "draft_learn_s", learn_s),
    REAL(tn_draft_stats, "draft_commit_s", commit_s),
    COUNT(tn_draft_stats, "draft_copied", copied),
    COUNT(tn_draft_stats, "draft_copied_right", copied_right),
    COUNT(tn_draft_stats, "draft_recalled", recalled),
    COUNT(tn_draft_stats, "draft_recalled_right", recalled_right),
    COUNT(tn_draft_stats, "draft_by_model", by_model),
    COUNT(tn_draft_stats, "draft_by_model_right", by_model_right),
    COUNT(tn_draft_stats, "draft_by_mtp", by_mtp),
    COUNT(tn_draft_stats, "draft_by_mtp_right", by_mtp_right),
    REAL(tn_draft_stats, "draft_mtp_s", mtp_s),
    COUNT(tn_draft_stats, "draft_by_head", by_head),
    COUNT(tn_draft_stats, "draft_by_head_right", by_head_right),
    REAL(tn_draft_stats, "draft_head_s", head_s),
};

const char *tern_session_counter(const tern_session *s, size_t i, double *value) {
    if (!s || !value || i >= sizeof counters / sizeof counters[0]) return NULL;
    const counter *c = &counters[i];
    union {
        tn_stats stats;
        tn_draft_stats drafts;
    } all;
    if (c->of_drafts) tn_session_draft_stats(s, &all.drafts);
    else tn_session_stats(s, &all.stats);
    const char *at = (const char *)&all + c->at;
    uint64_t n;
    int32_t k;
    switch (c->type) {
    case A_COUNT: memcpy(&n, at, sizeof n), *value = (double)n; break;
    case AN_INT: memcpy(&k, at, sizeof k), *value = k; break;
    case A_REAL: memcpy(value, at, sizeof *value); break;
    }
    return c->name;
}
