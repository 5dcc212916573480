/* lab/reproduce.c - the papers' printed results, each beside a run of the simulator. */
#include "lab/reproduce_impl.h"

#include "base/status.h"

#include <assert.h>
#include <math.h>

const char *const tn_soc_names[TN_N_SOCS] = {"sd8gen2", "sd8gen3", "sd8elite", "sd8elite-v79"};

const char *tn_paper_name(tn_paper p) {
    static const char *const names[] = {"llm-npu", "edgeflow", "shadowattn", "sd-npu", "hexagon"};
    return p < TN_N_PAPERS ? names[p] : NULL;
}

const char *const tn_claim_kind_names[TN_N_CLAIM_KINDS] = {"input", "uncounted", "derived", "predicted"};

tern_status tn_sim_reproduce(tn_paper p, const tn_inputs *in, tn_sim *s, tn_claim *out, int32_t *n,
                             tern_error *err) {
    static tern_status (*const papers[TN_N_PAPERS])(tn_book *, tern_error *) = {
        tn_reproduce_llm_npu, tn_reproduce_edgeflow, tn_reproduce_shadowattn, tn_reproduce_sd_npu,
        tn_reproduce_phones};
    tn_book b = {.in = in, .socs = in->socs, .s = s, .out = out};
    TN_TRY(papers[p](&b, err));
    *n = b.n;
    return TERN_OK;
}

void tn_inputs_defaults(tn_inputs *out) {
    out->answer_tokens = 70.71;
    out->npu_over_core_w = 0.255;
}

double tn_claim_error(const tn_claim *c) { return c->simulated / c->paper - 1; }

double tn_claims_median_error(const tn_claim *c, int32_t n, bool with_derived) {
    double e[TN_N_PAPERS * TN_MAX_CLAIMS];
    int32_t m = 0;
    assert(n <= TN_N_PAPERS * TN_MAX_CLAIMS);
    for (int32_t i = 0; i < n; i++) {
        if (c[i].kind != TN_CLAIM_PREDICTED && !(with_derived && c[i].kind == TN_CLAIM_DERIVED)) continue;
        double x = fabs(tn_claim_error(&c[i]));
        int32_t at = m++;
        for (; at > 0 && e[at - 1] > x; at--) e[at] = e[at - 1];
        e[at] = x;
    }
    return !m ? NAN : m % 2 ? e[m / 2] : (e[m / 2 - 1] + e[m / 2]) / 2;
}
