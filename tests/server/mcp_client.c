/* The client's side of the Model Context Protocol: what a server says, in any pieces and however wrong; and programs that say nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "server/mcp_client.h"
#include "server/mcp_servers.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tn_mcp_client *client(void) {
    tn_mcp_client *c;
    tern_error err;
    assert_int_equal(tn_mcp_client_new("t", &c, &err), TERN_OK);
    return c;
}

static void hear(tn_mcp_client *c, const char *text) { tn_mcp_client_hear(c, text, strlen(text)); }

/* What became of the question: 1 its result is there, -1 not, 0 nothing yet. */
static int reply(tn_mcp_client *c, tern_error *err) {
    json_t *v;
    int there = tn_mcp_client_reply(c, &v, err);
    assert_true((there == 1) == (v != NULL));
    json_decref(v);
    return there;
}

static void told(tn_mcp_client *c, const char *want) {
    char *text = tn_mcp_client_told(c);
    assert_non_null(text);
    assert_string_equal(text, want);
    free(text);
}

static void test_lines(void **state) {
    (void)state;
    tern_error err;
    tn_mcp_client *c = client();
    assert_int_equal(tn_mcp_client_ask(c, "tools/list", json_object()), 1);
    told(c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{}}\n");
    /* logs, blank lines, other numbers, a text for a number, notifications */
    hear(c,
         "starting...\n\n  \r\n{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n{\"id\":\"1\",\"result\":{}}\n"
         "{\"method\":\"notifications/message\",\"params\":{}}\n[]\n[1,null]\n{\"id\":1.0,\"result\":{}}\n");
    assert_int_equal(reply(c, &err), 0);
    /* logs with brackets, and messages that are no reply */
    hear(c, "[INFO] starting\n{debug} x\n{\"level\":\"info\",\"id\":1}\n[\n{\"x\": 1\n"
            "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{]\n");
    assert_int_equal(reply(c, &err), 0);
    static const char right[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":[]}}\n";
    for (size_t i = 0; right[i]; i++) {
        assert_int_equal(reply(c, &err), 0);
        tn_mcp_client_hear(c, right + i, 1);
    }
    assert_int_equal(reply(c, &err), 1);
    /* a batch, and an answer that nobody waits for any more */
    assert_int_equal(tn_mcp_client_ask(c, "tools/list", json_object()), 2);
    hear(c, right);
    assert_int_equal(reply(c, &err), 0);
    hear(c, "[{\"method\":\"x\"},{\"id\":2,\"result\":{}}]\n");
    assert_int_equal(reply(c, &err), 1);
    tn_mcp_client_close(&c);
}

static void test_wrong(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } all[] = {{"{\"id\":1,\"error\":{\"message\":\"no such tool\"}}\n", "t: no such tool"},
               {"{\"id\":1,\"error\":{}}\n", "t: an error without words"},
               {"{\"id\":1,\"result\":[]}\n", "t: its reply has no result"},
               {"{\"jsonrpc\":\"2.0\",\"id\":1}\n", "t: its reply has no result"},
               {"{\"id\":1,\"result\":{}\n", "t: its reply cannot be read: "},
               {"{\"id\":1,\"id\":1,\"result\":{}}\n", "t: its reply cannot be read: "}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tern_error err = {0};
        tn_mcp_client *c = client();
        (void)tn_mcp_client_ask(c, "tools/call", json_object());
        hear(c, all[i].text);
        assert_int_equal(reply(c, &err), -1);
        assert_memory_equal(err.message, all[i].why, strlen(all[i].why));
        (void)tn_mcp_client_ask(c, "tools/call",
                                json_object()); /* and the next one is as if nothing had been */
        hear(c, "{\"id\":2,\"result\":{}}\n");
        assert_int_equal(reply(c, &err), 1);
        tn_mcp_client_close(&c);
    }
}

/* A message that is too long is dropped to its end, and the one after it is read. */
static void test_long(void **state) {
    (void)state;
    enum { PIECE = 1 << 20 };
    tern_error err = {0};
    tn_mcp_client *c = client();
    char *piece = malloc(PIECE);
    assert_non_null(piece);
    memset(piece, 'x', PIECE);
    (void)tn_mcp_client_ask(c, "tools/call", json_object());
    hear(c, "{\"id\":1,\"result\":{\"a\":\"");
    for (int i = 0; i < 9; i++) tn_mcp_client_hear(c, piece, PIECE);
    assert_int_equal(reply(c, &err), 0);
    hear(c, "\"}}\n");
    assert_int_equal(reply(c, &err), -1);
    assert_string_equal(err.message, "t: its reply cannot be read: a message is longer than 8 MiB");
    (void)tn_mcp_client_ask(c, "tools/call", json_object());
    hear(c, "{\"id\":2,\"result\":{}}\n");
    assert_int_equal(reply(c, &err), 1);
    free(piece);
    tn_mcp_client_close(&c);
}

static void test_asked(void **state) {
    (void)state;
    tn_mcp_client *c = client();
    hear(c, "{\"id\":\"a\",\"method\":\"ping\"}\n");
    told(c, "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":{}}\n");
    hear(c, "{\"id\":3,\"method\":\"sampling/createMessage\",\"params\":{}}\n");
    told(c, "{\"jsonrpc\":\"2.0\",\"id\":3,\"error\":{\"code\":-32601,\"message\":\"tern offers no "
            "sampling/createMessage\"}}\n");
    hear(c, "{\"id\":{},\"method\":\"ping\"}\n"); /* no number that could be answered */
    assert_null(tn_mcp_client_told(c));
    /* a server that asks without end, and reads no answers, costs no more than this */
    for (int i = 0; i < 100000; i++) hear(c, "{\"id\":3,\"method\":\"ping\"}\n");
    char *text = tn_mcp_client_told(c);
    assert_true(strlen(text) < (1 << 20) + 100);
    free(text);
    tn_mcp_client_close(&c);
}

static void test_results(void **state) {
    (void)state;
    static const struct {
        const char *json, *text;
        size_t most;
        bool failed;
    } all[] = {
        {"{\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}", "a\nb", 100,
         false},
        {"{\"content\":[{\"type\":\"text\",\"text\":\"no\"}],\"isError\":true}", "no", 100, true},
        {"{}", "", 100, false},
        {"{\"content\":\"x\",\"structuredContent\":{\"a\":1}}", "{\"a\":1}", 100, false},
        {"{\"content\":[{\"type\":\"image\",\"data\":\"AAAA\",\"mimeType\":\"image/png\"}]}",
         "[image, image/png: not shown]", 100, false},
        {"{\"content\":[{\"type\":\"resource\",\"resource\":{\"uri\":\"file:///a\",\"text\":\"in it\"}}]}",
         "in it", 100, false},
        {"{\"content\":[{\"type\":\"resource_link\",\"uri\":\"file:///a\"},7]}",
         "[resource_link, file:///a: not shown]\n[something: not shown]", 100, false},
        {"{\"content\":[{\"type\":\"text\",\"text\":\"ab\\u00e9cd\"}]}",
         "ab\n[the rest of the result is left out: it is too long]", 3, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tern_error err;
        char *text;
        bool failed;
        json_t *v = tn_json_parse(all[i].json, strlen(all[i].json), 0, NULL);
        assert_int_equal(tn_mcp_result_text(v, all[i].most, &text, &failed, &err), TERN_OK);
        assert_string_equal(text, all[i].text);
        assert_int_equal(failed, all[i].failed);
        free(text);
        json_decref(v);
    }
}

static void test_tools(void **state) {
    (void)state;
    static const char json[] =
        "{\"tools\":[{\"name\":\"a\"},{\"name\":\"\"},{\"name\":\"b c\"},{\"name\":7},3,{\"name\":"
        "\"d\\u0000e\"},{\"name\":\"*\"},{\"name\":\"f\",\"inputSchema\":[],\"description\":7}]}";
    tern_error err;
    json_t *v = tn_json_parse(json, strlen(json), JSON_ALLOW_NUL, NULL), *list = json_array();
    assert_non_null(v);
    assert_int_equal(tn_mcp_read_tools("t", v, &list, &err), TERN_OK);
    assert_int_equal(json_array_size(list), 2);
    const json_t *f = json_array_get(list, 1);
    assert_string_equal(json_string_value(json_object_get(f, "name")), "f");
    assert_true(json_is_null(json_object_get(f, "description")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(f, "inputSchema"), "type")),
                        "object");
    json_decref(list);
    json_decref(v);
}

static bool at_once(void *user) {
    ++*(int *)user;
    return true;
}

/* Programs that say nothing, end, or read nothing; the one that waits may stop. */
static void test_programs(void **state) {
    (void)state;
    static const struct {
        const char *command, *why;
    } all[] = {{"exec sleep 1000", "t did not answer within 0 s"},
               {"exit 3", "t ended with status 3"},
               {"echo 'no settings' >&2; exit 4", "t ended with status 4: no settings"},
               {"kill -9 $$", "t was ended by signal 9"},
               {"exec /no/such/program 2>/dev/null", "t ended with status 127"}};
    enum { N = sizeof all / sizeof *all };
    for (size_t k = 0; k < 2 * N; k++) {
        const size_t i = k % N;
        tern_error err;
        tn_mcp_client *c;
        tn_keeper *keeper = NULL;
        if (k >= N) assert_int_equal(tn_keeper_open(&all[i].command, 1, &keeper, &err), TERN_OK);
        assert_int_equal(tn_mcp_client_start("t", all[i].command, keeper, 0, &c, &err), TERN_OK);
        assert_int_not_equal(tn_mcp_client_open(c, i ? 1000000 : 20, NULL, NULL, &err), TERN_OK);
        assert_string_equal(err.message, all[i].why);
        json_t *tools = tn_mcp_client_tools(c, 20, NULL, NULL), *result;
        assert_int_equal(json_array_size(tools), 0);
        json_decref(tools);
        int asked = 0;
        tern_status st = tn_mcp_client_call(c, "x", json_object(), 60000, at_once, &asked, &result, &err);
        assert_int_equal(st, i ? TERN_E_IO : TERN_E_CANCELLED);
        tn_mcp_client_close(&c);
        tn_keeper_close(&keeper);
    }
}

/* A call that another one has to end before. */
typedef struct waiting {
    tn_mcp_client *c;
    atomic_bool in, out, done;
} waiting;

static bool until_out(void *user) {
    waiting *w = user;
    w->in = true;
    return w->out;
}

static void *call_and_hang(void *user) {
    waiting *w = user;
    tern_error err;
    json_t *result;
    (void)tn_mcp_client_call(w->c, "x", json_object(), 60000, until_out, w, &result, &err);
    w->done = true;
    return NULL;
}

/* Who waits for the call of somebody else may stop, whatever becomes of that one. */
static void test_turn(void **state) {
    (void)state;
    tern_error err;
    waiting w = {0};
    pthread_t t;
    json_t *result;
    int asked = 0;
    assert_int_equal(tn_mcp_client_start("t", "exec sleep 1000", NULL, 0, &w.c, &err), TERN_OK);
    assert_int_not_equal(tn_mcp_client_open(w.c, 20, NULL, NULL, &err), TERN_OK);
    assert_int_equal(pthread_create(&t, NULL, call_and_hang, &w), 0);
    while (!w.in) poll(NULL, 0, 10);
    assert_int_equal(tn_mcp_client_call(w.c, "x", json_object(), 60000, at_once, &asked, &result, &err),
                     TERN_E_CANCELLED);
    assert_false(w.done);
    w.out = true;
    pthread_join(t, NULL);
    tn_mcp_client_close(&w.c);
}

#define HANDS                                                                                                \
    "read a; echo "                                                                                          \
    "'{\"id\":1,\"result\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"tools\":{}}}}'; read b; "

/* To list tools again ends where nobody wants it any more, and those of before stay. */
static void test_list_again(void **state) {
    (void)state;
    tern_error err;
    tn_mcp_client *c;
    int asked = 0;
    assert_int_equal(tn_mcp_client_start(
                         "t",
                         HANDS "read c; echo '{\"method\":\"notifications/tools/list_changed\"}';"
                               "echo '{\"id\":2,\"result\":{\"tools\":[{\"name\":\"a\"}]}}'; exec sleep 1000",
                         NULL, 0, &c, &err),
                     TERN_OK);
    assert_int_equal(tn_mcp_client_open(c, 60000, NULL, NULL, &err), TERN_OK);
    for (int i = 1; i < 3; i++) { /* it is asked for again by the next one */
        json_t *tools = tn_mcp_client_tools(c, 1000000, at_once, &asked);
        assert_int_equal(json_array_size(tools), 1);
        assert_int_equal(asked, i);
        json_decref(tools);
    }
    tn_mcp_client_close(&c);
}

/* All pages have one time together. Here they take three seconds at least. */
static void test_pages(void **state) {
    (void)state;
    tern_error err;
    tn_mcp_client *c;
    assert_int_equal(
        tn_mcp_client_start(
            "t",
            HANDS "i=2; while read c; do sleep 0.05; "
                  "echo '{\"id\":'$i',\"result\":{\"tools\":[],\"nextCursor\":\"x\"}}'; i=$((i+1)); done",
            NULL, 0, &c, &err),
        TERN_OK);
    assert_int_equal(tn_mcp_client_open(c, 500, NULL, NULL, &err), TERN_E_IO);
    tn_mcp_client_close(&c);
}

static bool when_there(void *path) { return !access(path, F_OK); }

/* A program that starts again and says nothing may be stopped, and the next call begins with another one. */
static void test_revived(void **state) {
    (void)state;
    tern_error err;
    tn_mcp_client *c;
    json_t *result;
    int asked = 0;
    char folder[] = "/tmp/tern-mcp-XXXXXX", command[200], path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/n", folder);
    snprintf(command, sizeof command, "test -e %s && exec sleep 1000; exit 3", path);
    assert_int_equal(tn_mcp_client_start("t", command, NULL, 0, &c, &err), TERN_OK);
    assert_int_not_equal(tn_mcp_client_open(c, 60000, NULL, NULL, &err), TERN_OK);
    tn_mcp_client_revives(c, NULL, NULL);
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
    assert_int_equal(tn_mcp_client_call(c, "x", json_object(), 1000000, at_once, &asked, &result, &err),
                     TERN_E_CANCELLED);
    assert_int_equal(asked, 1);
    assert_int_equal(unlink(path), 0); /* now it ends again */
    assert_int_equal(tn_mcp_client_call(c, "x", json_object(), 1000000, when_there, path, &result, &err),
                     TERN_E_IO);
    assert_string_equal(err.message, "t ended with status 3");
    tn_mcp_client_close(&c);
    rmdir(folder);
}

/* What a program starts and leaves in its group ends with it, also where it takes no notice of being told: of this process,
 * of a keeper, and of a keeper whose process ends without a word. */
static void test_helpers(void **state) {
    (void)state;
    for (int k = 0; k < 6; k++) {
        const bool deaf = k % 2;
        tern_error err;
        tn_mcp_client *c = NULL;
        tn_keeper *keeper = NULL;
        tn_child child;
        char folder[] = "/tmp/tern-mcp-XXXXXX", command[200], path[64], said[8];
        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof path, "%s/pipe", folder);
        assert_int_equal(mkfifo(path, 0600), 0);
        int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        assert_true(fd >= 0);
        snprintf(command, sizeof command, "(%s echo in; exec sleep 1000) >%s & exit 3",
                 deaf ? "trap '' TERM;" : "", path);
        if (k > 1) assert_int_equal(tn_keeper_open((const char *[]){command}, 1, &keeper, &err), TERN_OK);
        if (k < 4) assert_int_equal(tn_mcp_client_start("t", command, keeper, 0, &c, &err), TERN_OK);
        else assert_int_equal(tn_keeper_start(keeper, 0, &child, &err), TERN_OK);
        ssize_t n;
        while ((n = read(fd, said, sizeof said)) <= 0) poll(NULL, 0, 10); /* it is there */
        tn_mcp_client_close(&c);
        tn_keeper_close(&keeper);
        for (int i = 0; i < 6000 && (n = read(fd, said, sizeof said)) != 0; i++) poll(NULL, 0, 10);
        assert_int_equal(n, 0);
        close(fd);
        unlink(path);
        rmdir(folder);
    }
}

static void count_lines(void *user, const char *line) {
    (void)line;
    ++*(int *)user;
}

/* A program that has ended is started again by the next call, some times in a row; a reply begins the count anew. */
static void test_starts(void **state) {
    (void)state;
    for (int kept = 0; kept < 2; kept++) {
        tern_error err;
        tn_mcp_client *c;
        tn_keeper *keeper = NULL;
        int said = 0;
        char folder[] = "/tmp/tern-mcp-XXXXXX", command[700], path[64];
        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof path, "%s/good", folder);
        /* it ends at a call, or, where the file is there, at the call after an answered one */
        snprintf(command, sizeof command,
                 "say() { read a; echo '{\"id\":'$(echo \"$a\" | sed "
                 "'s/.*\"id\":\\([0-9]*\\).*/\\1/')',\"result\":'\"$1\"'}'; }; "
                 "say '{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{}}'; read b; test -e %s && say "
                 "'{\"content\":[]}'; "
                 "read d; exit 3",
                 path);
        if (kept) assert_int_equal(tn_keeper_open((const char *[]){command}, 1, &keeper, &err), TERN_OK);
        assert_int_equal(tn_mcp_client_start("t", command, keeper, 0, &c, &err), TERN_OK);
        tn_mcp_client_revives(c, count_lines, &said);
        assert_int_equal(tn_mcp_client_open(c, 60000, NULL, NULL, &err), TERN_OK);
        enum { BEFORE = 2, GOOD = BEFORE, LAST = GOOD + 1 + TN_MCP_STARTS };
        for (int i = 0; i < LAST + 3; i++) {
            json_t *result;
            FILE *f = i == GOOD ? fopen(path, "w") : NULL;
            if (f) fclose(f);
            tern_status st = tn_mcp_client_call(c, "x", json_object(), 60000, NULL, NULL, &result, &err);
            assert_int_equal(st, i == GOOD ? TERN_OK : TERN_E_IO);
            json_decref(result);
            if (i == GOOD) unlink(path);
            else if (i <= LAST) assert_string_equal(err.message, "t ended with status 3");
            else
                assert_non_null(
                    strstr(err.message, "it was started 5 times without a reply, and is not any more"));
        }
        assert_int_equal(said, BEFORE + TN_MCP_STARTS + 1);
        tn_mcp_client_close(&c);
        tn_keeper_close(&keeper);
        rmdir(folder);
    }
}

static bool after_some(void *user) { return ++*(int *)user > 12; }

/* A call that says that it goes on is waited for; what it says of another one does not count. */
static void test_progress(void **state) {
    (void)state;
    for (int right = 0; right < 2; right++) {
        tern_error err;
        tn_mcp_client *c;
        json_t *result;
        int asked = 0;
        const char *command =
            right ? "exec yes '{\"method\":\"notifications/progress\",\"params\":{\"progressToken\":2}}'"
                  : "exec yes '{\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1}}'";
        assert_int_equal(tn_mcp_client_start("t", command, NULL, 0, &c, &err), TERN_OK);
        assert_int_equal(tn_mcp_client_open(c, 20, NULL, NULL, &err), TERN_E_IO);
        tern_status st = tn_mcp_client_call(c, "x", json_object(), 500, after_some, &asked, &result, &err);
        assert_int_equal(st, right ? TERN_E_CANCELLED : TERN_E_IO);
        tn_mcp_client_close(&c);
    }
}

static void test_allowed(void **state) {
    (void)state;
    static const char *const given[] = {"t=exec sleep 1000", "t-2=exec sleep 1000", NULL},
                             *const allowed[] = {"t.a", "t-2.*", NULL};
    static const struct {
        const char *server, *tool;
        bool may;
    } all[] = {{"t", "a", true},   {"t", "ab", false}, {"t", "*", false}, {"t", "", false},
               {"t-2", "x", true}, {"t-", "a", false}, {"", "a", false}};
    tn_mcp_servers *s;
    tern_error err;
    assert_int_equal(tn_mcp_servers_start(given, allowed, false, &s, &err), TERN_OK);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        json_t *e = tn_json_pack("{s:s, s:s}", "server", all[i].server, "tool", all[i].tool);
        assert_int_equal(tn_mcp_servers_allows(s, e), all[i].may);
        json_decref(e);
    }
    /* what somebody answers is for one tool, whatever it is called */
    json_t *star = tn_json_pack("{s:s, s:s}", "server", "t", "tool", "*"),
           *other = tn_json_pack("{s:s, s:s}", "server", "t", "tool", "rm");
    assert_true(tn_mcp_servers_allow(s, star));
    assert_true(tn_mcp_servers_allows(s, star));
    assert_false(tn_mcp_servers_allows(s, other));
    json_decref(star);
    json_decref(other);
    tn_mcp_servers_close(&s);
}

/* What is kept of an answer holds for the command that it was given for. */
static void test_kept(void **state) {
    (void)state;
    static const char *const commands[] = {"t=exec sleep 1000", "t=exec sleep 1001", "t=exec sleep 1000"},
                             *const none[] = {NULL};
    char names[3][TN_MCP_KEPT_NAME];
    json_t *e = tn_json_pack("{s:s, s:s}", "server", "t", "tool", "a");
    for (int i = 0; i < 3; i++) {
        const char *const given[] = {commands[i], NULL};
        tn_mcp_servers *s;
        tern_error err;
        assert_int_equal(tn_mcp_servers_start(given, none, false, &s, &err), TERN_OK);
        tn_mcp_servers_kept_name(s, e, names[i]);
        tn_mcp_servers_close(&s);
    }
    json_decref(e);
    assert_memory_equal(names[0], "t.a ", 4);
    assert_string_not_equal(names[0], names[1]);
    assert_string_equal(names[0], names[2]);
}

static void count_line(void *user, const char *line) { strcat(strcat(user, line), "\n"); }

static bool never(void *user) { return user == NULL; }

/* More tools than anybody reads, all alike: each has a name of its own, and what is left out is told. */
static void test_many(void **state) {
    (void)state;
    enum { SERVERS = 5, EACH = 150 };
    char folder[] = "/tmp/tern-mcp-XXXXXX", path[64], given[SERVERS][300], told[2000] = "";
    const char *all[SERVERS + 1] = {NULL}, *const none[] = {NULL};
    tn_mcp_servers *s;
    tern_error err;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tools", folder);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs("{\"id\":2,\"result\":{\"tools\":[{\"name\":\"a_2\"}", f);
    for (int i = 0; i < EACH; i++) fprintf(f, ",{\"name\":\"a\\u%04x\"}", 0x4e00 + i);
    fputs("]}}\n", f);
    assert_int_equal(fclose(f), 0);
    for (int i = 0; i < SERVERS; i++) {
        snprintf(given[i], sizeof given[i], "s%d=%sread c; cat %s; exec sleep 1000", i, HANDS, path);
        all[i] = given[i];
    }
    assert_int_equal(tn_mcp_servers_start(all, none, false, &s, &err), TERN_OK);
    tn_mcp_servers_open(s, count_line, never, told);
    assert_string_equal(told, "s0 has more than 128 tools: the others are left out\n"
                              "s1 has more than 128 tools: the others are left out\n"
                              "s2 has more than 128 tools: the others are left out\n"
                              "s3 has more than 128 tools: the others are left out\n"
                              "s4 has more than 128 tools: the others are left out\n"
                              "there are 640 tools: those after the first 512 are left out\n");
    json_t *list = tn_mcp_servers_list(s, false, NULL, NULL), *t;
    size_t i;
    assert_int_equal(json_array_size(list), TN_MCP_TOOLS);
    json_array_foreach(list, i, t) {
        const char *name = json_string_value(json_object_get(t, "name"));
        assert_true(strlen(name) <= 64);
        assert_ptr_equal(tn_mcp_servers_find(list, name), t);
    }
    json_decref(list);
    tn_mcp_servers_close(&s);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_wrong),      cmocka_unit_test(test_long),
        cmocka_unit_test(test_asked),    cmocka_unit_test(test_tools),      cmocka_unit_test(test_results),
        cmocka_unit_test(test_programs), cmocka_unit_test(test_progress),   cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_turn),     cmocka_unit_test(test_list_again), cmocka_unit_test(test_pages),
        cmocka_unit_test(test_revived),  cmocka_unit_test(test_helpers),    cmocka_unit_test(test_kept),
        cmocka_unit_test(test_starts),   cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
