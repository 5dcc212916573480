/* tern pack - a model in any format to a package for an INT8 device. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/pack_progress.h"
#include "cli/packing.h"

#include "formats/package.h"
#include "quant/pack.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The names' meanings. Returns -1 to go on or an exit status. */
static int choose(const command *c, const char *scheme, const char *outliers, const char *allocation,
                  const char *scope, tn_pack_options *o) {
    o->scheme = TN_N_SCHEMES;
    for (int s = 0; s < TN_N_SCHEMES; s++) {
        if (!strcmp(scheme, tn_scheme_name((tn_scheme)s))) o->scheme = (tn_scheme)s;
    }
    if (o->scheme == TN_N_SCHEMES)
        return cli_usage_error(
            c, "scheme '%s' is unknown; there are gram, edgeflow, llm-npu, naive-w8a8, smoothquant", scheme);
    if (strcmp(outliers, "auto") && strcmp(outliers, "off") && strcmp(outliers, "on"))
        return cli_usage_error(c, "outliers '%s' is unknown; there are auto, off, on", outliers);
    o->outliers = !strcmp(outliers, "on")    ? TN_OUTLIERS_ON
                  : !strcmp(outliers, "off") ? TN_OUTLIERS_OFF
                                             : TN_OUTLIERS_AUTO;
    if (allocation && !tn_allocation_parse(allocation, &o->allocation))
        return cli_usage_error(c, "allocation '%s' is unknown; there are loss, re, uniform, cmpq",
                               allocation);
    if (strcmp(scope, "tensor") && strcmp(scope, "model"))
        return cli_usage_error(c, "bits-scope '%s' is unknown; there are tensor, model", scope);
    o->bits_of_model = !strcmp(scope, "model");
    return -1;
}

/* Seconds by the clock and of all threads. */
static json_t *stages(const tn_pack_report *r) {
    static const char *const names[TN_N_STAGES] = {"open",   "sense", "forward", "choose",
                                                   "factor", "round", "judge",   "write"};
    json_t *all = json_object();
    for (int i = 0; i < TN_N_STAGES; i++)
        tn_json_set(&all, names[i],
                    tn_json_pack("{s:f, s:f}", "wall_s", r->stages[i].wall_s, "cpu_s", r->stages[i].cpu_s));
    return all;
}

static int report(const char *out, const char *scheme, const tn_pack_report *r, bool json) {
    char loss[48];
    double share = r->n_values ? 100.0 * (double)r->n_outliers / (double)r->n_values : 0;
    if (json) {
        json_t *j = tn_json_pack(
            "{s:s, s:s, s:I, s:i, s:i, s:i, s:f, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:I}",
            "package", out, "scheme", scheme, "bytes", (json_int_t)r->package_bytes, "sites", (int)r->n_sites,
            "outlier_sites", (int)r->n_outlier_sites, "unsmoothed_sites", (int)r->n_unsmoothed,
            "outlier_percent", share, "hot_channels", (json_int_t)r->n_hot, "channels",
            (json_int_t)r->n_channels, "hot_coverage", r->hot_coverage, "resident_row_bytes",
            (json_int_t)r->hot_row_bytes, "all_row_bytes", (json_int_t)r->all_row_bytes, "calibration_tokens",
            (json_int_t)r->n_calib_tokens, "bits", r->bits, "kl", r->kl, "kl_stderr", r->kl_stderr,
            "held_tokens", (json_int_t)r->n_held_tokens);
        json_t *by = json_object();
        for (int k = 0; k < TN_N_WORDS; k++) {
            const struct tn_pack_loss *l = &r->by_words[k];
            static const char *const names[TN_N_WORDS] = {"own", "chat", "text"};
            if (l->n_held_tokens)
                tn_json_set(&by, names[k],
                            tn_json_pack("{s:f, s:f, s:I}", "kl", l->kl, "kl_stderr", l->kl_stderr,
                                         "held_tokens", (json_int_t)l->n_held_tokens));
        }
        tn_json_set(&j, "kl_by_text", by);
        tn_json_set(&j, "weight_bytes", json_integer((json_int_t)r->plain_bytes));
        tn_json_set(&j, "coded_bytes", json_integer((json_int_t)r->coded_bytes));
        tn_json_set(&j, "own_tokens", json_integer((json_int_t)r->n_own_tokens));
        tn_json_set(&j, "text_nats_a_byte", tn_json_pack("f", r->surprise));
        tn_json_set(&j, "text_not_read", json_boolean(r->text_not_read));
        tn_json_set(&j, "passes", json_integer(r->n_passes));
        tn_json_set(&j, "resumed_layers", json_integer(r->n_resumed));
        tn_json_set(&j, "stages", stages(r));
        return cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    }
    printf("%s: %.1f MiB, scheme %s, calibrated on %llu tokens\n", out, (double)r->package_bytes / 1048576,
           scheme, (unsigned long long)r->n_calib_tokens);
    if (r->coded_bytes < r->plain_bytes)
        printf("weights entropy-coded: %.1f MiB in the file for %.1f MiB in memory\n",
               (double)r->coded_bytes / 1048576, (double)r->plain_bytes / 1048576);
    if (r->bits > 0) printf("%.2f bits a weight, output layer and embedding counted", r->bits);
    if (r->n_held_tokens) {
        printf("; what is lost by them: %s%s (KL divergence on %llu tokens of %s that nothing was decided on",
               r->text_not_read ? "at least " : "",
               cli_loss_words(r->kl, r->kl_stderr, r->n_held_tokens, loss),
               (unsigned long long)r->n_held_tokens, tn_words_name(r->worst));
        for (int k = 0; k < TN_N_WORDS; k++)
            if (k != (int)r->worst && r->by_words[k].n_held_tokens)
                printf("; %s on %s",
                       cli_loss_words(r->by_words[k].kl, r->by_words[k].kl_stderr,
                                      r->by_words[k].n_held_tokens, loss),
                       tn_words_name((tn_words)k));
        printf(")");
    }
    if (r->bits > 0) puts("");
    if (r->text_not_read)
        printf("this model does not read the built-in text (%.1f nats a byte): it is judged on its own words "
               "alone; "
               "--calib FILE takes text of yours\n",
               r->surprise);
    if (r->not_enough)
        puts("that is more than was asked for (--quality): more calibration text helps (--calib), or more "
             "bits (--bits, to 8)");
    if (r->n_unsmoothed)
        printf("inputs of %d of %d sites are not smoothed: %s\n", r->n_unsmoothed, r->n_sites,
               tn_pack_unsmoothed);
    if (r->n_outlier_sites) {
        printf("outlier paths at %d of %d sites (%.2f %% of their values); hot channels %llu of %llu carry "
               "%.0f %% of the outliers;\n"
               "weight rows resident for the CPU: %.2f MiB of %.2f MiB\n",
               r->n_outlier_sites, r->n_sites, share, (unsigned long long)r->n_hot,
               (unsigned long long)r->n_channels, r->hot_coverage * 100, (double)r->hot_row_bytes / 1048576,
               (double)r->all_row_bytes / 1048576);
    }
    return EXIT_OK;
}

static int run_pack(const char *src, const char *out, const char *scheme, const tn_pack_options *o,
                    bool json) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    pack_progress shown = {0};
    hooks.user = &shown;
    hooks.log = cli_log_line;
    if (isatty(STDERR_FILENO)) hooks.progress = cli_pack_progress_show;
    tn_ctx ctx;
    tn_pack_report r;
    tern_error err;
    tn_ctx_init(&ctx, &hooks);
    tern_status st = tn_pack(&ctx, src, out, o, &r, &err);
    cli_pack_progress_done(&shown);
    if (st != TERN_OK) return cli_failed(&err);
    if (o->compress && r.coded_bytes == r.plain_bytes)
        fprintf(stderr,
                "tern: --compress: nothing got smaller by it; scheme %s keeps whole bytes of 8 bits as they "
                "are, and "
                "experts are read alone\n",
                scheme);
    return report(out, scheme, &r, json);
}

static bool names_other_format(const char *out) {
    const char *ending = strrchr(out, '.');
    return ending && (!strcmp(ending, ".gguf") || !strcmp(ending, ".safetensors") || !strcmp(ending, ".bin"));
}

/* Returns -1 to go on or an exit status. */
static int check_names(const command *c, const char *src, const char *out) {
    if (!src) return cli_usage_error(c, "SRC is required");
    if (!out) return cli_usage_error(c, "-o OUT.tern is required");
    if (names_other_format(out))
        return cli_usage_error(
            c, "-o %s: a package is none of that format; give it a name that ends in .tern", out);
    if (tn_pkg_is(src))
        return cli_failed_text(
            "%s is a package already; packages are made from a GGUF file or a Hugging Face folder", src);
    return -1;
}

int cmd_pack(int argc, char **argv) {
    const char *out = NULL, *scheme = "gram", *outliers = "auto", *scope = "tensor", *allocation = NULL;
    bool json = false;
    float bits = 0, quality = 0;
    tn_pack_options o;
    tn_pack_defaults(&o);
    const arg_spec specs[] = {
        {"output", 'o', "OUT.tern", ARG_STR, &out, 0, 0, "the package to write"},
        {"scheme", 0, "NAME", ARG_STR, &scheme, 0, 0,
         "gram (default), edgeflow, llm-npu, naive-w8a8, smoothquant"},
        {"bits", 'b', "B", ARG_FLOAT, &bits, 1, 8,
         "average bits of a weight (default: what --quality needs with gram, 5 with edgeflow, else 8)"},
        {"quality", 0, "PERCENT", ARG_FLOAT, &quality, 0.01, 50,
         "with gram, in place of --bits: the fewest bits whose loss (KL divergence, about the most that "
         "perplexity loses) stays below this on calibration text kept apart (default 0.5)"},
        {"quick", 0, NULL, ARG_FLAG, &o.quick, 0, 0,
         "with gram: a third of the time; 6 bits for every weight unless --bits says otherwise, 512 tokens, "
         "coarser rounding. tern-tiny loses 0.55 ± 0.17 % by it, 0.28 ± 0.14 % by 5 bits without, in 0.86 of "
         "the "
         "bytes"},
        {"allocation", 0, "HOW", ARG_STR, &allocation, 0, 0,
         "who gets them: loss (with gram: channels 2 to 8 by what their errors cost the predictions, "
         "measured), re (default with edgeflow: 1 to 8 by relative error), uniform (else), cmpq"},
        {"bits-scope", 0, "WHAT", ARG_STR, &scope, 0, 0,
         "tensor: that average in every one (default), or model: in all of them together; reads them once "
         "more"},
        {"outliers", 0, "MODE", ARG_STR, &outliers, 0, 0,
         "edgeflow: outlier paths on top of smoothing: auto (default) where it does not do, off, on"},
        {"calib", 0, "FILE", ARG_STR, &o.calib_path, 0, 0,
         "text to calibrate on (default: a small built-in one)"},
        {"calib-tokens", 0, "N", ARG_INT, &o.calib_tokens, 64, 1e7,
         "tokens of it to use at most (default 4096; 2048 for models of over a billion parameters)"},
        {"own-words", 0, "N", ARG_INT, &o.own_tokens, 0, 1 << 20,
         "tokens that the model writes by itself, to be calibrated on besides (default with gram: 2048, half "
         "of that for models of over a billion parameters, none with --calib)"},
        {"calib-window", 0, "N", ARG_INT, &o.calib_window, 16, 1e5,
         "context while calibrating (default 512)"},
        {"prune", 0, "PERCENT", ARG_FLOAT, &o.prune_percent, 0, 100,
         "least important sites without an outlier path, at most (default 85)"},
        {"prune-error", 0, "X", ARG_FLOAT, &o.prune_error, 0, 1e9,
         "never prune a site whose values that are no outliers would lose more than X of their energy "
         "(default 0.001)"},
        {"outlier-share", 0, "X", ARG_FLOAT, &o.outlier_share, 1e-6, 0.1,
         "share of an outlier site's values beyond its scale (default 0.002)"},
        {"hot-coverage", 0, "X", ARG_FLOAT, &o.hot_coverage, 0, 1,
         "share of the outliers whose weight rows stay resident for the CPU (default 0.9)"},
        {"hot-max", 0, "X", ARG_FLOAT, &o.hot_max, 0, 1,
         "... in at most this share of the channels (default 0.25; the paper: 0.03)"},
        {"output-int8", 0, NULL, ARG_FLAG, &o.output_int8, 0, 0,
         "products leave the device in 8 bits, with one frozen scale a tensor, as on most phones (default: "
         "in float)"},
        {"output-beta", 0, "B", ARG_FLOAT, &o.output_beta, 0, 1,
         "... their channels made alike before, divided by their largest output to this power (default 1; 0: "
         "not)"},
        {"head-importance", 0, NULL, ARG_FLAG, &o.head_importance, 0, 0,
         "sparse attention: measure each head's importance; one forward of a window for every head. After a "
         "kill it goes on where it was"},
        {"compress", 0, NULL, ARG_FLAG, &o.compress, 0, 0,
         "entropy-code the weights: a tenth less in the file, as much in memory; loading decodes them"},
        {"compress-rate", 0, "R", ARG_FLOAT, &o.compress_rate, 0, 4,
         "with gram: how much entropy counts in choosing scales (default 1; 0: weights as without)"},
        {"threads", 't', "N", ARG_INT, &o.n_threads, 1, 64, "worker threads (default: one per core)"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print the report as JSON"},
        {0},
    };
    const command c = {"pack", "SRC -o OUT.tern [OPTIONS]",
                       "Calibrate and quantise SRC (a GGUF file or a Hugging Face folder) into one package.",
                       specs, 1};
    const char *words[2];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    rc = check_names(&c, words[0], out);
    if (rc >= 0) return rc;
    o.bits = (double)bits;
    o.quality = (double)quality / 100;
    if (o.quick && (!o.calib_tokens || o.calib_tokens > 512)) o.calib_tokens = 512;
    rc = choose(&c, scheme, outliers, allocation, scope, &o);
    if (rc >= 0) return rc;
    return run_pack(words[0], out, scheme, &o, json);
}
