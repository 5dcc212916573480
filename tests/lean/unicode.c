/* Golden: own tables of Unicode say what utf8proc says, of every code point; and normal form C of random
 * texts. */
#include "lean/unicode.h"

#include "base/rng.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { LAST = 0x10ffff };

static void properties_are_utf8procs(void **state) {
    (void)state;
    for (int32_t cp = 0; cp <= LAST; cp++) {
        uint32_t c = (uint32_t)cp;
        bool same = tn_uni_category(c) == (int)utf8proc_category(cp) &&
                    tn_uni_upper(c) == (uint32_t)utf8proc_toupper(cp) &&
                    tn_uni_lower(c) == (uint32_t)utf8proc_tolower(cp) &&
                    tn_uni_title(c) == (uint32_t)utf8proc_totitle(cp);
        if (!same) fail_msg("U+%04X differs (run scripts/unicode_tables.py)", c);
    }
    assert_int_equal(tn_uni_category(LAST + 1), 0);
    assert_int_equal(tn_uni_upper(UINT32_MAX), UINT32_MAX);
}

static void same_normal_form(const uint8_t *text, size_t n) {
    int32_t own[512], other[512];
    ptrdiff_t a = tn_uni_decompose(text, n, own, 512);
    utf8proc_ssize_t b =
        utf8proc_decompose(text, (utf8proc_ssize_t)n, other, 512, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    assert_int_equal(a, b);
    assert_memory_equal(own, other, (size_t)a * sizeof *own);
    a = (ptrdiff_t)tn_uni_compose(own, (size_t)a);
    b = utf8proc_normalize_utf32(other, b, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_int_equal(a, b);
    assert_memory_equal(own, other, (size_t)a * sizeof *own);
}

static void every_character_is_normalised_alike(void **state) {
    (void)state;
    for (uint32_t cp = 1; cp <= LAST; cp++) {
        if (cp >= 0xd800 && cp <= 0xdfff) continue;
        uint8_t text[16];
        size_t n = tn_utf8_encode(cp, text);
        same_normal_form(text, n);
        n += tn_utf8_encode(0x301, text + n); /* with an accent behind, and a vowel sign */
        n += tn_utf8_encode(0x323, text + n);
        same_normal_form(text, n);
    }
}

static void random_texts_are_normalised_alike(void **state) {
    (void)state;
    static const uint32_t starts[] = {0x41,    0x61,  0x300, 0x1100, 0x1161, 0x11a7, 0xac00,
                                      0x915,   0x93c, 0x5d0, 0x5b0,  0x1e00, 0xfb1d, 0x1d158,
                                      0x1d165, 0x9c7, 0x9be, 0x3099, 0x304b, 0xf73,  0x340};
    tn_rng rng = {5};
    for (int round = 0; round < 20000; round++) {
        uint8_t text[128];
        size_t n = 0;
        for (int i = 0; i < 20; i++) {
            uint32_t cp = starts[tn_rng_u64(&rng) % (sizeof starts / sizeof *starts)] +
                          (uint32_t)(tn_rng_u64(&rng) % 40);
            if (cp == 0x11a7) cp++; /* utf8proc 2.8 takes this vowel for an empty final and drops it */
            n += tn_utf8_encode(cp, text + n);
        }
        same_normal_form(text, n);
    }
    int32_t vowel[] = {0xac00, 0x11a7};
    assert_int_equal(tn_uni_compose(vowel, 2), 2);
    assert_int_equal(tn_uni_decompose((const uint8_t *)"\xff", 1, (int32_t[4]){0}, 4), -1);
    assert_int_equal(tn_uni_decompose((const uint8_t *)"abcdef", 6, (int32_t[4]){0}, 4), 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(properties_are_utf8procs),
        cmocka_unit_test(every_character_is_normalised_alike),
        cmocka_unit_test(random_texts_are_normalised_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
