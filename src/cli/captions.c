#include "cli/captions.h"

#include "base/status.h"
#include "cli/live.h"
#include "cli/looking.h"
#include "cli/output.h"
#include "documents/file_text.h"
#include "documents/office.h"
#include "documents/reader.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_captions_open(captions *c, const char *model) {
    model_args ma;
    char path[MODEL_PATH_MAX];
    tern_error err;
    cli_model_args_defaults(&ma, TN_IN_RUN);
    ma.model = cli_model_path(model, path);
    int rc = cli_open_engine(NULL, &ma, &c->e);
    if (rc >= 0) return rc;
    if (!tn_sight_can(c->e, &err)) return cli_failed_text("--captions: %s", err.message);
    c->answer.quiet = true;
    return tern_session_open(c->e, &ma.o.session, &c->s, &err) == TERN_OK ? -1 : cli_failed(&err);
}

void cli_captions_close(captions *c) {
    cli_answer_free(&c->answer);
    tern_session_close(&c->s);
    tern_engine_close(&c->e);
}

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    captions *c = user;
    return !atomic_load(c->stopped) && cli_answer_on_token(&c->answer, token, text, n, logprob);
}

enum {
    LEAST_SIDE = 64,     /* of a picture in a document, in pixels */
    FILE_BYTES = 1 << 30 /* of a document, which its own limit was read by */
};

/* What the model says of a picture is in c->answer. */
static tern_status describe(captions *c, const char *bytes, size_t n, tern_error *err) {
    tn_ctx ctx;
    tn_picture picture;
    looking l = {.n = 1};
    size_t n_ids = 0;
    int32_t *ids = NULL;
    tern_generate_options g;
    tern_generate_result res;
    tn_ctx_init(&ctx, NULL);
    cli_answer_clear(&c->answer);
    TN_TRY(tn_picture_decode_sealed(c->reader, &ctx, (const uint8_t *)bytes, n, &picture, err));
    if (picture.width < c->least || picture.height < c->least) {
        tn_picture_free(&picture);
        return TERN_OK;
    }
    tern_status st = tn_look_at(c->e, &picture, false, &l.at[0].look, err);
    tn_picture_free(&picture);
    if (st == TERN_OK)
        st = cli_looking_prompt(&l, c->e, NULL, CAPTION_QUESTION, NULL, !tern_has_chat_template(c->e), &ids,
                                &n_ids, err);
    if (st == TERN_OK) st = cli_looking_encode(&l.at[0].look, 1, c->s, err);
    if (st == TERN_OK) st = tern_session_prefill(c->s, ids, n_ids, err);
    tern_generate_options_defaults(&g);
    g.sampling.temperature = 0;
    g.max_tokens = CAPTION_TOKENS;
    g.no_logprobs = true;
    g.on_token = on_token;
    g.user = c;
    if (st == TERN_OK) st = tern_session_generate(c->s, &g, &res, err);
    if (st == TERN_OK && c->answer.no_memory) st = tn_fail(err, TERN_E_MEMORY, "no memory for a caption");
    if ((st == TERN_OK || st == TERN_E_CANCELLED) && atomic_load(c->stopped))
        st = tn_fail(err, TERN_E_CANCELLED, "indexing was stopped"); /* half a caption is none */
    free(ids);
    cli_looking_free(&l);
    return st;
}

static bool is_blank(char c) { return !c || strchr(" \t\r\n\f\v", c); }

/* What is told, page by page. */
typedef struct telling {
    char *text;
    size_t n;
    int64_t n_told;
} telling;

static tern_status put(telling *t, const char *from, size_t n, tern_error *err) {
    char *all = realloc(t->text, t->n + n + 1);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory for captions");
    memcpy(all + t->n, from, n);
    all[t->n += n] = 0;
    t->text = all;
    return TERN_OK;
}

/* The caption at hand without blanks at its ends. Pages end in form feeds, so it has none. */
static tern_status put_caption(const captions *c, telling *t, tern_error *err) {
    const char *from = c->answer.text;
    size_t n = from ? c->answer.n : 0;
    for (; n && is_blank(*from); n--) from++;
    while (n && is_blank(from[n - 1])) n--;
    const size_t at = t->n;
    TN_TRY(put(t, from ? from : "", n, err));
    for (char *p = t->text + at; p < t->text + t->n; p++)
        if (!*p || *p == '\f') *p = ' ';
    t->n_told += n > 0;
    return TERN_OK;
}

/* Describes a page of a PDF file, or a picture in an office document; *there: the document has it. */
static tern_status describe_page(captions *c, const char *path, const char *kind, int page, bool *there,
                                 tern_error *err) {
    char *bytes;
    size_t n;
    *there = false;
    cli_answer_clear(&c->answer);
    TN_TRY(tn_reader_page(c->reader, path, page, FILE_BYTES, &bytes, &n, err));
    *there = n > 0;
    if (n && c->terminal) cli_live_line("looking at %s %d of %s", kind, page, cli_shown(path));
    const tern_status st = n ? describe(c, bytes, n, err) : TERN_OK;
    free(bytes);
    return st;
}

static tern_status tell_pages(captions *c, const char *path, telling *t, tern_error *err) {
    bool there = true;
    for (int page = 1;; page++) {
        TN_TRY(describe_page(c, path, "page", page, &there, err));
        if (!there) return TERN_OK;
        if (page > 1) TN_TRY(put(t, "\f", 1, err));
        TN_TRY(put_caption(c, t, err));
    }
}

/* The text of a PDF file, with captions in place of its pages without text. */
static tern_status tell_empty_pages(captions *c, const char *path, const char *had, telling *t,
                                    tern_error *err) {
    bool there = true;
    for (int page = 1; there; page++) {
        const size_t n = strcspn(had, "\f");
        bool empty = true;
        for (size_t i = 0; i < n; i++) empty = empty && is_blank(had[i]);
        if (empty) TN_TRY(describe_page(c, path, "page", page, &there, err));
        TN_TRY(empty ? put_caption(c, t, err) : put(t, had, n, err));
        if (!had[n]) return TERN_OK;
        TN_TRY(put(t, "\f", 1, err));
        had += n + 1;
    }
    return put(t, had, strlen(had), err);
}

/* The text of an office document, and after it what its pictures show, a paragraph each; without text a page
 * each. Small ones are ornaments, and one that cannot be read leaves the others. */
static tern_status tell_pictures(captions *c, const char *path, const char *had, telling *t,
                                 tern_error *err) {
    bool there = true;
    if (had) TN_TRY(put(t, had, strlen(had), err));
    for (int i = 1;; i++) {
        const tern_status st = describe_page(c, path, "picture", i, &there, err);
        const bool odd = there && (st == TERN_E_FORMAT || st == TERN_E_LIMIT || st == TERN_E_UNSUPPORTED);
        if (!there || (st != TERN_OK && !odd)) return st;
        if (odd || !c->answer.n) continue;
        if (t->n) TN_TRY(put(t, had ? "\n\n" : "\f", had ? 2 : 1, err));
        TN_TRY(put_caption(c, t, err));
    }
}

tern_status cli_captions_make(void *user, const char *path, const char *bytes, size_t n, const char *had,
                              char **text, int64_t *n_told, tern_error *err) {
    captions *c = user;
    telling t = {0};
    const bool pdf = tn_is_pdf(bytes, n), office = tn_doc_is_container(bytes, n),
               picture = !pdf && !office && !had && cli_is_picture_bytes(bytes, n);
    tern_status st = TERN_OK;
    *text = NULL;
    c->least = office ? LEAST_SIDE : 0;
    if (pdf) st = had ? tell_empty_pages(c, path, had, &t, err) : tell_pages(c, path, &t, err);
    else if (office) st = tell_pictures(c, path, had, &t, err);
    if (picture && c->terminal) cli_live_line("looking at %s", cli_shown(path));
    if (picture) st = describe(c, bytes, n, err);
    if (picture && st == TERN_OK) st = put_caption(c, &t, err);
    if (st != TERN_OK) {
        free(t.text);
        return st;
    }
    *n_told = t.n_told;
    *text = t.text;
    return TERN_OK;
}
