/* JSON Schemas as grammars: the JSON Schema Test Suite (tests/text/schema_suite), what is refused, what is
 * bounded. A valid instance must be accepted in some order of its keys, an invalid one in none. */
#include "base/rng.h"
#include "text/grammar/grammar.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/scarce.h"

static tn_ctx ctx;

/* ---- an instance as text, in every order of its keys ---------------------------------------------- */

enum { ORDERS_MAX = 4000 };
typedef struct texts {
    char **v;
    size_t n;
} texts;

static char *cat3(const char *a, const char *b, const char *c) {
    size_t n = strlen(a) + strlen(b) + strlen(c) + 1;
    char *s = malloc(n);
    assert_non_null(s);
    snprintf(s, n, "%s%s%s", a, b, c);
    return s;
}

static void put(texts *t, char *s) {
    t->v = realloc(t->v, (t->n + 1) * sizeof *t->v);
    assert_non_null(t->v);
    t->v[t->n++] = s;
}

static void drop(texts *t) {
    for (size_t i = 0; i < t->n; i++) free(t->v[i]);
    free(t->v);
    *t = (texts){0};
}

static texts all_orders(const json_t *v);

/* Each of a with each of b after it. */
static texts joined(texts a, const char *between, texts b) {
    texts t = {0};
    for (size_t i = 0; i < a.n; i++)
        for (size_t j = 0; j < b.n && t.n < ORDERS_MAX; j++) put(&t, cat3(a.v[i], between, b.v[j]));
    drop(&a);
    drop(&b);
    return t;
}

static void members(const json_t *v, const char **names, size_t n, unsigned used, texts so_far, texts *out) {
    if (used == (1u << n) - 1) {
        for (size_t i = 0; i < so_far.n && out->n < ORDERS_MAX; i++) put(out, cat3("{", so_far.v[i], "}"));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (used >> i & 1) continue;
        json_t *key = json_string(names[i]);
        char *quoted = json_dumps(key, JSON_ENCODE_ANY);
        texts head = {0};
        for (size_t k = 0; k < so_far.n; k++) {
            char *s = cat3(so_far.v[k], used ? "," : "", quoted);
            put(&head, s);
        }
        head = joined(head, ":", all_orders(json_object_get(v, names[i])));
        members(v, names, n, used | 1u << i, head, out);
        drop(&head);
        free(quoted);
        json_decref(key);
    }
}

static texts all_orders(const json_t *v) {
    texts t = {0};
    if (json_is_object(v)) {
        const char *names[16], *name;
        json_t *w;
        size_t n = 0;
        json_object_foreach((json_t *)(uintptr_t)v, name, w) {
            assert_true(n < 16);
            names[n++] = name;
        }
        texts none = {0};
        put(&none, cat3("", "", ""));
        members(v, names, n, 0, none, &t);
        drop(&none);
    } else if (json_is_array(v)) {
        put(&t, cat3("[", "", ""));
        for (size_t i = 0; i < json_array_size(v); i++)
            t = joined(t, i ? "," : "", all_orders(json_array_get(v, i)));
        texts end = {0};
        put(&end, cat3("]", "", ""));
        t = joined(t, "", end);
    } else if (json_is_real(v)) {
        char buf[400];
        double x = json_real_value(v);
        if (x == floor(x) && fabs(x) < 1e15) snprintf(buf, sizeof buf, "%.0f", x);
        else
            for (int d = 1; d <= 17; d++) {
                snprintf(buf, sizeof buf, "%.*g", d, x);
                if (strtod(buf, NULL) == x) break;
            }
        put(&t, cat3(buf, "", ""));
    } else {
        char *s = json_dumps(v, JSON_ENCODE_ANY);
        assert_non_null(s);
        put(&t, s);
    }
    return t;
}

/* ---- the suite ------------------------------------------------------------------------------------ */

static struct { int schemas, refused, valid, invalid, wrong, accepted, leap; } sum;

/* A leap second is 23:59:60 UTC. Others write the same moment in their own zone: that is not followed. */
static bool leap_second(const char *text) { return strstr(text, ":60") && !strpbrk(text, "zZ"); }

static void one_schema(const char *file, const json_t *group) {
    const char *name = json_string_value(json_object_get(group, "description"));
    char *schema = json_dumps(json_object_get(group, "schema"), JSON_ENCODE_ANY);
    tern_error err = {0};
    tn_grammar *g;
    tern_status st = tn_grammar_open_schema(&ctx, schema, strlen(schema), &g, &err);
    sum.schemas++;
    bool nothing = st == TERN_E_INVALID && strstr(err.message, "no text fits");
    if (st != TERN_OK && !nothing) {
        assert_true(st == TERN_E_UNSUPPORTED || st == TERN_E_LIMIT || st == TERN_E_INVALID);
        printf("refused: %s: %s: %s\n", file, name, err.message);
        sum.refused++;
        free(schema);
        return;
    }
    const json_t *tests = json_object_get(group, "tests");
    for (size_t i = 0; i < json_array_size(tests); i++) {
        const json_t *t = json_array_get(tests, i);
        bool valid = json_is_true(json_object_get(t, "valid")), accepted = false;
        texts all = all_orders(json_object_get(t, "data"));
        for (size_t k = 0; k < all.n && !nothing; k++)
            accepted |= tn_grammar_accepts(g, all.v[k], strlen(all.v[k]));
        sum.valid += valid;
        sum.invalid += !valid;
        if (accepted != valid && leap_second(all.v[0])) {
            sum.leap++;
        } else if (accepted != valid) {
            printf("WRONG: %s: %s: %s: %s is %s\n  %s\n", file, name,
                   json_string_value(json_object_get(t, "description")), all.v[0],
                   accepted ? "accepted" : "rejected", schema);
            sum.wrong++;
            sum.accepted += accepted;
        }
        drop(&all);
    }
    tn_grammar_close(&g);
    free(schema);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void run_folder(const char *folder) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    char *names[100];
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) && n < 100;)
        if (strstr(e->d_name, ".json")) names[n++] = strdup(e->d_name);
    closedir(d);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        json_error_t je;
        json_t *groups = json_load_file(path, JSON_ALLOW_NUL, &je);
        assert_non_null(groups);
        for (size_t k = 0; k < json_array_size(groups); k++) one_schema(names[i], json_array_get(groups, k));
        json_decref(groups);
        free(names[i]);
    }
    printf("%d schemas, %d refused; %d valid and %d invalid instances, %d wrong (%d accepted)\n", sum.schemas,
           sum.refused, sum.valid, sum.invalid, sum.wrong, sum.accepted);
}

static void suite(void **state) {
    (void)state;
    run_folder(TN_SOURCE_DIR "/tests/text/schema_suite");
    assert_int_equal(sum.wrong, 0);
    assert_int_equal(sum.leap, 5);
    assert_int_equal(sum.refused, 25); /* fewer is better; the lines above name each and its reason */
}

/* ---- what is refused, and by what name ------------------------------------------------------------ */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *schema, *message;
    } all[] = {
        {"{", "not valid JSON"},
        {"3", "must be an object or a truth value"},
        {"{\"type\":\"text\"}", "type 'text' does not exist"},
        {"{\"requird\":[\"a\"]}", "'requird'"},
        {"{\"$ref\":\"#/$defs/no\"}", "leads nowhere"},
        {"{\"$ref\":\"http://elsewhere/\"}", "only those inside"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "alternative of itself"},
        {"{\"minLength\":-1}", "'minLength' must be a whole number"},
        {"{\"not\":{}}", "no text fits"},
        {"{\"not\":{\"$dynamicRef\":\"#a\"}}", "dynamicRef"},
        {"{\"not\":{\"requird\":[\"a\"]}}", "'requird'"},
        {"{\"type\":\"string\",\"pattern\":\"(?i)a\"}", "looking ahead or behind, or flags"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a\"}", "looking ahead"},
        {"false", "no text fits"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", "no text fits"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
         "no text fits"},
        {"{\"type\":\"integer\",\"multipleOf\":0}", "'multipleOf' must be a number above 0"},
        {"{\"type\":\"number\",\"multipleOf\":-0.5}", "'multipleOf' must be a number above 0"},
        {"{\"type\":\"string\",\"multipleOf\":\"2\"}", "'multipleOf' must be a number above 0"},
        {"{\"not\":{\"items\":{\"multipleOf\":-1}}}", "'multipleOf' must be a number above 0"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tern_error err = {0};
        tn_grammar *g;
        assert_int_not_equal(tn_grammar_open_schema(&ctx, all[i].schema, strlen(all[i].schema), &g, &err),
                             TERN_OK);
        assert_null(g);
        if (!strstr(err.message, all[i].message)) fail_msg("%s: %s", all[i].schema, err.message);
    }
}

static tn_grammar *schema_of(const char *text) {
    tern_error err = {0};
    tn_grammar *g;
    if (tn_grammar_open_schema(&ctx, text, strlen(text), &g, &err) != TERN_OK)
        fail_msg("%s: %s", text, err.message);
    return g;
}

static void texts_of(void **state) {
    (void)state;
    static const struct {
        const char *schema, *yes[6], *no[8];
    } all[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"}},"
         "\"required\":[\"b\"],\"additionalProperties\":false}",
         {"{\"a\":1,\"b\":true}", "{ \"b\": false }", "{\n  \"a\": -3,\n  \"b\": true\n}"},
         {"{}", "{\"b\":true,\"a\":1}", "{\"a\":1}", "{\"b\":true,}", "{\"b\":true,\"b\":true}",
          "{ \n\"b\":true}", "{  \"b\":true}"}},
        {"{\"type\":\"string\",\"format\":\"email\"}",
         {"\"joe.bloggs@example.com\"", "\"te~st@example.com\"", "\"a+b@x\"", "\"o'neil@my-host.example\""},
         {"\"2962\"", "\"@example.com\"", "\".test@example.com\"", "\"test.@example.com\"",
          "\"te..st@example.com\"", "\"a@b@c\"", "\"a@-b.c\"", "\"a b@c.d\""}},
        {"{\"type\":\"string\",\"format\":\"hostname\"}",
         {"\"www.example.com\"", "\"localhost\"", "\"1host\"", "\"a-b.c-d.e\""},
         {"\"-bad-host-name-\"", "\"host_name\"", "\"\"", "\".example\"", "\"example.\"", "\"a..b\"",
          "\"xn--X\"", "\"a-.b\""}},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}",
         {"\"::1\"", "\"::\"", "\"::abef\"", "\"1:2:3:4:5:6:7:8\"", "\"::ffff:192.168.0.1\"",
          "\"1::d6:192.168.0.1\""},
         {"\"12345::\"", "\"1:2:3:4:5:6:7\"", "\":2:3:4:5:6:7:8\"", "\"1:2:3:4:5:6:7:\"", "\"1::d6::42\"",
          "\"::laptop\"", "\"1:2:3:4:5:::8\"", "\"::ffff:192.168.0.256\""}},
        {"{\"type\":\"string\",\"format\":\"duration\"}",
         {"\"P4DT12H30M5S\"", "\"P4Y\"", "\"PT0S\"", "\"P1M\"", "\"P2W\"", "\"P1Y2MT1M\""},
         {"\"P\"", "\"PT\"", "\"PT1D\"", "\"P2D1Y\"", "\"P1Y2W\"", "\"P1\"", "\"4DT12H\"", "\"PT1H2S\""}},
        {"{\"type\":\"string\",\"format\":\"uri\"}",
         {"\"http://foo.bar/?baz=qux#quux\"", "\"urn:oasis:names:specification:docbook:dtd:xml:4.1.2\"",
          "\"ldap://[2001:db8::7]/c=GB?objectClass?one\"", "\"mailto:a@b.c\"",
          "\"https://x.org:8080/a%20b//c\"", "\"file:///etc/hosts\""},
         {"\"//foo.bar/?baz\"", "\"/abc\"", "\"\\\\\\\\share\"", "\"abc\"", "\"http:// shouldfail.com\"",
          "\":// should fail\"", "\"bar,baz:{x}\"", "\"http://a b\""}},
        {"{\"type\":\"array\",\"items\":{\"enum\":[1,\"x\"]},\"minItems\":1,\"maxItems\":3}",
         {"[1]", "[\"x\",1, 1]"},
         {"[]", "[1,1,1,1]", "[2]", "[1 ,1]", "[1,]"}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xe2\x82\xac\\n\\u00e9\"", "\"\\ud83d\\ude00a\""},
         {"\"a\"", "\"abcd\"", "\"\\ud83da\"", "\"a\nb\"", "\"\\ude00\\ude00\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[0-9]+$\",\"maxLength\":6}",
         {"\"AB-1\"", "\"AB-123\""},
         {"\"AB-1234\"", "\"AB-\"", "\"ab-1\""}},
        {"{\"type\":\"string\",\"pattern\":\"b[\\\"\\\\\\\\]?c|^x$\"}",
         {"\"abc\"", "\"x\"", "\"b\\\"c\"", "\"b\\\\c!\""},
         {"\"xx\"", "\"b\"", "\"b\\nc\""}},
        {"{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{"
         "\"anyOf\":[{\"$ref\":"
         "\"#/$defs/"
         "t\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"n\"],\"additionalProperties\":false}},\"$ref\":"
         "\"#/$defs/t\"}",
         {"{\"v\":1,\"n\":{\"v\":2,\"n\":null}}"},
         {"{\"v\":1}", "{\"v\":1,\"n\":{}}"}},
        {"{\"properties\":{\"ab\":true,\"ac\":false,\"\\\"\":{\"const\":1}},\"type\":\"object\"}",
         {"{\"ab\":1,\"x\":[]}", "{\"a\":1}", "{\"\\\"\":1}", "{\"\\\"\\\"\":2}", "{\"abc\":{\"y\":null}}"},
         {"{\"ac\":1}", "{\"\\\"\":2}", "{\"\\u0061c\":1}"}},
        {"{\"type\":\"integer\"}", {"12345678901234567", "-1", "0"}, {"123456789012345678"}},
        {"{\"type\":\"integer\",\"minimum\":5}", {"12345678901234567", "5"}, {"123456789012345678", "4"}},
        {"{\"type\":\"number\"}", {"1.12345678901234567e-308"}, {"1.123456789012345678", "1e1234"}},
        {"{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":2}",
         {"0", "0.5", "1.999", "1", "1.0"},
         {"2", "-0.5", "2.0", "1e0", "01"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":-1,\"maximum\":1}",
         {"-0.25", "0", "1", "1.00", "0.99"},
         {"-1", "-1.0", "1.01", "-1.5", "2"}},
        {"true",
         {"{\"a\":[1,null,{\"b\":\"c\"}]}", "1.5e-3", "\"\""},
         {"", "{", "nul", "[1,]", "{\"a\"}", "+1", ".5"}},
        /* what is checked after it was made */
        {"{\"type\":\"string\",\"format\":\"email\",\"pattern\":\"^(?!\\\\.)(?!.*\\\\.\\\\.)[a-z.]+@[a-z]+[.]"
         "com$\"}",
         {"\"a.b@x.com\""},
         {"\"a@x.org\"", "\".a@x.com\"", "\"a..b@x.com\"", "\"x.com\""}},
        {"{\"type\":\"string\",\"format\":\"emoji\",\"pattern\":\"^\\\\p{Lu}+$\"}",
         {"\"\xc3\x84\""},
         {"\"a\""}},
        {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"type\":"
         "\"integer\"},"
         "\"required\":[\"a\"]}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{\"c\":1}", "{\"b\":1}", "{\"a\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"b\":2}"}},
        {"{\"type\":\"object\",\"patternProperties\":{\"^x_\":{\"type\":\"integer\"}},"
         "\"additionalProperties\":false}",
         {"{\"x_a\":1}", "{}"},
         {"{\"x_a\":\"1\"}", "{\"y\":1}"}},
        {"{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0.5}",
         {"4.35", "0.5", "1"},
         {"4.355", "0.49", "0"}},
        {"{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"ab\"]}}",
         {"\"b\"", "\"abc\""},
         {"\"a\"", "\"ab\"", "1"}},
        {"{\"not\":{\"type\":[\"string\",\"null\"]}}", {"1", "[]"}, {"\"a\"", "null"}},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"minLength\":2}]}", {"\"a\"", "1"}, {"\"ab\""}},
        {"{\"type\":\"integer\",\"if\":{\"minimum\":5},\"then\":{\"multipleOf\":5},\"else\":{\"const\":2}}",
         {"5", "10", "2"},
         {"6", "3"}},
        {"{\"type\":\"array\",\"contains\":{\"const\":1},\"uniqueItems\":true}",
         {"[1]", "[2,1]"},
         {"[]", "[2]", "[1,1]"}},
        {"{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":true}}],\"properties\":{\"b\":true},"
         "\"unevaluatedProperties\":false}",
         {"{\"b\":1,\"a\":2}", "{}"},
         {"{\"c\":1}", "{\"b\":1,\"c\":1}"}},
        {"{\"enum\":[\"2020-01-01\",\"x\"],\"format\":\"date\"}", {"\"2020-01-01\""}, {"\"x\""}},
        {"{\"x-note\":1,\"title\":\"T\",\"type\":[\"string\",\"null\"]}", {"\"a\"", "null"}, {"1"}},
        {"{\"nullable\":true,\"type\":\"string\",\"format\":\"path\",\"markdownDescription\":\"M\"}",
         {"\"a b\""},
         {"1", "null"}},
        {"{\"type\":\"string\",\"format\":\"uuid4\"}",
         {"\"123e4567-e89b-42d3-a456-426614174000\""},
         {"\"a\"", "\"123e4567-e89b-12d3-a456-426614174000\"", "\"123e4567-e89b-42d3-7456-426614174000\""}},
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"},\"properties\":{\"a\":{\"type\":"
         "\"null\"}},"
         "\"additionalProperties\":{\"type\":\"boolean\"}}",
         {"{\"b\":true}", "{\"a\":null,\"b\":false}"},
         {"{\"a\":true}", "{\"b\":1}"}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tn_grammar *g = schema_of(all[i].schema);
        for (int k = 0; k < 8; k++) {
            const char *y = k < 6 ? all[i].yes[k] : NULL, *n = all[i].no[k];
            if (y && !tn_grammar_accepts(g, y, strlen(y))) fail_msg("%s rejects %s", all[i].schema, y);
            if (n && tn_grammar_accepts(g, n, strlen(n))) fail_msg("%s accepts %s", all[i].schema, n);
        }
        tn_grammar_close(&g);
    }
}

/* Numbers between random bounds, each against comparison. */
static void bounds(void **state) {
    (void)state;
    tn_rng rng = {5};
    for (int i = 0; i < 400; i++) {
        int span = (int)tn_rng_below(&rng, 3) ? 1200 : 12,
            lo = (int)tn_rng_below(&rng, 2 * (uint64_t)span) - span;
        int hi = lo + (int)tn_rng_below(&rng, (uint64_t)span);
        bool has_lo = tn_rng_below(&rng, 5), has_hi = tn_rng_below(&rng, 5), integer = tn_rng_below(&rng, 2);
        bool open_lo = tn_rng_below(&rng, 3) == 0, open_hi = tn_rng_below(&rng, 3) == 0;
        if (hi - lo < 2) open_lo = open_hi = false;
        char schema[300], a[60] = "", b[60] = "";
        if (has_lo) snprintf(a, sizeof a, ",\"%s\":%d", open_lo ? "exclusiveMinimum" : "minimum", lo);
        if (has_hi) snprintf(b, sizeof b, ",\"%s\":%d", open_hi ? "exclusiveMaximum" : "maximum", hi);
        snprintf(schema, sizeof schema, "{\"type\":\"%s\"%s%s}", integer ? "integer" : "number", a, b);
        tn_grammar *g = schema_of(schema);
        for (int tenth = -26000; tenth <= 26000; tenth += 1 + (int)tn_rng_below(&rng, 9)) {
            char text[40];
            bool whole = tenth % 10 == 0;
            if (integer && !whole) continue;
            if (whole) snprintf(text, sizeof text, "%d", tenth / 10);
            else
                snprintf(text, sizeof text, "%s%d.%d", tenth < 0 ? "-" : "", abs(tenth) / 10,
                         abs(tenth) % 10);
            bool in = (!has_lo || (open_lo ? tenth > 10 * lo : tenth >= 10 * lo)) &&
                      (!has_hi || (open_hi ? tenth < 10 * hi : tenth <= 10 * hi));
            if (tn_grammar_accepts(g, text, strlen(text)) != in) fail_msg("%s: %s", schema, text);
        }
        tn_grammar_close(&g);
    }
}

/* ---- memory that fails at the N-th request --------------------------------------------------------- */

static void no_memory(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":4},\"b\":{"
        "\"enum\":[\"x\",2.5],\"pattern\":\"^x\"},\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}";
    static const char text[] = "{\"a\":\"xyz\",\"b\":\"x\",\"c\":[{\"d\":1}]}";
    tern_hooks h;
    scarce memory = {.left = -1};
    scarce_hooks(&h, &memory);
    tn_ctx own;
    tn_ctx_init(&own, &h);
    bool done = false;
    for (long n = 0; !done; n++) {
        tern_error err = {0};
        tn_grammar *g;
        memory.left = n;
        tern_status st = tn_grammar_open_schema(&own, schema, strlen(schema), &g, &err);
        if (st == TERN_OK) {
            done = tn_grammar_accepts(g, text, strlen(text)) && memory.left >= 0;
            tn_grammar_close(&g);
        } else {
            assert_int_equal(st, TERN_E_MEMORY);
            assert_null(g);
        }
        for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(own.live_bytes[i], 0);
        assert_true(n < 100000);
    }
}

/* With a folder of the whole suite (tests/draft2020-12, tests/draft7) it counts and fails only where an invalid
 * instance is accepted: `test_text_schema FOLDER`. */
/* A schema whose check doubles with every level is given up early: others wait while a text is checked. */
static void checked_in_little_time(void **state) {
    (void)state;
    for (int levels = 8; levels <= 20; levels += 12) {
        char text[4096], *p = text;
        p += sprintf(p, "{\"not\":{\"$ref\":\"#/$defs/d0\"},\"$defs\":{");
        for (int i = 0; i < levels; i++)
            p += sprintf(p, "\"d%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},", i,
                         i + 1, i + 1);
        p += sprintf(p, "\"d%d\":{\"const\":5}}}", levels);
        tn_ctx c;
        tn_ctx_init(&c, NULL);
        assert_int_equal(tn_schema_fits(&c, text, (size_t)(p - text), "7", 1),
                         levels == 8); /* given up: it does not fit */
        assert_false(tn_schema_fits(&c, text, (size_t)(p - text), "5", 1));
    }
}

int main(int argc, char **argv) {
    tn_ctx_init(&ctx, NULL);
    if (argc > 1) {
        run_folder(argv[1]);
        return sum.accepted > 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(suite),    cmocka_unit_test(refused),
        cmocka_unit_test(texts_of), cmocka_unit_test(checked_in_little_time),
        cmocka_unit_test(bounds),   cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
