/* measure/suite_impl.h - what the tasks of a suite share: reading data, asking the model, judging. */
#ifndef TN_MEASURE_SUITE_IMPL_H
#define TN_MEASURE_SUITE_IMPL_H

#include "base/bytes.h"
#include "base/sum.h"
#include "measure/suite.h"
#include "session/session.h"
#include "text/toolcall.h"

typedef struct tn_suite {
    const tn_suite_options *o;
    tern_engine *e;
    tern_session *s;
    tn_sum sum;     /* of all data, as it is read */
    json_t *items;  /* [{"id", "groups", ...}] with what the task reads of them; records have the first two */
    json_t *names;  /* {id: true}: of all items, before some are chosen */
    json_t *shared; /* what the task's items have in common, or NULL */
    json_t *asked;  /* of the first line of results */
    int32_t n_ctx;  /* that the items need; 0: none of their own */
    bool
        fresh; /* every prompt is read from its first token: what is known of the one before may not be used */
} tn_suite;

typedef struct tn_suite_task {
    const char *name;
    int32_t max_tokens; /* of an answer; 0: it writes none */
    bool needs_data;
    /* Reads all data and checks it: fills items, shared and asked. The session is not open yet. */
    tern_status (*open)(tn_suite *u, tern_error *err);
    /* Answers and judges an item: sets "score" of *record, which has "id" and "groups", and adds what it has to say. An item
     * without a score: tn_suite_skip. */
    tern_status (*item)(tn_suite *u, const json_t *item, json_t **record, tern_error *err);
    bool chats, calls; /* it needs a chat template; one with tools */
} tn_suite_task;

extern const tn_suite_task tn_suite_mmlu, tn_suite_ruler, tn_suite_bfcl, tn_suite_ifeval;

/* A number that depends on both, and on nothing else. */
uint64_t tn_suite_number(uint64_t seed, const char *id);

/* Appends a text in small letters. */
void tn_suite_lower(tn_bytes *t, const char *p, size_t n);

/* ---- data ---------------------------------------------------------------------------------------- */

/* Reads a file whole, and its bytes into the data's sum. The caller frees *text. */
tern_status tn_suite_slurp(tn_suite *u, const char *path, char **text, size_t *n, tern_error *err);
/* The objects of a file of JSON Lines. Every one has "line": its number. */
tern_status tn_suite_lines(const char *text, size_t n, const char *name, json_t **out, tern_error *err);
/* The names in a folder that end so, sorted, without the ending. */
tern_status tn_suite_names(const char *folder, const char *ends, json_t **out, tern_error *err);
/* FOLDER/NAME, which the caller frees; NULL: no memory. */
char *tn_suite_path(const char *folder, const char *name);
bool tn_suite_is_folder(const char *path);
void tn_suite_notice(const tn_suite *u, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- the model ----------------------------------------------------------------------------------- */

typedef struct tn_suite_answer {
    tn_bytes text; /* without thoughts and calls */
    json_t *calls; /* [{"name", "arguments": text of an object}] */
    int32_t n_tokens;
    bool cut; /* the limit of tokens or the context ended it */
} tn_suite_answer;

/* A prompt: tokens, and how its answer is to be read. */
typedef struct tn_suite_prompt {
    int32_t *ids; /* [cap] */
    size_t n, cap;
    tn_answer_form form;
    bool thinking; /* it ends inside a thought */
} tn_suite_prompt;

/* The tokens of a text; none of it becomes a control token. */
tern_status tn_suite_tokens(const tn_suite *u, const char *text, size_t n_bytes, bool add_special,
                            tn_suite_prompt *p, tern_error *err);
/* Messages through the model's own chat template, as the server does it; tools may be NULL. begins: what the answer begins
 * with, after the end of a thought that the template opened; NULL: nothing. */
tern_status tn_suite_chat(const tn_suite *u, const json_t *messages, const json_t *tools, const char *begins,
                          tn_suite_prompt *p, tern_error *err);
/* Reads the prompt and writes an answer, always the likeliest token. */
tern_status tn_suite_generate(tn_suite *u, const tn_suite_prompt *p, const json_t *tools, int32_t max_tokens,
                              tn_suite_answer *a, tern_error *err);
/* Makes the prompt the session's text; its logits are those after the last token. */
tern_status tn_suite_prefill(tn_suite *u, const int32_t *ids, size_t n, tern_error *err);
void tn_suite_answer_free(tn_suite_answer *a);
int32_t tn_suite_max_tokens(const tn_suite *u, const tn_suite_task *t);
/* The item has no score; why, in words. */
void tn_suite_skip(json_t **record, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* ... because its prompt has so many tokens, with room for so many of an answer. */
void tn_suite_skip_long(json_t **record, const tn_suite *u, size_t n_tokens, int32_t n_answer);
/* Puts what was answered into a record. */
void tn_suite_tell(json_t **record, const tn_suite_answer *a);

/* ---- results ------------------------------------------------------------------------------------- */

typedef struct tn_suite_file tn_suite_file;

/* Opens or makes the file, which no other process may have open, for results under this first line. *known: those that are in
 * it. TERN_E_INVALID: it holds results of something else, and is left as it is; of_file is named where they are of the model's
 * file. */
tern_status tn_suite_file_open(const char *path, const json_t *head, const char *of_file, tn_suite_file **out,
                               json_t **known, tern_error *err);
tern_status tn_suite_file_put(tn_suite_file *f, const json_t *record, tern_error *err);
/* What was written is on the disk then. */
tern_status tn_suite_file_close(tn_suite_file **f, tern_error *err);

/* ---- tasks, without a model ---------------------------------------------------------------------- */

/* Rows of a CSV file: [[text]]. */
tern_status tn_suite_csv(const char *text, size_t n, const char *name, json_t **rows, tern_error *err);
/* A subject's items of rows of mmlu. */
tern_status tn_mmlu_items(const json_t *rows, const char *subject, const char *name, json_t **items,
                          tern_error *err);

/* Items of one category of bfcl: questions with their possible answers (NULL: no call is right). */
tern_status tn_bfcl_items(const json_t *questions, const json_t *answers, const char *category,
                          const char *name, json_t **items, tern_error *err);
/* Whether calls, as tn_suite_answer has them, are right for the item; why, of at most cap bytes, says why not. false: no
 * memory. */
bool tn_bfcl_right(const json_t *item, const json_t *calls, char *why, size_t cap, bool *right);
/* The functions of an item as tools of OpenAI's API. */
json_t *tn_bfcl_tools(const json_t *item);

/* Items of lines of input_data.jsonl. */
tern_status tn_ifeval_items(const json_t *lines, const char *name, json_t **items, tern_error *err);
/* What is wrong with an instruction and its kwargs; NULL: nothing. */
const char *tn_ifeval_wrong(const char *id, const json_t *kwargs);
/* [{"id", "strict", "loose"}] of an answer; the two are null where an instruction is not checked. */
tern_status tn_ifeval_check(const json_t *item, const char *answer, size_t n, json_t **out, tern_error *err);

/* A text of ruler, as long as fits `most` tokens, which count tells. shared: {"text": [sentences], "squad" and "hotpotqa":
 * {"docs": [texts], "qas": [{"question", "answers", "gold": [numbers of docs]}]}}, each where it is at hand. TERN_E_LIMIT: not even the shortest text fits. */
typedef struct tn_ruler_text {
    tn_bytes prompt, begins; /* begins: how the answer begins */
    json_t *answers;         /* texts to find */
    bool any;                /* one of them is enough */
} tn_ruler_text;
typedef tern_status (*tn_ruler_count)(void *user, const tn_ruler_text *t, size_t *n_tokens, tern_error *err);
tern_status tn_ruler_make(const char *task, uint64_t seed, size_t most, const json_t *shared,
                          tn_ruler_count count, void *user, tn_ruler_text *out, tern_error *err);
void tn_ruler_free(tn_ruler_text *t);
/* The share of the texts that the answer has, whatever the case of letters; any: 1 if it has one. false: no memory. */
bool tn_ruler_score(const json_t *answers, bool any, const char *answer, double *score);
/* Name number i of ruler's tasks; NULL after the last. *tokens: room for the answer; *needs: the key of shared without which
 * there is no such task, or NULL. */
const char *tn_ruler_task(size_t i, int32_t *tokens, const char **needs);
/* Questions of SQuAD and HotpotQA in the form of shared. */
tern_status tn_ruler_squad(const json_t *v, const char *name, json_t **out, tern_error *err);
tern_status tn_ruler_hotpotqa(const json_t *v, const char *name, json_t **out, tern_error *err);

#endif
