/* text/jinja/strings.c - strings with marks: cutting, joining and the methods of Python's str. */
#include "text/jinja/impl.h"

#include "text/utf8.h"

#include <assert.h>
#include <utf8proc.h>

/* ---- building ---- */

void tn_jbuf_bytes(tn_jinja *j, tn_jbuf *b, const char *p, size_t n, bool content) {
    if (!n) return;
    tn_jsteps(j, n / 64);
    if (n > b->cap - b->n) {
        size_t cap = b->n + n + (b->n < 32 ? 32 : b->n);
        char *more = tn_jalloc(j, cap, 1);
        if (b->n) memcpy(more, b->p, b->n);
        b->p = more;
        b->cap = cap;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
    if (b->n_seg && b->seg[b->n_seg - 1].content == content) {
        b->seg[b->n_seg - 1].end = b->n;
        return;
    }
    if (b->n_seg == b->cap_seg) {
        size_t cap = b->cap_seg * 2 + 4;
        tn_segment *more = tn_jalloc(j, cap, sizeof *more);
        if (b->n_seg) memcpy(more, b->seg, b->n_seg * sizeof *more);
        b->seg = more;
        b->cap_seg = cap;
    }
    b->seg[b->n_seg++] = (tn_segment){b->n, content};
}

void tn_jbuf_text(tn_jinja *j, tn_jbuf *b, const char *text) {
    tn_jbuf_bytes(j, b, text, strlen(text), false);
}

/* Returns the first segment that ends after `at`. */
static size_t segment_of(const tn_jstr *s, size_t at) {
    size_t lo = 0, hi = s->n_seg;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->seg[mid].end <= at) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

void tn_jbuf_sub(tn_jinja *j, tn_jbuf *b, const tn_jstr *s, size_t from, size_t to) {
    assert(from <= to && to <= s->n);
    if (!s->seg) {
        tn_jbuf_bytes(j, b, s->p + from, to - from, s->content);
        return;
    }
    for (size_t lo = segment_of(s, from); from < to; lo++) {
        size_t end = s->seg[lo].end < to ? s->seg[lo].end : to;
        tn_jbuf_bytes(j, b, s->p + from, end - from, s->seg[lo].content);
        from = end;
    }
}

void tn_jbuf_str(tn_jinja *j, tn_jbuf *b, const tn_jstr *s) { tn_jbuf_sub(j, b, s, 0, s->n); }

const tn_jstr *tn_jbuf_take(tn_jinja *j, tn_jbuf *b) {
    tn_jstr *s = tn_jalloc(j, 1, sizeof *s);
    *s = (tn_jstr){.p = b->p ? b->p : "", .n = b->n};
    if (b->n_seg == 1) s->content = b->seg[0].content;
    if (b->n_seg > 1) {
        s->seg = b->seg;
        s->n_seg = b->n_seg;
    }
    *b = (tn_jbuf){0};
    return s;
}

const tn_jstr *tn_jstr_span(tn_jinja *j, const char *p, size_t n, bool content) {
    tn_jstr *s = tn_jalloc(j, 1, sizeof *s);
    *s = (tn_jstr){.p = p, .n = n, .content = content};
    return s;
}

const tn_jstr *tn_jstr_copy(tn_jinja *j, const char *p, size_t n, bool content) {
    char *c = tn_jalloc(j, n + 1, 1);
    memcpy(c, p, n);
    return tn_jstr_span(j, c, n, content);
}

/* Returns a part that shares the bytes. */
const tn_jstr *tn_jstr_sub(tn_jinja *j, const tn_jstr *s, size_t from, size_t to) {
    assert(from <= to && to <= s->n);
    if (from == 0 && to == s->n) return s;
    tn_jstr *r = tn_jalloc(j, 1, sizeof *r);
    *r = (tn_jstr){.p = s->p + from, .n = to - from, .content = s->content};
    if (!s->seg || from == to) return r;
    size_t first = segment_of(s, from), last = segment_of(s, to - 1);
    if (first == last) {
        r->content = s->seg[first].content;
        return r;
    }
    tn_segment *seg = tn_jalloc(j, last - first + 1, sizeof *seg);
    for (size_t i = first; i <= last; i++)
        seg[i - first] = (tn_segment){(s->seg[i].end < to ? s->seg[i].end : to) - from, s->seg[i].content};
    r->seg = seg;
    r->n_seg = last - first + 1;
    return r;
}

/* ---- looking ---- */

bool tn_jstr_eq(const tn_jstr *a, const tn_jstr *b) { return a->n == b->n && !memcmp(a->p, b->p, a->n); }
bool tn_jstr_is(const tn_jstr *s, const char *text) {
    return s->n == strlen(text) && !memcmp(s->p, text, s->n);
}

int tn_jstr_cmp(const tn_jstr *a, const tn_jstr *b) { /* UTF-8 sorts as its code points */
    int c = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

size_t tn_jstr_char(const tn_jstr *s, size_t at, uint32_t *cp) {
    const uint8_t *p = (const uint8_t *)s->p + at;
    size_t len = tn_utf8_decode(p, (const uint8_t *)s->p + s->n, cp);
    if (len) return len;
    *cp = 0xdc00 + *p;
    return 1;
}

size_t tn_jstr_length(const tn_jstr *s) {
    size_t n = 0;
    uint32_t cp;
    for (size_t i = 0; i < s->n; i += tn_jstr_char(s, i, &cp)) n++;
    return n;
}

bool tn_jstr_content(const tn_jstr *s, size_t at, size_t *hint) {
    if (!s->seg) return s->content;
    while (s->seg[*hint].end <= at) ++*hint;
    return s->seg[*hint].content;
}

size_t tn_jstr_find(const tn_jstr *s, const tn_jstr *what, size_t from) {
    if (from > s->n) return SIZE_MAX;
    if (!what->n) return from;
    const char *p = memmem(s->p + from, s->n - from, what->p, what->n);
    return p ? (size_t)(p - s->p) : SIZE_MAX;
}

size_t tn_jstr_rfind(tn_jinja *j, const tn_jstr *s, const tn_jstr *what, size_t end) {
    if (end < what->n) return SIZE_MAX;
    for (size_t at = end - what->n;; at--) {
        tn_jsteps(j, what->n / 64); /* the steps of a short one are counted with the string being searched */
        if (!memcmp(s->p + at, what->p, what->n)) return at;
        if (!at) return SIZE_MAX;
    }
}

bool tn_j_is_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

/* ---- cutting ---- */

/* Computes Python's slice of a sequence of n: where it starts and how many it takes. */
static size_t slice_range(size_t n, const int64_t *start, const int64_t *stop, int64_t step, int64_t *from) {
    int64_t len = (int64_t)n, lo = step < 0 ? -1 : 0, hi = step < 0 ? len - 1 : len;
    int64_t a = start ? *start : step < 0 ? hi : lo, b = stop ? *stop : step < 0 ? lo : hi;
    if (start && a < 0) a = a < -len ? lo : a + len;
    if (stop && b < 0) b = b < -len ? lo : b + len;
    a = a < lo ? lo : a > hi ? hi : a;
    b = b < lo ? lo : b > hi ? hi : b;
    *from = a;
    if (step > 0) return b > a ? (size_t)((b - a - 1) / step + 1) : 0;
    return a > b ? (size_t)((a - b - 1) / -step + 1) : 0;
}

const tn_jstr *tn_jstr_slice(tn_jinja *j, const tn_jstr *s, const int64_t *start, const int64_t *stop,
                             int64_t step) {
    size_t n = tn_jstr_length(s);
    int64_t from;
    size_t count = slice_range(n, start, stop, step, &from);
    tn_jsteps(j, s->n / 16);
    size_t *at = tn_jalloc(j, n + 1, sizeof *at); /* byte offset of every character */
    uint32_t cp;
    for (size_t i = 0, o = 0; i < n; i++, at[i] = o) o += tn_jstr_char(s, o, &cp);
    if (step == 1)
        return tn_jstr_sub(j, s, at[from < (int64_t)n ? from : (int64_t)n], at[from + (int64_t)count]);
    tn_jbuf b = {0};
    for (size_t k = 0; k < count; k++, from += step) tn_jbuf_sub(j, &b, s, at[from], at[from + 1]);
    return tn_jbuf_take(j, &b);
}

static bool strips(uint32_t cp, const tn_jstr *chars) {
    if (!chars) return tn_j_is_space(cp);
    for (size_t i = 0; i < chars->n;) {
        uint32_t c;
        i += tn_jstr_char(chars, i, &c);
        if (c == cp) return true;
    }
    return false;
}

const tn_jstr *tn_jstr_strip(tn_jinja *j, const tn_jstr *s, const tn_jstr *chars, int sides) {
    size_t from = 0, to = s->n;
    uint32_t cp;
    tn_jsteps(j, s->n / 64);
    while (sides & TN_J_LEFT && from < to) {
        size_t len = tn_jstr_char(s, from, &cp);
        tn_jsteps(j, chars ? chars->n / 8 : 0);
        if (!strips(cp, chars)) break;
        from += len;
    }
    while (sides & TN_J_RIGHT && to > from) {
        size_t k = to - 1; /* find the start of the last character */
        while (k > from && to - k < 4 && ((uint8_t)s->p[k] & 0xc0) == 0x80) k--;
        if (k + tn_jstr_char(s, k, &cp) != to) {
            k = to - 1;
            cp = 0xdc00 + (uint8_t)s->p[k];
        }
        tn_jsteps(j, chars ? chars->n / 8 : 0);
        if (!strips(cp, chars)) break;
        to = k;
    }
    return tn_jstr_sub(j, s, from, to);
}

/* ---- changing ---- */

static void put_char(tn_jinja *j, tn_jbuf *b, uint32_t cp, bool content) {
    uint8_t bytes[4];
    size_t n = 1;
    if (cp >= 0xdc80 && cp <= 0xdcff) bytes[0] = (uint8_t)(cp - 0xdc00); /* a bad byte stays */
    else n = tn_utf8_encode(cp, bytes);
    tn_jbuf_bytes(j, b, (const char *)bytes, n, content);
}

static void put_upper(tn_jinja *j, tn_jbuf *b, uint32_t cp, bool content, bool title) {
    if (cp == 0xdf) { /* the one common character that becomes longer */
        put_char(j, b, 'S', content);
        put_char(j, b, title ? 's' : 'S', content);
        return;
    }
    put_char(
        j, b,
        (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)cp) : utf8proc_toupper((utf8proc_int32_t)cp)),
        content);
}

static bool is_letter(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static bool opens_word(uint32_t cp) { /* word starts as the filter defines them: [-\s({\[<] */
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || tn_j_is_space(cp);
}

const tn_jstr *tn_jstr_case(tn_jinja *j, const tn_jstr *s, tn_jcase how) {
    tn_jbuf b = {0};
    size_t hint = 0;
    bool first = true; /* of a word, or of the text */
    tn_jsteps(j, s->n);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        bool content = tn_jstr_content(s, i, &hint);
        size_t len = tn_jstr_char(s, i, &cp);
        i += len;
        uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        bool up = how == J_UPPER || (how == J_SWAP && cp == low) ||
                  (first && (how == J_TITLE || how == J_CAPITAL || how == J_TITLE_FILTER));
        if (up) put_upper(j, &b, cp, content, how == J_TITLE || how == J_CAPITAL);
        else put_char(j, &b, low, content);
        first = how == J_TITLE ? !is_letter(cp) : how == J_TITLE_FILTER && opens_word(cp);
    }
    return tn_jbuf_take(j, &b);
}

const tn_jstr *tn_jstr_replace(tn_jinja *j, const tn_jstr *s, const tn_jstr *from, const tn_jstr *to,
                               int64_t count) {
    tn_jbuf b = {0};
    size_t at = 0;
    tn_jsteps(j, s->n / 16);
    if (!from->n) { /* between all characters */
        uint32_t cp;
        for (; count; count--) {
            tn_jbuf_str(j, &b, to);
            if (at == s->n) break;
            size_t len = tn_jstr_char(s, at, &cp);
            tn_jbuf_sub(j, &b, s, at, at + len);
            at += len;
        }
    } else {
        for (size_t hit; count && (hit = tn_jstr_find(s, from, at)) != SIZE_MAX; count--) {
            tn_jbuf_sub(j, &b, s, at, hit);
            tn_jbuf_str(j, &b, to);
            at = hit + from->n;
        }
        if (!at) return s;
    }
    tn_jbuf_sub(j, &b, s, at, s->n);
    return tn_jbuf_take(j, &b);
}
