/* measure/ifeval.c - IFEval: prompts with instructions that a program can check.
 *
 * A prompt is right where the answer follows all of its instructions. One with an instruction that is not checked
 * (ifeval_check.c) has no score; its other instructions count by themselves. */
#include "base/status.h"
#include "measure/suite_impl.h"

#include <stdlib.h>
#include <string.h>

static tern_status check_line(const json_t *v, const char *name, tern_error *err) {
    const json_t *ids = json_object_get(v, "instruction_id_list"), *kwargs = json_object_get(v, "kwargs"),
                 *id;
    long long line = (long long)json_integer_value(json_object_get(v, "line"));
    size_t i;
    TN_FAIL_IF(!json_is_integer(json_object_get(v, "key")), err, TERN_E_FORMAT,
               "%s line %lld: 'key' is no number", name, line);
    TN_FAIL_IF(!json_string_length(json_object_get(v, "prompt")), err, TERN_E_FORMAT,
               "%s line %lld: 'prompt' is no text", name, line);
    TN_FAIL_IF(!json_array_size(ids) || json_array_size(ids) != json_array_size(kwargs), err, TERN_E_FORMAT,
               "%s line %lld: 'instruction_id_list' and 'kwargs' are not two lists of one length", name,
               line);
    json_array_foreach(ids, i, id) {
        const char *what = json_string_value(id);
        TN_FAIL_IF(!what || !json_is_object(json_array_get(kwargs, i)), err, TERN_E_FORMAT,
                   "%s line %lld: instruction %zu has no name, or kwargs that are no object", name, line,
                   i + 1);
        const char *wrong = tn_ifeval_wrong(what, json_array_get(kwargs, i));
        TN_FAIL_IF(wrong, err, TERN_E_FORMAT, "%s line %lld: instruction %.60s %s", name, line, what, wrong);
    }
    return TERN_OK;
}

static json_t *item_of(const json_t *v) {
    char id[32];
    int n = snprintf(id, sizeof id, "%lld", (long long)json_integer_value(json_object_get(v, "key")));
    json_t *one = json_object();
    tn_json_set(&one, "id", tn_json_string(id, (size_t)n));
    tn_json_set(&one, "groups", json_array());
    tn_json_set(&one, "prompt", json_incref(json_object_get(v, "prompt")));
    tn_json_set(&one, "instructions", json_incref(json_object_get(v, "instruction_id_list")));
    tn_json_set(&one, "kwargs", json_incref(json_object_get(v, "kwargs")));
    return one;
}

tern_status tn_ifeval_items(const json_t *lines, const char *name, json_t **items, tern_error *err) {
    json_t *list = json_array(), *v;
    tern_status st = TERN_OK;
    size_t i;
    *items = NULL;
    json_array_foreach(lines, i, v) {
        st = check_line(v, name, err);
        if (st == TERN_OK) tn_json_append(&list, item_of(v));
        if (st == TERN_OK && !list) st = tn_fail(err, TERN_E_MEMORY, "no memory for %s", name);
        if (st != TERN_OK) break;
    }
    if (st == TERN_OK) *items = list;
    else json_decref(list);
    return st;
}

static tern_status open_ifeval(tn_suite *u, tern_error *err) {
    char *path = NULL, *text = NULL;
    size_t n;
    json_t *lines = NULL;
    if (tn_suite_is_folder(u->o->data)) path = tn_suite_path(u->o->data, "input_data.jsonl");
    else path = strdup(u->o->data);
    tern_status st =
        path ? tn_suite_slurp(u, path, &text, &n, err) : tn_fail(err, TERN_E_MEMORY, "no memory for a path");
    if (st == TERN_OK) st = tn_suite_lines(text, n, path, &lines, err);
    if (st == TERN_OK) st = tn_ifeval_items(lines, path, &u->items, err);
    json_decref(lines);
    free(text);
    free(path);
    return st;
}

/* Sets the score, or why there is none. */
static void judge(json_t **record, json_t *marks) {
    const json_t *m;
    const char *missing = NULL;
    bool all = true;
    size_t i;
    json_array_foreach(marks, i, m) {
        const json_t *strict = json_object_get(m, "strict");
        if (json_is_null(strict) || json_is_null(json_object_get(m, "loose")))
            missing = json_string_value(json_object_get(m, "id"));
        all = all && json_is_true(strict);
    }
    if (missing) tn_suite_skip(record, "%s is not checked", missing);
    else tn_json_set(record, "score", json_integer(all));
    tn_json_set(record, "instructions", json_incref(marks));
}

static tern_status ask_ifeval(tn_suite *u, const json_t *item, json_t **record, tern_error *err) {
    int32_t most = tn_suite_max_tokens(u, &tn_suite_ifeval);
    tn_suite_prompt p = {0};
    tn_suite_answer a = {0};
    json_t *messages = json_array(), *message = tn_json_pack("{s:s}", "role", "user"), *marks = NULL;
    tn_json_set(&message, "content", json_incref(json_object_get(item, "prompt")));
    tn_json_append(&messages, message);
    tern_status st = messages ? tn_suite_chat(u, messages, NULL, NULL, &p, err)
                              : tn_fail(err, TERN_E_MEMORY, "no memory for a prompt");
    if (st == TERN_OK && p.n + (size_t)most > (size_t)tern_session_capacity(u->s)) {
        tn_suite_skip_long(record, u, p.n, most);
    } else if (st == TERN_OK) {
        st = tn_suite_generate(u, &p, NULL, most, &a, err);
        if (st == TERN_OK) st = tn_ifeval_check(item, a.text.p, a.text.n, &marks, err);
        if (st == TERN_OK) judge(record, marks);
        if (st == TERN_OK) tn_suite_tell(record, &a);
    }
    json_decref(marks);
    json_decref(messages);
    tn_suite_answer_free(&a);
    free(p.ids);
    return st;
}

const tn_suite_task tn_suite_ifeval = {"ifeval", 1280, true, open_ifeval, ask_ifeval, true, false};
