/* tern sim - what a model would do on a phone's processor: the prefill's own tasks and policies on a virtual clock. */
#include "cli/args.h"
#include "cli/commands.h"

#include "base/status.h"
#include "sim/reproduce.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* $TERN_SHARE, ../share/tern beside the installed program, ../share of a build in the source tree. */
static bool find_soc(const char *name, char *path, size_t cap) {
    char exe[512];
    const char *share = getenv("TERN_SHARE");
    if (strchr(name, '/')) return snprintf(path, cap, "%s", name) < (int)cap && !access(path, R_OK);
    if (share) return snprintf(path, cap, "%s/soc/%s.json", share, name) < (int)cap && !access(path, R_OK);
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    static const char *const places[] = {"../share/tern", "../share"};
    for (int i = 0; i < 2; i++)
        if (snprintf(path, cap, "%s/%s/soc/%s.json", exe, places[i], name) < (int)cap && !access(path, R_OK)) return true;
    return false;
}

static void print_result(const tn_soc *soc, const tn_sim_request *r, const tn_sim_result *o, bool json) {
    if (json) {
        printf("{\"model\": \"%s\", \"prompt_tokens\": %d, \"chunk\": %d, \"policy\": \"%s\", \"ttft_ms\": %.3f, \"prefill_tokens_per_second\": %.2f, "
               "\"bubble_cpu\": %.4f, \"bubble_npu\": %.4f, \"critical_path_ms\": %.3f, \"cpu_work_ms\": %.3f, \"npu_work_ms\": %.3f, \"tasks\": %d}\n",
               r->model->name, r->n_tokens, r->n_chunk, tn_policy_name(r->policy.kind), o->ttft_ms, o->tokens_per_second, o->run.bubble[TN_LANE_CPU],
               o->run.bubble[TN_LANE_NPU], (double)o->critical_ns / 1e6, (double)o->work_ns[TN_LANE_CPU] / 1e6, (double)o->work_ns[TN_LANE_NPU] / 1e6, o->n_tasks);
        return;
    }
    printf("%s on %s: %d tokens in %d chunks of %d, %s\n", r->model->name, soc->title, r->n_tokens, o->n_chunks, r->n_chunk, tn_policy_name(r->policy.kind));
    printf("prefill   %10.1f ms  %.1f tokens/s\n", o->ttft_ms, o->tokens_per_second);
    printf("bubbles   %10.1f %%   of the NPU, %.1f %% of the CPU\n", o->run.bubble[TN_LANE_NPU] * 100, o->run.bubble[TN_LANE_CPU] * 100);
    printf("at least  %10.1f ms  critical path; work of the NPU %.1f, of the CPU %.1f\n", (double)o->critical_ns / 1e6, (double)o->work_ns[TN_LANE_NPU] / 1e6,
           (double)o->work_ns[TN_LANE_CPU] / 1e6);
    printf("costs     %10.1f %%   residual of the fit to the table of products\n", soc->fit_residual * 100);
}

/* One line of CSV per chunk length, policy and speed of the device (times 0.5 to 4). */
static tern_status sweep(tn_sim_request r, tn_graph *g, tn_sched *s, tern_error *err) {
    const tn_soc base = *r.soc;
    puts("chunk,policy,npu_speed,ttft_ms,tokens_per_second,bubble_npu,bubble_cpu,bottleneck");
    for (r.n_chunk = 32; r.n_chunk <= 1024; r.n_chunk *= 2)
        for (int k = TN_POLICY_IN_ORDER; k <= TN_POLICY_SYNERGY; k++)
            for (double speed = 0.5; speed <= 4; speed *= 2) {
                tn_soc soc = base;
                tn_sim_result o;
                soc.launch_ns /= speed, soc.byte_ns /= speed, soc.mac_ns /= speed;
                r.soc = &soc;
                r.policy = tn_policy_defaults((tn_policy_kind)k);
                TN_TRY(tn_sim_prefill(&r, g, s, NULL, &o, err));
                printf("%d,%s,%g,%.3f,%.2f,%.4f,%.4f,%s\n", r.n_chunk, tn_policy_name(r.policy.kind), speed, o.ttft_ms, o.tokens_per_second,
                       o.run.bubble[TN_LANE_NPU], o.run.bubble[TN_LANE_CPU], tn_sim_bottleneck(&o));
            }
    return TERN_OK;
}

static void print_claims(const tn_soc *soc, const tn_claim *c, int32_t n, bool json) {
    static const char *const kinds[] = {"input", "uncounted", "predicted"};
    static const char *const heads[] = {"Inputs of the fit", "Not counted", "Predicted"};
    if (json) printf("{\"fit_residual\": %.4f, \"median_error\": %.4f, \"claims\": [", soc->fit_residual, tn_claims_median_error(c, n));
    for (int k = TN_CLAIM_INPUT; k <= TN_CLAIM_PREDICTED; k++) {
        if (!json) printf("%s%-42s %-9s %10s %10s %8s\n", k ? "\n" : "", heads[k], "section", "paper", "simulated", "error");
        for (int32_t i = 0, first = 1; i < n; i++) {
            if (c[i].kind != (tn_claim_kind)k) continue;
            if (json)
                printf("%s\n{\"kind\": \"%s\", \"what\": \"%s\", \"unit\": \"%s\", \"section\": \"%s\", \"paper\": %.4g, "
                       "\"simulated\": %.4g, \"error\": %.4f, \"note\": \"%s\"}",
                       k || !first ? "," : "", kinds[k], c[i].what, c[i].unit, c[i].where, c[i].paper, c[i].simulated, tn_claim_error(&c[i]),
                       c[i].note);
            else
                printf("%-42s %-9s %10.1f %10.1f %+7.1f%%  %s%s%s\n", c[i].what, c[i].where, c[i].paper, c[i].simulated, tn_claim_error(&c[i]) * 100, c[i].unit,
                       *c[i].note ? "; " : "", c[i].note);
            first = 0;
        }
        if (!json && k == TN_CLAIM_INPUT) printf("%-42s %-9s residual of the fit %.1f %%\n", "NPU INT8 products", "Table 3", soc->fit_residual * 100);
    }
    if (json) puts("\n]}");
    else printf("\nmedian error of what is predicted: %.1f %%\n", tn_claims_median_error(c, n) * 100);
}

int cmd_sim(int argc, char **argv) {
    const char *soc_name = NULL, *model = NULL, *policy = "ooe", *trace = NULL;
    int32_t n_prompt = 512, chunk = 256;
    bool list = false, json = false;
    const arg_spec specs[] = {
        {"soc", 0, "NAME", ARG_STR, &soc_name, 0, 0, "sd8gen3, or a path to a SoC's data file"},
        {"model", 0, "NAME", ARG_STR, &model, 0, 0, "whose shapes (--list names them)"},
        {"prompt", 0, "N", ARG_INT, &n_prompt, 1, 131072, "tokens of the prompt (default 512)"},
        {"chunk", 0, "L", ARG_INT, &chunk, 32, 1024, "tokens per chunk (default 256)"},
        {"policy", 0, "NAME", ARG_STR, &policy, 0, 0, "in-order, overlap, ooe (default) or synergy"},
        {"trace", 0, "FILE", ARG_STR, &trace, 0, 0, "write the timeline as Chrome trace JSON"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print JSON"},
        {"list", 0, NULL, ARG_FLAG, &list, 0, 0, "list the models and stop"},
        {0},
    };
    const command c = {"sim", "[sweep | reproduce llm-npu] --soc NAME --model NAME [--prompt N] [OPTIONS]",
                       "Simulate a prefill on a phone's processor, from costs printed in papers. sweep: CSV over chunk, policy and device speed. "
                       "reproduce: a paper's results beside ours.", specs, 2};
    const char *words[3];
    char path[1024];
    int rc = args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    for (int32_t i = 0; list && tn_sim_model_at(i); i++) puts(tn_sim_model_at(i)->name);
    if (list) return EXIT_OK;
    bool reproduce = words[0] && !strcmp(words[0], "reproduce");
    if (words[0] && !reproduce && strcmp(words[0], "sweep")) return usage_error(&c, "'%s' is not something to do; there are sweep and reproduce", words[0]);
    if (reproduce && (!words[1] || strcmp(words[1], "llm-npu"))) return usage_error(&c, "reproduce what? There is llm-npu");
    if (reproduce && (model || trace)) return usage_error(&c, "reproduce takes neither --model nor --trace");
    if (words[0] && !reproduce && (words[1] || trace || json)) return usage_error(&c, "sweep writes CSV: it takes neither a second word nor --trace nor --json");
    if (reproduce) model = "qwen1.5-1.8b", soc_name = soc_name ? soc_name : "sd8gen3";
    if (!soc_name || !model) return usage_error(&c, "--soc and --model are required");
    tn_sim_request r = {.model = tn_sim_model_find(model), .n_tokens = n_prompt, .n_chunk = chunk};
    if (!r.model) return usage_error(&c, "model '%s' is unknown (see --list)", model);
    if (!tn_policy_parse(policy, &r.policy) || r.policy.kind == TN_POLICY_PLAN) return usage_error(&c, "policy '%s' is unknown", policy);
    if (!find_soc(soc_name, path, sizeof path)) return failed_text("no data file for SoC '%s'", soc_name);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_soc soc;
    tn_graph *g = NULL;
    tn_sched *s = NULL;
    tn_timeline *tl = NULL;
    FILE *f = NULL;
    tern_error err;
    tn_sim_result o;
    tn_timeline_options topt = {.n_workers = {1, 1, 0}, .cap_events = 1 << 18, .cap_flows = 1 << 20};
    r.soc = &soc;
    tern_status st = tn_soc_load(&soc, path, &err);
    if (st == TERN_OK) st = tn_graph_open(&ctx, &g, &err);
    if (st == TERN_OK) st = tn_sched_open(&ctx, &s, &err);
    if (st == TERN_OK && trace) st = tn_timeline_open(&ctx, &topt, &tl, &err);
    tn_claim claims[TN_MAX_CLAIMS];
    int32_t n_claims = 0;
    if (st == TERN_OK) {
        st = reproduce ? tn_sim_reproduce_llm_npu(&soc, g, s, claims, &n_claims, &err)
             : words[0] ? sweep(r, g, s, &err)
                        : tn_sim_prefill(&r, g, s, tl, &o, &err);
    }
    if (st == TERN_OK && reproduce) print_claims(&soc, claims, n_claims, json);
    rc = st == TERN_OK ? EXIT_OK : failed(&err);
    if (rc == EXIT_OK && !words[0]) print_result(&soc, &r, &o, json);
    if (rc == EXIT_OK && trace) {
        f = fopen(trace, "w");
        if (!f) rc = failed_text("%s: %s", trace, strerror(errno));
        else if (tn_timeline_write_trace(tl, f, &err) != TERN_OK) rc = failed(&err);
        if (f && fclose(f) && rc == EXIT_OK) rc = failed_text("%s: cannot write", trace);
    }
    tn_timeline_close(&tl);
    tn_sched_close(&s);
    tn_graph_close(&g);
    return rc;
}
