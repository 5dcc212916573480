/* Reads office documents and books: ZIP containers of XML (libarchive, libxml2), in memory.
 *
 *   docx  word/document.xml, footnotes, endnotes      odt, ods, odp  content.xml
 *   pptx  ppt/slides/slideN.xml                       epub  the spine of its OPF file
 *   xlsx  xl/sharedStrings.xml, xl/worksheets/sheetN.xml */
#include "documents/office.h"

#include "base/hex.h"
#include "base/status.h"
#include "documents/extract.h"
#include "documents/markup.h"
#include "libraries/library.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRY_BYTES = 64 << 20, MAX_ALL_BYTES = 256 << 20, MAX_SHEETS = 1000, MAX_SPINE = 5000 };

/* An entry that may be read is kept here, unfolded. */
typedef struct entry {
    char *name, *bytes;
    size_t n;
    bool is_read;
} entry;

typedef struct container {
    tn_doc_text *t;
    entry *entries; /* by name */
    int n_entries, cap_entries;
    size_t n_unfolded; /* bytes of all of them */
    bool is_encrypted, is_document;
    const char *why;
    tern_error *err;
} container;

/* ---- entries --------------------------------------------------------------------------------------- */

typedef int comparison(const char *a, const char *b);

/* Does the name go on before one of these endings? The list ends in NULL. */
static bool ends_in_any(const char *name, const char *const *endings, comparison *differ) {
    const size_t n = strlen(name);
    for (; *endings; endings++) {
        const size_t m = strlen(*endings);
        if (n > m && !differ(name + n - m, *endings)) return true;
    }
    return false;
}

static bool is_markup(const char *name) {
    static const char *const endings[] = {".xml", ".xhtml", ".html", ".htm", ".opf", NULL};
    return ends_in_any(name, endings, strcmp);
}

/* A picture of the document, and not one of its file. */
static bool is_picture(const char *name) {
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".webp", NULL};
    return !strcasestr(name, "thumbnail") && ends_in_any(name, endings, strcasecmp);
}

static tern_status word(container *c);
static tern_status sheets(container *c);
static tern_status slides(container *c);
static tern_status book(container *c);
static tern_status open_document(container *c);

/* The entries that tell a document from another archive, and what reads such a document. */
static const struct {
    const char *entry;
    tern_status (*read)(container *c);
} kinds[] = {{"word/document.xml", word},
             {"xl/workbook.xml", sheets},
             {"ppt/presentation.xml", slides},
             {"META-INF/container.xml", book},
             {"content.xml", open_document}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };
static const char no_document[] = "it is an archive, not a document (docx, pptx, xlsx, odt, ods, odp, epub)";

/* Unfolds the entry at hand. *out is NULL when c->why says what is wrong. */
static tern_status unfold(container *c, struct archive *a, char **out, size_t *n_out) {
    size_t cap = 1 << 14, n = 0;
    char *p = tn_alloc(c->t->ctx, TN_MEM_TEXT, cap, 1);
    *out = NULL;
    while (p) {
        if (cap - n < 2) {
            char *more = tn_realloc(c->t->ctx, TN_MEM_TEXT, p, cap *= 2, 1);
            if (!more) tn_free(c->t->ctx, p);
            p = more;
            continue;
        }
        la_ssize_t got = archive_read_data(a, p + n, cap - 1 - n);
        if (got == 0) {
            p[n] = 0;
            *out = p;
            *n_out = n;
            return TERN_OK;
        }
        n += got > 0 ? (size_t)got : 0;
        c->n_unfolded += got > 0 ? (size_t)got : 0;
        if (got < 0) c->why = "its container is damaged or encrypted";
        else if (n > MAX_ENTRY_BYTES || c->n_unfolded > MAX_ALL_BYTES)
            c->why = "it unfolds to more than a document may have";
        if (c->why) break;
    }
    tern_status st = p ? TERN_OK : tn_fail(c->err, TERN_E_MEMORY, "no memory for a document");
    tn_free(c->t->ctx, p);
    return st;
}

static tern_status keep(container *c, struct archive *a, const char *name, bool whole) {
    if (c->n_entries == c->cap_entries) {
        int cap = c->cap_entries * 2 + 16;
        entry *more = tn_realloc(c->t->ctx, TN_MEM_TEXT, c->entries, (size_t)cap, sizeof *more);
        TN_FAIL_IF(!more, c->err, TERN_E_MEMORY, "no memory for a document");
        c->entries = more;
        c->cap_entries = cap;
    }
    entry *e = &c->entries[c->n_entries];
    *e = (entry){.name = tn_strndup(c->t->ctx, TN_MEM_TEXT, name, strlen(name))};
    TN_FAIL_IF(!e->name, c->err, TERN_E_MEMORY, "no memory for a document");
    c->n_entries++;
    return whole ? unfold(c, a, &e->bytes, &e->n) : TERN_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

/* Reads all markup of the container, in one pass over it; or of its pictures, `picture` NULL: the names, else
 * that one. */
static tern_status read_container(container *c, const char *bytes, size_t n, bool pictures,
                                  const char *picture) {
    if ((c->why = tn_library_lacks(TN_LIBRARY_ARCHIVE))) return TERN_OK;
    struct archive *a = archive_read_new();
    struct archive_entry *e;
    TN_FAIL_IF(!a, c->err, TERN_E_MEMORY, "no memory for a document");
    tern_status st = TERN_OK;
    /* by its directory: what is passed over then costs nothing, while a stream of entries must be unfolded */
    int rc = archive_read_support_format_zip_seekable(a), n_seen = 0;
    if (rc == ARCHIVE_OK) rc = archive_read_open_memory(a, bytes, n);
    while (rc == ARCHIVE_OK && st == TERN_OK && !c->why &&
           (rc = archive_read_next_header(a, &e)) == ARCHIVE_OK) {
        const char *name = archive_entry_pathname(e);
        if (++n_seen > TN_DOC_ZIP_ENTRIES) c->why = "its container has too many entries";
        if (name && !strcmp(name, "META-INF/encryption.xml")) c->is_encrypted = true;
        for (int i = 0; name && i < N_KINDS; i++) c->is_document |= !strcmp(name, kinds[i].entry);
        const bool wanted = name && (picture    ? !strcmp(name, picture)
                                     : pictures ? is_picture(name)
                                                : is_markup(name));
        if (!c->why && wanted) st = keep(c, a, name, !pictures || picture);
    }
    if (rc != ARCHIVE_OK && rc != ARCHIVE_EOF && !c->why) c->why = "its container is damaged or encrypted";
    archive_read_free(a);
    if (c->n_entries) qsort(c->entries, (size_t)c->n_entries, sizeof c->entries[0], by_name);
    return st;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* By name, numbers within it by their size. */
static int by_number(const void *a, const void *b) {
    const char *p = ((const entry *)a)->name, *q = ((const entry *)b)->name;
    for (;;) {
        while (*p && *p == *q && !is_digit(*p)) p++, q++;
        if (!is_digit(*p) || !is_digit(*q)) break;
        p += strspn(p, "0"), q += strspn(q, "0");
        const size_t n = strspn(p, "0123456789"), m = strspn(q, "0123456789");
        const int order = n != m ? (n < m ? -1 : 1) : memcmp(p, q, n);
        if (order) return order;
        p += n, q += m;
    }
    return *p != *q ? ((uint8_t)*p < (uint8_t)*q ? -1 : 1) : by_name(a, b);
}

static void close_container(container *c) {
    for (int i = 0; i < c->n_entries; i++) {
        tn_free(c->t->ctx, c->entries[i].name);
        tn_free(c->t->ctx, c->entries[i].bytes);
    }
    tn_free(c->t->ctx, c->entries);
}

/* Returns NULL when there is none. */
static entry *entry_at(const container *c, const char *name) {
    const entry key = {.name = (char *)name};
    return c->n_entries ? bsearch(&key, c->entries, (size_t)c->n_entries, sizeof key, by_name) : NULL;
}

/* The same for what is to be read: each entry is, once. A sheet or a chapter that is named a thousand times
 * would cost a thousand times its length. */
static const entry *take_entry(const container *c, const char *name) {
    entry *e = entry_at(c, name);
    if (!e || e->is_read) return NULL;
    e->is_read = true;
    return e;
}

/* ---- XML ------------------------------------------------------------------------------------------- */

/* An entry that is being read. */
typedef struct reading {
    xmlTextReaderPtr r; /* at its first node; NULL where c->why or a status says what is wrong */
    char *text;
} reading;

static tern_status open_reading(container *c, const entry *e, reading *x) {
    *x = (reading){0};
    return tn_markup_open(c->t->ctx, e->bytes, e->n, &x->text, &x->r, &c->why, c->err);
}

static void close_reading(container *c, reading *x) {
    if (x->r) xmlFreeTextReader(x->r);
    tn_free(c->t->ctx, x->text);
}

static const char *name_of(xmlTextReaderPtr r) {
    const xmlChar *s = xmlTextReaderConstLocalName(r);
    return s ? (const char *)s : "";
}

static const char *value_of(xmlTextReaderPtr r) {
    const xmlChar *s = xmlTextReaderConstValue(r);
    return s ? (const char *)s : "";
}

/* Copies an attribute by its local name, whatever its namespace, to dst; "" where there is none. */
static void attribute(xmlTextReaderPtr r, const char *name, char *dst, size_t cap) {
    *dst = 0;
    if (xmlTextReaderMoveToFirstAttribute(r) != 1) return;
    do {
        if (!strcmp(name_of(r), name)) {
            size_t n = strnlen(value_of(r), cap - 1);
            memcpy(dst, value_of(r), n);
            dst[n] = 0;
            break;
        }
    } while (xmlTextReaderMoveToNextAttribute(r) == 1);
    xmlTextReaderMoveToElement(r);
}

static bool is_any(const char *name, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(name, *list)) return true;
    return false;
}

/* A dialect says what elements of a format mean to a reader. */
typedef struct dialect {
    const char *const *text;       /* character data counts in these only; NULL: everywhere in `body` */
    const char *const *body;       /* outermost elements that hold what is read; NULL: all */
    const char *const *skip;       /* elements whose inside is not read */
    const char *const *paragraphs; /* a newline after each */
    const char *const *blocks;     /* an empty line after each */
    const char *const *cells;      /* a tab after each */
    const char *const *tabs, *const *lines, *const *spaces; /* empty elements */
} dialect;

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NONE ((const char *const[]){NULL})

static void end_of(tn_doc_text *t, const dialect *d, const char *name, int cell_depth) {
    if (is_any(name, d->blocks)) tn_doc_break(t, 2);
    else if (is_any(name, d->cells)) tn_doc_put(t, "\t", 1);
    else if (is_any(name, d->paragraphs)) {
        if (cell_depth) tn_doc_put(t, " ", 1);
        else tn_doc_break(t, 1);
    }
}

static void begin_of(tn_doc_text *t, const dialect *d, xmlTextReaderPtr r, const char *name) {
    if (is_any(name, d->tabs)) tn_doc_put(t, "\t", 1);
    else if (is_any(name, d->lines)) tn_doc_put(t, "\n", 1);
    else if (is_any(name, d->spaces)) {
        char count[8];
        attribute(r, "c", count, sizeof count);
        int n = *count ? atoi(count) : 1;
        for (int i = 0; i < n && i < 80; i++) tn_doc_put(t, " ", 1);
    }
}

static bool is_characters(int type) {
    return type == XML_READER_TYPE_TEXT || type == XML_READER_TYPE_CDATA ||
           type == XML_READER_TYPE_SIGNIFICANT_WHITESPACE;
}

/* Reads the character data of a tree, by the dialect. */
static void read_tree(container *c, xmlTextReaderPtr r, const dialect *d) {
    tn_doc_text *t = c->t;
    int rc = 1, in_text = 0, in_body = d->body ? 0 : 1, cell_depth = 0;
    while (rc == 1 && !t->full && !t->no_memory) {
        int type = xmlTextReaderNodeType(r), step = type == XML_READER_TYPE_ELEMENT ? 1 : -1;
        const char *name = name_of(r);
        bool empty = step == 1 && xmlTextReaderIsEmptyElement(r) == 1;
        if (step == 1 && is_any(name, d->skip)) {
            rc = xmlTextReaderNext(r);
            continue;
        }
        if (is_characters(type)) {
            if (in_body && (!d->text || in_text)) tn_doc_put_str(t, value_of(r));
        } else if (step == 1 || type == XML_READER_TYPE_END_ELEMENT) {
            if (!empty && d->text && is_any(name, d->text)) in_text += step;
            if (!empty && d->body && is_any(name, d->body)) in_body += step;
            if (!empty && is_any(name, d->cells)) cell_depth += step;
            if (in_body && step == 1) begin_of(t, d, r, name);
            if (in_body && (step == -1 || empty)) end_of(t, d, name, cell_depth);
        }
        rc = xmlTextReaderRead(r);
    }
    if (rc < 0 && !t->full && !t->no_memory) c->why = "its XML is damaged";
}

static tern_status read_part(container *c, const char *name, const dialect *d) {
    const entry *e = take_entry(c, name);
    reading x;
    if (!e) return TERN_OK;
    tern_status st = open_reading(c, e, &x);
    if (x.r) read_tree(c, x.r, d);
    close_reading(c, &x);
    return st;
}

/* ---- docx, pptx, OpenDocument ---------------------------------------------------------------------- */

static tern_status word(container *c) {
    const dialect d = {.text = LIST("t"),
                       .skip = LIST("del", "instrText", "Fallback"),
                       .paragraphs = LIST("p"),
                       .blocks = LIST("tbl"),
                       .cells = LIST("tc"),
                       .tabs = LIST("tab"),
                       .lines = LIST("br", "cr", "tr"),
                       .spaces = NONE};
    static const char *const parts[] = {"word/document.xml", "word/footnotes.xml", "word/endnotes.xml"};
    for (int i = 0; i < 3 && !c->why; i++) {
        TN_TRY(read_part(c, parts[i], &d));
        tn_doc_break(c->t, 2);
    }
    return TERN_OK;
}

static tern_status open_document(container *c) {
    const dialect d = {.text = LIST("p", "h"),
                       .body = LIST("body"),
                       .skip = LIST("tracked-changes", "annotation", "sequence-decls", "forms", "settings"),
                       .paragraphs = LIST("p", "h", "table-row"),
                       .blocks = LIST("list", "table", "page"),
                       .cells = LIST("table-cell", "covered-table-cell"),
                       .tabs = LIST("tab"),
                       .lines = LIST("line-break"),
                       .spaces = LIST("s")};
    return read_part(c, "content.xml", &d);
}

/* These are the numbers of "PREFIXnumber.xml", ascending. */
typedef struct numbered {
    int n, at[MAX_SHEETS];
} numbered;

static int ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void find_numbered(const container *c, const char *prefix, numbered *out) {
    size_t n = strlen(prefix);
    out->n = 0;
    for (int i = 0; i < c->n_entries && out->n < MAX_SHEETS; i++) {
        const char *name = c->entries[i].name;
        if (strncmp(name, prefix, n) || name[n] < '1' || name[n] > '9') continue;
        char *end;
        long v = strtol(name + n, &end, 10);
        if (v < 1 << 20 && !strcmp(end, ".xml")) out->at[out->n++] = (int)v;
    }
    qsort(out->at, (size_t)out->n, sizeof out->at[0], ascending);
}

static tern_status slides(container *c) {
    const dialect d = {.text = LIST("t"),
                       .skip = NONE,
                       .paragraphs = LIST("p"),
                       .blocks = LIST("sp"),
                       .cells = LIST("tc"),
                       .tabs = LIST("tab"),
                       .lines = LIST("br", "tr"),
                       .spaces = NONE};
    numbered s;
    find_numbered(c, "ppt/slides/slide", &s);
    for (int i = 0; i < s.n && !c->why; i++) {
        char name[64];
        snprintf(name, sizeof name, "ppt/slides/slide%d.xml", s.at[i]);
        TN_TRY(read_part(c, name, &d));
        tn_doc_break(c->t, 2);
    }
    return TERN_OK;
}

/* ---- xlsx ------------------------------------------------------------------------------------------ */

/* Shared strings are one text, with the places where each begins. */
typedef struct shared {
    tn_doc_text text;
    size_t *at, n, cap;
} shared;

static bool shared_begin(shared *s) {
    if (s->n + 2 > s->cap) {
        size_t cap = s->cap * 2 + 64;
        size_t *at = tn_realloc(s->text.ctx, TN_MEM_TEXT, s->at, cap, sizeof *at);
        if (!at) return false;
        s->at = at;
        s->cap = cap;
    }
    s->at[s->n++] = s->text.n;
    s->at[s->n] = s->text.n;
    return true;
}

static tern_status read_shared(container *c, shared *s) {
    const entry *e = take_entry(c, "xl/sharedStrings.xml");
    reading x;
    if (!e) return TERN_OK;
    tern_status st = open_reading(c, e, &x);
    bool ok = true, in_t = false;
    int rc = 0, phonetic = 0;
    while (x.r && ok && (rc = xmlTextReaderRead(x.r)) == 1) {
        int type = xmlTextReaderNodeType(x.r);
        const char *name = name_of(x.r);
        bool begins = type == XML_READER_TYPE_ELEMENT,
             empty = begins && xmlTextReaderIsEmptyElement(x.r) == 1;
        if (begins && !strcmp(name, "si")) ok = shared_begin(s);
        else if (!strcmp(name, "rPh") && !empty) phonetic += begins ? 1 : -1;
        else if (!strcmp(name, "t") && !empty) in_t = begins;
        else if (is_characters(type) && in_t && !phonetic && s->n) {
            tn_doc_put_str(&s->text, value_of(x.r));
            s->at[s->n] = s->text.n;
            ok = !s->text.no_memory;
        }
    }
    close_reading(c, &x);
    TN_FAIL_IF(!ok, c->err, TERN_E_MEMORY, "no memory for a document");
    if (rc < 0) c->why = "its XML is damaged";
    else if (s->text.full) c->why = "it holds more text than a document may have";
    return st;
}

/* A cell's characters come between <v> or <t>. They are kept apart, because an index into the shared strings
 * may come in pieces. */
typedef struct cell {
    char kind[12], index[16];
    size_t n_index;
    bool in_value;
} cell;

static void cell_text(tn_doc_text *t, cell *x, const char *s) {
    if (strcmp(x->kind, "s")) {
        tn_doc_put_str(t, s);
        return;
    }
    for (; *s && x->n_index + 1 < sizeof x->index; s++) x->index[x->n_index++] = *s;
    x->index[x->n_index] = 0;
}

static void cell_end(tn_doc_text *t, const shared *s, cell *x) {
    char *end;
    unsigned long i = strtoul(x->index, &end, 10);
    if (x->n_index && !*end && i < s->n) tn_doc_put(t, s->text.p + s->at[i], s->at[i + 1] - s->at[i]);
    tn_doc_put(t, "\t", 1);
    x->n_index = 0;
}

static tern_status read_sheet(container *c, const char *name, const shared *s) {
    const entry *e = take_entry(c, name);
    reading g;
    if (!e) return TERN_OK;
    tern_status st = open_reading(c, e, &g);
    cell x = {0};
    int rc = 0;
    while (g.r && (rc = xmlTextReaderRead(g.r)) == 1 && !c->t->full && !c->t->no_memory) {
        int type = xmlTextReaderNodeType(g.r);
        const char *tag = name_of(g.r);
        bool begins = type == XML_READER_TYPE_ELEMENT, ends = type == XML_READER_TYPE_END_ELEMENT;
        if (begins && xmlTextReaderIsEmptyElement(g.r) == 1) continue;
        if (begins && !strcmp(tag, "c")) attribute(g.r, "t", x.kind, sizeof x.kind);
        else if (ends && !strcmp(tag, "c")) cell_end(c->t, s, &x);
        else if (ends && !strcmp(tag, "row")) tn_doc_break(c->t, 1);
        else if ((begins || ends) && (!strcmp(tag, "v") || !strcmp(tag, "t"))) x.in_value = begins;
        else if (is_characters(type) && x.in_value) cell_text(c->t, &x, value_of(g.r));
    }
    close_reading(c, &g);
    if (rc < 0) c->why = "its XML is damaged";
    tn_doc_break(c->t, 2);
    return st;
}

static tern_status sheets(container *c) {
    numbered names;
    shared s = {.text = {.ctx = c->t->ctx, .max = c->t->max}};
    find_numbered(c, "xl/worksheets/sheet", &names);
    tern_status st = read_shared(c, &s);
    for (int i = 0; i < names.n && st == TERN_OK && !c->why; i++) {
        char name[64];
        snprintf(name, sizeof name, "xl/worksheets/sheet%d.xml", names.at[i]);
        st = read_sheet(c, name, &s);
    }
    tn_free(c->t->ctx, s.text.p);
    tn_free(c->t->ctx, s.at);
    return st;
}

/* ---- epub ------------------------------------------------------------------------------------------ */

enum { NAME = 256 };

/* The manifest of a book says where each of its parts lies. */
typedef struct item {
    char id[NAME], href[NAME];
} item;

static int by_id(const void *a, const void *b) {
    return strcmp(((const item *)a)->id, ((const item *)b)->id);
}

/* Resolves a reference beside the OPF file, %XX decoded, without its fragment. */
static void beside(const char *opf, const char *href, char out[2 * NAME]) {
    const char *slash = strrchr(opf, '/');
    size_t n = slash ? (size_t)(slash + 1 - opf) : 0;
    memcpy(out, opf, n);
    for (const char *p = href; *p && *p != '#' && n + 1 < 2 * NAME; p++) {
        int hi = *p == '%' ? tn_hex_digit(p[1]) : -1, lo = hi >= 0 ? tn_hex_digit(p[2]) : -1;
        out[n++] = lo >= 0 ? (char)(hi * 16 + lo) : *p;
        if (lo >= 0) p += 2;
    }
    out[n] = 0;
}

static tern_status chapter(container *c, const char *name) {
    const entry *e = take_entry(c, name);
    char *text = NULL;
    size_t n_text;
    if (!e) return TERN_OK;
    TN_TRY(tn_text_from_html(c->t->ctx, e->bytes, e->n, &text, &n_text, c->err));
    tn_doc_put(c->t, text, n_text);
    tn_doc_break(c->t, 2);
    tn_free(c->t->ctx, text);
    return TERN_OK;
}

/* *path is "" where none is told. */
static tern_status root_file(container *c, char path[NAME]) {
    const entry *e = take_entry(c, "META-INF/container.xml");
    reading x = {0};
    tern_status st = e ? open_reading(c, e, &x) : TERN_OK;
    *path = 0;
    for (int rc = 1; x.r && rc == 1 && !*path; rc = xmlTextReaderRead(x.r))
        if (xmlTextReaderNodeType(x.r) == XML_READER_TYPE_ELEMENT && !strcmp(name_of(x.r), "rootfile"))
            attribute(x.r, "full-path", path, NAME);
    close_reading(c, &x);
    return st;
}

/* The manifest comes before the spine, which refers to it. */
static tern_status read_spine(container *c, const char *path, xmlTextReaderPtr r, item *items) {
    size_t n_items = 0, n_spine = 0;
    int rc = 1;
    while (!c->t->full && (rc = xmlTextReaderRead(r)) == 1) {
        if (xmlTextReaderNodeType(r) != XML_READER_TYPE_ELEMENT) continue;
        if (!strcmp(name_of(r), "item") && n_items < MAX_SPINE) {
            attribute(r, "id", items[n_items].id, NAME);
            attribute(r, "href", items[n_items++].href, NAME);
        } else if (!strcmp(name_of(r), "spine")) {
            qsort(items, n_items, sizeof *items, by_id);
        } else if (!strcmp(name_of(r), "itemref") && n_spine++ < MAX_SPINE) {
            char name[2 * NAME];
            item key, *at;
            attribute(r, "idref", key.id, NAME);
            at = n_items ? bsearch(&key, items, n_items, sizeof key, by_id) : NULL;
            if (!at) continue;
            beside(path, at->href, name);
            TN_TRY(chapter(c, name));
        }
    }
    if (rc < 0) c->why = "its XML is damaged";
    return TERN_OK;
}

static tern_status book(container *c) {
    char path[NAME];
    reading x;
    TN_TRY(root_file(c, path));
    const entry *opf = *path && !c->why ? take_entry(c, path) : NULL;
    if (!opf) {
        if (!c->why) c->why = "its container lacks the document";
        return TERN_OK;
    }
    item *items = tn_alloc(c->t->ctx, TN_MEM_TEXT, MAX_SPINE, sizeof *items);
    TN_FAIL_IF(!items, c->err, TERN_E_MEMORY, "no memory for a book");
    tern_status st = open_reading(c, opf, &x);
    if (x.r) st = read_spine(c, path, x.r, items);
    close_reading(c, &x);
    tn_free(c->t->ctx, items);
    return st;
}

/* ---- which ----------------------------------------------------------------------------------------- */

void tn_doc_office_prepare(void) {
    (void)tn_library_lacks(TN_LIBRARY_ARCHIVE);
    (void)tn_library_lacks(TN_LIBRARY_XML);
}

tern_status tn_doc_office(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err) {
    container c = {.t = t, .err = err};
    tern_status st = read_container(&c, bytes, n, false, NULL);
    if (st == TERN_OK && !c.why) {
        int kind = 0;
        while (kind < N_KINDS && !entry_at(&c, kinds[kind].entry)) kind++;
        if (kind < N_KINDS) st = kinds[kind].read(&c);
        else c.why = no_document;
    }
    if (c.is_encrypted && c.why) c.why = "it is encrypted";
    close_container(&c);
    *why = c.why;
    return st;
}

tern_status tn_doc_office_picture(tn_ctx *ctx, const char *bytes, size_t n, int number, char **out,
                                  size_t *n_out, const char **why, tern_error *err) {
    tn_doc_text t = {.ctx = ctx};
    container names = {.t = &t, .err = err}, one = {.t = &t, .err = err};
    *out = NULL;
    *n_out = 0;
    tern_status st = read_container(&names, bytes, n, true, NULL);
    if (st == TERN_OK && !names.why && !names.is_document) names.why = no_document;
    if (st == TERN_OK && !names.why && number <= names.n_entries && number <= TN_DOC_PICTURES) {
        qsort(names.entries, (size_t)names.n_entries, sizeof names.entries[0], by_number);
        st = read_container(&one, bytes, n, true, names.entries[number - 1].name);
    }
    *why = names.why;
    if (st == TERN_OK && one.n_entries && one.entries[0].bytes && one.entries[0].n) {
        *out = one.entries[0].bytes;
        *n_out = one.entries[0].n;
        one.entries[0].bytes = NULL;
    } else if (st == TERN_OK && one.n_entries) { /* empty, or cannot be unfolded: the next may be whole */
        *out = tn_strndup(ctx, TN_MEM_TEXT, "?", 1);
        *n_out = 1;
        if (!*out) st = tn_fail(err, TERN_E_MEMORY, "no memory for a picture of a document");
    }
    close_container(&names);
    close_container(&one);
    return st;
}
