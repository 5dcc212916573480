#include "documents/extract.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\f'; }
static bool is_break(char c) { return c == '\n' || c == '\f'; }
static bool is_word(char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c & 0x80);
}

size_t tn_text_count(const char *text, size_t n) {
    size_t count = 0, word = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_word(text[i])) {
            count += word++ % 4 == 0;
        } else {
            word = 0;
            count += !is_space(text[i]);
        }
    }
    return count;
}

/* A text is cut at these, from coarse to fine. */
typedef enum cut { CUT_PARAGRAPH, CUT_LINE, CUT_SENTENCE, CUT_WORD, N_CUTS } cut;

/* Tells whether a piece of this kind begins at i, after i - 1. */
static bool begins(const char *t, size_t i, cut c) {
    switch (c) {
    case CUT_PARAGRAPH:
        if (!is_break(t[i - 1]) || is_space(t[i])) return false;
        if (t[i] == '#') return true; /* a heading of Markdown */
        for (size_t k = i - 1; k-- > 0 && is_space(t[k]);) {
            if (is_break(t[k])) return true;
        }
        return false;
    case CUT_LINE: return is_break(t[i - 1]) && !is_break(t[i]);
    case CUT_SENTENCE:
        /* full stops of East Asia need no space after them */
        if (i > 2 && (!memcmp(t + i - 3, "\xe3\x80\x82", 3) || !memcmp(t + i - 3, "\xef\xbc\x81", 3) ||
                      !memcmp(t + i - 3, "\xef\xbc\x9f", 3)))
            return true;
        return i > 1 && is_space(t[i - 1]) && !is_space(t[i]) &&
               (t[i - 2] == '.' || t[i - 2] == '!' || t[i - 2] == '?' || t[i - 2] == '\n');
    default: return is_space(t[i - 1]) && !is_space(t[i]);
    }
}

static size_t next_begin(const char *t, size_t n, size_t i, cut c) {
    while (++i < n && !begins(t, i, c)) {
    }
    return i < n ? i : n;
}

static size_t count(const tn_passage_options *o, const char *t, size_t n) {
    return o->count ? o->count(o->user, t, n) : tn_text_count(t, n);
}

/* Finds the longest beginning of t that n_tokens allow by tn_text_count. */
static size_t counted_prefix(const char *t, size_t n, size_t n_tokens) {
    size_t used = 0, word = 0, i = 0;
    for (; i < n; i++) {
        bool in_word = is_word(t[i]);
        used += in_word ? word % 4 == 0 : !is_space(t[i]);
        word = in_word ? word + 1 : 0;
        if (used > n_tokens) break;
    }
    return i;
}

/* Finds the longest beginning of t that n_tokens allow, as far as a longer text never has fewer tokens. A
 * tokenizer is asked about no more than some times of what fits, however long the text is, and its answer may
 * be a thirty-second part short. */
static size_t prefix(const char *t, size_t n, size_t n_tokens, const tn_passage_options *o) {
    if (!o->count) return counted_prefix(t, n, n_tokens);
    size_t lo = 0, hi = n_tokens * 4;
    while (hi < n && count(o, t, hi) <= n_tokens) {
        lo = hi;
        hi *= 2;
    }
    if (hi >= n) {
        if (count(o, t, n) <= n_tokens) return n;
        hi = n;
    }
    while (hi - lo > 1 + lo / 32) { /* lo fits, hi does not */
        size_t mid = lo + (hi - lo) / 2;
        if (count(o, t, mid) <= n_tokens) lo = mid;
        else hi = mid;
    }
    return lo;
}

/* Cuts between characters: after the last one of t[0..end), or after the first one where that is none. */
static size_t whole_characters(const char *t, size_t n, size_t end) {
    while (end > 0 && end < n && (t[end] & 0xc0) == 0x80) end--;
    if (!end) {
        while (++end < n && (t[end] & 0xc0) == 0x80) {
        }
    }
    return end;
}

/* Finds the end of the passage that begins at `from`: pieces as coarse as they fit. */
static size_t passage_end(const char *t, size_t n, size_t from, const tn_passage_options *o) {
    enum { MAX_TOKEN_BYTES = 32 }; /* white space has no tokens: so far a passage reaches all the same */
    size_t most = o->max_tokens * MAX_TOKEN_BYTES, left = n - from < most ? n - from : most,
           far = from + prefix(t + from, left, o->max_tokens, o), end = from;
    if (far == n) return n;
    for (int c = CUT_PARAGRAPH; c < N_CUTS; c++) {
        for (size_t next; (next = next_begin(t, far + 1, end, (cut)c)) <= far;) end = next;
        if (count(o, t + from, end - from) > o->max_tokens / 4)
            return end; /* a heading alone would be none */
    }
    return from + whole_characters(t + from, n - from, far - from);
}

/* Finds where the next passage begins: at a line, else a sentence, of the passage's end. */
static size_t overlap_begin(const char *t, size_t from, size_t end, const tn_passage_options *o) {
    for (int c = CUT_LINE; c <= CUT_SENTENCE; c++) {
        size_t best = end, used = 0;
        for (size_t i = end; --i > from;) {
            if (!begins(t, i, (cut)c)) continue;
            used += count(o, t + i, best - i);
            if (used > o->overlap_tokens) break;
            best = i;
        }
        if (best < end) return best;
    }
    return end;
}

void tn_passages(const char *t, size_t n, const tn_passage_options *o,
                 bool (*fn)(void *, const char *, size_t), void *user) {
    for (size_t from = 0; from < n;) {
        while (from < n && is_space(t[from])) from++;
        if (from == n) return;
        size_t end = passage_end(t, n, from, o), last = end;
        while (last > from && is_space(t[last - 1])) last--;
        if (!fn(user, t + from, last - from) || end >= n) return;
        from = o->overlap_tokens ? overlap_begin(t, from, end, o) : end;
    }
}
