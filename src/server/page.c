#include "server/page.h"

#include "base/json.h"
#include "server/answers.h"
#include "server/checkpoints.h"
#include "server/connection.h"
#include "server/refusals.h"
#include "server/reply.h"
#include "server/talk_nodes.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 100 };
static const int64_t IDLE_LOOKS = 150; /* of LOOK_MS: then a comment keeps the connection */

typedef struct MHD_Connection connection;
typedef enum MHD_Result result;

struct tn_page {
    tn_models *models;
    tn_talks *talks;       /* NULL: there is no folder for them */
    tn_answers *answers;   /* likewise */
    tn_uploads *uploads;   /* borrowed; NULL: nobody reads documents */
    tn_mcp_servers *tools; /* borrowed; NULL: there are none */
    tern_error no_talks;   /* why */
    int64_t started;
    atomic_uint_fast64_t changes; /* of conversations, told to pages that look */
};

tern_status tn_page_open(tn_models *models, tn_uploads *uploads, tn_mcp_servers *tools, tn_page **out,
                         tern_error *err) {
    tn_page *p = *out = calloc(1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory for the page");
    p->models = models;
    p->uploads = uploads;
    p->tools = tools;
    p->started = (int64_t)time(NULL);
    tern_status st = TERN_OK;
    if (tn_talks_open(tn_models_ctx(models), &p->talks, &p->no_talks) == TERN_OK) {
        st = tn_answers_open(models, p->talks, uploads, tools, &p->answers, err);
    } else {
        tn_log(tn_models_ctx(models), TERN_LOG_WARN, "conversations cannot be kept: %s", p->no_talks.message);
        (void)tn_own_files(&p->no_talks); /* clients are told */
    }
    if (st != TERN_OK) tn_page_close(out);
    return st;
}

void tn_page_close(tn_page **pp) {
    tn_page *p = *pp;
    *pp = NULL;
    if (!p) return;
    tn_answers_close(&p->answers);
    tn_talks_close(&p->talks);
    free(p);
}

/* ---- replies ------------------------------------------------------------------------------------------- */

/* Content is never control: no script and no style but the page's own files, and no text becomes markup
 * through them. */
static const tn_header headers[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
     "manifest-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
     "trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Permissions-Policy", "camera=(), microphone=(), geolocation=()"},
    {"Cache-Control", "no-store"}};

/* Takes body. */
static result respond(connection *c, int status, const char *type, struct MHD_Response *body) {
    return tn_respond(c, status, type, headers, sizeof headers / sizeof *headers, body);
}

static result send_json(connection *c, int status, json_t *v) { /* takes v */
    return respond(c, status, "application/json", tn_body_json(v));
}

static result send_error(connection *c, const tern_error *err, int status) {
    return send_json(c, status, tn_reply_error(err, status, false));
}

static result refuse(connection *c, int status, const char *why) {
    tern_error err = {.code = TERN_E_INVALID};
    snprintf(err.message, sizeof err.message, "%s", why);
    return send_error(c, &err, status);
}

/* 405, with the methods that the address has. */
static result wants(connection *c, const char *allow) {
    tn_header all[sizeof headers / sizeof *headers + 1];
    tern_error err = {.code = TERN_E_INVALID};
    memcpy(all, headers, sizeof headers);
    all[sizeof headers / sizeof *headers][0] = "Allow";
    all[sizeof headers / sizeof *headers][1] = allow;
    snprintf(err.message, sizeof err.message, "this address wants %s", allow);
    return tn_respond(c, 405, "application/json", all, sizeof all / sizeof *all,
                      tn_body_json(tn_reply_error(&err, 405, false)));
}

/* Takes v, the reply where all went well. */
static result send_result(connection *c, tern_status st, const tern_error *err, json_t *v) {
    if (st == TERN_OK) return send_json(c, 200, v);
    tern_error shown = *err;
    (void)tn_own_files(&shown);
    json_decref(v);
    return send_error(c, &shown, tn_reply_status(&shown));
}

/* ---- streams ------------------------------------------------------------------------------------------- */

typedef struct stream {
    connection *c;
    tn_models *models;
    tn_follower *f;    /* one of these */
    tn_live_reader *r; /* two */
} stream;

static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    stream *s = user;
    for (int64_t looks = 0;; looks++) {
        bool ended = false;
        size_t n =
            s->f ? tn_follower_read(s->f, buf, max, LOOK_MS, &ended) : tn_live_reader_read(s->r, buf, max);
        if (n) return (ssize_t)n;
        if (ended || tn_models_closing(s->models)) return MHD_CONTENT_READER_END_OF_STREAM;
        if (tn_client_gone(s->c)) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (looks > IDLE_LOOKS && max >= 8) {
            memcpy(buf, ": wait\n\n", 8);
            return 8;
        }
        if (s->r) poll(NULL, 0, LOOK_MS);
    }
}

static void free_stream(void *user) {
    stream *s = user;
    tn_follower_close(&s->f);
    tn_live_reader_close(&s->r);
    free(s);
}

/* Takes f or r. */
static result send_stream(tn_page *p, connection *c, tn_follower *f, tn_live_reader *r) {
    stream *s = malloc(sizeof *s);
    if (!s) {
        tn_follower_close(&f);
        tn_live_reader_close(&r);
        return MHD_NO;
    }
    *s = (stream){.c = c, .models = p->models, .f = f, .r = r};
    struct MHD_Response *m =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, s, free_stream);
    if (!m) free_stream(s);
    return respond(c, 200, "text/event-stream", m);
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* Besides the page's own: where browsers look for an icon, and what another server's page may have left them to ask for
 * (page/worker.js). */
static const tn_page_file *file_of(const char *url) {
    static const char *const names[][2] = {
        {"/", "index.html"},          {"/page.css", "page.css"},
        {"/favicon.ico", "icon.svg"}, {"/manifest.webmanifest", "app.webmanifest"},
        {"/sw.js", "worker.js"},      {"/_app/version.json", "version.json"}};
    const char *name = !strncmp(url, "/page/", 6) ? url + 6 : "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], url)) name = names[i][1];
    for (size_t i = 0; i < tn_n_page_files; i++)
        if (!strcmp(tn_page_files[i].name, name)) return &tn_page_files[i];
    return NULL;
}

static const char *type_of(const char *name) {
    static const char *const types[][2] = {{".js", "text/javascript; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".svg", "image/svg+xml"},
                                           {".json", "application/json"},
                                           {".webmanifest", "application/manifest+json"}};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i][0], dot)) return types[i][1];
    return "text/html; charset=utf-8";
}

bool tn_page_owns(const char *url) { return file_of(url) || !strncmp(url, "/page/", 6); }
bool tn_page_is_public(const char *url) { return file_of(url) != NULL; }

static result send_file(connection *c, const tn_page_file *f) {
    return respond(c, 200, type_of(f->name),
                   MHD_create_response_from_buffer(f->n, (void *)(uintptr_t)f->data, MHD_RESPMEM_PERSISTENT));
}

/* ---- the server's state -------------------------------------------------------------------------------- */

static int64_t resident_bytes(void) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

/* The tools that answers may call, without their schemas. */
static json_t *tools_of(tn_page *p) {
    json_t *all = tn_mcp_servers_list(p->tools, false, NULL, NULL), *list = json_array();
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *t = json_array_get(all, i);
        tn_json_append(&list,
                       tn_json_pack("{s:O, s:O, s:O, s:O, s:O}", "server", json_object_get(t, "server"),
                                    "tool", json_object_get(t, "tool"), "title", json_object_get(t, "title"),
                                    "description", json_object_get(t, "description"), "allowed",
                                    json_object_get(t, "allowed")));
    }
    json_decref(all);
    return list;
}

static json_t *state(tn_page *p) {
    const tn_queue_counts n = tn_models_counts(p->models);
    json_t *counts = tn_json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:i}", "done", (json_int_t)n.n_done, "failed",
        (json_int_t)n.n_failed, "cancelled", (json_int_t)n.n_cancelled, "prompt_tokens",
        (json_int_t)n.prompt_tokens, "cached_tokens", (json_int_t)n.cached_tokens, "output_tokens",
        (json_int_t)n.output_tokens, "prefill_s", n.prefill_s, "decode_s", n.decode_s, "waiting", n.waiting);
    json_t *v = tn_json_pack("{s:o, s:o, s:I, s:I, s:I, s:s}", "models", tn_models_list(p->models, NULL),
                             "counts", counts, "resident_bytes", (json_int_t)resident_bytes(), "started",
                             (json_int_t)p->started, "changes", (json_int_t)atomic_load(&p->changes),
                             "version", TERN_VERSION_STRING);
    if (v) tn_json_set(&v, "documents", json_boolean(p->uploads != NULL));
    if (v && p->tools) tn_json_set(&v, "tools", tools_of(p));
    if (v && p->answers) tn_json_set(&v, "running", tn_answers_running(p->answers));
    if (v && p->talks)
        tn_json_set(&v, "folder",
                    tn_json_string(tn_talks_folder(p->talks), strlen(tn_talks_folder(p->talks))));
    if (v && !p->talks)
        tn_json_set(&v, "no_talks", tn_json_string(p->no_talks.message, strlen(p->no_talks.message)));
    return v;
}

/* ---- conversations ------------------------------------------------------------------------------------- */

static void changed(tn_page *p) { atomic_fetch_add(&p->changes, 1); }

static result list(tn_page *p, connection *c) {
    const char *q = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "q");
    tern_error err = {0};
    json_t *v = NULL;
    if (q && strlen(q) > TN_TALK_QUERY) return refuse(c, 400, "the search has too many words");
    tn_talks_lock(p->talks);
    tern_status st = tn_talks_list(p->talks, q, &v, &err);
    tn_talks_unlock(p->talks);
    return send_result(c, st, &err, v ? tn_json_pack("{s:o}", "talks", v) : NULL);
}

static result create(tn_page *p, connection *c, const json_t *body) {
    char id[TN_TALK_ID];
    tern_error err = {0};
    json_int_t now = (json_int_t)time(NULL);
    tern_status st = tn_talk_new_id(id, &err);
    json_t *v = st == TERN_OK ? tn_json_pack("{s:i, s:s, s:s, s:I, s:I, s:i, s:o, s:o}", "version", 1, "id",
                                             id, "title", "", "created", now, "updated", now, "leaf", 0,
                                             "settings", json_object(), "nodes", json_array())
                              : NULL;
    if (st == TERN_OK && json_object_get(body, "nodes")) st = tn_talk_import(v, body, &err);
    tn_talks_lock(p->talks);
    if (st == TERN_OK) st = tn_talks_put(p->talks, id, v, &err);
    tn_talks_unlock(p->talks);
    if (st == TERN_OK) changed(p);
    return send_result(c, st, &err, v);
}

static result show(tn_page *p, connection *c, const char *id) {
    tern_error err = {0};
    json_t *v = NULL;
    tn_talks_lock(p->talks);
    tern_status st = tn_talks_get(p->talks, id, &v, &err);
    tn_talks_unlock(p->talks);
    if (st == TERN_OK) tn_answers_mend(p->answers, id, v);
    return send_result(c, st, &err, v);
}

static result change(tn_page *p, connection *c, const char *id, const json_t *body) {
    tern_error err = {0};
    json_t *v = NULL;
    tn_talks_lock(p->talks);
    tern_status st = tn_talks_get(p->talks, id, &v, &err);
    if (st == TERN_OK) st = tn_talk_apply(v, body, &err);
    if (st == TERN_OK) st = tn_talks_put(p->talks, id, v, &err);
    tn_talks_unlock(p->talks);
    json_decref(v);
    if (st == TERN_OK) changed(p);
    return send_result(c, st, &err, json_object());
}

static result erase(tn_page *p, connection *c, const char *id) {
    tern_error err = {0};
    int64_t n;
    tn_answers_forget(p->answers, id);
    tn_talks_lock(p->talks);
    tern_status st = tn_talks_erase(p->talks, id, &err);
    tn_talks_unlock(p->talks);
    if (st == TERN_OK) st = tn_checkpoints_clear(&n, &err); /* its tokens, and what they were read to */
    changed(p);
    return send_result(c, st, &err, json_object());
}

static result say(tn_page *p, connection *c, const char *id, const json_t *body) {
    tern_error err = {0};
    json_t *reply = NULL;
    /* a model that has to be loaded takes a while */
    tn_connection_busy(c, true);
    tern_status st = tn_answers_say(p->answers, id, body, tn_client_gone, c, &reply, &err);
    tn_connection_busy(c, false);
    if (st == TERN_OK) changed(p);
    return send_result(c, st, &err, reply);
}

/* {allow: "once" | "always" | "no"} */
static result decide(tn_page *p, connection *c, const char *id, int64_t node, const char *call,
                     const json_t *body) {
    static const char *const words[] = {"once", "always", "no"};
    const char *allow = json_string_value(json_object_get(body, "allow"));
    tern_error err = {0};
    for (int i = 0; allow && i < 3; i++)
        if (!strcmp(allow, words[i]))
            return send_result(c, tn_answers_decide(p->answers, id, node, call, (tn_decision)i, &err), &err,
                               json_object());
    return refuse(c, 400, "'allow' must be once, always or no");
}

/* /answers/N[/how|/stop|/calls/CALL] */
static result answer(tn_page *p, connection *c, const char *id, const char *rest, bool post,
                     const json_t *body) {
    tern_error err = {0};
    char *end;
    int64_t node = strtoll(rest, &end, 10);
    tn_follower *f;
    if (end == rest || node < 1) return refuse(c, 404, "there is no such answer");
    if (!strcmp(end, "/stop") && post) {
        tn_answers_stop(p->answers, id, node);
        return send_json(c, 200, json_object());
    }
    if (!strncmp(end, "/calls/", 7) && post) return decide(p, c, id, node, end + 7, body);
    if (post) return wants(c, "GET");
    if (!strcmp(end, "/how")) {
        json_t *v = tn_answers_how(p->answers, id, node);
        return v ? send_json(c, 200, v) : refuse(c, 404, "there is no record of this answer any more");
    }
    if (*end) return refuse(c, 404, "there is no such address");
    tern_status st = tn_answers_follow(p->answers, id, node, &f, &err);
    return st == TERN_OK ? send_stream(p, c, f, NULL) : send_error(c, &err, 404);
}

/* ---- documents ----------------------------------------------------------------------------------------- */

static result documents(tn_page *p, connection *c, const char *rest, const char *method, const char *body,
                        size_t n_body) {
    tern_error err = {0};
    json_t *v = NULL;
    const char *name = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "name");
    if (!p->uploads) return refuse(c, 503, "this server reads no documents");
    if (*rest == '/' && !strcmp(method, "DELETE"))
        return send_result(c, tn_uploads_remove(p->uploads, rest + 1, &err), &err, json_object());
    if (*rest) return refuse(c, 404, "there is no such address");
    if (!strcmp(method, "GET")) {
        tern_status st = tn_uploads_list(p->uploads, &v, &err);
        return send_result(c, st, &err, v);
    }
    if (strcmp(method, "POST") != 0) return wants(c, "GET, POST");
    if (!name || !*name || !n_body) return refuse(c, 400, "a document needs a name, and bytes");
    tern_status st = tn_uploads_add(p->uploads, name, body, n_body, &v, &err);
    return send_result(c, st, &err, v);
}

/* ---- routes -------------------------------------------------------------------------------------------- */

/* One conversation: url is after /page/talks/. */
static result talk(tn_page *p, connection *c, const char *url, const char *method, const json_t *body) {
    char id[TN_TALK_ID];
    const char *rest = strlen(url) < TN_TALK_ID - 1 ? "" : url + TN_TALK_ID - 1;
    bool post = !strcmp(method, "POST");
    snprintf(id, sizeof id, "%.16s", url);
    if (!tn_talk_id_ok(id)) return refuse(c, 404, "there is no such conversation");
    if (!strncmp(rest, "/answers/", 9)) return answer(p, c, id, rest + 9, post, body);
    if (!strcmp(rest, "/say") && post) return say(p, c, id, body);
    if (*rest) return refuse(c, 404, "there is no such address");
    if (!strcmp(method, "DELETE")) return erase(p, c, id);
    return post ? change(p, c, id, body) : show(p, c, id);
}

static result route(tn_page *p, connection *c, const char *url, const char *method, const json_t *body) {
    tern_error err = {0};
    tn_live_reader *r;
    bool get = !strcmp(method, "GET");
    if (!get && strcmp(method, "POST") && strcmp(method, "DELETE")) return wants(c, "GET, POST, DELETE");
    if (!strcmp(url, "/page/state")) return send_json(c, 200, state(p));
    if (!strcmp(url, "/page/timeline")) {
        const char *name = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "model");
        tn_live *live;
        tern_status st = tn_models_live(p->models, name, &live, &err);
        if (st == TERN_OK) st = tn_live_reader_open(live, &r, &err);
        return st == TERN_OK ? send_stream(p, c, NULL, r) : send_error(c, &err, tn_reply_status(&err));
    }
    if (strncmp(url, "/page/talks", 11) != 0) return refuse(c, 404, "there is no such address");
    if (!p->talks) return refuse(c, 503, p->no_talks.message);
    if (!url[11]) return get ? list(p, c) : create(p, c, body);
    return url[11] == '/' ? talk(p, c, url + 12, method, body) : refuse(c, 404, "there is no such address");
}

enum MHD_Result tn_page_answer(tn_page *p, struct MHD_Connection *c, const char *url, const char *method,
                               const char *body, size_t n_body) {
    const tn_page_file *f = file_of(url);
    bool reads = !strcmp(method, "GET") || !strcmp(method, "HEAD");
    if (f) return reads ? send_file(c, f) : wants(c, "GET, HEAD");
    if (!strncmp(url, "/page/documents", 15)) return documents(p, c, url + 15, method, body, n_body);
    json_t *v = n_body ? tn_json_parse(body, n_body, TN_JSON_REQUEST, NULL) : json_object();
    if (!json_is_object(v)) {
        json_decref(v);
        return refuse(c, 400, "the body is not a JSON object");
    }
    result ok = route(p, c, url, method, v);
    json_decref(v);
    return ok;
}
