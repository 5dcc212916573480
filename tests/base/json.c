/* The reader of JSON beside jansson's: the same texts are read, to the same values, whatever is done to them. And where
 * memory fails, for jansson's values or for the reader's own, nothing is read, and that is called what it is. */
#include "base/json.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

static const char *const texts[] = {
    "",
    " ",
    "{}",
    "[]",
    "[ ]",
    "{ }",
    "1",
    "\"x\"",
    "null",
    "[1,2,3]",
    "[1,2,3",
    "[1,]",
    "[,1]",
    "{\"a\":1,}",
    "{\"a\":1}{",
    "{\"a\" 1}",
    "{a:1}",
    "{\"a\":1,\"a\":2}",
    "[01]",
    "[-]",
    "[-0]",
    "[-0.0]",
    "[1.]",
    "[.5]",
    "[1e]",
    "[1e+]",
    "[1e5, 1E-5, -1.25e+2, 1.5e-400]",
    "[1e400]",
    "[-1e400]",
    "[9223372036854775807, -9223372036854775808]",
    "[9223372036854775808]",
    "[-9223372036854775809]",
    "[123456789012345678901234567890.5]",
    "[true,false,null]",
    "[tru]",
    "[nulll]",
    "[True]",
    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
    "[\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"]",
    "[\"\\ud83d\"]",
    "[\"\\ude00\"]",
    "[\"\\ud83d\\u0041\"]",
    "[\"\\u12g4\"]",
    "[\"\\u12\"]",
    "[\"\\x\"]",
    "[\"\\",
    "[\"\\\"",
    "[\"a",
    "[\"a\\u0000b\"]",
    "{\"a\\u0000b\":1}",
    "[\"\n\"]",
    "[\"\x01\"]",
    "[\"\x7f\"]",
    "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"]",
    "[\"\xc3\"]",
    "[\"\xc0\x80\"]",
    "[\"\xed\xa0\x80\"]",
    "[\"\xf4\x90\x80\x80\"]",
    "[\"\xff\"]",
    "[1]\xef\xbb\xbf",
    "\xef\xbb\xbf[1]",
    "[1] x",
    "\t\r\n{\"model\":\"a text of more than sixteen "
    "bytes\",\"list\":[1,2.5,true,{\"deep\":[[[]]]}],\"\":\"\"}\n",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"line\\none \\\"two\\\" "
    "\\u00e9\xc3\xa9\"}],\"temperature\":0.7}",
    "{\"a key of more than sixteen bytes\":{\"another key that is \\u006cong\":-12345678901234567}}",
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static const size_t flags[] = {0,
                               JSON_DECODE_ANY,
                               JSON_REJECT_DUPLICATES,
                               JSON_ALLOW_NUL | JSON_DECODE_ANY,
                               JSON_DECODE_INT_AS_REAL,
                               JSON_DISABLE_EOF_CHECK};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static void compare(const char *text, size_t n, size_t how) {
    if (memchr(text, 0, n)) return; /* jansson takes a zero byte for a blank in places */
    json_error_t je;
    char *copy = malloc(n + !n); /* an address sanitizer sees what is read after its end */
    assert_non_null(copy);
    memcpy(copy, text, n);
    json_t *theirs = json_loadb(copy, n, how, NULL), *ours = tn_json_parse(copy, n, how, &je);
    if (!theirs != !ours || (ours && !json_equal(ours, theirs)))
        fail_msg("'%.*s', flags %zu: %s, jansson %s it", (int)n, text, how, ours ? "read" : je.text,
                 theirs ? "reads" : "refuses");
    if (!ours) assert_true(je.text[0] && je.line >= 1 && json_error_code(&je) != json_error_out_of_memory);
    json_decref(ours);
    json_decref(theirs);
    free(copy);
}

static void as_jansson(void **state) {
    (void)state;
    for (int i = 0; i < N_TEXTS; i++)
        for (int f = 0; f < N_FLAGS; f++) compare(texts[i], strlen(texts[i]), flags[f]);
}

/* Bytes that C's texts would end at are no bytes of them. */
static void without_nul(void **state) {
    (void)state;
    static const struct {
        const char *text, *want; /* NULL: it is refused */
    } all[] = {{"[\"a\\u0000b\", \"\\u0000\", \"\\u0001\\n\"]", "[\"a\xef\xbf\xbd"
                                                                "b\",\"\xef\xbf\xbd\",\"\\u0001\\n\"]"},
               {"{\"a\\u0000\": 1}", "{\"a\xef\xbf\xbd\":1}"},
               {"{\"\\u0000\": 1, \"\xef\xbf\xbd\": 2}", NULL},
               {"[\"\\u000\"]", NULL}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *text = NULL;
        json_t *v = tn_json_parse(all[i].text, strlen(all[i].text), TN_JSON_REQUEST, NULL);
        assert_int_equal(v != NULL, all[i].want != NULL);
        if (v) assert_int_equal(tn_json_text(v, JSON_COMPACT, &text, NULL), TERN_OK);
        if (v) assert_string_equal(text, all[i].want);
        json_decref(v);
        free(text);
    }
    char raw[] = "[\"a b\"]";
    raw[3] = 0;
    assert_null(tn_json_parse(raw, sizeof raw - 1, TN_JSON_REQUEST, NULL));
    assert_null(tn_json_parse("[\"\\u0000\"]", 10, JSON_REJECT_DUPLICATES, NULL)); /* of files */
}

static void as_jansson_when_changed(void **state) {
    (void)state;
    static const char bytes[] = "[]{}\",:\\u0019deE+-. \ntfn/\x80\xc3\xa9\x00\x1f";
    tn_rng rng = {20261124};
    for (int round = 0; round < 200000; round++) {
        char text[512];
        const char *from = texts[tn_rng_u64(&rng) % N_TEXTS];
        size_t n = strlen(from);
        memcpy(text, from, n);
        for (uint64_t k = tn_rng_u64(&rng) % 4 + 1; k--;) {
            char c = bytes[tn_rng_u64(&rng) % (sizeof bytes - 1)];
            size_t at = n ? tn_rng_u64(&rng) % n : 0;
            switch (tn_rng_u64(&rng) % 3) {
            case 0:
                if (n) text[at] = c;
                break;
            case 1:
                if (n) memmove(text + at, text + at + 1, --n - at);
                break;
            default:
                if (n + 1 < sizeof text) memmove(text + at + 1, text + at, n++ - at), text[at] = c;
            }
        }
        compare(text, n, flags[tn_rng_u64(&rng) % N_FLAGS]);
    }
}

static long left; /* allocations before the one that fails; negative: none does */
static void *scarce(size_t n) { return left-- == 0 ? NULL : malloc(n); }

/* Each allocation in turn fails, jansson's and the reader's. */
static void without_memory(void **state) {
    (void)state;
    for (int i = 0; i < N_TEXTS; i++) {
        size_t n = strlen(texts[i]);
        json_t *want = tn_json_parse(texts[i], n, JSON_DECODE_ANY, NULL);
        for (long k = 0; want; k++) {
            json_error_t je;
            left = k;
            json_set_alloc_funcs(scarce, free);
            json_t *got = tn_json_parse(texts[i], n, JSON_DECODE_ANY, &je);
            bool failed = left < 0;
            json_set_alloc_funcs(malloc, free);
            if (failed && (got || json_error_code(&je) != json_error_out_of_memory))
                fail_msg("'%s', allocation %ld failed: %s", texts[i], k, got ? "read" : je.text);
            if (!failed) assert_true(json_equal(got, want));
            json_decref(got);
            if (!failed) break;
        }
        json_decref(want);
    }
}

/* A locale that writes a comma is none of JSON's. */
static void in_any_locale(void **state) {
    (void)state;
    static const char *const with_comma[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
    for (int i = 0; i < 4; i++) (void)setlocale(LC_NUMERIC, with_comma[i]);
    json_t *v = tn_json_parse("[2.5]", 5, 0, NULL);
    assert_true(json_real_value(json_array_get(v, 0)) == 2.5);
    json_decref(v);
    setlocale(LC_NUMERIC, "C");
}

static void says_where(void **state) {
    (void)state;
    json_error_t je;
    static const char text[] = "{\n  \"a\": 1,\n  \"b\": oops\n}";
    assert_null(tn_json_parse(text, strlen(text), 0, &je));
    assert_int_equal(je.line, 3);
    assert_string_equal(je.text, "invalid token near 'oops'");
    assert_null(tn_json_parse("[1", 2, 0, &je));
    assert_string_equal(je.text, "']' expected near end of file");
    assert_int_equal(json_error_code(&je), json_error_premature_end_of_input);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_jansson),
                                       cmocka_unit_test(without_nul),
                                       cmocka_unit_test(as_jansson_when_changed),
                                       cmocka_unit_test(without_memory),
                                       cmocka_unit_test(in_any_locale),
                                       cmocka_unit_test(says_where)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
