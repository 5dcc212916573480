/* Sums of bytes: FIPS 180-4's examples, and every way of cutting a text into pieces. */
#include "base/sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static void is(bool sha1, const char *text, size_t times, const char *want) {
    char got[TN_SUM_TEXT];
    tn_sum s;
    tn_sum_begin(&s, sha1);
    for (size_t i = 0; i < times; i++) tn_sum_add(&s, text, strlen(text));
    tn_sum_end(&s, got);
    assert_string_equal(got, want);
}

static void examples(void **state) {
    (void)state;
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    is(true, "abc", 1, "a9993e364706816aba3e25717850c26c9cd0d89d");
    is(true, two, 1, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    is(true, "a", 1000000, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    is(false, "", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    is(false, "abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    is(false, two, 1, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    is(false, "a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void in_pieces(void **state) {
    (void)state;
    char text[200], whole[TN_SUM_TEXT], cut[TN_SUM_TEXT];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i * 7);
    for (size_t a = 0; a <= sizeof text; a++) {
        for (int sha1 = 0; sha1 < 2; sha1++) {
            tn_sum s;
            tn_sum_begin(&s, sha1);
            tn_sum_add(&s, text, sizeof text);
            tn_sum_end(&s, whole);
            tn_sum_begin(&s, sha1);
            tn_sum_add(&s, text, a);
            tn_sum_add(&s, text + a, sizeof text - a);
            tn_sum_end(&s, cut);
            assert_string_equal(cut, whole);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(examples), cmocka_unit_test(in_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
