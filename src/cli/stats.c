#include "cli/stats.h"

#include "cli/args.h"

#include "base/json.h"
#include "base/process.h"
#include "base/status.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>

void cli_stats_line(int32_t n_tokens, double tokens_per_second, double first_s) {
    fprintf(stderr, "%d tokens", n_tokens);
    if (tokens_per_second > 0) fprintf(stderr, " at %.1f a second", tokens_per_second);
    fprintf(stderr, ", the first after %.2f s, %.0f MiB of memory\n", first_s,
            (double)tn_process_peak_bytes() / 1048576);
}

json_t *cli_prefill_json(const tn_stats *t) {
    return tn_json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I}",
        "scheduled_ms", t->wall_s * 1e3, "cpu_bubble", t->cpu_bubble, "npu_bubble", t->npu_bubble,
        "decision_us", t->decision_us, "decision_max_us", t->decision_max_us, "decisions",
        (json_int_t)t->n_decisions, "stolen_parts", (json_int_t)t->n_stolen, "outliers",
        (json_int_t)t->n_outliers, "dropped_outliers", (json_int_t)t->n_dropped, "hot_hits",
        (json_int_t)t->hot_hits, "cold_misses", (json_int_t)t->cold_misses, "subgraphs", (int)t->n_subgraphs,
        "shared_subgraphs", (int)t->n_shared, "activation_bytes", (json_int_t)t->activation_bytes,
        "graph_bytes", (json_int_t)t->graph_bytes, "graph_bytes_unshared",
        (json_int_t)t->graph_bytes_unshared, "unpacked_by_device", (json_int_t)t->unpacked_by_device);
}

json_t *cli_attention_json(const tn_stats *t) {
    json_t *j = tn_json_pack("{s:I, s:f, s:I, s:I, s:I}", "rows", (json_int_t)t->attn_rows, "selected_share",
                             t->attn_seen ? (double)t->attn_selected / (double)t->attn_seen : 0.0, "launches",
                             (json_int_t)t->attn_launches, "requantised", (json_int_t)t->attn_requantised,
                             "bytes", (json_int_t)t->attn_bytes);
    if (t->attn_fused) {
        tn_json_set(&j, "pipeline",
                    tn_json_pack("{s:f, s:I, s:f, s:f, s:f, s:f}", "mean_fused",
                                 (double)t->attn_fused / (double)t->attn_fused_launches, "plans",
                                 (json_int_t)t->attn_plans, "plan_us", t->attn_plan_us, "plan_max_us",
                                 t->attn_plan_max_us, "planned_ms", t->attn_planned_s * 1e3, "took_ms",
                                 t->attn_took_s * 1e3));
    }
    if (t->attn_true) {
        tn_json_set(&j, "recall", tn_json_real((double)t->attn_found / (double)t->attn_true));
        tn_json_set(&j, "mass", tn_json_real(t->attn_mass));
    }
    return j;
}

void cli_print_attn_times(const tn_attn_times *t) {
    printf("sparse attention, %d rows to a selection, %d scored for each: launches of", t->share, t->pools);
    for (int i = 0; i < t->n_widths; i++)
        printf("%s %d: %.0f us and %.0f for a million scores", i ? "," : "", 1 << i, t->launch_us[i],
               t->score_us[i]);
    printf("; a row selects in %.2f us and %.2f for 1000 positions, attends in %.2f and %.2f for 1000 "
           "selected\n",
           t->select_us, t->select_kpos_us, t->attend_us, t->attend_kpos_us);
}

json_t *cli_switching_json(const tn_stats *t) {
    return tn_json_pack("{s:I, s:i, s:f, s:f, s:f}", "layers", (json_int_t)t->n_switched, "blocks",
                        (int)t->switch_blocks, "load_ms", t->switch_s * 1e3, "exposed_ms",
                        t->switch_exposed_s * 1e3, "planned_exposed_ms", t->switch_planned_stall_s * 1e3);
}

static double share(uint64_t part, uint64_t of) { return of ? (double)part / (double)of : 0; }

json_t *cli_experts_json(const tn_stats *t) {
    return tn_json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:I, s:I}", "bytes",
                        (json_int_t)t->experts_bytes, "room_bytes", (json_int_t)t->experts_room_bytes,
                        "taken", (json_int_t)t->experts_taken, "hits", (json_int_t)t->experts_hits,
                        "read_ahead", (json_int_t)t->experts_ahead, "hit_share",
                        share(t->experts_hits, t->experts_taken), "read_bytes",
                        (json_int_t)t->experts_read_bytes, "wait_ms", t->experts_wait_s * 1e3, "chosen",
                        (json_int_t)t->experts_chosen, "foreseen", (json_int_t)t->experts_foreseen);
}

static void print_experts(const tn_stats *t) {
    fprintf(
        stderr,
        "experts on demand: room for %.1f of %.1f MiB; %llu taken, %.1f %% in memory from before, %.1f %% "
        "read "
        "ahead; %.1f MiB read, threads waited %.0f ms; %.1f %% of those that decoding chose were foreseen\n",
        (double)t->experts_room_bytes / 1048576, (double)t->experts_bytes / 1048576,
        (unsigned long long)t->experts_taken, 100 * share(t->experts_hits, t->experts_taken),
        100 * share(t->experts_ahead, t->experts_taken), (double)t->experts_read_bytes / 1048576,
        t->experts_wait_s * 1e3, 100 * share(t->experts_foreseen, t->experts_chosen));
}

void cli_prefill_print(const tn_stats *t) {
    fprintf(stderr,
            "lanes: CPU busy %.0f ms (bubbles %.1f %%), NPU busy %.0f ms (bubbles %.1f %%) of %.0f ms; %llu "
            "decisions of %.2f us (longest %.1f); %llu parts stolen\n"
            "subgraphs shared between chunks: %d of %d, their device memory %.1f MiB (one of each per chunk: "
            "%.1f MiB); outliers %llu, their weight rows: %llu resident, %llu read on demand, %llu dropped\n",
            t->cpu_busy_s * 1e3, t->cpu_bubble * 100, t->npu_busy_s * 1e3, t->npu_bubble * 100,
            t->wall_s * 1e3, (unsigned long long)t->n_decisions, t->decision_us, t->decision_max_us,
            (unsigned long long)t->n_stolen, t->n_shared, t->n_subgraphs, (double)t->graph_bytes / 1048576,
            (double)t->graph_bytes_unshared / 1048576, (unsigned long long)t->n_outliers,
            (unsigned long long)t->hot_hits, (unsigned long long)t->cold_misses,
            (unsigned long long)t->n_dropped);
    if (t->experts_bytes) print_experts(t);
    if (t->attn_rows) {
        fprintf(stderr,
                "sparse attention: %llu rows of heads, %.1f %% of the positions they saw; %llu estimates on "
                "the device, keys quantised anew %llu times, %.1f MiB",
                (unsigned long long)t->attn_rows, 100 * (double)t->attn_selected / (double)t->attn_seen,
                (unsigned long long)t->attn_launches, (unsigned long long)t->attn_requantised,
                (double)t->attn_bytes / 1048576);
        if (t->attn_fused) {
            fprintf(stderr,
                    "; heads in a pipeline, %.2f a launch, %llu plans of %.0f us (longest %.0f), planned "
                    "%.0f ms, took %.0f ms with what ran between",
                    (double)t->attn_fused / (double)t->attn_fused_launches, (unsigned long long)t->attn_plans,
                    t->attn_plan_us, t->attn_plan_max_us, t->attn_planned_s * 1e3, t->attn_took_s * 1e3);
        }
        if (t->attn_true)
            fprintf(stderr, "; %.2f %% of the exact largest selected, with %.2f %% of the softmax weights",
                    100 * (double)t->attn_found / (double)t->attn_true, 100 * t->attn_mass);
        fprintf(stderr, "\n");
    }
    if (t->unpacked_by_device)
        fprintf(stderr, "%llu weights unpacked by the device\n", (unsigned long long)t->unpacked_by_device);
    if (t->n_switched) {
        fprintf(stderr,
                "graph switching: %llu layers in %d blocks, %.2f ms of loading, of which %.2f ms exposed "
                "(planned: %.2f ms)\n",
                (unsigned long long)t->n_switched, t->switch_blocks, t->switch_s * 1e3,
                t->switch_exposed_s * 1e3, t->switch_planned_stall_s * 1e3);
    }
}

json_t *cli_power_json(const tn_power_total *t) {
    json_t *j = tn_json_pack("{s:s, s:f}", "source", tn_power_source_name(t->source), "seconds", t->seconds);
    if (t->source != TN_POWER_NONE) {
        tn_json_set(&j, "joules", tn_json_real(t->joules));
        tn_json_set(&j, "watts", tn_json_real(t->watts));
    }
    if (t->celsius_max > 0) {
        tn_json_set(&j, "celsius_first", tn_json_real(t->celsius_first));
        tn_json_set(&j, "celsius_max", tn_json_real(t->celsius_max));
    }
    return j;
}

void cli_power_print(const tn_power_total *t) {
    if (t->source == TN_POWER_NONE && !(t->celsius_max > 0)) return;
    fprintf(stderr, "power: ");
    if (t->source != TN_POWER_NONE)
        fprintf(stderr, "%.2f J in %.2f s, %.2f W (%s)", t->joules, t->seconds, t->watts,
                t->source == TN_POWER_RAPL ? "the processor, by its counters"
                                           : "the whole device, by its battery");
    if (t->celsius_max > 0)
        fprintf(stderr, "%s%.0f C at the beginning, %.0f C at most", t->source != TN_POWER_NONE ? "; " : "",
                t->celsius_first, t->celsius_max);
    fputc('\n', stderr);
}

tern_status cli_power_trace(const tn_power *p, const tern_session *s, tern_error *err) {
    size_t n, n_out = 0;
    const tn_power_sample *x = tn_power_samples(p, &n);
    tn_power_total t = tn_power_total_of(p);
    if (!s->timeline || (t.source == TN_POWER_NONE && !(t.celsius_max > 0))) return TERN_OK;
    tn_counter *c = malloc((2 * n + 1) * sizeof *c);
    TN_FAIL_IF(!c, err, TERN_E_MEMORY, "no memory for the power of a trace");
    for (size_t i = 0; i < n; i++) {
        /* a sample's watts are those until it: they are written where they begin */
        if (t.source != TN_POWER_NONE && i) c[n_out++] = (tn_counter){"power, W", x[i - 1].ns, x[i].watts};
        if (x[i].celsius > 0) c[n_out++] = (tn_counter){"temperature, C", x[i].ns, x[i].celsius};
    }
    tern_status st = tn_timeline_counters(s->timeline, c, n_out, err);
    free(c);
    return st;
}

json_t *cli_explain_json(const tern_session *s, const tn_explain_mark *since) {
    tn_explained all[TN_EXPLAIN_MAX];
    size_t n = since ? tn_explain_since(s, since, all) : tn_explain(s, all);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *one = tn_json_pack("{s:s, s:b, s:s}", "mechanism", all[i].mechanism, "on", all[i].on, "text",
                                   all[i].text);
        if (all[i].of)
            tn_json_set(&one, "saved",
                        tn_json_pack("{s:I, s:I, s:s}", "count", (json_int_t)all[i].saved, "of",
                                     (json_int_t)all[i].of, "unit", all[i].unit));
        tn_json_append(&list, one);
    }
    return list;
}

void cli_explain_print(const tern_session *s, const tn_explain_mark *since) {
    tn_explained all[TN_EXPLAIN_MAX];
    size_t n = since ? tn_explain_since(s, since, all) : tn_explain(s, all);
    for (size_t i = 0; i < n; i++) {
        fprintf(stderr, "%-16s  %-3s  %s", all[i].mechanism, all[i].on ? "on" : "off", all[i].text);
        if (all[i].of)
            fprintf(stderr, "; %llu of %llu %s", (unsigned long long)all[i].saved,
                    (unsigned long long)all[i].of, all[i].unit);
        fputc('\n', stderr);
    }
}
