/* tern bench - prefill and decode speed; `tern bench limits` measures the machine. */
#include "cli/args.h"
#include "session/stats.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/output.h"
#include "cli/packing.h"
#include "cli/prompt.h"
#include "cli/stats.h"

#include "measure/tune.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

spread cli_spread_of(double *v, int n) {
    for (int i = 1; i < n; i++) {
        for (int j = i; j > 0 && v[j] < v[j - 1]; j--) {
            double t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    }
    return (spread){.median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, .min = v[0], .max = v[n - 1]};
}

enum { MAX_LIST = 32 };

/* Returns the tokens per second of one repeat: a prefill of n_prompt tokens, or n_gen steps after `depth`
 * tokens, at least one. */
static tern_status once(tern_session *s, const int32_t *ids, int32_t n_prompt, int32_t n_gen, int32_t depth,
                        double *tok_s, tern_error *err) {
    int32_t other = ids[0] ? 0 : 1; /* differs from every prompt's first token: nothing is reused */
    tern_status st = depth && !n_prompt ? tern_session_prefill(s, ids, (size_t)depth, err)
                                        : tern_session_prefill(s, &other, 1, err);
    double t0 = tn_now_s();
    if (n_prompt) {
        if (st == TERN_OK) st = tern_session_prefill(s, ids, (size_t)n_prompt, err);
        *tok_s = n_prompt / (tn_now_s() - t0);
        return st;
    }
    for (int32_t i = 0; i < n_gen && st == TERN_OK; i++) st = tern_session_step(s, ids[depth + i], err);
    *tok_s = n_gen / (tn_now_s() - t0);
    return st;
}

static int bench_model(const command *c, const model_args *ma, const int32_t *prompts, int n_prompts,
                       const int32_t *gens, int n_gens, int32_t depth, int32_t repeats, bool json) {
    tern_engine *e = NULL;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    int rc = cli_open_engine(c, ma, &e);
    if (rc >= 0) return rc;
    tern_model_info info;
    tern_engine_info(e, &info);
    if (!strcmp(info.scheme, "llm-int8") || !strcmp(info.scheme, "group-w8a8")) {
        tern_engine_close(&e);
        return cli_usage_error(
            c, "scheme %s is a baseline of accuracy, computed in float: there is nothing to time",
            ma->o.scheme);
    }
    int32_t longest = 2;
    for (int i = 0; i < n_prompts; i++) longest = prompts[i] > longest ? prompts[i] : longest;
    for (int i = 0; i < n_gens; i++) longest = depth + gens[i] + 1 > longest ? depth + gens[i] + 1 : longest;
    int32_t *ids = malloc((size_t)longest * sizeof *ids);
    tn_rng rng = {42};
    for (int32_t i = 0; ids && i < longest; i++) ids[i] = (int32_t)tn_rng_below(&rng, (uint64_t)info.n_vocab);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = longest;
    tern_session *s = NULL;
    tern_error err;
    tern_status st = ids ? tern_session_open(e, &so, &s, &err) : TERN_E_MEMORY;
    if (!ids) snprintf(err.message, sizeof err.message, "no memory for a prompt of %d tokens", longest);
    json_t *all = json_array();
    if (st == TERN_OK && !json) {
        printf("%s, %s (%s), %.2f B parameters, weights %.1f MiB, %d threads\n\n| %14s | %22s | %22s "
               "|\n|----------------|------------------------|------------------------|\n",
               ma->model, info.arch, info.scheme, (double)info.n_params * 1e-9,
               (double)info.weight_bytes / 1048576, ma->o.n_threads, "test", "tokens/s (median)",
               "min .. max");
    }
    for (int t = 0; t < n_prompts + n_gens && st == TERN_OK; t++) {
        int32_t n_prompt = t < n_prompts ? prompts[t] : 0, n_gen = t < n_prompts ? 0 : gens[t - n_prompts];
        double v[MAX_REPEATS], warm;
        st = once(s, ids, n_prompt, n_gen > 4 ? 4 : n_gen, depth, &warm, &err);
        tn_power *meter = NULL;
        if (st == TERN_OK) st = tn_power_open(&ctx, tn_machine_root(), &meter, &err);
        if (st == TERN_OK) tn_power_start(meter);
        for (int r = 0; r < repeats && st == TERN_OK; r++)
            st = once(s, ids, n_prompt, n_gen, depth, &v[r], &err);
        if (meter) tn_power_stop(meter);
        tn_power_total power = meter ? tn_power_total_of(meter) : (tn_power_total){.source = TN_POWER_NONE};
        tn_power_close(&meter);
        if (st != TERN_OK) break;
        double n_tok = (double)(n_prompt ? n_prompt : n_gen) * repeats;
        spread sp = cli_spread_of(v, repeats);
        char test[48];
        if (!n_prompt && depth) snprintf(test, sizeof test, "tg%d @ %d", n_gen, depth);
        else snprintf(test, sizeof test, n_prompt ? "pp%d" : "tg%d", n_prompt ? n_prompt : n_gen);
        if (json) {
            json_t *j = tn_json_pack("{s:s, s:i, s:{s:f, s:f, s:f}, s:s, s:s, s:i, s:o}", "test", test,
                                     "threads", (int)ma->o.n_threads, "tokens_per_second", "median",
                                     sp.median, "min", sp.min, "max", sp.max, "model", ma->model, "scheme",
                                     info.scheme, "repeats", (int)repeats, "power", cli_power_json(&power));
            tn_json_set(&j, "from", tn_json_string(ma->from, strlen(ma->from)));
            if (power.source != TN_POWER_NONE && (n_prompt || !depth)) /* what is in front costs, too */
                tn_json_set(&j, "joules_per_token", tn_json_real(power.joules / n_tok));
            tn_json_append(&all, j);
        } else {
            printf("| %14s | %22.2f | %9.2f .. %9.2f |\n", test, sp.median, sp.min, sp.max);
            fflush(stdout);
            cli_power_print(&power);
        }
    }
    rc = st == TERN_OK ? EXIT_OK : cli_failed(&err);
    if (json && rc == EXIT_OK) rc = cli_emit_json(json_incref(all), JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(all);
    free(ids);
    tern_session_close(&s);
    tern_engine_close(&e);
    return rc;
}

/* One greedy answer of n_gen tokens after ids: tokens a second; with figures also what drafting did. */
static tern_status one_answer(tern_engine *e, const model_args *ma, const int32_t *ids, size_t n_ids,
                              int32_t n_gen, const char *draft, double *speed, json_t **figures,
                              double *per_forward, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = (int32_t)n_ids + n_gen + 1;
    so.draft = draft;
    tern_session *s = NULL;
    tern_generate_options g = ma->o.generate;
    g.max_tokens = n_gen + 1; /* the first comes from the prompt's logits */
    g.ignore_end = true;
    g.sampling.temperature = 0;
    tern_generate_result res;
    double t0 = tn_now_s(), prefill_s;
    tern_status st = tern_session_open(e, &so, &s, err);
    if (st == TERN_OK) st = tern_session_prefill(s, ids, n_ids, err);
    prefill_s = tn_now_s() - t0;
    if (st == TERN_OK) st = tern_session_generate(s, &g, &res, err);
    *speed = st == TERN_OK ? n_gen / res.decode_s : 0;
    if (st == TERN_OK && figures) {
        tn_draft_stats d;
        tn_session_draft_stats(s, &d);
        *per_forward = d.n_steps ? d.tokens_per_step : 1;
        *figures = cli_draft_json(s, prefill_s, res.decode_s, res.n_tokens);
    }
    tern_session_close(&s);
    return st;
}

/* Measures greedy answers to a text, plain and drafted by turns. Every one is in a session of its own, so
 * that drafts know nothing from before. */
static int bench_drafts(const command *c, const model_args *ma, const char *text, const int32_t *gens,
                        int n_gens, int32_t repeats, bool json) {
    tern_engine *e = NULL;
    const char *draft = ma->o.session.draft;
    size_t n_text, n_ids = 0;
    char *prompt = cli_read_text_file(text, &n_text);
    if (!prompt) return EXIT_FAILED;
    int rc = cli_open_engine(c, ma, &e);
    if (rc >= 0) {
        free(prompt);
        return rc;
    }
    tern_model_info info;
    tern_engine_info(e, &info);
    int32_t *ids = cli_prompt_ids(e, prompt, n_text, true, &n_ids);
    free(prompt);
    json_t *all = json_array();
    tern_error err;
    tern_status st = ids && n_ids ? TERN_OK : TERN_E_INVALID;
    if (st != TERN_OK) snprintf(err.message, sizeof err.message, "%s: no tokens to go on from", text);
    if (st == TERN_OK && !json) {
        printf("%s, %s (%s), %d threads, after %zu tokens\n\n| %8s | %28s | %12s | %22s | %15s "
               "|\n|----------|------------------------------|--------------|------------------------|-------"
               "----------|\n",
               ma->model, info.arch, info.scheme, ma->o.n_threads, n_ids, "test", "drafters", "tokens/s",
               "min .. max", "tokens/forward");
    }
    for (int t = 0; t < n_gens && st == TERN_OK; t++) {
        double v[2][MAX_REPEATS];
        json_t *figures = NULL;
        double per_forward = 1;
        for (int r = -1; r < repeats && st == TERN_OK;
             r++) { /* the first is not counted: it warms up, and measures forwards where nobody did */
            for (int drafted = 0; drafted < 2 && st == TERN_OK; drafted++) {
                bool last = drafted && r == repeats - 1;
                double speed;
                st = one_answer(e, ma, ids, n_ids, gens[t], drafted ? draft : "none", &speed,
                                last ? &figures : NULL, &per_forward, &err);
                if (st == TERN_OK && r >= 0) v[drafted][r] = speed;
            }
        }
        for (int drafted = 0; drafted < 2 && st == TERN_OK; drafted++) {
            spread sp = cli_spread_of(v[drafted], repeats);
            char test[32];
            snprintf(test, sizeof test, "tg%d", gens[t]);
            if (json) {
                json_t *j = tn_json_pack("{s:s, s:i, s:{s:f, s:f, s:f}, s:s, s:s, s:i, s:i, s:s}", "test",
                                         test, "threads", (int)ma->o.n_threads, "tokens_per_second", "median",
                                         sp.median, "min", sp.min, "max", sp.max, "model", ma->model,
                                         "scheme", info.scheme, "repeats", (int)repeats, "prompt_tokens",
                                         (int)n_ids, "drafters", drafted ? draft : "none");
                tn_json_set(&j, "from", tn_json_string(ma->from, strlen(ma->from)));
                if (drafted) tn_json_set(&j, "draft", json_incref(figures));
                tn_json_append(&all, j);
            } else {
                printf("| %8s | %28s | %12.2f | %9.2f .. %9.2f | %15.2f |\n", test, drafted ? draft : "none",
                       sp.median, sp.min, sp.max, drafted ? per_forward : 1.0);
            }
        }
        json_decref(figures);
    }
    rc = st == TERN_OK ? EXIT_OK : cli_failed(&err);
    if (json && rc == EXIT_OK) rc = cli_emit_json(json_incref(all), JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(all);
    free(ids);
    tern_engine_close(&e);
    return rc;
}

static int bench_tune(const command *c, const model_args *ma, int32_t n_prompt, bool json) {
    if (!ma->model) return cli_usage_error(c, "MODEL is required");
    tn_tune_report r;
    tern_error err;
    if (tn_tune(ma->model, &ma->o, n_prompt, &r, &err) != TERN_OK) return cli_failed(&err);
    json_t *lengths = json_array(), *rows = json_object();
    for (int i = 0; i < TN_TUNE_LENGTHS; i++) {
        if (r.tokens_per_second[i] > 0)
            tn_json_append(&lengths, tn_json_pack("{s:i, s:f}", "chunk", (int)r.chunk[i], "tokens_per_second",
                                                  r.tokens_per_second[i]));
    }
    for (int s = 0; s < TN_N_SITES; s++)
        if (r.has_shape[s])
            tn_json_set(&rows, tn_site_name((tn_site)s), json_integer(r.tuned.rows_per_run[s]));
    const tn_packed_form *forms = r.forms;
    json_t *reads = json_object();
    int rc = EXIT_OK;
    for (int i = 0; i < TN_TUNED_READS && r.read_gb_per_second[r.i_read] > 0; i++)
        tn_json_set(&reads, tn_tuned_read_names[i], tn_json_real(r.read_gb_per_second[i]));
    if (json) {
        json_t *j =
            tn_json_pack("{s:s, s:i, s:i, s:O, s:O, s:O, s:i}", "model", ma->model, "prompt", (int)n_prompt,
                         "chunk", (int)r.tuned.chunk, "lengths", lengths, "rows_per_run", rows,
                         "read_gb_per_second", reads, "attention_from", (int)r.tuned.attn_threshold);
        json_t *speeds = json_object();
        for (int i = 0; i < TN_PACKED_FORMS_MOST && r.form_speed[i] > 0; i++)
            tn_json_set(&speeds, forms[i].name, tn_json_real(r.form_speed[i]));
        const char *form = *r.tuned.packed_form ? r.tuned.packed_form : "usual";
        if (r.form_speed[0] > 0) tn_json_set(&j, "packed_form", tn_json_string(form, strlen(form)));
        tn_json_set(&j, "packed_forms", speeds);
        if (r.tuned.attn_times.n_widths)
            tn_json_set(&j, "attention_times", tn_attn_times_json(&r.tuned.attn_times));
        rc = cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    } else {
        printf("| chunk | tokens/s, prompt of %d |\n|-------|--------------------------|\n", n_prompt);
        for (int i = 0; i < TN_TUNE_LENGTHS; i++) {
            if (r.tokens_per_second[i] > 0)
                printf("| %5d | %24.2f |%s\n", r.chunk[i], r.tokens_per_second[i],
                       r.chunk[i] == r.tuned.chunk ? " kept" : "");
        }
        for (int s = 0; s < TN_N_SITES; s++) {
            if (!r.has_shape[s]) continue;
            if (r.tuned.rows_per_run[s])
                printf("%s: %d rows at a time\n", tn_site_name((tn_site)s), r.tuned.rows_per_run[s]);
            else printf("%s: all rows at once\n", tn_site_name((tn_site)s));
        }
        for (int i = 0; i < TN_TUNE_ATTN; i++) {
            if (r.attn_speed[i][1] > 0)
                printf("prompt of %6d: attention in full %.0f tokens/s, sparse %.0f\n", r.attn_length[i],
                       r.attn_speed[i][0], r.attn_speed[i][1]);
        }
        if (r.tuned.attn_times.n_widths) cli_print_attn_times(&r.tuned.attn_times);
        if (r.tuned.attn_threshold == 1 << 24) printf("sparse attention does not pay up to here\n");
        else if (r.tuned.attn_threshold)
            printf("sparse attention pays for chunks that end at %d tokens or later\n",
                   r.tuned.attn_threshold);
        for (int i = 0; i < TN_PACKED_FORMS_MOST && r.form_speed[i] > 0; i++)
            printf("one row, weights fetched %-8s %8.2f tokens/s%s\n", forms[i].name, r.form_speed[i],
                   strcmp(r.tuned.packed_form, i ? forms[i].name : "") ? "" : " kept");
        for (int i = 0; i < TN_TUNED_READS && json_object_size(reads); i++) {
            printf("cold reads by %-14s %6.2f GB/s%s\n", tn_tuned_read_names[i], r.read_gb_per_second[i],
                   i == r.i_read ? " kept" : "");
        }
    }
    json_decref(lengths);
    json_decref(rows);
    json_decref(reads);
    return rc;
}

int cmd_bench(int argc, char **argv) {
    model_args ma;
    cli_model_args_defaults(&ma, TN_IN_BENCH);
    const char *p_list = NULL, *n_list = "64", *file = NULL, *text = NULL;
    int32_t repeats = 5, depth = 0;
    bool json = false, tune = false, cold = false, no_prime = false;
    uint64_t once_ns = 0;
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        PACK_ARG(ma),
        {"tune", 0, NULL, ARG_FLAG, &tune, 0, 0,
         "packages: measure chunk lengths, equivalent shapes and the prompt length from which sparse "
         "attention pays, on a prompt of -p tokens (default 1024), and keep the best for later runs"},
        {"n-prompt", 'p', "LIST", ARG_STR, &p_list, 0, 0,
         "prompt lengths, comma-separated; 0 = none (default 512)"},
        {"n-gen", 'n', "LIST", ARG_STR, &n_list, 0, 0,
         "tokens to decode, comma-separated; 0 = none (default 64)"},
        {"depth", 0, "N", ARG_INT, &depth, 0, 1 << 20, "decode after N tokens of context (default: 1)"},
        {"repetitions", 'r', "N", ARG_INT, &repeats, 1, MAX_REPEATS, "repeats of each test (default 5)"},
        {"cold", 0, NULL, ARG_FLAG, &cold, 0, 0,
         "for each length of -p: time from process start to first token, with the file out of the page "
         "cache"},
        {"no-prime", 0, NULL, ARG_FLAG, &no_prime, 0, 0,
         "--cold: do not touch memory before each start (in a virtual machine, fresh memory may cost seconds "
         "per gigabyte)"},
        {"once", 0, "NS", ARG_U64, &once_ns, 0, 0,
         "used by --cold itself: one start, which began at this time of the monotonic clock; prints JSON"},
        {"text", 0, "FILE", ARG_STR, &text, 0, 0,
         "decode greedily after this text instead of random tokens, with and without --draft by turns"},
        {"file", 'f', "FILE", ARG_STR, &file, 0, 0,
         "limits: a large file to read cold (default: a temporary one)"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print JSON"},
        {0},
    };
    const command c = {
        "bench",
        "MODEL [-p LIST] [-n LIST] [--depth N] [-r N]   [--cold | --tune | --text FILE [--draft LIST]]   "
        "or: tern bench limits",
        "Measure the speed of prefill (ppN) and decoding (tgN) in tokens per second, or the limits of this "
        "machine.",
        specs, 1};
    const char *words[2];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (words[0] && !strcmp(words[0], "limits")) return cli_bench_limits(ma.o.n_threads, file, json);
    if ((rc = cli_args_model_word(&c, &ma, words[0])) >= 0) return rc;
    cli_packing_measured(&ma);
    tern_error err;
    if (tn_cores_use(ma.o.cores, &err) != TERN_OK) return cli_failed(&err);
    if (!ma.o.n_threads) ma.o.n_threads = tn_cpu_count();
    int32_t prompts[MAX_LIST], gens[MAX_LIST];
    if (text && p_list) return cli_usage_error(&c, "-p goes with random tokens, not with --text");
    if (!p_list) p_list = tune ? "1024" : "512";
    int n_prompts = strcmp(p_list, "0") ? cli_parse_int_list(p_list, prompts, MAX_LIST, 1 << 20) : 0;
    int n_gens = strcmp(n_list, "0") ? cli_parse_int_list(n_list, gens, MAX_LIST, 1 << 20) : 0;
    if (n_prompts < 0)
        return cli_usage_error(&c, "-p %s: want lengths from 1 to %d, comma-separated", p_list, 1 << 20);
    if (n_gens < 0)
        return cli_usage_error(&c, "-n %s: want lengths from 1 to %d, comma-separated", n_list, 1 << 20);
    if (tune + cold + !!text > 1)
        return cli_usage_error(&c, "--tune, --cold and --text are different measurements: one at a time");
    if (depth && (text || tune || cold))
        return cli_usage_error(&c, "--depth goes with random tokens that are decoded (-n)");
    if (!text && (cli_args_given(&ma, "draft") || cli_args_given(&ma, "draft-nodes") ||
                  cli_args_given(&ma, "draft-eager")))
        return cli_usage_error(&c,
                               "random tokens cannot be drafted: drafts need --text FILE, a text to answer");
    if (text && !n_gens) return cli_usage_error(&c, "--text measures decoding: -n is how much");
    if (text) return bench_drafts(&c, &ma, text, gens, n_gens, repeats, json);
    if (tune && n_prompts != 1) return cli_usage_error(&c, "--tune takes one prompt length");
    if (once_ns && n_prompts != 1) return cli_usage_error(&c, "--once takes one prompt length");
    if (once_ns) return cli_bench_once(&c, &ma, prompts[0], (int64_t)once_ns);
    if (cold) return cli_bench_cold(&c, &ma, argc, argv, prompts, n_prompts, repeats, !no_prime, json);
    if (tune) return bench_tune(&c, &ma, prompts[0], json);
    return bench_model(&c, &ma, prompts, n_prompts, gens, n_gens, depth, repeats, json);
}
