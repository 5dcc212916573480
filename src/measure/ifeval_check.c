/* measure/ifeval_check.c - IFEval's instructions: whether a text follows them, as its authors' program decides it.
 *
 * Their regular expressions run in PCRE2 with Python's meaning: classes of Unicode, lines that end in \n alone. Keywords are
 * expressions too, as they are there. What asks which language a text is in, or needs the trained splitter of sentences or words
 * of another program, is not checked. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/status.h"
#include "base/utf8.h"
#include "measure/suite_impl.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum verdict { NO, YES, UNKNOWN } verdict;

typedef struct span {
    const char *p;
    size_t n;
} span;

/* ---- texts --------------------------------------------------------------------------------------- */

/* Python's white space. */
static bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

/* Bytes of the white space that s begins with. */
static size_t space_at(span s) {
    uint32_t c;
    size_t k = s.n ? tn_utf8_decode((const uint8_t *)s.p, (const uint8_t *)s.p + s.n, &c) : 0;
    return k && is_space(c) ? k : 0;
}

static span strip(span s) {
    for (size_t k; (k = space_at(s));) s = (span){s.p + k, s.n - k};
    for (;;) {
        size_t k = 1;
        while (k < s.n && k < 4 && (s.p[s.n - k] & 0xc0) == 0x80) k++;
        if (!s.n || !space_at((span){s.p + s.n - k, k})) return s;
        s.n -= k;
    }
}

/* Without this letter at its ends; at which of them. */
static span strip_letter(span s, char c, bool left, bool right) {
    while (left && s.n && s.p[0] == c) s = (span){s.p + 1, s.n - 1};
    while (right && s.n && s.p[s.n - 1] == c) s.n--;
    return s;
}

static bool begins(span s, span with) { return s.n >= with.n && !memcmp(s.p, with.p, with.n); }
static bool ends(span s, span with) { return s.n >= with.n && !memcmp(s.p + s.n - with.n, with.p, with.n); }
static span span_of(const char *p) { return (span){p, strlen(p)}; }
static span value_of(const json_t *v) { return (span){json_string_value(v), json_string_length(v)}; }

static const char *find(span s, span what) {
    for (size_t i = 0; what.n <= s.n && i <= s.n - what.n; i++)
        if (!memcmp(s.p + i, what.p, what.n)) return s.p + i;
    return NULL;
}

/* ---- expressions --------------------------------------------------------------------------------- */

/* Everything that matches, one after the other. between is called with what lies before each match, and at the end with the
 * rest; whole with the matches. Either may be NULL. Returns how many there are, or -1: it takes too long, or there is no
 * memory. */
static long each_match(pcre2_code *code, span s, void (*whole)(void *user, span m),
                       void (*between)(void *user, span m), void *user) {
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    size_t at = 0, from = 0;
    long n = md ? 0 : -1;
    while (md && at <= s.n) {
        int rc = pcre2_match(code, (PCRE2_SPTR)s.p, s.n, at, 0, md, NULL);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) n = -1;
        if (rc < 0) break;
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(md);
        size_t begin = v[0], end = v[1] > v[0] ? v[1] : v[0];
        if (whole) whole(user, (span){s.p + begin, end - begin});
        if (between) between(user, (span){s.p + from, begin - from});
        n++;
        from = end;
        at = end;
        if (begin == end) /* an empty match: further by a letter */
            for (at++; at < s.n && (s.p[at] & 0xc0) == 0x80; at++) continue;
    }
    if (between && n >= 0) between(user, (span){s.p + from, s.n - from});
    pcre2_match_data_free(md);
    return n;
}

static pcre2_code *compile(span pattern, uint32_t flags) {
    int why;
    PCRE2_SIZE at;
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    if (c) (void)pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    pcre2_code *code =
        c ? pcre2_compile((PCRE2_SPTR)pattern.p, pattern.n, flags | PCRE2_UTF | PCRE2_UCP, &why, &at, c)
          : NULL;
    pcre2_compile_context_free(c);
    return code;
}

/* The matches of before + word + after. */
static long matches(const char *before, span word, const char *after, uint32_t flags, span s,
                    void (*whole)(void *, span), void (*between)(void *, span), void *user) {
    tn_bytes t = {0};
    tn_bytes_addf(&t, "%s", before);
    tn_bytes_add(&t, word.p, word.n);
    tn_bytes_addf(&t, "%s", after);
    pcre2_code *code = t.failed ? NULL : compile((span){t.p, t.n}, flags);
    long n = code ? each_match(code, s, whole, between, user) : -1;
    pcre2_code_free(code);
    free(t.p);
    return n;
}

static long count(const char *pattern, uint32_t flags, span s) {
    return matches(pattern, (span){"", 0}, "", flags, s, NULL, NULL, NULL);
}

/* ---- instructions -------------------------------------------------------------------------------- */

typedef struct asked {
    const json_t *kwargs;
    long n;    /* the number that is asked for */
    bool less; /* fewer than it; else at least it */
    span text; /* the text that is asked for */
    const json_t *list;
} asked;

static verdict compared(long n, const asked *a) {
    return n < 0 ? UNKNOWN : (a->less ? n < a->n : n >= a->n) ? YES : NO;
}
static verdict at_least(long n, long want) { return n < 0 ? UNKNOWN : n >= want ? YES : NO; }

static verdict existence(span s, const asked *a) {
    const json_t *v;
    size_t i;
    json_array_foreach(a->list, i, v) {
        long n = matches("", value_of(v), "", PCRE2_CASELESS, s, NULL, NULL, NULL);
        if (n <= 0) return n ? UNKNOWN : NO;
    }
    return YES;
}

static verdict frequency(span s, const asked *a) {
    return compared(matches("", strip(a->text), "", PCRE2_CASELESS, s, NULL, NULL, NULL), a);
}

static verdict forbidden(span s, const asked *a) {
    const json_t *v;
    size_t i;
    json_array_foreach(a->list, i, v) {
        long n = matches("\\b", value_of(v), "\\b", PCRE2_CASELESS, s, NULL, NULL, NULL);
        if (n) return n < 0 ? UNKNOWN : NO;
    }
    return YES;
}

static verdict letter_frequency(span s, const asked *a) {
    tn_bytes text = {0}, letter = {0};
    tn_suite_lower(&text, s.p, s.n);
    tn_suite_lower(&letter, a->text.p, a->text.n);
    long n = text.failed || letter.failed ? -1 : 0;
    span rest = {text.p, text.n}, what = {letter.p, letter.n};
    for (const char *p; n >= 0 && what.n && (p = find(rest, what)); n++)
        rest = (span){p + what.n, (size_t)(rest.p + rest.n - p) - what.n};
    free(text.p);
    free(letter.p);
    return compared(n, a);
}

static verdict words(span s, const asked *a) { return compared(count("\\w+", 0, s), a); }
static verdict placeholders(span s, const asked *a) { return at_least(count("\\[.*?\\]", 0, s), a->n); }

static verdict bullets(span s, const asked *a) {
    long stars = count("^\\s*\\*[^\\*].*$", PCRE2_MULTILINE, s),
         dashes = count("^\\s*-.*$", PCRE2_MULTILINE, s);
    return stars < 0 || dashes < 0 ? UNKNOWN : stars + dashes == a->n ? YES : NO;
}

typedef struct parts {
    long n, inner;    /* all; those of white space between others */
    bool first, last; /* the first, and the one before, were white space */
} parts;

static void part(void *user, span s) {
    parts *p = user;
    p->inner += p->n > 1 && p->last;
    p->last = !strip(s).n;
    p->first = p->n ? p->first : p->last;
    p->n++;
}

/* Pieces between dividers, without blank ones at the ends. */
static verdict paragraphs(span s, const asked *a) {
    parts p = {0};
    if (matches("\\s?\\*\\*\\*\\s?", (span){"", 0}, "", 0, s, NULL, part, &p) < 0) return UNKNOWN;
    return !p.inner && p.n - p.first - (p.n > 1 && p.last) == a->n ? YES : NO;
}

static verdict first_word(span s, const asked *a) {
    long nth = (long)json_integer_value(json_object_get(a->kwargs, "nth_paragraph")), n = 0, i = 0;
    span chosen = {"", 0}, rest = s;
    for (bool more = true; more; i++) {
        const char *cut = find(rest, (span){"\n\n", 2});
        span one = {rest.p, cut ? (size_t)(cut - rest.p) : rest.n};
        more = cut != NULL;
        if (cut) rest = (span){cut + 2, rest.n - one.n - 2};
        n += strip(one).n > 0;
        if (i + 1 == nth) chosen = strip(one);
    }
    if (nth > n || !chosen.n) return NO;
    span word = {chosen.p, 0};
    while (word.n < chosen.n && !space_at((span){chosen.p + word.n, chosen.n - word.n})) word.n++;
    word = strip_letter(strip_letter(word, '\'', true, false), '"', true, false);
    for (size_t k = 0; k < word.n; k++)
        if (strchr(".,?!'\"", word.p[k]) && word.p[k]) word.n = k;
    tn_bytes got = {0}, want = {0};
    tn_suite_lower(&got, word.p, word.n);
    tn_suite_lower(&want, a->text.p, a->text.n);
    bool same = got.n == want.n && (!got.n || !memcmp(got.p, want.p, got.n)),
         failed = got.failed || want.failed;
    free(got.p);
    free(want.p);
    return failed ? UNKNOWN : same && n == a->n ? YES : NO;
}

static verdict postscript(span s, const asked *a) {
    span marker = strip(a->text);
    tn_bytes low = {0}, word = {0};
    tn_suite_lower(&low, s.p, s.n);
    tn_suite_lower(&word, marker.p, marker.n);
    span text = {low.p ? low.p : "", low.n};
    long n = low.failed || word.failed ? -1
             : marker.n == 5 && !memcmp(marker.p, "P.P.S", 5)
                 ? count("\\s*p\\.\\s?p\\.\\s?s.*$", PCRE2_MULTILINE, text)
             : marker.n == 4 && !memcmp(marker.p, "P.S.", 4)
                 ? count("\\s*p\\.\\s?s\\..*$", PCRE2_MULTILINE, text)
                 : matches("\\s*", (span){word.p, word.n}, ".*$", PCRE2_MULTILINE, text, NULL, NULL, NULL);
    free(low.p);
    free(word.p);
    return at_least(n, 1);
}

static verdict constrained(span s, const asked *a) {
    (void)a;
    static const char *const options[] = {"My answer is yes.", "My answer is no.", "My answer is maybe."};
    for (int i = 0; i < 3; i++)
        if (find(s, span_of(options[i]))) return YES;
    return NO;
}

static void highlight(void *user, span s) { *(long *)user += strip(strip_letter(s, '*', true, true)).n > 0; }
static void strong(void *user, span s) { *(long *)user += strip((span){s.p + 2, s.n - 4}).n > 0; }

static verdict highlights(span s, const asked *a) {
    long n = 0;
    if (matches("\\*[^\\n\\*]*\\*", (span){"", 0}, "", 0, s, highlight, NULL, &n) < 0 ||
        matches("\\*\\*[^\\n\\*]*\\*\\*", (span){"", 0}, "", 0, s, strong, NULL, &n) < 0)
        return UNKNOWN;
    return at_least(n, a->n);
}

static verdict sections(span s, const asked *a) {
    return at_least(matches("\\s?", strip(a->text), "\\s?\\d+\\s?", 0, s, NULL, NULL, NULL), a->n);
}

static verdict json_format(span s, const asked *a) {
    static const char *const fences[] = {"```json", "```Json", "```JSON", "```"};
    json_error_t je;
    (void)a;
    s = strip(s);
    for (int i = 0; i < 4; i++)
        if (begins(s, span_of(fences[i]))) s = (span){s.p + strlen(fences[i]), s.n - strlen(fences[i])};
    if (ends(s, span_of("```"))) s.n -= 3;
    s = strip(s);
    json_t *v = tn_json_parse(s.p, s.n, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &je);
    json_decref(v);
    if (!v && json_error_code(&je) == json_error_out_of_memory) return UNKNOWN;
    return v ? YES : NO;
}

static void a_title(void *user, span s) {
    span t = strip_letter(strip_letter(s, '<', true, false), '>', false, true);
    *(long *)user += strip(t).n > 0;
}

static verdict title(span s, const asked *a) {
    long n = 0;
    (void)a;
    if (matches("<<[^\\n]+>>", (span){"", 0}, "", 0, s, a_title, NULL, &n) < 0) return UNKNOWN;
    return at_least(n, 1);
}

static verdict two_responses(span s, const asked *a) {
    span found[2] = {{"", 0}, {"", 0}}, rest = s;
    long n = 0;
    (void)a;
    for (bool more = true, first = true; more; first = false) {
        const char *cut = find(rest, span_of("******"));
        span one = {rest.p, cut ? (size_t)(cut - rest.p) : rest.n};
        more = cut != NULL;
        if (cut) rest = (span){cut + 6, rest.n - one.n - 6};
        one = strip(one);
        if (!one.n && !first && more) return NO;
        if (one.n && n < 2) found[n] = one;
        n += one.n > 0;
    }
    return n == 2 && (found[0].n != found[1].n || memcmp(found[0].p, found[1].p, found[0].n) != 0) ? YES : NO;
}

/* Both in small letters: whether the text begins, or ends, with what is asked for. */
static verdict at_an_end(span s, span what, bool last) {
    tn_bytes x = {0}, y = {0};
    what = strip(what);
    tn_suite_lower(&x, s.p, s.n);
    tn_suite_lower(&y, what.p, what.n);
    span a = {x.p ? x.p : "", x.n}, b = {y.p ? y.p : "", y.n};
    bool failed = x.failed || y.failed, is = !failed && (last ? ends(a, b) : begins(a, b));
    free(x.p);
    free(y.p);
    return failed ? UNKNOWN : is ? YES : NO;
}

static verdict repeat_prompt(span s, const asked *a) { return at_an_end(strip(s), a->text, false); }
static verdict end_phrase(span s, const asked *a) {
    return at_an_end(strip_letter(strip(s), '"', true, true), a->text, true);
}

static verdict no_comma(span s, const asked *a) {
    (void)a;
    return memchr(s.p, ',', s.n) ? NO : YES;
}

static verdict quotation(span s, const asked *a) {
    (void)a;
    s = strip(s);
    return s.n > 1 && s.p[0] == '"' && s.p[s.n - 1] == '"' ? YES : NO;
}

/* ---- the list ------------------------------------------------------------------------------------ */

typedef struct instruction {
    const char *id;
    verdict (*check)(span s, const asked *a);    /* NULL: it is not checked */
    const char *number, *relation, *text, *list; /* keys of kwargs that it needs */
} instruction;

static const instruction instructions[] = {
    {"keywords:existence", existence, NULL, NULL, NULL, "keywords"},
    {"keywords:frequency", frequency, "frequency", "relation", "keyword", NULL},
    {"keywords:forbidden_words", forbidden, NULL, NULL, NULL, "forbidden_words"},
    {"keywords:letter_frequency", letter_frequency, "let_frequency", "let_relation", "letter", NULL},
    {"language:response_language", NULL, NULL, NULL, NULL, NULL},
    {"length_constraints:number_sentences", NULL, NULL, NULL, NULL, NULL},
    {"length_constraints:number_paragraphs", paragraphs, "num_paragraphs", NULL, NULL, NULL},
    {"length_constraints:number_words", words, "num_words", "relation", NULL, NULL},
    {"length_constraints:nth_paragraph_first_word", first_word, "num_paragraphs", NULL, "first_word", NULL},
    {"detectable_content:number_placeholders", placeholders, "num_placeholders", NULL, NULL, NULL},
    {"detectable_content:postscript", postscript, NULL, NULL, "postscript_marker", NULL},
    {"detectable_format:number_bullet_lists", bullets, "num_bullets", NULL, NULL, NULL},
    {"detectable_format:constrained_response", constrained, NULL, NULL, NULL, NULL},
    {"detectable_format:number_highlighted_sections", highlights, "num_highlights", NULL, NULL, NULL},
    {"detectable_format:multiple_sections", sections, "num_sections", NULL, "section_spliter", NULL},
    {"detectable_format:json_format", json_format, NULL, NULL, NULL, NULL},
    {"detectable_format:title", title, NULL, NULL, NULL, NULL},
    {"combination:two_responses", two_responses, NULL, NULL, NULL, NULL},
    {"combination:repeat_prompt", repeat_prompt, NULL, NULL, "prompt_to_repeat", NULL},
    {"startend:end_checker", end_phrase, NULL, NULL, "end_phrase", NULL},
    {"change_case:capital_word_frequency", NULL, NULL, NULL, NULL, NULL},
    {"change_case:english_capital", NULL, NULL, NULL, NULL, NULL},
    {"change_case:english_lowercase", NULL, NULL, NULL, NULL, NULL},
    {"punctuation:no_comma", no_comma, NULL, NULL, NULL, NULL},
    {"startend:quotation", quotation, NULL, NULL, NULL, NULL}};

static const instruction *named(const char *id) {
    for (size_t i = 0; id && i < sizeof instructions / sizeof *instructions; i++)
        if (!strcmp(instructions[i].id, id)) return &instructions[i];
    return NULL;
}

static bool is_relation(const json_t *v) {
    const char *p = json_string_value(v);
    return p && (!strcmp(p, "less than") || !strcmp(p, "at least"));
}

/* Words that are expressions. */
static bool compiles(const json_t *v) {
    span s = value_of(v);
    pcre2_code *code = s.n ? compile(s, PCRE2_CASELESS) : NULL;
    pcre2_code_free(code);
    return code != NULL;
}

const char *tn_ifeval_wrong(const char *id, const json_t *kwargs) {
    const instruction *x = named(id);
    const json_t *v, *number = x && x->number ? json_object_get(kwargs, x->number) : NULL;
    size_t i;
    if (!x) return "is unknown";
    if (!x->check) return NULL;
    if (x->number &&
        (!json_is_integer(number) || json_integer_value(number) < 0 || json_integer_value(number) > 1000000))
        return "needs a number";
    if (x->relation && !is_relation(json_object_get(kwargs, x->relation)))
        return "needs a relation: less than, or at least";
    if (x->text && !json_string_length(json_object_get(kwargs, x->text))) return "needs a text";
    if ((x->check == frequency || x->check == sections) && !compiles(json_object_get(kwargs, x->text)))
        return "has a text that is no regular expression";
    if (x->list && !json_array_size(json_object_get(kwargs, x->list))) return "needs a list of words";
    if (x->list)
        json_array_foreach(json_object_get(kwargs, x->list), i,
                           v) if (!compiles(v)) return "has a word that is no regular expression";
    if (x->check == first_word) {
        v = json_object_get(kwargs, "nth_paragraph");
        if (!json_is_integer(v) || json_integer_value(v) < 1 ||
            json_integer_value(v) > json_integer_value(number))
            return "needs the number of a paragraph";
    }
    return NULL;
}

static verdict follows(const instruction *x, const json_t *kwargs, span s) {
    if (!x || !x->check) return UNKNOWN;
    if (!strip(s).n) return NO;
    const char *relation = x->relation ? json_string_value(json_object_get(kwargs, x->relation)) : NULL;
    const json_t *text = x->text ? json_object_get(kwargs, x->text) : NULL;
    const asked a = {.kwargs = kwargs,
                     .n = x->number ? (long)json_integer_value(json_object_get(kwargs, x->number)) : 0,
                     .less = relation && !strcmp(relation, "less than"),
                     .text = text ? value_of(text) : (span){"", 0},
                     .list = x->list ? json_object_get(kwargs, x->list) : NULL};
    return x->check(s, &a);
}

/* The answer as it is; without its first line, its last, both; and each of them without asterisks. */
enum { VARIANTS = 8 };
static bool variants(span s, tn_bytes out[VARIANTS]) {
    const char *first = memchr(s.p, '\n', s.n), *last = NULL;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '\n') last = s.p + i;
    span cut[4] = {s, first ? strip((span){first + 1, s.n - (size_t)(first + 1 - s.p)}) : (span){"", 0},
                   last ? strip((span){s.p, (size_t)(last - s.p)}) : (span){"", 0},
                   first && last > first ? strip((span){first + 1, (size_t)(last - first - 1)})
                                         : (span){"", 0}};
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        tn_bytes_add(&out[i], cut[i].p, cut[i].n);
        tn_bytes_add(&out[4 + i], "", 0);
        for (size_t k = 0; k < cut[i].n; k++)
            if (cut[i].p[k] != '*') tn_bytes_add(&out[4 + i], cut[i].p + k, 1);
        ok = ok && !out[i].failed && !out[4 + i].failed;
    }
    return ok;
}

static json_t *mark(const char *id, const json_t *kwargs, const tn_bytes text[VARIANTS]) {
    const instruction *x = named(id);
    verdict strict = follows(x, kwargs, (span){text[0].p, text[0].n}), loose = strict;
    for (int i = 1; i < VARIANTS && loose == NO; i++)
        loose = follows(x, kwargs, (span){text[i].p, text[i].n});
    json_t *v = tn_json_pack("{s:s}", "id", id);
    tn_json_set(&v, "strict", strict == UNKNOWN ? json_null() : json_boolean(strict == YES));
    tn_json_set(&v, "loose", loose == UNKNOWN ? json_null() : json_boolean(loose == YES));
    return v;
}

tern_status tn_ifeval_check(const json_t *item, const char *answer, size_t n, json_t **out, tern_error *err) {
    const json_t *ids = json_object_get(item, "instructions"), *kwargs = json_object_get(item, "kwargs"), *id;
    tn_bytes text[VARIANTS] = {{0}};
    json_t *clean = tn_json_string(answer, n); /* sound UTF-8 */
    size_t i;
    *out = clean && variants(value_of(clean), text) ? json_array() : NULL;
    json_array_foreach(ids, i, id) if (*out)
        tn_json_append(out, mark(json_string_value(id), json_array_get(kwargs, i), text));
    for (i = 0; i < VARIANTS; i++) free(text[i].p);
    json_decref(clean);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for an answer");
    return TERN_OK;
}
