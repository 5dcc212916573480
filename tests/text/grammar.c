/* Grammars: what GBNF means, errors, and masks against an independent recogniser.
 *
 * The recogniser takes derivatives of regular expressions over bytes, one byte at a time, which shares
 * nothing with the machine: a prefix can be completed exactly when its derivative is not empty. */
#include "base/rng.h"
#include "text/grammar/grammar.h"
#include "text/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static tn_ctx ctx;

static tn_grammar *gbnf(const char *text) {
    tern_error err = {0};
    tn_grammar *g;
    if (tn_grammar_open_gbnf(&ctx, text, strlen(text), &g, &err) != TERN_OK)
        fail_msg("%s: %s", text, err.message);
    return g;
}

/* ---- what GBNF means ------------------------------------------------------------------------------ */

typedef struct meaning {
    const char *grammar;
    const char *yes[6], *no[6];
} meaning;

static void meanings(void **state) {
    (void)state;
    static const meaning all[] = {
        {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "y", "yess", "Yes"}},
        {"root ::= [a-c]+ # letters\n", {"a", "abc"}, {"", "abd", "-"}},
        {"root ::= [^a-c\"\\\\]{2}", {"de", "\xc3\xa9\xe2\x82\xac", "  "}, {"d", "ad", "d\"", "\xc3\xa9"}},
        {"root ::= a{2,3} b?\na ::= \"x\"\nb ::= \"y\"",
         {"xx", "xxx", "xxy", "xxxy"},
         {"x", "xxxx", "xyx", "yxx"}},
        {"root ::= \"a\"{2,} \"b\"{0,1}", {"aa", "aaaaab"}, {"a", "ab", "aabb"}},
        {"root ::= ( \"a\" |\n \"b\" )* \"c\"", {"c", "abbac"}, {"", "ab", "cc"}},
        {"root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"(x", "x)", "()"}},
        {"root ::= \"a\" root |", {"", "aaaa"}, {"b", "aab"}},
        {"root ::= \"\\u20ac\" \"\\x41\\n\\t\\\"\\\\\\U0001F600\"",
         {"\xe2\x82\xac"
          "A\n\t\"\\\xf0\x9f\x98\x80"},
         {"\xe2\x82"}},
        {"root ::= .{3}",
         {"abc", "\xf0\x9f\x98\x80\n\xe2\x82\xac"},
         {"ab", "\xf0\x9f\x98\x80", "ab\xff", "ab\xc3"}},
        {"root ::= [\\x00-\\x7f\\u0400-\\u04ff]+", {"\xd0\x90z", "~"}, {"\xc3\xa9", "\xd4\x80"}},
        {"root ::= [a\\]-]+ [\\^]", {"a]-^", "]^"}, {"a", "^", "b^"}},
        {"root ::= (\"a\"?){3}", {"", "a", "aaa"}, {"aaaa"}},
        {"root ::= (\"a\"*)* \"b\"", {"b", "aab"}, {"a"}},
        {"root ::= x-1 x_2\nx-1 ::= \"1\"\n# between\nx_2 ::= \"2\"", {"12"}, {"1", "21"}},
        {"root ::= ((\"a\"{2}){2}){2}", {"aaaaaaaa"}, {"aaaaaaa", "aaaaaaaaa"}},
        {"root ::= (\"ab\"{1,2} \",\"){2}",
         {"ab,ab,", "abab,ab,"},
         {"ab,", "ab,ab", "abb,ab,", "ababab,ab,"}},
        {"root ::= \"a\" | never \"b\"\nnever ::= \"c\" never", {"a"}, {"cb", "c"}},
        {"root ::= [\\U00010000-\\U0010FFFF]",
         {"\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"},
         {"\xef\xbf\xbf", "\xf4\x90\x80\x80"}},
        {"root ::= [^\\x00]", {"\xed\x9f\xbf", "\xee\x80\x80"}, {"\xed\xa0\x80", "\xc0\x80", "\xe0\x80\x80"}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tn_grammar *g = gbnf(all[i].grammar);
        for (int k = 0; k < 6; k++) {
            const char *y = all[i].yes[k], *n = all[i].no[k];
            if (y && !tn_grammar_accepts(g, y, strlen(y))) fail_msg("%s rejects %s", all[i].grammar, y);
            if (n && tn_grammar_accepts(g, n, strlen(n))) fail_msg("%s accepts %s", all[i].grammar, n);
        }
        tn_grammar_close(&g);
    }
}

static void errors(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *message;
    } all[] = {
        {"", "no rule 'root'"},
        {"start ::= \"a\"", "no rule 'root'"},
        {"root ::= a", "'a' is used but not defined"},
        {"root ::= root \"a\" | \"b\"", "left recursion"},
        {"root ::= \"x\"? a\na ::= b \"c\"\nb ::= \"\" root", "left recursion"},
        {"root ::= (\"a\"? root){3}", "left recursion"},
        {"root ::= \"a\" root", "no text fits"},
        {"root ::= \"a", "line 1, column 12: a quoted text does not end"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: this rule is defined twice"},
        {"root ::= [a-", "does not end"},
        {"root ::= [z-a]", "runs backwards"},
        {"root ::= \"a\"{3,2}", "wrong way round"},
        {"root ::= \"a\"{x}", "lacks its number"},
        {"root ::= \"a\"{99999999}", "larger than"},
        {"root ::= (\"a\"", "not closed"},
        {"root ::= \"a\")", "cannot stand here"},
        {"root ::= \"\\q\"", "escape is unknown"},
        {"root ::= \"\\ud800\"", "names no character"},
        {"root ::= \"\xff\"", "not valid UTF-8"},
        {"root = \"a\"", "followed by ::="},
        {"root ::= <think>", "not supported"},
        {"root ::= (\"a\"?){0,100}", "at most 64"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tern_error err = {0};
        tn_grammar *g;
        assert_int_not_equal(tn_grammar_open_gbnf(&ctx, all[i].grammar, strlen(all[i].grammar), &g, &err),
                             TERN_OK);
        assert_null(g);
        if (!strstr(err.message, all[i].message)) fail_msg("%s: %s", all[i].grammar, err.message);
    }
}

/* ---- regular expressions and their derivatives ----------------------------------------------------- */

typedef struct re {
    enum { NEVER, EMPTY, BYTE, CHARS, SEQ, ALT, REP } kind;
    uint32_t lo, hi; /* BYTE: bytes; CHARS: code points; REP: times, hi UINT32_MAX: without end */
    const struct re *a, *b;
} re;

/* Each expression is kept once, so that alternatives that are the same are one. */
static re pool[1 << 19];
static uint32_t table[1 << 20]; /* place in pool + 1 */
static size_t n_pool;
static const re *make(re r) {
    uint64_t key[] = {(uint64_t)r.kind << 32 | r.lo, r.hi, (uintptr_t)r.a, (uintptr_t)r.b};
    size_t mask = sizeof table / sizeof *table - 1, i = (size_t)XXH3_64bits(key, sizeof key) & mask;
    for (; table[i]; i = (i + 1) & mask) {
        const re *k = &pool[table[i] - 1];
        if (k->kind == r.kind && k->lo == r.lo && k->hi == r.hi && k->a == r.a && k->b == r.b) return k;
    }
    assert_true(n_pool < sizeof pool / sizeof *pool);
    pool[n_pool] = r;
    table[i] = (uint32_t)++n_pool;
    return &pool[n_pool - 1];
}
static void forget_all(void) {
    n_pool = 0;
    memset(table, 0, sizeof table);
}
static const re never = {.kind = NEVER}, empty = {.kind = EMPTY};

static const re *seq(const re *a, const re *b) {
    if (a->kind == NEVER || b->kind == NEVER) return &never;
    if (a->kind == EMPTY) return b;
    return b->kind == EMPTY ? a : make((re){.kind = SEQ, .a = a, .b = b});
}
static const re *alt(const re *a, const re *b) {
    if (a->kind == NEVER) return b;
    if (b->kind == NEVER) return a;
    if (a->kind == ALT) return alt(a->a, alt(a->b, b));
    for (const re *k = b;; k = k->b) {
        if (k == a || (k->kind == ALT && k->a == a)) return b;
        if (k->kind != ALT) break;
    }
    return make((re){.kind = ALT, .a = a, .b = b});
}
static const re *rep(const re *a, uint32_t lo, uint32_t hi) {
    if (!hi) return &empty;
    if (a->kind == NEVER) return lo ? &never : &empty;
    return make((re){.kind = REP, .lo = lo, .hi = hi, .a = a});
}

static bool nullable(const re *r) {
    switch (r->kind) {
    case EMPTY: return true;
    case SEQ: return nullable(r->a) && nullable(r->b);
    case ALT: return nullable(r->a) || nullable(r->b);
    case REP: return !r->lo || nullable(r->a);
    default: return false;
    }
}

/* What may follow byte x; of CHARS the bytes of each code point are written out. */
static const re *derive(const re *r, uint8_t x) {
    switch (r->kind) {
    case BYTE: return r->lo <= x && x <= r->hi ? &empty : &never;
    case CHARS: {
        const re *all = &never;
        for (uint32_t cp = r->lo; cp <= r->hi; cp++) {
            uint8_t buf[4];
            size_t n = tn_utf8_encode(cp, buf);
            if (buf[0] != x) continue;
            const re *rest = &empty;
            for (size_t i = n; i-- > 1;)
                rest = seq(make((re){.kind = BYTE, .lo = buf[i], .hi = buf[i]}), rest);
            all = alt(all, rest);
        }
        return all;
    }
    case SEQ: {
        const re *d = seq(derive(r->a, x), r->b);
        return nullable(r->a) ? alt(d, derive(r->b, x)) : d;
    }
    case ALT: return alt(derive(r->a, x), derive(r->b, x));
    case REP: {
        uint32_t lo = r->lo && !nullable(r->a) ? r->lo - 1 : 0;
        return seq(derive(r->a, x), rep(r->a, lo, r->hi == UINT32_MAX ? r->hi : r->hi - 1));
    }
    default: return &never;
    }
}

static const re *derive_all(const re *r, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n && r->kind != NEVER; i++) r = derive(r, p[i]);
    return r;
}

/* The same expression as GBNF; some parts become rules. */
typedef struct writer {
    char body[8192], rules[8192];
    int n_rules;
} writer;

static void random_re(tn_rng *rng, int depth, const re **out, char *text, size_t cap, writer *w);

static void random_leaf(tn_rng *rng, const re **out, char *text, size_t cap) {
    static const uint32_t points[] = {'a', 'b', 'c', 0xe9, 0xea, 0x20ac, 0x1f600};
    uint32_t lo = points[tn_rng_below(rng, 7)], hi = lo + (uint32_t)tn_rng_below(rng, 3);
    *out = make((re){.kind = CHARS, .lo = lo, .hi = hi});
    snprintf(text, cap, "[\\U%08X-\\U%08X]", lo, hi);
}

static void random_re(tn_rng *rng, int depth, const re **out, char *text, size_t cap, writer *w) {
    uint64_t what = depth ? tn_rng_below(rng, 8) : 0;
    char a[2048], b[2048];
    const re *x, *y;
    if (what < 2) {
        random_leaf(rng, out, text, cap);
        return;
    }
    random_re(rng, depth - 1, &x, a, sizeof a, w);
    if (what < 5) {
        random_re(rng, depth - 1, &y, b, sizeof b, w);
        *out = what < 4 ? seq(x, y) : alt(x, y);
        snprintf(text, cap, what < 4 ? "(%s %s)" : "(%s | %s)", a, b);
    } else {
        uint32_t lo = (uint32_t)tn_rng_below(rng, 4), hi = lo + (uint32_t)tn_rng_below(rng, 4);
        if (!tn_rng_below(rng, 3)) hi = UINT32_MAX;
        *out = rep(x, lo, hi);
        if (hi == UINT32_MAX) snprintf(text, cap, "(%s{%u,})", a, lo);
        else snprintf(text, cap, "(%s{%u,%u})", a, lo, hi);
    }
    if (!tn_rng_below(rng, 4) && strlen(w->rules) + strlen(text) + 30 < sizeof w->rules) {
        sprintf(w->rules + strlen(w->rules), "r%d ::= %s\n", w->n_rules, text);
        snprintf(text, cap, "r%d", w->n_rules++);
    }
}

/* ---- a vocabulary of all bytes and of pieces ------------------------------------------------------- */

enum { N_PIECES = 400, N_TOKENS = 256 + N_PIECES + 1 };
static struct {
    uint8_t bytes[N_TOKENS][24];
    size_t n[N_TOKENS];
    tn_tokenizer *tok;
    tn_gvocab *v;
} vocab;

static void make_vocab(tn_rng *rng) {
    static char text[N_TOKENS][100];
    const char *tokens[N_TOKENS];
    size_t lens[N_TOKENS];
    float scores[N_TOKENS];
    uint8_t types[N_TOKENS] = {0};
    static const char *const chars[] = {
        "a",  "b", "c", "d", "\xc3\xa9", "\xc3\xaa", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
        "\"", "{", "}", ":", " ",        "1"};
    for (int i = 0; i < N_TOKENS; i++) {
        uint8_t *p = vocab.bytes[i];
        size_t n = 1;
        if (i < 256) {
            p[0] = (uint8_t)i;
        } else {
            char s[64] = "";
            for (uint64_t k = 3 + tn_rng_below(rng, 4); k; k--) strcat(s, chars[tn_rng_below(rng, 14)]);
            size_t from = tn_rng_below(rng, 2),
                   to = strlen(s) - tn_rng_below(rng, 2); /* perhaps inside characters */
            n = to - from;
            memcpy(p, s + from, n);
        }
        vocab.n[i] = n;
        size_t m = 0;
        for (size_t k = 0; k < n; k++) m += tn_utf8_encode(tn_byte_to_alphabet(p[k]), (uint8_t *)text[i] + m);
        tokens[i] = text[i];
        lens[i] = m;
        scores[i] = (float)-i;
    }
    tokens[N_TOKENS - 1] = "<end>";
    lens[N_TOKENS - 1] = 5;
    types[N_TOKENS - 1] = TN_TOKEN_CONTROL;
    tn_tokenizer_spec s;
    tn_tokenizer_spec_defaults(&s, TN_TOK_BPE_BYTES, NULL);
    s.n_vocab = N_TOKENS;
    s.tokens = tokens;
    s.token_bytes = lens;
    s.scores = scores;
    s.types = types;
    s.eos = N_TOKENS - 1;
    tern_error err = {0};
    if (tn_tokenizer_open(&ctx, &s, &vocab.tok, &err) != TERN_OK) fail_msg("%s", err.message);
    if (tn_gvocab_open(&ctx, vocab.tok, N_TOKENS + 10, &vocab.v, &err) != TERN_OK)
        fail_msg("%s", err.message);
}

static bool bit(const uint64_t *mask, size_t id) { return mask[id >> 6] >> (id & 63) & 1; }

/* A random walk under the masks; every bit of every mask is what the derivative says. */
static void walk(tn_grammar *g, const re *r, tn_rng *rng, const char *text, uint64_t seed) {
    tern_error err = {0};
    assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
    for (int step = 0; step < 12; step++) {
        const uint64_t *mask;
        tern_status st = tn_grammar_mask(g, &mask, &err);
        if (st != TERN_OK) fail_msg("seed %llu, %s: %s", (unsigned long long)seed, text, err.message);
        size_t allowed[N_TOKENS], n = 0;
        for (size_t id = 0; id < N_TOKENS - 1; id++) {
            bool want = derive_all(r, vocab.bytes[id], vocab.n[id])->kind != NEVER;
            if (bit(mask, id) != want)
                fail_msg("seed %llu, %s, step %d: token %zu %s", (unsigned long long)seed, text, step, id,
                         want ? "is missing" : "is allowed");
            if (want) allowed[n++] = id;
        }
        assert_int_equal(bit(mask, N_TOKENS - 1), nullable(r));
        assert_int_equal(tn_grammar_can_end(g), nullable(r));
        for (size_t id = N_TOKENS; id < N_TOKENS + 10; id++) assert_false(bit(mask, id));
        assert_int_equal(tn_grammar_must_end(g), !n);
        if (!n) return;
        size_t id = allowed[tn_rng_below(rng, n)];
        assert_false(tn_grammar_take(g, (int32_t)N_TOKENS + 3));
        assert_true(tn_grammar_take(g, (int32_t)id));
        r = derive_all(r, vocab.bytes[id], vocab.n[id]);
    }
}

static void masks(void **state) {
    (void)state;
    const char *given = getenv("TERN_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    tn_rng rng = {seed};
    make_vocab(&rng);
    int n_cases = getenv("TERN_TEST_QUICK") ? 60 : 300, walked = 0;
    for (int i = 0; i < n_cases; i++) {
        static writer w;
        memset(&w, 0, sizeof w);
        forget_all();
        const re *r;
        random_re(&rng, 1 + (int)tn_rng_below(&rng, 4), &r, w.body, sizeof w.body, &w);
        char text[17000];
        snprintf(text, sizeof text, "root ::= %s\n%s", w.body, w.rules);
        tern_error err = {0};
        tn_grammar *g;
        tern_status st = tn_grammar_open_gbnf(&ctx, text, strlen(text), &g, &err);
        if (st != TERN_OK) fail_msg("seed %llu: %s: %s", (unsigned long long)seed, text, err.message);
        assert_int_equal(tn_grammar_bind(g, vocab.v, &err), TERN_OK);
        for (int k = 0; k < 4; k++, walked++) walk(g, r, &rng, text, seed);
        tn_grammar_close(&g);
    }
    printf("%d walks of %d grammars, seed %llu\n", walked, n_cases, (unsigned long long)seed);
}

/* The many counts inside a string, with what follows it, for lengths at both ends. */
static void counted(void **state) {
    (void)state;
    tern_error err = {0};
    tn_rng rng = {7};
    for (uint32_t lo = 0; lo < 7; lo += 3)
        for (uint32_t hi = lo ? lo : 1; hi < lo + 8; hi += 3) {
            char text[200];
            snprintf(text, sizeof text,
                     "root ::= \"\\\"\" char{%u,%u} \"\\\"\" [:}]\nchar ::= [^\"\\\\] | \"\\\\\" [a-c]", lo,
                     hi);
            tn_grammar *g = gbnf(text);
            assert_int_equal(tn_grammar_bind(g, vocab.v, &err), TERN_OK);
            for (int k = 0; k < 20; k++) { /* the mask's bit is what the machine says of the same bytes */
                uint8_t way[400];
                size_t n = 0;
                assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
                while (n < 300) {
                    const uint64_t *mask;
                    assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
                    int pick = -1, seen = 0;
                    for (int id = 0; id < N_TOKENS - 1; id++) {
                        size_t chars = 0, i = 0, m = n + vocab.n[id];
                        memcpy(way + n, vocab.bytes[id], vocab.n[id]);
                        bool ok = way[0] == '"';
                        for (i = 1; ok && i < m && way[i] != '"';) { /* counted by hand */
                            size_t len = way[i] == '\\'   ? 2
                                         : way[i] < 0x80  ? 1
                                         : way[i] >= 0xf0 ? 4
                                         : way[i] >= 0xe0 ? 3
                                                          : 2;
                            uint8_t whole[8] = {0};
                            uint32_t cp;
                            size_t have = m - i < len ? m - i : len;
                            memcpy(whole, way + i, have);
                            if (way[i] == '\\') {
                                ok = have < 2 || (way[i + 1] >= 'a' && way[i + 1] <= 'c');
                            } else if (have < len) { /* could become a character? */
                                bool could = false;
                                for (int c = 0; c < 2 && !could; c++) {
                                    memset(whole + have, c ? 0xbf : 0x80, len - have);
                                    could = tn_utf8_decode(whole, whole + len, &cp) == len;
                                }
                                ok = could;
                            } else {
                                ok = tn_utf8_decode(whole, whole + len, &cp) == len;
                            }
                            chars++;
                            i += len;
                        }
                        ok = ok && chars <= hi;
                        if (ok && i < m) /* the quote, and one more */
                            ok = chars >= lo && m <= i + 2 &&
                                 (m == i + 1 || way[i + 1] == ':' || way[i + 1] == '}');
                        if (bit(mask, (size_t)id) != ok) fail_msg("{%u,%u} at %zu: token %d", lo, hi, n, id);
                        if (ok && !tn_rng_below(&rng, (uint64_t)++seen)) pick = id;
                    }
                    if (pick < 0) break;
                    assert_true(tn_grammar_take(g, pick));
                    memcpy(way + n, vocab.bytes[pick], vocab.n[pick]);
                    n += vocab.n[pick];
                }
                assert_true(tn_grammar_must_end(g));
            }
            tn_grammar_close(&g);
        }
}

/* Free text until a word, then the grammar: no token may break out of it, none may end the text before. */
static void behind_thinking(void **state) {
    (void)state;
    tern_error err = {0};
    tn_grammar *g = gbnf("root ::= \"{\" [0-9]+ \"}\"");
    assert_int_equal(tn_grammar_bind(g, vocab.v, &err), TERN_OK);
    tn_rng rng = {11};
    const char *after = "bb";
    for (int k = 0; k < 300; k++) {
        char text[4000] = "";
        size_t n = 0;
        assert_int_equal(tn_grammar_begin(g, after, &err), TERN_OK);
        for (int step = 0; step < 60 && !tn_grammar_must_end(g); step++) {
            const uint64_t *mask;
            assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
            int pick = -1, seen = 0;
            for (int id = 0; id < N_TOKENS - 1;
                 id++) { /* what follows the first "bb" must begin the grammar's text */
                memcpy(text + n, vocab.bytes[id], vocab.n[id]);
                size_t m = n + vocab.n[id];
                text[m] = 0;
                char *at = memmem(text, m, after, 2);
                bool ok = true;
                if (at) {
                    char *p = at + 2, *end = text + m;
                    int spaces = 0;
                    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++, spaces++;
                    ok = spaces <= 16 && (p == end || *p == '{');
                    for (char *q = p + 1; ok && q < end; q++)
                        ok = (*q >= '0' && *q <= '9') || (*q == '}' && q > p + 1 && q + 1 == end);
                }
                if (bit(mask, (size_t)id) != ok) fail_msg("token %d behind '%.*s'", id, (int)n, text);
                if (ok && !tn_rng_below(&rng, (uint64_t)++seen)) pick = id;
                if (ok && (vocab.bytes[id][0] == 'b' || at) && !tn_rng_below(&rng, 30)) pick = id;
            }
            assert_int_equal(bit(mask, N_TOKENS - 1), tn_grammar_can_end(g));
            assert_true(pick >= 0);
            assert_true(tn_grammar_take(g, pick));
            memcpy(text + n, vocab.bytes[pick], vocab.n[pick]);
            n += vocab.n[pick];
        }
    }
    tn_grammar_close(&g);
}

/* Brackets without end: deeper than any table, and back. */
static void deep(void **state) {
    (void)state;
    tern_error err = {0};
    tn_grammar *g = gbnf("root ::= \"{\" root \"}\" | \"a\"");
    assert_int_equal(tn_grammar_bind(g, vocab.v, &err), TERN_OK);
    enum { DEEP = 40000 }; /* more states than are kept */
    for (int i = 0; i < 2 * DEEP + 1; i++) {
        const uint64_t *mask;
        assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
        int id = i < DEEP ? '{' : i == DEEP ? 'a' : '}';
        assert_true(bit(mask, (size_t)id));
        assert_int_equal(bit(mask, '}'), i > DEEP);
        assert_true(tn_grammar_take(g, id));
    }
    assert_true(tn_grammar_must_end(g));
    tn_grammar_close(&g);
}

/* Returns the bytes of the shortest text. */
static size_t shortest(const re *r) {
    uint8_t buf[4];
    size_t a, b, none = 1 << 20;
    switch (r->kind) {
    case NEVER: return none;
    case EMPTY: return 0;
    case BYTE: return 1;
    case CHARS: return tn_utf8_encode(r->lo, buf);
    case REP: return r->lo ? r->lo * shortest(r->a) : 0;
    default: break;
    }
    a = shortest(r->a);
    b = shortest(r->b);
    if (r->kind == SEQ) return a + b < none ? a + b : none;
    return a < b ? a : b;
}

/* Random texts under a limit: whole where any text fits, and nothing is forced while there is room. */
static void limited(tn_grammar *g, const re *r, tn_rng *rng, const char *text, uint64_t seed, int *n_forced) {
    tern_error err = {0};
    size_t least = shortest(r), left = least + tn_rng_below(rng, 8);
    assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
    while (left-- && !tn_grammar_must_end(g)) {
        const uint64_t *mask;
        bool forced = false;
        assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
        int32_t drawn = -1, id;
        for (uint64_t i = 0, n = 0; i < N_TOKENS - 1; i++)
            if (bit(mask, i) && !tn_rng_below(rng, ++n)) drawn = (int32_t)i;
        assert_true(drawn >= 0);
        size_t rest = shortest(derive_all(r, vocab.bytes[drawn], vocab.n[drawn]));
        id = drawn;
        if (tn_grammar_take_within(g, &id, left, &forced, &err) != TERN_OK) fail_msg("%s", err.message);
        if (forced ? rest <= left : id != drawn)
            fail_msg("seed %llu, %s: token %d for %d, %zu left for %zu", (unsigned long long)seed, text, id,
                     drawn, left, rest);
        *n_forced += forced;
        if (id < 0) break;
        r = derive_all(r, vocab.bytes[id], vocab.n[id]);
    }
    if (!nullable(r) || !tn_grammar_can_end(g))
        fail_msg("seed %llu, %s: not ended", (unsigned long long)seed, text);
}

static void closed_in_time(void **state) {
    (void)state;
    const char *given = getenv("TERN_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 3;
    tn_rng rng = {seed};
    int n_forced = 0;
    for (int i = 0; i < 300; i++) {
        static writer w;
        memset(&w, 0, sizeof w);
        forget_all();
        const re *r;
        random_re(&rng, 1 + (int)tn_rng_below(&rng, 4), &r, w.body, sizeof w.body, &w);
        char text[17000];
        snprintf(text, sizeof text, "root ::= %s\n%s", w.body, w.rules);
        tern_error err = {0};
        tn_grammar *g = gbnf(text);
        assert_int_equal(tn_grammar_bind(g, vocab.v, &err), TERN_OK);
        for (int k = 0; k < 8; k++) limited(g, r, &rng, text, seed, &n_forced);
        tn_grammar_close(&g);
    }
    printf("%d tokens forced, seed %llu\n", n_forced, (unsigned long long)seed);
    assert_true(n_forced > 200);
}

/* Takes ids one by one, `left` falling to 0 after the last, and writes what came of them. */
static void taken(tn_grammar *g, const char *after, const char *drawn, size_t left, char *out) {
    tern_error err = {0};
    assert_int_equal(tn_grammar_begin(g, after, &err), TERN_OK);
    size_t n = 0;
    for (const char *p = drawn; !tn_grammar_must_end(g); left--) {
        bool forced = false;
        const uint64_t *mask;
        assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
        int32_t id = *p ? (uint8_t)*p++ : 0;
        for (int32_t k = 255; k >= 0 && !bit(mask, (size_t)id); k--)
            if (bit(mask, (size_t)k)) id = k;
        if (tn_grammar_take_within(g, &id, left, &forced, &err) != TERN_OK) fail_msg("%s", err.message);
        if (id < 0) break;
        memcpy(out + n, vocab.bytes[id], vocab.n[id]);
        n += vocab.n[id];
        if (!left) break;
    }
    out[n] = 0;
}

/* What was opened is closed, inside first; thoughts too; brackets of any depth; and what can never fit is left
 * alone. */
static void closings(void **state) {
    (void)state;
    tern_error err = {0};
    static const struct {
        const char *grammar, *after, *drawn;
        size_t left;
        const char *text;
    } all[] = {
        {"root ::= \"{\" x \"}\"\nx ::= [a-z]* \"\\\"\"", NULL, "{hello", 5, "{hel\"}"},
        {"root ::= \"(\" root \")\" | \"x\"", NULL, "((((((((", 7, "(((x)))"},
        {"root ::= \"{\" [0-9]{4,} \"}\"", NULL, "{7", 5, "{7999}"},
        {"root ::= \"{\" [0-9]{4,} \"}\"", NULL, "{711111", 4, "{7111"}, /* five tokens never are enough */
        {"root ::= \"abcd\" | \"x\"", NULL, "abcd", 0, "x"},
        {"root ::= \"x\" (\"abc\")?", NULL, "xabc", 1, "x"},
        {"root ::= \"yes\" | \"no\"", "xy", "zzzzxzzzzz", 6, "zzzxyno"},
        {"root ::= \"no\"", "xy", "zzzx", 6, "zzzxyno"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[100];
        tn_grammar *g = gbnf(all[i].grammar);
        assert_int_equal(tn_grammar_bind(g, vocab.v, &err), TERN_OK);
        for (int k = 0; k < 2; k++) { /* and another text of the same grammar */
            taken(g, all[i].after, all[i].drawn, all[i].left, text);
            if (strcmp(text, all[i].text)) fail_msg("%s, %zu: '%s'", all[i].grammar, all[i].left, text);
        }
        tn_grammar_close(&g);
    }
}

/* Brackets far deeper than a stack of calls, and rules that call rules. */
static void closed_deep(void **state) {
    (void)state;
    tern_error err = {0};
    enum { DEEP = 20000, RULES = 3000 };
    char *text = malloc(RULES * 32), *p = text;
    for (int i = 0; i < RULES; i++) p += sprintf(p, "r%d ::= \"a\"? r%d \"b\"?\n", i, i + 1);
    sprintf(p, "r%d ::= \"{\" r0 \"}\" | \"a\"\nroot ::= r%d\n", RULES, RULES);
    tn_grammar *g = gbnf("root ::= \"(\" root \")\" | \"x\""), *many = gbnf(text);
    assert_int_equal(tn_grammar_bind(g, vocab.v, &err), TERN_OK);
    assert_int_equal(tn_grammar_bind(many, vocab.v, &err), TERN_OK);
    for (int i = 0; i < 2 * DEEP + 1; i++) {
        bool forced = false;
        int32_t id = i <= DEEP ? '(' : ')';
        if (tn_grammar_take_within(g, &id, (size_t)(2 * DEEP - i), &forced, &err) != TERN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(id, i < DEEP ? '(' : i == DEEP ? 'x' : ')');
        assert_int_equal(forced, i == DEEP);
        const uint64_t *mask; /* states are forgotten on the way */
        if (i % 1000 == 0) assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
    }
    assert_true(tn_grammar_must_end(g));
    bool forced = false;
    int32_t id = '{';
    assert_int_equal(tn_grammar_take_within(many, &id, 0, &forced, &err), TERN_OK);
    assert_int_equal(id, 'a');
    tn_grammar_close(&g);
    tn_grammar_close(&many);
    free(text);
}

/* A grammar that no token of the vocabulary can go on with is an error, not an endless loop. */
static void lost(void **state) {
    (void)state;
    static const char *const tokens[] = {"a", "b", "<end>"};
    static const size_t lens[] = {1, 1, 5};
    static const float scores[] = {0, -1, -2};
    static const uint8_t types[] = {0, 0, TN_TOKEN_CONTROL};
    tn_tokenizer_spec s;
    tn_tokenizer_spec_defaults(&s, TN_TOK_BPE_BYTES, NULL);
    s.n_vocab = 3, s.tokens = tokens, s.token_bytes = lens, s.scores = scores, s.types = types, s.eos = 2;
    tern_error err = {0};
    tn_tokenizer *t;
    tn_gvocab *v;
    if (tn_tokenizer_open(&ctx, &s, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(tn_gvocab_open(&ctx, t, 3, &v, &err), TERN_OK);
    tn_grammar *g = gbnf("root ::= \"ac\"");
    const uint64_t *mask;
    assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_E_INVALID); /* no vocabulary yet */
    assert_int_equal(tn_grammar_bind(g, v, &err), TERN_OK);
    assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
    assert_int_equal(mask[0], 1);
    assert_false(tn_grammar_take(g, 1));
    assert_true(tn_grammar_take(g, 0));
    assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no token"));
    tn_grammar_close(&g);
    tn_gvocab_close(&v);
    tn_tokenizer_close(&t);
}

static int done(void **state) {
    (void)state;
    tn_gvocab_close(&vocab.v);
    tn_tokenizer_close(&vocab.tok);
    for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(ctx.live_bytes[i], 0);
    return 0;
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meanings),    cmocka_unit_test(errors),          cmocka_unit_test(masks),
        cmocka_unit_test(counted),     cmocka_unit_test(behind_thinking), cmocka_unit_test(deep),
        cmocka_unit_test(lost),        cmocka_unit_test(closed_in_time),  cmocka_unit_test(closings),
        cmocka_unit_test(closed_deep),
    };
    return cmocka_run_group_tests(tests, NULL, done);
}
