/* text/tokenizer.c - making a tokenizer from its description or its blob, and ids back to text.
 *
 * tn_tokenizer_open translates the description into the core (tokenizer_impl.h), tn_tokenizer_load
 * (tokenizer_blob.c) reads the core from a blob; both end in tn_tokenizer_derive(), which only derives the
 * tables. */
#include "text/tokenizer_impl.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/status.h"
#include "text/pieces.h"
#include "text/rwkv.h"
#include "text/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/random.h>
#include <xxhash.h>

/* ---- life --------------------------------------------------------------------------------------- */

void tn_tokenizer_close(tn_tokenizer **tp) {
    tn_tokenizer *t = tp ? *tp : NULL;
    if (!t) return;
    void *owned[] = {t->off,      t->bytes,   t->types,         t->scores,   t->merges,
                     t->direct,   t->ends,    t->chat_template, t->table,    t->pairs,
                     t->specials, t->guarded, t->tool_template, t->charsmap, t->rerank_template};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) tn_free(t->ctx, owned[i]);
    for (size_t i = 0; i < t->n_patterns; i++) tn_free(t->ctx, t->patterns[i]);
    tn_pretok_close(&t->pretok);
    tn_free(t->ctx, t);
    *tp = NULL;
}

static void *alloc(tn_tokenizer *t, size_t n, size_t size) { return tn_alloc(t->ctx, TN_MEM_TEXT, n, size); }

/* Returns the smallest power of two with at most two thirds in use. */
static uint64_t table_size(uint64_t n) {
    uint64_t cap = 16;
    while (cap * 2 < n * 3) cap *= 2;
    return cap;
}

static uint64_t random_seed(const void *salt) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == sizeof seed) return seed;
    return (uint64_t)(uintptr_t)salt * 0x9e3779b97f4a7c15u ^ (uint64_t)tn_now_ns();
}

static tern_status build_table(tn_tokenizer *t, tern_error *err) {
    t->seed = random_seed(t);
    uint64_t cap = table_size(t->n_vocab);
    t->table = tn_calloc(t->ctx, TN_MEM_TEXT, cap, sizeof *t->table);
    TN_FAIL_IF(!t->table, err, TERN_E_MEMORY, "out of memory for a vocabulary of %u", t->n_vocab);
    t->table_mask = cap - 1;
    /* Normal tokens first: of two tokens with the same text (a user-defined one may repeat it) merges mean
     * the normal one. */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t id = 0; id < t->n_vocab; id++) {
            if (!tn_tok_mergeable(t, id) || (tn_tok_type(t, id) == TN_TOKEN_USER) != pass) continue;
            size_t n;
            const uint8_t *p = tn_tok_text(t, id, &n);
            uint64_t h = tn_tok_hash(t, p, n), i = h;
            if (tn_tok_lookup_hashed(t, p, n, h) != TN_TOK_NONE) {
                t->has_twins = true;
                continue;
            }
            while (t->table[i & t->table_mask]) i++;
            t->table[i & t->table_mask] = h >> 32 << 32 | (id + 1);
        }
    return TERN_OK;
}

static tern_status build_pairs(tn_tokenizer *t, tern_error *err) {
    uint64_t cap = table_size(t->n_merges);
    t->pairs = alloc(t, cap, sizeof *t->pairs);
    TN_FAIL_IF(!t->pairs, err, TERN_E_MEMORY, "out of memory for %u merges", t->n_merges);
    t->pairs_mask = cap - 1;
    for (uint64_t i = 0; i < cap; i++) t->pairs[i] = (tn_pair){.rank = TN_TOK_NONE};
    for (uint32_t m = 0; m < t->n_merges; m++) {
        uint64_t key = (uint64_t)t->merges[m].left << 32 | t->merges[m].right;
        uint64_t i = tn_tok_pair_hash(t, key);
        while (t->pairs[i & t->pairs_mask].rank != TN_TOK_NONE && t->pairs[i & t->pairs_mask].key != key) i++;
        tn_pair *p = &t->pairs[i & t->pairs_mask];
        if (p->rank == TN_TOK_NONE)
            *p = (tn_pair){key, m, t->merges[m].result}; /* a repeated merge keeps its first rank */
    }
    return TERN_OK;
}

/* Reads "<0x0A>" as 10. Returns -1 for other texts. */
static int byte_token(const uint8_t *p, size_t n) {
    static const char hex[] = "0123456789ABCDEF0123456789abcdef";
    if (n != 6 || memcmp(p, "<0x", 3) || p[5] != '>' || !p[3] || !p[4]) return -1;
    const char *a = strchr(hex, p[3]), *b = strchr(hex, p[4]);
    return a && b ? (int)((a - hex) % 16 * 16 + (b - hex) % 16) : -1;
}

static bool special_before(const tn_tokenizer *t, uint32_t x, uint32_t y) {
    size_t nx, ny;
    const uint8_t *px = tn_tok_text(t, x, &nx), *py = tn_tok_text(t, y, &ny);
    int c = memcmp(px, py, nx < ny ? nx : ny);
    if (c) return c < 0;
    return nx != ny ? nx < ny : x < y;
}

static void sift_down(const tn_tokenizer *t, uint32_t *heap, uint32_t i, uint32_t n) {
    uint32_t x = heap[i];
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && special_before(t, heap[child], heap[child + 1])) child++;
        if (!special_before(t, x, heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/* A heap sort: the order needs the tokenizer, and not every C library has a qsort with a context. */
static void sort_specials(const tn_tokenizer *t) {
    uint32_t *a = t->specials, n = t->n_specials;
    for (uint32_t i = n / 2; i-- > 0;) sift_down(t, a, i, n);
    while (n > 1) {
        uint32_t last = a[--n];
        a[n] = a[0];
        a[0] = last;
        sift_down(t, a, 0, n);
    }
}

static tern_status build_specials(tn_tokenizer *t, tern_error *err) {
    for (int pass = 0; pass < 2; pass++) {
        t->n_specials = 0;
        for (uint32_t id = 0; id < t->n_vocab; id++) {
            tn_token_type ty = tn_tok_type(t, id);
            bool user = ty == TN_TOKEN_USER;
            if (t->off[id] == t->off[id + 1] || !(user || ty == TN_TOKEN_CONTROL || ty == TN_TOKEN_UNKNOWN))
                continue;
            TN_FAIL_IF(t->off[id + 1] - t->off[id] > TN_TOK_MAX_SPECIAL, err, TERN_E_FORMAT,
                       "special token %u has %u bytes, at most %u are possible", id,
                       t->off[id + 1] - t->off[id], TN_TOK_MAX_SPECIAL);
            if (user) t->has_user = t->user_start[t->bytes[t->off[id]]] = true;
            if (pass) t->specials[t->n_specials] = id;
            t->n_specials++;
        }
        if (pass) break;
        t->specials = alloc(t, t->n_specials, sizeof *t->specials);
        TN_FAIL_IF(!t->specials, err, TERN_E_MEMORY, "out of memory for %u special tokens", t->n_specials);
    }
    sort_specials(t);
    for (uint32_t b = 0, i = 0; b <= 256; b++) {
        while (i < t->n_specials && t->bytes[t->off[t->specials[i]]] < b) i++;
        t->special_at[b] = i;
    }
    return TERN_OK;
}

static int int_order(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static void sort_ends(tn_tokenizer *t) {
    if (t->n_ends) qsort(t->ends, t->n_ends, sizeof *t->ends, int_order);
}

/* Derives everything that follows from the core. */
static tern_status finish(tn_tokenizer *t, tern_error *err) {
    t->max_token_bytes = 0;
    sort_ends(t);
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (t->off[id + 1] - t->off[id] > t->max_token_bytes)
            t->max_token_bytes = t->off[id + 1] - t->off[id];
    if (!t->table) TN_TRY(build_table(t, err));
    TN_TRY(build_specials(t, err));
    if (!t->scores) TN_TRY(build_pairs(t, err));

    for (uint32_t b = 0; b < 256; b++) {
        uint8_t c = (uint8_t)b;
        bool plain = t->kind == TN_TOK_BPE_BYTES || t->kind == TN_TOK_LONGEST;
        t->byte_id[b] = plain ? tn_tok_lookup(t, &c, 1) : TN_TOK_NONE;
        TN_FAIL_IF(t->kind == TN_TOK_LONGEST && t->byte_id[b] == TN_TOK_NONE, err, TERN_E_FORMAT,
                   "the vocabulary has no token for byte %u", b);
    }
    for (uint32_t id = 0; t->kind == TN_TOK_LONGEST && id < t->n_vocab; id++) {
        size_t n;
        const uint8_t *p = tn_tok_text(t, id, &n);
        if (!tn_tok_mergeable(t, id)) continue;
        TN_FAIL_IF(n > TN_TOK_MAX_LONGEST, err, TERN_E_FORMAT,
                   "token %u has %zu bytes, at most %u are possible", id, n, TN_TOK_MAX_LONGEST);
        if (n > t->longest[*p]) t->longest[*p] = (uint32_t)n;
    }
    t->cut_at_spaces = (t->kind == TN_TOK_BPE_SPM && !t->n_patterns) || t->kind == TN_TOK_UNIGRAM;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const uint8_t *p = tn_tok_text(t, id, &n);
        if (tn_tok_type(t, id) == TN_TOKEN_BYTE) { /* kept as the one byte it is */
            if (n == 1 && t->kind == TN_TOK_BPE_SPM && t->byte_id[p[0]] == TN_TOK_NONE) t->byte_id[p[0]] = id;
        } else if (t->cut_at_spaces && tn_tok_mergeable(t, id)) {
            for (size_t i = 1; i < n; i++)
                if (p[i] == ' ' && p[i - 1] != ' ') t->cut_at_spaces = false;
        }
    }
    if (t->n_patterns)
        TN_TRY(tn_pretok_open(t->ctx, (const char *const *)t->patterns, t->n_patterns, &t->pretok, err));
    return TERN_OK;
}

/* Marks user-defined tokens that content must not produce: `<think>`, `<tool_call>`, `<start_of_turn>` of an
 * old conversion. Markup that no template writes (`<h1>`) and runs of spaces stay unguarded. */
static tern_status build_guarded(tn_tokenizer *t, tern_error *err) {
    size_t n_words = ((size_t)t->n_vocab + 63) / 64;
    uint64_t *markup = tn_calloc(t->ctx, TN_MEM_TEXT, n_words, sizeof *markup);
    TN_FAIL_IF(!markup, err, TERN_E_MEMORY, "out of memory for a vocabulary of %u", t->n_vocab);
    tn_tok_mark_markup(t, t->chat_template, markup);
    tn_tok_mark_markup(t, t->tool_template, markup);
    bool any = false;
    for (uint32_t i = 0; i < t->n_specials; i++) {
        uint32_t id = t->specials[i];
        size_t n;
        const uint8_t *p = tn_tok_text(t, id, &n);
        if (tn_tok_type(t, id) != TN_TOKEN_USER) continue;
        bool bars = n >= 5 && !memcmp(p, "<|", 2) && !memcmp(p + n - 2, "|>", 2);
        uint64_t bit = 1ull << (id % 64);
        if (bars || tn_tokenizer_is_end(t, (int32_t)id)) markup[id / 64] |= bit;
        any = any || markup[id / 64] & bit;
    }
    /* Other tokens may have a bit too; it is never read. */
    if (any) t->guarded = markup;
    else tn_free(t->ctx, markup);
    return TERN_OK;
}

/* ---- from a description ------------------------------------------------------------------------- */

void tn_tokenizer_spec_defaults(tn_tokenizer_spec *s, tn_tok_kind kind, const char *pre) {
    *s = (tn_tokenizer_spec){.kind = kind, .pre = pre, .bos = -1, .eos = -1, .eot = -1, .unk = -1, .pad = -1};
    if (kind == TN_TOK_BPE_SPM) {
        s->add_space_prefix = s->add_bos = true;
        return;
    }
    if (kind == TN_TOK_LONGEST) return;
    s->add_eos = kind > TN_TOK_BPE_SPM;
    if (kind == TN_TOK_WORDPIECE) s->add_bos = s->lowercase = s->strip_accents = true;
    if (kind == TN_TOK_UNIGRAM) s->add_space_prefix = true;
    if (kind > TN_TOK_BPE_SPM) return;
    const tn_pretok_family *family = tn_pretok_named(pre ? pre : "default");
    if (!family) return; /* tn_tokenizer_open refuses it */
    s->ignore_merges = family->ignore_merges;
    s->add_bos = family->add_bos;
    s->nfc = family->nfc;
    s->end_twice = family->end_twice;
}

/* Writes the bytes that a token's text stands for. Returns their number, at most n; SIZE_MAX where it is none. */
static size_t token_to_bytes(tn_tok_kind kind, uint8_t type, const char *text, size_t n, uint8_t *out) {
    tn_token_type ty = (tn_token_type)(type & TN_TOK_TYPE_MASK);
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    size_t m = 0;
    if (ty == TN_TOKEN_BYTE) {
        int b = byte_token(p, n);
        if (b >= 0) {
            out[0] = (uint8_t)b;
            return 1;
        }
    } else if (kind == TN_TOK_BPE_BYTES && ty == TN_TOKEN_NORMAL) {
        while (p < end) {
            uint32_t cp;
            size_t len = tn_utf8_decode(p, end, &cp);
            int b = len ? tn_alphabet_to_byte(cp) : -1;
            if (b < 0) break;
            out[m++] = (uint8_t)b;
            p += len;
        }
        if (p == end) return m;
        /* a letter outside the alphabet: plain text (an added token of an old conversion) */
    } else if (kind == TN_TOK_LONGEST) {
        if (ty == TN_TOKEN_NORMAL) return tn_rwkv_bytes(text, n, (char *)out);
    } else if (kind >= TN_TOK_BPE_SPM && ty != TN_TOKEN_CONTROL && ty != TN_TOKEN_UNKNOWN) {
        while (p < end) {
            if (end - p >= 3 && !memcmp(p, "\xe2\x96\x81", 3)) {
                out[m++] = ' ';
                p += 3;
            } else {
                out[m++] = *p++;
            }
        }
        return m;
    }
    memcpy(out, text, n);
    return n;
}

enum {
    MAX_SPLITS = 128,    /* places of a merge that are tried: a merge of only spaces has many */
    SLOTS_AHEAD = 16,    /* merges between asking for a slot of the table and the merge's turn */
    TEXTS_AHEAD = 8,     /* between asking for the text of the token in that slot and it */
    MAX_AHEAD_BYTES = 64 /* longer merges are not asked for ahead */
};

/* A merge cut at one of its spaces, as the bytes that its two tokens stand for. */
typedef struct halves {
    size_t n[2];          /* bytes of the left token, and of the right one after it */
    const uint8_t *bytes; /* of both */
    uint64_t hash[2];
} halves;

static halves cut_at(const tn_tokenizer *t, const char *m, size_t n, const char *space, uint8_t *bytes) {
    const size_t n_left = (size_t)(space - m);
    halves h = {.bytes = bytes};
    h.n[0] = token_to_bytes(t->kind, TN_TOKEN_NORMAL, m, n_left, bytes);
    h.n[1] = token_to_bytes(t->kind, TN_TOKEN_NORMAL, space + 1, n - 1 - n_left, bytes + h.n[0]);
    h.hash[0] = tn_tok_hash(t, bytes, h.n[0]);
    h.hash[1] = tn_tok_hash(t, bytes + h.n[0], h.n[1]);
    return h;
}

/* The merge of two known tokens to a known one; false: they are not. before: the token that the merge before it makes;
 * vocabularies usually go on from one to the next. */
static bool merge_known(const tn_tokenizer *t, const halves *h, uint32_t before, tn_merge *out) {
    const size_t n = h->n[0] + h->n[1];
    const uint32_t l = tn_tok_lookup_hashed(t, h->bytes, h->n[0], h->hash[0]);
    if (l == TN_TOK_NONE) return false;
    const uint32_t r = tn_tok_lookup_hashed(t, h->bytes + h->n[0], h->n[1], h->hash[1]);
    if (r == TN_TOK_NONE) return false;
    uint32_t both = before + 1;
    size_t n_both;
    const uint8_t *text = both < t->n_vocab ? tn_tok_text(t, both, &n_both) : NULL;
    if (t->has_twins || !text || n_both != n || memcmp(text, h->bytes, n) || !tn_tok_mergeable(t, both))
        both = tn_tok_lookup(t, h->bytes, n);
    *out = (tn_merge){l, r, both};
    return both != TN_TOK_NONE;
}

/* A merge that is soon looked up, cut at its first space: most of the time goes by waiting for the table and for the texts
 * of tokens, which lie anywhere. */
typedef struct soon {
    bool is_short; /* else it is not asked for ahead */
    halves cut;
    uint8_t bytes[MAX_AHEAD_BYTES];
} soon;

static void ask_for_slots(const tn_tokenizer *t, const char *m, size_t n, soon *next) {
    const char *space = memchr(m, ' ', n);
    next->is_short = space && n <= MAX_AHEAD_BYTES;
    if (!next->is_short) return;
    next->cut = cut_at(t, m, n, space, next->bytes);
    for (int side = 0; side < 2; side++) __builtin_prefetch(&t->table[next->cut.hash[side] & t->table_mask]);
}

static void ask_for_texts(const tn_tokenizer *t, const soon *next) {
    for (int side = 0; side < 2 && next->is_short; side++) {
        const uint32_t id = (uint32_t)t->table[next->cut.hash[side] & t->table_mask];
        if (id) __builtin_prefetch(t->bytes + t->off[id - 1]);
    }
}

/* The tokens of merge m, which usually has one space; where tokens contain spaces, the place that yields three known
 * ones. false: they are not known. scratch [n] */
static bool merge_of(const tn_tokenizer *t, const char *m, size_t n, uint32_t before, uint8_t *scratch,
                     tn_merge *out) {
    const char *end = m + n, *space = m;
    for (int n_tries = 0; n_tries < MAX_SPLITS && (space = memchr(space, ' ', (size_t)(end - space)));
         n_tries++, space++) {
        const halves h = cut_at(t, m, n, space, scratch);
        if (merge_known(t, &h, before, out)) return true;
    }
    return false;
}

static tern_status add_merges(tn_tokenizer *t, const tn_tokenizer_spec *s, tern_error *err) {
    tern_status st = TERN_OK;
    size_t longest = 0;
    soon next[SLOTS_AHEAD];
    for (size_t i = 0; i < s->n_merges; i++)
        if (s->merge_bytes[i] > longest) longest = s->merge_bytes[i];
    uint8_t *scratch = alloc(t, longest, 1);
    t->merges = alloc(t, s->n_merges, sizeof *t->merges);
    TN_BAIL_IF(!scratch || !t->merges, err, TERN_E_MEMORY, "out of memory for %zu merges", s->n_merges);
    for (size_t i = 0; i < s->n_merges + SLOTS_AHEAD; i++) {
        const size_t texts = i - (SLOTS_AHEAD - TEXTS_AHEAD),
                     now = i - SLOTS_AHEAD; /* huge until they begin */
        const uint32_t before = t->n_merges ? t->merges[t->n_merges - 1].result : 0;
        tn_merge *one = &t->merges[t->n_merges];
        const soon *cut = &next[now % SLOTS_AHEAD];
        if (now < s->n_merges && ((cut->is_short && merge_known(t, &cut->cut, before, one)) ||
                                  merge_of(t, s->merges[now], s->merge_bytes[now], before, scratch, one)))
            t->n_merges++;
        if (i < s->n_merges) ask_for_slots(t, s->merges[i], s->merge_bytes[i], &next[i % SLOTS_AHEAD]);
        if (texts < s->n_merges) ask_for_texts(t, &next[texts % SLOTS_AHEAD]);
    }
    TN_BAIL_IF(!t->n_merges && s->n_merges, err, TERN_E_FORMAT,
               "none of the %zu merges is about tokens of the vocabulary", s->n_merges);
    if (t->n_merges < s->n_merges)
        tn_log(t->ctx, TERN_LOG_DEBUG, "%zu of %zu merges name tokens the vocabulary lacks",
               s->n_merges - t->n_merges, s->n_merges);
out:
    tn_free(t->ctx, scratch);
    return st;
}

/* Whether this token ends a turn or a text in the known families, whatever the files say. */
static bool ends_by_name(const uint8_t *p, size_t n, bool harmony) {
    static const char *const names[] = {"<|eot_id|>",    "<|im_end|>", "<|end|>",         "<|endoftext|>",
                                        "<end_of_turn>", "<|eom_id|>", "<|end_of_text|>", "<|end_of_turn|>",
                                        "<EOT>",         "_<EOT>",     "<|EOT|>",         "<turn|>"};
    static const char *const of_harmony[] = {"<|call|>",
                                             "<|return|>"}; /* there <|end|> ends one of several messages */
    if (harmony && n == 7 && !memcmp(p, "<|end|>", 7)) return false;
    for (size_t i = 0; harmony && i < 2; i++)
        if (strlen(of_harmony[i]) == n && !memcmp(of_harmony[i], p, n)) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && !memcmp(names[i], p, n)) return true;
    return false;
}

static bool has_special(const tn_tokenizer *t, const char *name) {
    for (uint32_t i = 0; i < t->n_specials; i++) {
        size_t n;
        const uint8_t *p = tn_tok_text(t, t->specials[i], &n);
        if (strlen(name) == n && !memcmp(name, p, n)) return true;
    }
    return false;
}

static tern_status collect_ends(tn_tokenizer *t, const tn_tokenizer_spec *s, tern_error *err) {
    bool harmony = has_special(t, "<|channel|>") && has_special(t, "<|message|>");
    for (int pass = 0; pass < 2; pass++) {
        t->n_ends = 0;
        for (size_t i = 0; i < s->n_ends + 2; i++) {
            int32_t id = i < s->n_ends ? s->ends[i] : i == s->n_ends ? t->eos : t->eot;
            if (id < 0 || (uint32_t)id >= t->n_vocab) continue;
            if (pass) t->ends[t->n_ends] = id;
            t->n_ends++;
        }
        for (uint32_t i = 0; i < t->n_specials; i++) {
            size_t n;
            const uint8_t *p = tn_tok_text(t, t->specials[i], &n);
            if (!ends_by_name(p, n, harmony)) continue;
            if (pass) t->ends[t->n_ends] = (int32_t)t->specials[i];
            t->n_ends++;
        }
        if (pass) break;
        t->ends = alloc(t, t->n_ends, sizeof *t->ends);
        TN_FAIL_IF(!t->ends, err, TERN_E_MEMORY, "out of memory for %u end tokens", t->n_ends);
    }
    sort_ends(t);
    return TERN_OK;
}

/* Only tokenizer.json says which of Phi-3's special tokens swallow the space after them. GGUF has no field
 * for it, so they are marked here. */
static void mark_phi3(tn_tokenizer *t) {
    if (t->kind != TN_TOK_BPE_SPM || tn_tokenizer_find(t, "<|placeholder1|>") < 0) return;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        tn_token_type ty = tn_tok_type(t, id);
        size_t n;
        const char *p = (const char *)tn_tok_text(t, id, &n);
        if (ty != TN_TOKEN_CONTROL && ty != TN_TOKEN_USER) continue;
        bool named = n > 4 && !memcmp(p, "<|", 2) && !memcmp(p + n - 2, "|>", 2) &&
                     (n != 13 || memcmp(p, "<|endoftext|>", 13));
        if (named || (n == 4 && !memcmp(p, "</s>", 4))) t->types[id] |= TN_TOKEN_RSTRIP;
    }
}

static tern_status take_charsmap(tn_tokenizer *t, const tn_tokenizer_spec *s, tern_error *err) {
    TN_FAIL_IF(s->charsmap_bytes > 1 << 26 || !tn_tok_charsmap_ok(s->charsmap, s->charsmap_bytes), err,
               TERN_E_FORMAT, "the tokenizer's map of characters (%zu bytes) is invalid", s->charsmap_bytes);
    t->charsmap = alloc(t, s->charsmap_bytes, 1);
    TN_FAIL_IF(!t->charsmap, err, TERN_E_MEMORY, "out of memory for a map of characters");
    memcpy(t->charsmap, s->charsmap, s->charsmap_bytes);
    t->charsmap_bytes = (uint32_t)s->charsmap_bytes;
    return TERN_OK;
}

static tern_status fill_from_spec(tn_tokenizer *t, const tn_tokenizer_spec *s, tern_error *err) {
    TN_FAIL_IF(s->n_vocab == 0 || s->n_vocab > TN_TOK_MAX_VOCAB, err, TERN_E_FORMAT,
               "vocabulary of %zu tokens, allowed are 1..%u", s->n_vocab, TN_TOK_MAX_VOCAB);
    uint64_t total = 0;
    for (size_t i = 0; i < s->n_vocab; i++)
        TN_FAIL_IF(!tn_add_u64(total, s->token_bytes[i], &total) || total > INT32_MAX, err, TERN_E_FORMAT,
                   "the vocabulary's text is longer than %d bytes (token %zu)", INT32_MAX, i);
    bool use_scores = s->scores && !(s->merges && s->n_merges);
    TN_FAIL_IF(!use_scores && !s->merges && s->n_merges, err, TERN_E_INVALID, "merges missing");

    t->kind = s->kind;
    t->n_vocab = (uint32_t)s->n_vocab;
    size_t n_words = (s->n_vocab + 63) / 64;
    t->off = alloc(t, s->n_vocab + 1, sizeof *t->off);
    t->bytes = alloc(t, total, 1);
    t->types = alloc(t, s->n_vocab, 1);
    t->direct = tn_calloc(t->ctx, TN_MEM_TEXT, n_words, sizeof *t->direct);
    if (use_scores) t->scores = alloc(t, s->n_vocab, sizeof *t->scores);
    TN_FAIL_IF(!t->off || !t->bytes || !t->types || !t->direct || (use_scores && !t->scores), err,
               TERN_E_MEMORY, "out of memory for a vocabulary of %zu", s->n_vocab);
    uint32_t at = 0;
    for (size_t i = 0; i < s->n_vocab; i++) {
        uint8_t ty = s->types ? s->types[i] : (uint8_t)TN_TOKEN_NORMAL;
        t->types[i] = (ty & TN_TOK_TYPE_MASK) > TN_TOKEN_BYTE ? (uint8_t)TN_TOKEN_UNUSED : ty;
        t->off[i] = at;
        const size_t n = token_to_bytes(t->kind, t->types[i], s->tokens[i], s->token_bytes[i], t->bytes + at);
        TN_FAIL_IF(n == SIZE_MAX, err, TERN_E_FORMAT, "token %zu is not written as bytes are", i);
        at += (uint32_t)n;
    }
    t->off[s->n_vocab] = at;
    if (use_scores) memcpy(t->scores, s->scores, s->n_vocab * sizeof *t->scores);

    t->ignore_merges = s->ignore_merges;
    t->space_prefix = s->add_space_prefix;
    t->space_prefix_first = s->space_prefix_first;
    t->space_prefix_missing = s->space_prefix_missing;
    t->nfc = s->nfc;
    t->lowercase = s->lowercase;
    t->strip_accents = s->strip_accents;
    t->merge_spaces = s->merge_spaces;
    t->add_bos = s->add_bos;
    t->add_eos = s->add_eos;
    t->end_twice = s->end_twice || s->kind == TN_TOK_UNIGRAM;
    t->bos = tn_tok_checked_id(t, s->bos);
    t->eos = tn_tok_checked_id(t, s->eos);
    t->eot = tn_tok_checked_id(t, s->eot);
    t->unk = tn_tok_checked_id(t, s->unk);
    t->pad = tn_tok_checked_id(t, s->pad);

    TN_FAIL_IF(t->kind == TN_TOK_UNIGRAM && !t->scores, err, TERN_E_FORMAT,
               "a unigram tokenizer without a score for every token");
    if (s->charsmap_bytes) TN_TRY(take_charsmap(t, s, err));
    const char *const *patterns = t->kind > TN_TOK_BPE_SPM ? NULL : s->pre_regex;
    if (!patterns && t->kind == TN_TOK_BPE_BYTES) { /* SentencePiece vocabularies name no family */
        const tn_pretok_family *family = tn_pretok_named(s->pre ? s->pre : "default");
        TN_FAIL_IF(!family, err, TERN_E_UNSUPPORTED, "unknown pre-tokenisation \"%.64s\"", s->pre);
        patterns = family->patterns;
    }
    for (size_t i = 0; s->pre_digits || (patterns && *patterns); i++) {
        TN_FAIL_IF(i == TN_PRETOK_MAX, err, TERN_E_UNSUPPORTED, "more than %d pre-tokenisation patterns",
                   TN_PRETOK_MAX);
        const char *p = s->pre_digits && i == 0 ? "\\p{N}" : *patterns++;
        if (!(t->patterns[i] = tn_strdup(t->ctx, TN_MEM_TEXT, p)))
            return tn_fail(err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
        t->n_patterns++;
        if (!patterns || !*patterns) break;
    }
    if (s->chat_template) t->chat_template = tn_strdup(t->ctx, TN_MEM_TEXT, s->chat_template);
    if (s->tool_template) t->tool_template = tn_strdup(t->ctx, TN_MEM_TEXT, s->tool_template);
    if (s->rerank_template) t->rerank_template = tn_strdup(t->ctx, TN_MEM_TEXT, s->rerank_template);
    TN_FAIL_IF((s->chat_template && !t->chat_template) || (s->tool_template && !t->tool_template) ||
                   (s->rerank_template && !t->rerank_template),
               err, TERN_E_MEMORY, "out of memory for the chat template");
    return TERN_OK;
}

tern_status tn_tokenizer_read_pairs_by(tn_tokenizer *t, const char *template, tern_error *err) {
    tn_free(t->ctx, t->rerank_template);
    t->rerank_template = tn_strdup(t->ctx, TN_MEM_TEXT, template);
    TN_FAIL_IF(!t->rerank_template, err, TERN_E_MEMORY, "out of memory for the template of a question");
    return TERN_OK;
}

tern_status tn_tokenizer_open(tn_ctx *ctx, const tn_tokenizer_spec *s, tn_tokenizer **out, tern_error *err) {
    *out = NULL;
    tern_status st;
    tn_tokenizer *t = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "out of memory for the tokenizer");
    t->ctx = ctx;
    if ((st = fill_from_spec(t, s, err)) != TERN_OK) goto out;
    if (!t->scores && s->n_merges) {
        if ((st = build_table(t, err)) != TERN_OK || (st = add_merges(t, s, err)) != TERN_OK) goto out;
    }
    mark_phi3(t);
    if ((st = finish(t, err)) != TERN_OK || (st = collect_ends(t, s, err)) != TERN_OK) goto out;
    st = build_guarded(t, err);
out:
    if (st != TERN_OK) tn_tokenizer_close(&t);
    *out = t;
    return st;
}

tern_status tn_tokenizer_derive(tn_tokenizer *t, tern_error *err) {
    TN_TRY(finish(t, err));
    return build_guarded(t, err);
}

/* ---- questions ---------------------------------------------------------------------------------- */

size_t tn_tokenizer_n_vocab(const tn_tokenizer *t) { return t->n_vocab; }
bool tn_tokenizer_has_template(const tn_tokenizer *t) { return t->chat_template && *t->chat_template; }
tn_tok_kind tn_tokenizer_kind(const tn_tokenizer *t) { return t->kind; }
int32_t tn_tokenizer_bos(const tn_tokenizer *t) { return t->bos; }
int32_t tn_tokenizer_eos(const tn_tokenizer *t) { return t->eos; }
int32_t tn_tokenizer_eot(const tn_tokenizer *t) { return t->eot; }
size_t tn_tokenizer_max_token_bytes(const tn_tokenizer *t) { return t->max_token_bytes; }

bool tn_tokenizer_is_end(const tn_tokenizer *t, int32_t id) {
    return t->n_ends && bsearch(&id, t->ends, t->n_ends, sizeof id, int_order);
}

int32_t tn_tokenizer_find(const tn_tokenizer *t, const char *token_text) {
    size_t n = strlen(token_text), len;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        const uint8_t *p = tn_tok_text(t, id, &len);
        if (len == n && !memcmp(p, token_text, n) && tn_tok_type(t, id) != TN_TOKEN_BYTE) return (int32_t)id;
    }
    return -1;
}

size_t tn_token_bytes(const tn_tokenizer *t, int32_t id, bool special, char *buf, size_t cap) {
    if (id < 0 || (uint32_t)id >= t->n_vocab) return 0;
    tn_token_type ty = tn_tok_type(t, (uint32_t)id);
    if (!special && (ty == TN_TOKEN_CONTROL || ty == TN_TOKEN_UNKNOWN)) return 0;
    size_t n;
    const uint8_t *p = tn_tok_text(t, (uint32_t)id, &n);
    if (n && cap) memcpy(buf, p, n < cap ? n : cap);
    return n;
}
