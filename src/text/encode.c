/* text/encode.c - text to ids: special tokens are cut out, the rest is normalised, cut into pre-tokens and
 * merged.
 *
 * Merging always takes the pair of best priority, leftmost first. Short pre-tokens, which are nearly all,
 * scan an array. Long ones use a linked list with a heap, O(n log n), so no text is slow. */
#include "text/tokenizer_impl.h"

#include "base/status.h"
#include "text/pieces.h"
#include "text/utf8.h"

#include <assert.h>
#include <utf8proc.h>

enum { SHORT = 48 }; /* symbols up to which the scan beats the heap */

typedef struct symbol {
    uint32_t
        id; /* TN_TOK_NONE: a character missing from the vocabulary (score mode) or a byte without a token */
    uint32_t off, len;
    uint32_t prev, next; /* TN_TOK_NONE at the ends; long pre-tokens only */
} symbol;

typedef struct candidate {
    uint64_t key; /* priority << 32 | index of the left symbol: smallest first */
    uint32_t len; /* of both symbols together; another length now means the pair is gone */
    uint32_t result;
} candidate;

/* The state of one tn_tokenize. */
typedef struct encoder {
    const tn_tokenizer *t;
    int32_t *ids;
    size_t cap, n;
    bool after_unk;  /* the last id was the unknown token; a run of them becomes one */
    symbol *sym;     /* for long pre-tokens, kept between them */
    candidate *heap; /* 2 per symbol */
    size_t sym_cap;
    uint8_t *norm; /* normalised section */
    size_t norm_cap;
    const uint64_t
        *markup; /* bit per token: the template's markup, which content must not produce; or NULL */
    tern_error *err;
    size_t n_bytes, n_done,
        n_told; /* bytes of the text: in all; merged; merged at the last call of the host's hook */
} encoder;

static void emit(encoder *e, uint32_t id) {
    if (e->n < e->cap) e->ids[e->n] = (int32_t)id;
    e->n++;
    e->after_unk = false;
}

static tern_status merge_piece(encoder *e, const uint8_t *piece, size_t n);

/* Emits bytes that have no token: as byte tokens if the vocabulary has them. A byte-level vocabulary never
 * uses its unknown token, which in many files is the end of text; it emits U+FFFD, as for invalid UTF-8, or
 * nothing. Other vocabularies emit the unknown token. */
static void emit_bytes(encoder *e, const uint8_t *p, size_t n) {
    static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd};
    const tn_tokenizer *t = e->t;
    bool all = true, replaceable = true;
    for (size_t i = 0; i < n; i++) all &= t->byte_id[p[i]] != TN_TOK_NONE;
    for (size_t i = 0; i < sizeof replacement; i++) replaceable &= t->byte_id[replacement[i]] != TN_TOK_NONE;
    if (all) {
        for (size_t i = 0; i < n; i++) emit(e, t->byte_id[p[i]]);
    } else if (t->kind == TN_TOK_BPE_BYTES) {
        if (replaceable) (void)merge_piece(e, replacement, sizeof replacement); /* too short to need memory */
    } else if (t->unk >= 0 && !e->after_unk) {
        emit(e, (uint32_t)t->unk);
        e->after_unk = true;
    }
}

static void emit_symbol(encoder *e, const uint8_t *piece, const symbol *s) {
    if (s->id != TN_TOK_NONE) emit(e, s->id);
    else emit_bytes(e, piece + s->off, s->len);
}

/* Orders floats as unsigned numbers, with the best (highest) score smallest. */
static uint32_t score_priority(float score) {
    uint32_t u;
    memcpy(&u, &score, sizeof u);
    return u >> 31 ? u : ~u & 0x7fffffffu;
}

/* Whether these neighbours can merge. A merge table compares their ids, scores their joined text. */
static inline bool pair_find(const tn_tokenizer *t, const uint8_t *piece, const symbol *a, const symbol *b,
                             uint32_t *priority, uint32_t *result) {
    if (t->scores) {
        uint32_t len = a->len + b->len;
        if (len > t->max_token_bytes) return false;
        uint32_t id = tn_tok_lookup(t, piece + a->off, len);
        if (id == TN_TOK_NONE || tn_tok_guarded(t, id)) return false;
        *priority = score_priority(t->scores[id]);
        *result = id;
        return true;
    }
    if (a->id == TN_TOK_NONE || b->id == TN_TOK_NONE) return false;
    uint64_t key = (uint64_t)a->id << 32 | b->id;
    for (uint64_t i = tn_tok_pair_hash(t, key);; i++) {
        const tn_pair *p = &t->pairs[i & t->pairs_mask];
        if (p->rank == TN_TOK_NONE) return false;
        if (p->key == key) {
            if (tn_tok_guarded(t, p->result)) return false;
            *priority = p->rank;
            *result = p->result;
            return true;
        }
    }
}

/* Returns the next symbol of a pre-token at off: a byte, or a character of a SentencePiece vocabulary. With a
 * merge table a character outside the vocabulary enters as its bytes; with scores it stays whole until the
 * end. */
static symbol first_symbol(const tn_tokenizer *t, const uint8_t *piece, size_t off, size_t n,
                           size_t *bytes_left) {
    symbol s = {.off = (uint32_t)off, .len = 1};
    if (t->kind == TN_TOK_BPE_BYTES || *bytes_left) {
        s.id = t->byte_id[piece[off]];
        if (*bytes_left) --*bytes_left;
        return s;
    }
    uint32_t cp;
    size_t len = tn_utf8_decode(piece + off, piece + n, &cp);
    s.len = len ? (uint32_t)len : 1;
    s.id = tn_tok_lookup(t, piece + off, s.len);
    if (s.id == TN_TOK_NONE && !t->scores) {
        bool all = true;
        for (uint32_t i = 0; i < s.len; i++) all &= t->byte_id[piece[off + i]] != TN_TOK_NONE;
        if (all) {
            *bytes_left = s.len - 1;
            s.id = t->byte_id[piece[off]];
            s.len = 1;
        }
    }
    return s;
}

static void merge_short(encoder *e, const uint8_t *piece, symbol *s, size_t n) {
    const tn_tokenizer *t = e->t;
    uint32_t pri[SHORT], res[SHORT]; /* of the pair (i, i + 1); TN_TOK_NONE priority sorts last */
    for (size_t i = 0; i + 1 < n; i++)
        if (!pair_find(t, piece, &s[i], &s[i + 1], &pri[i], &res[i])) pri[i] = res[i] = TN_TOK_NONE;
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (pri[i] < pri[best]) best = i;
        if (res[best] == TN_TOK_NONE) break;
        s[best].id = res[best];
        s[best].len += s[best + 1].len;
        n--;
        size_t tail = n - best - 1; /* symbols after the merged one */
        memmove(s + best + 1, s + best + 2, tail * sizeof *s);
        if (tail) {
            memmove(pri + best, pri + best + 1, tail * sizeof *pri);
            memmove(res + best, res + best + 1, tail * sizeof *res);
            if (!pair_find(t, piece, &s[best], &s[best + 1], &pri[best], &res[best]))
                pri[best] = res[best] = TN_TOK_NONE;
        }
        if (best > 0 && !pair_find(t, piece, &s[best - 1], &s[best], &pri[best - 1], &res[best - 1]))
            pri[best - 1] = res[best - 1] = TN_TOK_NONE;
    }
    for (size_t i = 0; i < n; i++) emit_symbol(e, piece, &s[i]);
}

static void heap_down(candidate *h, size_t n, size_t i) {
    candidate x = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1].key < h[c].key) c++;
        if (h[c].key >= x.key) break;
        h[i] = h[c];
    }
    h[i] = x;
}

static void heap_push(candidate *h, size_t *n, candidate x) {
    size_t i = (*n)++;
    for (size_t up; i > 0 && h[up = (i - 1) / 2].key > x.key; i = up) h[i] = h[up];
    h[i] = x;
}

static bool find_candidate(const tn_tokenizer *t, const uint8_t *piece, const symbol *s, uint32_t left,
                           candidate *c) {
    uint32_t priority, right = s[left].next;
    if (right == TN_TOK_NONE || !pair_find(t, piece, &s[left], &s[right], &priority, &c->result))
        return false;
    c->key = (uint64_t)priority << 32 | left;
    c->len = s[left].len + s[right].len;
    return true;
}

static void merge_long(encoder *e, const uint8_t *piece, size_t n) {
    const tn_tokenizer *t = e->t;
    symbol *s = e->sym;
    candidate *h = e->heap, c;
    size_t nh = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = i ? (uint32_t)i - 1 : TN_TOK_NONE;
        s[i].next = i + 1 < n ? (uint32_t)i + 1 : TN_TOK_NONE;
    }
    for (size_t i = 0; i + 1 < n; i++)
        if (find_candidate(t, piece, s, (uint32_t)i, &c)) h[nh++] = c;
    for (size_t i = nh / 2; i-- > 0;) heap_down(h, nh, i);
    while (nh) {
        c = h[0];
        h[0] = h[--nh];
        if (nh) heap_down(h, nh, 0);
        symbol *l = &s[(uint32_t)c.key];
        if (l->len == 0 || l->next == TN_TOK_NONE || l->len + s[l->next].len != c.len)
            continue; /* since merged */
        symbol *r = &s[l->next];
        l->id = c.result;
        l->len = c.len;
        l->next = r->next;
        r->len = 0;
        if (l->next != TN_TOK_NONE) s[l->next].prev = (uint32_t)(l - s);
        /* one out, at most two in: the heap never holds more than two per symbol */
        if (l->prev != TN_TOK_NONE && find_candidate(t, piece, s, l->prev, &c)) heap_push(h, &nh, c);
        if (find_candidate(t, piece, s, (uint32_t)(l - s), &c)) heap_push(h, &nh, c);
        assert(nh <= 2 * n);
    }
    for (uint32_t i = 0; i != TN_TOK_NONE; i = s[i].next) emit_symbol(e, piece, &s[i]);
}

/* Merges one pre-token. */
static tern_status merge_piece(encoder *e, const uint8_t *piece, size_t n) {
    symbol few[SHORT];
    symbol *s = few;
    size_t cap = SHORT, n_sym = 0, bytes_left = 0;
    for (size_t off = 0; off < n; off += s[n_sym].len, n_sym++) {
        if (n_sym == cap) {
            size_t need = n_sym + (n - off); /* no symbol is shorter than a byte */
            if (s == few) {
                if (need > e->sym_cap) {
                    tn_free(e->t->ctx, e->sym);
                    tn_free(e->t->ctx, e->heap);
                    e->sym_cap = 0;
                    e->sym = tn_alloc(e->t->ctx, TN_MEM_TEXT, need, sizeof *e->sym);
                    e->heap = tn_alloc(e->t->ctx, TN_MEM_TEXT, need, 2 * sizeof *e->heap);
                    TN_FAIL_IF(!e->sym || !e->heap, e->err, TERN_E_MEMORY,
                               "out of memory for a word of %zu bytes", n);
                    e->sym_cap = need;
                }
                memcpy(e->sym, few, sizeof few);
                s = e->sym;
                cap = e->sym_cap;
            }
        }
        s[n_sym] = first_symbol(e->t, piece, off, n, &bytes_left);
    }
    if (s == few) merge_short(e, piece, s, n_sym);
    else merge_long(e, piece, n_sym);
    return TERN_OK;
}

tern_status tn_tok_merge_piece(const tn_tokenizer *t, const uint8_t *p, size_t n, int32_t *ids, size_t cap,
                               size_t *n_ids) {
    encoder e = {.t = t, .ids = ids, .cap = cap};
    tern_status st = merge_piece(&e, p, n);
    tn_free(t->ctx, e.sym);
    tn_free(t->ctx, e.heap);
    *n_ids = e.n;
    return st;
}

/* Most pre-tokens are one token, and take only one look-up when that is known. Merging is deterministic, so this changes only
 * the speed. A start merges just the words of its text, because a vocabulary of 150,000 takes a tenth of a second. */
tern_status tn_tok_mark_direct(const tn_tokenizer *t, tern_error *err) {
    if (t->ignore_merges || t->kind > TN_TOK_BPE_SPM) return TERN_OK;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        if (!tn_tok_mergeable(t, id)) continue;
        size_t n, m;
        int32_t got = -1;
        const uint8_t *p = tn_tok_text(t, id, &n);
        if (n > TN_TOK_MAX_DIRECT) continue;
        tern_status st = tn_tok_merge_piece(t, p, n, &got, 1, &m);
        TN_FAIL_IF(st != TERN_OK, err, st, "out of memory for a vocabulary of %u", t->n_vocab);
        if (m == 1 && got == (int32_t)id) tn_tok_set_direct(t, id);
    }
    return TERN_OK;
}

/* In long texts, asks the host whether to go on. */
static tern_status report(encoder *e, size_t n) {
    e->n_done += n;
    if (e->n_done - e->n_told < TN_TOK_REPORT_BYTES) return TERN_OK;
    e->n_told = e->n_done;
    double fraction = (double)e->n_done / (double)e->n_bytes; /* normalisation can make the text longer */
    TN_FAIL_IF(!tn_progress(e->t->ctx, "text", fraction < 1 ? fraction : 0.99), e->err, TERN_E_CANCELLED,
               "cutting the text into tokens was cancelled after %zu of %zu bytes", e->n_done, e->n_bytes);
    return TERN_OK;
}

static tern_status encode_piece(void *user, const char *text, size_t n) {
    encoder *e = user;
    const tn_tokenizer *t = e->t;
    const uint8_t *p = (const uint8_t *)text;
    TN_TRY(report(e, n));
    const uint32_t id = n <= t->max_token_bytes ? tn_tok_lookup(t, p, n) : TN_TOK_NONE;
    const bool may_be = id != TN_TOK_NONE && !tn_tok_guarded(t, id);
    if (may_be && (t->ignore_merges || tn_tok_direct(t, id))) {
        emit(e, id);
        return TERN_OK;
    }
    const size_t before = e->n;
    TN_TRY(merge_piece(e, p, n));
    if (may_be && n <= TN_TOK_MAX_DIRECT && e->n == before + 1 && before < e->cap &&
        e->ids[before] == (int32_t)id)
        tn_tok_set_direct(t, id);
    return TERN_OK;
}

/* ---- normalisation ------------------------------------------------------------------------------ */

static bool norm_reserve(encoder *e, size_t used, size_t more) {
    if (more <= e->norm_cap - used) return true;
    size_t cap = used + more + used / 2;
    uint8_t *p = tn_realloc(e->t->ctx, TN_MEM_TEXT, e->norm, cap, 1);
    if (!p) return false;
    e->norm = p;
    e->norm_cap = cap;
    return true;
}

/* A boundary never lies inside a composition, so normalisation can restart there. */
static bool nfc_boundary(uint32_t cp) {
    return cp < 0x300 || (cp >= 0x400 && cp < 0x480) || (cp >= 0x3041 && cp <= 0x3096) ||
           (cp >= 0x30a1 && cp <= 0x30fa) || (cp >= 0x3400 && cp <= 0x9fff) ||
           (cp >= 0xac00 && cp <= 0xd7a3) || (cp >= 0x1f000 && cp < 0x20000);
}

/* Normalises to NFC in chunks that end at boundaries. A chunk without a boundary (longer than any real
 * grapheme) is cut anyway: canonical ordering is quadratic in a run of marks, and the text is untrusted. */
static tern_status normalise_nfc(encoder *e, const uint8_t *p, size_t n, size_t *n_out) {
    enum { CHUNK = 256, FORCED = 1024, EXPANSION = 4 };
    const uint8_t *end = p + n;
    size_t out = 0;
    while (p < end) {
        const uint8_t *start = p;
        bool plain = true; /* below U+0300 everything is its own NFC */
        uint32_t cp;
        size_t len = 0;
        for (; p < end && (len = tn_utf8_decode(p, end, &cp)); p += len) {
            size_t sofar = (size_t)(p - start);
            if (sofar + len > FORCED) break;
            if (sofar && nfc_boundary(cp)) {
                /* a plain stretch ends before its last character, which may compose with the next one */
                uint32_t next;
                size_t l2 = p + len < end ? tn_utf8_decode(p + len, end, &next) : 0;
                bool next_marks = l2 && !nfc_boundary(next);
                if (sofar >= CHUNK || (plain && next_marks) || (!plain && !next_marks)) break;
            }
            plain &= cp < 0x300;
        }
        size_t bytes = (size_t)(p - start);
        if (bytes == 0) { /* not UTF-8 */
            bytes = 1;
            p++;
            plain = true;
        }
        if (plain) {
            TN_FAIL_IF(!norm_reserve(e, out, bytes), e->err, TERN_E_MEMORY,
                       "out of memory for normalised text");
            memcpy(e->norm + out, start, bytes);
            out += bytes;
            continue;
        }
        int32_t cps[FORCED * EXPANSION];
        utf8proc_ssize_t m = utf8proc_decompose(start, (utf8proc_ssize_t)bytes, cps, FORCED * EXPANSION,
                                                UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
        TN_FAIL_IF(m < 0 || m > FORCED * EXPANSION, e->err, TERN_E_INVALID,
                   "text cannot be normalised (utf8proc error %d)", (int)m);
        m = utf8proc_normalize_utf32(cps, m, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        TN_FAIL_IF(m < 0, e->err, TERN_E_INVALID, "text cannot be normalised (utf8proc error %d)", (int)m);
        TN_FAIL_IF(!norm_reserve(e, out, (size_t)m * 4), e->err, TERN_E_MEMORY,
                   "out of memory for normalised text");
        for (utf8proc_ssize_t i = 0; i < m; i++) out += tn_utf8_encode((uint32_t)cps[i], e->norm + out);
    }
    *n_out = out;
    return TERN_OK;
}

/* Replaces U+2581, SentencePiece's visible space, by a space, in place: the tokenizer treats both alike. */
static size_t fold_visible_spaces(uint8_t *p, size_t n) {
    size_t out = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && p[i] == 0xe2 && p[i + 1] == 0x96 && p[i + 2] == 0x81) {
            p[out++] = ' ';
            i += 3;
        } else {
            p[out++] = p[i++];
        }
    }
    return out;
}

/* ---- sections ----------------------------------------------------------------------------------- */

static void emit_piece(void *user, uint32_t id) { emit(user, id); }

/* The longest token that stands at each place. There is one for every byte. */
static tern_status encode_longest(encoder *e, const uint8_t *p, size_t n) {
    const tn_tokenizer *t = e->t;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t id = TN_TOK_NONE;
        len = t->longest[p[i]] < n - i ? t->longest[p[i]] : n - i;
        for (; len > 1; len--) {
            id = tn_tok_lookup(t, p + i, len);
            if (id != TN_TOK_NONE && !tn_tok_guarded(t, id)) break;
        }
        if (len < 2) len = 1, id = t->byte_id[p[i]];
        emit(e, id);
        TN_TRY(report(e, len));
    }
    return TERN_OK;
}

/* Encodes text between special tokens. `first` says that it is at the start of the text. */
static tern_status encode_section(encoder *e, const uint8_t *p, size_t n, bool first) {
    const tn_tokenizer *t = e->t;
    if (n == 0) return TERN_OK;
    if (t->kind == TN_TOK_WORDPIECE) return tn_tok_wordpiece(t, p, n, emit_piece, e, e->err);
    if (t->kind == TN_TOK_UNIGRAM) return tn_tok_unigram(t, p, n, emit_piece, e, e->err);
    if (t->kind == TN_TOK_LONGEST) return encode_longest(e, p, n);
    if (t->nfc) {
        TN_TRY(normalise_nfc(e, p, n, &n));
        p = e->norm;
    }
    bool prefix = t->space_prefix && (first || !t->space_prefix_first);
    if (t->space_prefix_missing &&
        (p[0] == ' ' || (t->kind == TN_TOK_BPE_SPM && n >= 3 && !memcmp(p, "\xe2\x96\x81", 3))))
        prefix = false;
    bool visible = t->kind == TN_TOK_BPE_SPM && memmem(p, n, "\xe2\x96\x81", 3);
    if (prefix || visible) {
        bool own = p == e->norm && n;
        TN_FAIL_IF(!norm_reserve(e, own ? n : 0, n + 1), e->err, TERN_E_MEMORY,
                   "out of memory for normalised text");
        memmove(e->norm + prefix, own ? e->norm : p, n);
        if (prefix) e->norm[0] = ' ';
        p = e->norm;
        n += prefix;
        if (visible) n = fold_visible_spaces(e->norm, n);
    }
    if (t->pretok) return tn_pretok_run(t->pretok, (const char *)p, n, encode_piece, e, e->err);
    if (!t->cut_at_spaces) return encode_piece(e, (const char *)p, n);
    for (size_t i = 0; i < n;) {
        size_t j = i;
        while (j < n && p[j] == ' ') j++;
        while (j < n && p[j] != ' ') j++;
        TN_TRY(encode_piece(e, (const char *)p + i, j - i));
        i = j;
    }
    return TERN_OK;
}

/* Which special tokens may be recognised at a place in the text. */
typedef enum which {
    FREE,
    USER,
    ALL
} which; /* unguarded user-defined tokens; all user-defined tokens; control tokens too */

static bool allowed(const encoder *e, uint32_t id, which w) {
    if (w == ALL) return true;
    if (tn_tok_type(e->t, id) != TN_TOKEN_USER) return false;
    bool markup = e->markup && e->markup[id / 64] >> (id % 64) & 1;
    return w == USER || (!tn_tok_guarded(e->t, id) && !markup);
}

/* Narrows [*lo, *hi) to the specials whose next byte is c. All of them share their first `depth` bytes and
 * are longer. */
static void narrow(const tn_tokenizer *t, size_t depth, uint8_t c, uint32_t *lo, uint32_t *hi) {
    for (int upper = 0; upper < 2; upper++) {
        uint32_t a = *lo, b = *hi;
        while (a < b) {
            uint32_t mid = a + (b - a) / 2;
            uint8_t x = t->bytes[t->off[t->specials[mid]] + depth];
            if (upper ? x <= c : x < c) a = mid + 1;
            else b = mid;
        }
        *(upper ? hi : lo) = a;
    }
}

/* Calls fn with the specials that p starts with, shortest first; of several with one text, by ids. */
static void each_special(const tn_tokenizer *t, const uint8_t *p, const uint8_t *end,
                         void (*fn)(void *user, uint32_t id), void *user) {
    uint32_t lo = t->special_at[p[0]], hi = t->special_at[p[0] + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        for (size_t len; lo < hi && (tn_tok_text(t, t->specials[lo], &len), len == depth); lo++)
            fn(user, t->specials[lo]);
        if (p + depth >= end) break;
        narrow(t, depth, p[depth], &lo, &hi);
    }
}

typedef struct longest {
    const encoder *e;
    which w;
    uint32_t best;
} longest;

static void take_longer(void *user, uint32_t id) {
    longest *l = user;
    const uint32_t *off = l->e->t->off;
    if (allowed(l->e, id, l->w) &&
        (l->best == TN_TOK_NONE || off[l->best + 1] - off[l->best] < off[id + 1] - off[id]))
        l->best = id;
}

/* Returns the longest special token at p that is allowed. */
static uint32_t match_special(const encoder *e, const uint8_t *p, const uint8_t *end, which w) {
    longest l = {e, w, TN_TOK_NONE};
    each_special(e->t, p, end, take_longer, &l);
    return l.best;
}

typedef struct marking {
    const tn_tokenizer *t;
    uint64_t *bits;
} marking;

static void mark(void *user, uint32_t id) {
    marking *m = user;
    size_t n;
    const uint8_t *p = tn_tok_text(m->t, id, &n);
    if (n >= 3 && p[n - 1] == (p[0] == '<' ? '>' : ']')) m->bits[id / 64] |= 1ull << (id % 64);
}

void tn_tok_mark_markup(const tn_tokenizer *t, const char *template, uint64_t *bits) {
    marking m = {t, bits};
    const uint8_t *p = (const uint8_t *)template, *end = template ? p + strlen(template) : p;
    for (; p < end; p++)
        if (*p == '<' || *p == '[') each_special(t, p, end, mark, &m);
}

static bool is_space(uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Returns the longest special token at p, whose segment ends at seg_end. Content may only become unguarded
 * tokens; the template's text may become any token that lies wholly within it. */
static uint32_t match_in_segment(const encoder *e, const uint8_t *p, const uint8_t *end,
                                 const uint8_t *seg_end, bool content) {
    const tn_tokenizer *t = e->t;
    uint32_t any = match_special(e, p, end, FREE);
    if (content) return any;
    uint32_t whole = match_special(e, p, seg_end, ALL);
    if (any == TN_TOK_NONE || whole == TN_TOK_NONE) return any == TN_TOK_NONE ? whole : any;
    return t->off[whole + 1] - t->off[whole] >= t->off[any + 1] - t->off[any] ? whole : any;
}

/* Encodes a text. Its segments, if any, decide which specials are allowed where; otherwise `w` does. */
static tern_status encode(encoder *e, const uint8_t *begin, size_t n_bytes, const tn_segments *segs,
                          which w) {
    const tn_tokenizer *t = e->t;
    const uint8_t *p = begin, *end = begin + n_bytes,
                  *section = p; /* the text not yet encoded starts there */
    bool scan = segs || w == ALL ? t->n_specials > 0 : t->has_user;
    for (size_t i_seg = 0; scan && p < end;) {
        uint32_t id = TN_TOK_NONE;
        if (segs) {
            while (segs->seg[i_seg].end <= (size_t)(p - begin)) i_seg++;
            const tn_segment *s = &segs->seg[i_seg];
            if (t->special_at[*p] < t->special_at[*p + 1])
                id = match_in_segment(e, p, end, begin + s->end, s->content);
        } else if (w == ALL ? t->special_at[*p] < t->special_at[*p + 1] : t->user_start[*p]) {
            id = match_special(e, p, end, w);
        }
        if (id == TN_TOK_NONE) {
            p++;
            continue;
        }
        const uint8_t *stop = p;
        if (t->types[id] & TN_TOKEN_LSTRIP)
            while (stop > section && is_space(stop[-1])) stop--;
        TN_TRY(encode_section(e, section, (size_t)(stop - section), section == begin));
        emit(e, id);
        p += t->off[id + 1] - t->off[id];
        if (t->types[id] & TN_TOKEN_RSTRIP)
            while (p < end && is_space(*p)) p++;
        section = p;
    }
    return encode_section(e, section, (size_t)(end - section), section == begin);
}

static tern_status tokenize(const tn_tokenizer *t, const char *text, size_t n_bytes, const tn_segments *segs,
                            const char *template, which w, bool bos, bool eos, int32_t *ids, size_t cap,
                            size_t *n_ids, tern_error *err) {
    assert(t && n_ids && (text || !n_bytes) && (ids || !cap));
    *n_ids = 0;
    TN_FAIL_IF(n_bytes > INT32_MAX / 2, err, TERN_E_LIMIT, "text of %zu bytes, at most %d at a time", n_bytes,
               INT32_MAX / 2);
    uint64_t *markup = NULL;
    if (template && t->has_user) {
        markup = tn_calloc(t->ctx, TN_MEM_TEXT, ((size_t)t->n_vocab + 63) / 64, sizeof *markup);
        TN_FAIL_IF(!markup, err, TERN_E_MEMORY, "out of memory for a template's markup");
        tn_tok_mark_markup(t, template, markup);
    }
    encoder e = {.t = t, .ids = ids, .cap = cap, .markup = markup, .err = err, .n_bytes = n_bytes};
    if (bos && t->add_bos && t->bos >= 0) emit(&e, (uint32_t)t->bos);
    tern_status st = encode(&e, (const uint8_t *)text, n_bytes, segs, w);
    if (e.n_told) (void)tn_progress(t->ctx, "text", 1);
    if (st == TERN_OK) {
        if (eos && t->add_eos && t->eos >= 0) emit(&e, (uint32_t)t->eos);
        *n_ids = e.n;
        if (e.n > cap) st = tn_fail(err, TERN_E_LIMIT, "text makes %zu tokens, room for %zu", e.n, cap);
    }
    tn_free(t->ctx, e.sym);
    tn_free(t->ctx, e.heap);
    tn_free(t->ctx, e.norm);
    tn_free(t->ctx, markup);
    return st;
}

tern_status tn_tokenize(const tn_tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                        bool parse_special, int32_t *ids, size_t cap, size_t *n_ids, tern_error *err) {
    return tokenize(t, text, n_bytes, NULL, NULL, parse_special ? ALL : USER, add_special, add_special, ids,
                    cap, n_ids, err);
}

tern_status tn_tokenize_segments(const tn_tokenizer *t, const tn_segments *s, const char *template,
                                 bool add_bos, int32_t *ids, size_t cap, size_t *n_ids, tern_error *err) {
    return tokenize(t, s->text, s->n_bytes, s, template, FREE, add_bos, false, ids, cap, n_ids, err);
}

/* Which of the two stands at a place of a template; 2: neither. */
static int stands_for(const char *at, size_t *n) {
    static const char *const names[] = {"{query}", "{document}"};
    for (int i = 0; i < 2; i++)
        if (*n = strlen(names[i]), !strncmp(at, names[i], *n)) return i;
    *n = *at == '{' ? 1 : strcspn(at, "{");
    return 2;
}

size_t tn_tokenize_pair_max(const tn_tokenizer *t, const size_t n_bytes[2]) {
    if (!t->rerank_template) return n_bytes[0] + n_bytes[1] + 8;
    size_t most = 8, n;
    for (const char *at = t->rerank_template; *at; at += n) {
        const int which = stands_for(at, &n);
        most += which < 2 ? n_bytes[which] : n;
    }
    return most;
}

/* The two in the model's template; what they spell is content. */
static tern_status tokenize_pair_in(const tn_tokenizer *t, const char *template, const char *const text[2],
                                    const size_t n_bytes[2], int32_t *ids, size_t cap, size_t *n_ids,
                                    tern_error *err) {
    tn_segments s;
    tn_segments_init(&s, t->ctx);
    size_t n;
    for (const char *at = template; *at; at += n) {
        const int which = stands_for(at, &n);
        if (which < 2) tn_segments_add(&s, text[which], n_bytes[which], true);
        else tn_segments_add(&s, at, n, false);
    }
    tern_status st = s.failed ? tn_fail(err, TERN_E_MEMORY, "no memory for a text of %zu bytes", n_bytes[1])
                              : tn_tokenize_segments(t, &s, template, false, ids, cap, n_ids, err);
    tn_segments_free(&s);
    return st;
}

tern_status tn_tokenize_pair(const tn_tokenizer *t, const char *const text[2], const size_t n_bytes[2],
                             int32_t *ids, size_t cap, size_t *n_ids, tern_error *err) {
    size_t n = 0;
    bool room = true;
    if (t->rerank_template)
        return tokenize_pair_in(t, t->rerank_template, text, n_bytes, ids, cap, n_ids, err);
    for (int i = 0; i < 2; i++) {
        size_t k, left = n < cap ? cap - n : 0;
        /* the first text is preceded by the beginning token; RoBERTa's kind ends it with two end tokens */
        bool twice = i && t->end_twice && t->add_eos && t->eos >= 0;
        if (twice && left) ids[n] = t->eos;
        if (twice) n++, left -= left > 0;
        tern_status st =
            tokenize(t, text[i], n_bytes[i], NULL, NULL, USER, !i, true, ids + (left ? n : 0), left, &k, err);
        room = room && st != TERN_E_LIMIT;
        if (st != TERN_E_LIMIT) TN_TRY(st);
        n += k;
    }
    *n_ids = n;
    TN_FAIL_IF(n > cap || !room, err, TERN_E_LIMIT, "both texts make %zu tokens, room for %zu", n, cap);
    return TERN_OK;
}
