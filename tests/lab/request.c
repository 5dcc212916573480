/* tests/lab/request.c - are simulated requests valid schedules, deterministic, and within the bounds of any
 * schedule, whatever is switched on? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../sched/verify.h"
#include "base/clock.h"
#include "lab/sim_views.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static tn_ctx ctx;
static tn_sim sim;
static tn_soc soc;

static const tn_policy_kind kinds[] = {TN_POLICY_IN_ORDER, TN_POLICY_OVERLAP, TN_POLICY_OOE,
                                       TN_POLICY_SYNERGY};

static tn_sim_request request(const char *model, int32_t n, int32_t chunk, tn_policy_kind kind) {
    return (tn_sim_request){.soc = &soc,
                            .model = tn_sim_model_find(model),
                            .n_tokens = n,
                            .n_chunk = chunk,
                            .policy = tn_policy_defaults(kind)};
}

static tn_sim_result simulate(const tn_sim_request *r, tn_timeline *tl) {
    tn_sim_result o;
    tern_error err;
    assert_non_null(r->model);
    if (tn_sim_run(&sim, r, tl, &o, &err) != TERN_OK) fail_msg("%s", err.message);
    return o;
}

/* What the fit was made from must come out again: NPU and CPU time of Qwen1.5-1.8B at one chunk of 256
 * tokens, with nothing to hand over. */
static void anchors_come_back(void **state) {
    (void)state;
    json_t *root = json_load_file(TN_SOURCE_DIR "/share/soc/sd8gen3.json", 0, NULL);
    tn_soc kept = soc;
    soc.outliers_kept = soc.handover_ns = 0;
    tn_sim_request r = request("qwen1.5-1.8b", 256, 256, TN_POLICY_IN_ORDER);
    tn_sim_result o = simulate(&r, NULL);
    soc = kept;
    assert_true((double)o.work_ns[TN_LANE_NPU] > 314.9e6 && (double)o.work_ns[TN_LANE_NPU] < 315.1e6);
    double cpu_ms = json_number_value(json_object_get(json_object_get(root, "cpu_anchor"), "ms"));
    json_decref(root);
    assert_true((double)o.work_ns[TN_LANE_CPU] > cpu_ms * 1e6 * 0.999 &&
                (double)o.work_ns[TN_LANE_CPU] < cpu_ms * 1e6 * 1.01); /* the last residual */
    assert_true(soc.products_residual < 0.25 && soc.estimate_residual < 0.1 && soc.flash_residual < 0.15);
}

/* Every way of loading, attending and scheduling: makespan within its bounds, twice the same, and the events
 * a valid run of the graph. */
static void every_request_is_a_valid_run(void **state) {
    (void)state;
    tn_timeline_options opt = {.n_workers = {1, 1, 1}, .cap_events = 1 << 14, .cap_flows = 1 << 16};
    static const int32_t one_each[TN_N_LANES] = {1, 1, 1};
    tn_timeline *tl;
    assert_int_equal(tn_timeline_open(&ctx, &opt, &tl, NULL), TERN_OK);
    for (int load = 0; load < TN_N_SIM_LOADS; load++)
        for (int attention = 0; attention < TN_N_SIM_ATTENTIONS; attention++)
            for (int k = 0; k < 4; k++) {
                tn_sim_request r =
                    request(k % 2 ? "qwen2.5-0.5b" : "gemma-2b", load % 2 ? 700 : 320, 128, kinds[k]);
                r.load = (tn_sim_load)load, r.attention = (tn_sim_attention)attention, r.bits = 5;
                if (load == TN_SIM_STREAM) r.npu_memory = 1e9;
                tn_timeline_clear(tl);
                tn_sim_result o = simulate(&r, tl);
                verify_run(sim.graph, &r.policy, one_each, tl);
                assert_true(o.run.makespan_ns == simulate(&r, NULL).run.makespan_ns);
                assert_true(o.run.makespan_ns >= o.critical_ns);
                int64_t sum = 0;
                for (int l = 0; l < TN_N_LANES; l++) {
                    if (!o.run.n_stolen) assert_true(o.run.makespan_ns >= o.work_ns[l]);
                    assert_true(o.run.bubble[l] >= 0 && o.run.bubble[l] <= 1);
                    sum += o.run.busy_ns[l];
                }
                assert_true(o.run.makespan_ns <= sum); /* no instant in which nothing runs */
                assert_true(o.energy_j > 0 && o.memory_bytes > tn_sim_weight_bytes(r.model) &&
                            o.exposed_io_ms >= 0);
            }
    tn_timeline_close(&tl);
}

static void no_policy_is_slower_than_one_task_at_a_time(void **state) {
    (void)state;
    for (int32_t m = 0; tn_sim_model_at(m); m++)
        for (int32_t n = 64; n <= 2048; n *= 4) {
            tn_sim_request r = request(tn_sim_model_at(m)->name, n, 256, TN_POLICY_IN_ORDER);
            tn_sim_result first = simulate(&r, NULL);
            assert_true(first.run.makespan_ns == first.work_ns[TN_LANE_NPU] + first.work_ns[TN_LANE_CPU]);
            for (int k = 1; k < 4; k++) {
                r.policy = tn_policy_defaults(kinds[k]);
                r.policy.steal_above = -1;
                assert_true(simulate(&r, NULL).run.makespan_ns <= first.run.makespan_ns);
            }
        }
}

/* Cold starts: each mechanism is worth something, bits matter where reading is the bottleneck. */
static void loading_is_overlapped(void **state) {
    (void)state;
    double ms[TN_N_SIM_LOADS];
    tn_sim_request r = request("llama3-8b", 128, 128, TN_POLICY_OOE);
    for (int load = 0; load < TN_N_SIM_LOADS; load++) {
        r.load = (tn_sim_load)load, r.bits = 5;
        tn_sim_result o = simulate(&r, NULL);
        ms[load] = o.ttft_ms;
        if (load) assert_true(fabs(o.exposed_io_ms - (o.ttft_ms - ms[TN_SIM_WARM])) < 1e-6);
    }
    assert_true(ms[TN_SIM_WARM] < ms[TN_SIM_STREAM] && ms[TN_SIM_STREAM] < ms[TN_SIM_OVERLAP] &&
                ms[TN_SIM_OVERLAP] < ms[TN_SIM_SEQUENTIAL]);
    assert_true(ms[TN_SIM_LAYERS] < ms[TN_SIM_SEQUENTIAL] && ms[TN_SIM_SEQUENTIAL] < ms[TN_SIM_BUILD]);
    r.load = TN_SIM_STREAM;
    double before = 0;
    for (r.bits = 2; r.bits <= 8; r.bits *= 2) {
        tn_soc slow = soc;
        slow.flash_byte_ns *= 10;
        r.soc = &slow;
        tn_sim_result o = simulate(&r, NULL);
        assert_true(o.ttft_ms > before * 1.2);
        before = o.ttft_ms;
        assert_string_equal(tn_sim_bottleneck(&o), "flash");
    }
}

/* Sparse attention on one core: the device's estimate beats the core's, and each step of the plan helps or
 * does nothing. */
static void attention_is_planned(void **state) {
    (void)state;
    tn_sim_request r = request("phonelm-1.5b", 2048, 256, TN_POLICY_OOE);
    r.one_core = true;
    double full = simulate(&r, NULL).ttft_ms;
    r.attention = TN_SIM_FLOAT_SPARSE;
    double sparse = simulate(&r, NULL).ttft_ms;
    r.attention = TN_SIM_SHADOW;
    double shadow = simulate(&r, NULL).ttft_ms;
    assert_true(shadow < sparse && sparse < full);
    r.heads.no_fusion = true;
    double no_fusion = simulate(&r, NULL).ttft_ms;
    r.heads.no_overlap = true;
    assert_true(no_fusion > shadow && simulate(&r, NULL).ttft_ms > no_fusion);
    r.heads = (tn_headplan_switches){0};
    r.ratio = 0.8;
    assert_true(simulate(&r, NULL).ttft_ms > shadow);
}

/* Graphs exchanged while the prefill runs are hidden better than before the first token; drafts make tokens
 * cheaper. */
static void decoding_is_counted(void **state) {
    (void)state;
    tn_sim_request r = request("qwen2.5-1.5b", 1024, 256, TN_POLICY_OOE);
    r.n_gen = 100;
    double plain = simulate(&r, NULL).ms_per_token, exposed[TN_N_SWITCHES];
    r.one_form = true;
    for (int k = 0; k < TN_N_SWITCHES; k++) {
        r.switching = (tn_switch_kind)k;
        tn_sim_result o = simulate(&r, NULL);
        exposed[k] = o.exposed_switch_ms;
        assert_true(fabs(o.ms_per_token - plain - exposed[k] / 100) < 1e-6);
    }
    double read_ms =
        tn_sim_weight_bytes(r.model) * soc.flash_byte_ns / 1e6; /* after the prefill nothing hides it */
    assert_true(fabs(exposed[TN_SWITCH_SYNC] / read_ms - 1) < 1e-6);
    assert_true(exposed[TN_SWITCH_PROGRESSIVE] < exposed[TN_SWITCH_SYNC] &&
                exposed[TN_SWITCH_ASYNC] <= exposed[TN_SWITCH_SYNC]);
    r.one_form = false, r.accepted = 4;
    double drafted = simulate(&r, NULL).ms_per_token;
    assert_true(drafted < plain);
    double macs = 32 * (tn_sim_weight_bytes(r.model) + (double)r.model->n_vocab * r.model->n_embd);
    assert_true(fabs(4 * drafted - plain - macs * soc.mac_ns / 1e6) < 1e-6);
}

/* Delta nets have the weights of their own projections; their recurrence takes its multiplications, decoding moves their
 * state instead of keys and values. */
static void delta_nets_have_costs_of_their_own(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/share/soc/sd8elite-v79.json", TN_SOURCE_DIR);
    tn_soc kept = soc;
    assert_int_equal(tn_soc_load(&soc, path, NULL), TERN_OK);
    tn_sim_request r = request("qwen3.5-0.8b", 1024, 128, TN_POLICY_OOE);
    r.n_gen = 1;
    double attends = 1024.0 * (2 * 2048 + 2 * 512) + 2048.0 * 1024,
           delta = 5.0 * 1024 * 2048 + 2.0 * 1024 * 16;
    assert_true(tn_sim_weight_bytes(r.model) == 6 * attends + 18 * delta + 24 * 3.0 * 1024 * 3584);
    tn_sim_result once = simulate(&r, NULL);
    soc.vector_mac_ns *= 2;
    tn_sim_result twice = simulate(&r, NULL);
    soc.vector_mac_ns /= 2, soc.step_context = 0;
    tn_sim_result no_keys = simulate(&r, NULL);
    double macs = 18 * 1024 * (4.0 * 16 * 128 * 128 + 2.0 * 16 * 128), keys = 2.0 * 6 * 2 * 256 * 4096;
    assert_true(fabs((twice.ttft_ms - once.ttft_ms) / (macs * soc.vector_mac_ns / 1e6) - 1) < 1e-3);
    assert_true(fabs((once.step_ms - no_keys.step_ms) / (keys * soc.step_byte_ns / 1e6) - 1) < 1e-9);
    assert_true(once.work_ns[TN_LANE_CPU] < once.work_ns[TN_LANE_NPU] / 50);
    soc = kept;
}

/* A device that can address little leaves products to the CPU, the lightest first; idle CPUs that steal are
 * counted. */
static void memory_and_stealing(void **state) {
    (void)state;
    tn_sim_request r = request("qwen1.5-1.8b", 1024, 64, TN_POLICY_SYNERGY);
    tn_sim_result all = simulate(&r, NULL);
    assert_true(all.run.n_stolen > 0);
    r.policy.steal_above = -1;
    assert_int_equal(simulate(&r, NULL).run.n_stolen, 0);
    r.npu_memory = 8e8;
    tn_sim_result some = simulate(&r, NULL);
    assert_true(some.work_ns[TN_LANE_NPU] < all.work_ns[TN_LANE_NPU] &&
                some.work_ns[TN_LANE_CPU] > all.work_ns[TN_LANE_CPU]);
    for (int32_t t = 0; t < sim.graph->n_tasks; t++) {
        const tn_task *k = &sim.graph->tasks[t];
        bool ffn = !strcmp(k->name, "ffn");
        if (ffn || !strcmp(k->name, "o")) assert_int_equal(k->lane, ffn ? TN_LANE_NPU : TN_LANE_CPU);
    }
}

/* Layers beyond the device's window take turns in two places: nothing runs on the CPU that did not before, an
 * exchange waits for all chunks of the layer whose place it takes. */
static void layers_take_turns(void **state) {
    (void)state;
    tn_sim_request r = request("llama3-8b", 512, 128, TN_POLICY_OOE);
    tn_sim_result all = simulate(&r, NULL);
    const double layer = 4096.0 * (2 * 4096 + 2 * 1024 + 3 * 14336);
    r.npu_memory = 20 * layer, r.n_gen = 1;
    tn_sim_result on_cpu = simulate(&r, NULL);
    r.staged = true;
    tn_timeline_options opt = {.n_workers = {1, 1, 1}, .cap_events = 1 << 14, .cap_flows = 1 << 16};
    tn_timeline *tl;
    assert_int_equal(tn_timeline_open(&ctx, &opt, &tl, NULL), TERN_OK);
    tn_sim_result o = simulate(&r, tl);
    static const int32_t one_each[TN_N_LANES] = {1, 1, 1};
    verify_run(sim.graph, &r.policy, one_each, tl);
    int64_t left[32] = {0}; /* when the last chunk is through a layer */
    int32_t io = tn_timeline_first_track(tl, TN_LANE_IO), turn[32], n_turns = tn_timeline_n_events(tl, io);
    for (int32_t k = 0; k < io; k++)
        for (int32_t i = 0; i < tn_timeline_n_events(tl, k); i++) {
            const tn_event *e = tn_timeline_event(tl, k, i);
            int64_t *at = &left[sim.graph->tasks[e->task].layer];
            if (e->end_ns > *at) *at = e->end_ns;
        }
    assert_int_equal(n_turns, 14);
    for (int32_t i = 0; i < n_turns; i++) {
        const tn_event *e = tn_timeline_event(tl, io, i);
        turn[i] = sim.graph->tasks[e->task].layer;
        if (i >= 2) assert_true(e->start_ns >= left[turn[i - 2]]);
    }
    tn_timeline_close(&tl);
    assert_true(o.work_ns[TN_LANE_CPU] == all.work_ns[TN_LANE_CPU]);
    double exchanged = 14 * layer * soc.flash_byte_ns; /* 18 layers stay */
    assert_true(fabs((double)o.work_ns[TN_LANE_IO] / exchanged - 1) < 1e-3);
    assert_true(fabs(o.step_ms / (exchanged / 1e6) - 1) < 1e-6 && o.step_ms > on_cpu.step_ms);
    assert_true(o.ttft_ms < 1.1 * all.ttft_ms && 2 * all.ttft_ms < on_cpu.ttft_ms);
    r.npu_memory = 32 * layer; /* all fit */
    assert_true(fabs(simulate(&r, NULL).ttft_ms - all.ttft_ms) < 1e-9);
    r.npu_memory = 1.5 * layer;
    tn_sim_result none;
    assert_int_equal(tn_sim_run(&sim, &r, NULL, &none, NULL), TERN_E_INVALID);
    r.npu_memory = 0;
    assert_int_equal(tn_sim_run(&sim, &r, NULL, &none, NULL), TERN_E_INVALID);
}

/* With the GPU as the float lane that lane has less to do, by as much as the table says; the NPU has the
 * same; a prefill that waits for the NPU gains little (llm.npu 4.6). */
static void a_gpu_computes_floats(void **state) {
    (void)state;
    tn_soc kept = soc, gpu = tn_soc_with_gpu(&soc);
    tn_sim_request r = request("gemma-2b", 512, 256, TN_POLICY_OOE);
    tn_sim_result cpu = simulate(&r, NULL);
    soc = gpu;
    tn_sim_result o = simulate(&r, NULL);
    soc = kept;
    double faster = kept.cpu_slower / kept.gpu_slower;
    assert_true(faster > 1.2 && fabs(kept.elem_ns / gpu.elem_ns / faster - 1) < 1e-9);
    assert_true(fabs(kept.attn_mac_ns / gpu.attn_mac_ns / faster - 1) < 1e-9);
    assert_true(o.work_ns[TN_LANE_CPU] < cpu.work_ns[TN_LANE_CPU]);
    assert_true((double)o.work_ns[TN_LANE_CPU] * faster >
                (double)cpu.work_ns[TN_LANE_CPU]); /* merging is as it was */
    assert_int_equal(o.work_ns[TN_LANE_NPU], cpu.work_ns[TN_LANE_NPU]);
    assert_true(o.ttft_ms <= cpu.ttft_ms && o.ttft_ms > 0.85 * cpu.ttft_ms);
    assert_true(o.memory_bytes == cpu.memory_bytes);
    assert_string_equal(gpu.float_lane, "GPU");
}

/* A device that computes everything attends over its static graph's whole context, at the products' rate, and reads
 * that many keys and values, of 8 bits, in every step. */
static void the_whole_context_is_attended(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/share/soc/sd8elite-v79.json", TN_SOURCE_DIR);
    tn_soc kept = soc;
    assert_int_equal(tn_soc_load(&soc, path, NULL), TERN_OK);
    assert_true(soc.device_attention && soc.prefill_context == 4096 && soc.step_context == 4096);
    assert_true(soc.step_kv_bytes == 1);
    tn_sim_request r = request("llama3.2-3b", 128, 128, TN_POLICY_OOE);
    r.n_gen = 1;
    tn_sim_result whole = simulate(&r, NULL);
    soc.prefill_context = soc.step_context = 0;
    tn_sim_result there = simulate(&r, NULL);
    soc = kept;
    tn_soc v79;
    assert_int_equal(tn_soc_load(&v79, path, NULL), TERN_OK);
    double macs = 2.0 * 128 * (4096 - 128) * 24 * 128 * 28, bytes = 2.0 * 28 * 8 * 128 * 4096;
    assert_true(fabs((whole.ttft_ms - there.ttft_ms) / (macs * v79.mac_ns / 1e6) - 1) < 1e-3);
    assert_true(fabs((whole.step_ms - there.step_ms) / (bytes * v79.step_byte_ns / 1e6) - 1) < 1e-9);
    assert_true(there.work_ns[TN_LANE_CPU] < there.work_ns[TN_LANE_NPU] / 50);
}

/* A device ten times slower is the bottleneck; one ten thousand times faster is not. */
static void bottlenecks_are_named(void **state) {
    (void)state;
    tn_soc kept = soc;
    tn_sim_request r = request("qwen1.5-1.8b", 1024, 256, TN_POLICY_OOE);
    soc.mac_ns *= 10;
    tn_sim_result o = simulate(&r, NULL);
    assert_string_equal(tn_sim_bottleneck(&o), "npu");
    soc.mac_ns /= 1e5, soc.byte_ns /= 1e5, soc.launch_ns /= 1e5;
    o = simulate(&r, NULL);
    assert_string_equal(tn_sim_bottleneck(&o), "cpu");
    soc = kept;
    r.policy = tn_policy_defaults(TN_POLICY_IN_ORDER);
    o = simulate(&r, NULL);
    assert_string_equal(tn_sim_bottleneck(&o), "schedule");
}

/* Measured times of steps instead of a SoC: two workers that help each other, waves of four chunks, a
 * short last chunk. */
static void measured_times_are_used(void **state) {
    (void)state;
    static const char *const names[] = {"norm",  "qkv", "rope", "attention", "o",
                                        "norm2", "ffn", "glu",  "down",      "residual"};
    tn_measured_steps m = {.n_workers = {1, 1, 0}, .wave_chunks = 4, .attn_us_per_pos = 1, .n = 10};
    for (int s = 0; s < 10; s++)
        m.step[s] = (tn_measured_step){.name = names[s], .us = 100, .n_parts = 8, .kept = 1};
    tn_sim_request r = {.measured = &m,
                        .model = tn_sim_model_find("qwen2.5-0.5b"),
                        .n_tokens = 1024,
                        .n_chunk = 128,
                        .policy = tn_policy_defaults(TN_POLICY_OOE)};
    r.policy.keep_busy = true;
    tn_sim_result o = simulate(&r, NULL);
    double us = 8 * (24 * 900 + 100) + 24 * 128.0 * (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7);
    assert_true(o.ttft_ms >= us / 2e3 && o.ttft_ms < us / 2e3 * 1.05);
    r.n_tokens = 1024 - 64;
    assert_true(simulate(&r, NULL).ttft_ms < o.ttft_ms * 0.96);
    m.step[m.n++] = (tn_measured_step){.name = "qkv outliers", .us = 100, .n_parts = 8, .kept = 0.5};
    r.n_tokens = 1024;
    tn_sim_result more = simulate(&r, NULL);
    assert_int_equal(more.n_tasks, o.n_tasks + 8 * 12);
}

/* Pictures are work of both lanes, as much as is counted here by hand. In the prompt's graph nothing is later
 * than with the encoder first, text before a picture and views beside each other are sooner, and no schedule
 * is invalid. */
static void views_are_encoded_beside_the_prompt(void **state) {
    (void)state;
    enum { VIEWS = 5, BEFORE = 300, TOKENS = 700 };
    static const int32_t one_each[TN_N_LANES] = {1, 1, 1};
    tn_timeline_options opt = {.n_workers = {1, 1, 1}, .cap_events = 1 << 15, .cap_flows = 1 << 17};
    tn_timeline *tl;
    assert_int_equal(tn_timeline_open(&ctx, &opt, &tl, NULL), TERN_OK);
    for (int k = 0; k < 4; k++) {
        tn_sim_request r = request("smollm2-360m", TOKENS, 128, kinds[k]);
        const tn_sim_result text = simulate(&r, NULL);
        assert_true(tn_sim_encoder_find("smolvlm-500m-mmproj", &r.encoder));
        assert_int_equal(r.encoder.patches, 32 * 32);
        assert_int_equal(r.encoder.rows, 64);
        assert_int_equal(r.encoder.joined, 16 * 768);
        r.n_views = VIEWS, r.n_before = BEFORE;
        tn_timeline_clear(tl);
        const tn_sim_result o = simulate(&r, tl), again = simulate(&r, NULL);
        verify_run(sim.graph, &r.policy, one_each, tl);
        assert_true(o.ttft_ms == again.ttft_ms && o.apart_ms == again.apart_ms);
        const double n = 1024, w = 768, ff = 3072,
                     products = 12 * (4 * w * w + 2 * w * ff) * fmax(n * soc.mac_ns, soc.byte_ns) +
                                16 * w * 960 * fmax(64 * soc.mac_ns, soc.byte_ns) +
                                (12 * 4 + 1) * soc.launch_ns +
                                soc.handover_ns * (12 * n * (6 * w + 2 * w + 2 * ff) + 64 * (16 * w + 960)),
                     floats = 12 * (2 * n * n * w * soc.attn_mac_ns + n * (2 * w + ff) * soc.elem_ns);
        const double npu = (double)(o.work_ns[TN_LANE_NPU] - text.work_ns[TN_LANE_NPU]),
                     cpu = (double)(o.work_ns[TN_LANE_CPU] - text.work_ns[TN_LANE_CPU]);
        assert_true(fabs(npu / (VIEWS * products) - 1) < 1e-4 && fabs(cpu / (VIEWS * floats) - 1) < 1e-4);
        /* a greedy choice may cost a little, one task at a time costs nothing */
        assert_true(o.ttft_ms <= o.apart_ms * (kinds[k] == TN_POLICY_IN_ORDER ? 1.0001 : 1.05));
        assert_true(o.ttft_ms > text.ttft_ms);
        if (kinds[k] != TN_POLICY_OOE) continue;
        assert_true(o.ttft_ms <
                    .9 * (VIEWS * (products + floats) / 1e6 + text.ttft_ms)); /* beside each other */
        /* a chunk waits for the views whose rows it has, and no earlier one does: 64 rows from 300 on, in
         * chunks of 128 */
        const int32_t n_steps = (sim.graph->n_tasks - VIEWS * (12 * 8 + 1)) / 6;
        const int32_t waits[] = {0, 0, 2, 4, 5, 5};
        for (int32_t i = 0; i < 6; i++) assert_int_equal(sim.graph->n_preds[i * n_steps], waits[i]);
    }
    tn_timeline_close(&tl);
    tn_sim_encoder e;
    assert_false(tn_sim_encoder_find("qwen2.5-0.5b", &e));
}

static void nonsense_is_refused(void **state) {
    (void)state;
    tn_sim_result o;
    tn_sim_request good = request("qwen2.5-0.5b", 512, 256, TN_POLICY_OOE), bad[11];
    for (int i = 0; i < 11; i++) bad[i] = good;
    bad[0].n_tokens = 0, bad[1].n_chunk = 2048, bad[2].bits = 9, bad[3].ratio = 1.5, bad[4].accepted = 0.5,
    bad[5].n_gen = -1, bad[6].n_tokens = 1 << 30;
    bad[7].one_form = true, bad[7].switch_blocks = 1000;
    for (int i = 8; i < 11; i++) {
        assert_true(tn_sim_encoder_find("smolvlm-256m-mmproj", &bad[i].encoder));
        bad[i].n_views = 2;
    }
    bad[8].n_views = 9, bad[9].n_before = 512 - 127, bad[10].load = TN_SIM_STREAM;
    for (int i = 0; i < 11; i++) {
        tern_error err = {0};
        assert_int_equal(tn_sim_run(&sim, &bad[i], NULL, &o, &err), TERN_E_INVALID);
        assert_true(*err.message);
    }
}

/* ---- the data files -------------------------------------------------------------------------------- */

static tern_status load_text(const char *text, tern_error *err) {
    const char *path = TN_BINARY_DIR "/sim-bad.json";
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    tn_soc out;
    tern_status st = tn_soc_load(&out, path, err);
    remove(path);
    return st;
}

static tern_status load_json(json_t *root, tern_error *err) {
    char *text = json_dumps(root, 0);
    tern_status st = load_text(text, err);
    free(text);
    return st;
}

/* Every SoC loads. Anything missing, of the wrong type, out of range or unknown is refused, and the message
 * names its section. */
static void files_are_checked(void **state) {
    (void)state;
    static const char *const names[] = {"sd8gen2", "sd8gen3", "sd8elite", "sd8elite-v79"};
    char path[512];
    for (int i = 0; i < 4; i++) {
        tn_soc out;
        tern_error err = {0};
        snprintf(path, sizeof path, "%s/share/soc/%s.json", TN_SOURCE_DIR, names[i]);
        if (tn_soc_load(&out, path, &err) != TERN_OK) fail_msg("%s", err.message);
    }
    json_t *good = json_load_file(path, 0, NULL);
    const char *section, *name;
    json_t *o, *v;
    int n = 0;
    json_object_foreach(good, section, o) {
        if (!json_is_object(o)) continue;
        json_object_foreach(o, name, v) {
            json_t *const wrong[] = {NULL,
                                     json_null(),
                                     json_integer(-1),
                                     json_real(1e300),
                                     json_array(),
                                     json_true(),
                                     json_pack("[{s:i},{s:i}]", "k", 1, "k", 1)};
            for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++, n++) {
                json_t *bad = json_deep_copy(good);
                if (wrong[i]) json_object_set_new(json_object_get(bad, section), name, wrong[i]);
                else json_object_del(json_object_get(bad, section), name);
                tern_error err = {0};
                assert_int_equal(load_json(bad, &err), TERN_E_FORMAT);
                assert_non_null(strstr(err.message, section));
                json_decref(bad);
            }
        }
        json_t *bad = json_deep_copy(good);
        json_object_set_new(json_object_get(bad, section), "more", json_integer(1));
        tern_error err = {0};
        assert_int_equal(load_json(bad, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "more"));
        json_object_del(bad, section);
        if (strcmp(section, "whole_runs")) assert_int_equal(load_json(bad, &err), TERN_E_FORMAT);
        json_decref(bad);
    }
    assert_true(n > 300);
    json_t *runs = json_object_get(json_object_get(good, "whole_runs"), "table"),
           *once = json_deep_copy(good);
    json_array_remove(json_object_get(json_object_get(once, "whole_runs"), "table"), 1);
    json_array_append(json_object_get(json_object_get(once, "whole_runs"), "table"), json_array_get(runs, 0));
    tern_error same = {0};
    assert_int_equal(load_json(once, &same), TERN_E_FORMAT); /* one model twice gives no two times */
    assert_non_null(strstr(same.message, "whole_runs"));
    json_decref(once);
    json_object_set_new(good, "gpu", json_object());
    tern_error err = {0};
    assert_int_equal(load_json(good, &err), TERN_E_FORMAT);
    json_decref(good);
    static const char *const text[] = {"",
                                       "{}",
                                       "[1]",
                                       "\"x\"",
                                       "{\"npu_products\": 1}",
                                       "{\"npu_products\": {}, \"npu_products\": {}}",
                                       "{",
                                       "{\"title\": 3}",
                                       "\xff\xfe"};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        assert_int_equal(load_text(text[i], &err), TERN_E_FORMAT);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    if (tn_sim_open(&ctx, &sim, NULL)) return 1;
    if (tn_soc_load(&soc, TN_SOURCE_DIR "/share/soc/sd8gen3.json", NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anchors_come_back),
        cmocka_unit_test(every_request_is_a_valid_run),
        cmocka_unit_test(no_policy_is_slower_than_one_task_at_a_time),
        cmocka_unit_test(loading_is_overlapped),
        cmocka_unit_test(attention_is_planned),
        cmocka_unit_test(decoding_is_counted),
        cmocka_unit_test(delta_nets_have_costs_of_their_own),
        cmocka_unit_test(memory_and_stealing),
        cmocka_unit_test(layers_take_turns),
        cmocka_unit_test(a_gpu_computes_floats),
        cmocka_unit_test(the_whole_context_is_attended),
        cmocka_unit_test(bottlenecks_are_named),
        cmocka_unit_test(measured_times_are_used),
        cmocka_unit_test(views_are_encoded_beside_the_prompt),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(files_are_checked),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tn_sim_close(&sim);
    return rc;
}
