/* lean/unicode.h - what libtern asks of Unicode, for builds that bring no utf8proc (TERN_MINIMAL).
 * include/utf8proc.h gives it utf8proc's names. Categories are numbered as there. */
#ifndef TN_LEAN_UNICODE_H
#define TN_LEAN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of code points up to U+10FFFF; beyond, "not assigned" and unchanged. */
int tn_uni_category(uint32_t cp);
uint32_t tn_uni_upper(uint32_t cp);
uint32_t tn_uni_lower(uint32_t cp);
uint32_t tn_uni_title(uint32_t cp);
bool tn_uni_is_han(uint32_t cp); /* as PCRE2's \p{Han}: by script extensions */

/* Canonical decomposition of UTF-8 text[0..n), marks in canonical order, into out[0..cap). The number of
 * code points, which may be more than cap (then out holds nothing of use); -1: the text is not UTF-8. */
ptrdiff_t tn_uni_decompose(const uint8_t *text, size_t n, int32_t *out, size_t cap);
/* Composes decomposed cps[0..n) in place; the number left. */
size_t tn_uni_compose(int32_t *cps, size_t n);

#endif
