#include "server/answer_tools.h"

#include "base/wait.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_MS = 100 };
static const int64_t PATIENCE_NS = 1800000000000; /* for a decision: the answer keeps its model in memory */

/* ---- opening ---------------------------------------------------------------------------------------------- */

tern_status tn_tool_use_open(tn_tool_use *u, tn_mcp_servers *servers, const json_t *allowed,
                             pthread_mutex_t *mu, pthread_cond_t *changed, const bool *stop,
                             tern_error *err) {
    *u = (tn_tool_use){.servers = servers, .mu = mu, .changed = changed, .stop = stop};
    u->list = tn_mcp_servers_list(servers, false, NULL, NULL);
    u->tools = tn_mcp_servers_tools(u->list);
    u->steps = json_array();
    u->allowed = json_is_array(allowed) ? tn_json_copy(allowed) : json_array();
    if (u->list && u->tools && u->steps && u->allowed) return TERN_OK;
    tn_tool_use_close(u);
    return tn_fail(err, TERN_E_MEMORY, "no memory for tools");
}

void tn_tool_use_close(tn_tool_use *u) {
    json_decref(u->list);
    json_decref(u->tools);
    json_decref(u->steps);
    json_decref(u->allowed);
    *u = (tn_tool_use){0};
}

/* ---- steps ------------------------------------------------------------------------------------------------ */

/* Is it allowed by its name? With mu. */
static bool is_allowed(tn_tool_use *u, const json_t *entry) {
    char name[TN_MCP_KEPT_NAME];
    bool may = tn_mcp_servers_allows(u->servers, entry);
    tn_mcp_servers_kept_name(u->servers, entry, name);
    for (size_t i = 0; !may && i < json_array_size(u->allowed); i++) {
        const char *a = json_string_value(json_array_get(u->allowed, i));
        may = a && !strcmp(a, name);
    }
    return may;
}

static json_t *call_of(tn_tool_use *u, const json_t *said) {
    const char *name = json_string_value(json_object_get(said, "name"));
    const json_t *entry = tn_mcp_servers_find(u->list, name);
    json_t *v = tn_json_pack("{s:O, s:O, s:O}", "id", json_object_get(said, "id"), "name",
                             json_object_get(said, "name"), "arguments", json_object_get(said, "arguments"));
    const char *state = entry && u->rounds < TN_MCP_ROUNDS ? "asked" : "failed";
    if (entry) tn_json_set(&v, "server", json_incref(json_object_get(entry, "server")));
    if (entry && v) tn_json_set(&v, "tool", json_incref(json_object_get(entry, "tool")));
    if (v) tn_json_set(&v, "state", tn_json_string(state, strlen(state)));
    const char *told = entry ? TN_MCP_ENOUGH : TN_MCP_UNKNOWN;
    if (v && *state == 'f') tn_json_set(&v, "result", tn_json_string(told, strlen(told)));
    return v;
}

static void turned(tn_tool_use *u) {
    u->version++;
    pthread_cond_broadcast(u->changed);
}

bool tn_tool_use_step(tn_tool_use *u, const tn_bytes *content, const tn_bytes *thinking,
                      const json_t *calls) {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(calls) && i < TN_MCP_CALLS; i++)
        tn_json_append(&list, call_of(u, json_array_get(calls, i)));
    json_t *step =
        tn_json_pack("{s:s%, s:o}", "content", content->p ? content->p : "", content->n, "calls", list);
    if (step && thinking->n) tn_json_set(&step, "thinking", tn_json_string(thinking->p, thinking->n));
    u->rounds++;
    tn_json_append(&u->steps, step);
    turned(u);
    return u->steps != NULL;
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

/* With mu. */
static bool set(json_t *call, const char *key, const char *text) {
    json_t *v = json_incref(call);
    tn_json_set(&v, key, tn_json_string(text, strlen(text)));
    json_decref(v);
    return v != NULL;
}

static const char *state_of(const json_t *call) {
    const char *s = json_string_value(json_object_get(call, "state"));
    return s ? s : "";
}

static bool ended(tn_tool_use *u, json_t *call, const char *state, const char *result) {
    bool ok = set(call, "result", result) && set(call, "state", state);
    turned(u);
    return ok;
}

static bool stopped(void *user) {
    tn_tool_use *u = user;
    pthread_mutex_lock(u->mu);
    bool stop = *u->stop;
    pthread_mutex_unlock(u->mu);
    return stop;
}

/* Until somebody has decided. With mu. */
static void wait_for_decision(tn_tool_use *u, const json_t *call) {
    const int64_t until = tn_now_ns() + PATIENCE_NS;
    while (!*u->stop && !strcmp(state_of(call), "asked") && tn_now_ns() < until)
        tn_cond_wait_ns(u->changed, u->mu, LOOK_MS * (int64_t)1000000);
}

static tern_status make(tn_tool_use *u, json_t *call, const json_t *entry, tern_error *err) {
    char *text = NULL;
    bool failed = false;
    tern_status st =
        tn_mcp_servers_call(u->servers, entry, json_string_value(json_object_get(call, "arguments")), stopped,
                            u, &text, &failed, err);
    pthread_mutex_lock(u->mu);
    if (st == TERN_OK && !ended(u, call, failed ? "failed" : "done", text))
        st = tn_fail(err, TERN_E_MEMORY, "no memory for a result");
    pthread_mutex_unlock(u->mu);
    free(text);
    return st;
}

static tern_status run(tn_tool_use *u, json_t *call, tern_error *err) {
    bool ok = true;
    pthread_mutex_lock(u->mu);
    const json_t *entry = tn_mcp_servers_find(u->list, json_string_value(json_object_get(call, "name")));
    if (!strcmp(state_of(call), "asked") && is_allowed(u, entry))
        ok = set(call, "state", "running"), turned(u);
    if (ok) wait_for_decision(u, call);
    bool stop = *u->stop, runs = !strcmp(state_of(call), "running");
    if (!stop && !strcmp(state_of(call), "asked")) ok = ended(u, call, "refused", TN_MCP_REFUSED);
    pthread_mutex_unlock(u->mu);
    TN_FAIL_IF(!ok, err, TERN_E_MEMORY, "no memory for a call");
    TN_FAIL_IF(stop, err, TERN_E_CANCELLED, "stopped");
    return runs ? make(u, call, entry, err) : TERN_OK;
}

tern_status tn_tool_use_run(tn_tool_use *u, void (*keep)(void *user), void *user, tern_error *err) {
    pthread_mutex_lock(u->mu);
    json_t *step = json_array_get(u->steps, json_array_size(u->steps) - 1),
           *calls = json_incref(json_object_get(step, "calls")); /* which this thread alone makes longer */
    pthread_mutex_unlock(u->mu);
    tern_status st = TERN_OK;
    keep(user);
    for (size_t i = 0; st == TERN_OK && i < json_array_size(calls); i++) {
        st = run(u, json_array_get(calls, i), err);
        if (st == TERN_OK) keep(user);
    }
    json_decref(calls);
    return st;
}

bool tn_tool_use_decide(tn_tool_use *u, const char *id, tn_decision d, char name[TN_MCP_KEPT_NAME]) {
    const json_t *step = json_array_get(u->steps, json_array_size(u->steps) - 1),
                 *calls = json_object_get(step, "calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        if (strcmp(json_string_value(json_object_get(call, "id")), id) || strcmp(state_of(call), "asked"))
            continue;
        tn_mcp_servers_kept_name(u->servers, call, name);
        if (d == TN_CALL_ALWAYS) tn_json_append(&u->allowed, tn_json_string(name, strlen(name)));
        if (d == TN_CALL_NEVER) return ended(u, call, "refused", TN_MCP_REFUSED);
        bool ok = set(call, "state", "running");
        turned(u);
        return ok;
    }
    return false;
}

/* ---- messages --------------------------------------------------------------------------------------------- */

static bool usable(const json_t *call) {
    return json_is_string(json_object_get(call, "id")) && json_is_string(json_object_get(call, "name")) &&
           json_is_string(json_object_get(call, "arguments"));
}

static void put_step(const json_t *step, json_t **list) {
    const json_t *calls = json_object_get(step, "calls"), *thinking = json_object_get(step, "thinking");
    json_t *said = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *c = json_array_get(calls, i);
        if (usable(c))
            tn_json_append(&said,
                           tn_json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(c, "id"), "type",
                                        "function", "function", "name", json_object_get(c, "name"),
                                        "arguments", json_object_get(c, "arguments")));
    }
    if (said && !json_array_size(said)) {
        json_decref(said);
        return;
    }
    json_t *m = tn_json_pack("{s:s, s:O, s:o}", "role", "assistant", "content",
                             json_object_get(step, "content"), "tool_calls", said);
    if (m && json_is_string(thinking))
        tn_json_set(&m, "reasoning_content", json_incref((json_t *)(uintptr_t)thinking));
    tn_json_append(list, m);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *c = json_array_get(calls, i), *result = json_object_get(c, "result");
        if (!usable(c)) continue;
        json_t *text = json_is_string(result) ? json_incref((json_t *)(uintptr_t)result)
                                              : tn_json_string("The call was not made.", 22);
        tn_json_append(list, tn_json_pack("{s:s, s:O, s:O, s:o}", "role", "tool", "tool_call_id",
                                          json_object_get(c, "id"), "name", json_object_get(c, "name"),
                                          "content", text));
    }
}

void tn_tool_messages(const json_t *steps, json_t **list) {
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        if (json_is_string(json_object_get(step, "content"))) put_step(step, list);
    }
}
