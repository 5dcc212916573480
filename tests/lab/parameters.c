/* tests/lab/parameters.c - is every number of the simulator accounted for, and does a fit without a paper know nothing
 * of that paper? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lab/parameters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tn_ctx ctx;
static tn_sim sim;
static tn_inputs files;

static const tn_sim_param *param(const char *name) {
    for (int32_t i = 0; tn_sim_param_at(i); i++)
        if (!strcmp(tn_sim_param_at(i)->name, name)) return tn_sim_param_at(i);
    fail_msg("no parameter '%s'", name);
    return NULL;
}

/* Every one has a source, and is what it is set to; a free one has a range with its prior and its value inside. */
static void every_parameter_has_a_source(void **state) {
    (void)state;
    int n_free = 0;
    for (int32_t i = 0; tn_sim_param_at(i); i++) {
        const tn_sim_param *p = tn_sim_param_at(i);
        double value = tn_sim_param_get(p, &files);
        if (!*p->name || !*p->unit || !*p->source || !p->papers) fail_msg("parameter %d is not told", i);
        if (p->kind != TN_SIM_PARAM_ASSUMED && !p->from) fail_msg("%s comes from nowhere", p->name);
        if (p->kind == TN_SIM_PARAM_SET) continue;
        tn_inputs other = files;
        tn_sim_param_set(p, &other, value * 1.5);
        assert_true(fabs(tn_sim_param_get(p, &other) / value - 1.5) < 1e-9);
        if (!tn_sim_param_is_free(p)) continue;
        n_free++;
        if (!*p->prior_source || !(p->least < p->prior && p->prior < p->most))
            fail_msg("%s begins at %g, beside its range", p->name, p->prior);
        if (!(value >= p->least && value <= p->most)) fail_msg("%s is %g, beside its range", p->name, value);
    }
    assert_in_range(n_free, 10, 25);
}

/* It moves a result of a paper only where the table says so: fits leave out the other papers' runs. */
static void parameters_move_what_they_say(void **state) {
    (void)state;
    static tn_claim before[TN_N_PAPERS][TN_MAX_CLAIMS], after[TN_MAX_CLAIMS];
    int32_t n[TN_N_PAPERS], again;
    for (int p = 0; p < TN_N_PAPERS; p++)
        assert_int_equal(tn_sim_reproduce((tn_paper)p, &files, &sim, before[p], &n[p], NULL), TERN_OK);
    for (int32_t i = 0; tn_sim_param_at(i); i++) {
        const tn_sim_param *k = tn_sim_param_at(i);
        tn_inputs in = files;
        if (k->kind == TN_SIM_PARAM_SET) continue;
        tn_sim_param_set(k, &in, tn_sim_param_get(k, &in) * 1.4);
        for (int p = 0; p < TN_N_PAPERS; p++) {
            bool moved = false;
            assert_int_equal(tn_sim_reproduce((tn_paper)p, &in, &sim, after, &again, NULL), TERN_OK);
            assert_int_equal(again, n[p]);
            for (int32_t c = 0; c < again; c++)
                if (after[c].kind != TN_CLAIM_UNCOUNTED)
                    moved |= fabs(after[c].simulated / before[p][c].simulated - 1) > 1e-9;
            if (moved != (k->papers >> p & 1u))
                fail_msg("%s: does it move %s?", k->name, tn_paper_name((tn_paper)p));
        }
    }
}

/* What is minimised, counted anew: the mean over papers of the mean of the rows' |log|, and a hundredth of what
 * parameters moved. */
static double objective(const tn_inputs *in, unsigned papers) {
    double sum = 0, n_papers = 0;
    for (int p = 0; p < TN_PAPER_HEXAGON; p++) {
        tn_claim c[TN_MAX_CLAIMS];
        int32_t n;
        double rows = 0, errors = 0;
        if (!(papers >> p & 1)) continue;
        assert_int_equal(tn_sim_reproduce((tn_paper)p, in, &sim, c, &n, NULL), TERN_OK);
        for (int32_t i = 0; i < n; i++)
            if (c[i].kind == TN_CLAIM_INPUT || c[i].kind == TN_CLAIM_PREDICTED) {
                double off = c[i].simulated > 0 ? fabs(log(c[i].simulated / c[i].paper)) : INFINITY;
                errors += off < log(3) ? off : log(3), rows++;
            }
        sum += errors / rows, n_papers++;
    }
    sum /= n_papers;
    for (int32_t i = 0; tn_sim_param_at(i); i++) {
        const tn_sim_param *k = tn_sim_param_at(i);
        if (tn_sim_param_is_free(k)) sum += fabs(log(tn_sim_param_get(k, in) / k->prior)) / 100;
    }
    return sum;
}

/* A fit without shadowAttn begins where nothing of shadowAttn is, moves nothing that only shadowAttn would feel, gets
 * better at the other three as counted here, and predicts shadowAttn with what it found. */
static void a_fit_knows_nothing_of_what_is_left_out(void **state) {
    (void)state;
    static tn_fit fit, again;
    tn_inputs in = files, other = files;
    for (int32_t i = 0; tn_sim_param_at(i); i++) /* whatever the files say of it */
        if (tn_sim_param_is_free(tn_sim_param_at(i))) tn_sim_param_set(tn_sim_param_at(i), &other, 1.23);
    assert_int_equal(tn_sim_params_fit(&in, TN_PAPER_SHADOWATTN, 1, &sim, &fit, NULL), TERN_OK);
    assert_int_equal(tn_sim_params_fit(&other, TN_PAPER_SHADOWATTN, 1, &sim, &again, NULL), TERN_OK);
    unsigned others = 1 << TN_PAPER_LLM_NPU | 1 << TN_PAPER_EDGEFLOW | 1 << TN_PAPER_SD_NPU;
    assert_true(fit.after < fit.before && fabs(fit.after - objective(&in, others)) < 1e-12);
    for (int32_t i = 0; tn_sim_param_at(i); i++) {
        const tn_sim_param *k = tn_sim_param_at(i);
        double value = tn_sim_param_get(k, &in);
        assert_true(value == tn_sim_param_get(k, &other));
        if (!tn_sim_param_is_free(k)) assert_true(value == tn_sim_param_get(k, &files));
        else assert_true(value >= k->least && value <= k->most);
        if (tn_sim_param_is_free(k) && k->papers == 1 << TN_PAPER_SHADOWATTN) assert_true(value == k->prior);
    }
    tn_claim c[TN_MAX_CLAIMS];
    int32_t n;
    assert_int_equal(tn_sim_reproduce(TN_PAPER_SHADOWATTN, &in, &sim, c, &n, NULL), TERN_OK);
    assert_int_equal(n, fit.n_claims[TN_PAPER_SHADOWATTN]);
    assert_true(fit.median[TN_PAPER_SHADOWATTN] == tn_claims_median_error(c, n, false));
    assert_true(fit.median[TN_PAPER_SHADOWATTN] == again.median[TN_PAPER_SHADOWATTN]);
}

/* The last parameter of a sweep is left where it is best of three, by the count made here. */
static void a_sweep_takes_the_better(void **state) {
    (void)state;
    const tn_sim_param *last = param("power of the flash");
    static tn_fit fit;
    tn_inputs in = files;
    unsigned papers = 1 << TN_PAPER_LLM_NPU | 1 << TN_PAPER_EDGEFLOW | 1 << TN_PAPER_SD_NPU;
    assert_int_equal(tn_sim_params_fit(&in, TN_PAPER_SHADOWATTN, 1, &sim, &fit, NULL), TERN_OK);
    double found = objective(&in, papers);
    for (double v = last->prior / 2; v <= last->prior * 2; v *= 2) {
        tn_inputs other = in;
        tn_sim_param_set(last, &other, v);
        assert_true(found <= objective(&other, papers) + 1e-6);
    }
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    tn_inputs_defaults(&files);
    if (tn_sim_open(&ctx, &sim, NULL)) return 1;
    for (int i = 0; i < TN_N_SOCS; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/share/soc/%s.json", TN_SOURCE_DIR, tn_soc_names[i]);
        if (tn_soc_load(&files.socs[i], path, NULL)) return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_parameter_has_a_source),
                                       cmocka_unit_test(parameters_move_what_they_say),
                                       cmocka_unit_test(a_fit_knows_nothing_of_what_is_left_out),
                                       cmocka_unit_test(a_sweep_takes_the_better)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tn_sim_close(&sim);
    return rc;
}
