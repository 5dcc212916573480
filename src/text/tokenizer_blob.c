/* text/tokenizer_blob.c - a tokenizer as one blob, as .tern packages hold it.
 *
 * Little-endian, no padding: "TNTOKEN2", u64 XXH3 of what follows, then
 *   u32 kind, n_vocab, n_merges, n_patterns, n_ends, n_bytes, flags (BLOB_*), i32 bos, eos, eot, unk, pad,
 *   u8 stored[(n_vocab + 7) / 8]: a bit for every token whose text is stored; the lengths of these texts,
 *   then
 *   their bytes; other tokens are what their first merge joins,
 *   types in runs: u8 type, number of tokens; f32 score[n_vocab] if BLOB_SCORES,
 *   per merge left, right, and the result minus the previous one minus 1, as (n << 1) ^ (n >> 31),
 *   u8 direct[(n_vocab + 7) / 8], i32 ends[n_ends],
 *   for each pattern, for the template if BLOB_TEMPLATE and the template for tools if BLOB_TOOL_TEMPLATE: u32
 *   length, bytes; the same for the map of characters if BLOB_CHARSMAP
 *   and the template for a question and a text if BLOB_RERANK_TEMPLATE.
 * Numbers without a width have 7 bits a byte, lowest first; the high bit of the last byte is 0.
 *
 * "TNTOKEN1", of packages before version 6, is read too. There u32 length[n_vocab], u8 bytes[n_bytes] and u8
 * type[n_vocab] replace the first three lines of tokens, and u32 merge[n_merges][3] the merges. */
#include "text/tokenizer_impl.h"

#include "base/status.h"
#include "text/pieces.h"

#include <assert.h>
#include <xxhash.h>

#define BLOB_MAGIC "TNTOKEN2"
#define BLOB_MAGIC_1 "TNTOKEN1"
enum { BLOB_HEAD = 16, BLOB_FIELDS = 12, MAX_GROWTH = 64 };
enum {
    BLOB_SCORES = 1,
    BLOB_TEMPLATE = 2,
    BLOB_IGNORE_MERGES = 4,
    BLOB_SPACE_PREFIX = 8,
    BLOB_SPACE_PREFIX_FIRST = 16,
    BLOB_NFC = 32,
    BLOB_ADD_BOS = 64,
    BLOB_ADD_EOS = 128,
    BLOB_SPACE_PREFIX_MISSING = 256,
    BLOB_TOOL_TEMPLATE = 512,
    BLOB_LOWERCASE = 1024,
    BLOB_STRIP_ACCENTS = 2048,
    BLOB_MERGE_SPACES = 4096,
    BLOB_CHARSMAP = 8192,
    BLOB_RERANK_TEMPLATE = 16384,
    BLOB_END_TWICE = 32768, /* of ranked merges; unigram models have it anyway */
    BLOB_ALL_FLAGS = 65535
};

static uint8_t *put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
    return p + 4;
}
static uint8_t *put(uint8_t *p, const void *data, size_t n) {
    memcpy(p, data, n);
    return p + n;
}
static uint64_t load_u64(const uint8_t *p) { return tn_tok_u32(p) | (uint64_t)tn_tok_u32(p + 4) << 32; }

/* ---- writing ------------------------------------------------------------------------------------ */

/* With p NULL only measures. */
static size_t put_number(uint8_t *p, uint32_t v) {
    size_t n = 0;
    for (; v >= 128; v >>= 7, n++)
        if (p) p[n] = (uint8_t)(v | 128);
    if (p) p[n] = (uint8_t)v;
    return n + 1;
}

static uint32_t folded(int32_t v) { return (uint32_t)v << 1 ^ (uint32_t)(v >> 31); }
static int32_t unfolded(uint32_t v) { return (int32_t)(v >> 1) ^ -(int32_t)(v & 1); }

static bool joins(const tn_tokenizer *t, const tn_merge *m) {
    size_t a, b, n;
    const uint8_t *left = tn_tok_text(t, m->left, &a), *right = tn_tok_text(t, m->right, &b),
                  *all = tn_tok_text(t, m->result, &n);
    return n == a + b && !memcmp(all, left, a) && !memcmp(all + a, right, b);
}

/* stored[i]: token i's text must be stored. Otherwise its first merge joins tokens that are known by then. */
static void choose_stored(const tn_tokenizer *t, uint8_t *stored) {
    enum { NO = 0, YES = 1, UNDECIDED = 2 };
    memset(stored, YES, t->n_vocab);
    for (uint32_t i = 0; i < t->n_merges; i++) stored[t->merges[i].result] = UNDECIDED;
    for (uint32_t i = 0; i < t->n_merges; i++) {
        const tn_merge *m = &t->merges[i];
        if (stored[m->result] != UNDECIDED) continue;
        bool known = stored[m->left] != UNDECIDED && stored[m->right] != UNDECIDED;
        stored[m->result] = known && joins(t, m) ? NO : YES;
    }
}

/* Texts, types, scores and merges. With p NULL only measures. */
static size_t put_tokens(const tn_tokenizer *t, const uint8_t *stored, uint8_t *p) {
    size_t n = 0, text;
    for (uint32_t i = 0; i < t->n_vocab; i += 8, n++) {
        uint8_t bits = 0;
        for (uint32_t j = i; j < t->n_vocab && j < i + 8; j++) bits |= (uint8_t)(stored[j] << (j - i));
        if (p) p[n] = bits;
    }
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (!stored[i]) continue;
        (void)tn_tok_text(t, i, &text);
        n += put_number(p ? p + n : NULL, (uint32_t)text);
    }
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (!stored[i]) continue;
        const uint8_t *from = tn_tok_text(t, i, &text);
        if (p) put(p + n, from, text);
        n += text;
    }
    for (uint32_t i = 0, run; i < t->n_vocab; i += run) {
        for (run = 1; i + run < t->n_vocab && t->types[i + run] == t->types[i];) run++;
        if (p) p[n] = t->types[i];
        n += 1 + put_number(p ? p + n + 1 : NULL, run);
    }
    for (uint32_t i = 0; t->scores && i < t->n_vocab; i++, n += 4) {
        uint32_t u;
        memcpy(&u, &t->scores[i], 4);
        if (p) put_u32(p + n, u);
    }
    for (uint32_t i = 0; i < t->n_merges; i++) {
        const tn_merge *m = &t->merges[i];
        int32_t step = (int32_t)m->result - (i ? (int32_t)t->merges[i - 1].result : 0) - 1;
        n += put_number(p ? p + n : NULL, m->left);
        n += put_number(p ? p + n : NULL, m->right);
        n += put_number(p ? p + n : NULL, folded(step));
    }
    return n;
}

static tern_status save(const tn_tokenizer *t, const uint8_t *stored, uint8_t **blob, size_t *n_bytes,
                        tern_error *err) {
    size_t n_text = t->off[t->n_vocab], n_direct = (t->n_vocab + 7) / 8;
    size_t template_bytes = t->chat_template ? strlen(t->chat_template) : 0;
    size_t tool_bytes = t->tool_template ? strlen(t->tool_template) : 0;
    size_t rerank_bytes = t->rerank_template ? strlen(t->rerank_template) : 0;
    size_t n = BLOB_HEAD + BLOB_FIELDS * 4 + put_tokens(t, stored, NULL) + n_direct + (size_t)t->n_ends * 4 +
               (t->chat_template ? 4 + template_bytes : 0) + (t->tool_template ? 4 + tool_bytes : 0) +
               (t->charsmap ? 4 + (size_t)t->charsmap_bytes : 0) +
               (t->rerank_template ? 4 + rerank_bytes : 0);
    for (uint32_t i = 0; i < t->n_patterns; i++) n += 4 + strlen(t->patterns[i]);
    uint8_t *b = tn_alloc(t->ctx, TN_MEM_TEXT, n, 1), *p = b;
    TN_FAIL_IF(!b, err, TERN_E_MEMORY, "out of memory for a tokenizer blob of %zu bytes", n);

    uint32_t flags = (t->scores ? BLOB_SCORES : 0) | (t->chat_template ? BLOB_TEMPLATE : 0) |
                     (t->tool_template ? BLOB_TOOL_TEMPLATE : 0) |
                     (t->ignore_merges ? BLOB_IGNORE_MERGES : 0) | (t->space_prefix ? BLOB_SPACE_PREFIX : 0) |
                     (t->space_prefix_first ? BLOB_SPACE_PREFIX_FIRST : 0) |
                     (t->space_prefix_missing ? BLOB_SPACE_PREFIX_MISSING : 0) | (t->nfc ? BLOB_NFC : 0) |
                     (t->add_bos ? BLOB_ADD_BOS : 0) | (t->add_eos ? BLOB_ADD_EOS : 0) |
                     (t->lowercase ? BLOB_LOWERCASE : 0) | (t->strip_accents ? BLOB_STRIP_ACCENTS : 0) |
                     (t->merge_spaces ? BLOB_MERGE_SPACES : 0) | (t->charsmap ? BLOB_CHARSMAP : 0) |
                     (t->rerank_template ? BLOB_RERANK_TEMPLATE : 0) |
                     (t->end_twice && t->kind != TN_TOK_UNIGRAM ? BLOB_END_TWICE : 0);
    const uint32_t fields[BLOB_FIELDS] = {
        t->kind, t->n_vocab,       t->n_merges,      t->n_patterns,    t->n_ends,        (uint32_t)n_text,
        flags,   (uint32_t)t->bos, (uint32_t)t->eos, (uint32_t)t->eot, (uint32_t)t->unk, (uint32_t)t->pad};
    p += BLOB_HEAD;
    for (int i = 0; i < BLOB_FIELDS; i++) p = put_u32(p, fields[i]);
    p += put_tokens(t, stored, p);
    for (size_t i = 0; i < n_direct; i++)
        *p++ = (uint8_t)(atomic_load_explicit(&t->direct[i / 8], memory_order_relaxed) >> (i % 8 * 8));
    for (uint32_t i = 0; i < t->n_ends; i++) p = put_u32(p, (uint32_t)t->ends[i]);
    for (uint32_t i = 0; i < t->n_patterns; i++) {
        size_t len = strlen(t->patterns[i]);
        p = put(put_u32(p, (uint32_t)len), t->patterns[i], len);
    }
    if (t->chat_template) p = put(put_u32(p, (uint32_t)template_bytes), t->chat_template, template_bytes);
    if (t->tool_template) p = put(put_u32(p, (uint32_t)tool_bytes), t->tool_template, tool_bytes);
    if (t->charsmap) p = put(put_u32(p, t->charsmap_bytes), t->charsmap, t->charsmap_bytes);
    if (t->rerank_template) p = put(put_u32(p, (uint32_t)rerank_bytes), t->rerank_template, rerank_bytes);
    assert(p == b + n);

    memcpy(b, BLOB_MAGIC, 8);
    uint64_t sum = XXH3_64bits(b + BLOB_HEAD, n - BLOB_HEAD);
    put_u32(put_u32(b + 8, (uint32_t)sum), (uint32_t)(sum >> 32));
    *blob = b;
    *n_bytes = n;
    return TERN_OK;
}

tern_status tn_tokenizer_save(const tn_tokenizer *t, uint8_t **blob, size_t *n_bytes, tern_error *err) {
    *blob = NULL;
    *n_bytes = 0;
    uint8_t *stored = tn_alloc(t->ctx, TN_MEM_TEXT, t->n_vocab, 1);
    TN_FAIL_IF(!stored, err, TERN_E_MEMORY, "out of memory for a vocabulary of %u", t->n_vocab);
    choose_stored(t, stored);
    tern_status st = tn_tok_mark_direct(t, err);
    if (st == TERN_OK) st = save(t, stored, blob, n_bytes, err);
    tn_free(t->ctx, stored);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------ */

/* Takes a string with its length in front, as a fresh zero-terminated copy. */
static tern_status take_string(tn_tokenizer *t, const uint8_t **p, const uint8_t *end, char **out,
                               tern_error *err) {
    TN_FAIL_IF(end - *p < 4, err, TERN_E_FORMAT, "tokenizer blob ends inside a string");
    uint32_t n = tn_tok_u32(*p);
    *p += 4;
    TN_FAIL_IF(n > (size_t)(end - *p), err, TERN_E_FORMAT,
               "tokenizer blob has a string of %u bytes, %zu are left", n, (size_t)(end - *p));
    TN_FAIL_IF(memchr(*p, 0, n), err, TERN_E_FORMAT, "tokenizer blob has a string with a zero byte");
    *out = tn_strndup(t->ctx, TN_MEM_TEXT, (const char *)*p, n);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "out of memory for a string of %u bytes", n);
    *p += n;
    return TERN_OK;
}

static tern_status take_charsmap(tn_tokenizer *t, const uint8_t **p, const uint8_t *end, tern_error *err) {
    TN_FAIL_IF(end - *p < 4, err, TERN_E_FORMAT, "tokenizer blob ends before its map of characters");
    uint32_t n = tn_tok_u32(*p);
    *p += 4;
    TN_FAIL_IF(n > (size_t)(end - *p) || !tn_tok_charsmap_ok(*p, n), err, TERN_E_FORMAT,
               "tokenizer blob: its map of characters (%u bytes) is invalid", n);
    t->charsmap = tn_alloc(t->ctx, TN_MEM_TEXT, n, 1);
    TN_FAIL_IF(!t->charsmap, err, TERN_E_MEMORY, "out of memory for a map of characters");
    memcpy(t->charsmap, *p, n);
    t->charsmap_bytes = n;
    *p += n;
    return TERN_OK;
}

static void *alloc(tn_tokenizer *t, size_t n, size_t size) { return tn_alloc(t->ctx, TN_MEM_TEXT, n, size); }

static tern_status alloc_core(tn_tokenizer *t, uint32_t n_text, uint32_t flags, tern_error *err) {
    size_t n_words = (t->n_vocab + 63) / 64;
    t->off = alloc(t, (size_t)t->n_vocab + 1, sizeof *t->off);
    t->bytes = alloc(t, n_text, 1);
    t->types = alloc(t, t->n_vocab, 1);
    t->scores = flags & BLOB_SCORES ? alloc(t, t->n_vocab, sizeof *t->scores) : NULL;
    t->merges = alloc(t, t->n_merges, sizeof *t->merges);
    t->direct = tn_calloc(t->ctx, TN_MEM_TEXT, n_words, sizeof *t->direct);
    t->ends = alloc(t, t->n_ends, sizeof *t->ends);
    TN_FAIL_IF(!t->off || !t->bytes || !t->types || (flags & BLOB_SCORES && !t->scores) || !t->merges ||
                   !t->direct || !t->ends,
               err, TERN_E_MEMORY, "out of memory for a vocabulary of %u", t->n_vocab);
    return TERN_OK;
}

static tern_status bad(tern_error *err, const char *what, uint32_t i) {
    return tn_fail(err, TERN_E_FORMAT, "tokenizer blob: %s %u is cut off or invalid", what, i);
}

static tern_status read_scores(tn_tokenizer *t, const uint8_t **pp, const uint8_t *end, tern_error *err) {
    if (!t->scores) return TERN_OK;
    const size_t n = (size_t)t->n_vocab * sizeof *t->scores;
    if ((size_t)(end - *pp) < n) return bad(err, "score", 0);
    for (uint32_t i = 0; i < t->n_vocab; i++, *pp += 4) {
        uint32_t u = tn_tok_u32(*pp);
        memcpy(&t->scores[i], &u, 4);
    }
    return TERN_OK;
}

static bool is_type(uint8_t type) { return (type & TN_TOK_TYPE_MASK) <= TN_TOKEN_BYTE; }

/* Keeps a merge. Returns false if its tokens do not exist. */
static bool keep_merge(tn_tokenizer *t, uint32_t i, uint32_t left, uint32_t right, uint32_t result) {
    t->merges[i] = (tn_merge){left, right, result};
    return left < t->n_vocab && right < t->n_vocab && result < t->n_vocab;
}

/* off[1 + id] holds lengths, UINT32_MAX where the text comes from the token's first merge. Turns all of them
 * into offsets. */
static tern_status place_texts(tn_tokenizer *t, uint32_t n_merges, uint32_t n_text, tern_error *err) {
    uint32_t *len = t->off + 1, at = 0;
    for (uint32_t i = 0; i < n_merges; i++) {
        const tn_merge *m = &t->merges[i];
        if (len[m->result] != UINT32_MAX) continue;
        const uint32_t left = len[m->left], right = len[m->right];
        if (left > n_text || right > n_text - left) return bad(err, "text of merge", i);
        len[m->result] = left + right;
    }
    t->off[0] = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (len[i] > n_text - at) return bad(err, "text of token", i);
        len[i] = at += len[i]; /* a token ends where the next begins */
    }
    return at == n_text ? TERN_OK : bad(err, "text of token", t->n_vocab);
}

/* Tokens and merges of a TNTOKEN1. The caller has checked that there are enough bytes. */
static tern_status read_tokens_1(tn_tokenizer *t, const uint8_t **pp, const uint8_t *end, uint32_t n_text,
                                 tern_error *err) {
    const uint8_t *p = *pp;
    for (uint32_t i = 0; i < t->n_vocab; i++, p += 4) t->off[i + 1] = tn_tok_u32(p);
    TN_TRY(place_texts(t, 0, n_text, err));
    memcpy(t->bytes, p, n_text);
    p += n_text;
    for (uint32_t i = 0; i < t->n_vocab; i++, p++) {
        if (!is_type(*p)) return bad(err, "type of token", i);
        t->types[i] = *p;
    }
    TN_TRY(read_scores(t, &p, end, err));
    for (uint32_t i = 0; i < t->n_merges; i++, p += 12)
        if (!keep_merge(t, i, tn_tok_u32(p), tn_tok_u32(p + 4), tn_tok_u32(p + 8)))
            return bad(err, "merge", i);
    *pp = p;
    return TERN_OK;
}

/* Returns false if the number does not end before `end` or is too large. */
static bool take_number(const uint8_t **pp, const uint8_t *end, uint32_t *out) {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 35 && *pp < end; shift += 7) {
        uint8_t b = *(*pp)++;
        v |= (uint64_t)(b & 127) << shift;
        *out = (uint32_t)v;
        if (b < 128) return v == *out;
    }
    return false;
}

static bool is_stored(const uint8_t *bits, uint32_t id) { return bits[id / 8] >> (id % 8) & 1; }

/* Reads the tokens from *pp on and places their texts. *texts: the bytes of the stored ones. */
static tern_status read_tokens_2(tn_tokenizer *t, const uint8_t **pp, const uint8_t *end, uint32_t n_text,
                                 const uint8_t *bits, const uint8_t **texts, tern_error *err) {
    uint64_t stored = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        t->off[i + 1] = UINT32_MAX;
        if (!is_stored(bits, i)) continue;
        if (!take_number(pp, end, &t->off[i + 1])) return bad(err, "length of token", i);
        stored += t->off[i + 1];
    }
    if (stored > (size_t)(end - *pp)) return bad(err, "text of token", 0);
    *texts = *pp;
    *pp += stored;
    for (uint32_t i = 0, run; i < t->n_vocab; i += run) {
        const uint8_t type = *pp < end ? *(*pp)++ : 0xff;
        if (!is_type(type) || !take_number(pp, end, &run) || !run || run > t->n_vocab - i)
            return bad(err, "type of token", i);
        memset(t->types + i, type, run);
    }
    TN_TRY(read_scores(t, pp, end, err));
    for (uint32_t i = 0, last = 0; i < t->n_merges; last = t->merges[i++].result) {
        uint32_t left, right, step;
        if (!take_number(pp, end, &left) || !take_number(pp, end, &right) || !take_number(pp, end, &step) ||
            !keep_merge(t, i, left, right, last + (uint32_t)unfolded(step) + 1))
            return bad(err, "merge", i);
    }
    return place_texts(t, t->n_merges, n_text, err);
}

/* have [n_vocab]: zeros. */
static void join_texts(tn_tokenizer *t, const uint8_t *bits, const uint8_t *texts, uint8_t *have) {
    size_t n, a, b;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (!is_stored(bits, i)) continue;
        (void)tn_tok_text(t, i, &n);
        memcpy(t->bytes + t->off[i], texts, n);
        texts += n;
        have[i] = 1;
    }
    for (uint32_t i = 0; i < t->n_merges; i++) {
        const tn_merge *m = &t->merges[i];
        if (have[m->result]) continue;
        const uint8_t *left = tn_tok_text(t, m->left, &a), *right = tn_tok_text(t, m->right, &b);
        uint8_t *to = t->bytes + t->off[m->result];
        memcpy(to, left, a);
        memcpy(to + a, right, b);
        have[m->result] = 1;
    }
}

/* Reads tokens and merges from *pp on. */
static tern_status read_tokens(tn_tokenizer *t, const uint8_t **pp, const uint8_t *end, uint32_t n_text,
                               tern_error *err) {
    const uint8_t *bits = *pp, *texts = NULL;
    *pp += (t->n_vocab + 7) / 8;
    TN_TRY(read_tokens_2(t, pp, end, n_text, bits, &texts, err));
    uint8_t *have = tn_calloc(t->ctx, TN_MEM_TEXT, t->n_vocab, 1);
    TN_FAIL_IF(!have, err, TERN_E_MEMORY, "out of memory for a vocabulary of %u", t->n_vocab);
    join_texts(t, bits, texts, have);
    tn_free(t->ctx, have);
    return TERN_OK;
}

static tern_status read_core(tn_tokenizer *t, const uint8_t *blob, size_t n_bytes, tern_error *err) {
    const bool enough = n_bytes >= BLOB_HEAD + BLOB_FIELDS * 4,
               old = enough && !memcmp(blob, BLOB_MAGIC_1, 8);
    TN_FAIL_IF(!enough || (!old && memcmp(blob, BLOB_MAGIC, 8)), err, TERN_E_FORMAT,
               "not a tokenizer blob (%zu bytes)", n_bytes);
    TN_FAIL_IF(load_u64(blob + 8) != XXH3_64bits(blob + BLOB_HEAD, n_bytes - BLOB_HEAD), err, TERN_E_FORMAT,
               "tokenizer blob of %zu bytes is damaged (checksum)", n_bytes);
    /* The checksum only guards against accidents; everything below is checked nevertheless. */
    const uint8_t *p = blob + BLOB_HEAD, *end = blob + n_bytes;
    uint32_t f[BLOB_FIELDS];
    for (int i = 0; i < BLOB_FIELDS; i++, p += 4) f[i] = tn_tok_u32(p);
    uint32_t n_patterns = f[3], n_ends = f[4], n_text = f[5], flags = f[6];
    TN_FAIL_IF(f[0] > TN_TOK_LONGEST || f[1] == 0 || f[1] > TN_TOK_MAX_VOCAB || n_patterns > TN_PRETOK_MAX ||
                   flags > BLOB_ALL_FLAGS || n_text > INT32_MAX,
               err, TERN_E_FORMAT, "tokenizer blob: kind %u, %u tokens of %u bytes, %u patterns, flags %#x",
               f[0], f[1], n_text, n_patterns, flags);
    t->kind = (tn_tok_kind)f[0];
    t->n_vocab = f[1];
    size_t n_direct = (t->n_vocab + 7) / 8;
    /* The least number of bytes; parts without a fixed size are checked where they are read. */
    uint64_t need = n_direct + (uint64_t)n_ends * 4;
    if (old) need += (uint64_t)t->n_vocab * (flags & BLOB_SCORES ? 9 : 5) + n_text + (uint64_t)f[2] * 12;
    else need += n_direct + (uint64_t)f[2] * 3;
    TN_FAIL_IF(need > (size_t)(end - p), err, TERN_E_FORMAT,
               "tokenizer blob needs %" PRIu64 " more bytes, has %zu", need, (size_t)(end - p));
    TN_FAIL_IF(n_text > MAX_GROWTH * (uint64_t)n_bytes, err, TERN_E_FORMAT,
               "tokenizer blob of %zu bytes: tokens of %u", n_bytes, n_text);
    t->n_merges = f[2];
    t->n_ends = n_ends;
    t->ignore_merges = flags & BLOB_IGNORE_MERGES;
    t->space_prefix = flags & BLOB_SPACE_PREFIX;
    t->space_prefix_first = flags & BLOB_SPACE_PREFIX_FIRST;
    t->space_prefix_missing = flags & BLOB_SPACE_PREFIX_MISSING;
    t->nfc = flags & BLOB_NFC;
    t->lowercase = flags & BLOB_LOWERCASE;
    t->strip_accents = flags & BLOB_STRIP_ACCENTS;
    t->merge_spaces = flags & BLOB_MERGE_SPACES;
    TN_FAIL_IF(t->kind == TN_TOK_UNIGRAM && !(flags & BLOB_SCORES), err, TERN_E_FORMAT,
               "tokenizer blob: a unigram tokenizer without scores");
    t->add_bos = flags & BLOB_ADD_BOS;
    t->add_eos = flags & BLOB_ADD_EOS;
    t->end_twice = flags & BLOB_END_TWICE || t->kind == TN_TOK_UNIGRAM;
    int32_t *ids[] = {&t->bos, &t->eos, &t->eot, &t->unk, &t->pad};
    for (int i = 0; i < 5; i++) *ids[i] = tn_tok_checked_id(t, (int32_t)f[7 + i]);

    TN_TRY(alloc_core(t, n_text, flags, err));
    TN_TRY(old ? read_tokens_1(t, &p, end, n_text, err) : read_tokens(t, &p, end, n_text, err));
    if ((size_t)(end - p) < n_direct + (uint64_t)n_ends * 4) return bad(err, "merge", t->n_merges);
    for (size_t i = 0; i < n_direct; i += 8) {
        uint64_t bits = 0;
        for (size_t j = i; j < n_direct && j < i + 8; j++) bits |= (uint64_t)*p++ << (j % 8 * 8);
        atomic_store_explicit(&t->direct[i / 8], bits, memory_order_relaxed);
    }
    for (uint32_t i = 0; i < n_ends; i++, p += 4) {
        t->ends[i] = (int32_t)tn_tok_u32(p);
        TN_FAIL_IF(tn_tok_checked_id(t, t->ends[i]) < 0, err, TERN_E_FORMAT,
                   "tokenizer blob: end token %d, the vocabulary has %u", t->ends[i], t->n_vocab);
    }
    for (; t->n_patterns < n_patterns; t->n_patterns++)
        TN_TRY(take_string(t, &p, end, &t->patterns[t->n_patterns], err));
    if (flags & BLOB_TEMPLATE) TN_TRY(take_string(t, &p, end, &t->chat_template, err));
    if (flags & BLOB_TOOL_TEMPLATE) TN_TRY(take_string(t, &p, end, &t->tool_template, err));
    if (flags & BLOB_CHARSMAP) TN_TRY(take_charsmap(t, &p, end, err));
    if (flags & BLOB_RERANK_TEMPLATE) TN_TRY(take_string(t, &p, end, &t->rerank_template, err));
    TN_FAIL_IF(p != end, err, TERN_E_FORMAT, "tokenizer blob has %zu bytes too many", (size_t)(end - p));
    return TERN_OK;
}

tern_status tn_tokenizer_load(tn_ctx *ctx, const uint8_t *blob, size_t n_bytes, tn_tokenizer **out,
                              tern_error *err) {
    *out = NULL;
    tn_tokenizer *t = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "out of memory for the tokenizer");
    t->ctx = ctx;
    tern_status st = read_core(t, blob, n_bytes, err);
    if (st == TERN_OK) st = tn_tokenizer_derive(t, err);
    if (st != TERN_OK) tn_tokenizer_close(&t);
    *out = t;
    return st;
}
