#include "documents/markup.h"

#include "base/status.h"
#include "documents/extract.h"
#include "libraries/library.h"

#include <limits.h>
#include <string.h>

static const char damaged[] = "its XML is damaged";

typedef struct scan {
    const char *p, *end;
    int depth, n_namespaces;
    int declared[TN_MARKUP_DEPTH]; /* namespaces by each open element */
} scan;

static bool begins(const scan *s, const char *with) {
    size_t n = strlen(with);
    return (size_t)(s->end - s->p) >= n && !memcmp(s->p, with, n);
}

/* Goes after the next `mark`, or to the end. */
static void go_behind(scan *s, const char *mark) {
    const char *at = memmem(s->p, (size_t)(s->end - s->p), mark, strlen(mark));
    s->p = at ? at + strlen(mark) : s->end;
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Passes over "<!DOCTYPE ...>". */
static const char *declaration(scan *s) {
    char quote = 0;
    for (; s->p < s->end; s->p++) {
        char c = *s->p;
        if (quote) quote = c == quote ? 0 : quote;
        else if (c == '"' || c == '\'') quote = c;
        else if (c == '[') return "its XML declares entities or elements of its own";
        else if (c == '>') break;
    }
    return NULL;
}

/* Passes over "<name ...>". */
static const char *begin_tag(scan *s) {
    int n_attributes = 0, n_namespaces = 0;
    char quote = 0;
    for (; s->p < s->end; s->p++) {
        char c = *s->p;
        if (quote) {
            quote = c == quote ? 0 : quote;
        } else if (c == '"' || c == '\'') {
            quote = c;
            n_attributes++;
        } else if (c == 'x' && is_blank(s->p[-1]) && begins(s, "xmlns")) {
            n_namespaces++;
        } else if (c == '>') {
            break;
        }
    }
    if (n_attributes > TN_MARKUP_ATTRIBUTES || n_namespaces > TN_MARKUP_ATTRIBUTES)
        return "its XML has an element with too many attributes";
    if (s->n_namespaces + n_namespaces > TN_MARKUP_NAMESPACES) return "its XML has too many namespaces";
    if (s->p < s->end && s->p[-1] == '/') return NULL;
    if (s->depth == TN_MARKUP_DEPTH) return "its XML is nested too deeply";
    s->declared[s->depth++] = n_namespaces;
    s->n_namespaces += n_namespaces;
    return NULL;
}

static void end_tag(scan *s) {
    if (s->depth) s->n_namespaces -= s->declared[--s->depth];
    go_behind(s, ">");
}

/* Says why xml[0..n), UTF-8, is not read, a constant; NULL: it may be. Damaged XML may be as well. */
static const char *refusal(const char *xml, size_t n) {
    scan s = {.p = xml, .end = xml + n};
    const char *why = NULL;
    while (!why && s.p < s.end && (s.p = memchr(s.p, '<', (size_t)(s.end - s.p)))) {
        if (begins(&s, "<!--")) {
            s.p += 4;
            go_behind(&s, "-->");
        } else if (begins(&s, "<![CDATA[")) {
            go_behind(&s, "]]>");
        } else if (begins(&s, "<?")) {
            go_behind(&s, "?>");
        } else if (begins(&s, "<!")) {
            why = declaration(&s);
        } else if (begins(&s, "</")) {
            end_tag(&s);
        } else {
            s.p++;
            why = begin_tag(&s);
        }
    }
    return why;
}

/* Bounds the table of names, which the first node leads to. */
static bool bound_names(xmlTextReaderPtr r) {
    xmlNodePtr node = xmlTextReaderCurrentNode(r);
    if (!node || !node->doc || !node->doc->dict) return false;
    (void)xmlDictSetLimit(node->doc->dict, TN_MARKUP_NAME_BYTES);
    return true;
}

tern_status tn_markup_open(tn_ctx *ctx, const char *xml, size_t n, char **text, xmlTextReaderPtr *out,
                           const char **why, tern_error *err) {
    size_t n_text;
    *out = NULL;
    *text = NULL;
    if ((*why = tn_library_lacks(TN_LIBRARY_XML))) return TERN_OK;
    TN_TRY(tn_text_decode(ctx, xml, n, text, &n_text, err));
    if ((*why = refusal(*text, n_text)) == NULL && n_text > INT_MAX) *why = damaged;
    if (*why) return TERN_OK;
    *out = xmlReaderForMemory(*text, (int)n_text, NULL, "UTF-8",
                              XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING | XML_PARSE_NOCDATA |
                                  XML_PARSE_IGNORE_ENC);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for a document");
    if (xmlTextReaderRead(*out) == 1 && bound_names(*out)) return TERN_OK;
    *why = damaged;
    xmlFreeTextReader(*out);
    *out = NULL;
    return TERN_OK;
}
