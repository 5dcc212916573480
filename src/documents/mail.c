/* Reads e-mail messages: headers that a reader looks at, then the text of the parts (RFC 5322, MIME: RFC 2045
 * to 2047, 2231 in part).
 *
 * Of alternatives it takes the plain text, or the first that has text. Attachments are named and not opened;
 * attached messages are read. */
#include "documents/mail.h"

#include "base/hex.h"
#include "base/status.h"
#include "documents/extract.h"

#include <ctype.h>
#include <errno.h>
#include <iconv.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct span {
    const char *p;
    size_t n;
} span;

typedef struct mail {
    tn_doc_text *t;
    int n_parts;
    const char *too_much; /* why not all of it was read; NULL: it was */
    tern_error *err;
} mail;

typedef struct part {
    span body;
    char type[64], charset[32], boundary[80], encoding[24], name[128];
    bool attached;
} part;

/* ---- lines and headers ----------------------------------------------------------------------------- */

/* Returns the line at p, without its end. *rest begins the next. */
static span line_at(span s, span *rest) {
    const char *nl = s.n ? memchr(s.p, '\n', s.n) : NULL;
    size_t n = nl ? (size_t)(nl - s.p) : s.n;
    *rest = (span){s.p + n + (nl ? 1 : 0), s.n - n - (nl ? 1 : 0)};
    while (n && s.p[n - 1] == '\r') n--;
    return (span){s.p, n};
}

/* Finds the header of this name and joins its continuation lines by spaces, cut to the place there is.
 * Returns false when there is none. */
static bool header(span head, const char *name, char *dst, size_t cap) {
    size_t n_name = strlen(name), n = 0;
    bool inside = false, found = false;
    for (span rest = head; rest.n;) {
        span l = line_at(rest, &rest);
        bool more = l.n && (l.p[0] == ' ' || l.p[0] == '\t');
        if (inside && !more) break;
        size_t skip = 0;
        if (!inside) {
            if (more || l.n <= n_name || l.p[n_name] != ':' || strncasecmp(l.p, name, n_name)) continue;
            inside = found = true;
            skip = n_name + 1;
        }
        while (skip < l.n && (l.p[skip] == ' ' || l.p[skip] == '\t')) skip++;
        if (n && n + 1 < cap) dst[n++] = ' ';
        for (; skip < l.n && n + 1 < cap; skip++) dst[n++] = l.p[skip];
    }
    dst[n] = 0;
    return found;
}

/* Finds a parameter of a header's value, name=value or name="value"; "" where there is none. */
static void parameter(const char *value, const char *name, char *dst, size_t cap) {
    size_t n_name = strlen(name), n = 0;
    *dst = 0;
    for (const char *p = strchr(value, ';'); p; p = strchr(p, ';')) {
        p++;
        while (*p == ' ' || *p == '\t') p++;
        if (strncasecmp(p, name, n_name) || p[n_name] != '=') continue;
        p += n_name + 1;
        bool quoted = *p == '"';
        for (p += quoted; *p && n + 1 < cap && (quoted ? *p != '"' : *p != ';' && *p != ' '); p++) {
            if (quoted && *p == '\\' && p[1]) p++;
            dst[n++] = *p;
        }
        dst[n] = 0;
        return;
    }
}

/* Splits the head from the body. The head ends with an empty line. */
static span split_head(span s, span *body) {
    span rest = s;
    while (rest.n) {
        const char *begin = rest.p;
        span l = line_at(rest, &rest);
        if (!l.n) {
            *body = rest;
            return (span){s.p, (size_t)(begin - s.p)};
        }
    }
    *body = (span){s.p + s.n, 0};
    return s;
}

bool tn_doc_is_mail(const char *bytes, size_t n) {
    span body, head = split_head((span){bytes, n < 65536 ? n : 65536}, &body);
    char value[8];
    return header(head, "from", value, sizeof value) || header(head, "received", value, sizeof value) ||
           header(head, "mime-version", value, sizeof value);
}

/* ---- decoding -------------------------------------------------------------------------------------- */

static int base64_value(unsigned char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* dst has n / 4 * 3 + 3 bytes. What is no base64 is passed over. */
static size_t from_base64(span s, char *dst) {
    uint32_t bits = 0;
    size_t out = 0;
    int have = 0;
    for (size_t i = 0; i < s.n && s.p[i] != '='; i++) {
        int v = base64_value((unsigned char)s.p[i]);
        if (v < 0) continue;
        bits = bits << 6 | (uint32_t)v;
        have += 6;
        if (have < 8) continue;
        have -= 8;
        dst[out++] = (char)(bits >> have & 0xff);
    }
    return out;
}

/* dst has n bytes. in_header: an underscore is a space (RFC 2047). */
static size_t from_quoted(span s, bool in_header, char *dst) {
    size_t out = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != '=') {
            dst[out++] = in_header && s.p[i] == '_' ? ' ' : s.p[i];
            continue;
        }
        int hi = i + 2 < s.n ? tn_hex_digit(s.p[i + 1]) : -1, lo = hi >= 0 ? tn_hex_digit(s.p[i + 2]) : -1;
        size_t end = i + 1;
        while (end < s.n && (s.p[end] == ' ' || s.p[end] == '\t' || s.p[end] == '\r')) end++;
        if (lo >= 0) {
            dst[out++] = (char)(hi * 16 + lo);
            i += 2;
        } else if (end < s.n && s.p[end] == '\n') {
            i = end; /* a soft end of line */
        } else {
            dst[out++] = '=';
        }
    }
    return out;
}

/* Tells whether mail is written in this character set. iconv would load others as well, rare ones that were
 * found to be broken more than once, and takes flags in a name. */
static bool is_mail_charset(const char *name) {
    static const char *const families[] = {"iso-8859-", "windows-", "cp125", "koi8-", "euc-", NULL},
                             *const names[] = {"gb2312",      "gbk",    "gb18030",  "big5",     "shift_jis",
                                               "iso-2022-jp", "utf-16", "utf-16le", "utf-16be", "utf-7",
                                               "tis-620",     "latin1", NULL};
    if (name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")]) return false;
    for (size_t i = 0; families[i]; i++)
        if (!strncasecmp(name, families[i], strlen(families[i]))) return true;
    for (size_t i = 0; names[i]; i++)
        if (!strcasecmp(name, names[i])) return true;
    return false;
}

/* Converts to UTF-8 where iconv knows the character set. Else the bytes stay as they are, for tn_text_decode
 * to guess. *out is the caller's to free; NULL means that s stays. */
static tern_status to_utf8(mail *m, const char *charset, span s, char **out, size_t *n_out) {
    *out = NULL;
    if (!*charset || !strcasecmp(charset, "utf-8") || !strcasecmp(charset, "us-ascii") ||
        !is_mail_charset(charset))
        return TERN_OK;
    iconv_t cd = iconv_open("UTF-8", charset);
    if (cd == (iconv_t)-1) return TERN_OK;
    size_t cap = s.n * 4 + 16, left = cap, n_in = s.n;
    char *dst = tn_alloc(m->t->ctx, TN_MEM_TEXT, cap, 1), *to = dst, *from = (char *)s.p;
    while (dst && n_in && left >= 4) {
        if (iconv(cd, &from, &n_in, &to, &left) != (size_t)-1) break;
        if (errno == E2BIG || !n_in) break;
        *to++ = '?'; /* a byte that is none of this set */
        left--;
        from++;
        n_in--;
    }
    iconv_close(cd);
    TN_FAIL_IF(!dst, m->err, TERN_E_MEMORY, "no memory for a message");
    *out = dst;
    *n_out = cap - left;
    return TERN_OK;
}

/* Makes valid UTF-8 of a decoded text. The caller frees *out. */
static tern_status readable(mail *m, const char *charset, bool html, span s, char **out, size_t *n_out) {
    char *utf8, *plain;
    size_t n_utf8 = 0, n_plain;
    TN_TRY(to_utf8(m, charset, s, &utf8, &n_utf8));
    tern_status st =
        tn_text_decode(m->t->ctx, utf8 ? utf8 : s.p, utf8 ? n_utf8 : s.n, &plain, &n_plain, m->err);
    tn_free(m->t->ctx, utf8);
    TN_TRY(st);
    if (!html) {
        *out = plain;
        *n_out = n_plain;
        return TERN_OK;
    }
    st = tn_text_from_html(m->t->ctx, plain, n_plain, out, n_out, m->err);
    tn_free(m->t->ctx, plain);
    return st;
}

/* ---- what a reader sees ---------------------------------------------------------------------------- */

/* Reads an encoded word "=?charset?B or Q?text?=" at p. Returns the bytes that it takes, 0 when there is
 * none. */
static size_t encoded_word(mail *m, const char *p, tern_status *st) {
    char charset[32], bytes[512], kind = 0;
    const char *a = strchr(p + 2, '?'), *b = a && a[1] && a[2] == '?' ? a + 3 : NULL,
               *end = b ? strstr(b, "?=") : NULL;
    if (!end || (size_t)(a - p - 2) >= sizeof charset || (size_t)(end - b) > sizeof bytes - 8) return 0;
    memcpy(charset, p + 2, (size_t)(a - p - 2));
    charset[a - p - 2] = 0;
    charset[strcspn(charset, "*")] = 0; /* a language may follow */
    kind = (char)(a[1] | 32);
    span s = {b, (size_t)(end - b)};
    if (kind != 'b' && kind != 'q') return 0;
    size_t n = kind == 'b' ? from_base64(s, bytes) : from_quoted(s, true, bytes), n_out = 0;
    char *out = NULL;
    *st = readable(m, charset, false, (span){bytes, n}, &out, &n_out);
    if (*st == TERN_OK) tn_doc_put(m->t, out, n_out);
    tn_free(m->t->ctx, out);
    return (size_t)(end + 2 - p);
}

static tern_status put_decoded(mail *m, const char *value) {
    tern_status st = TERN_OK;
    for (const char *p = value; *p && st == TERN_OK;) {
        size_t skip = p[0] == '=' && p[1] == '?' ? encoded_word(m, p, &st) : 0;
        if (skip) {
            p += skip;
            size_t blank = strspn(p, " \t");
            if (blank && p[blank] == '=' && p[blank + 1] == '?') p += blank; /* blanks between words go */
            continue;
        }
        size_t n = strcspn(p + 1, "=") + 1;
        char *out = NULL;
        size_t n_out;
        st = readable(m, "", false, (span){p, n}, &out, &n_out);
        if (st == TERN_OK) tn_doc_put(m->t, out, n_out);
        tn_free(m->t->ctx, out);
        p += n;
    }
    return st;
}

static tern_status put_headers(mail *m, span head) {
    static const char *const names[] = {"Subject", "From", "To", "Cc", "Date"};
    char value[2048];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!header(head, names[i], value, sizeof value) || !*value) continue;
        tn_doc_put_str(m->t, names[i]);
        tn_doc_put(m->t, ": ", 2);
        TN_TRY(put_decoded(m, value));
        tn_doc_break(m->t, 1);
    }
    tn_doc_break(m->t, 2);
    return TERN_OK;
}

/* Undoes the transfer encoding. The caller frees *out; NULL means that the body stays as it is. */
static tern_status transferred(mail *m, const part *x, span *body, char **out) {
    bool base64 = !strcasecmp(x->encoding, "base64"), quoted = !strcasecmp(x->encoding, "quoted-printable");
    *out = NULL;
    if (!base64 && !quoted) return TERN_OK;
    *out = tn_alloc(m->t->ctx, TN_MEM_TEXT, x->body.n + 8, 1);
    TN_FAIL_IF(!*out, m->err, TERN_E_MEMORY, "no memory for a message");
    *body = (span){*out, base64 ? from_base64(x->body, *out) : from_quoted(x->body, false, *out)};
    return TERN_OK;
}

static tern_status put_text(mail *m, const part *x, bool html) {
    char *decoded, *text = NULL;
    size_t n_text = 0;
    span body = x->body;
    TN_TRY(transferred(m, x, &body, &decoded));
    tern_status st = readable(m, x->charset, html, body, &text, &n_text);
    tn_free(m->t->ctx, decoded);
    TN_TRY(st);
    while (n_text && isspace((unsigned char)text[n_text - 1])) n_text--;
    tn_doc_put(m->t, text, n_text);
    tn_doc_break(m->t, 2);
    tn_free(m->t->ctx, text);
    return TERN_OK;
}

static part part_of(span s) {
    part x = {.body = s};
    span head = split_head(s, &x.body);
    char value[1024];
    if (!header(head, "content-type", value, sizeof value)) snprintf(value, sizeof value, "text/plain");
    size_t n = strcspn(value, "; \t");
    snprintf(x.type, sizeof x.type, "%.*s", (int)n, value);
    parameter(value, "charset", x.charset, sizeof x.charset);
    parameter(value, "boundary", x.boundary, sizeof x.boundary);
    parameter(value, "name", x.name, sizeof x.name);
    (void)header(head, "content-transfer-encoding", x.encoding, sizeof x.encoding);
    if (header(head, "content-disposition", value, sizeof value)) {
        x.attached = !strncasecmp(value, "attachment", 10);
        if (!*x.name) parameter(value, "filename", x.name, sizeof x.name);
    }
    return x;
}

/* Finds the next part between boundary lines. *rest begins after it. Returns false when there is none. */
static bool next_part(span *rest, const char *boundary, span *out) {
    size_t n = strlen(boundary);
    const char *begin = NULL;
    while (rest->n) {
        const char *at = rest->p;
        span after, l = line_at(*rest, &after);
        bool is_boundary = l.n >= n + 2 && !memcmp(l.p, "--", 2) && !memcmp(l.p + 2, boundary, n);
        bool last = is_boundary && l.n >= n + 4 && !memcmp(l.p + 2 + n, "--", 2);
        for (size_t i = n + 2; is_boundary && !last && i < l.n; i++)
            is_boundary = l.p[i] == ' ' || l.p[i] == '\t'; /* not a longer boundary */
        if (is_boundary && begin) {                        /* it begins the part after this one: stays */
            *out = (span){begin, (size_t)(at - begin)};
            return true;
        }
        *rest = after;
        if (last) rest->n = 0;
        else if (is_boundary) begin = after.p;
    }
    if (!begin) return false;
    *out = (span){begin, (size_t)(rest->p - begin)}; /* cut off */
    return true;
}

static tern_status put_part(mail *m, span s, int depth);

static tern_status put_multipart(mail *m, const part *x, int depth) {
    span rest = x->body, s;
    if (!*x->boundary) return TERN_OK;
    bool alternative = !strcasecmp(x->type, "multipart/alternative");
    if (!alternative) {
        while (next_part(&rest, x->boundary, &s)) TN_TRY(put_part(m, s, depth + 1));
        return TERN_OK;
    }
    span first = {0}, plain = {0};
    while (next_part(&rest, x->boundary, &s)) {
        part y = part_of(s);
        if (!plain.p && !strcasecmp(y.type, "text/plain")) plain = s;
        if (!first.p) first = s;
    }
    if (!plain.p) plain = first;
    return plain.p ? put_part(m, plain, depth + 1) : TERN_OK;
}

static tern_status put_part(mail *m, span s, int depth) {
    if (depth > TN_DOC_MAIL_DEPTH) m->too_much = "its parts lie in each other more than 8 deep";
    else if (++m->n_parts > TN_DOC_MAIL_PARTS) m->too_much = "it has more than 256 parts";
    if (m->too_much) return TERN_OK;
    part x = part_of(s);
    bool html = !strcasecmp(x.type, "text/html");
    if (!strncasecmp(x.type, "multipart/", 10)) return put_multipart(m, &x, depth);
    if (!strcasecmp(x.type, "message/rfc822")) {
        span body;
        TN_TRY(put_headers(m, split_head(x.body, &body)));
        return put_part(m, x.body, depth + 1);
    }
    if (!x.attached && (html || !strncasecmp(x.type, "text/", 5))) return put_text(m, &x, html);
    tn_doc_put_str(m->t, "[attachment: ");
    TN_TRY(put_decoded(m, *x.name ? x.name : x.type));
    tn_doc_put(m->t, "]", 1);
    tn_doc_break(m->t, 2);
    return TERN_OK;
}

tern_status tn_doc_mail(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err) {
    mail m = {.t = t, .err = err};
    span all = {bytes, n}, body;
    *why = NULL;
    TN_TRY(put_headers(&m, split_head(all, &body)));
    TN_TRY(put_part(&m, all, 0));
    *why = m.too_much; /* half a message would be taken for the whole */
    return TERN_OK;
}
