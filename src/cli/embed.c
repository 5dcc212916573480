/* tern embed - texts as vectors, or as scores of how well they answer a question. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"

#include "engine/adapters.h"
#include "engine/engine.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct embedding_run {
    tern_engine *e;
    tern_session *s;
    const char *question, *task, *prefix; /* prefix: what texts of the task begin with */
    bool mean;
    int32_t *ids;
    float *v;
    size_t n_ids;
} embedding_run;

/* One line: a vector in JSON, or a score. */
static tern_status print_text(embedding_run *x, const char *text, size_t n, tern_error *err) {
    const char *const two[2] = {x->question, text};
    const size_t n_bytes[2] = {x->question ? strlen(x->question) : 0, n};
    size_t n_embd = (size_t)x->e->model->h.n_embd, cap = (size_t)tern_session_capacity(x->s);
    if (x->question) {
        TN_TRY(tn_tokenize_pair(x->e->model->tokenizer, two, n_bytes, x->ids, cap, &x->n_ids, err));
        TN_TRY(tern_session_rank(x->s, x->ids, x->n_ids, x->v, err));
        printf("%.6g\n", (double)x->v[0]);
        return TERN_OK;
    }
    const size_t n_prefix = strlen(x->prefix);
    char *whole = malloc(n_prefix + n + 1);
    TN_FAIL_IF(!whole, err, TERN_E_MEMORY, "no memory for an embedding");
    memcpy(whole, x->prefix, n_prefix);
    memcpy(whole + n_prefix, text, n);
    const tern_status st = tern_tokenize(x->e, whole, n_prefix + n, true, false, x->ids, cap, &x->n_ids, err);
    free(whole);
    TN_TRY(st);
    TN_TRY(tern_session_embed(x->s, x->ids, x->n_ids, x->mean, x->v, n_embd, err));
    for (size_t i = 0; i < n_embd; i++) printf("%s%.6g", i ? ", " : "[", (double)x->v[i]);
    puts("]");
    return TERN_OK;
}

/* Every line of a text that is not empty. */
static tern_status print_lines(embedding_run *x, const char *text, tern_error *err) {
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, "\n");
        if (n) TN_TRY(print_text(x, at, n, err));
        at += n + (at[n] == '\n');
    }
    return TERN_OK;
}

enum { MOST_TEXTS = 256 }; /* on the command line */

static tern_status choose_task(embedding_run *x, tern_error *err) {
    tn_lora_mix mix;
    x->prefix = "";
    if (!x->task) return TERN_OK;
    TN_TRY(tn_task_parse(x->e, x->task, &mix, &x->prefix, err));
    tn_session_mix(x->s, &mix);
    return TERN_OK;
}

/* Prints the vectors of the words, or of the lines of a text where there are none. */
static tern_status print_all(embedding_run *x, const char *const *words, const char *text, tern_error *err) {
    const size_t n_ids = (size_t)tern_session_capacity(x->s);
    x->ids = malloc(n_ids * sizeof *x->ids);
    x->v = malloc((size_t)x->e->model->h.n_embd * sizeof *x->v);
    TN_FAIL_IF(!x->ids || !x->v, err, TERN_E_MEMORY, "no memory for an embedding");
    if (text) return print_lines(x, text, err);
    for (; *words; words++) TN_TRY(print_text(x, *words, strlen(*words), err));
    return TERN_OK;
}

int cmd_embed(int argc, char **argv) {
    model_args ma;
    embedding_run x = {0};
    const char *file = NULL, *all_words[MOST_TEXTS + 2], **words = all_words;
    cli_model_args_defaults(&ma, TN_IN_EMBED);
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        {"file", 'f', "FILE", ARG_STR, &file, 0, 0, "file with one text per line (default: standard input)"},
        {"mean", 0, NULL, ARG_FLAG, &x.mean, 0, 0,
         "pool by the mean of all tokens, whatever the model file says"},
        {"question", 0, "TEXT", ARG_STR, &x.question, 0, 0,
         "score how well each text answers TEXT; the model must be a reranker"},
        {"task", 0, "NAME", ARG_STR, &x.task, 0, 0,
         "embed for a task that the model has an adapter for, with the words that it puts in front "
         "(jina-embeddings-v3: retrieval.query, retrieval.passage, separation, classification, "
         "text-matching; "
         "default: no adapter)"},
        {0},
    };
    const command c = {"embed", "MODEL [TEXT...]  or  -m MODEL [TEXT...]",
                       "Print the vector of each text (unit length, one JSON array per line), or its score.",
                       specs, MOST_TEXTS + 1};
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (!ma.model && *words) rc = cli_args_model_word(&c, &ma, *words++);
    if (rc >= 0) return rc;
    if (!ma.model) return cli_usage_error(&c, "MODEL is required");
    if (file && *words) return cli_usage_error(&c, "a text and --file exclude each other");
    if (x.task && x.question) return cli_usage_error(&c, "--task and --question exclude each other");
    rc = cli_open_engine(&c, &ma, &x.e);
    if (rc >= 0) return rc;
    cli_use_context(&ma, x.e);
    tern_session_options so;
    tern_error err;
    tern_session_options_defaults(&so);
    so.n_ctx = ma.o.session.n_ctx;
    char *text = *words ? NULL : cli_read_text_file(file ? file : "-", &(size_t){0});
    if (!*words && !text) rc = EXIT_FAILED; /* which was said */
    else if (tern_session_open(x.e, &so, &x.s, &err) != TERN_OK || choose_task(&x, &err) != TERN_OK ||
             print_all(&x, words, text, &err) != TERN_OK)
        rc = cli_failed(&err);
    else rc = EXIT_OK;
    tern_session_close(&x.s);
    tern_engine_close(&x.e);
    free(x.ids);
    free(x.v);
    free(text);
    return rc;
}
