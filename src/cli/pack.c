/* tern pack - a model in any format to a package for an INT8 device. */
#include "engine/sight_find.h"
#include "model/source.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/live.h"
#include "cli/looking.h"
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
    if (o->quick && (!o->calib_tokens || o->calib_tokens > 512)) o->calib_tokens = 512;
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

static void say_source_bits(const tn_pack_report *r) {
    if (r->source_bits > 0)
        printf("the file's weights have %.2f bits already: rounding them again loses more on top of what was "
               "lost before\n",
               r->source_bits);
}

static json_t *encoder(const tn_pack_report *r) {
    return tn_json_pack("{s:s, s:f, s:f}", "form", tn_tower_holds(r->encoder) ? "int8" : "float",
                        "mean_cosine", (double)r->encoder.mean, "least_cosine", (double)r->encoder.least);
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
        tn_json_set(&j, "source_bits", tn_json_pack("f", r->source_bits));
        tn_json_set(&j, "text_nats_a_byte", tn_json_pack("f", r->surprise));
        tn_json_set(&j, "text_not_read", json_boolean(r->text_not_read));
        tn_json_set(&j, "passes", json_integer(r->n_passes));
        tn_json_set(&j, "resumed_layers", json_integer(r->n_resumed));
        tn_json_set(&j, "stages", stages(r));
        if (r->has_encoder) tn_json_set(&j, "encoder", encoder(r));
        return cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    }
    printf("%s: %.1f MiB, scheme %s, calibrated on %llu tokens\n", out, (double)r->package_bytes / 1048576,
           scheme, (unsigned long long)r->n_calib_tokens);
    if (r->coded_bytes < r->plain_bytes)
        printf("weights entropy-coded: %.1f MiB in the file for %.1f MiB in memory\n",
               (double)r->coded_bytes / 1048576, (double)r->plain_bytes / 1048576);
    if (r->bits > 0) printf("%.2f bits per weight, with output layer and embedding", r->bits);
    if (r->n_held_tokens) {
        printf("; loss: %s%s (KL divergence on %llu held-out tokens of %s",
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
    say_source_bits(r);
    if (r->has_encoder) cli_verdict_print(stdout, r->encoder);
    if (r->text_not_read)
        printf("this model does not know the built-in text (%.1f nats per byte), so the loss is measured on "
               "text of its own; --calib FILE calibrates on yours\n",
               r->surprise);
    if (r->not_enough)
        puts("that is more than --quality allows: give more calibration text (--calib) or more bits (--bits, "
             "up to 8)");
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

static int report_gguf(const char *out, const tn_pack_report *r, bool json) {
    if (json)
        return cli_emit_json(tn_json_pack("{s:s, s:I, s:f, s:f, s:I}", "file", out, "bytes",
                                          (json_int_t)r->package_bytes, "bits", r->bits, "source_bits",
                                          r->source_bits, "calibration_tokens",
                                          (json_int_t)r->n_calib_tokens),
                             JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("%s: %.1f MiB, %.2f bits per weight with output layer and embedding, calibrated on %llu tokens\n",
           out, (double)r->package_bytes / 1048576, r->bits, (unsigned long long)r->n_calib_tokens);
    say_source_bits(r);
    return EXIT_OK;
}

static int run_pack(const char *src, const char *out, const char *scheme, const tn_pack_options *o,
                    bool json) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    pack_progress shown = {0};
    hooks.user = &shown;
    hooks.log = cli_log_line;
    if (cli_live()) hooks.progress = cli_pack_progress_show;
    tn_ctx ctx;
    tn_pack_report r;
    tern_error err;
    tn_ctx_init(&ctx, &hooks);
    tern_status st = tn_pack(&ctx, src, out, o, &r, &err);
    cli_pack_progress_done(&shown);
    if (st != TERN_OK) return cli_failed(&err);
    if (o->compress && r.coded_bytes == r.plain_bytes)
        fprintf(stderr,
                "tern: --compress: nothing became smaller: scheme %s stores whole bytes, or the weights are "
                "experts, which are read one by one\n",
                scheme);
    if (o->gguf_form) return report_gguf(out, &r, json);
    return report(out, scheme, &r, json);
}

static bool names_other_format(const char *out) {
    const char *ending = strrchr(out, '.');
    return ending &&
           (!strcasecmp(ending, ".gguf") || !strcmp(ending, ".safetensors") || !strcmp(ending, ".bin"));
}

/* Returns -1 to go on or an exit status. */
static int check_names(const command *c, const char *src, const char *out, const char *type,
                       const tn_gguf_form **form) {
    if (!src) return cli_usage_error(c, "SRC is required");
    if (!out) return cli_usage_error(c, "-o OUT.tern is required");
    const char *ending = strrchr(out, '.');
    if (type && (!ending || strcasecmp(ending, ".gguf")))
        return cli_usage_error(c, "--type is for GGUF files: give the output a name that ends in .gguf");
    if (type && !(*form = tn_gguf_form_named(type)))
        return cli_usage_error(c, "type '%s' is unknown; there are " TN_GGUF_FORMS, type);
    if (!type && names_other_format(out))
        return cli_usage_error(c,
                               "-o %s: a package is not a GGUF file; give it a name that ends in .tern, or "
                               "ask for a GGUF file with --type q4_0",
                               out);
    if (tn_pkg_is(src))
        return cli_failed_text(
            "%s is already a package; packages are made from a GGUF file or a Hugging Face folder", src);
    return -1;
}

/* Values of a row of the model; 0: it cannot be read, which is told when it is packed. */
static int32_t width_of(const char *src) {
    tn_ctx ctx;
    tn_source *s;
    tn_ctx_init(&ctx, NULL);
    if (tn_source_open(&ctx, src, &s, NULL) != TERN_OK) return 0;
    const int32_t n_embd = tn_source_hparams(s)->n_embd;
    tn_source_close(&s);
    return n_embd;
}

/* The encoder of pictures beside the model goes into the package, unless another one or none was asked for. */
static int with_encoder(const char *src, const char *out, const char *scheme, tn_pack_options *o, bool json) {
    tern_error err = {0};
    char *found = !o->mmproj && !o->gguf_form ? tn_sight_find(src, width_of(src), &err) : NULL;
    if (err.code == TERN_E_MEMORY) return cli_failed(&err);
    if (err.code == TERN_E_INVALID)
        fprintf(stderr, "tern: the package gets no encoder of pictures: %s\n", cli_shown(err.message));
    if (found) fprintf(stderr, "tern: the encoder of pictures %s goes into the package\n", cli_shown(found));
    if (found) o->mmproj = found;
    else if (o->mmproj && !strcmp(o->mmproj, "none")) o->mmproj = NULL;
    int rc = run_pack(src, out, scheme, o, json);
    free(found);
    return rc;
}

int cmd_pack(int argc, char **argv) {
    const char *out = NULL, *type = NULL, *scheme = "gram", *outliers = "auto", *scope = "tensor",
               *allocation = NULL;
    float bits = 0, quality = 0;
    bool json = false;
    tn_pack_options o;
    tn_pack_defaults(&o);
    const arg_spec specs[] = {
        {"output", 'o', "OUT.tern", ARG_STR, &out, 0, 0, "the package to write"},
        {"type", 0, "TYPE", ARG_STR, &type, 0, 0,
         "write a GGUF file instead (SRC must be one), with rounding optimised on the calibration "
         "text: " TN_GGUF_FORMS},
        {"scheme", 0, "NAME", ARG_STR, &scheme, 0, 0,
         "gram (default), edgeflow, llm-npu, naive-w8a8, smoothquant"},
        {"bits", 'b', "B", ARG_FLOAT, &bits, 1, 8,
         "average bits per weight (default: as many as --quality needs with gram, 5 with edgeflow, else 8)"},
        {"quality", 0, "PERCENT", ARG_FLOAT, &quality, 0.01, 50,
         "with gram, instead of --bits: use the fewest bits whose loss on held-out calibration text stays "
         "below this (KL divergence; perplexity rises by about as much at most; default 0.5)"},
        {"quick", 0, NULL, ARG_FLAG, &o.quick, 0, 0,
         "with gram: takes a third of the time; 6 bits per weight unless --bits is given, 512 tokens, "
         "coarser rounding"},
        {"allocation", 0, "HOW", ARG_STR, &allocation, 0, 0,
         "how bits are distributed: loss (default with gram: 2 to 8 bits a channel, by measured effect on "
         "predictions), re (default with edgeflow: 1 to 8, by relative error), uniform (default otherwise), "
         "cmpq"},
        {"bits-scope", 0, "WHAT", ARG_STR, &scope, 0, 0,
         "tensor: this average in every tensor (default); model: over all tensors, read once more"},
        {"outliers", 0, "MODE", ARG_STR, &outliers, 0, 0,
         "edgeflow: outlier paths in addition to smoothing: auto (default: where smoothing is not enough), "
         "off, on"},
        {"calib", 0, "FILE", ARG_STR, &o.calib_path, 0, 0,
         "calibration text (default: a small built-in one)"},
        {"calib-tokens", 0, "N", ARG_INT, &o.calib_tokens, 64, 1e7,
         "most tokens of it to use (default 4096; 2048 for models of over a billion parameters)"},
        {"own-words", 0, "N", ARG_INT, &o.own_tokens, 0, 1 << 20,
         "also calibrate on N tokens that the model writes itself (default with gram: 2048; 1024 for models "
         "of over a billion parameters; 0 with --calib)"},
        {"calib-window", 0, "N", ARG_INT, &o.calib_window, 16, 1e5,
         "context length during calibration (default 512)"},
        {"prune", 0, "PERCENT", ARG_FLOAT, &o.prune_percent, 0, 100,
         "most of the least important sites that go without an outlier path (default 85)"},
        {"prune-error", 0, "X", ARG_FLOAT, &o.prune_error, 0, 1e9,
         "never prune a site whose ordinary values would lose more than X of their energy (default 0.001)"},
        {"outlier-share", 0, "X", ARG_FLOAT, &o.outlier_share, 1e-6, 0.1,
         "share of the values of an outlier site that lie beyond its scale (default 0.002)"},
        {"hot-coverage", 0, "X", ARG_FLOAT, &o.hot_coverage, 0, 1,
         "share of outliers whose weight rows stay in memory for the CPU (default 0.9)"},
        {"hot-max", 0, "X", ARG_FLOAT, &o.hot_max, 0, 1,
         "most of the channels that this may take (default 0.25; the paper: 0.03)"},
        {"output-int8", 0, NULL, ARG_FLAG, &o.output_int8, 0, 0,
         "products leave the device in 8 bits, with one fixed scale per tensor (default: float)"},
        {"output-beta", 0, "B", ARG_FLOAT, &o.output_beta, 0, 1,
         "with --output-int8: divide each channel by its largest output to the power B first (default 1; 0: "
         "do not)"},
        {"head-importance", 0, NULL, ARG_FLAG, &o.head_importance, 0, 0,
         "sparse attention: measure each head's importance (a forward pass of a window per head)"},
        {"compress", 0, NULL, ARG_FLAG, &o.compress, 0, 0,
         "entropy-code the weights: the file shrinks by a tenth, memory does not; loading decodes them"},
        {"compress-rate", 0, "R", ARG_FLOAT, &o.compress_rate, 0, 4,
         "with gram: how much entropy counts in choosing scales (default 1; 0: not at all)"},
        {"mmproj", 0, "FILE", ARG_STR, &o.mmproj, 0, 0,
         "the picture encoder to put into the package (default: the mmproj file beside SRC; none: without)"},
        {"threads", 't', "N", ARG_INT, &o.n_threads, 1, 64, "worker threads (default: one per core)"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print the report as JSON"},
        {0},
    };
    const command c = {"pack", "SRC -o OUT.tern [OPTIONS]",
                       "Calibrate and quantise SRC (a GGUF file or a Hugging Face folder) into a package.",
                       specs, 1};
    const char *words[2];
    char path[MODEL_PATH_MAX];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (words[0] && (rc = cli_model_word(&words[0], path)) >= 0) return rc;
    o.bits = (double)bits, o.quality = (double)quality / 100;
    rc = check_names(&c, words[0], out, type, &o.gguf_form);
    if (rc < 0) rc = choose(&c, scheme, outliers, allocation, scope, &o);
    return rc >= 0 ? rc : with_encoder(words[0], out, scheme, &o, json);
}
