#include "lab/parameters.h"

#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

const char *const tn_sim_param_kind_names[TN_N_SIM_PARAM_KINDS] = {"measured", "solved", "fitted", "assumed",
                                                                   "set"};

enum {
    GEN2 = 1 << TN_SOC_GEN2,
    GEN3 = 1 << TN_SOC_GEN3,
    ELITE = 1 << TN_SOC_ELITE,
    V79 = 1 << TN_SOC_V79,
    PHONES = GEN2 | GEN3 | ELITE,
    LLM_NPU = 1 << TN_PAPER_LLM_NPU,
    EDGEFLOW = 1 << TN_PAPER_EDGEFLOW,
    SHADOWATTN = 1 << TN_PAPER_SHADOWATTN,
    SD_NPU = 1 << TN_PAPER_SD_NPU,
    HEXAGON = 1 << TN_PAPER_HEXAGON,
    FOUR = LLM_NPU | EDGEFLOW | SHADOWATTN | SD_NPU,
};

#define SOC(field) offsetof(tn_soc, field)
#define INPUT(field) offsetof(tn_inputs, field)
#define KNOWN(kind, name, unit, socs, at, scale, from, papers, source)                                       \
    { name, unit, source, NULL, kind, socs, at, scale, from, papers, 0, 0, 0 }
#define MEASURED(...) KNOWN(TN_SIM_PARAM_MEASURED, __VA_ARGS__)
#define SOLVED(...) KNOWN(TN_SIM_PARAM_SOLVED, __VA_ARGS__)
#define SET(name, unit, value, papers, source)                                                               \
    { name, unit, source, NULL, TN_SIM_PARAM_SET, 0, 0, 1, papers, papers, value, 0, 0 }

static const tn_sim_param params[] = {
    MEASURED("launch of a product", "ms", PHONES, SOC(launch_ns), 1e-6, LLM_NPU, FOUR,
             "llm.npu table 3, six NPU INT8 times, least squares with the next"),
    MEASURED("a weight byte of a product", "ns", PHONES, SOC(byte_ns), 1, LLM_NPU, SD_NPU,
             "llm.npu table 3, six NPU INT8 times, least squares with the last"),
    MEASURED(
        "INT8 products of the NPU", "GMAC/s", PHONES, SOC(mac_ns), -1, LLM_NPU, FOUR,
        "llm.npu 3.4: the NPU takes 315 ms for 256 tokens of Qwen1.5-1.8B; 8 Gen 2 and 8 Elite as 8 Gen 3"),
    MEASURED(
        "CPU over NPU, a product", "x", PHONES, SOC(cpu_slower), 1, LLM_NPU, LLM_NPU | EDGEFLOW,
        "llm.npu table 3, geometric mean of six; rounded up it is EdgeFlow's threshold of stealing (4.3)"),
    MEASURED("GPU over NPU, a product", "x", PHONES, SOC(gpu_slower), 1, LLM_NPU, LLM_NPU,
             "llm.npu table 3, geometric mean of six"),
    MEASURED("launch of an estimate", "ms", PHONES, SOC(est_launch_ns), 1e-6, SHADOWATTN, SHADOWATTN,
             "shadowAttn 3.4: 2, 3 and 4 ms for 1, 2 and 4 heads, least squares with the next"),
    MEASURED("INT8 estimate", "GMAC/s", PHONES, SOC(est_mac_ns), -1, SHADOWATTN, SHADOWATTN,
             "shadowAttn 3.4: 2, 3 and 4 ms for 1, 2 and 4 heads, least squares with the last"),
    MEASURED("sparse attention over its share", "x", PHONES, SOC(attend_factor), 1, SHADOWATTN, SHADOWATTN,
             "shadowAttn figure 4a at 20 %: 34.3 % saved, 66.7 % of the rest is estimation"),
    MEASURED("float estimate over attention", "x", PHONES, SOC(estimate_float), 1, SHADOWATTN, SHADOWATTN,
             "shadowAttn figure 4a at 20 %: 34.3 % saved, 66.7 % of the rest is estimation"),
    MEASURED("float operators, NPU over CPU", "x", PHONES, SOC(float_slower), 1, EDGEFLOW, EDGEFLOW,
             "EdgeFlow 3.2, figure 5b: 2.1 on average of three operators"),
    MEASURED("reading", "GB/s", PHONES, SOC(flash_byte_ns), -1, EDGEFLOW, EDGEFLOW | SD_NPU,
             "EdgeFlow 3.2, figure 4: Llama3 8B in 3.03 and 1.60 s; exchanging a graph takes this too"),
    MEASURED("unpacking", "Gweights/s", PHONES, SOC(unpack_ns), -1, EDGEFLOW, EDGEFLOW,
             "EdgeFlow 3.2 and 5.4.2: 5.53 s of K-Quant, 6.17 times as fast"),
    MEASURED("building graphs", "s/GB", PHONES, SOC(optimise_byte_ns), 1, LLM_NPU, LLM_NPU | EDGEFLOW,
             "llm.npu 2.3: 0.36 + 11.54 s for Gemma-2B"),
    MEASURED("sites that keep the outlier path", "%", PHONES, SOC(outliers_kept), 100, LLM_NPU, FOUR,
             "llm.npu 3.3: the least important 85 % are pruned"),

    {"handing over a value", "ns", "told by llm.npu 4.4: 596 tokens/s with all outliers pruned",
     "a byte in and four out, at 10 GB/s", TN_SIM_PARAM_FITTED, PHONES, SOC(handover_ns), 1, LLM_NPU, FOUR,
     0.25, 0.01, 2},
    {"merging an output with its outliers", "ns", "told by llm.npu 4.4: 156 tokens/s with nothing pruned",
     "read twice and written, four bytes each, at 10 GB/s, by one thread of four", TN_SIM_PARAM_FITTED,
     PHONES, SOC(sync_ns), 1, LLM_NPU, FOUR, 4.8, 0.3, 30},
    {"attention on the CPU", "GMAC/s", "told by EdgeFlow 4.3: the CPU is idle for 65 %",
     "half of the CPU's INT8 products in llm.npu's table 3, which take 64 GMAC/s and more",
     TN_SIM_PARAM_FITTED, PHONES, SOC(attn_mac_ns), -1, EDGEFLOW, FOUR, 60, 20, 1000},
    {"a float value on the CPU", "ns",
     "told by llm.npu 3.4: the NPU takes about twice the CPU's time, 157.5 ms, of which attention is a "
     "part",
     "four floats read and written, at 40 GB/s of all cores", TN_SIM_PARAM_FITTED, PHONES, SOC(elem_ns), 1,
     LLM_NPU | EDGEFLOW, FOUR, 0.8, 0.05, 3},
    {"outlier channels of a site", "channels", "llm.npu 3.3: 5 to 15, the middle taken", "the same",
     TN_SIM_PARAM_ASSUMED, PHONES, SOC(outlier_channels), 1, 0, FOUR, 10, 5, 15},
    {"set-up of graphs", "s/GB", "told by EdgeFlow's abstract: 1.55 times as fast as llm.npu+",
     "loading as below, less half of what is beyond reading", TN_SIM_PARAM_FITTED, PHONES, SOC(setup_byte_ns),
     1, EDGEFLOW, EDGEFLOW, 0.53, 0.05, 2},
    {"loading of graphs", "s/GB", "told by EdgeFlow 3.1: 10.5 s of cold start with finished graphs",
     "0.887 s of Llama 3.2 1B and 3.411 of 3B, w4a16 (ExecuTorch #7175, #5751): 1.49 with set-up",
     TN_SIM_PARAM_FITTED, PHONES, SOC(graph_byte_ns), 1, EDGEFLOW, EDGEFLOW, 0.96, 0.43, 2},
    {"attention on one middle core", "GMAC/s",
     "told by shadowAttn 5.1: the kernel is 3.5 times as fast, mean of twelve",
     "a core of 8 Gen 3: two pipes of four floats at 3.15 GHz, at a third of their peak", TN_SIM_PARAM_FITTED,
     PHONES, SOC(core_mac_ns), -1, SHADOWATTN, SHADOWATTN, 8.4, 2, 25},
    {"top-k of a score", "ns", "four floats compared a cycle, about 3 GHz, and as much again to keep them",
     "the same", TN_SIM_PARAM_ASSUMED, PHONES, SOC(topk_ns), 1, 0, SHADOWATTN, 0.3, 0.08, 1.2},
    {"power of the NPU over a core's", "x", "told by shadowAttn table 8: 0.66 of 3.72 J, PhoneLM-0.5B",
     "llm.npu 4.2: 46 times less energy and 30 times less time than four cores, which half of the time "
     "compute too",
     TN_SIM_PARAM_FITTED, 0, INPUT(npu_over_core_w), 1, SHADOWATTN, SHADOWATTN, 0.58, 0.05, 2},
    {"a layer of a decode step", "ms",
     "told by sd.npu table 3, +G: 23.43 ms of Qwen2.5-0.5B, 70.03 of LLaMA3.2-3B, with the next",
     "AI Hub, 8 Elite: as sd8elite-v79", TN_SIM_PARAM_FITTED, PHONES, SOC(step_layer_ns), 1e-6, SD_NPU,
     SHADOWATTN | SD_NPU, 0.41, 0.1, 2},
    {"reading weights in a decode step", "GB/s",
     "told by sd.npu table 3, +G: 23.43 ms of Qwen2.5-0.5B, 70.03 of LLaMA3.2-3B, with the last",
     "AI Hub, 8 Elite: as sd8elite-v79", TN_SIM_PARAM_FITTED, PHONES, SOC(step_byte_ns), -1, SD_NPU,
     SHADOWATTN | SD_NPU, 67.4, 20, 140},
    {"tokens of a summary", "tokens", "told by sd.npu table 3: +G saves 57.41 - 47.72 ms a token",
     "ArxivSum's answers in shadowAttn", TN_SIM_PARAM_FITTED, 0, INPUT(answer_tokens), 1, SD_NPU, SD_NPU, 50,
     16, 400},
    {"power of the CPU", "W", "told by EdgeFlow 5.5.2: 17.6 % more power than llm.npu+", "the NPU's",
     TN_SIM_PARAM_FITTED, PHONES, SOC(cpu_w), 1, EDGEFLOW, EDGEFLOW, 2, 0.5, 10},
    {"power of the NPU", "W", "scale from sd.npu 5.2: 53.85 J a request, to a factor of two", "the same",
     TN_SIM_PARAM_ASSUMED, PHONES, SOC(npu_w), 1, 0, EDGEFLOW, 2, 0.5, 6},
    {"power when idle", "W", "scale from sd.npu 5.2: 53.85 J a request, to a factor of two", "the same",
     TN_SIM_PARAM_ASSUMED, PHONES, SOC(idle_w), 1, 0, EDGEFLOW, 1.5, 0.3, 4},
    {"power of the flash", "W", "a third of when idle", "the same", TN_SIM_PARAM_ASSUMED, PHONES,
     SOC(flash_w), 1, 0, EDGEFLOW, 0.5, 0.1, 2},

    SOLVED("a layer, all on v79", "ms", V79, SOC(launch_ns), 4e-6, HEXAGON, HEXAGON,
           "AI Hub, 8 Elite: two models' first tokens, with the next (four graphs of a layer)"),
    SOLVED("products, all on v79", "GMAC/s", V79, SOC(mac_ns), -1, HEXAGON, HEXAGON,
           "AI Hub, 8 Elite: two models' first tokens, with the last"),
    SOLVED("a layer of a step, all on v79", "ms", V79, SOC(step_layer_ns), 1e-6, HEXAGON, HEXAGON,
           "AI Hub, 8 Elite: two models' speeds of decoding, with the next"),
    SOLVED("reading in a step, all on v79", "GB/s", V79, SOC(step_byte_ns), -1, HEXAGON, HEXAGON,
           "AI Hub, 8 Elite: two models' speeds of decoding, with the last"),
    SET("8 Elite Gen 5 over 8 Elite, prompts", "x", 0.71, HEXAGON,
        "AI Hub: Llama-3.1-8B's first token, one number for one"),
    SET("8 Elite Gen 5 over 8 Elite, decoding", "x", 0.875, HEXAGON,
        "AI Hub: Llama-3.1-8B, one number for one"),
    SET("X Elite over 8 Elite, prompts", "x", 1.34, HEXAGON,
        "AI Hub: Llama-3.1-8B's first token, one number for one"),
    SET("X Elite over 8 Elite, decoding", "x", 1.395, HEXAGON, "AI Hub: Llama-3.1-8B, one number for one"),
    SET("float products of recurrences, v79", "GMAC/s", 192, HEXAGON,
        "assumed: four vector threads of 32 floats, 1.5 GHz"),
    SET("context where nothing is static", "tokens", 64, HEXAGON,
        "assumed: half of the 128 tokens that are decoded"),
    SET("prompt of llm.npu's 3.4 to 4.7", "tokens", 1024, LLM_NPU,
        "assumed: llm.npu 4.2's longest; not printed"),
    SET("chunk but EdgeFlow's", "tokens", 256, LLM_NPU | SHADOWATTN | SD_NPU, "llm.npu 3.2, sd.npu 3"),
    SET("products by group over by tensor", "x", 9.31, LLM_NPU, "llm.npu 2.3: 8.1 to 10.7, geometric mean"),
    SET("what the NPU addresses", "GiB", 4, LLM_NPU, "llm.npu 4"),
    SET("chunk of EdgeFlow", "tokens", 128, EDGEFLOW,
        "by profiling the baseline as in llm.npu 3.2; moves with what is fitted"),
    SET("threshold of stealing", "products", 5, EDGEFLOW,
        "CPU over NPU, a product, rounded up (EdgeFlow 4.3)"),
    SET("bits of the INT4/INT8 mix", "bits", 7.52, EDGEFLOW,
        "EdgeFlow 5.3: 88 % of 5-bit weights padded to 8 bits"),
    SET("positions kept", "%", 20, SHADOWATTN, "shadowAttn's default"),
    SET("rows of an estimate's launch", "rows", 128, SHADOWATTN, "shadowAttn 3.4"),
    SET("rows of a decode graph", "rows", 32, SD_NPU, "sd.npu 5.1: the least length that saturates the NPU"),
    SET("blocks of graphs", "blocks", 2, SD_NPU, "sd.npu 5.1"),
    SET("sub-chunks of a chunk", "x", 4, SD_NPU,
        "assumed: a decode graph has a quarter of the rows (sd.npu 4.2)"),
    SET("prompt of a summary", "tokens", 1024, SD_NPU, "sd.npu 3.1: 1K context"),
    SET("tokens a step by SAM", "tokens", 3.60, SD_NPU, "sd.npu table 4, Qwen2.5-1.5B, taken for all three"),
    SET("tokens a step by all drafters", "tokens", 4.21, SD_NPU,
        "sd.npu table 4, Qwen2.5-1.5B, taken for all three"),
};
enum { N_PARAMS = sizeof params / sizeof *params };

const tn_sim_param *tn_sim_param_at(int32_t i) { return i >= 0 && i < N_PARAMS ? &params[i] : NULL; }

static double *place(const tn_sim_param *p, tn_inputs *in, int soc) {
    return (double *)((char *)(p->socs ? (void *)&in->socs[soc] : (void *)in) + p->at);
}

double tn_sim_param_get(const tn_sim_param *p, const tn_inputs *in) {
    if (p->kind == TN_SIM_PARAM_SET) return p->prior;
    int soc = 0;
    while (p->socs && !(p->socs >> soc & 1)) soc++;
    double v = *place(p, (tn_inputs *)in, soc);
    return p->scale > 0 ? v * p->scale : -p->scale / v;
}

void tn_sim_param_set(const tn_sim_param *p, tn_inputs *in, double value) {
    double v = p->scale > 0 ? value / p->scale : -p->scale / value;
    assert(p->kind != TN_SIM_PARAM_SET);
    if (!p->socs) *place(p, in, 0) = v;
    for (int soc = 0; soc < TN_N_SOCS; soc++)
        if (p->socs >> soc & 1) *place(p, in, soc) = v;
}

/* ---- the fit --------------------------------------------------------------------------------------- */

typedef struct fit {
    tn_inputs *in;
    tn_sim *s;
    tn_fit *out;
    unsigned counted;               /* papers whose rows are fitted to */
    double error[TN_PAPER_HEXAGON]; /* of each paper, now */
} fit;

/* Computes the mean of |log(simulated / printed)| over the inputs and predictions of a paper. */
static tern_status paper_error(fit *f, tn_paper p, double *out, tern_error *err) {
    tn_claim *c = f->out->claims[p];
    int32_t n, n_rows = 0;
    double sum = 0;
    TN_TRY(tn_sim_reproduce(p, f->in, f->s, c, &n, err));
    f->out->n_claims[p] = n;
    f->out->n_runs++;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].kind != TN_CLAIM_INPUT && c[i].kind != TN_CLAIM_PREDICTED) continue;
        double ratio = fmax(c[i].simulated / c[i].paper, 1.0 / 3);
        sum += fmin(fabs(log(ratio)), log(3)), n_rows++;
    }
    *out = sum / n_rows;
    return TERN_OK;
}

static double total(const fit *f, const double error[TN_PAPER_HEXAGON]) {
    double sum = 0;
    int n = 0;
    for (int p = 0; p < TN_PAPER_HEXAGON; p++)
        if (f->counted >> p & 1) sum += error[p], n++;
    sum /= n;
    for (int32_t i = 0; i < N_PARAMS; i++)
        if (tn_sim_param_is_free(&params[i]))
            sum += 0.01 * fabs(log(tn_sim_param_get(&params[i], f->in) / params[i].prior));
    return sum;
}

/* Multiplies a parameter by a factor; keeps that where it makes the total less. */
static tern_status try_move(fit *f, const tn_sim_param *p, double factor, bool *better, tern_error *err) {
    double was = tn_sim_param_get(p, f->in), before = total(f, f->error), error[TN_PAPER_HEXAGON];
    *better = false;
    if (was * factor > p->most || was * factor < p->least) return TERN_OK;
    memcpy(error, f->error, sizeof error);
    tn_sim_param_set(p, f->in, was * factor);
    for (int k = 0; k < TN_PAPER_HEXAGON; k++)
        if (f->counted & p->papers & 1u << k) TN_TRY(paper_error(f, (tn_paper)k, &error[k], err));
    *better = total(f, error) < before - 1e-6;
    if (*better) memcpy(f->error, error, sizeof error);
    else tn_sim_param_set(p, f->in, was);
    return TERN_OK;
}

static tern_status sweep(fit *f, double step, bool *any, tern_error *err) {
    *any = false;
    for (int32_t i = 0; i < N_PARAMS; i++) {
        const tn_sim_param *p = &params[i];
        bool better = false;
        if (!tn_sim_param_is_free(p) || !(p->papers & f->counted)) continue;
        TN_TRY(try_move(f, p, step, &better, err));
        if (!better) TN_TRY(try_move(f, p, 1 / step, &better, err));
        *any |= better;
    }
    return TERN_OK;
}

tern_status tn_sim_params_fit(tn_inputs *in, tn_paper without, int32_t n_sweeps, tn_sim *s, tn_fit *out,
                              tern_error *err) {
    fit f = {.in = in, .s = s, .out = out, .counted = FOUR & ~(1u << without)};
    bool any = true;
    *out = (tn_fit){0};
    for (int32_t i = 0; i < N_PARAMS; i++) {
        if (tn_sim_param_is_free(&params[i])) tn_sim_param_set(&params[i], in, params[i].prior);
    }
    for (int p = 0; p < TN_PAPER_HEXAGON; p++)
        if (f.counted >> p & 1) TN_TRY(paper_error(&f, (tn_paper)p, &f.error[p], err));
    out->before = total(&f, f.error);
    for (double step = 2; step > 1.03 && n_sweeps > 0; n_sweeps--) {
        TN_TRY(sweep(&f, step, &any, err));
        if (!any) step = sqrt(step);
    }
    out->after = total(&f, f.error);
    for (int p = 0; p < TN_PAPER_HEXAGON; p++) {
        double unused;
        TN_TRY(paper_error(&f, (tn_paper)p, &unused, err));
        out->median[p] = tn_claims_median_error(out->claims[p], out->n_claims[p], false);
    }
    return TERN_OK;
}
