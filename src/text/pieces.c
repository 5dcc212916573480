#include "text/pieces.h"

#include "base/status.h"
#include "text/utf8.h"

#include <float.h>
#include <utf8proc.h>

/* ---- WordPiece -------------------------------------------------------------------------------------- */

enum { MAX_WORD_CHARS = 100, MAX_WORD_BYTES = 1 + 4 * MAX_WORD_CHARS, MAX_DECOMPOSED = 32 };

typedef struct word {
    uint8_t text[MAX_WORD_BYTES]; /* a space, then the word */
    size_t n, n_chars;
} word;

static bool is_removed(uint32_t cp) {
    if (cp == '\t' || cp == '\n' || cp == '\r') return false;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return !cp || cp == 0xfffd || c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_CO;
}

static bool is_white(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return cp == '\t' || cp == '\n' || cp == '\r' || c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL ||
           c == UTF8PROC_CATEGORY_ZP;
}

/* Ideographs, as the published normaliser lists them: its range at U+2B920 begins 256 later than the block.
 */
static bool is_ideograph(uint32_t cp) {
    static const uint32_t ranges[][2] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                         {0x20000, 0x2a6df}, {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f},
                                         {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (cp >= ranges[i][0] && cp <= ranges[i][1]) return true;
    return false;
}

static bool is_punctuation(uint32_t cp) {
    if (cp < 0x80)
        return cp > ' ' && cp < 0x7f && !(cp >= '0' && cp <= '9') &&
               !((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z');
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

/* The pieces of a word, longest first; none if it cannot be spelled. */
static void end_word(const tn_tokenizer *t, word *w, tn_tok_emit *emit, void *user) {
    uint32_t ids[MAX_WORD_BYTES];
    size_t n_ids = 0, at = 0;
    for (; w->n_chars <= MAX_WORD_CHARS && at < w->n; n_ids++) {
        size_t len = w->n - at < t->max_token_bytes ? w->n - at : t->max_token_bytes;
        uint32_t id = TN_TOK_NONE;
        for (; len && id == TN_TOK_NONE; len--) id = tn_tok_lookup(t, w->text + at, len);
        if (id == TN_TOK_NONE) break;
        ids[n_ids] = id;
        at += len + 1;
    }
    if (w->n_chars && at < w->n) {
        if (t->unk >= 0) emit(user, (uint32_t)t->unk);
    } else {
        for (size_t i = 0; w->n_chars && i < n_ids; i++) emit(user, ids[i]);
    }
    w->n = 1;
    w->n_chars = 0;
}

static void add_char(const tn_tokenizer *t, word *w, uint32_t cp, tn_tok_emit *emit, void *user) {
    bool alone = is_punctuation(cp) || is_ideograph(cp);
    if (alone || is_white(cp)) end_word(t, w, emit, user);
    if (is_white(cp)) return;
    if (w->n_chars++ < MAX_WORD_CHARS) w->n += tn_utf8_encode(cp, w->text + w->n);
    if (alone) end_word(t, w, emit, user);
}

tern_status tn_tok_wordpiece(const tn_tokenizer *t, const uint8_t *p, size_t n, tn_tok_emit *emit, void *user,
                             tern_error *err) {
    const uint8_t *end = p + n;
    word w = {.text = " ", .n = 1};
    (void)err;
    while (p < end) {
        uint32_t cp;
        size_t len = tn_utf8_decode(p, end, &cp);
        p += len ? len : 1; /* invalid UTF-8 is removed, as U+FFFD is */
        if (!len || is_removed(cp)) continue;
        utf8proc_int32_t parts[MAX_DECOMPOSED] = {(utf8proc_int32_t)cp};
        utf8proc_ssize_t n_parts = 1;
        if (t->strip_accents && cp >= 0x80) {
            int boundary = 0;
            n_parts = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, MAX_DECOMPOSED,
                                              UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        }
        for (utf8proc_ssize_t i = 0; i < n_parts && i < MAX_DECOMPOSED; i++) {
            if (t->strip_accents && utf8proc_category(parts[i]) == UTF8PROC_CATEGORY_MN) continue;
            add_char(t, &w, (uint32_t)(t->lowercase ? utf8proc_tolower(parts[i]) : parts[i]), emit, user);
        }
    }
    end_word(t, &w, emit, user);
    return TERN_OK;
}

/* ---- unigram: SentencePiece's normalisation ----------------------------------------------------------- */

bool tn_tok_charsmap_ok(const uint8_t *map, size_t n) {
    if (n < 8) return false;
    size_t array = tn_tok_u32(map);
    return array >= 4 && array % 4 == 0 && array <= n - 5 && !map[n - 1];
}

/* An entry of the double array; 0 is not an entry (its last byte would be the terminating zero). */
static uint32_t entry(const tn_tokenizer *t, uint32_t i) {
    return i < tn_tok_u32(t->charsmap) / 4 ? tn_tok_u32(t->charsmap + 4 + 4 * (size_t)i) : 0;
}

/* Maps the longest known prefix of p to *to, n_to bytes. Returns the prefix's length; 0: none. */
static size_t mapped(const tn_tokenizer *t, const uint8_t *p, const uint8_t *end, const uint8_t **to,
                     size_t *n_to) {
    if (!t->charsmap) return 0;
    size_t array = tn_tok_u32(t->charsmap), best = 0, text = 0;
    uint32_t e = entry(t, 0), at = (e >> 10) << ((e & 1u << 9) >> 6);
    for (size_t i = 0; p + i < end && p[i]; i++) {
        at ^= p[i];
        e = entry(t, at);
        if ((e & (1u << 31 | 0xff)) != p[i]) break;
        at ^= (e >> 10) << ((e & 1u << 9) >> 6);
        if (!(e >> 8 & 1)) continue;
        best = i + 1;
        text = entry(t, at) & 0x7fffffffu;
    }
    if (!best || text >= t->charsmap_bytes - 4 - array) return 0;
    *to = t->charsmap + 4 + array + text;
    *n_to = strlen((const char *)*to); /* the map's last byte is a zero */
    return best;
}

typedef struct text {
    uint8_t *p;
    size_t n, cap;
    bool in_word, begun;
} text;

static bool put(const tn_tokenizer *t, text *out, uint8_t c) {
    if (out->n == out->cap) {
        size_t cap = out->cap * 2 + 64;
        uint8_t *p = tn_realloc(t->ctx, TN_MEM_TEXT, out->p, cap, 1);
        if (!p) return false;
        out->p = p;
        out->cap = cap;
    }
    out->p[out->n++] = c;
    return true;
}

/* Appends one byte of the mapped text. */
static bool put_mapped(const tn_tokenizer *t, text *out, uint8_t c) {
    bool ok = true;
    if (c == ' ') {
        out->in_word = false;
        return t->merge_spaces || put(t, out, ' ');
    }
    if (!out->in_word && ((t->space_prefix && !out->begun) || t->merge_spaces)) ok = put(t, out, ' ');
    out->in_word = out->begun = true;
    return ok && put(t, out, c);
}

static bool normalise(const tn_tokenizer *t, const uint8_t *p, const uint8_t *end, text *out) {
    static const uint8_t visible[] = "\xe2\x96\x81", broken[] = "\xef\xbf\xbd", space[] = " ";
    bool ok = true;
    while (ok && p < end) {
        const uint8_t *to = p;
        uint32_t cp;
        size_t n_to, used = mapped(t, p, end, &to, &n_to);
        if (!used) {
            used = n_to = tn_utf8_decode(p, end, &cp);
            if (!used) used = 1, n_to = 3, to = broken;
        }
        if (n_to == 3 && !memcmp(to, visible, 3)) to = space, n_to = 1;
        for (size_t i = 0; ok && i < n_to; i++) ok = put_mapped(t, out, to[i]);
        p += used;
    }
    return ok;
}

/* ---- unigram: the likeliest pieces ----------------------------------------------------------------------
 */

enum { MAX_PIECE = 1024 };

typedef struct step {
    double score;
    uint32_t id, from;
} step;

static double least_score(const tn_tokenizer *t) {
    float least = FLT_MAX;
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (tn_tok_type(t, id) == TN_TOKEN_NORMAL && t->scores[id] < least) least = t->scores[id];
    return least == FLT_MAX ? 0 : (double)least;
}

/* steps [n + 1] of scratch. ids come last first. */
static void likeliest(const tn_tokenizer *t, const uint8_t *p, size_t n, double unknown, step *steps) {
    uint32_t unk = t->unk >= 0 ? (uint32_t)t->unk : TN_TOK_NONE;
    for (size_t i = 0; i <= n; i++) steps[i] = (step){.score = -DBL_MAX, .id = unk};
    steps[0].score = 0;
    size_t most = t->max_token_bytes < MAX_PIECE ? t->max_token_bytes : MAX_PIECE;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        bool found = false;
        len = tn_utf8_decode(p + i, p + n, &cp);
        if (!len) len = 1;
        for (size_t k = len; k <= most && i + k <= n;) {
            uint32_t id = tn_tok_lookup(t, p + i, k);
            if (id != TN_TOK_NONE && !tn_tok_guarded(t, id)) {
                double score =
                    steps[i].score + (tn_tok_type(t, id) == TN_TOKEN_USER ? 0 : (double)t->scores[id]);
                if (k == len) found = true;
                if (score > steps[i + k].score) steps[i + k] = (step){score, id, (uint32_t)i};
            }
            size_t more = i + k < n ? tn_utf8_decode(p + i + k, p + n, &cp) : 1;
            k += more ? more : 1;
        }
        if (!found && steps[i].score + unknown > steps[i + len].score)
            steps[i + len] = (step){steps[i].score + unknown, unk, (uint32_t)i};
    }
}

/* A word, or a text that cannot be cut into words. */
static void emit_likeliest(const tn_tokenizer *t, const uint8_t *p, size_t n, double unknown, step *steps,
                           tn_tok_emit *emit, void *user) {
    size_t n_ids = 0;
    likeliest(t, p, n, unknown, steps);
    for (size_t at = n; at; n_ids++) { /* the part of the path already read is overwritten by its ids */
        uint32_t from = steps[at].from, id = steps[at].id;
        steps[n - n_ids].from = id;
        at = from;
    }
    for (uint32_t last = TN_TOK_NONE; n_ids; n_ids--) {
        uint32_t id = steps[n - n_ids + 1].from;
        bool unk = id == TN_TOK_NONE || id == (uint32_t)t->unk;
        if (id != TN_TOK_NONE && !(unk && last == id)) emit(user, id);
        last = id;
    }
}

tern_status tn_tok_unigram(const tn_tokenizer *t, const uint8_t *p, size_t n, tn_tok_emit *emit, void *user,
                           tern_error *err) {
    text out = {0};
    step *steps = NULL;
    tern_status st = TERN_OK;
    size_t longest = 0, len;
    TN_BAIL_IF(!normalise(t, p, p + n, &out), err, TERN_E_MEMORY, "out of memory for a normalised text");
    double unknown = least_score(t) - 10;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < out.n; i += len) {
            len = 0;
            while (t->cut_at_spaces && i + len < out.n && out.p[i + len] == ' ') len++;
            while (i + len < out.n && !(t->cut_at_spaces && out.p[i + len] == ' ')) len++;
            if (len > longest) longest = len;
            if (pass) emit_likeliest(t, out.p + i, len, unknown, steps, emit, user);
        }
        if (pass) break;
        steps = tn_alloc(t->ctx, TN_MEM_TEXT, longest + 1, sizeof *steps);
        TN_BAIL_IF(!steps, err, TERN_E_MEMORY, "out of memory for a text of %zu bytes", longest);
    }
out:
    tn_free(t->ctx, steps);
    tn_free(t->ctx, out.p);
    return st;
}
