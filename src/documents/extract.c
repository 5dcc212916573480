#include "documents/extract.h"

#include "base/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* This is a growing text whose capacity is known beforehand. Callers show that what they write fits. */
typedef struct text {
    char *p;
    size_t n, cap;
    bool keep_pages; /* form feeds */
} text;

static tern_status text_open(tn_ctx *ctx, size_t cap, text *t, tern_error *err) {
    *t = (text){.cap = cap};
    t->p = tn_alloc(ctx, TN_MEM_TEXT, cap + 1, 1);
    TN_FAIL_IF(!t->p, err, TERN_E_MEMORY, "no memory for a text of %zu bytes", cap);
    return TERN_OK;
}

static void put(text *t, char c) {
    assert(t->n < t->cap);
    t->p[t->n++] = c;
}

static void put_char(text *t, uint32_t c) {
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
    assert(t->cap - t->n >= 4);
    t->n += (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)t->p + t->n);
}

static void finish(text *t, char **out, size_t *n_out) {
    t->p[t->n] = 0;
    *out = t->p;
    *n_out = t->n;
}

/* ---- encodings ------------------------------------------------------------------------------------- */

static bool has_utf16_mark(const char *b, size_t n) {
    return n >= 2 && (!memcmp(b, "\xff\xfe", 2) || !memcmp(b, "\xfe\xff", 2));
}

static bool is_control(uint32_t c) {
    return (c < 0x20 && c != '\n' && c != '\t' && c != '\r' && c != '\f') || c == 0x7f;
}

bool tn_text_is_binary(const char *bytes, size_t n) {
    if (has_utf16_mark(bytes, n)) return false;
    size_t look = n < 65536 ? n : 65536, n_control = 0;
    for (size_t i = 0; i < look; i++) {
        if (!bytes[i]) return true;
        n_control += is_control((unsigned char)bytes[i]) && bytes[i] != 0x1b;
    }
    return n_control > 1 + look / 50;
}

static bool is_utf8(const char *b, size_t n) {
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len =
            utf8proc_iterate((const utf8proc_uint8_t *)b + i, (utf8proc_ssize_t)(n - i), &c);
        if (len < 1) return false;
        i += (size_t)len;
    }
    return true;
}

/* Puts a character of plain text. Newlines become one, control characters are dropped. *cr tells that the
 * last character was a carriage return. */
static void put_plain(text *t, uint32_t c, bool *cr) {
    bool after_cr = *cr;
    *cr = c == '\r';
    if (c == '\n' && after_cr) return;
    if (c == '\r' || (c == '\f' && !t->keep_pages) || c == 0x2028 || c == 0x2029) c = '\n';
    if (is_control(c) || c == 0xfeff) return;
    put_char(t, c);
}

static tern_status decode(tn_ctx *ctx, const char *bytes, size_t n, bool keep_pages, char **out,
                          size_t *n_out, tern_error *err) {
    static const uint16_t windows_1252[32] = {0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021,
                                              0x2c6,  0x2030, 0x160,  0x2039, 0x152,  0x8d,   0x17d,  0x8f,
                                              0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                              0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};
    const unsigned char *b = (const unsigned char *)bytes;
    bool utf16 = has_utf16_mark(bytes, n), utf8 = !utf16 && is_utf8(bytes, n), cr = false;
    text t;
    /* at most 3 bytes of UTF-8 for one of Windows-1252 or two of UTF-16; put_char wants 4 free */
    TN_FAIL_IF(n > SIZE_MAX / 4, err, TERN_E_LIMIT, "a text of %zu bytes", n);
    TN_TRY(text_open(ctx, (utf8 ? n : 3 * n) + 4, &t, err));
    t.keep_pages = keep_pages;
    for (size_t i = 0; utf8 && i < n;) {
        utf8proc_int32_t c = 0;
        i += (size_t)utf8proc_iterate(b + i, (utf8proc_ssize_t)(n - i), &c);
        put_plain(&t, (uint32_t)c, &cr);
    }
    int hi = utf16 && b[0] == 0xfe ? 0 : 1;
    for (size_t i = 2; utf16 && i + 1 < n; i += 2) {
        uint32_t c = (uint32_t)b[i + hi] << 8 | b[i + 1 - hi];
        if (c >= 0xd800 && c < 0xdc00 && i + 3 < n) {
            uint32_t low = (uint32_t)b[i + 2 + hi] << 8 | b[i + 3 - hi];
            if (low >= 0xdc00 && low < 0xe000) {
                c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
                i += 2;
            }
        }
        put_plain(&t, c, &cr);
    }
    for (size_t i = 0; !utf8 && !utf16 && i < n; i++)
        put_plain(&t, b[i] >= 0x80 && b[i] < 0xa0 ? windows_1252[b[i] - 0x80] : b[i], &cr);
    finish(&t, out, n_out);
    return TERN_OK;
}

tern_status tn_text_decode(tn_ctx *ctx, const char *bytes, size_t n, char **out, size_t *n_out,
                           tern_error *err) {
    return decode(ctx, bytes, n, false, out, n_out, err);
}

tern_status tn_text_decode_pages(tn_ctx *ctx, const char *bytes, size_t n, char **out, size_t *n_out,
                                 tern_error *err) {
    return decode(ctx, bytes, n, true, out, n_out, err);
}

/* ---- HTML ------------------------------------------------------------------------------------------ */

/* These are named characters, sorted. Those not here stay as they are written. */
static const struct {
    const char *name;
    uint16_t c;
} entities[] = {
    {"AElig", 0xc6},    {"Aacute", 0xc1},   {"Acirc", 0xc2},    {"Agrave", 0xc0},   {"Alpha", 0x391},
    {"Aring", 0xc5},    {"Atilde", 0xc3},   {"Auml", 0xc4},     {"Beta", 0x392},    {"Ccedil", 0xc7},
    {"Chi", 0x3a7},     {"Dagger", 0x2021}, {"Delta", 0x394},   {"ETH", 0xd0},      {"Eacute", 0xc9},
    {"Ecirc", 0xca},    {"Egrave", 0xc8},   {"Epsilon", 0x395}, {"Eta", 0x397},     {"Euml", 0xcb},
    {"Gamma", 0x393},   {"Iacute", 0xcd},   {"Icirc", 0xce},    {"Igrave", 0xcc},   {"Iota", 0x399},
    {"Iuml", 0xcf},     {"Kappa", 0x39a},   {"Lambda", 0x39b},  {"Mu", 0x39c},      {"Ntilde", 0xd1},
    {"Nu", 0x39d},      {"OElig", 0x152},   {"Oacute", 0xd3},   {"Ocirc", 0xd4},    {"Ograve", 0xd2},
    {"Omega", 0x3a9},   {"Omicron", 0x39f}, {"Oslash", 0xd8},   {"Otilde", 0xd5},   {"Ouml", 0xd6},
    {"Phi", 0x3a6},     {"Pi", 0x3a0},      {"Prime", 0x2033},  {"Psi", 0x3a8},     {"Rho", 0x3a1},
    {"Scaron", 0x160},  {"Sigma", 0x3a3},   {"THORN", 0xde},    {"Tau", 0x3a4},     {"Theta", 0x398},
    {"Uacute", 0xda},   {"Ucirc", 0xdb},    {"Ugrave", 0xd9},   {"Upsilon", 0x3a5}, {"Uuml", 0xdc},
    {"Xi", 0x39e},      {"Yacute", 0xdd},   {"Yuml", 0x178},    {"Zeta", 0x396},    {"aacute", 0xe1},
    {"acirc", 0xe2},    {"acute", 0xb4},    {"aelig", 0xe6},    {"agrave", 0xe0},   {"alpha", 0x3b1},
    {"amp", '&'},       {"and", 0x2227},    {"ang", 0x2220},    {"apos", '\''},     {"aring", 0xe5},
    {"asymp", 0x2248},  {"atilde", 0xe3},   {"auml", 0xe4},     {"bdquo", 0x201e},  {"beta", 0x3b2},
    {"brvbar", 0xa6},   {"bull", 0x2022},   {"cap", 0x2229},    {"ccedil", 0xe7},   {"cedil", 0xb8},
    {"cent", 0xa2},     {"chi", 0x3c7},     {"circ", 0x2c6},    {"cong", 0x2245},   {"copy", 0xa9},
    {"cup", 0x222a},    {"curren", 0xa4},   {"dArr", 0x21d3},   {"dagger", 0x2020}, {"darr", 0x2193},
    {"deg", 0xb0},      {"delta", 0x3b4},   {"divide", 0xf7},   {"eacute", 0xe9},   {"ecirc", 0xea},
    {"egrave", 0xe8},   {"empty", 0x2205},  {"emsp", 0x20},     {"ensp", 0x20},     {"epsilon", 0x3b5},
    {"equiv", 0x2261},  {"eta", 0x3b7},     {"eth", 0xf0},      {"euml", 0xeb},     {"euro", 0x20ac},
    {"exist", 0x2203},  {"fnof", 0x192},    {"forall", 0x2200}, {"frac12", 0xbd},   {"frac14", 0xbc},
    {"frac34", 0xbe},   {"frasl", 0x2044},  {"gamma", 0x3b3},   {"ge", 0x2265},     {"gt", '>'},
    {"hArr", 0x21d4},   {"harr", 0x2194},   {"hellip", 0x2026}, {"iacute", 0xed},   {"icirc", 0xee},
    {"iexcl", 0xa1},    {"igrave", 0xec},   {"infin", 0x221e},  {"int", 0x222b},    {"iota", 0x3b9},
    {"iquest", 0xbf},   {"isin", 0x2208},   {"iuml", 0xef},     {"kappa", 0x3ba},   {"lArr", 0x21d0},
    {"lambda", 0x3bb},  {"laquo", 0xab},    {"larr", 0x2190},   {"ldquo", 0x201c},  {"le", 0x2264},
    {"lowast", 0x2217}, {"loz", 0x25ca},    {"lsaquo", 0x2039}, {"lsquo", 0x2018},  {"lt", '<'},
    {"macr", 0xaf},     {"mdash", 0x2014},  {"micro", 0xb5},    {"middot", 0xb7},   {"minus", 0x2212},
    {"mu", 0x3bc},      {"nabla", 0x2207},  {"nbsp", 0x20},     {"ndash", 0x2013},  {"ne", 0x2260},
    {"ni", 0x220b},     {"not", 0xac},      {"notin", 0x2209},  {"ntilde", 0xf1},   {"nu", 0x3bd},
    {"oacute", 0xf3},   {"ocirc", 0xf4},    {"oelig", 0x153},   {"ograve", 0xf2},   {"omega", 0x3c9},
    {"omicron", 0x3bf}, {"oplus", 0x2295},  {"or", 0x2228},     {"ordf", 0xaa},     {"ordm", 0xba},
    {"oslash", 0xf8},   {"otilde", 0xf5},   {"ouml", 0xf6},     {"para", 0xb6},     {"part", 0x2202},
    {"permil", 0x2030}, {"perp", 0x22a5},   {"phi", 0x3c6},     {"pi", 0x3c0},      {"plusmn", 0xb1},
    {"pound", 0xa3},    {"prime", 0x2032},  {"prod", 0x220f},   {"prop", 0x221d},   {"psi", 0x3c8},
    {"quot", '"'},      {"rArr", 0x21d2},   {"radic", 0x221a},  {"raquo", 0xbb},    {"rarr", 0x2192},
    {"rdquo", 0x201d},  {"reg", 0xae},      {"rho", 0x3c1},     {"rsaquo", 0x203a}, {"rsquo", 0x2019},
    {"sbquo", 0x201a},  {"scaron", 0x161},  {"sect", 0xa7},     {"sigma", 0x3c3},   {"sigmaf", 0x3c2},
    {"sim", 0x223c},    {"sub", 0x2282},    {"sube", 0x2286},   {"sum", 0x2211},    {"sup", 0x2283},
    {"sup1", 0xb9},     {"sup2", 0xb2},     {"sup3", 0xb3},     {"supe", 0x2287},   {"szlig", 0xdf},
    {"tau", 0x3c4},     {"there4", 0x2234}, {"theta", 0x3b8},   {"thinsp", 0x20},   {"thorn", 0xfe},
    {"tilde", 0x2dc},   {"times", 0xd7},    {"trade", 0x2122},  {"uArr", 0x21d1},   {"uacute", 0xfa},
    {"uarr", 0x2191},   {"ucirc", 0xfb},    {"ugrave", 0xf9},   {"uml", 0xa8},      {"upsilon", 0x3c5},
    {"uuml", 0xfc},     {"xi", 0x3be},      {"yacute", 0xfd},   {"yen", 0xa5},      {"yuml", 0xff},
    {"zeta", 0x3b6},
};

static int by_name(const void *key, const void *e) { return strcmp(key, *(const char *const *)e); }

/* Reads the character of "&...;" at p[0..n). Returns the bytes that it takes, 0 when it is no entity. */
static size_t entity(const char *p, size_t n, uint32_t *c) {
    size_t i = 1;
    if (n > 2 && p[1] == '#') {
        bool hex = p[2] == 'x' || p[2] == 'X';
        uint32_t v = 0;
        size_t first = i = hex ? 3 : 2;
        for (; i < n; i++) {
            char ch = p[i];
            uint32_t digit = ch >= '0' && ch <= '9'                        ? (uint32_t)(ch - '0')
                             : hex && (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (uint32_t)((ch | 32) - 'a' + 10)
                                                                           : 99;
            if (digit == 99) break;
            v = v > 0x10ffff ? v : v * (hex ? 16 : 10) + digit;
        }
        if (i == first) return 0;
        *c = v == 0xa0 ? ' ' : is_control(v) ? 0xfffd : v;
        return i < n && p[i] == ';' ? i + 1 : i;
    }
    char name[12];
    while (i < n && i < sizeof name &&
           (((p[i] | 32) >= 'a' && (p[i] | 32) <= 'z') || (p[i] >= '0' && p[i] <= '9'))) {
        name[i - 1] = p[i];
        i++;
    }
    if (i == 1 || i >= n || p[i] != ';') return 0;
    name[i - 1] = 0;
    const void *e =
        bsearch(name, entities, sizeof entities / sizeof entities[0], sizeof entities[0], by_name);
    if (!e) return 0;
    *c = entities[((const char *)e - (const char *)entities) / (ptrdiff_t)sizeof entities[0]].c;
    return i + 1;
}

enum { TAG_NAME = 16 };

static size_t tag_name(const char *p, size_t n, char *name) {
    size_t i = 0;
    for (; i < n && i < TAG_NAME - 1; i++) {
        char c = p[i];
        if (c >= 'A' && c <= 'Z') c = (char)(c | 32);
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) break;
        name[i] = c;
    }
    name[i] = 0;
    return i;
}

static bool among(const char *name, const char *list) {
    size_t n = strlen(name);
    for (const char *p = list; n && (p = strstr(p, name)); p += n) {
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
    }
    return false;
}

/* Counts the bytes of the tag at p ("<..."), quoted attribute values included. */
static size_t tag_bytes(const char *p, size_t n) {
    char quote = 0;
    for (size_t i = 1; i < n; i++) {
        if (quote) {
            if (p[i] == quote) quote = 0;
        } else if ((p[i] == '"' || p[i] == '\'') && p[i - 1] == '=') {
            quote = p[i];
        } else if (p[i] == '>') {
            return i + 1;
        }
    }
    return n;
}

/* Finds where "</name" begins; n when it does not. */
static size_t find_end_tag(const char *p, size_t n, const char *name) {
    size_t len = strlen(name);
    for (size_t i = 0; i + 2 + len <= n; i++) {
        const char *lt = memchr(p + i, '<', n - i);
        if (!lt) return n;
        i = (size_t)(lt - p);
        if (i + 2 + len <= n && p[i + 1] == '/' && !strncasecmp(p + i + 2, name, len)) return i;
    }
    return n;
}

typedef struct page {
    text t;
    int want_newlines; /* before the next character: 1 a line, 2 a paragraph */
    bool want_space, in_pre;
} page;

static void page_char(page *g, uint32_t c) {
    if (!g->in_pre && (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f')) {
        g->want_space = true;
        return;
    }
    if (g->want_newlines) {
        for (int i = 0; i < g->want_newlines && g->t.n; i++) put(&g->t, '\n');
    } else if (g->want_space && g->t.n && g->t.p[g->t.n - 1] != '\n') {
        put(&g->t, ' ');
    }
    g->want_newlines = 0;
    g->want_space = false;
    put_char(&g->t, c);
}

static void page_break(page *g, int newlines) {
    if (newlines > g->want_newlines) g->want_newlines = newlines;
    g->want_space = false;
}

/* Handles the tag at p. Returns the bytes to skip. */
static size_t page_tag(page *g, const char *p, size_t n) {
    if (n >= 4 && !memcmp(p, "<!--", 4)) {
        const char *end = memmem(p + 4, n - 4, "-->", 3);
        return end ? (size_t)(end - p) + 3 : n;
    }
    char name[TAG_NAME];
    bool closes = n > 1 && p[1] == '/';
    size_t at = closes ? 2 : 1, len = tag_name(p + at, n - at, name);
    if (!len) {
        if (n > 1 && (p[1] == '!' || p[1] == '?' || p[1] == '/')) return tag_bytes(p, n);
        page_char(g, '<'); /* a less-than sign */
        return 1;
    }
    size_t skip = tag_bytes(p, n);
    if (!closes && among(name, "script style template noscript svg iframe object select head")) {
        size_t end = skip + find_end_tag(p + skip, n - skip, name);
        return end < n ? end : n; /* the end tag itself comes next */
    }
    if (!strcmp(name, "pre") || !strcmp(name, "textarea")) {
        page_break(g, 2);
        g->in_pre = !closes;
    } else if (!strcmp(name, "br") || among(name, "tr li dt dd option")) {
        page_break(g, 1);
        if (!closes && !strcmp(name, "li")) {
            page_char(g, '-');
            g->want_space = true;
        }
    } else if (among(name, "td th")) {
        g->want_space = true;
    } else if (among(name, "p div h1 h2 h3 h4 h5 h6 ul ol dl table section article header footer main nav "
                           "aside blockquote figure figcaption form hr title body address details summary")) {
        page_break(g, 2);
    }
    return skip;
}

tern_status tn_text_from_html(tn_ctx *ctx, const char *html, size_t n, char **out, size_t *n_out,
                              tern_error *err) {
    page g = {0};
    /* No construct makes more bytes than it has, except the space or two newlines owed before a character:
     * tags that owe them have at least as many bytes, and "<li>" owes "\n- ". put_char wants 4 free. */
    TN_FAIL_IF(n > SIZE_MAX / 2, err, TERN_E_LIMIT, "a page of %zu bytes", n);
    TN_TRY(text_open(ctx, n + 8, &g.t, err));
    for (size_t i = 0; i < n;) {
        uint32_t c = (unsigned char)html[i];
        size_t len = 0;
        if (c == '<') {
            i += page_tag(&g, html + i, n - i);
            continue;
        }
        if (c == '&') len = entity(html + i, n - i, &c);
        if (!len) {
            utf8proc_int32_t u;
            utf8proc_ssize_t got =
                utf8proc_iterate((const utf8proc_uint8_t *)html + i, (utf8proc_ssize_t)(n - i), &u);
            c = got > 0 ? (uint32_t)u : '?';
            len = got > 0 ? (size_t)got : 1;
        }
        page_char(&g, c == 0xa0 ? ' ' : c);
        i += len;
    }
    finish(&g.t, out, n_out);
    return TERN_OK;
}
