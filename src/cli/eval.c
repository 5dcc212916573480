/* tern eval - perplexity and task accuracy. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/live.h"
#include "cli/output.h"
#include "cli/packing.h"
#include "cli/stats.h"
#include "cli/suite.h"

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
    cli_live_line("%s %lld/%lld: %.4f", task, (long long)done, (long long)total, value);
    if (done == total) cli_live_clear();
}

static void on_item(void *user, bool right, bool by_sum) {
    tn_json_append(&((outcome *)user)->items, json_integer(right));
    tn_json_append(&((outcome *)user)->by_sum, json_integer(by_sum));
}

/* Opens a model beside the first, with the options of that one that do not name a model. What the first is judged by
 * attends in full. */
static int open_other(const command *c, const model_args *like, const char *model, bool source,
                      tern_engine **out) {
    char path[MODEL_PATH_MAX];
    model_args a = *like;
    a.model = cli_model_path(model, path);
    if (source) {
        a.o.attention = "full";
        a.o.attention_preset = NULL;
        a.o.attention_decode = false;
        a.o.given = 0; /* which options have no effect is said of the model asked about */
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

typedef struct eval_args {
    model_args ma;
    tn_eval_options o;
    suite_args s;
    const char *draft, *kl, *against, *compare;
    bool json, items;
} eval_args;

/* A text's tokens, or items whose answers are given. */
static int run_texts(eval_args *a, const char *model, tern_engine *e) {
    tn_eval_options *o = &a->o;
    o->limit = a->s.limit;
    if (cli_live()) o->progress = show, cli_progress_quiet();
    outcome out = {.task = o->task,
                   .model = model,
                   .from = a->ma.from,
                   .items = a->items ? json_array() : NULL,
                   .by_sum = a->items ? json_array() : NULL};
    o->user = &out;
    if (a->items) o->on_item = on_item;
    tn_eval_result r;
    tern_error err;
    tern_status st = tn_eval(e, o, &r, &err);
    int rc = st != TERN_OK ? cli_failed(&err) : a->json ? print_eval_json(o, &r, &out) : print_eval(&r, &out);
    json_decref(out.items);
    json_decref(out.by_sum);
    return rc;
}

static int run_suite(eval_args *a, const char *model, tern_engine *e) {
    a->s.model = model;
    a->s.from = a->ma.from;
    a->s.json = a->json;
    a->s.items = a->items;
    return cli_suite_run(&a->s, e, a->o.against);
}

/* Whether the options go with the task. Returns -1, or EXIT_USAGE. */
static int check(const command *c, eval_args *a) {
    const char *given = cli_suite_given(&a->s);
    if (!a->o.task) return cli_usage_error(c, "--task is required");
    if (strcmp(a->draft, "none") != 0)
        return cli_usage_error(
            c,
            "--draft %s: nothing is drafted here; texts are scored, and answers of benchmarks are "
            "the same with drafts; tern bench --text measures them",
            a->draft);
    if (tn_suite_is(a->o.task)) {
        if (a->kl || a->o.protocol)
            return cli_usage_error(c, "--%s belongs to --task ppl", a->kl ? "kl" : "protocol");
        a->s.o.task = a->o.task;
        a->s.o.data = a->o.data;
        a->s.ctx = a->o.n_ctx;
        if (!a->o.data && strcmp(a->o.task, "ruler") != 0) return cli_usage_error(c, "--data is required");
        return cli_suite_check(c, &a->s);
    }
    if (!a->o.data) return cli_usage_error(c, "--data is required");
    if (given) return cli_usage_error(c, "--%s belongs to the tasks mmlu, ruler, bfcl and ifeval", given);
    return -1;
}

static int run_eval(const command *c, eval_args *a) {
    tern_engine *e = NULL;
    if (!cli_args_given(&a->ma, "attention") && !cli_args_given(&a->ma, "attention-preset"))
        a->ma.o.attention = "full"; /* models are compared, not where they attend */
    const char *model = a->ma.model;
    a->ma.o.session.draft = "none"; /* nothing is opened to draft with */
    cli_packing_measured(&a->ma);
    int rc = cli_open_engine(c, &a->ma, &e);
    if (rc < 0 && a->kl) rc = open_other(c, &a->ma, a->kl, true, &a->o.source);
    if (rc < 0 && a->against) rc = open_other(c, &a->ma, a->against, false, &a->o.against);
    if (rc < 0) rc = tn_suite_is(a->o.task) ? run_suite(a, model, e) : run_texts(a, model, e);
    tern_engine_close(&a->o.against);
    tern_engine_close(&a->o.source);
    tern_engine_close(&e);
    return rc;
}

int cmd_eval(int argc, char **argv) {
    eval_args a = {.draft = "none"};
    cli_model_args_defaults(&a.ma, TN_IN_EVAL);
    cli_suite_defaults(&a.s);
    const arg_spec specs[] = {
        MODEL_ARGS(a.ma),
        PACK_ARG(a.ma),
        {"task", 0, "NAME", ARG_STR, &a.o.task, 0, 0,
         "ppl (a text), lambada, choice (ARC, PIQA, Winogrande as jsonl; HellaSwag as txt), exact (jsonl of "
         "prompt and answer); or a published benchmark: mmlu, ruler, bfcl, ifeval"},
        {"data", 0, "PATH", ARG_STR, &a.o.data, 0, 0,
         "the data file, or the folder of a benchmark's data; ruler needs none"},
        {"ctx-size", 'c', "N", ARG_INT, &a.o.n_ctx, 2, 1 << 24,
         "context in tokens (default: 512 for ppl, ruler's greatest length, else the smaller of 4096 and the "
         "model's)"},
        {"limit", 0, "N", ARG_INT, &a.s.limit, 0, 1e9,
         "most items (of benchmarks: drawn by the seed), or windows of ppl (default: all)"},
        {"results", 0, "FILE", ARG_STR, &a.s.o.results, 0, 0,
         "benchmarks: write each item's result to this file as it comes, and continue from what the file "
         "holds"},
        {"against", 0, "MODEL2", ARG_STR, &a.against, 0, 0,
         "also evaluate a second model on the same tokens or items: paired difference with its standard "
         "error"},
        {"compare", 0, "FILE", ARG_STR, &a.compare, 0, 0,
         "no model: compare this file of results with a second one, item by item (tern eval --compare FILE "
         "FILE2)"},
        {"only", 0, "LIST", ARG_STR, &a.s.o.only, 0, 0,
         "benchmarks: only these groups (subjects, categories, ruler's tasks or lengths)"},
        {"seed", 0, "S", ARG_U64, &a.s.o.seed, 0, 0,
         "benchmarks: chooses the items of --limit and makes ruler's texts (default: 0)"},
        {"shots", 0, "N", ARG_INT | ARG_MORE, &a.s.shots, 0, 5,
         "mmlu: examples before the question (default: 5)"},
        {"lengths", 0, "LIST", ARG_STR | ARG_MORE, &a.s.lengths, 0, 0,
         "ruler: tokens of a text, with the room for its answer (default: the smaller of 4096 and the "
         "model's)"},
        {"samples", 0, "N", ARG_INT | ARG_MORE, &a.s.samples, 1, 100000,
         "ruler: texts of each task and length (default: 20)"},
        {"n-predict", 'n', "N", ARG_INT | ARG_MORE, &a.s.max_tokens, 1, 1e9,
         "ruler, bfcl, ifeval: most tokens of an answer (default: ruler's own numbers, 1024, 1280)"},
        {"thinking", 0, "on|off", ARG_STR | ARG_MORE, &a.s.thinking, 0, 0,
         "ruler, bfcl, ifeval: whether thoughts come first (default: as the model's template has it)"},
        {"protocol", 0, "NAME", ARG_STR, &a.o.protocol, 0, 0,
         "ppl: windows (default: scores every token except a window's first) or llama.cpp (scores the second "
         "half of every full window)"},
        {"kl", 0, "SOURCE", ARG_STR, &a.kl, 0, 0,
         "ppl: also compare predictions with this model's: KL divergence, share of tokens with the same top "
         "choice, difference of log-likelihood"},
        {"items", 0, NULL, ARG_FLAG, &a.items, 0, 0,
         "with --json: list for every item whether it was right (1 or 0), to compare models item by item"},
        {"draft", 0, "LIST", ARG_STR | ARG_MORE, &a.draft, 0, 0,
         "only none: texts are scored, so there is nothing to draft (tern bench --text measures drafts)"},
        {"json", 0, NULL, ARG_FLAG, &a.json, 0, 0, "print one JSON object"},
        {0},
    };
    const command c = {"eval", "MODEL --task NAME --data PATH [OPTIONS]",
                       "Measure perplexity of a text, or accuracy on a task, with its standard error.", specs,
                       1};
    const char *words[2];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (a.compare && (!words[0] || a.o.task || a.ma.model))
        return cli_usage_error(&c, "--compare takes two files of results, and no model or task");
    if (a.compare) return cli_suite_compare(a.compare, words[0], a.json);
    if ((rc = cli_args_model_word(&c, &a.ma, words[0])) >= 0 || (rc = check(&c, &a)) >= 0) return rc;
    return run_eval(&c, &a);
}
