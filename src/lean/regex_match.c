/* lean/regex_match.c - a program run on text: what could also be tried is kept on a stack of its own, so
 * that the C stack grows with the pattern's look-aheads alone. */
#include "lean/regex_impl.h"

#include "base/status.h"
#include "base/utf8.h"
#include "lean/unicode.h"

typedef struct entry {
    uint32_t op;    /* go on there */
    size_t at, low; /* at this place; or, down to low, one character before it */
} entry;

typedef enum outcome { NONE, FOUND, TOO_LONG, NO_MEMORY } outcome;

typedef struct matcher {
    const tn_regex *r;
    tn_regex_search *search;
    const uint8_t *text;
    size_t n;
} matcher;

bool tn_re_is_word(uint32_t cp) {
    const uint32_t letters_numbers = 0x3e | 0xe00; /* L*, N* */
    return cp == '_' || letters_numbers >> tn_uni_category(cp) & 1;
}

static bool is_space(uint32_t cp) {
    if (cp < 128) return cp == ' ' || (cp >= '\t' && cp <= '\r');
    int c = tn_uni_category(cp);
    return (c >= 23 && c <= 25) || cp == 0x85 || cp == 0x180e;
}

static bool in_range(const tn_re_range *x, uint32_t cp) {
    if (!x->categories && !x->classes) return cp >= x->first && cp <= x->last;
    bool in = x->categories >> tn_uni_category(cp) & 1;
    if (x->classes & TN_RE_SPACE) in = is_space(cp);
    if (x->classes & TN_RE_WORD) in = tn_re_is_word(cp);
    if (x->classes & TN_RE_HAN) in = tn_uni_is_han(cp);
    return in != x->negate;
}

bool tn_re_in_set(const tn_regex *r, const tn_re_set *s, uint32_t cp) {
    uint32_t upper = s->fold ? tn_uni_upper(cp) : cp, low = s->fold ? tn_uni_lower(cp) : cp;
    uint32_t folded =
        s->fold ? tn_uni_lower(upper) : cp; /* long s and the Kelvin sign have two steps to go */
    bool in = false;
    for (uint32_t i = 0; !in && i < s->n; i++) {
        const tn_re_range *x = &r->ranges[s->first + i];
        in = in_range(x, cp);
        if (s->fold && !x->categories && !x->classes)
            in = in || in_range(x, upper) || in_range(x, low) || in_range(x, folded);
    }
    return in != s->negate;
}

/* The bytes of the character at `at` if it is of the set, or 0. */
static inline size_t take(const matcher *m, const tn_re_set *s, size_t at) {
    if (at >= m->n) return 0;
    uint8_t c = m->text[at];
    if (c < 128) return s->ascii[c / 64] >> (c % 64) & 1;
    uint32_t cp = 0;
    size_t len = tn_utf8_decode(m->text + at, m->text + m->n, &cp);
    return tn_re_in_set(m->r, s, cp) ? len : 0;
}

static bool word_at(const matcher *m, size_t at) {
    uint32_t cp = 0;
    return at < m->n && tn_utf8_decode(m->text + at, m->text + m->n, &cp) && tn_re_is_word(cp);
}

static size_t before(const matcher *m, size_t at) {
    do at--;
    while ((m->text[at] & 0xc0) == 0x80);
    return at;
}

static bool place_fits(const matcher *m, const tn_re_op *op, size_t at) {
    if (op->kind == TN_RE_START) return at == 0;
    if (op->kind == TN_RE_END) return at == m->n;
    if (op->kind == TN_RE_LINE_END) return at == m->n || (at + 1 == m->n && m->text[at] == '\n');
    bool edge = (at > 0 && word_at(m, before(m, at))) != word_at(m, at);
    return edge != op->negate;
}

static bool push(tn_regex_search *s, entry e) {
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        void *more = tn_realloc(s->ctx, TN_MEM_TEXT, s->entries, cap, sizeof e);
        if (!more) return false;
        s->entries = more;
        s->cap = cap;
    }
    ((entry *)s->entries)[s->n++] = e;
    return true;
}

/* The newest of what could also be tried, down to `base`; false: nothing is left. */
static bool pop(const matcher *m, size_t base, uint32_t *op, size_t *at) {
    tn_regex_search *s = m->search;
    if (s->n == base) return false;
    entry *e = &((entry *)s->entries)[s->n - 1];
    *op = e->op;
    if (e->low < e->at) e->at = before(m, e->at);
    *at = e->at;
    if (e->low >= e->at) s->n--;
    return true;
}

/* As many characters as there are, up to max; each is a step. Their end is *at; false: fewer than min.
 * *low: the end of the min-th. */
static bool take_many(const matcher *m, const tn_re_op *op, size_t *at, size_t *low) {
    const tn_re_set *s = &m->r->sets[op->a];
    *low = *at;
    for (uint32_t k = 0; k < op->max || op->max == TN_RE_ENDLESS; k += k < TN_RE_ENDLESS) {
        if (k == op->min) *low = *at;
        size_t len = take(m, s, *at);
        if (!len) return k >= op->min;
        *at += len;
    }
    if (op->max == op->min) *low = *at;
    return true;
}

/* From op pc at `at` to a MATCH, whose place is *end. */
static outcome run(const matcher *m, uint32_t pc, size_t at, size_t *end) {
    tn_regex_search *search = m->search;
    size_t base = search->n, low;
    for (;;) {
        const tn_re_op *op = &m->r->ops[pc];
        bool fits = true;
        if (!search->steps_left--) return TOO_LONG;
        switch (op->kind) {
        case TN_RE_SET:
            fits = take_many(m, op, &at, &low);
            search->steps_left -= at - low < search->steps_left ? at - low : search->steps_left;
            pc++;
            if (fits && low < at && !op->possessive && !push(search, (entry){pc, at, low})) return NO_MEMORY;
            break;
        case TN_RE_SPLIT:
            if (!push(search, (entry){op->b, at, at})) return NO_MEMORY;
            pc = op->a;
            break;
        case TN_RE_JUMP: pc = op->a; break;
        case TN_RE_LOOK: {
            size_t ignored;
            outcome o = run(m, pc + 1, at, &ignored);
            if (o == TOO_LONG || o == NO_MEMORY) return o;
            fits = (o == FOUND) != op->negate;
            pc = op->a;
            break;
        }
        case TN_RE_MATCH:
            search->n = base;
            *end = at;
            return FOUND;
        default: fits = place_fits(m, op, at); pc++;
        }
        if (!fits && !pop(m, base, &pc, &at)) return NONE;
    }
}

tern_status tn_regex_find(const tn_regex *r, tn_regex_search *search, const char *text, size_t n, size_t from,
                          size_t *begin, size_t *end, bool *found, tern_error *err) {
    const matcher m = {r, search, (const uint8_t *)text, n};
    search->ctx = r->ctx;
    outcome o = NONE;
    for (size_t at = from; at <= n && o == NONE;) {
        search->n = 0;
        o = run(&m, 0, at, end);
        *begin = at++;
        while (at < n && (m.text[at] & 0xc0) == 0x80) at++;
    }
    TN_FAIL_IF(o == NO_MEMORY, err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    TN_FAIL_IF(o == TOO_LONG, err, TERN_E_LIMIT,
               "a pre-tokenisation pattern gave up at byte %zu of a stretch of %zu: it takes too many steps",
               from, n);
    *found = o == FOUND;
    return TERN_OK;
}

void tn_regex_search_init(tn_regex_search *search, size_t n_bytes) {
    *search = (tn_regex_search){.steps_left = (4u << 20) + 128 * (uint64_t)n_bytes};
}

void tn_regex_search_close(tn_regex_search *search) {
    if (search->ctx) tn_free(search->ctx, search->entries);
    *search = (tn_regex_search){0};
}
