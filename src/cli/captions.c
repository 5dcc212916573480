#include "cli/captions.h"

#include "base/status.h"
#include "cli/live.h"
#include "cli/looking.h"
#include "cli/output.h"
#include "documents/file_text.h"
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

/* A page's caption without blanks at its ends, after those of other pages. */
static tern_status append(const captions *c, bool first, char **text, tern_error *err) {
    const char *from = c->answer.text;
    size_t had = *text ? strlen(*text) : 0, n = from ? c->answer.n : 0;
    for (; n && is_blank(*from); n--) from++;
    while (n && is_blank(from[n - 1])) n--;
    char *all = realloc(*text, had + n + 2);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory for captions");
    *text = all;
    if (!first) all[had++] = '\f';
    for (size_t i = 0; i < n; i++)
        all[had++] = from[i] && from[i] != '\f' ? from[i] : ' '; /* pages end in it */
    all[had] = 0;
    return TERN_OK;
}

static tern_status describe_pages(captions *c, const char *path, char **text, tern_error *err) {
    for (int page = 1;; page++) {
        char *png;
        size_t n;
        TN_TRY(tn_reader_page(c->reader, path, page, TN_PICTURE_MAX_BYTES, &png, &n, err));
        tern_status st = TERN_OK;
        if (n && c->terminal) cli_live_line("looking at page %d of %s", page, cli_shown(path));
        if (n) st = describe(c, png, n, err);
        free(png);
        if (!n) return TERN_OK;
        if (st == TERN_OK) st = append(c, page == 1, text, err);
        TN_TRY(st);
    }
}

tern_status cli_captions_make(void *user, const char *path, const char *bytes, size_t n, char **text,
                              tern_error *err) {
    captions *c = user;
    const bool pdf = tn_is_pdf(bytes, n);
    *text = NULL;
    if (!pdf && !cli_is_picture_bytes(bytes, n)) return TERN_OK;
    if (!pdf && c->terminal) cli_live_line("looking at %s", cli_shown(path));
    tern_status st = pdf ? describe_pages(c, path, text, err) : describe(c, bytes, n, err);
    if (st == TERN_OK && !pdf) st = append(c, true, text, err);
    if (st != TERN_OK) {
        free(*text);
        *text = NULL;
    }
    return st;
}
