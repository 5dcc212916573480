#include "lean/unicode.h"

#include "base/utf8.h"
#include "lean/unicode_table.h"

enum {
    LAST = 0x10ffff,
    HANGUL = 0xac00,
    L = 0x1100,
    V = 0x1161,
    T = 0x11a7,
    N_L = 19,
    N_V = 21,
    N_T = 28,
    N_HANGUL = N_L * N_V * N_T
};

/* The index of the last run that begins at or below cp. */
static size_t run_of(const uint32_t *runs, size_t n, uint32_t cp, int shift) {
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (runs[mid] >> shift <= cp) lo = mid;
        else hi = mid;
    }
    return lo;
}

int tn_uni_category(uint32_t cp) {
    if (cp > LAST) return 0;
    return (int)(tn_uni_categories[run_of(tn_uni_categories, tn_uni_categories_n, cp, 5)] & 31);
}

static uint32_t combining_class(uint32_t cp) {
    return tn_uni_classes[run_of(tn_uni_classes, tn_uni_classes_n, cp, 8)] & 255;
}

static uint32_t other_case(uint32_t cp, int kind) {
    size_t lo = 0, hi = tn_uni_cases_n; /* the last one at or before (kind, cp) */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const tn_uni_case *c = &tn_uni_cases[mid];
        if (c->kind < kind || (c->kind == kind && c->cp <= cp)) lo = mid + 1;
        else hi = mid;
    }
    if (!lo) return cp;
    const tn_uni_case *c = &tn_uni_cases[lo - 1];
    uint32_t off = cp - c->cp;
    bool in = c->kind == kind && off % c->step == 0 && off / c->step < c->n;
    return in ? (uint32_t)((int32_t)cp + c->delta) : cp;
}

uint32_t tn_uni_upper(uint32_t cp) { return other_case(cp, 0); }
uint32_t tn_uni_lower(uint32_t cp) { return other_case(cp, 1); }
uint32_t tn_uni_title(uint32_t cp) { return other_case(cp, 2); }

bool tn_uni_is_han(uint32_t cp) {
    size_t lo = 0, hi = tn_uni_han_n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (tn_uni_han[mid].last < cp) lo = mid + 1;
        else hi = mid;
    }
    return lo < tn_uni_han_n && cp >= tn_uni_han[lo].first;
}

/* ---- normal form C ---- */

static const uint32_t MASK = (1u << 21) - 1;

static const uint64_t *pair_of(uint32_t cp) {
    size_t lo = 0, hi = tn_uni_pairs_n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((tn_uni_pairs[mid] >> 42 & MASK) < cp) lo = mid + 1;
        else hi = mid;
    }
    return lo < tn_uni_pairs_n && (tn_uni_pairs[lo] >> 42 & MASK) == cp ? &tn_uni_pairs[lo] : NULL;
}

/* Appends the full decomposition of cp at out[n]; the new n. */
static size_t decompose_one(uint32_t cp, int32_t *out, size_t cap, size_t n) {
    uint32_t tail[8], n_tail = 0, h = cp - HANGUL;
    if (h < N_HANGUL) {
        uint32_t parts[3] = {L + h / (N_V * N_T), V + h % (N_V * N_T) / N_T, T + h % N_T};
        for (size_t i = 0; i < (h % N_T ? 3u : 2u); i++, n++)
            if (n < cap) out[n] = (int32_t)parts[i];
        return n;
    }
    for (const uint64_t *p; (p = pair_of(cp)) && n_tail < 8; cp = (uint32_t)(*p >> 21) & MASK)
        if (*p & MASK) tail[n_tail++] = (uint32_t)*p & MASK;
    if (n < cap) out[n] = (int32_t)cp;
    n++;
    for (; n_tail; n++) {
        n_tail--;
        if (n < cap) out[n] = (int32_t)tail[n_tail];
    }
    return n;
}

/* Marks behind a starter go into the order of their classes, those of one class as they came. */
static void order_marks(int32_t *cps, size_t n) {
    for (size_t i = 1; i < n; i++) {
        uint32_t c = combining_class((uint32_t)cps[i]);
        int32_t cp = cps[i];
        size_t at = i;
        for (; c && at && combining_class((uint32_t)cps[at - 1]) > c; at--) cps[at] = cps[at - 1];
        cps[at] = cp;
    }
}

ptrdiff_t tn_uni_decompose(const uint8_t *text, size_t n, int32_t *out, size_t cap) {
    const uint8_t *end = text + n;
    size_t n_out = 0;
    while (text < end) {
        uint32_t cp;
        size_t len = tn_utf8_decode(text, end, &cp);
        if (!len) return -1;
        text += len;
        n_out = decompose_one(cp, out, cap, n_out);
    }
    if (n_out <= cap) order_marks(out, n_out);
    return (ptrdiff_t)n_out;
}

/* What the two compose to, or 0. */
static uint32_t composed(uint32_t a, uint32_t b) {
    if (a - L < N_L && b - V < N_V) return HANGUL + ((a - L) * N_V + (b - V)) * N_T;
    if (a - HANGUL < N_HANGUL && (a - HANGUL) % N_T == 0 && b - T - 1 < N_T - 1) return a + (b - T);
    uint64_t key = (uint64_t)a << 21 | b;
    size_t lo = 0, hi = tn_uni_composed_n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((tn_uni_pairs[tn_uni_composed[mid]] & ((1ull << 42) - 1)) < key) lo = mid + 1;
        else hi = mid;
    }
    if (lo == tn_uni_composed_n) return 0;
    uint64_t p = tn_uni_pairs[tn_uni_composed[lo]];
    return (p & ((1ull << 42) - 1)) == key ? (uint32_t)(p >> 42) & MASK : 0;
}

/* A mark composes with the starter before it unless one of its class, or a starter, stands between. */
size_t tn_uni_compose(int32_t *cps, size_t n) {
    size_t out = 0, starter = SIZE_MAX;
    uint32_t last = 0; /* class of the character kept last behind the starter */
    for (size_t i = 0; i < n; i++) {
        uint32_t cp = (uint32_t)cps[i], c = combining_class(cp), whole = 0;
        bool beside = starter != SIZE_MAX && out == starter + 1;
        if (starter != SIZE_MAX && (beside || (last && last < c)))
            whole = composed((uint32_t)cps[starter], cp);
        if (whole) {
            cps[starter] = (int32_t)whole;
            continue;
        }
        if (!c) starter = out;
        last = c;
        cps[out++] = (int32_t)cp;
    }
    return out;
}
