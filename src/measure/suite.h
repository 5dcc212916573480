/* measure/suite.h - published benchmarks: questions one by one, each answered, judged and written to a file of results.
 *
 *   mmlu    a folder with test/SUBJECT_test.csv and dev/SUBJECT_dev.csv: the likeliest letter after five examples
 *   ruler   long texts that are made here by a seed, at given lengths: how much of what they hide is found
 *   bfcl    a folder with BFCL_v4_*.json and possible_answer/: calls of tools, compared as BFCL's AST checker does
 *   ifeval  input_data.jsonl: instructions whose following a program can check
 *
 * A file of results is JSON Lines. Its first line is an object that says what was measured: "tern_eval" (the form's version),
 * "tern", "task", "model", "form" (how it computes), "data" and "asked" (what else the answers depend on). Every further line is
 * one item: "id", "groups", "score" from 0 to 1 or null where the item did not fit the context, and what the task says of it.
 * A run that finds such a file of the same first line goes on after it; a last line without its end is dropped. */
#ifndef TN_MEASURE_SUITE_H
#define TN_MEASURE_SUITE_H

#include "base/json.h"
#include "engine/engine.h"

enum { TN_SUITE_LENGTHS = 32 };

typedef struct tn_suite_options {
    const char *task;
    const char *data;    /* a folder or a file; NULL: none, which ruler alone accepts */
    const char *results; /* the file; NULL: results are not kept */
    const char *only;    /* groups, with commas between them; NULL: all */
    int32_t n_ctx;       /* 0: as ruler's lengths need, else the smaller of 4096 and the model's */
    int64_t limit;       /* items at most, drawn by the seed; 0: all */
    uint64_t seed;
    int32_t n_shots;                   /* mmlu: examples before the question */
    int32_t lengths[TN_SUITE_LENGTHS]; /* ruler: tokens of the text with the room for its answer */
    size_t n_lengths;
    int32_t n_samples;   /* ruler: texts of each task and length */
    int32_t max_tokens;  /* of an answer; 0: the task's own number */
    int thinking;        /* 1: on, -1: off, 0: as the chat template has it */
    const char *of_file; /* how the model's file is asked, whose package e is; NULL: it is none */
    void (*progress)(void *user, int64_t done, int64_t total, double value);
    void (*notice)(void *user, const char *line); /* what was left out, and how much was there already */
    void *user;
} tn_suite_options;

bool tn_suite_is(const char *task);

/* Whether the model can be asked: data, session and chat template are tried, and nothing is answered. */
tern_status tn_suite_check(tern_engine *e, const tn_suite_options *o, tern_error *err);
/* Answers what is not answered yet. *results: {"head": the first line, "items": [records]} of what was asked for. */
tern_status tn_suite_run(tern_engine *e, const tn_suite_options *o, json_t **results, tern_error *err);
/* The same of a file. */
tern_status tn_suite_read(const char *path, json_t **results, tern_error *err);
/* ... and of its text; name is for messages. *n_whole: bytes up to the end of the last whole line. */
tern_status tn_suite_parse(const char *text, size_t n, const char *name, size_t *n_whole, json_t **results,
                           tern_error *err);

/* {"items", "skipped", "accuracy", "stderr", "interval": [from, to], "groups": [{"group", "items", "accuracy", "interval"}]}: means
 * of scores with Wilson's interval of 95 %. ifeval also has "loose", "instructions", "instructions_loose" and "not_checked". */
tern_status tn_suite_summary(const json_t *results, json_t **out, tern_error *err);
/* {"items", "first", "second", "difference", "stderr", "interval", "p", "first_better", "second_better", "mcnemar_p",
 * "groups", "unpaired"} over the items that both have. TERN_E_INVALID: they are of different tasks, data or questions. */
tern_status tn_suite_compare(const json_t *a, const json_t *b, json_t **out, tern_error *err);

/* Wilson's interval of 95 % of a share of n. */
void tn_suite_wilson(double share, double n, double *from, double *to);
/* The two-sided exact probability of McNemar's test: of n discordant pairs so many or fewer, or as many of the others. */
double tn_suite_mcnemar(int64_t a, int64_t b);

#endif
