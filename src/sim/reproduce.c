/* sim/reproduce.c - llm.npu's printed results, each beside a run of the simulator. */
#include "sim/reproduce.h"

#include "base/status.h"
#include "sched/prefill_graph.h"

#include <assert.h>
#include <math.h>

typedef struct book {
    tn_graph *g;
    tn_sched *s;
    tn_claim *out;
    int32_t n;
} book;

static void claim(book *b, tn_claim_kind kind, const char *where, const char *what, const char *unit, double paper, double simulated, const char *note) {
    assert(b->n < TN_MAX_CLAIMS && paper > 0);
    b->out[b->n++] = (tn_claim){.kind = kind, .what = what, .unit = unit, .where = where, .paper = paper, .simulated = simulated, .note = note};
}

/* Chunks of 256, the paper's default. kept: share of layers with the outlier path. */
static tern_status simulate(book *b, const tn_soc *soc, const char *model, int32_t n_tokens, tn_policy_kind policy, double kept, tn_sim_result *o, tern_error *err) {
    tn_soc mine = *soc;
    mine.shadow_kept = kept;
    tn_sim_request r = {.soc = &mine, .model = tn_sim_model_find(model), .n_tokens = n_tokens, .n_chunk = 256, .policy = tn_policy_defaults(policy)};
    assert(r.model);
    return tn_sim_prefill(&r, b->g, b->s, NULL, o, err);
}

/* The three numbers of section 4.4 (figure 16) for a model: no, 80 % and all outliers pruned. */
static tern_status pruning(book *b, const tn_soc *soc, const char *model, const char *const what[3], const double paper[3], tern_error *err) {
    static const double kept[3] = {1, 0.2, 0};
    for (int i = 0; i < 3; i++) {
        tn_sim_result o;
        TN_TRY(simulate(b, soc, model, 1024, TN_POLICY_OOE, kept[i], &o, err));
        claim(b, TN_CLAIM_PREDICTED, "4.4", what[i], "tokens/s", paper[i], o.tokens_per_second,
              i ? "length not printed: 1024 taken" : "the model has no cost of synchronising with the outlier path");
    }
    return TERN_OK;
}

tern_status tn_sim_reproduce_llm_npu(const tn_soc *soc, tn_graph *g, tn_sched *s, tn_claim *out, int32_t *n, tern_error *err) {
    static const char *const qwen = "qwen1.5-1.8b", *const ablated[] = {"qwen1.5-1.8b", "gemma-2b", "llama-2-7b"};
    book b = {.g = g, .s = s, .out = out};
    double kept = soc->shadow_kept, least = 1, most = 0;
    tn_sim_result o, overlap;

    /* without outlier paths: the anchors are of the plain model */
    TN_TRY(simulate(&b, soc, qwen, 256, TN_POLICY_OVERLAP, 0, &o, err));
    claim(&b, TN_CLAIM_INPUT, "3.4", "NPU time of qwen1.5-1.8b, 256 tokens", "ms", 315, (double)o.work_ns[TN_LANE_NPU] / 1e6, "");
    claim(&b, TN_CLAIM_INPUT, "3.4", "CPU time of the same", "ms", 157.5, (double)o.work_ns[TN_LANE_CPU] / 1e6, "half the NPU's, which takes 'about twice' as long");
    claim(&b, TN_CLAIM_UNCOUNTED, "3.4", "NPU bubbles overlapping, 256 tokens", "%", 37,
          o.run.bubble[TN_LANE_NPU] * 100, "one chunk: the two inputs' ratio and no more");

    TN_TRY(simulate(&b, soc, qwen, 1024, TN_POLICY_OVERLAP, kept, &o, err));
    claim(&b, TN_CLAIM_PREDICTED, "3.4", "NPU bubbles overlapping, 1024 tokens", "%", 37,
          o.run.bubble[TN_LANE_NPU] * 100, "length not printed; rate of attention inferred");

    for (int i = 0; i < 3; i++) {
        TN_TRY(simulate(&b, soc, ablated[i], 1024, TN_POLICY_OVERLAP, kept, &overlap, err));
        TN_TRY(simulate(&b, soc, ablated[i], 1024, TN_POLICY_OOE, kept, &o, err));
        double saving = 1 - o.ttft_ms / overlap.ttft_ms;
        least = fmin(least, saving), most = fmax(most, saving);
    }
    claim(&b, TN_CLAIM_PREDICTED, "4.7", "OOE saves, least of three models", "%", 18, least * 100, "length not printed: 1024 taken");
    claim(&b, TN_CLAIM_PREDICTED, "4.7", "OOE saves, most of three models", "%", 44, most * 100, "length not printed: 1024 taken");

    TN_TRY(simulate(&b, soc, qwen, 1024, TN_POLICY_OOE, kept, &o, err));
    double long_speed = o.tokens_per_second;
    claim(&b, TN_CLAIM_PREDICTED, "abstract", "qwen1.5-1.8b, 1024 tokens", "tokens/s", 1000, long_speed,
          "'more than 1,000', model not named; 315 ms per 256 tokens allow 813");
    TN_TRY(simulate(&b, soc, qwen, 64, TN_POLICY_OOE, kept, &o, err));
    claim(&b, TN_CLAIM_UNCOUNTED, "4.2", "speed at 1024 over speed at 64 tokens", "x", 7.3 / 1.69, long_speed / o.tokens_per_second,
          "from speedups over MNN, if MNN's speed does not depend on length");

    static const char *const qwen_rows[] = {"qwen1.5-1.8b, no outliers pruned", "qwen1.5-1.8b, 80 % pruned", "qwen1.5-1.8b, all pruned"};
    static const char *const gemma_rows[] = {"gemma-2b, no outliers pruned", "gemma-2b, 80 % pruned", "gemma-2b, all pruned"};
    TN_TRY(pruning(&b, soc, qwen, qwen_rows, (const double[]){156, 544, 596}, err));
    TN_TRY(pruning(&b, soc, "gemma-2b", gemma_rows, (const double[]){102, 285, 345}, err));
    TN_TRY(simulate(&b, soc, qwen, 1024, TN_POLICY_OOE, 1, &overlap, err));
    TN_TRY(simulate(&b, soc, qwen, 1024, TN_POLICY_OOE, 0, &o, err));
    claim(&b, TN_CLAIM_PREDICTED, "3.3", "unpruned outlier paths' share of latency", "%", 29.7, (1 - o.ttft_ms / overlap.ttft_ms) * 100,
          "as no outliers pruned; the paper's own 156 and 596 tokens/s make it 74");

    /* the graph of that last run */
    int32_t n_graphs = 0, n_dynamic = 0;
    for (int32_t t = 0; t < g->n_tasks; t++) {
        if (g->tasks[t].chunk) continue;
        n_graphs++;
        n_dynamic += tn_stage_is_dynamic((tn_stage)g->tasks[t].subgraph);
    }
    claim(&b, TN_CLAIM_PREDICTED, "3.2", "subgraphs shared by all chunks", "%", 100.0 * 120 / 144, 100.0 * (n_graphs - n_dynamic) / n_graphs,
          "nine subgraphs per layer here, six there; 24 not shared in both");
    double weights = tn_sim_weight_bytes(tn_sim_model_find(qwen)), chunks = o.n_chunks;
    claim(&b, TN_CLAIM_UNCOUNTED, "3.2", "memory saved by sharing", "%", 75, (1 - 1 / chunks) * 100, "weights only: 1 - 1/4 by definition");
    claim(&b, TN_CLAIM_PREDICTED, "3.2", "memory saved by sharing", "GB", 7.2, (chunks - 1) * weights / 1e9, "linears' weights only, no buffers of activations");
    *n = b.n;
    return TERN_OK;
}

double tn_claim_error(const tn_claim *c) { return c->simulated / c->paper - 1; }

double tn_claims_median_error(const tn_claim *c, int32_t n) {
    double e[TN_MAX_CLAIMS];
    int32_t m = 0;
    assert(n <= TN_MAX_CLAIMS);
    for (int32_t i = 0; i < n; i++) {
        if (c[i].kind != TN_CLAIM_PREDICTED) continue;
        double x = fabs(tn_claim_error(&c[i]));
        int32_t at = m++;
        for (; at > 0 && e[at - 1] > x; at--) e[at] = e[at - 1];
        e[at] = x;
    }
    return !m ? NAN : m % 2 ? e[m / 2] : (e[m / 2 - 1] + e[m / 2]) / 2;
}
