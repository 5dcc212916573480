/* tests/lab/reproduce.c - are inputs kept apart from predictions, and is what is said to be simulated what
 * the simulator says? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lab/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tn_ctx ctx;
static tn_sim sim;
static tn_inputs in;

static const tn_claim *find(const tn_claim *c, int32_t n, const char *what) {
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(c[i].what, what)) return &c[i];
    fail_msg("no claim '%s'", what);
    return NULL;
}

static int32_t reproduce(tn_paper p, tn_claim *c) {
    int32_t n = 0;
    assert_int_equal(tn_sim_reproduce(p, &in, &sim, c, &n, NULL), TERN_OK);
    assert_in_range(n, 1, TN_MAX_CLAIMS);
    return n;
}

/* The fits return their inputs; twice the same; the median over all papers is the one the documentation
 * promises. */
static void inputs_come_back(void **state) {
    (void)state;
    static tn_claim c[TN_N_PAPERS * TN_MAX_CLAIMS], again[TN_MAX_CLAIMS];
    int32_t n_all = 0, n_predicted = 0;
    for (int p = 0; p < TN_N_PAPERS; p++) {
        int32_t n = reproduce((tn_paper)p, c + n_all), kinds[TN_N_CLAIM_KINDS] = {0};
        assert_int_equal(reproduce((tn_paper)p, again), n);
        double input_errors = 0;
        for (int32_t i = 0; i < n; i++) {
            const tn_claim *k = &c[n_all + i];
            kinds[k->kind]++;
            assert_true(isfinite(k->simulated) && k->simulated == again[i].simulated);
            if (k->kind == TN_CLAIM_INPUT) input_errors += fabs(tn_claim_error(k));
            if (k->kind == TN_CLAIM_UNCOUNTED) assert_true(*k->note != 0); /* says why */
            if (k->kind == TN_CLAIM_PREDICTED && fabs(tn_claim_error(k)) > 0.5 && !strstr(k->note, "because"))
                fail_msg("%s is off by %.0f %% and gives no reason", k->what, tn_claim_error(k) * 100);
        }
        if (input_errors / kinds[TN_CLAIM_INPUT] > 0.15)
            fail_msg("%s: inputs come back with a mean error of %.0f %%", tn_paper_name((tn_paper)p),
                     100 * input_errors / kinds[TN_CLAIM_INPUT]);
        assert_true(kinds[TN_CLAIM_INPUT] && kinds[TN_CLAIM_PREDICTED] >= 4);
        assert_true(p == TN_PAPER_HEXAGON || kinds[TN_CLAIM_DERIVED]);
        n_all += n, n_predicted += kinds[TN_CLAIM_PREDICTED];
    }
    assert_true(n_predicted >= 60);
    double median = tn_claims_median_error(c, n_all, false), with = tn_claims_median_error(c, n_all, true);
    print_message("median error of what is predicted: %.1f %%; with what is derived: %.1f %%\n", median * 100,
                  with * 100);
    assert_true(median < 0.125 && with < 0.115);
}

/* A slower NPU, flash or unpacking changes what is predicted: nothing is written down beforehand. Structure
 * is not touched by speed. */
static void predictions_are_simulated(void **state) {
    (void)state;
    tn_claim c[TN_MAX_CLAIMS], slow[TN_MAX_CLAIMS];
    tn_soc kept[TN_N_SOCS];
    memcpy(kept, in.socs, sizeof kept);
    int32_t n = reproduce(TN_PAPER_LLM_NPU, c);
    in.socs[TN_SOC_GEN3].mac_ns *= 2;
    reproduce(TN_PAPER_LLM_NPU, slow);
    memcpy(in.socs, kept, sizeof kept);
    assert_true(find(slow, n, "gemma-2b, all pruned")->simulated <
                0.8 * find(c, n, "gemma-2b, all pruned")->simulated);
    assert_true(find(slow, n, "subgraphs shared by all chunks")->simulated ==
                find(c, n, "subgraphs shared by all chunks")->simulated);

    n = reproduce(TN_PAPER_EDGEFLOW, c);
    in.socs[TN_SOC_ELITE].unpack_ns *= 3;
    reproduce(TN_PAPER_EDGEFLOW, slow);
    memcpy(in.socs, kept, sizeof kept);
    assert_true(find(slow, n, "packed format end to end against the mix")->simulated <
                find(c, n, "packed format end to end against the mix")->simulated * 0.9);
    assert_true(find(slow, n, "stealing saves")->simulated == find(c, n, "stealing saves")->simulated);

    n = reproduce(TN_PAPER_SHADOWATTN, c);
    in.socs[TN_SOC_GEN3].est_launch_ns *= 4;
    reproduce(TN_PAPER_SHADOWATTN, slow);
    memcpy(in.socs, kept, sizeof kept);
    assert_true(find(slow, n, "kernel over full attention, best")->simulated <
                find(c, n, "kernel over full attention, best")->simulated);

    n = reproduce(TN_PAPER_SD_NPU, c);
    in.socs[TN_SOC_GEN2].step_byte_ns *= 2;
    reproduce(TN_PAPER_SD_NPU, slow);
    memcpy(in.socs, kept, sizeof kept);
    assert_true(find(slow, n, "llama3.2-3b, +G+SD")->simulated >
                1.2 * find(c, n, "llama3.2-3b, +G+SD")->simulated);
}

/* What norms and the like take is seen by schedules alone: it moves what is predicted and leaves what is
 * derived. */
static void derived_ask_no_schedule(void **state) {
    (void)state;
    tn_claim c[TN_MAX_CLAIMS], again[TN_MAX_CLAIMS];
    tn_soc kept[TN_N_SOCS];
    memcpy(kept, in.socs, sizeof kept);
    int n_moved = 0;
    for (int p = 0; p < TN_N_PAPERS; p++) {
        if (p == TN_PAPER_SD_NPU) continue; /* its derived results carry predicted switching along */
        int32_t n = reproduce((tn_paper)p, c);
        for (int i = 0; i < TN_N_SOCS; i++) in.socs[i].elem_ns *= 1.5;
        reproduce((tn_paper)p, again);
        memcpy(in.socs, kept, sizeof kept);
        for (int32_t i = 0; i < n; i++) {
            double moved = fabs(again[i].simulated / c[i].simulated - 1);
            if (c[i].kind == TN_CLAIM_DERIVED && moved > 0.02) /* a start of 52 s has a prefill in it */
                fail_msg("%s: %s is called derived, but asks a schedule", tn_paper_name((tn_paper)p),
                         c[i].what);
            n_moved += c[i].kind == TN_CLAIM_PREDICTED && moved > 0.002;
        }
    }
    assert_true(n_moved > 15);
}

/* What computes nothing, follows from two inputs, or holds an input of its own is no prediction. Every prediction of
 * the papers moves when the device's products, the CPU's floats or one core's attention take longer. */
static void arithmetic_predicts_nothing(void **state) {
    (void)state;
    static const struct {
        tn_paper paper;
        const char *what;
    } no[] = {{TN_PAPER_EDGEFLOW, "packed format end to end against the mix"},
              {TN_PAPER_EDGEFLOW, "packed format end to end against K-Quant"},
              {TN_PAPER_EDGEFLOW, "cold start, loading overlapped by layer"},
              {TN_PAPER_SD_NPU, "qwen2.5-1.5b, graphs switched after prefill"},
              {TN_PAPER_SD_NPU, "qwen2.5-0.5b, graphs switched after prefill"},
              {TN_PAPER_SD_NPU, "llama3.2-3b, graphs switched after prefill"}};
    tn_claim c[TN_MAX_CLAIMS], slow[TN_MAX_CLAIMS];
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        int32_t n = reproduce(no[i].paper, c);
        assert_int_equal(find(c, n, no[i].what)->kind, TN_CLAIM_DERIVED);
    }
    tn_soc kept[TN_N_SOCS];
    memcpy(kept, in.socs, sizeof kept);
    int32_t n_counted = 0;
    for (int p = 0; p < TN_PAPER_HEXAGON; p++) {
        int32_t n = reproduce((tn_paper)p, c);
        for (int i = 0; i < TN_N_SOCS; i++)
            in.socs[i].mac_ns *= 1.5, in.socs[i].elem_ns *= 1.3, in.socs[i].core_mac_ns *= 1.5;
        reproduce((tn_paper)p, slow);
        memcpy(in.socs, kept, sizeof kept);
        for (int32_t i = 0; i < n; i++) {
            if (c[i].kind != TN_CLAIM_PREDICTED) continue;
            n_counted++;
            if (fabs(slow[i].simulated / c[i].simulated - 1) < 1e-4)
                fail_msg("%s is called predicted, but nothing computes in it", c[i].what);
        }
    }
    assert_int_equal(n_counted, 43);
}

/* Only predictions count, whatever the sign of their errors. */
static void median_counts_predictions(void **state) {
    (void)state;
    tn_claim c[] = {{.kind = TN_CLAIM_INPUT, .paper = 1, .simulated = 1},
                    {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 14},
                    {.kind = TN_CLAIM_UNCOUNTED, .paper = 1, .simulated = 1},
                    {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 9},
                    {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 8},
                    {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 10}};
    assert_true(isnan(tn_claims_median_error(c, 1, false)));
    assert_true(fabs(tn_claims_median_error(c, 5, false) - 0.2) < 1e-12);
    assert_true(fabs(tn_claims_median_error(c, 6, false) - 0.15) < 1e-12);
}

/* The NPU is critical at 256 tokens, as in the paper; what handing values over takes is the NPU's. */
static void the_npu_is_critical(void **state) {
    (void)state;
    static tn_claim c[TN_MAX_CLAIMS];
    static const char what[] = "CPU's work over the NPU's, qwen1.5-1.8b, 256 tokens";
    int32_t n = reproduce(TN_PAPER_LLM_NPU, c);
    double now = find(c, n, what)->simulated;
    assert_true(now < 1);
    tn_soc kept = in.socs[TN_SOC_GEN3];
    in.socs[TN_SOC_GEN3].handover_ns = 0;
    n = reproduce(TN_PAPER_LLM_NPU, c);
    in.socs[TN_SOC_GEN3] = kept;
    assert_true(find(c, n, what)->simulated > 1.05 * now);
}

/* The profile of one SoC's NPU is of two models, and another SoC's of one: those come back, the others follow what the
 * profile says. */
static void phones_follow_their_profile(void **state) {
    (void)state;
    static tn_claim c[TN_MAX_CLAIMS], slow[TN_MAX_CLAIMS];
    int32_t n = reproduce(TN_PAPER_HEXAGON, c), n_fitted = 0;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].kind != TN_CLAIM_INPUT) continue;
        assert_true(fabs(tn_claim_error(&c[i])) < 0.01);
        n_fitted++;
    }
    assert_int_equal(n_fitted, 8); /* two models, and one on each of two SoCs; first token and decoding */
    tn_soc kept = in.socs[TN_SOC_V79];
    in.socs[TN_SOC_V79].mac_ns *= 2, in.socs[TN_SOC_V79].step_byte_ns *= 2;
    reproduce(TN_PAPER_HEXAGON, slow);
    in.socs[TN_SOC_V79] = kept;
    static const char ms[] = "8 Elite, falcon3-7b, first token", speed[] = "8 Elite, falcon3-7b, decoding",
                      other[] = "X Elite, llama3.1-8b, first token";
    assert_true(find(slow, n, ms)->simulated > 1.5 * find(c, n, ms)->simulated);
    assert_true(find(slow, n, speed)->simulated < 0.7 * find(c, n, speed)->simulated);
    assert_true(fabs(find(slow, n, other)->simulated / find(c, n, other)->simulated - 1) < 1e-3);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    tn_inputs_defaults(&in);
    if (tn_sim_open(&ctx, &sim, NULL)) return 1;
    for (int i = 0; i < TN_N_SOCS; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/share/soc/%s.json", TN_SOURCE_DIR, tn_soc_names[i]);
        if (tn_soc_load(&in.socs[i], path, NULL)) return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_come_back),           cmocka_unit_test(predictions_are_simulated),
        cmocka_unit_test(derived_ask_no_schedule),    cmocka_unit_test(arithmetic_predicts_nothing),
        cmocka_unit_test(median_counts_predictions),  cmocka_unit_test(the_npu_is_critical),
        cmocka_unit_test(phones_follow_their_profile)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tn_sim_close(&sim);
    return rc;
}
