/* Golden: own JSON values are read, refused and written as jansson's: the metadata of packages, hand-made
 * texts and random changes of them. What is built by hand is what jansson builds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lean/same_json.h"

#include "base/rng.h"
#include "formats/package.h"

#include <stdio.h>

static const char *const texts[] = {"{}",
                                    "[]",
                                    " [1, -2 , 3.5, 1e3, 1E-3, -0, 0.0, -0.0]",
                                    "{\"a\":{\"b\":[true,false,null]}}",
                                    "\"text\"",
                                    "12",
                                    "null",
                                    "",
                                    " ",
                                    "[1,]",
                                    "[,1]",
                                    "{\"a\":1,}",
                                    "{\"a\" 1}",
                                    "{a:1}",
                                    "[1 2]",
                                    "[1]]",
                                    "[1] x",
                                    "[01]",
                                    "[1.]",
                                    "[.5]",
                                    "[1e]",
                                    "[-]",
                                    "[+1]",
                                    "[9223372036854775807]",
                                    "[9223372036854775808]",
                                    "[-9223372036854775808]",
                                    "[1e308]",
                                    "[1e309]",
                                    "[1e-400]",
                                    "[123456789012345678901234567890.5]",
                                    "[\"\\u0041\\u00e9\\ud83d\\ude00\"]",
                                    "[\"\\ud83d\"]",
                                    "[\"\\ude00\"]",
                                    "[\"\\ud83dx\"]",
                                    "[\"\\u00g0\"]",
                                    "[\"\\u0000\"]",
                                    "{\"\\u0000\":1}",
                                    "[\"\\q\"]",
                                    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
                                    "[\"\n\"]",
                                    "[\"\x7f\"]",
                                    "[\"\xc3\xa9\"]",
                                    "[\"\xff\"]",
                                    "[\"\xc0\xaf\"]",
                                    "[\"\xed\xa0\x80\"]",
                                    "[\"",
                                    "[\"\\",
                                    "[\"\\u12",
                                    "{\"a\":1,\"a\":2}",
                                    "{\"b\":1,\"a\":2,\"b\":3}",
                                    "[true1]",
                                    "[truex]",
                                    "[tru]",
                                    "[nul",
                                    "[TRUE]",
                                    "\xef\xbb\xbf[]",
                                    "{\"\":0}",
                                    "[0.1, 1.0, 100000000000000000000.0, 1e21, 1.5e-7, 123456.789]",
                                    "[1.7976931348623157e308]",
                                    "{\"a\":[]}",
                                    "[{},{\"x\":{}}]",
                                    "[[[[[]]]]]",
                                    "\t\r\n [ ] \n",
                                    "[1]\x01",
                                    "[\v1]"};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static void check(const char *text, size_t n) {
    if (!same_reading(text, n)) fail_msg("%.*s is read otherwise than by jansson", (int)n, text);
}

static void texts_are_read_alike(void **state) {
    (void)state;
    for (size_t i = 0; i < N_TEXTS; i++) check(texts[i], strlen(texts[i]));
    check("[\"a\0b\"]", 7);
    check("[1]\0", 4);
    for (int depth = 2046; depth < 2050; depth++) { /* as deep as jansson reads, and one more */
        char deep[5000];
        memset(deep, '[', (size_t)depth), memset(deep + depth, ']', (size_t)depth);
        check(deep, 2 * (size_t)depth);
        memmove(deep + depth + 1, deep + depth, (size_t)depth);
        deep[depth] = '1';
        check(deep, 2 * (size_t)depth + 1);
    }
}

static void changed_texts_are_read_alike(void **state) {
    (void)state;
    static const char bytes[] = "{}[]\",:\\u0eE+-.1 tfn\n\x01\xc3\xa9";
    tn_rng rng = {3};
    int rounds = getenv("TERN_TEST_QUICK") ? 3000 : 20000;
    for (int round = 0; round < rounds; round++) {
        char text[256];
        const char *from = texts[tn_rng_u64(&rng) % N_TEXTS];
        size_t n = strlen(from);
        memcpy(text, from, n);
        for (uint64_t k = tn_rng_u64(&rng) % 4 + 1; k--;) {
            size_t at = n ? tn_rng_u64(&rng) % n : 0;
            char c = bytes[tn_rng_u64(&rng) % (sizeof bytes - 1)];
            if (n && tn_rng_u64(&rng) % 2) {
                text[at] = c;
            } else {
                memmove(text + at + 1, text + at, n - at);
                text[at] = c;
                n++;
            }
        }
        check(text, n);
    }
}

static void many_keys_keep_their_order(void **state) {
    (void)state;
    enum { N = 3000 };
    tn_lean_json *own = tn_lean_object();
    json_t *other = json_object();
    tn_rng rng = {9};
    char key[32];
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "key %d", (int)(tn_rng_u64(&rng) % 1000));
        if (tn_rng_u64(&rng) % 5) {
            assert_int_equal(tn_lean_set(own, key, tn_lean_integer(i)), 0);
            assert_int_equal(json_object_set_new(other, key, json_integer(i)), 0);
        } else {
            assert_int_equal(tn_lean_delete(own, key), json_object_del(other, key));
        }
    }
    assert_true(same_json(own, other));
    size_t n = 0;
    for (void *it = tn_lean_iter(own); it; it = tn_lean_iter_next(own, it), n++)
        assert_non_null(json_object_get(other, tn_lean_iter_key(it)));
    assert_int_equal(n, json_object_size(other));
    assert_null(tn_lean_getn(own, "key 1x", 2));
    tn_lean_json *deep = tn_lean_deep_copy(own);
    assert_true(same_json(deep, other));
    tn_lean_decref(deep);
    tn_lean_json *copy = tn_lean_copy(own);
    assert_true(tn_lean_equal(copy, own));
    assert_int_equal(tn_lean_set(copy, "key 1", tn_lean_null()), 0);
    assert_false(tn_lean_equal(copy, own));
    assert_true(same_json(own, other));
    tn_lean_decref(copy);
    tn_lean_decref(own);
    json_decref(other);
}

static void arrays_and_kinds(void **state) {
    (void)state;
    tn_lean_json *a = tn_lean_array();
    for (int i = 0; i < 5; i++) assert_int_equal(tn_lean_append(a, tn_lean_integer(i)), 0);
    assert_int_equal(tn_lean_remove(a, 1), 0);
    assert_int_equal(tn_lean_remove(a, 4), -1);
    assert_int_equal(tn_lean_int_of(tn_lean_at(a, 1)), 2);
    assert_null(tn_lean_at(a, 4));
    assert_null(tn_lean_get(a, "x"));
    assert_null(tn_lean_text(a));
    assert_null(tn_lean_get(NULL, "x"));
    assert_int_equal(tn_lean_append(a, NULL), -1);
    assert_int_equal(tn_lean_set(a, "x", tn_lean_true()), -1);
    assert_null(tn_lean_real(1.0 / 0.0));
    assert_int_equal(tn_lean_dump(tn_lean_true(), json_text_add, &(json_text){0}, 0), -1);
    tn_lean_decref(a);
}

/* The metadata of a package, as the packer writes it. */
static void packages_are_read_alike(void **state) {
    (void)state;
    static const char *const models[] = {TN_SOURCE_DIR "/models/tern-tiny",
                                         TN_SOURCE_DIR "/../shared/data/models/stories260K.gguf"};
    static const char *const schemes[] = {"edgeflow", "llm-npu"};
    int n = 0;
    for (size_t i = 0; i < 2; i++) {
        char path[] = "/tmp/tern-lean-XXXXXX", command[2048];
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        fclose(fdopen(fd, "w"));
        snprintf(command, sizeof command, "%s pack %s -o %s --scheme %s --calib-tokens 256 >/dev/null 2>&1",
                 TN_TERN, models[i], path, schemes[i]);
        tn_ctx ctx;
        tn_ctx_init(&ctx, NULL);
        tn_pkg *p;
        FILE *model = fopen(models[i], "rb");
        if (!model) continue;
        fclose(model);
        assert_int_equal(system(command), 0);
        assert_int_equal(tn_pkg_open(&ctx, path, &p, NULL), TERN_OK);
        const tn_pkg_section *s = tn_pkg_find(p, TN_PKG_META, -1);
        char *text = malloc(s->size_bytes);
        assert_int_equal(tn_pkg_read(p, s, text, NULL), TERN_OK);
        check(text, s->size_bytes);
        free(text);
        tn_pkg_close(&p);
        remove(path);
        n++;
    }
    assert_true(n > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_read_alike),       cmocka_unit_test(changed_texts_are_read_alike),
        cmocka_unit_test(many_keys_keep_their_order), cmocka_unit_test(arrays_and_kinds),
        cmocka_unit_test(packages_are_read_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
