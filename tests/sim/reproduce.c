/* tests/sim/reproduce.c - are inputs kept apart from predictions, and is what is said to be simulated what the simulator says? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sim/reproduce.h"

#include <math.h>
#include <string.h>

static tn_ctx ctx;
static tn_graph *g;
static tn_sched *s;
static tn_soc soc;

static const tn_claim *find(const tn_claim *c, int32_t n, const char *what) {
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(c[i].what, what)) return &c[i];
    fail_msg("no claim '%s'", what);
    return NULL;
}

static int32_t reproduce(tn_claim *c) {
    int32_t n = 0;
    assert_int_equal(tn_sim_reproduce_llm_npu(&soc, g, s, c, &n, NULL), TERN_OK);
    assert_in_range(n, 1, TN_MAX_CLAIMS);
    return n;
}

/* The fit returns its inputs; no claim is empty; twice the same. */
static void inputs_come_back(void **state) {
    (void)state;
    tn_claim c[TN_MAX_CLAIMS], again[TN_MAX_CLAIMS];
    int32_t n = reproduce(c), kinds[3] = {0};
    assert_int_equal(reproduce(again), n);
    for (int32_t i = 0; i < n; i++) {
        kinds[c[i].kind]++;
        assert_true(c[i].simulated > 0 && c[i].simulated == again[i].simulated);
        if (c[i].kind == TN_CLAIM_INPUT) assert_true(fabs(tn_claim_error(&c[i])) < 0.01);
        else assert_true(*c[i].note != 0); /* says what its error means */
    }
    assert_true(kinds[TN_CLAIM_INPUT] && kinds[TN_CLAIM_PREDICTED]);
}

/* A slower NPU changes what is predicted: nothing is written down beforehand. Structure is not touched by speed. */
static void predictions_are_simulated(void **state) {
    (void)state;
    tn_claim c[TN_MAX_CLAIMS], slow[TN_MAX_CLAIMS];
    tn_sim_request r = {.soc = &soc, .model = tn_sim_model_find("qwen1.5-1.8b"), .n_tokens = 1024, .n_chunk = 256, .policy = tn_policy_defaults(TN_POLICY_OVERLAP)};
    tn_sim_result o;
    int32_t n = reproduce(c);
    assert_int_equal(tn_sim_prefill(&r, g, s, NULL, &o, NULL), TERN_OK);
    assert_true(find(c, n, "NPU bubbles overlapping, 1024 tokens")->simulated == o.run.bubble[TN_LANE_NPU] * 100);
    r.policy = tn_policy_defaults(TN_POLICY_OOE);
    assert_int_equal(tn_sim_prefill(&r, g, s, NULL, &o, NULL), TERN_OK);
    assert_true(find(c, n, "qwen1.5-1.8b, 1024 tokens")->simulated == o.tokens_per_second);
    tn_soc kept = soc;
    soc.mac_ns *= 2;
    reproduce(slow);
    soc = kept;
    assert_true(find(slow, n, "gemma-2b, all pruned")->simulated < 0.8 * find(c, n, "gemma-2b, all pruned")->simulated);
    assert_true(find(slow, n, "subgraphs shared by all chunks")->simulated == find(c, n, "subgraphs shared by all chunks")->simulated);
}

/* Only predictions count, whatever the sign of their errors. */
static void median_counts_predictions(void **state) {
    (void)state;
    tn_claim c[] = {{.kind = TN_CLAIM_INPUT, .paper = 1, .simulated = 1},      {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 14},
                    {.kind = TN_CLAIM_UNCOUNTED, .paper = 1, .simulated = 1},  {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 9},
                    {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 8}, {.kind = TN_CLAIM_PREDICTED, .paper = 10, .simulated = 10}};
    assert_true(isnan(tn_claims_median_error(c, 1)));
    assert_true(fabs(tn_claims_median_error(c, 5) - 0.2) < 1e-12);
    assert_true(fabs(tn_claims_median_error(c, 6) - 0.15) < 1e-12);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    if (tn_graph_open(&ctx, &g, NULL) || tn_sched_open(&ctx, &s, NULL)) return 1;
    if (tn_soc_load(&soc, TN_SOURCE_DIR "/share/soc/sd8gen3.json", NULL)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(inputs_come_back), cmocka_unit_test(predictions_are_simulated), cmocka_unit_test(median_counts_predictions)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tn_sched_close(&s);
    tn_graph_close(&g);
    return rc;
}
