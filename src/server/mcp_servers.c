#include "server/mcp_servers.h"

#include "server/mcp_client.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN_MS = 30000, ALLOWED = 256, NAME = 32, MODEL_NAME = 64 };

typedef struct allowance {
    char *name;
    bool exact; /* else NAME.* is every tool of NAME */
} allowance;

struct tn_mcp_servers {
    tn_keeper *keeper; /* or NULL */
    tn_mcp_client *at[TN_MCP_SERVERS];
    char names[TN_MCP_SERVERS][NAME];
    const char *given[TN_MCP_SERVERS]; /* their commands, borrowed: while they are started */
    uint64_t commands[TN_MCP_SERVERS]; /* hashes of them */
    size_t n;
    atomic_bool hurries; /* set once */
    pthread_mutex_t mu;
    /* guarded */
    allowance allowed[ALLOWED];
    size_t n_allowed;
};

/* ---- what the user gave ----------------------------------------------------------------------------------- */

static bool plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* The length of the name that a text begins with; 0: it begins with none. */
static size_t name_of(const char *text, char ends) {
    size_t n = 0;
    while (plain(text[n])) n++;
    return n && n < NAME && text[n] == ends ? n : 0;
}

static tern_status allow(tn_mcp_servers *s, const char *name, bool exact, tern_error *err) {
    TN_FAIL_IF(s->n_allowed == ALLOWED, err, TERN_E_LIMIT, "more than %d tools are allowed by name", ALLOWED);
    char *copy = strdup(name);
    TN_FAIL_IF(!copy, err, TERN_E_MEMORY, "no memory for the name of a tool");
    s->allowed[s->n_allowed++] = (allowance){copy, exact};
    return TERN_OK;
}

/* FNV-1a. It tells commands apart; nobody is kept from making two that are alike. */
static uint64_t hash_of(const char *text) {
    uint64_t h = 0xcbf29ce484222325;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3;
    return h;
}

static tern_status add(tn_mcp_servers *s, const char *given, tern_error *err) {
    size_t n = name_of(given, '=');
    TN_FAIL_IF(!n, err, TERN_E_INVALID,
               "--mcp %s: want NAME=COMMAND, where NAME is of letters, digits, _ and - and has up to %d",
               given, NAME - 1);
    for (size_t i = 0; i < s->n; i++)
        TN_FAIL_IF(strlen(s->names[i]) == n && !memcmp(s->names[i], given, n), err, TERN_E_INVALID,
                   "--mcp %.*s: there are two servers of this name", (int)n, given);
    TN_FAIL_IF(s->n == TN_MCP_SERVERS, err, TERN_E_INVALID, "--mcp can be given at most %d times",
               TN_MCP_SERVERS);
    TN_FAIL_IF(!given[n + 1 + strspn(given + n + 1, " ")], err, TERN_E_INVALID,
               "--mcp %s: there is no command", given);
    snprintf(s->names[s->n], NAME, "%.*s", (int)n, given);
    s->given[s->n] = given + n + 1;
    s->commands[s->n] = hash_of(given + n + 1);
    s->n++;
    return TERN_OK;
}

static tern_status start_all(tn_mcp_servers *s, bool kept, tern_error *err) {
    if (kept && s->n) TN_TRY(tn_keeper_open(s->given, s->n, &s->keeper, err));
    for (size_t i = 0; i < s->n; i++)
        TN_TRY(tn_mcp_client_start(s->names[i], s->given[i], s->keeper, i, &s->at[i], err));
    return TERN_OK;
}

/* Is it NAME.TOOL or NAME.* of a server that was given? */
static tern_status check_allowed(const tn_mcp_servers *s, const char *name, tern_error *err) {
    size_t n = name_of(name, '.');
    bool known = false;
    TN_FAIL_IF(!n || !name[n + 1], err, TERN_E_INVALID, "--mcp-allow %s: want NAME.TOOL or NAME.*", name);
    for (size_t i = 0; i < s->n; i++) {
        const char *server = s->names[i];
        known = known || (strlen(server) == n && !memcmp(server, name, n));
    }
    TN_FAIL_IF(!known, err, TERN_E_INVALID, "--mcp-allow %s: no --mcp names a server %.*s", name, (int)n,
               name);
    return TERN_OK;
}

tern_status tn_mcp_servers_start(const char *const *given, const char *const *allowed, bool kept,
                                 tn_mcp_servers **out, tern_error *err) {
    tn_mcp_servers *s = *out = calloc(1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for servers of tools");
    pthread_mutex_init(&s->mu, NULL);
    tern_status st = TERN_OK;
    for (; st == TERN_OK && *given; given++) st = add(s, *given, err);
    for (; st == TERN_OK && *allowed; allowed++) {
        st = check_allowed(s, *allowed, err);
        if (st == TERN_OK) st = allow(s, *allowed, false, err);
    }
    if (st == TERN_OK) st = start_all(s, kept, err);
    if (st != TERN_OK) tn_mcp_servers_close(out);
    return st;
}

void tn_mcp_servers_open(tn_mcp_servers *s, void (*tell)(void *user, const char *line),
                         bool (*stop)(void *user), void *user) {
    char line[sizeof((tern_error *)0)->message + 80];
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *name = tn_mcp_client_name(s->at[i]);
        tern_error err;
        tern_status st = tn_mcp_client_open(s->at[i], OPEN_MS, stop, user, &err);
        if (st != TERN_OK) snprintf(line, sizeof line, "the tools of %s are missing: %s", name, err.message);
        else if (tn_mcp_client_has_more(s->at[i]))
            snprintf(line, sizeof line, "%s has more than %d tools: the others are left out", name,
                     TN_MCP_LISTED);
        else line[0] = 0;
        if (line[0]) tell(user, line);
        json_t *tools = tn_mcp_client_tools(s->at[i], 0, NULL, NULL);
        n += json_array_size(tools);
        json_decref(tools);
    }
    snprintf(line, sizeof line, "there are %zu tools: those after the first %d are left out", n,
             TN_MCP_TOOLS);
    if (n > TN_MCP_TOOLS) tell(user, line);
}

void tn_mcp_servers_revive(tn_mcp_servers *s, void (*tell)(void *user, const char *line), void *user) {
    for (size_t i = 0; i < s->n; i++) tn_mcp_client_revives(s->at[i], tell, user);
}

void tn_mcp_servers_close(tn_mcp_servers **ps) {
    tn_mcp_servers *s = *ps;
    *ps = NULL;
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) tn_mcp_client_close(&s->at[i]);
    tn_keeper_close(&s->keeper);
    for (size_t i = 0; i < s->n_allowed; i++) free(s->allowed[i].name);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* ---- the list --------------------------------------------------------------------------------------------- */

const json_t *tn_mcp_servers_find(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        if (!strcmp(json_string_value(json_object_get(t, "name")), name)) return t;
    }
    return NULL;
}

/* How often names occur: {name: times}. */
static void count(json_t **times, const char *name) {
    const json_int_t n = json_integer_value(json_object_get(*times, name));
    tn_json_set(times, name, json_integer(n + 1));
}

/* The model's name of a tool. own: no other tool is called so. */
static void name_it(const json_t *entry, bool own, char out[MODEL_NAME + 1]) {
    const char *server = json_string_value(json_object_get(entry, "server")),
               *tool = json_string_value(json_object_get(entry, "tool"));
    own = own && strlen(tool) <= MODEL_NAME;
    for (const char *p = tool; *p; p++) own = own && plain(*p);
    int most = MODEL_NAME - (own ? 0 : (int)strlen(server) + 1);
    snprintf(out, MODEL_NAME + 1, "%.*s%s%.*s", own ? 0 : NAME, server, own ? "" : "_", most, tool);
    for (char *p = out; *p; p++)
        if (!plain(*p)) *p = '_';
}

/* Makes it a name that no entry before has. The next number of a name that many share is looked up, not tried for. */
static void tell_apart(json_t **taken, char name[MODEL_NAME + 1]) {
    char first[MODEL_NAME + 1];
    const size_t all = strlen(name);
    memcpy(first, name, all + 1);
    for (json_int_t k; (k = json_integer_value(json_object_get(*taken, name)));) {
        char number[24];
        const json_int_t shared = json_integer_value(json_object_get(*taken, first));
        const size_t w = (size_t)snprintf(number, sizeof number, "_%lld", (long long)shared + 1);
        memcpy(name + (all + w > MODEL_NAME ? MODEL_NAME - w : all), number, w + 1);
        tn_json_set(taken, first, json_integer(shared + 1));
        if (!*taken) return;
    }
    count(taken, name);
}

static void put_tools(tn_mcp_client *c, const json_t *tools, json_t **list, json_t **times) {
    const json_t *t;
    size_t k;
    json_array_foreach(tools, k, t) {
        if (json_array_size(*list) == TN_MCP_TOOLS) return;
        count(times, json_string_value(json_object_get(t, "name")));
        tn_json_append(list, tn_json_pack("{s:s, s:s, s:O, s:O, s:O, s:O}", "name", "", "server",
                                          tn_mcp_client_name(c), "tool", json_object_get(t, "name"), "title",
                                          json_object_get(t, "title"), "description",
                                          json_object_get(t, "description"), "inputSchema",
                                          json_object_get(t, "inputSchema")));
    }
}

void tn_mcp_servers_hurry(tn_mcp_servers *s) { atomic_store(&s->hurries, true); }

/* Who waits for a list. */
typedef struct waiter {
    tn_mcp_servers *s;
    bool (*stop)(void *user);
    void *user;
} waiter;

static bool is_over(void *user) {
    const waiter *w = user;
    return atomic_load(&w->s->hurries) || (w->stop && w->stop(w->user));
}

json_t *tn_mcp_servers_list(tn_mcp_servers *s, bool fresh, bool (*stop)(void *user), void *user) {
    json_t *list = json_array(), *times = json_object(), *taken = json_object();
    waiter w = {s, stop, user};
    for (size_t i = 0; s && i < s->n; i++) {
        json_t *tools = tn_mcp_client_tools(s->at[i], fresh ? OPEN_MS : 0, is_over, &w);
        put_tools(s->at[i], tools, &list, &times);
        json_decref(tools);
    }
    bool ok = list && times && taken;
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        char name[MODEL_NAME + 1];
        json_t *t = json_incref(json_array_get(list, i));
        const char *tool = json_string_value(json_object_get(t, "tool"));
        name_it(t, json_integer_value(json_object_get(times, tool)) == 1, name);
        tell_apart(&taken, name);
        tn_json_set(&t, "name", tn_json_string(name, strlen(name)));
        if (t) tn_json_set(&t, "allowed", json_boolean(tn_mcp_servers_allows(s, t)));
        ok = t && taken;
        json_decref(t);
    }
    json_decref(times);
    json_decref(taken);
    if (!ok) json_decref(list), list = NULL;
    return list;
}

json_t *tn_mcp_servers_tools(const json_t *list) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i), *about = json_object_get(t, "description");
        json_t *f = tn_json_pack("{s:O, s:O}", "name", json_object_get(t, "name"), "parameters",
                                 json_object_get(t, "inputSchema"));
        if (json_is_string(about)) tn_json_set(&f, "description", json_incref((json_t *)(uintptr_t)about));
        tn_json_append(&all, tn_json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    return all;
}

void tn_mcp_user_name(const json_t *entry, char out[TN_MCP_USER_NAME]) {
    snprintf(out, TN_MCP_USER_NAME, "%s.%s", json_string_value(json_object_get(entry, "server")),
             json_string_value(json_object_get(entry, "tool")));
}

/* ---- what may be called ----------------------------------------------------------------------------------- */

bool tn_mcp_servers_allows(tn_mcp_servers *s, const json_t *entry) {
    const char *server = json_string_value(json_object_get(entry, "server")),
               *tool = json_string_value(json_object_get(entry, "tool"));
    size_t n = strlen(server);
    bool may = false;
    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < s->n_allowed && !may; i++) {
        const char *a = s->allowed[i].name;
        bool every = !s->allowed[i].exact && !strncmp(a, server, n) && !strcmp(a + n, ".*");
        may = every || (!strncmp(a, server, n) && a[n] == '.' && !strcmp(a + n + 1, tool));
    }
    pthread_mutex_unlock(&s->mu);
    return may;
}

bool tn_mcp_servers_allow(tn_mcp_servers *s, const json_t *entry) {
    char name[TN_MCP_USER_NAME];
    tern_error err;
    tn_mcp_user_name(entry, name);
    pthread_mutex_lock(&s->mu);
    bool ok = allow(s, name, true, &err) == TERN_OK;
    pthread_mutex_unlock(&s->mu);
    return ok;
}

void tn_mcp_servers_kept_name(const tn_mcp_servers *s, const json_t *entry, char out[TN_MCP_KEPT_NAME]) {
    const char *server = json_string_value(json_object_get(entry, "server"));
    char name[TN_MCP_USER_NAME];
    size_t i = 0;
    tn_mcp_user_name(entry, name);
    while (i < s->n && strcmp(tn_mcp_client_name(s->at[i]), server)) i++;
    snprintf(out, TN_MCP_KEPT_NAME, "%s %016" PRIx64, name, i < s->n ? s->commands[i] : 0);
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

static tern_status say_why(const char *why, char **text, bool *failed, tern_error *err) {
    *failed = true;
    *text = strdup(why);
    TN_FAIL_IF(!*text, err, TERN_E_MEMORY, "no memory for a result");
    return TERN_OK;
}

tern_status tn_mcp_servers_call(tn_mcp_servers *s, const json_t *entry, const char *arguments,
                                bool (*stop)(void *user), void *user, char **text, bool *failed,
                                tern_error *err) {
    const char *server = json_string_value(json_object_get(entry, "server")),
               *tool = json_string_value(json_object_get(entry, "tool"));
    json_t *args = tn_json_parse(arguments, strlen(arguments), 0, NULL), *result = NULL;
    size_t i = 0;
    *text = NULL;
    *failed = false;
    while (i < s->n && strcmp(tn_mcp_client_name(s->at[i]), server)) i++;
    if (!json_is_object(args) || i == s->n) {
        json_decref(args);
        return say_why(i == s->n ? TN_MCP_UNKNOWN : "The arguments are no JSON object.", text, failed, err);
    }
    tern_status st = tn_mcp_client_call(s->at[i], tool, args, TN_MCP_WAIT_MS, stop, user, &result, err);
    if (st == TERN_OK) st = tn_mcp_result_text(result, TN_MCP_TEXT, text, failed, err);
    else if (st != TERN_E_MEMORY && st != TERN_E_CANCELLED) st = say_why(err->message, text, failed, err);
    json_decref(result);
    return st;
}
