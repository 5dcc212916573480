/* measure/bfcl.c - the Berkeley Function Calling Leaderboard, version 4: one call that is right, or none.
 *
 * A folder holds BFCL_v4_CATEGORY.json, and possible_answer/ the same of the answers. Categories whose calls are in Python, one
 * of them right or none at all, are read; others in the folder are left out by name. The model gets the functions as tools
 * through its own chat template, as a client of the server would give them. */
#include "base/status.h"
#include "measure/suite_impl.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    bool none; /* no call is right */
} categories[] = {{"simple_python", false}, {"multiple", false},      {"irrelevance", true},
                  {"live_simple", false},   {"live_multiple", false}, {"live_irrelevance", true}};
enum { N_CATEGORIES = sizeof categories / sizeof *categories };

/* ---- reading ------------------------------------------------------------------------------------- */

static tern_status bad(const json_t *v, const char *name, const char *what, tern_error *err) {
    return tn_fail(err, TERN_E_FORMAT, "%s line %lld: %s", name,
                   (long long)json_integer_value(json_object_get(v, "line")), what);
}

static tern_status check_messages(const json_t *q, const char *name, tern_error *err) {
    const json_t *turns = json_object_get(q, "question"), *turn = json_array_get(turns, 0), *m;
    size_t i;
    if (json_array_size(turns) != 1 || !json_array_size(turn))
        return bad(q, name, "'question' is not a list of one turn", err);
    json_array_foreach(
        turn, i, m) if (!json_is_string(json_object_get(m, "role")) ||
                        !json_is_string(json_object_get(
                            m, "content"))) return bad(q, name,
                                                       "a message of 'question' has no role or no content",
                                                       err);
    return TERN_OK;
}

static tern_status check_functions(const json_t *q, const char *name, tern_error *err) {
    const json_t *functions = json_object_get(q, "function"), *f, *v;
    size_t i, k;
    if (!json_is_array(functions)) return bad(q, name, "'function' is not a list of functions", err);
    json_array_foreach(functions, i, f) {
        const json_t *parameters = json_object_get(f, "parameters"),
                     *about = json_object_get(parameters, "properties"),
                     *required = json_object_get(parameters, "required");
        const char *key;
        if (!json_string_length(json_object_get(f, "name")) || !json_is_object(about))
            return bad(q, name, "a function has no name, or no parameters with properties", err);
        if (required && !json_is_array(required))
            return bad(q, name, "'required' of a function is not a list", err);
        json_array_foreach(required, k, v) if (!json_is_string(v)) return bad(
            q, name, "'required' of a function is not a list of names", err);
        json_object_foreach((json_t *)about, key, v) if (!json_is_object(v)) return bad(
            q, name, "a parameter of a function is not described by an object", err);
    }
    return TERN_OK;
}

/* The one call of a line of answers. */
static tern_status check_answer(const json_t *q, const json_t *a, const char *name, tern_error *err) {
    const json_t *list = json_object_get(a, "ground_truth"), *call = json_array_get(list, 0), *f, *v;
    const char *called = json_object_iter_key(json_object_iter((json_t *)call)), *key;
    bool known = false;
    size_t i;
    if (json_array_size(list) != 1 || json_object_size(call) != 1)
        return bad(a, name, "'ground_truth' is not a list of one call", err);
    json_array_foreach(json_object_get(q, "function"), i, f) known =
        known || !strcmp(json_string_value(json_object_get(f, "name")), called);
    if (!known) return bad(a, name, "'ground_truth' calls a function that the question does not have", err);
    if (!json_is_object(json_object_get(call, called)))
        return bad(a, name, "a call's parameters are no object", err);
    json_object_foreach(json_object_get(call, called), key, v) if (!json_is_array(v)) return bad(
        a, name, "a parameter's values are no list", err);
    return TERN_OK;
}

tern_status tn_bfcl_items(const json_t *questions, const json_t *answers, const char *category,
                          const char *name, json_t **items, tern_error *err) {
    json_t *by_id = json_object(), *list = json_array(), *v;
    tern_status st = TERN_OK;
    size_t i;
    *items = NULL;
    json_array_foreach(answers, i, v) {
        const char *id = json_string_value(json_object_get(v, "id"));
        if (st == TERN_OK && !id) st = bad(v, name, "an answer has no id", err);
        if (st == TERN_OK) tn_json_set(&by_id, id, json_incref(v));
    }
    json_array_foreach(questions, i, v) {
        const char *id = json_string_value(json_object_get(v, "id"));
        const json_t *a = id ? json_object_get(by_id, id) : NULL;
        if (st == TERN_OK && (!id || !*id)) st = bad(v, name, "the question has no id", err);
        if (st == TERN_OK) st = check_messages(v, name, err);
        if (st == TERN_OK) st = check_functions(v, name, err);
        if (st == TERN_OK && answers && by_id && !a)
            st = bad(v, name, "the question has no answer in possible_answer", err);
        if (st == TERN_OK && a) st = check_answer(v, a, name, err);
        if (st != TERN_OK || !list || !by_id) break;
        json_t *one = json_object(), *groups = json_array();
        tn_json_append(&groups, tn_json_string(category, strlen(category)));
        tn_json_set(&one, "id", json_incref(json_object_get(v, "id")));
        tn_json_set(&one, "groups", groups);
        tn_json_set(&one, "messages", json_incref(json_array_get(json_object_get(v, "question"), 0)));
        tn_json_set(&one, "function", json_incref(json_object_get(v, "function")));
        if (a)
            tn_json_set(&one, "answer", json_incref(json_array_get(json_object_get(a, "ground_truth"), 0)));
        tn_json_append(&list, one);
    }
    if (st == TERN_OK && (!list || !by_id)) st = tn_fail(err, TERN_E_MEMORY, "no memory for %s", name);
    json_decref(by_id);
    if (st == TERN_OK) *items = list;
    else json_decref(list);
    return st;
}

static tern_status read_lines(tn_suite *u, const char *path, json_t **lines, tern_error *err) {
    char *text;
    size_t n;
    *lines = NULL;
    TN_TRY(tn_suite_slurp(u, path, &text, &n, err));
    tern_status st = tn_suite_lines(text, n, path, lines, err);
    free(text);
    return st;
}

static tern_status read_category(tn_suite *u, size_t c, tern_error *err) {
    const char *category = categories[c].name;
    char *path = NULL, *truth = NULL;
    json_t *questions = NULL, *answers = NULL, *items = NULL, *v;
    size_t i;
    bool named = asprintf(&path, "%s/BFCL_v4_%s.json", u->o->data, category) >= 0;
    if (!named) path = NULL;
    if (named && asprintf(&truth, "%s/possible_answer/BFCL_v4_%s.json", u->o->data, category) < 0)
        truth = NULL;
    tn_sum_add(&u->sum, category, strlen(category) + 1);
    tern_status st = path && truth ? read_lines(u, path, &questions, err)
                                   : tn_fail(err, TERN_E_MEMORY, "no memory for a path");
    if (st == TERN_OK && !categories[c].none) st = read_lines(u, truth, &answers, err);
    if (st == TERN_OK) st = tn_bfcl_items(questions, answers, category, path, &items, err);
    json_array_foreach(items, i, v) tn_json_append(&u->items, json_incref(v));
    json_decref(questions);
    json_decref(answers);
    json_decref(items);
    free(path);
    free(truth);
    return st;
}

static tern_status open_bfcl(tn_suite *u, tern_error *err) {
    json_t *names = NULL, *name;
    size_t i, c, n = 0;
    tern_status st = tn_suite_names(u->o->data, ".json", &names, err);
    u->items = json_array();
    json_array_foreach(names, i, name) {
        const char *p = json_string_value(name);
        if (st != TERN_OK) break;
        if (strncmp(p, "BFCL_v4_", 8) != 0) continue;
        for (c = 0; c < N_CATEGORIES && strcmp(categories[c].name, p + 8) != 0; c++) continue;
        if (c == N_CATEGORIES)
            tn_suite_notice(u, "%s.json is left out: it is no category of one call in Python, or of none", p);
        else st = read_category(u, c, err);
        n += c < N_CATEGORIES;
    }
    json_decref(names);
    if (st == TERN_OK && !n)
        st = tn_fail(err, TERN_E_INVALID,
                     "%s has none of BFCL_v4_simple_python.json, BFCL_v4_multiple.json and "
                     "BFCL_v4_irrelevance.json",
                     u->o->data);
    return st;
}

/* ---- asking -------------------------------------------------------------------------------------- */

/* BFCL's names of types are Python's; a tool's are those of JSON Schema. */
static const char *schema_type(const char *name) {
    static const char *const names[][2] = {
        {"dict", "object"},    {"float", "number"}, {"tuple", "array"},   {"list", "array"},
        {"any", "string"},     {"bool", "boolean"}, {"int", "integer"},   {"object", "object"},
        {"number", "number"},  {"array", "array"},  {"string", "string"}, {"boolean", "boolean"},
        {"integer", "integer"}};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], name)) return names[i][1];
    return "string";
}

/* A copy with JSON Schema's types, in what it nests too. */
static json_t *schema_of(const json_t *v) {
    const char *type = json_string_value(json_object_get(v, "type")), *key;
    const json_t *properties = json_object_get(v, "properties"), *items = json_object_get(v, "items"), *one;
    json_t *out = tn_json_copy(v), *inner = json_object();
    tn_json_set(&out, "type", tn_json_string(schema_type(type), strlen(schema_type(type))));
    if (type && !strcmp(type, "float")) tn_json_set(&out, "format", tn_json_string("float", 5));
    json_object_foreach((json_t *)properties, key, one)
        tn_json_set(&inner, key, json_is_object(one) ? schema_of(one) : tn_json_copy(one));
    if (json_is_object(properties)) tn_json_set(&out, "properties", json_incref(inner));
    if (json_is_object(items)) tn_json_set(&out, "items", schema_of(items));
    json_decref(inner);
    return out;
}

json_t *tn_bfcl_tools(const json_t *item) {
    json_t *tools = json_array(), *f;
    size_t i;
    json_array_foreach(json_object_get(item, "function"), i, f) {
        const json_t *name = json_object_get(f, "name");
        tn_bytes t = {0};
        for (const char *p = json_string_value(name); *p; p++) tn_bytes_add(&t, *p == '.' ? "_" : p, 1);
        json_t *own = tn_json_copy_flat(f), *parameters = schema_of(json_object_get(f, "parameters"));
        tn_json_set(&own, "name", t.failed ? NULL : tn_json_string(t.p, t.n));
        tn_json_set(&parameters, "type", tn_json_string("object", 6));
        tn_json_set(&own, "parameters", parameters);
        json_t *tool = tn_json_pack("{s:s}", "type", "function");
        tn_json_set(&tool, "function", own);
        tn_json_append(&tools, tool);
        free(t.p);
    }
    return tools;
}

static tern_status judge(const json_t *item, const tn_suite_answer *a, json_t **record, tern_error *err) {
    char why[200];
    bool right;
    TN_FAIL_IF(!tn_bfcl_right(item, a->calls, why, sizeof why, &right), err, TERN_E_MEMORY,
               "no memory for an answer");
    tn_json_set(record, "score", json_integer(right));
    if (!right) tn_json_set(record, "why", tn_json_string(why, strlen(why)));
    tn_json_set(record, "calls", json_incref(a->calls));
    tn_suite_tell(record, a);
    return TERN_OK;
}

static tern_status ask_bfcl(tn_suite *u, const json_t *item, json_t **record, tern_error *err) {
    int32_t most = tn_suite_max_tokens(u, &tn_suite_bfcl);
    tn_suite_prompt p = {0};
    tn_suite_answer a = {0};
    json_t *tools = tn_bfcl_tools(item);
    const json_t *given = json_array_size(tools) ? tools : NULL; /* some irrelevant questions have none */
    tern_status st = tools ? tn_suite_chat(u, json_object_get(item, "messages"), given, NULL, &p, err)
                           : tn_fail(err, TERN_E_MEMORY, "no memory for the functions");
    if (st ==
        TERN_E_INVALID) { /* such as two messages of a user in a row, which some templates do not have */
        tn_suite_skip(record, "%s", err->message);
        st = TERN_OK;
    } else if (st == TERN_OK && p.n + (size_t)most > (size_t)tern_session_capacity(u->s)) {
        tn_suite_skip_long(record, u, p.n, most);
    } else if (st == TERN_OK) {
        st = tn_suite_generate(u, &p, tools, most, &a, err);
        if (st == TERN_OK) st = judge(item, &a, record, err);
    }
    tn_suite_answer_free(&a);
    free(p.ids);
    json_decref(tools);
    return st;
}

const tn_suite_task tn_suite_bfcl = {"bfcl", 1024, true, open_bfcl, ask_bfcl, true, true};
