/* The client's side of the Model Context Protocol: what a server says, in any pieces and however wrong; and programs that say nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "server/mcp_client.h"
#include "server/mcp_servers.h"

#include <stdlib.h>
#include <string.h>

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
               {"{\"id\":1}\n", "t: its reply has no result"},
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
        "\"d\\u0000e\"},{\"name\":\"f\",\"inputSchema\":[],\"description\":7}]}";
    tern_error err;
    json_t *v = tn_json_parse(json, strlen(json), JSON_ALLOW_NUL, NULL), *list = json_array();
    assert_non_null(v);
    assert_int_equal(tn_mcp_read_tools(v, &list, &err), TERN_OK);
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
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tern_error err;
        tn_mcp_client *c;
        assert_int_equal(tn_mcp_client_start("t", all[i].command, &c, &err), TERN_OK);
        assert_int_not_equal(tn_mcp_client_open(c, i ? 1000000 : 20, &err), TERN_OK);
        assert_string_equal(err.message, all[i].why);
        json_t *tools = tn_mcp_client_tools(c, 20), *result;
        assert_int_equal(json_array_size(tools), 0);
        json_decref(tools);
        int asked = 0;
        tern_status st = tn_mcp_client_call(c, "x", json_object(), 60000, at_once, &asked, &result, &err);
        assert_int_equal(st, i ? TERN_E_IO : TERN_E_CANCELLED);
        tn_mcp_client_close(&c);
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
        assert_int_equal(tn_mcp_client_start("t", command, &c, &err), TERN_OK);
        assert_int_equal(tn_mcp_client_open(c, 20, &err), TERN_E_IO);
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
    assert_int_equal(tn_mcp_servers_start(given, allowed, &s, &err), TERN_OK);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        json_t *e = tn_json_pack("{s:s, s:s}", "server", all[i].server, "tool", all[i].tool);
        assert_int_equal(tn_mcp_servers_allows(s, e), all[i].may);
        json_decref(e);
    }
    tn_mcp_servers_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_wrong),    cmocka_unit_test(test_long),
        cmocka_unit_test(test_asked),    cmocka_unit_test(test_tools),    cmocka_unit_test(test_results),
        cmocka_unit_test(test_programs), cmocka_unit_test(test_progress), cmocka_unit_test(test_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
