#include "cli/looking.h"

#include "base/file.h"
#include "base/status.h"
#include "cli/output.h"
#include "documents/file_text.h"
#include "session/pictures.h"
#include "session/session.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files ----------------------------------------------------------------------------------------------- */

bool cli_is_picture_bytes(const char *bytes, size_t n) {
    return tn_picture_kind_of((const uint8_t *)bytes, n) != TN_PICTURE_NONE;
}

bool cli_is_picture(const char *path) {
    char bytes[TN_PICTURE_SNIFF];
    struct stat sb;
    if (stat(path, &sb) || !S_ISREG(sb.st_mode)) return false;
    int fd = tn_file_open_regular(path, &sb, NULL);
    if (fd < 0) return false;
    size_t n = (uint64_t)sb.st_size < sizeof bytes ? (size_t)sb.st_size : sizeof bytes;
    bool ok = tn_file_read_at(fd, path, bytes, n, 0, NULL) == TERN_OK;
    close(fd);
    return ok && cli_is_picture_bytes(bytes, n);
}

bool cli_looking_add_bytes(looking *l, const char *name, char *bytes, size_t n) {
    char *copy = l->n < LOOK_MOST ? strdup(name) : NULL;
    if (!copy) return false;
    l->at[l->n++] = (looked){.name = copy, .bytes = bytes, .n_bytes = n};
    return true;
}

bool cli_looking_add(looking *l, const char *path) { return cli_looking_add_bytes(l, path, NULL, 0); }

/* ---- pages of PDF ------------------------------------------------------------------------------------------ */

enum { PDF_PATH = 4096, PDF_TEXT = TN_PICTURE_MAX_BYTES /* the file, too */, PDF_PAGE = 1 << 16 };

typedef struct pages {
    char path[PDF_PATH];
    int first, last; /* 0: none was named */
    bool wrong;      /* what was named are no pages */
} pages;

static bool begins_as_pdf(const char *path) {
    char bytes[5];
    struct stat sb;
    if (stat(path, &sb) || !S_ISREG(sb.st_mode) || sb.st_size < (off_t)sizeof bytes) return false;
    int fd = tn_file_open_regular(path, &sb, NULL);
    if (fd < 0) return false;
    bool ok = tn_file_read_at(fd, path, bytes, sizeof bytes, 0, NULL) == TERN_OK;
    close(fd);
    return ok && tn_is_pdf(bytes, sizeof bytes);
}

/* Digits, of a number up to PDF_PAGE; 0: there is none. */
static int page_at(const char **at) {
    int n = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        if (n <= PDF_PAGE) n = 10 * n + (**at - '0');
    return n <= PDF_PAGE ? n : 0;
}

/* FILE, FILE#3 or FILE#3-5. A file whose own name ends so is that file. Whatever follows # in the name of a PDF file was
 * meant as pages. */
static bool pages_of(const char *word, pages *p) {
    struct stat sb;
    const char *hash = stat(word, &sb) ? strrchr(word, '#') : NULL;
    const size_t n = hash ? (size_t)(hash - word) : strlen(word);
    *p = (pages){.path = ""};
    if (n >= sizeof p->path) return false;
    memcpy(p->path, word, n);
    if (hash) {
        const char *at = hash + 1;
        p->first = p->last = page_at(&at);
        if (*at == '-') at++, p->last = page_at(&at);
        p->wrong = *at || p->first < 1 || p->last < p->first;
    }
    return begins_as_pdf(p->path);
}

bool cli_is_pdf(const char *word) {
    pages p;
    return pages_of(word, &p);
}

/* Whether the file has text; a reason that is none of its own is printed. */
static bool text_of(const pages *p, tn_reader *r, char **text, bool *failed) {
    tern_error err;
    size_t n;
    *failed = false;
    if (tn_reader_text(r, p->path, PDF_TEXT, text, &n, &err) == TERN_OK) return true;
    *failed = !strstr(err.message, tn_pdf_no_text);
    if (*failed) cli_failed_text("%s: %s", p->path, err.message);
    return false;
}

bool cli_looking_add_pdf(looking *l, tn_reader *r, const char *word, char **text) {
    pages p;
    tern_error err;
    bool failed;
    *text = NULL;
    if (!pages_of(word, &p)) return cli_failed_text("%s is no PDF file any more", word), false;
    if (p.wrong)
        return cli_failed_text(
                   "%s: after # stands a page of the file or a range of pages, from 1 to %d, as in "
                   "%s#3 or %s#3-5",
                   word, PDF_PAGE, p.path, p.path),
               false;
    if (!p.first && (text_of(&p, r, text, &failed) || failed)) return !failed;
    const bool all = !p.first;
    for (int page = all ? 1 : p.first; all || page <= p.last; page++) {
        char name[PDF_PATH + 16], *png;
        size_t n;
        if (tn_reader_page(r, p.path, page, TN_PICTURE_MAX_BYTES, &png, &n, &err) != TERN_OK)
            return cli_failed_text("%s: %s", p.path, err.message), false;
        if (!n) free(png);
        if (!n && all && page > 1) return true;
        if (!n) return cli_failed_text("%s has no page %d", p.path, page), false;
        snprintf(name, sizeof name, "%s#%d", p.path, page);
        if (cli_looking_add_bytes(l, name, png, n)) continue;
        free(png);
        return cli_failed_text(
                   "%s: with its page %d there are more than %d pictures, as many as a question has: name "
                   "some of its pages, as %s#1-4",
                   p.path, page, LOOK_MOST, p.path),
               false;
    }
    return true;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

static tern_status look_at(looked *p, tern_engine *e, tn_reader *r, tern_error *err) {
    tn_ctx ctx;
    tn_picture picture;
    tn_ctx_init(&ctx, NULL);
    if (!p->bytes) TN_TRY(tn_file_slurp(p->name, TN_PICTURE_MAX_BYTES, &p->bytes, &p->n_bytes, err));
    tern_status st = tn_picture_decode_sealed(r, &ctx, (const uint8_t *)p->bytes, p->n_bytes, &picture, err);
    free(p->bytes);
    p->bytes = NULL;
    if (st == TERN_OK) {
        st = tn_look_at(e, &picture, false, &p->look, err);
        tn_picture_free(&picture);
    }
    return st;
}

bool cli_looking_at(looking *l, tern_engine *e, tn_reader *r) {
    tern_error err;
    if (l->n && !tn_sight_can(e, &err)) return cli_failed(&err), false;
    for (int i = 0; i < l->n; i++) {
        looked *p = &l->at[i];
        if (p->look || look_at(p, e, r, &err) == TERN_OK) continue;
        if (strstr(err.message, p->name)) cli_failed(&err);
        else cli_failed_text("%s: %s", p->name, err.message);
        return false;
    }
    return true;
}

size_t cli_looking_all(const looking *l, tn_look **out) {
    for (int i = 0; i < l->n; i++) out[i] = l->at[i].look;
    return (size_t)l->n;
}

/* ---- the prompt ---------------------------------------------------------------------------------------------- */

static json_t *message(const char *role, const char *text, size_t n_images) {
    json_t *parts = json_array();
    for (size_t i = 0; i < n_images; i++) tn_json_append(&parts, tn_json_pack("{s:s}", "type", "image"));
    tn_json_append(&parts,
                   tn_json_pack("{s:s, s:o}", "type", "text", "text", tn_json_string(text, strlen(text))));
    return tn_json_pack("{s:s, s:o}", "role", role, "content", parts);
}

tern_status cli_looking_prompt(const looking *l, tern_engine *e, const char *system, const char *text,
                               const char *source, bool raw, int32_t **ids, size_t *n_ids, tern_error *err) {
    tn_look *looks[LOOK_MOST];
    size_t n = cli_looking_all(l, looks);
    char *messages = NULL;
    *ids = NULL;
    if (raw) return tn_look_plain(e, text, strlen(text), looks, n, ids, n_ids, err);
    json_t *all = json_array();
    if (system) tn_json_append(&all, message("system", system, 0));
    tn_json_append(&all, message("user", text, n));
    tern_status st = tn_json_text(all, JSON_COMPACT, &messages, err);
    json_decref(all);
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.messages = messages;
    o.chat_template = source;
    if (st == TERN_OK) st = tn_look_chat(e, &o, looks, n, ids, n_ids, err);
    free(messages);
    return st;
}

tern_status cli_looking_encode(tn_look *const *looks, size_t n, tern_session *s, tern_error *err) {
    for (size_t i = 0; i < n; i++) {
        tern_status st = TERN_OK;
        for (bool more = true; more && st == TERN_OK;) st = tn_look_encode(looks[i], &s->cancel, &more, err);
        if (st == TERN_E_CANCELLED) atomic_store(&s->cancel, false);
        TN_TRY(st);
    }
    return tn_session_look(s, looks, n, err);
}

/* ---- what was seen ------------------------------------------------------------------------------------------- */

json_t *cli_looking_json(const looking *l) {
    json_t *all = json_array();
    for (int i = 0; i < l->n; i++) {
        const looked *p = &l->at[i];
        const tn_look *k = p->look;
        tn_encoder_form f;
        tn_sight_form(k->e, &f);
        tn_json_append(&all, tn_json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:s}",
                                          "file", p->name, "width", (int)k->width, "height", (int)k->height,
                                          "views", (int)k->medium.n_views, "grid_rows", (int)k->medium.rows,
                                          "grid_columns", (int)k->medium.columns, "rows", (int)k->n_rows,
                                          "encoded", (int)k->encoded, "from_memory", (int)k->in_memory,
                                          "from_disk", (int)k->on_disk, "encode_ms", k->encode_s * 1e3,
                                          "encoder", f.int8 ? "int8" : "float"));
    }
    return all;
}

void cli_verdict_print(FILE *to, tn_tower_verdict v) {
    fprintf(to,
            "encoder of pictures: %s (a drawing's rows in INT8 have cosine %.5f to those in floats, the "
            "least %.5f; INT8 from %.3f and %.2f on)\n",
            tn_tower_holds(v) ? "INT8" : "floats", (double)v.mean, (double)v.least, (double)TN_TOWER_MEAN,
            (double)TN_TOWER_LEAST);
}

/* How the encoder computes, and why. */
static void print_form(tern_engine *e) {
    tn_encoder_form f;
    tn_sight_form(e, &f);
    if (!f.known) return;
    if (!f.why) cli_verdict_print(stderr, f.verdict);
    else fprintf(stderr, "encoder of pictures: %s (%s)\n", f.int8 ? "INT8" : "floats", f.why);
}

void cli_looking_print(const looking *l) {
    for (int i = 0; i < l->n; i++) {
        const tn_look *k = l->at[i].look;
        const int known = k->medium.n_views - k->encoded;
        fprintf(stderr, "picture %s: %d x %d pixels, %d view%s", cli_shown(l->at[i].name), k->width,
                k->height, k->medium.n_views, k->medium.n_views == 1 ? "" : "s");
        if (k->medium.rows) fprintf(stderr, " (%d x %d and the whole)", k->medium.rows, k->medium.columns);
        fprintf(stderr, ", %d rows of the prompt, ", k->n_rows);
        if (k->encoded) fprintf(stderr, "%d encoded in %.0f ms", k->encoded, k->encode_s * 1e3);
        if (known) fprintf(stderr, "%s%d known already", k->encoded ? ", " : "", known);
        if (k->on_disk) fprintf(stderr, " (%d from disk)", k->on_disk);
        putc('\n', stderr);
    }
    if (l->n) print_form(l->at[0].look->e);
}

void cli_looking_drop(looking *l) {
    looked *p = &l->at[--l->n];
    tn_look_close(&p->look);
    free(p->name);
    free(p->bytes);
    *p = (looked){0};
}

void cli_looking_free(looking *l) {
    while (l->n) cli_looking_drop(l);
}
