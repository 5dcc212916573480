/* A pattern up to the first zero byte, behind it a text: a pattern that is taken ends, within the text. */
#include "lean/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char pattern[512];
    const uint8_t *cut = memchr(data, 0, size);
    size_t n = cut ? (size_t)(cut - data) : size;
    if (n >= sizeof pattern) return 0;
    memcpy(pattern, data, n);
    pattern[n] = 0;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_regex *r;
    if (tn_regex_open(&ctx, pattern, &r, NULL) != TERN_OK) return 0;
    const uint8_t *text = cut ? cut + 1 : data + size, *end = text;
    uint32_t cp;
    for (size_t len; end < data + size && (len = tn_utf8_decode(end, data + size, &cp)); end += len) {
    }
    size_t length = (size_t)(end - text), a, b;
    bool found = true;
    tn_regex_search s;
    tn_regex_search_init(&s, length);
    s.steps_left = 100000;
    for (size_t from = 0; found && from<length; from = b> from ? b : from + 1) {
        while (from < length && (text[from] & 0xc0) == 0x80) from++;
        if (from == length ||
            tn_regex_find(r, &s, (const char *)text, length, from, &a, &b, &found, NULL) != TERN_OK)
            break;
        if (found && (a < from || b < a || b > length)) abort();
        if (!found) break;
    }
    tn_regex_search_close(&s);
    tn_regex_close(&r);
    return 0;
}
