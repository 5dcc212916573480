#include "store/words.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The length of a piece, in characters, where c begins or continues a run; 0: an ordinary character. */
static int piece_of(int c) {
    static const struct {
        int from, to, piece;
    } scripts[] = {
        {0x0e00, 0x0eff, 3},                        /* Thai, Lao */
        {0x1000, 0x109f, 3},                        /* Burmese */
        {0x1100, 0x11ff, 2},                        /* Hangul, in parts */
        {0x1780, 0x17ff, 3},                        /* Khmer */
        {0x2e80, 0x2fdf, 2},                        /* Han: radicals */
        {0x3005, 0x3007, 2},                        /* repeated, closed, zero */
        {0x3041, 0x30ff, 2},                        /* Hiragana, Katakana */
        {0x3105, 0x312f, 2},                        /* Bopomofo */
        {0x31f0, 0x31ff, 2},                        /* more Katakana */
        {0x3400, 0x4dbf, 2},                        /* Han */
        {0x4e00, 0x9fff, 2},   {0xac00, 0xd7af, 2}, /* Hangul */
        {0xf900, 0xfaff, 2},   {0xff66, 0xff9f, 2}, /* half-width Katakana */
        {0x20000, 0x3ffff, 2},
    };
    if (c < scripts[0].from) return 0;
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++)
        if (c >= scripts[i].from && c <= scripts[i].to) return scripts[i].piece;
    return 0;
}

typedef struct character {
    int c, n_bytes, piece; /* piece 0: ordinary */
    bool mark, word;       /* in a run: left out; a letter or a digit, else it ends the run */
} character;

static character character_at(const char *text, size_t n) {
    utf8proc_int32_t c;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &c);
    if (k < 1) return (character){.c = 0xfffd, .n_bytes = 1};
    character out = {.c = c, .n_bytes = (int)k, .piece = piece_of(c)};
    if (!out.piece) return out;
    utf8proc_category_t is = utf8proc_category(c);
    out.mark = out.piece == 3 && is >= UTF8PROC_CATEGORY_MN && is <= UTF8PROC_CATEGORY_ME;
    out.word = is >= UTF8PROC_CATEGORY_LU && is <= UTF8PROC_CATEGORY_NO;
    if (!out.word) out.piece = 0; /* signs of these blocks, such as the middle dot, separate words */
    return out;
}

typedef struct spreading {
    char *out;
    size_t n;
} spreading;

static void put(spreading *s, const char *text, size_t n) {
    memcpy(s->out + s->n, text, n);
    s->n += n;
}

/* Writes the pieces of a run that begins at text. Returns its bytes. */
static size_t put_run(spreading *s, const char *text, size_t n, int piece, tn_words_for use) {
    struct {
        const char *at;
        int n_bytes;
    } last[3]; /* the letters that the next piece begins with */
    size_t at = 0;
    int held = 0;
    bool any = false;
    if (s->n && s->out[s->n - 1] != ' ') put(s, " ", 1);
    while (at < n) {
        character c = character_at(text + at, n - at);
        if (c.piece != piece) break;
        if (!c.mark) {
            last[held].at = text + at;
            last[held++].n_bytes = c.n_bytes;
        }
        at += (size_t)c.n_bytes;
        if (held < piece) continue;
        for (int i = 0; i < piece; i++) put(s, last[i].at, (size_t)last[i].n_bytes);
        put(s, " ", 1);
        any = true;
        memmove(last, last + 1, (size_t)(--held) * sizeof last[0]);
    }
    for (; held && (use == TN_WORDS_INDEX || !any);
         held--, memmove(last, last + 1, (size_t)held * sizeof last[0])) {
        for (int i = 0; i < held; i++) put(s, last[i].at, (size_t)last[i].n_bytes);
        put(s, " ", 1);
        if (use == TN_WORDS_QUERY) break;
    }
    return at;
}

char *tn_words_spread(const char *text, size_t n, tn_words_for use, size_t *n_out) {
    /* a character of 2 bytes or more is in 3 pieces at most, each with a space after it */
    spreading s = {.out = n < ((size_t)-1 - 16) / 5 ? malloc(n * 5 + 16) : NULL};
    if (!s.out) return NULL;
    for (size_t at = 0; at < n;) {
        if (!(text[at] & 0x80)) {
            s.out[s.n++] = text[at++];
            continue;
        }
        character c = character_at(text + at, n - at);
        if (c.piece) {
            at += put_run(&s, text + at, n - at, c.piece, use);
        } else {
            put(&s, text + at, (size_t)c.n_bytes);
            at += (size_t)c.n_bytes;
        }
    }
    s.out[s.n] = 0;
    *n_out = s.n;
    return s.out;
}

bool tn_words_is_piece(const char *word, bool *is_short) {
    int n = 0, piece = 0;
    size_t len = strlen(word);
    for (size_t at = 0; at < len; n++) {
        character c = character_at(word + at, len - at);
        if (!c.piece) return *is_short = false;
        piece = c.piece;
        at += (size_t)c.n_bytes;
    }
    *is_short = n < piece;
    return n > 0;
}
