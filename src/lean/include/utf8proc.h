/* utf8proc's names for lean/unicode.h, as far as libtern uses them. On the include path of TERN_MINIMAL
 * only. */
#ifndef TN_LEAN_UTF8PROC_H
#define TN_LEAN_UTF8PROC_H

#include "base/utf8.h"
#include "lean/unicode.h"

typedef uint8_t utf8proc_uint8_t;
typedef int32_t utf8proc_int32_t;
typedef ptrdiff_t utf8proc_ssize_t;

typedef enum utf8proc_category_t {
    UTF8PROC_CATEGORY_CN,
    UTF8PROC_CATEGORY_LU,
    UTF8PROC_CATEGORY_LL,
    UTF8PROC_CATEGORY_LT,
    UTF8PROC_CATEGORY_LM,
    UTF8PROC_CATEGORY_LO,
    UTF8PROC_CATEGORY_MN,
    UTF8PROC_CATEGORY_MC,
    UTF8PROC_CATEGORY_ME,
    UTF8PROC_CATEGORY_ND,
    UTF8PROC_CATEGORY_NL,
    UTF8PROC_CATEGORY_NO,
    UTF8PROC_CATEGORY_ZS = 23,
    UTF8PROC_CATEGORY_ZL,
    UTF8PROC_CATEGORY_ZP,
    UTF8PROC_CATEGORY_CC,
    UTF8PROC_CATEGORY_CF,
    UTF8PROC_CATEGORY_CS,
    UTF8PROC_CATEGORY_CO
} utf8proc_category_t;

enum { UTF8PROC_STABLE = 2, UTF8PROC_COMPOSE = 8, UTF8PROC_DECOMPOSE = 16 };

static inline utf8proc_ssize_t utf8proc_iterate(const uint8_t *p, utf8proc_ssize_t n, utf8proc_int32_t *cp) {
    uint32_t c;
    size_t len = n > 0 ? tn_utf8_decode(p, p + n, &c) : 0;
    *cp = len ? (utf8proc_int32_t)c : -1;
    return len ? (utf8proc_ssize_t)len : -1;
}
static inline utf8proc_category_t utf8proc_category(utf8proc_int32_t cp) {
    return (utf8proc_category_t)tn_uni_category((uint32_t)cp);
}
static inline utf8proc_int32_t utf8proc_toupper(utf8proc_int32_t cp) {
    return (utf8proc_int32_t)tn_uni_upper((uint32_t)cp);
}
static inline utf8proc_int32_t utf8proc_tolower(utf8proc_int32_t cp) {
    return (utf8proc_int32_t)tn_uni_lower((uint32_t)cp);
}
static inline utf8proc_int32_t utf8proc_totitle(utf8proc_int32_t cp) {
    return (utf8proc_int32_t)tn_uni_title((uint32_t)cp);
}
static inline utf8proc_ssize_t utf8proc_decompose(const uint8_t *text, utf8proc_ssize_t n,
                                                  utf8proc_int32_t *out, utf8proc_ssize_t cap, int flags) {
    (void)flags;
    return tn_uni_decompose(text, (size_t)n, out, (size_t)cap);
}
static inline utf8proc_ssize_t utf8proc_normalize_utf32(utf8proc_int32_t *cps, utf8proc_ssize_t n,
                                                        int flags) {
    (void)flags;
    return (utf8proc_ssize_t)tn_uni_compose(cps, (size_t)n);
}

#endif
