#include "server/mcp_client.h"

#include "base/wait.h"
#include "base/bytes.h"
#include "server/mcp.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAME = 64, LAST = 200, MOST_TOLD = 1 << 20, LOOK_MS = 100, GRACE_MS = 1000, PAGES = 64, HEAD = 256 };

struct tn_mcp_client {
    char name[NAME];
    char *command;     /* NULL: there is no program */
    tn_keeper *keeper; /* NULL: this process starts it */
    size_t i;          /* of its programs */
    bool revives;
    void (*say)(void *user, const char *line); /* or NULL */
    void *said_to;
    tn_child child;
    int n_starts;     /* again, since a call was answered; whoever has the turn to ask */
    pthread_t thread; /* it alone reads and writes the program's pipes */
    bool has_thread;
    int wake[2]; /* of the thread */
    pthread_mutex_t mu;
    pthread_cond_t changed;
    /* guarded by mu */
    bool busy;     /* somebody has the turn to ask */
    tn_bytes line; /* that is not complete */
    bool too_long; /* ... and whose rest is dropped */
    tn_bytes told; /* to be written; what is written begins at 0 */
    size_t n_unasked;
    int64_t last_id, waits_for; /* 0: for nothing */
    json_t *reply;              /* a message with that id */
    bool patient;               /* it is a call, which may say that it goes on */
    uint64_t n_progress;        /* times that it did */
    bool unread;                /* the reply came, and cannot be read */
    bool stale;                 /* the tools changed */
    bool more;                  /* there are more than are listed */
    bool ends, dead;
    char how[80];       /* it died */
    char last[LAST];    /* of its messages */
    char why[LAST + 8]; /* something that came cannot be read */
    json_t *tools;
};

/* ---- what goes out ---------------------------------------------------------------------------------------- */

/* Takes v. With mu. */
static bool tell(tn_mcp_client *c, json_t *v) {
    char *text = NULL;
    bool ok = tn_json_text(v, JSON_COMPACT, &text, NULL) == TERN_OK;
    json_decref(v);
    ok = ok && tn_bytes_put(&c->told, text) && tn_bytes_put(&c->told, "\n");
    free(text);
    if (ok && c->has_thread) (void)!write(c->wake[1], "", 1);
    return ok;
}

/* What the server asks of its client. */
static void answer_it(tn_mcp_client *c, const char *method, json_t *id) {
    if (c->told.n > MOST_TOLD) return; /* it asks, and reads no answers */
    if (!strcmp(method, "ping")) {
        (void)tell(c, tn_json_pack("{s:s, s:O, s:o}", "jsonrpc", "2.0", "id", id, "result", json_object()));
        return;
    }
    char why[160];
    snprintf(why, sizeof why, "tern offers no %.100s", method);
    (void)tell(c, tn_json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id, "error", "code",
                               -32601, "message", why));
}

/* ---- what comes in ---------------------------------------------------------------------------------------- */

static void heard(tn_mcp_client *c, json_t *m) {
    const char *method = json_string_value(json_object_get(m, "method"));
    json_t *id = json_object_get(m, "id");
    bool has_id = json_is_integer(id) || json_is_string(id);
    if (method && has_id) answer_it(c, method, id);
    if (method && !id && !strcmp(method, "notifications/tools/list_changed")) c->stale = true;
    if (method && !id && !strcmp(method, "notifications/progress")) {
        const json_t *token = json_object_get(json_object_get(m, "params"), "progressToken");
        c->n_progress +=
            c->patient && c->waits_for && json_is_integer(token) && json_integer_value(token) == c->waits_for;
    }
    if (method || !c->waits_for || !json_is_integer(id) || json_integer_value(id) != c->waits_for) return;
    if (!json_object_get(m, "jsonrpc") && !json_object_get(m, "result") && !json_object_get(m, "error"))
        return; /* somebody's log has numbers too */
    json_decref(c->reply);
    c->reply = json_incref(m);
    c->waits_for = 0;
    pthread_cond_broadcast(&c->changed);
}

/* Does p[0..n) hold the text? */
static bool holds(const char *p, size_t n, const char *text) {
    return memmem(p, n, text, strlen(text)) != NULL;
}

/* Does a line that cannot be read begin as a reply does? Others are logs, whatever bracket they begin with. */
static bool begins_as_reply(const char *p, size_t n) {
    if (n > HEAD) n = HEAD;
    while (n && strchr(" \t\r[", *p)) p++, n--;
    return n && *p == '{' && (holds(p, n, "\"jsonrpc\"") || holds(p, n, "\"id\"")) &&
           !holds(p, n, "\"method\"");
}

/* A line that begins as a reply may be the one that is waited for: nobody waits for it any longer. Of others the reason is
 * kept, in case that no reply ever comes. */
static void cannot_read(tn_mcp_client *c, const char *why) {
    snprintf(c->why, sizeof c->why, "%.150s", why);
    if (!begins_as_reply(c->line.p ? c->line.p : "", c->line.n)) return;
    c->unread = c->waits_for != 0;
    c->waits_for = 0;
    pthread_cond_broadcast(&c->changed);
}

/* A line that is no message is somebody's log. */
static void hear_line(tn_mcp_client *c) {
    const char *p = c->line.p;
    size_t n = c->line.n;
    json_error_t je;
    while (n && strchr(" \t\r", *p)) p++, n--;
    if (!n || (*p != '{' && *p != '[')) return;
    json_t *m = tn_json_parse(p, n, JSON_REJECT_DUPLICATES, &je), *one;
    size_t i;
    if (!m) cannot_read(c, je.text);
    if (json_is_object(m)) heard(c, m);
    json_array_foreach(m, i, one) {
        if (json_is_object(one)) heard(c, one);
    }
    json_decref(m);
}

/* With mu. */
static void hear(tn_mcp_client *c, const char *p, size_t n) {
    while (n) {
        const char *end = memchr(p, '\n', n);
        size_t k = end ? (size_t)(end - p) : n;
        size_t room = TN_MCP_LINE - c->line.n;
        c->too_long = c->too_long || k > room;
        if (!tn_bytes_add(&c->line, p, k < room ? k : room)) c->too_long = true; /* its beginning is kept */
        if (end && c->too_long) cannot_read(c, "a message is longer than 8 MiB");
        else if (end && c->line.n) hear_line(c);
        if (end) c->line.n = 0, c->too_long = false;
        p += k + (end != NULL);
        n -= k + (end != NULL);
    }
}

void tn_mcp_client_hear(tn_mcp_client *c, const char *p, size_t n) {
    pthread_mutex_lock(&c->mu);
    hear(c, p, n);
    pthread_mutex_unlock(&c->mu);
}

/* Keeps the last line of what it tells people. */
static void hear_messages(tn_mcp_client *c, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t k = strlen(c->last);
        bool control = (unsigned char)p[i] < 0x20 || p[i] == 0x7f;
        if (control && (i + 1 == n || p[i] != '\n')) continue;
        if (control) c->last[k = 0] = 0;
        if (!control && k + 1 < sizeof c->last) c->last[k] = p[i], c->last[k + 1] = 0;
    }
}

/* ---- the thread ------------------------------------------------------------------------------------------- */

/* Reads what there is. false: it is the end. */
static bool drain(tn_mcp_client *c, int fd, bool messages) {
    char buf[16384];
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        pthread_mutex_lock(&c->mu);
        if (messages) hear_messages(c, buf, (size_t)n);
        else hear(c, buf, (size_t)n);
        c->n_unasked += c->waits_for ? 0 : (size_t)n;
        bool floods = c->n_unasked > TN_MCP_UNASKED;
        if (floods) snprintf(c->how, sizeof c->how, "wrote more than 64 MiB that nobody asked for");
        pthread_mutex_unlock(&c->mu);
        if (floods) return false;
    }
}

/* Writes what it takes. false: it reads no more. */
static bool flush_told(tn_mcp_client *c) {
    bool ok = true;
    pthread_mutex_lock(&c->mu);
    while (ok && c->told.n) {
        ssize_t n = write(c->child.to, c->told.p, c->told.n);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        ok = n > 0;
        if (!ok) break;
        memmove(c->told.p, c->told.p + n, c->told.n - (size_t)n);
        c->told.n -= (size_t)n;
    }
    pthread_mutex_unlock(&c->mu);
    return ok;
}

static void died(tn_mcp_client *c) {
    char how[64] = "ended";
    for (int i = 0; i < 10 && !tn_child_ended(&c->child, how, sizeof how); i++) poll(NULL, 0, 20);
    if (c->child.messages >= 0) (void)drain(c, c->child.messages, true); /* its last words */
    pthread_mutex_lock(&c->mu);
    if (!c->how[0]) snprintf(c->how, sizeof c->how, "%s", how);
    c->dead = true;
    c->waits_for = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mu);
}

static void *listen_to(void *user) {
    tn_mcp_client *c = user;
    char woken[64];
    sigset_t others; /* signals are for the others; a pipe that nobody reads is an error of write here */
    sigemptyset(&others);
    sigaddset(&others, SIGPIPE);
    sigaddset(&others, SIGINT);
    sigaddset(&others, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &others, NULL);
    for (bool ok = true; ok;) {
        pthread_mutex_lock(&c->mu);
        bool ends = c->ends, writes = c->told.n != 0;
        pthread_mutex_unlock(&c->mu);
        if (ends) return NULL;
        struct pollfd p[4] = {{.fd = c->wake[0], .events = POLLIN},
                              {.fd = c->child.from, .events = POLLIN},
                              {.fd = c->child.messages, .events = POLLIN},
                              {.fd = writes ? c->child.to : -1, .events = POLLOUT}};
        if (poll(p, 4, -1) < 0 && errno != EINTR) break;
        if (p[0].revents) (void)!read(c->wake[0], woken, sizeof woken);
        if (p[2].revents && !drain(c, c->child.messages, true)) {
            close(c->child.messages);
            c->child.messages = -1; /* it goes on without */
        }
        if (p[1].revents) ok = drain(c, c->child.from, false);
        if (p[3].revents) ok = flush_told(c) && ok;
    }
    died(c);
    return NULL;
}

static bool start_thread(tn_mcp_client *c) {
    if (pipe2(c->wake, O_CLOEXEC | O_NONBLOCK)) return false;
    c->has_thread = !pthread_create(&c->thread, NULL, listen_to, c);
    return c->has_thread;
}

/* ---- asking ----------------------------------------------------------------------------------------------- */

/* Takes params. With mu. */
static int64_t put(tn_mcp_client *c, const char *method, json_t *params) {
    json_t *v = tn_json_pack("{s:s, s:I, s:s, s:o}", "jsonrpc", "2.0", "id", (json_int_t)(c->last_id + 1),
                             "method", method, "params", params);
    if (!tell(c, v)) return 0;
    json_decref(c->reply);
    c->reply = NULL;
    c->unread = false;
    c->why[0] = 0;
    c->n_unasked = 0;
    return c->waits_for = ++c->last_id;
}

int64_t tn_mcp_client_ask(tn_mcp_client *c, const char *method, json_t *params) {
    pthread_mutex_lock(&c->mu);
    int64_t id = put(c, method, params);
    pthread_mutex_unlock(&c->mu);
    return id;
}

/* The reply that came. With mu. */
static tern_status take(tn_mcp_client *c, json_t **result, tern_error *err) {
    json_t *reply = c->reply, *error = json_object_get(reply, "error");
    tern_status st = TERN_OK;
    c->reply = NULL;
    if (c->unread) st = tn_fail(err, TERN_E_FORMAT, "%s: its reply cannot be read: %s", c->name, c->why);
    else if (!reply && c->dead)
        st = tn_fail(err, TERN_E_IO, "%s %s%s%s", c->name, c->how, c->last[0] ? ": " : "", c->last);
    else if (error) {
        const char *text = json_string_value(json_object_get(error, "message"));
        st = tn_fail(err, TERN_E_INVALID, "%s: %.200s", c->name, text ? text : "an error without words");
    } else if (!json_is_object(json_object_get(reply, "result"))) {
        st = tn_fail(err, TERN_E_FORMAT, "%s: its reply has no result", c->name);
    } else {
        *result = json_incref(json_object_get(reply, "result"));
    }
    json_decref(reply);
    return st;
}

int tn_mcp_client_reply(tn_mcp_client *c, json_t **result, tern_error *err) {
    *result = NULL;
    pthread_mutex_lock(&c->mu);
    int there = c->waits_for && !c->dead ? 0 : take(c, result, err) == TERN_OK ? 1 : -1;
    pthread_mutex_unlock(&c->mu);
    return there;
}

char *tn_mcp_client_told(tn_mcp_client *c) {
    pthread_mutex_lock(&c->mu);
    char *text = c->told.p;
    c->told = (tn_bytes){0};
    pthread_mutex_unlock(&c->mu);
    return text;
}

/* How long somebody waits. */
typedef struct patience {
    int64_t until_ns, wait_ms;
    bool (*stop)(void *user); /* or NULL */
    void *user;
} patience;

static patience wait_for(int64_t wait_ms, bool (*stop)(void *user), void *user) {
    return (patience){tn_now_ns() + wait_ms * 1000000, wait_ms, stop, user};
}

static bool is_stopped(const patience *w) { return w->stop && w->stop(w->user); }

static tern_status give_up(tn_mcp_client *c, int64_t id, bool stopped, int64_t wait_ms, tern_error *err) {
    const char *reason = stopped ? "the user stopped it" : "it took too long";
    c->waits_for = 0;
    (void)tell(c,
               tn_json_pack("{s:s, s:s, s:{s:I, s:s}}", "jsonrpc", "2.0", "method", "notifications/cancelled",
                            "params", "requestId", (json_int_t)id, "reason", reason));
    TN_FAIL_IF(stopped, err, TERN_E_CANCELLED, "%s: stopped", c->name);
    return tn_fail(err, TERN_E_IO, "%s did not answer within %.0f s%s%s", c->name, (double)wait_ms / 1e3,
                   c->why[0] ? ", and something that it wrote cannot be read: " : "", c->why);
}

/* Until something changed, or for a moment. With mu. */
static void look_again(tn_mcp_client *c) { tn_cond_wait_ns(&c->changed, &c->mu, LOOK_MS * (int64_t)1000000); }

/* Takes params. It has the turn. */
static tern_status ask(tn_mcp_client *c, const char *method, json_t *params, patience w, json_t **result,
                       tern_error *err) {
    uint64_t n_progress = 0;
    tern_status st = TERN_OK;
    *result = NULL;
    pthread_mutex_lock(&c->mu);
    int64_t id = c->dead || !c->has_thread ? -1 : put(c, method, params);
    if (id < 0) json_decref(params);
    if (!id) st = tn_fail(err, TERN_E_MEMORY, "no memory for a question to %s", c->name);
    while (st == TERN_OK && id > 0 && c->waits_for && !c->dead) {
        look_again(c);
        bool stopped = is_stopped(&w);
        if (c->n_progress != n_progress) { /* it goes on */
            n_progress = c->n_progress;
            w.until_ns = tn_now_ns() + w.wait_ms * 1000000;
        }
        if (c->waits_for && !c->dead && (stopped || tn_now_ns() > w.until_ns))
            st = give_up(c, id, stopped, w.wait_ms, err);
    }
    if (st == TERN_OK) st = take(c, result, err);
    pthread_mutex_unlock(&c->mu);
    return st;
}

/* ---- turns ------------------------------------------------------------------------------------------------ */

/* Waits for the turn to ask, as long as the others take; stop ends that. */
static tern_status take_turn(tn_mcp_client *c, const patience *w, tern_error *err) {
    bool stopped = false;
    pthread_mutex_lock(&c->mu);
    while (c->busy && !(stopped = is_stopped(w))) look_again(c);
    if (!stopped) c->busy = true;
    pthread_mutex_unlock(&c->mu);
    TN_FAIL_IF(stopped, err, TERN_E_CANCELLED, "%s: stopped", c->name);
    return TERN_OK;
}

static void give_turn(tn_mcp_client *c) {
    pthread_mutex_lock(&c->mu);
    c->busy = false;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mu);
}

/* ---- its life --------------------------------------------------------------------------------------------- */

tern_status tn_mcp_client_new(const char *name, tn_mcp_client **out, tern_error *err) {
    tn_mcp_client *c = *out = calloc(1, sizeof *c);
    TN_FAIL_IF(!c, err, TERN_E_MEMORY, "no memory for the tools of %s", name);
    snprintf(c->name, sizeof c->name, "%s", name);
    tn_cond_init(&c->changed);
    pthread_mutex_init(&c->mu, NULL);
    c->child = (tn_child){.to = -1, .from = -1, .messages = -1};
    c->wake[0] = c->wake[1] = -1;
    c->tools = json_array();
    if (!c->tools) tn_mcp_client_close(out);
    return *out ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for the tools of %s", name);
}

static tern_status start_program(tn_mcp_client *c, tern_error *err) {
    return c->keeper ? tn_keeper_start(c->keeper, c->i, &c->child, err)
                     : tn_child_start(c->command, &c->child, err);
}

tern_status tn_mcp_client_start(const char *name, const char *command, tn_keeper *keeper, size_t i,
                                tn_mcp_client **out, tern_error *err) {
    TN_TRY(tn_mcp_client_new(name, out, err));
    (*out)->command = strdup(command);
    (*out)->keeper = keeper;
    (*out)->i = i;
    tern_status st = (*out)->command ? start_program(*out, err)
                                     : tn_fail(err, TERN_E_MEMORY, "no memory for the tools of %s", name);
    if (st != TERN_OK) tn_mcp_client_close(out);
    return st;
}

/* The thread and the program end. */
static void end_program(tn_mcp_client *c, int grace_ms) {
    pthread_mutex_lock(&c->mu);
    c->ends = true;
    if (c->has_thread) (void)!write(c->wake[1], "", 1);
    pthread_mutex_unlock(&c->mu);
    if (c->has_thread)
        pthread_join(c->thread, NULL); /* nobody listens any more, and so nobody else is here */
    c->has_thread = false;
    tn_child_end(&c->child, grace_ms);
    for (int i = 0; i < 2; i++) {
        if (c->wake[i] >= 0) close(c->wake[i]);
        c->wake[i] = -1;
    }
}

void tn_mcp_client_close(tn_mcp_client **pc) {
    tn_mcp_client *c = *pc;
    *pc = NULL;
    if (!c) return;
    end_program(c, GRACE_MS);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mu);
    json_decref(c->reply);
    json_decref(c->tools);
    free(c->command);
    free(c->line.p);
    free(c->told.p);
    free(c);
}

const char *tn_mcp_client_name(const tn_mcp_client *c) { return c->name; }

static tern_status shake_hands(tn_mcp_client *c, patience w, bool *has_tools, tern_error *err) {
    json_t *reply;
    TN_TRY(ask(c, "initialize",
               tn_json_pack("{s:s, s:o, s:{s:s, s:s}}", "protocolVersion", "2025-06-18", "capabilities",
                            json_object(), "clientInfo", "name", "tern", "version", TERN_VERSION_STRING),
               w, &reply, err));
    const char *version = json_string_value(json_object_get(reply, "protocolVersion"));
    bool known = version && tn_mcp_speaks(version);
    *has_tools = json_object_get(json_object_get(reply, "capabilities"), "tools") != NULL;
    if (!known)
        (void)tn_fail(err, TERN_E_UNSUPPORTED, "%s speaks version %.40s of the protocol", c->name,
                      version ? version : "no");
    json_decref(reply);
    if (!known) return TERN_E_UNSUPPORTED;
    pthread_mutex_lock(&c->mu);
    bool ok = tell(c, tn_json_pack("{s:s, s:s}", "jsonrpc", "2.0", "method", "notifications/initialized"));
    pthread_mutex_unlock(&c->mu);
    TN_FAIL_IF(!ok, err, TERN_E_MEMORY, "no memory for a message to %s", c->name);
    return TERN_OK;
}

/* All pages together have the time of w. Where it fails the tools of before stay. */
static tern_status list(tn_mcp_client *c, patience w, tern_error *err) {
    json_t *all = json_array(), *cursor = NULL;
    tern_status st = TERN_OK;
    pthread_mutex_lock(&c->mu);
    c->stale = false;
    pthread_mutex_unlock(&c->mu);
    for (int page = 0; st == TERN_OK && page < PAGES; page++) {
        json_t *params = json_object(), *reply;
        if (cursor) tn_json_set(&params, "cursor", cursor);
        cursor = NULL;
        st = ask(c, "tools/list", params, w, &reply, err);
        if (st == TERN_OK) st = tn_mcp_read_tools(c->name, reply, &all, err);
        if (st == TERN_OK) cursor = json_incref(json_object_get(reply, "nextCursor"));
        json_decref(reply);
        if (!json_is_string(cursor) || json_array_size(all) > TN_MCP_LISTED) break;
        if (st == TERN_OK && is_stopped(&w)) st = tn_fail(err, TERN_E_CANCELLED, "%s: stopped", c->name);
        else if (st == TERN_OK && tn_now_ns() > w.until_ns)
            st = tn_fail(err, TERN_E_IO, "%s did not tell all its tools within %.0f s", c->name,
                         (double)w.wait_ms / 1e3);
    }
    json_decref(cursor);
    pthread_mutex_lock(&c->mu);
    if (st == TERN_OK) {
        c->more = json_array_size(all) > TN_MCP_LISTED;
        if (c->more) json_array_remove(all, TN_MCP_LISTED);
        json_decref(c->tools);
        c->tools = all;
    } else {
        c->stale = c->stale || st == TERN_E_CANCELLED;
        json_decref(all);
    }
    pthread_mutex_unlock(&c->mu);
    return st;
}

/* Begins with a program that has just been started. */
static tern_status meet(tn_mcp_client *c, patience w, tern_error *err) {
    bool has_tools = false;
    TN_FAIL_IF(!start_thread(c), err, TERN_E_MEMORY, "no thread to listen to %s with", c->name);
    TN_TRY(shake_hands(c, w, &has_tools, err));
    return has_tools ? list(c, w, err) : TERN_OK;
}

tern_status tn_mcp_client_open(tn_mcp_client *c, int64_t wait_ms, bool (*stop)(void *user), void *user,
                               tern_error *err) {
    const patience w = wait_for(wait_ms, stop, user);
    TN_TRY(take_turn(c, &w, err));
    tern_status st = meet(c, w, err);
    give_turn(c);
    return st;
}

void tn_mcp_client_revives(tn_mcp_client *c, void (*tell)(void *user, const char *line), void *user) {
    c->revives = c->command != NULL;
    c->say = tell;
    c->said_to = user;
}

/* May it be started once more? Says so, and says once that it will not be. */
static tern_status may_start(tn_mcp_client *c, tern_error *err) {
    char line[LAST + 300], how[sizeof c->how + LAST + 4];
    pthread_mutex_lock(&c->mu);
    snprintf(how, sizeof how, "%s%s%s", c->how[0] ? c->how : "ended", c->last[0] ? ": " : "", c->last);
    pthread_mutex_unlock(&c->mu);
    bool may = c->n_starts < TN_MCP_STARTS;
    if (may) snprintf(line, sizeof line, "%s %s; it is started again", c->name, how);
    else
        snprintf(line, sizeof line, "%s %s; it was started %d times without a reply, and is not any more",
                 c->name, how, TN_MCP_STARTS);
    if (c->say && c->n_starts <= TN_MCP_STARTS) c->say(c->said_to, line);
    if (c->n_starts <= TN_MCP_STARTS) c->n_starts++;
    TN_FAIL_IF(!may, err, TERN_E_IO, "%s", line);
    return TERN_OK;
}

/* Starts the program again where it has ended. One that cannot be met is ended, and the next call tries again. */
static tern_status revive(tn_mcp_client *c, patience w, tern_error *err) {
    pthread_mutex_lock(&c->mu);
    bool dead = c->dead;
    pthread_mutex_unlock(&c->mu);
    if (!dead || !c->revives) return TERN_OK;
    TN_TRY(may_start(c, err));
    end_program(c, 0);
    TN_TRY(start_program(c, err));
    pthread_mutex_lock(&c->mu);
    c->line.n = c->told.n = 0;
    c->too_long = c->dead = c->ends = false;
    c->how[0] = c->last[0] = 0;
    pthread_mutex_unlock(&c->mu);
    tern_status st = meet(c, w, err);
    if (st == TERN_OK) return st;
    if (st == TERN_E_CANCELLED) c->n_starts--; /* that is not its fault */
    end_program(c, 0);
    pthread_mutex_lock(&c->mu);
    c->dead = true;
    pthread_mutex_unlock(&c->mu);
    return st;
}

json_t *tn_mcp_client_tools(tn_mcp_client *c, int64_t wait_ms, bool (*stop)(void *user), void *user) {
    tern_error err;
    pthread_mutex_lock(&c->mu);
    bool asks = wait_ms && c->stale && !c->dead && !c->busy; /* else those of before */
    c->busy = c->busy || asks;
    pthread_mutex_unlock(&c->mu);
    if (asks) (void)list(c, wait_for(wait_ms, stop, user), &err);
    if (asks) give_turn(c);
    pthread_mutex_lock(&c->mu);
    json_t *v = json_incref(c->tools);
    pthread_mutex_unlock(&c->mu);
    return v;
}

bool tn_mcp_client_has_more(tn_mcp_client *c) {
    pthread_mutex_lock(&c->mu);
    bool more = c->more;
    pthread_mutex_unlock(&c->mu);
    return more;
}

tern_status tn_mcp_client_call(tn_mcp_client *c, const char *tool, json_t *arguments, int64_t wait_ms,
                               bool (*stop)(void *user), void *user, json_t **result, tern_error *err) {
    patience w = wait_for(wait_ms, stop, user);
    *result = NULL;
    tern_status st = take_turn(c, &w, err);
    if (st != TERN_OK) return json_decref(arguments), st;
    st = revive(c, wait_for(wait_ms, stop, user), err);
    if (st != TERN_OK) {
        give_turn(c);
        json_decref(arguments);
        return st;
    }
    pthread_mutex_lock(&c->mu);
    c->patient = true;
    c->n_progress = 0;
    const json_int_t id = c->last_id + 1; /* nobody else asks meanwhile */
    pthread_mutex_unlock(&c->mu);
    st = ask(c, "tools/call",
             tn_json_pack("{s:s, s:o, s:{s:I}}", "name", tool, "arguments", arguments, "_meta",
                          "progressToken", id),
             wait_for(wait_ms, stop, user), result, err);
    pthread_mutex_lock(&c->mu);
    c->patient = false;
    pthread_mutex_unlock(&c->mu);
    if (st == TERN_OK) c->n_starts = 0;
    give_turn(c);
    return st;
}
