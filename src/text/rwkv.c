#include "text/rwkv.h"

#include "base/hex.h"
#include "text/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MAX_TOKEN = 1024 };

/* An escape begins at text[0], a backslash. Returns its length and the code that it stands for; 0: none is known. */
static size_t escape(const char *text, size_t n, bool of_bytes, uint32_t *code) {
    static const char named[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    if (n < 2) return 0;
    for (size_t i = 0; i + 1 < sizeof named; i += 2) {
        if (text[1] != named[i]) continue;
        *code = (uint8_t)named[i + 1];
        return 2;
    }
    const size_t digits = text[1] == 'x' ? 2 : of_bytes ? 0 : text[1] == 'u' ? 4 : text[1] == 'U' ? 8 : 0;
    if (!digits || n < 2 + digits) return 0;
    *code = 0;
    for (size_t i = 0; i < digits; i++) {
        const int v = tn_hex_digit(text[2 + i]);
        if (v < 0) return 0;
        *code = *code << 4 | (uint32_t)v;
    }
    const bool is_text = *code <= 0x10ffff && !(*code >= 0xd800 && *code <= 0xdfff);
    return of_bytes || is_text ? 2 + digits : 0;
}

/* What stands between the quotes: a text's codes beyond ASCII become UTF-8. out has room for n bytes, which are never
 * fewer: an escape is longer than what it stands for. */
static size_t unescape(const char *text, size_t n, bool of_bytes, char *out) {
    size_t m = 0, len;
    for (size_t i = 0; i < n; i += len) {
        uint32_t code;
        len = 1;
        if (text[i] != '\\') {
            out[m++] = text[i];
            continue;
        }
        len = escape(text + i, n - i, of_bytes, &code);
        if (!len) return SIZE_MAX;
        if (of_bytes || code < 0x80) out[m++] = (char)code;
        else m += tn_utf8_encode(code, (uint8_t *)out + m);
    }
    return m;
}

size_t tn_rwkv_bytes(const char *text, size_t n, char *out) { return unescape(text, n, true, out); }

/* A whole number in front of `end`; -1: none. */
static int32_t number(const char *at, const char *end) {
    int32_t v = 0;
    if (at == end || end - at > 7) return -1;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9') return -1;
        v = v * 10 + (*at - '0');
    }
    return v;
}

static const char *last_space(const char *at, const char *end) {
    while (end > at && end[-1] != ' ') end--;
    return end > at ? end - 1 : NULL;
}

/* Returns the number of bytes in `out`; SIZE_MAX: the line is none of a vocabulary. */
static size_t read_line(const char *line, const char *end, int32_t id, char out[MAX_TOKEN]) {
    const char *first = memchr(line, ' ', (size_t)(end - line)), *last = last_space(line, end);
    if (!first || !last || last <= first || number(line, first) != id) return SIZE_MAX;
    const int32_t n_said = number(last + 1, end);
    const char *p = first + 1;
    const bool of_bytes = p < last && *p == 'b';
    p += of_bytes;
    if (last - p < 2 || (*p != '\'' && *p != '"') || last[-1] != *p || last - p - 2 > MAX_TOKEN)
        return SIZE_MAX;
    const size_t n = unescape(p + 1, (size_t)(last - p - 2), of_bytes, out);
    return n_said > 0 && n == (size_t)n_said ? n : SIZE_MAX;
}

tern_status tn_rwkv_read(const char *text, size_t n_bytes, tn_rwkv_token on_token, void *user,
                         tern_error *err) {
    const char *at = text, *end = text + n_bytes;
    char token[MAX_TOKEN];
    for (int32_t id = 1; at < end; id++) {
        const char *line = at, *stop = memchr(at, '\n', (size_t)(end - at));
        at = stop ? stop + 1 : end;
        if (!stop) stop = end;
        if (stop > line && stop[-1] == '\r') stop--;
        const size_t n = read_line(line, stop, id, token);
        TN_FAIL_IF(n == SIZE_MAX, err, TERN_E_FORMAT,
                   "line %d of the vocabulary is not its number, a literal and how many bytes that has", id);
        TN_TRY(on_token(user, id, token, n));
    }
    TN_FAIL_IF(at == text, err, TERN_E_FORMAT, "an empty vocabulary");
    return TERN_OK;
}
