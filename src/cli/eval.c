/* tern eval - perplexity and task accuracy. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/packing.h"
#include "cli/stats.h"

#include "measure/eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct outcome {
    const char *task, *model, *from;
    json_t *items, *by_sum; /* NULL: not asked for */
} outcome;

static void show(void *user, int64_t done, int64_t total, double value) {
    const char *task = ((outcome *)user)->task;
    fprintf(stderr, "\r\033[K%s %lld/%lld: %.4f", task, (long long)done, (long long)total, value);
    if (done == total) fprintf(stderr, "\r\033[K");
}

static void on_item(void *user, bool right, bool by_sum) {
    tn_json_append(&((outcome *)user)->items, json_integer(right));
    tn_json_append(&((outcome *)user)->by_sum, json_integer(by_sum));
}

/* Opens a model beside the first, with the options of that one that do not name a model. What the first is judged by
 * attends in full. */
static int open_other(const command *c, const model_args *like, const char *model, bool source,
                      tern_engine **out) {
    model_args a = *like;
    a.model = model;
    if (source) {
        a.o.attention = "full";
        a.o.attention_preset = NULL;
        a.o.attention_decode = false;
    }
    a.o.scheme = NULL; /* float arithmetic of the model asked about */
    return cli_open_engine(c, &a, out);
}

static json_t *loss_json(const tn_eval_loss *l) {
    return tn_json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "nll_diff", l->nll_diff.value,
                        "nll_diff_stderr", l->nll_diff.stderr_, "kl", l->kl.value, "kl_stderr", l->kl.stderr_,
                        "kl_p99", l->kl_p99, "kl_max", l->kl_max, "same_top", l->same_top.value,
                        "same_top_stderr", l->same_top.stderr_);
}

static void add_comparisons(json_t **j, const tn_eval_result *r) {
    if (r->has_source) {
        tn_json_set(j, "source_perplexity", tn_json_real(r->source_value));
        tn_json_set(j, "loss", loss_json(&r->loss));
    }
    if (!r->has_against) return;
    tn_json_set(j, "against", tn_json_real(r->against_value));
    tn_json_set(j, "paired",
                tn_json_pack("{s:f, s:f, s:f}", "difference", r->paired.value, "stderr", r->paired.stderr_,
                             "p", tn_eval_p(r->paired)));
    if (!r->has_source) return;
    tn_json_set(j, "against_loss", loss_json(&r->against_loss));
    tn_json_set(j, "paired_kl",
                tn_json_pack("{s:f, s:f, s:f}", "difference", r->paired_kl.value, "stderr",
                             r->paired_kl.stderr_, "p", tn_eval_p(r->paired_kl)));
}

static void print_loss(const char *who, double source, const tn_eval_loss *l) {
    printf("%sagainst the source (perplexity %.4f): nll %+.5f +- %.5f (perplexity %+.2f %%), KL %.5f +- %.5f "
           "(99 %% "
           "%.4f, max %.3f), same top %.2f %% +- %.2f\n",
           who, source, l->nll_diff.value, l->nll_diff.stderr_, 100 * expm1(l->nll_diff.value), l->kl.value,
           l->kl.stderr_, l->kl_p99, l->kl_max, 100 * l->same_top.value, 100 * l->same_top.stderr_);
}

static void print_comparisons(const tn_eval_result *r) {
    if (r->has_source) print_loss("", r->source_value, &r->loss);
    if (!r->has_against) return;
    if (r->has_source) print_loss("second model ", r->source_value, &r->against_loss);
    printf("second model: %s %.4f; first less second: %s %+.5f +- %.5f (p %.2g)\n",
           r->is_ppl ? "perplexity" : "accuracy", r->against_value, r->is_ppl ? "nll" : "accuracy",
           r->paired.value, r->paired.stderr_, tn_eval_p(r->paired));
    if (r->has_source)
        printf("KL %+.5f +- %.5f (p %.2g)\n", r->paired_kl.value, r->paired_kl.stderr_,
               tn_eval_p(r->paired_kl));
}

static int print_eval_json(const tn_eval_options *o, const tn_eval_result *r, const outcome *out) {
    bool is_choice = !strcmp(o->task, "choice");
    json_t *j = tn_json_pack("{s:s, s:I, s:f, s:f}", "task", o->task, r->is_ppl ? "tokens" : "items",
                             (json_int_t)r->n_items, r->is_ppl ? "perplexity" : "accuracy", r->value,
                             "stderr", r->stderr_);
    tn_json_set(&j, "model", tn_json_string(out->model, strlen(out->model)));
    tn_json_set(&j, "from", tn_json_string(out->from, strlen(out->from)));
    if (!r->is_ppl) {
        tn_json_set(&j, "skipped", json_integer(r->n_skipped));
        tn_json_set(&j, "answer_perplexity", tn_json_real(r->perplexity));
        if (is_choice) tn_json_set(&j, "accuracy_by_sum", tn_json_real(r->by_sum));
    }
    add_comparisons(&j, r);
    if (out->items) tn_json_set(&j, "items_right", json_incref(out->items));
    if (out->items && is_choice) tn_json_set(&j, "items_right_by_sum", json_incref(out->by_sum));
    if (r->stats.attn_rows) tn_json_set(&j, "attention", cli_attention_json(&r->stats));
    return cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(8));
}

static int print_eval(const tn_eval_result *r, const outcome *out) {
    if (r->is_ppl)
        printf("perplexity %.4f +- %.4f over %lld tokens\n", r->value, r->stderr_, (long long)r->n_items);
    else
        printf("accuracy %.2f %% +- %.2f over %lld items (%lld too long for the context), answer perplexity "
               "%.3f\n",
               r->value * 100, r->stderr_ * 100, (long long)r->n_items, (long long)r->n_skipped,
               r->perplexity);
    if (!strcmp(out->task, "choice"))
        printf("by the log-probability of whole endings, not per byte: accuracy %.2f %%\n", r->by_sum * 100);
    print_comparisons(r);
    printf("measured: %s\n", !strcmp(out->from, "cache")  ? "the model's package (tern cache)"
                             : !strcmp(out->from, "file") ? "the model's file"
                                                          : "a package");
    return EXIT_OK;
}

int cmd_eval(int argc, char **argv) {
    model_args ma;
    cli_model_args_defaults(&ma, TN_IN_EVAL);
    tn_eval_options o = {0};
    int32_t limit = 0;
    const char *draft = "none", *kl = NULL, *against = NULL;
    bool json = false, items = false;
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        PACK_ARG(ma),
        {"task", 0, "NAME", ARG_STR, &o.task, 0, 0,
         "ppl (a text), lambada, choice (ARC, PIQA, Winogrande as jsonl; HellaSwag as txt), exact (jsonl of "
         "prompt and answer)"},
        {"data", 0, "FILE", ARG_STR, &o.data, 0, 0, "the data file"},
        {"ctx-size", 'c', "N", ARG_INT, &o.n_ctx, 2, 1 << 24,
         "context in tokens (default: 512 for ppl, else the smaller of 4096 and the model's)"},
        {"protocol", 0, "NAME", ARG_STR, &o.protocol, 0, 0,
         "ppl: windows (default: scores every token except a window's first) or llama.cpp (scores the second "
         "half of every full window)"},
        {"kl", 0, "SOURCE", ARG_STR, &kl, 0, 0,
         "ppl: also compare predictions with this model's: KL divergence, share of tokens with the same top "
         "choice, difference of log-likelihood"},
        {"against", 0, "MODEL2", ARG_STR, &against, 0, 0,
         "also evaluate a second model on the same tokens or items: paired difference with its standard "
         "error"},
        {"limit", 0, "N", ARG_INT, &limit, 0, 1e9, "most items, or windows of ppl (default: all)"},
        {"items", 0, NULL, ARG_FLAG, &items, 0, 0,
         "with --json: list for every item whether it was right (1 or 0), to compare models item by item"},
        {"draft", 0, "LIST", ARG_STR, &draft, 0, 0,
         "only none: texts are scored, so there is nothing to draft (tern bench --text measures drafts)"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print one JSON object"},
        {0},
    };
    const command c = {"eval", "MODEL --task NAME --data FILE [OPTIONS]",
                       "Measure perplexity of a text, or accuracy on a task, with its standard error.", specs,
                       1};
    const char *words[2];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0 || (rc = cli_args_model_word(&c, &ma, words[0])) >= 0) return rc;
    if (!o.task || !o.data) return cli_usage_error(&c, "--%s is required", o.task ? "data" : "task");
    if (strcmp(draft, "none"))
        return cli_usage_error(&c,
                               "--draft %s: every task scores given texts and decodes nothing, so there is "
                               "nothing to draft; tern bench --text measures drafts",
                               draft);
    tern_engine *e = NULL;
    if (!cli_args_given(&ma, "attention") && !cli_args_given(&ma, "attention-preset"))
        ma.o.attention = "full"; /* models are compared, not where they attend */
    const char *model = ma.model;
    cli_packing_measured(&ma);
    rc = cli_open_engine(&c, &ma, &e);
    if (rc < 0 && kl) rc = open_other(&c, &ma, kl, true, &o.source);
    if (rc < 0 && against) rc = open_other(&c, &ma, against, false, &o.against);
    if (rc >= 0) {
        tern_engine_close(&o.source);
        tern_engine_close(&e);
        return rc;
    }
    o.limit = limit;
    if (isatty(STDERR_FILENO)) o.progress = show, cli_progress_quiet();
    outcome out = {.task = o.task,
                   .model = model,
                   .from = ma.from,
                   .items = items ? json_array() : NULL,
                   .by_sum = items ? json_array() : NULL};
    o.user = &out;
    if (items) o.on_item = on_item;
    tn_eval_result r;
    tern_error err;
    tern_status st = tn_eval(e, &o, &r, &err);
    tern_engine_close(&o.against);
    tern_engine_close(&o.source);
    tern_engine_close(&e);
    if (st != TERN_OK) rc = cli_failed(&err);
    else if (json) rc = print_eval_json(&o, &r, &out);
    else rc = print_eval(&r, &out);
    json_decref(out.items);
    json_decref(out.by_sum);
    return rc;
}
