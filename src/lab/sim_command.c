/* tern sim - what a model would do on a phone's processor: the prefill's own tasks, policies and planners on
 * a virtual clock. */
#include "cli/args.h"
#include "lab/commands.h"
#include "cli/output.h"

#include "base/clock.h"
#include "base/status.h"
#include "session/session.h"
#include "lab/reproduce_command.h"
#include "lab/sim_views.h"
#include "lab/soc_command.h"
#include "lab/svg.h"
#include "lab/synth.h"
#include "lab/this_machine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one request ----------------------------------------------------------------------------------- */

static void print_json(const tn_sim_request *r, const tn_sim_result *o) {
    printf("{\"model\": \"%s\", \"prompt_tokens\": %d, \"chunk\": %d, \"policy\": \"%s\", \"load\": \"%s\", "
           "\"attention\": \"%s\", \"ttft_ms\": %.3f, "
           "\"prefill_tokens_per_second\": %.2f, \"generated_tokens\": %d, \"ms_per_token\": %.3f, "
           "\"bubble_cpu\": %.4f, \"bubble_npu\": %.4f, \"bubble_io\": %.4f, ",
           r->model->name, r->n_tokens, r->n_chunk, tn_policy_name(r->policy.kind), tn_sim_load_name(r->load),
           tn_sim_attention_name(r->attention), o->ttft_ms, o->tokens_per_second, r->n_gen, o->ms_per_token,
           o->run.bubble[TN_LANE_CPU], o->run.bubble[TN_LANE_NPU], o->run.bubble[TN_LANE_IO]);
    if (r->n_views)
        printf("\"views\": %d, \"view_rows\": %d, \"encoder_first_ms\": %.3f, ", r->n_views, r->encoder.rows,
               o->apart_ms);
    printf("\"exposed_io_ms\": %.3f, \"exposed_switch_ms\": %.3f, \"energy_j\": %.3f, \"memory_bytes\": "
           "%.0f, \"critical_path_ms\": %.3f, \"cpu_work_ms\": %.3f, "
           "\"npu_work_ms\": %.3f, \"io_work_ms\": %.3f, \"stolen\": %d, \"tasks\": %d, \"bottleneck\": "
           "\"%s\"}\n",
           o->exposed_io_ms, o->exposed_switch_ms, o->energy_j, o->memory_bytes, (double)o->critical_ns / 1e6,
           (double)o->work_ns[TN_LANE_CPU] / 1e6, (double)o->work_ns[TN_LANE_NPU] / 1e6,
           (double)o->work_ns[TN_LANE_IO] / 1e6, o->run.n_stolen, o->n_tasks, tn_sim_bottleneck(o));
}

static void print_text(const tn_sim_request *r, const tn_sim_result *o) {
    printf("%s on %s: %d tokens in %d chunks of %d, %s, %s attention", r->model->name,
           r->soc ? r->soc->title : "this machine", r->n_tokens, o->n_chunks, r->n_chunk,
           tn_policy_name(r->policy.kind), tn_sim_attention_name(r->attention));
    if (r->load == TN_SIM_WARM) puts(", weights in memory");
    else printf(", weights by %s at %g bits\n", tn_sim_load_name(r->load), r->bits > 0 ? r->bits : 8);
    printf("prefill   %10.1f ms  to the first token, %.1f tokens/s; bottleneck: %s\n", o->ttft_ms,
           o->tokens_per_second, tn_sim_bottleneck(o));
    printf("bubbles   %10.1f %%   of the NPU, %.1f %% of the %s; %d products stolen\n",
           o->run.bubble[TN_LANE_NPU] * 100, o->run.bubble[TN_LANE_CPU] * 100,
           r->soc ? r->soc->float_lane : "CPU", o->run.n_stolen);
    if (o->critical_ns)
        printf(
            "at least  %10.1f ms  critical path; work of the NPU %.1f, of the CPU %.1f, of the flash %.1f\n",
            (double)o->critical_ns / 1e6, (double)o->work_ns[TN_LANE_NPU] / 1e6,
            (double)o->work_ns[TN_LANE_CPU] / 1e6, (double)o->work_ns[TN_LANE_IO] / 1e6);
    if (r->n_views)
        printf("picture   %10.1f ms  to the first token if its %d views (%d rows) were encoded before the "
               "prompt\n",
               o->apart_ms, r->n_views, r->n_views * r->encoder.rows);
    if (r->load != TN_SIM_WARM) printf("loading   %10.1f ms  exposed\n", o->exposed_io_ms);
    if (r->one_form) printf("switching %10.1f ms  exposed\n", o->exposed_switch_ms);
    if (r->n_gen) printf("decode    %10.2f ms/token over %d tokens\n", o->ms_per_token, r->n_gen);
    if (!r->soc) return;
    printf("energy    %10.2f J\nmemory    %10.2f GB\n", o->energy_j, o->memory_bytes / 1e9);
    printf("costs     %10.1f %%   residual of the fit to the table of products; of flash %.1f, of launches "
           "%.1f\n",
           r->soc->products_residual * 100, r->soc->flash_residual * 100, r->soc->estimate_residual * 100);
}

/* ---- sweep ----------------------------------------------------------------------------------------- */

enum { D_CHUNK, D_POLICY, D_STEAL, D_BITS, D_RATIO, D_NPU, D_FLASH, N_DIMS };
static const struct {
    const char *name;
    int n;
    double v[6];
} dims[N_DIMS] = {
    [D_CHUNK] = {"chunk", 6, {32, 64, 128, 256, 512, 1024}},
    [D_POLICY] = {"policy", 4, {TN_POLICY_IN_ORDER, TN_POLICY_OVERLAP, TN_POLICY_OOE, TN_POLICY_SYNERGY}},
    [D_STEAL] = {"steal", 2, {-1, 5}},
    [D_BITS] = {"bits", 4, {4, 5, 6, 8}},
    [D_RATIO] = {"ratio", 4, {1, 0.4, 0.2, 0.1}}, /* 1: full attention */
    [D_NPU] = {"npu", 4, {0.5, 1, 2, 4}},         /* speed, times */
    [D_FLASH] = {"flash", 4, {0.5, 1, 2, 4}},     /* bandwidth, times */
};

/* Prints CSV, a line for each combination of the dimensions named in vary; the others stay as the request has
 * them. */
static tern_status sweep(const tn_sim_request *base, const char *vary, tn_sim *s, int32_t *n_points,
                         tern_error *err) {
    int count[N_DIMS], at[N_DIMS] = {0};
    bool on[N_DIMS] = {0};
    char names[128];
    snprintf(names, sizeof names, "%s", vary);
    for (char *save, *word = strtok_r(names, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        int d = 0;
        while (d < N_DIMS && strcmp(dims[d].name, word)) d++;
        TN_FAIL_IF(d == N_DIMS, err, TERN_E_INVALID,
                   "'%s' cannot be varied; chunk, policy, steal, bits, ratio, npu and flash can", word);
        on[d] = true;
    }
    for (int d = 0; d < N_DIMS; d++) count[d] = on[d] ? dims[d].n : 1;
    puts("chunk,policy,steal_above,bits,ratio,npu_speed,flash_speed,ttft_ms,tokens_per_second,bubble_npu,"
         "bubble_cpu,exposed_io_ms,energy_j,bottleneck");
    for (bool more = true; more;) {
        tn_sim_request r = *base;
        tn_soc soc = *base->soc;
        tn_sim_result o;
        double npu = on[D_NPU] ? dims[D_NPU].v[at[D_NPU]] : 1,
               flash = on[D_FLASH] ? dims[D_FLASH].v[at[D_FLASH]] : 1;
        if (on[D_CHUNK]) r.n_chunk = (int32_t)dims[D_CHUNK].v[at[D_CHUNK]];
        if (on[D_POLICY]) r.policy = tn_policy_defaults((tn_policy_kind)dims[D_POLICY].v[at[D_POLICY]]);
        if (on[D_STEAL]) r.policy.steal_above = (int32_t)dims[D_STEAL].v[at[D_STEAL]];
        if (on[D_BITS]) r.bits = dims[D_BITS].v[at[D_BITS]];
        if (on[D_RATIO])
            r.ratio = dims[D_RATIO].v[at[D_RATIO]], r.attention = r.ratio < 1 ? TN_SIM_SHADOW : TN_SIM_FULL;
        soc.launch_ns /= npu, soc.byte_ns /= npu, soc.mac_ns /= npu, soc.est_launch_ns /= npu,
            soc.est_mac_ns /= npu;
        soc.flash_byte_ns /= flash, soc.graph_byte_ns /= flash;
        r.soc = &soc;
        TN_TRY(tn_sim_run(s, &r, NULL, &o, err));
        printf("%d,%s,%d,%g,%g,%g,%g,%.3f,%.2f,%.4f,%.4f,%.3f,%.3f,%s\n", r.n_chunk,
               tn_policy_name(r.policy.kind), r.policy.steal_above, r.bits > 0 ? r.bits : 8,
               r.attention == TN_SIM_FULL ? 1
               : r.ratio > 0              ? r.ratio
                                          : 0.2,
               npu, flash, o.ttft_ms, o.tokens_per_second, o.run.bubble[TN_LANE_NPU],
               o.run.bubble[TN_LANE_CPU], o.exposed_io_ms, o.energy_j, tn_sim_bottleneck(&o));
        ++*n_points;
        more = false;
        for (int d = N_DIMS - 1; d >= 0 && !more; d--) {
            more = ++at[d] < count[d];
            if (!more) at[d] = 0;
        }
    }
    return TERN_OK;
}

static int write_trace(const tn_timeline *tl, const char *path) {
    tern_error err;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    return tn_timeline_save_trace(tl, &ctx, path, &err) == TERN_OK ? EXIT_OK : cli_failed(&err);
}

/* What the command line says; NULL and 0 where it says nothing. */
typedef struct sim_args {
    const char *soc_name, *model, *policy, *trace, *load, *attention, *switching, *vary, *svg, *float_lane,
        *encoder;
    int32_t n_prompt, chunk, n_gen, steal, views, before;
    float bits, ratio, accepted;
    uint64_t npu_memory;
    bool list, json, one_core, staged, parameters, held_out, registration;
} sim_args;

/* ---- this machine ---------------------------------------------------------------------------------- */

/* Predicts a package's prefill on this machine's own lanes, from the stage times beside the package. This is
 * the calibration test. */
static int this_machine(const sim_args *a) {
    tern_engine *e = NULL;
    tern_error err;
    tern_options eo;
    tn_options_defaults(&eo);
    eo.policy = a->policy;
    if (tern_engine_open(a->model, &eo, &e, &err) != TERN_OK) return cli_failed(&err);
    tn_measured_steps measured;
    tn_sim_model shape;
    tn_sim_result o;
    tn_sim s = {0};
    tn_timeline *tl = NULL;
    tern_status st = tn_this_machine(e, &measured, &shape, &err);
    tn_sim_request r = {.measured = &measured, .model = &shape, .n_tokens = a->n_prompt};
    if (st == TERN_OK) {
        r.policy = e->policy, r.n_chunk = e->npu->chunk;
        if (a->steal != INT32_MIN) r.policy.steal_above = a->steal, r.policy.keep_busy = false;
        tn_timeline_options topt = {.cap_events = 1 << 18, .cap_flows = 1 << 20};
        memcpy(topt.n_workers, measured.n_workers, sizeof topt.n_workers);
        if (a->trace) st = tn_timeline_open(&e->ctx, &topt, &tl, &err);
    }
    if (st == TERN_OK) st = tn_sim_open(&e->ctx, &s, &err);
    if (st == TERN_OK) st = tn_sim_run(&s, &r, tl, &o, &err);
    int rc = st == TERN_OK ? EXIT_OK : cli_failed(&err);
    if (rc == EXIT_OK) (a->json ? print_json : print_text)(&r, &o);
    if (rc == EXIT_OK && a->trace) rc = write_trace(tl, a->trace);
    tn_timeline_close(&tl);
    tn_sim_close(&s);
    tern_engine_close(&e);
    return rc;
}

/* ---- Gantt chart ----------------------------------------------------------------------------------- */

/* Draws the request, and the same without each mechanism that it has. */
static int write_gantt(tn_ctx *ctx, tn_sim *s, const tn_sim_request *base, const char *path) {
    enum { MOST = 5 };
    static const tn_timeline_options topt = {
        .n_workers = {1, 1, 1}, .cap_events = 1 << 16, .cap_flows = 1 << 17};
    tn_sim_request r[MOST];
    tn_svg_run runs[MOST] = {{.label = "all"}};
    tn_timeline *tl[MOST] = {NULL};
    int32_t n = 1;
    tern_error err;
    tern_status st = TERN_OK;
    for (int i = 0; i < MOST; i++) r[i] = *base;
    if (base->load == TN_SIM_STREAM)
        r[n].load = TN_SIM_SEQUENTIAL,
        runs[n++].label = "without the cold-start pipeline (finished INT8 graphs are loaded first)";
    if (base->attention == TN_SIM_SHADOW)
        r[n].attention = TN_SIM_FULL, r[n].one_core = true,
        runs[n++].label = "without sparse attention (full, on the same one core)";
    if (base->policy.kind == TN_POLICY_OOE)
        r[n].policy = tn_policy_defaults(TN_POLICY_OVERLAP),
        runs[n++].label = "without out-of-order subgraphs (chunks in order)";
    if (base->one_form && base->switching == TN_SWITCH_PROGRESSIVE)
        r[n].switching = TN_SWITCH_SYNC,
        runs[n++].label = "without progressive switching (after the prefill)";
    for (int i = 0; i < n && st == TERN_OK; i++) {
        tn_sim_result o;
        st = tn_timeline_open(ctx, &topt, &tl[i], &err);
        if (st == TERN_OK) st = tn_sim_run(s, &r[i], tl[i], &o, &err);
        if (st == TERN_OK)
            runs[i].timeline = tl[i], runs[i].ttft_ms = o.ttft_ms, runs[i].after_ms = o.exposed_switch_ms;
    }
    int rc = st == TERN_OK ? EXIT_OK : cli_failed(&err);
    output_file f;
    if (rc == EXIT_OK && !cli_output_open(&f, path, &tn_svg_kind)) rc = EXIT_FAILED;
    if (rc == EXIT_OK) {
        char title[160];
        snprintf(title, sizeof title, "%s on %s, a prompt of %d tokens", base->model->name, base->soc->title,
                 base->n_tokens);
        tn_svg_gantt(f.stream, title, runs, n);
        rc = cli_output_close(&f);
    }
    for (int i = 0; i < n; i++) tn_timeline_close(&tl[i]);
    return rc;
}

/* ---- command --------------------------------------------------------------------------------------- */

static int by_name(const char *word, const char *(*name)(int), int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(word, name(i))) return i;
    return -1;
}

static const char *load_name(int i) { return tn_sim_load_name((tn_sim_load)i); }
static const char *attention_name(int i) { return tn_sim_attention_name((tn_sim_attention)i); }
static const char *paper_name(int i) { return tn_paper_name((tn_paper)i); }

/* One request; with vary a sweep over these dimensions. */
static int simulate(tn_sim_request *r, const char *vary, bool json, const char *trace, const char *svg) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_sim s;
    tn_timeline *tl = NULL;
    tern_error err;
    tn_sim_result o;
    tn_timeline_options topt = {.n_workers = {1, 1, 1}, .cap_events = 1 << 18, .cap_flows = 1 << 20};
    tern_status st = tn_sim_open(&ctx, &s, &err);
    if (st == TERN_OK && trace) st = tn_timeline_open(&ctx, &topt, &tl, &err);
    if (st == TERN_OK && vary) {
        int32_t n = 0;
        double t0 = tn_now_s();
        st = sweep(r, vary, &s, &n, &err);
        if (st == TERN_OK) fprintf(stderr, "%d requests in %.2f s\n", n, tn_now_s() - t0);
    } else if (st == TERN_OK) {
        st = tn_sim_run(&s, r, tl, &o, &err);
    }
    int rc = st == TERN_OK ? EXIT_OK : cli_failed(&err);
    if (rc == EXIT_OK && !vary) (json ? print_json : print_text)(r, &o);
    if (rc == EXIT_OK && trace) rc = write_trace(tl, trace);
    if (rc == EXIT_OK && svg) rc = write_gantt(&ctx, &s, r, svg);
    tn_timeline_close(&tl);
    tn_sim_close(&s);
    return rc;
}

/* What is no simulated request: lists, the papers' results, this machine; and what does not go together.
 * Returns -1 to go on or an exit status. */
static int other_than_requests(const command *c, const sim_args *a, const char *const *words,
                               bool *sweep_them) {
    if (a->list) {
        for (int i = 0; i < TN_N_SOCS; i++) printf("SoC    %s\n", tn_soc_names[i]);
        for (int32_t i = 0; tn_sim_model_at(i); i++) printf("model  %s\n", tn_sim_model_at(i)->name);
        for (size_t i = 0; tn_synth_tower_name(i); i++)
            if (strncmp(tn_synth_tower_name(i), "tiny-", 5)) printf("encoder %s\n", tn_synth_tower_name(i));
        return EXIT_OK;
    }
    bool sweeping = words[0] && !strcmp(words[0], "sweep");
    if (words[0] && !strcmp(words[0], "reproduce")) {
        if (words[1] && by_name(words[1], paper_name, TN_N_PAPERS) < 0)
            return cli_usage_error(
                c, "'%s' is no paper; there are llm-npu, edgeflow, shadowattn, sd-npu and hexagon", words[1]);
        if (a->model || a->trace) return cli_usage_error(c, "reproduce takes neither --model nor --trace");
        int tables = a->parameters + a->held_out + a->registration;
        if (tables > 1 || (tables && (words[1] || a->svg)) || (a->registration && a->json))
            return cli_usage_error(
                c, "--parameters and --held-out go with --json alone, --registration with nothing");
        return a->registration ? tn_print_registration()
               : a->parameters ? tn_print_parameters(a->json)
               : a->held_out   ? tn_print_held_out(a->json)
                               : tn_print_reproduced(words[1], a->json, a->svg);
    }
    if (a->parameters || a->held_out || a->registration)
        return cli_usage_error(c, "--parameters, --held-out and --registration are for reproduce");
    if (words[0] && (!sweeping || words[1]))
        return cli_usage_error(c, "'%s' is not something to do; there are sweep and reproduce",
                               words[sweeping]);
    if (sweeping && (a->trace || a->json || a->svg))
        return cli_usage_error(c, "sweep writes CSV: it takes none of --trace, --svg and --json");
    if (!sweeping && a->vary) return cli_usage_error(c, "--vary is for sweep");
    if (!a->model) return cli_usage_error(c, "--model is required");
    if (!strcmp(a->soc_name, "this-machine")) {
        if (sweeping) return cli_usage_error(c, "sweep is for SoCs");
        if (a->load || a->attention || a->switching || a->svg || a->float_lane || a->chunk || a->n_gen ||
            a->bits > 0 || a->ratio > 0 || a->accepted > 0 || a->npu_memory || a->one_core || a->staged ||
            a->encoder)
            return cli_usage_error(
                c, "this-machine takes --model, --prompt, --policy, --steal-above, --trace and --json alone");
        return this_machine(a);
    }
    *sweep_them = sweeping;
    return -1;
}

/* -1, or an exit status. */
static int request_of(const command *c, const sim_args *a, bool sweeping, tn_sim_request *r) {
    int i_load = by_name(a->load    ? a->load
                         : sweeping ? "stream"
                                    : "warm",
                         load_name, TN_N_SIM_LOADS),
        i_attention = by_name(a->attention ? a->attention : "full", attention_name, TN_N_SIM_ATTENTIONS);
    if (i_load < 0) return cli_usage_error(c, "no way of loading is called '%s'", a->load);
    if (i_attention < 0) return cli_usage_error(c, "no attention is called '%s'", a->attention);
    *r = (tn_sim_request){.model = tn_sim_model_find(a->model),
                          .n_tokens = a->n_prompt,
                          .n_chunk = a->chunk ? a->chunk : 256,
                          .n_gen = a->n_gen,
                          .bits = (double)a->bits,
                          .ratio = (double)a->ratio / 100,
                          .accepted = a->accepted > 0 ? (double)a->accepted : 1,
                          .npu_memory = (double)a->npu_memory,
                          .one_core = a->one_core,
                          .staged = a->staged,
                          .load = (tn_sim_load)i_load,
                          .attention = (tn_sim_attention)i_attention,
                          .one_form = a->switching};
    if (a->float_lane && strcmp(a->float_lane, "cpu") && strcmp(a->float_lane, "gpu"))
        return cli_usage_error(c, "no float lane is called '%s'; there are cpu and gpu", a->float_lane);
    if (!r->model) return cli_usage_error(c, "model '%s' is unknown (see --list)", a->model);
    if (!tn_policy_parse(a->policy ? a->policy : "ooe", &r->policy) || r->policy.kind == TN_POLICY_PLAN)
        return cli_usage_error(c, "policy '%s' is unknown", a->policy);
    if (a->steal != INT32_MIN) r->policy.steal_above = a->steal;
    if (!a->encoder && (a->views || a->before))
        return cli_usage_error(c, "--views and --before are for --encoder");
    if (a->encoder && !tn_sim_encoder_find(a->encoder, &r->encoder))
        return cli_usage_error(c, "encoder '%s' is unknown (see --list)", a->encoder);
    r->n_views = a->encoder ? a->views ? a->views : 1 : 0;
    r->n_before = a->before;
    if (a->switching && !tn_switch_parse(a->switching, &r->switching))
        return cli_usage_error(c, "no way of switching is called '%s'", a->switching);
    return -1;
}

int cmd_sim(int argc, char **argv) {
    sim_args a = {.soc_name = "sd8gen3", .n_prompt = 512, .steal = INT32_MIN};
    const arg_spec specs[] = {
        {"soc", 0, "NAME", ARG_STR, &a.soc_name, 0, 0,
         "sd8gen2, sd8gen3 (default), sd8elite, sd8elite-v79 (its NPU alone), a path to a SoC's data file, "
         "or this-machine (the package's profile)"},
        {"model", 0, "NAME", ARG_STR, &a.model, 0, 0,
         "whose shapes (--list names them); with this-machine a package"},
        {"prompt", 0, "N", ARG_INT, &a.n_prompt, 1, 131072, "tokens of the prompt (default 512)"},
        {"gen", 0, "N", ARG_INT, &a.n_gen, 0, 131072, "tokens generated after the first (default 0)"},
        {"chunk", 0, "L", ARG_INT, &a.chunk, 32, 1024, "tokens per chunk (default 256)"},
        {"policy", 0, "NAME", ARG_STR, &a.policy, 0, 0, "in-order, overlap, ooe (default) or synergy"},
        {"steal-above", 0, "N", ARG_INT, &a.steal, -1, 1 << 20,
         "the CPU takes products when more than N wait (default: 5 with synergy, else never; -1: never)"},
        {"load", 0, "HOW", ARG_STR, &a.load, 0, 0,
         "warm (default), stream, overlap, sequential, layers or build (docs/reference/simulator.md); sweep: "
         "stream"},
        {"bits", 0, "B", ARG_FLOAT, &a.bits, 1, 8,
         "of packed weights, with --load stream or overlap (default 8)"},
        {"attention", 0, "HOW", ARG_STR, &a.attention, 0, 0, "full (default), shadow or float-sparse"},
        {"ratio", 0, "PERCENT", ARG_FLOAT, &a.ratio, 1, 100,
         "sparse attention: share of the positions (default 20)"},
        {"one-core", 0, NULL, ARG_FLAG, &a.one_core, 0, 0,
         "full attention has one middle core, not the whole CPU"},
        {"float-lane", 0, "WHO", ARG_STR, &a.float_lane, 0, 0,
         "who computes floats beside the NPU: cpu (default) or gpu, by the papers' tables"},
        {"npu-memory", 0, "BYTES", ARG_U64, &a.npu_memory, 0, 0,
         "what the device can address (default: no limit)"},
        {"staged", 0, NULL, ARG_FLAG, &a.staged, 0, 0,
         "with --npu-memory: layers beyond it take turns in two places there (default: they run on the CPU)"},
        {"switch", 0, "WHEN", ARG_STR, &a.switching, 0, 0,
         "the device holds one form of a graph; exchange them: progressive, async or sync"},
        {"accepted", 0, "N", ARG_FLOAT, &a.accepted, 1, 1000,
         "tokens a decode step yields with drafts (default 1: none)"},
        {"encoder", 0, "NAME", ARG_STR, &a.encoder, 0, 0,
         "the prompt has a picture, encoded by this (--list names them)"},
        {"views", 0, "N", ARG_INT, &a.views, 1, 1024, "views of the picture (default 1)"},
        {"before", 0, "N", ARG_INT, &a.before, 0, 131072,
         "tokens of the prompt before their rows (default 0)"},
        {"vary", 0, "LIST", ARG_STR, &a.vary, 0, 0,
         "sweep: of chunk,policy,steal,bits,ratio,npu,flash (default: chunk,steal,bits,ratio,npu,flash)"},
        {"trace", 0, "FILE", ARG_STR, &a.trace, 0, 0, "write the timeline as Chrome trace JSON"},
        {"svg", 0, "FILE", ARG_STR, &a.svg, 0, 0,
         "draw the request, and again without each of its mechanisms; reproduce: a figure per paper in this "
         "folder"},
        {"parameters", 0, NULL, ARG_FLAG, &a.parameters, 0, 0,
         "reproduce: every number of the simulator, its source, what it was fitted to and what it moves"},
        {"held-out", 0, NULL, ARG_FLAG, &a.held_out, 0, 0,
         "reproduce: fit the numbers anew without each paper in turn, and predict that paper (minutes)"},
        {"registration", 0, NULL, ARG_FLAG, &a.registration, 0, 0,
         "reproduce: predictions written down before the published figures were looked up"},
        {"json", 0, NULL, ARG_FLAG, &a.json, 0, 0, "print JSON"},
        {"list", 0, NULL, ARG_FLAG, &a.list, 0, 0, "list the SoCs and the models, and stop"},
        {0},
    };
    const command c = {
        "sim", "[sweep | reproduce [PAPER]] --soc NAME --model NAME [--prompt N] [OPTIONS]",
        "Simulate a request on a phone's processor, from costs printed in papers. sweep: CSV over the "
        "dimensions of --vary. "
        "reproduce: the papers' results, and public figures of Hexagons, beside ours (llm-npu, edgeflow, "
        "shadowattn, sd-npu, hexagon; none: all).",
        specs, 2};
    const char *words[3];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    bool sweeping = false;
    tn_sim_request r;
    rc = other_than_requests(&c, &a, words, &sweeping);
    if (rc < 0) rc = request_of(&c, &a, sweeping, &r);
    if (rc >= 0) return rc;
    tn_soc soc;
    rc = tn_load_soc_named(a.soc_name, &soc);
    if (rc != EXIT_OK) return rc;
    if (a.float_lane && !strcmp(a.float_lane, "gpu")) soc = tn_soc_with_gpu(&soc);
    r.soc = &soc;
    return simulate(&r, sweeping ? (a.vary ? a.vary : "chunk,steal,bits,ratio,npu,flash") : NULL, a.json,
                    a.trace, a.svg);
}
