/* Compiles strings of JSON: characters, keys, formats, values written out. */
#include "text/grammar/schema_impl.h"

#include "base/status.h"
#include "text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_gx made(tn_sc *c, tn_gx *kept, tn_gx x) { /* as a rule, kept */
    tn_grule r = tn_gb_rule(c->b, "", 0);
    tn_gb_define(c->b, r, x);
    return *kept = tn_gx_rule(c->b, r);
}

/* Compiles white space: nothing, one space, or a new line and its indentation. */
tn_gx tn_sc_ws(tn_sc *c) {
    if (c->ws) return c->ws;
    tn_gb *b = c->b;
    tn_gx line = TN_GX_SEQ(
        b, tn_gx_str(b, "\n"),
        TN_GX_ALT(b, tn_gx_rep(b, tn_gx_str(b, " "), 0, 32), tn_gx_rep(b, tn_gx_str(b, "\t"), 1, 16)));
    return made(c, &c->ws, TN_GX_ALT(b, TN_GX_EMPTY, tn_gx_str(b, " "), line));
}

static const tn_grange raw_not[] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};

static tn_gx hex_digit(tn_gb *b, const char *ranges) { /* pairs of ends */
    tn_grange r[8];
    size_t n = 0;
    for (; ranges[2 * n]; n++) r[n] = (tn_grange){(uint32_t)ranges[2 * n], (uint32_t)ranges[2 * n + 1]};
    return tn_gx_set(b, r, n);
}

/* Compiles one code point of a string: raw or escaped. */
static tn_gx character(tn_sc *c) {
    tn_gb *b = c->b;
    static const tn_grange simple[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                                       {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
    tn_gx h = hex_digit(b, "09afAF"), d = hex_digit(b, "ddDD"), u = tn_gx_str(b, "\\u");
    tn_gx hh = tn_gx_rep(b, h, 2, 2), hhh = tn_gx_rep(b, h, 3, 3);
    tn_gx alone = TN_GX_ALT(b, TN_GX_SEQ(b, hex_digit(b, "09acACefEF"), hhh), /* not half of a pair */
                            TN_GX_SEQ(b, d, hex_digit(b, "07"), hh));
    tn_gx pair = TN_GX_SEQ(b, d, hex_digit(b, "89abAB"), hh, u, d, hex_digit(b, "cfCF"), hh);
    return TN_GX_ALT(b, tn_gx_not(b, raw_not, 3), TN_GX_SEQ(b, tn_gx_str(b, "\\"), tn_gx_set(b, simple, 8)),
                     TN_GX_SEQ(b, u, alone), TN_GX_SEQ(b, u, pair));
}

tn_gx tn_sc_one_char(tn_sc *c) { return c->one_char ? c->one_char : made(c, &c->one_char, character(c)); }

tn_gx tn_sc_any_chars(tn_sc *c) {
    return c->chars ? c->chars : made(c, &c->chars, tn_gx_rep(c->b, character(c), 0, TN_GX_INF));
}

tn_gx tn_sc_any_string(tn_sc *c) {
    if (c->string) return c->string;
    tn_gx quote = tn_gx_str(c->b, "\"");
    return made(c, &c->string, TN_GX_SEQ(c->b, quote, tn_gx_rep(c->b, character(c), 0, TN_GX_INF), quote));
}

/* Writes a code point as it appears in a string, in at most 6 bytes, with lower- or upper-case hexadecimal
 * digits. */
static size_t written(uint32_t cp, bool large, char out[8]) {
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (size_t i = 0; names[i]; i += 2) {
        if ((uint32_t)names[i] != cp) continue;
        out[0] = '\\';
        out[1] = names[i + 1];
        return 2;
    }
    if (cp < 0x20) return (size_t)snprintf(out, 8, large ? "\\u%04X" : "\\u%04x", cp);
    return tn_utf8_encode(cp, (uint8_t *)out);
}

tn_gx tn_sc_char_of(tn_sc *c, const tn_grange *given, size_t n) {
    tn_grange *r = tn_alloc(c->b->ctx, TN_MEM_TEXT, 3 * n + 16, sizeof *r), *no = r + n, *raw = no + n + 6;
    if (!r) return tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    if (n) memcpy(r, given, n * sizeof *r);
    n = tn_granges_normal(r, n);
    size_t n_no = tn_granges_complement(r, n, no);
    memcpy(no + n_no, raw_not, sizeof raw_not);
    n_no = tn_granges_normal(no, n_no + 3);
    size_t n_raw = tn_granges_complement(no, n_no, raw);
    tn_gx x = n_raw ? tn_gx_set(c->b, raw, n_raw) : TN_GX_NEVER;
    for (uint32_t cp = 0; cp < 0x60; cp++) { /* those that are never raw */
        bool in = false;
        for (size_t i = 0; i < n && !in; i++) in = r[i].lo <= cp && cp <= r[i].hi;
        if (!in || (cp >= 0x20 && cp != '"' && cp != '\\')) continue;
        char small[8], large[8];
        size_t n_small = written(cp, false, small), n_large = written(cp, true, large);
        x = TN_GX_ALT(c->b, x, tn_gx_text(c->b, small, n_small));
        if (n_large != n_small || memcmp(small, large, n_small))
            x = TN_GX_ALT(c->b, x, tn_gx_text(c->b, large, n_large));
    }
    tn_free(c->b->ctx, r);
    return x;
}

tn_gx tn_sc_quoted(tn_sc *c, const char *text, size_t n_bytes) {
    tn_gx x = tn_gx_str(c->b, "\"");
    const uint8_t *p = (const uint8_t *)text, *end = p + n_bytes;
    char run[256];
    size_t n = 0;
    while (p < end) {
        uint32_t cp = 0;
        size_t k = tn_utf8_decode(p, end, &cp);
        if (!k) return tn_sc_fail(c, TERN_E_INVALID, "a text is not valid UTF-8");
        p += k;
        bool hex = cp < 0x20 && !strchr("\b\f\n\r\t", (int)cp);
        if (hex || n + 8 > sizeof run) {
            x = TN_GX_SEQ(c->b, x, tn_gx_text(c->b, run, n));
            n = 0;
        }
        if (hex) x = TN_GX_SEQ(c->b, x, tn_sc_char_of(c, &(tn_grange){cp, cp}, 1));
        else n += written(cp, false, run + n);
    }
    return TN_GX_SEQ(c->b, x, tn_gx_text(c->b, run, n), tn_gx_str(c->b, "\""));
}

/* ---- a key that is none of some names ------------------------------------------------------------- */

typedef struct name_rest {
    const uint8_t *p, *end;
} name_rest;

static int by_name(const void *a, const void *b) {
    const name_rest *x = a, *y = b;
    size_t n = (size_t)(x->end - x->p), m = (size_t)(y->end - y->p);
    int k = memcmp(x->p, y->p, n < m ? n : m);
    return k ? k : n < m ? -1 : n > m;
}

/* Compiles the remaining contents and the closing quote. They must not equal any of the rests v[0..n), which
 * are sorted. Makes one rule per character of the names. */
static tn_gx none_of(tn_sc *c, name_rest *v, size_t n, int depth) {
    tn_gb *b = c->b;
    tn_gx end = tn_gx_str(b, "\""), x = TN_GX_NEVER;
    if (depth > 200)
        return tn_sc_refuse(c, "'additionalProperties' beside a name of more than 200 characters");
    size_t i = 0;
    if (n && v[0].p == v[0].end) i = 1; /* here a name would be complete */
    else x = end;
    tn_grange *taken = tn_alloc(b->ctx, TN_MEM_TEXT, 3 * n + 8, sizeof *taken);
    if (!taken) return tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    size_t n_taken = 0;
    while (i < n && c->st == TERN_OK) {
        if (v[i].p == v[i].end) { /* the same name again */
            i++;
            continue;
        }
        uint32_t cp = 0, other = 0;
        size_t k = tn_utf8_decode(v[i].p, v[i].end, &cp), j = i;
        if (!k) {
            tn_sc_fail(c, TERN_E_INVALID, "a name is not valid UTF-8");
            break;
        }
        for (; j < n && tn_utf8_decode(v[j].p, v[j].end, &other) && other == cp; j++) v[j].p += k;
        tn_grule r = tn_gb_rule(b, "", 0);
        tn_gb_define(b, r, none_of(c, v + i, j - i, depth + 1));
        x = TN_GX_ALT(b, x, TN_GX_SEQ(b, tn_sc_char_of(c, &(tn_grange){cp, cp}, 1), tn_gx_rule(b, r)));
        taken[n_taken++] = (tn_grange){cp, cp};
        i = j;
    }
    n_taken = tn_granges_normal(taken, n_taken);
    size_t n_free = tn_granges_complement(taken, n_taken, taken + n_taken);
    tn_gx off = tn_sc_char_of(c, taken + n_taken, n_free);
    tn_free(b->ctx, taken);
    if (!c->key_end)
        made(c, &c->key_end, TN_GX_SEQ(b, tn_gx_rep(b, character(c), 0, TN_GX_INF), tn_gx_str(b, "\"")));
    return TN_GX_ALT(b, x, TN_GX_SEQ(b, off, c->key_end));
}

tn_gx tn_sc_key_but(tn_sc *c, const char *const *names, size_t n) {
    if (!n) return tn_sc_any_string(c);
    name_rest *v = tn_alloc(c->b->ctx, TN_MEM_TEXT, n, sizeof *v);
    if (!v) return tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    for (size_t i = 0; i < n; i++)
        v[i] = (name_rest){(const uint8_t *)names[i], (const uint8_t *)names[i] + strlen(names[i])};
    qsort(v, n, sizeof *v, by_name);
    tn_gx x = none_of(c, v, n, 0);
    tn_free(c->b->ctx, v);
    return TN_GX_SEQ(c->b, tn_gx_str(c->b, "\""), x);
}

/* ---- formats: patterns of what their RFCs allow ---------------------------------------------------- */

#define YEAR4                                                                                                \
    "(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26]))|(?:[02468][048]|[13579][26])00)" /* leap years */
#define DATE                                                                                                 \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-" \
    "(?:0[1-9]|1[0-9]|2[0-8]))|" YEAR4 "-02-29)"
#define ZONE "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define TIME                                                                                                 \
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?" ZONE                                       \
    "|23:59:60(?:\\.[0-9]+)?(?:[zZ]|[+-]00:00))"
#define OCTET "(?:25[0-5]|(?:2[0-4]|1[0-9]|[1-9])?[0-9])"

#define ALNUM "[0-9A-Za-z]{1,12}"
#define LABEL ALNUM "(?:-" ALNUM "){0,2}" /* at most 38 letters; "--" is for encoded names */
#define HOSTNAME LABEL "(?:\\." LABEL "){0,3}"
#define ATOM "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]{1,20}"
#define EMAIL ATOM "(?:\\." ATOM "){0,2}@" HOSTNAME
#define HEX "[\\da-fA-F]"
#define H16 HEX "{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" OCTET "(?:\\." OCTET "){3})"
#define BEFORE(n) "(?:(?:" H16 ":){0," n "}" H16 ")?::"
#define IPV6 /* RFC 3986 */                                                                                  \
    "(?:(?:(?:" H16 ":){6}|::(?:" H16 ":){5}|(?:" H16 ")?::(?:" H16                                          \
    ":){4}|" BEFORE("1") "(?:" H16 ":){3}|" BEFORE("2") "(?:" H16 ":){2}|" BEFORE("3") H16                   \
        ":|" BEFORE("4") ")" LS32 "|" BEFORE("5") H16 "|" BEFORE("6") ")"
#define DIGITS "[0-9]{1,9}"
#define DAYS DIGITS "D"
#define MONTHS DIGITS "M(?:" DAYS ")?"
#define SECONDS DIGITS "S"
#define MINUTES DIGITS "M(?:" SECONDS ")?"
#define CLOCK "T(?:" DIGITS "H(?:" MINUTES ")?|" MINUTES "|" SECONDS ")"
#define DURATION /* RFC 3339, appendix A */                                                                  \
    "P(?:(?:" DIGITS "Y(?:" MONTHS ")?|" MONTHS "|" DAYS ")(?:" CLOCK ")?|" CLOCK "|" DIGITS "W)"
#define UNIT(more) "(?:[0-9A-Za-z._~!$&'()*+,;=" more "-]|%" HEX "{2})"
#define PCHAR UNIT(":@")
#define URI /* RFC 3986, without user names */                                                               \
    "[A-Za-z][0-9A-Za-z+.-]*:(?://(?:\\[" IPV6                                                               \
    "\\]|" UNIT("") "*)(?::[0-9]{0,5})?(?:/" PCHAR "*)*|/?(?:" PCHAR "+(?:/" PCHAR                           \
                    "*)*)?)(?:\\?" UNIT(":@/?") "*)?(?:#" UNIT(":@/?") "*)?"

#define UUID(version) /* RFC 9562; pydantic's names */                                                       \
    "^" HEX "{8}-" HEX "{4}-" version HEX "{3}-[89abAB]" HEX "{3}-" HEX "{12}$"
#define POINTER "(?:/(?:[^~/]|~[01])*)*"

const char *tn_sc_format_pattern(const char *name) {
    static const struct {
        const char *name, *pattern;
    } known[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "[tT]" TIME "$"},
        {"uuid", "^" HEX "{8}(?:-" HEX "{4}){3}-" HEX "{12}$"},
        {"uuid1", UUID("1")},
        {"uuid3", UUID("3")},
        {"uuid4", UUID("4")},
        {"uuid5", UUID("5")},
        {"uuid6", UUID("6")},
        {"uuid7", UUID("7")},
        {"uuid8", UUID("8")},
        {"ipv4", "^" OCTET "(?:\\." OCTET "){3}$"},
        {"ipv6", "^" IPV6 "$"},
        {"hostname", "^" HOSTNAME "$"},
        {"email", "^" EMAIL "$"},
        {"duration", "^" DURATION "$"},
        {"uri", "^" URI "$"},
        {"json-pointer", "^" POINTER "$"},
        {"relative-json-pointer", "^(?:0|[1-9][0-9]*)(?:#|" POINTER ")$"},
        {"jwt", "^[\\w-]+\\.[\\w-]+\\.[\\w-]*$"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) return known[i].pattern;
    return NULL;
}

/* ---- values written out --------------------------------------------------------------------------- */

static tn_gx number_value(tn_sc *c, const json_t *v) {
    char buf[400];
    if (json_is_integer(v)) {
        snprintf(buf, sizeof buf, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    } else {
        double x = json_real_value(v);
        if (x == floor(x) && fabs(x) < 1e15) {
            snprintf(buf, sizeof buf, "%.0f", x == 0 ? 0.0 : x);
        } else {
            for (int digits = 1; digits <= 17; digits++) { /* the shortest form that reads back the same */
                snprintf(buf, sizeof buf, "%.*g", digits, x);
                if (strtod(buf, NULL) == x) break;
            }
        }
    }
    return tn_gx_str(c->b, buf);
}

static int by_key(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static tn_gx object_value(tn_sc *c, const json_t *v) {
    tn_gx x = TN_GX_SEQ(c->b, tn_gx_str(c->b, "{"), tn_sc_ws(c));
    size_t n = json_object_size(v), i = 0;
    const char **names = tn_alloc(c->b->ctx, TN_MEM_TEXT, n, sizeof *names);
    if (!names) return tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    const char *name;
    json_t *w;
    json_object_foreach((json_t *)(uintptr_t)v, name, w) names[i++] = name;
    if (n) qsort(names, n, sizeof *names, by_key);
    for (i = 0; i < n; i++) {
        if (i) x = TN_GX_SEQ(c->b, x, tn_gx_str(c->b, ","), tn_sc_ws(c));
        x = TN_GX_SEQ(c->b, x, tn_sc_quoted(c, names[i], strlen(names[i])), tn_gx_str(c->b, ":"), tn_sc_ws(c),
                      tn_sc_value(c, json_object_get(v, names[i])));
    }
    tn_free(c->b->ctx, names);
    return TN_GX_SEQ(c->b, x, tn_sc_ws(c), tn_gx_str(c->b, "}"));
}

tn_gx tn_sc_value(tn_sc *c, const json_t *v) {
    tn_gx x;
    switch (json_typeof(v)) {
    case JSON_OBJECT: return object_value(c, v);
    case JSON_ARRAY:
        x = TN_GX_SEQ(c->b, tn_gx_str(c->b, "["), tn_sc_ws(c));
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (i) x = TN_GX_SEQ(c->b, x, tn_gx_str(c->b, ","), tn_sc_ws(c));
            x = TN_GX_SEQ(c->b, x, tn_sc_value(c, json_array_get(v, i)));
        }
        return TN_GX_SEQ(c->b, x, tn_sc_ws(c), tn_gx_str(c->b, "]"));
    case JSON_STRING: return tn_sc_quoted(c, json_string_value(v), json_string_length(v));
    case JSON_INTEGER:
    case JSON_REAL: return number_value(c, v);
    case JSON_TRUE: return tn_gx_str(c->b, "true");
    case JSON_FALSE: return tn_gx_str(c->b, "false");
    case JSON_NULL: return tn_gx_str(c->b, "null");
    }
    return TN_GX_NEVER;
}
