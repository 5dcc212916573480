#include "media/prompt.h"

#include "base/json.h"
#include "base/status.h"
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A place where a picture stands is marked in one of two ways: a template that knows pictures writes the family's mark
 * for a part of a message; through any other goes a text that nobody else writes. */
typedef struct places {
    bool by_template;
    char text[64]; /* of the other way */
} places;

typedef struct asked {
    tn_ctx *ctx;
    const tn_tokenizer *t;
    const tern_chat_options *o;
    const tn_medium *const *media;
    size_t n_media;
    const char *source;     /* of the template; NULL: plain */
    const char *mark, *row; /* of the family, as media/medium.h has them; NULL without media */
} asked;

/* ---- messages --------------------------------------------------------------------------------------------- */

static bool is_image(const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    return type && !strcmp(type, "image");
}

static size_t images_of(const json_t *messages) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *c = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; json_is_array(c) && k < json_array_size(c); k++)
            n += is_image(json_array_get(c, k));
    }
    return n;
}

static tern_status parse(const char *messages, json_t **out, tern_error *err) {
    json_error_t je;
    *out = tn_json_parse(messages, strlen(messages), 0, &je);
    if (json_is_array(*out)) return TERN_OK;
    const char *why = *out ? "" : je.text;
    json_decref(*out);
    *out = NULL;
    return tn_fail(err, TERN_E_INVALID, "the messages are no JSON array%s%s", *why ? ": " : "", why);
}

/* Every content becomes a list of parts: templates that know pictures look at the first part of each. */
static json_t *as_parts(const json_t *content) {
    if (!json_is_string(content)) return tn_json_copy(content);
    json_t *parts = json_array();
    tn_json_append(&parts, tn_json_pack("{s:s, s:O}", "type", "text", "text", content));
    return parts;
}

/* Every content becomes a text, in which the places of pictures are marked. */
static json_t *as_text(const json_t *content, const places *p) {
    if (!json_is_array(content)) return tn_json_copy(content);
    size_t n = 0, at = 0, n_mark = strlen(p->text);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        n += is_image(part) ? n_mark : json_string_length(json_object_get(part, "text"));
    }
    char *all = malloc(n + 1);
    for (size_t i = 0; all && i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
        size_t k = is_image(part) ? n_mark : json_string_length(text);
        if (k) memcpy(all + at, is_image(part) ? p->text : json_string_value(text), k);
        at += k;
    }
    json_t *s = all ? tn_json_string(all, n) : NULL;
    free(all);
    return s;
}

static tern_status messages_for(const json_t *messages, const places *p, char **out, tern_error *err) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = tn_json_copy_flat(json_array_get(messages, i));
        const json_t *content = json_object_get(m, "content");
        if (m && content && !json_is_null(content))
            tn_json_set(&m, "content", p->by_template ? as_parts(content) : as_text(content, p));
        tn_json_append(&all, m);
    }
    tern_status st = tn_json_text(all, JSON_COMPACT, out, err);
    json_decref(all);
    return st;
}

/* A text that occurs nowhere else in what is rendered, where the texts of a message stand one after
 * another. */
static tern_status make_text(const asked *a, const json_t *messages, places *p, tern_error *err) {
    static const places joined = {.by_template = false};
    const char *others[] = {a->o->tools, a->o->variables, a->source};
    char *all;
    TN_TRY(messages_for(messages, &joined, &all, err));
    for (unsigned i = 0;; i++) {
        snprintf(p->text, sizeof p->text, "[picture %u of this message]", i);
        bool taken = strstr(all, p->text);
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            taken = taken || (others[k] && strstr(others[k], p->text));
        if (!taken) break;
    }
    free(all);
    return TERN_OK;
}

/* ---- the rendered text -------------------------------------------------------------------------------------- */

static void put_medium(const tn_medium *m, size_t number, const places *p, tn_segments *out) {
    const char *apart = p->by_template ? "" : tn_medium_apart(m->kind);
    tn_medium_marks(m, (int32_t)number, out);
    tn_segments_add(out, apart, strlen(apart), false);
}

/* Copies the text and puts a medium's marks where its place is marked. Returns how many places there were. */
static size_t expand(const asked *a, const places *p, const tn_segments *in, tn_segments *out) {
    const char *what = p->by_template ? a->mark : p->text;
    size_t n_what = strlen(what), n_found = 0;
    for (size_t i = 0, at = 0; i < in->n_seg; i++) {
        bool content = in->seg[i].content;
        while (at < in->seg[i].end) {
            const char *from = in->text + at, *hit = NULL;
            size_t n = in->seg[i].end - at;
            if (content != p->by_template) hit = memmem(from, n, what, n_what);
            if (hit) n = (size_t)(hit - from);
            tn_segments_add(out, from, n, content);
            if (hit && n_found < a->n_media) put_medium(a->media[n_found], n_found, p, out);
            n_found += hit != NULL;
            at += n + (hit ? n_what : 0);
        }
    }
    return n_found;
}

static tern_status no_memory(tern_error *err) {
    return tn_fail(err, TERN_E_MEMORY, "no memory for a prompt with pictures");
}

static tern_status through_template(const asked *a, const json_t *messages, tn_segments *out,
                                    tern_error *err) {
    /* without pictures the prompt is what it would be in a model that does not see */
    places p = {.by_template = a->n_media && strstr(a->source, "image")};
    tn_segments text;
    char *said;
    TN_TRY(make_text(a, messages, &p, err));
    TN_TRY(messages_for(messages, &p, &said, err));
    tern_chat_options o = *a->o;
    o.messages = said;
    tn_segments_init(&text, a->ctx);
    tern_status st = tn_chat_segments(a->t, NULL, 0, &o, &text, err);
    size_t n = st == TERN_OK ? expand(a, &p, &text, out) : 0;
    if (st == TERN_OK && n != a->n_media)
        st =
            tn_fail(err, TERN_E_UNSUPPORTED,
                    "the model's chat template has places for %zu pictures where %zu were given: another one "
                    "(--chat-template), or --raw, may take them",
                    n, a->n_media);
    tn_segments_free(&text);
    free(said);
    return st;
}

/* ---- ids ---------------------------------------------------------------------------------------------------- */

/* The ids, in which the mark's own become rows. */
static tern_status tokens_of(const asked *a, const tn_segments *text, int32_t **ids, size_t *n_ids,
                             tern_error *err) {
    const int32_t row = a->row ? tn_tokenizer_find(a->t, a->row) : -1;
    size_t n_rows = 0, want = 0;
    tern_status st = tn_tokenize_segments(a->t, text, a->source, true, NULL, 0, n_ids, err);
    if (st != TERN_OK && st != TERN_E_LIMIT) return st;
    *ids = tn_alloc(a->ctx, TN_MEM_TEXT, *n_ids + 1, sizeof **ids);
    if (!*ids) return no_memory(err);
    st = tn_tokenize_segments(a->t, text, a->source, true, *ids, *n_ids, n_ids, err);
    for (size_t i = 0; st == TERN_OK && i < *n_ids; i++) {
        if ((*ids)[i] != row) continue;
        (*ids)[i] = TN_MEDIA_ROW;
        n_rows++;
    }
    for (size_t i = 0; i < a->n_media; i++) want += (size_t)tn_medium_rows(a->media[i]);
    if (st == TERN_OK && n_rows != want)
        st = tn_fail(err, TERN_E_UNSUPPORTED, "the vocabulary gives %zu rows for the %zu of the pictures",
                     n_rows, want);
    if (st == TERN_OK) return TERN_OK;
    tn_free(a->ctx, *ids);
    *ids = NULL;
    return st;
}

/* The media's family, whose marks must be in the vocabulary. */
static tern_status find_marks(asked *a, tern_error *err) {
    if (!a->n_media) return TERN_OK;
    a->mark = tn_medium_mark(a->media[0]->kind);
    a->row = tn_medium_row(a->media[0]->kind);
    const char *const marks[] = {a->row, tn_medium_begin(a->media[0]->kind),
                                 tn_medium_end(a->media[0]->kind)};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        TN_FAIL_IF(tn_tokenizer_find(a->t, marks[i]) < 0, err, TERN_E_UNSUPPORTED,
                   "the model's vocabulary has no mark of pictures (%s): it was not made to see, or not by "
                   "this encoder",
                   marks[i]);
    return TERN_OK;
}

static tern_status finish(const asked *a, tern_status st, tn_segments *text, int32_t **ids, size_t *n_ids,
                          tern_error *err) {
    if (st == TERN_OK && text->failed) st = no_memory(err);
    if (st == TERN_OK) st = tokens_of(a, text, ids, n_ids, err);
    tn_segments_free(text);
    return st;
}

tern_status tn_media_chat(tn_ctx *ctx, const tn_tokenizer *t, const tern_chat_options *o,
                          const tn_medium *const *media, size_t n_media, int32_t **ids, size_t *n_ids,
                          tern_error *err) {
    asked a = {.ctx = ctx, .t = t, .o = o, .media = media, .n_media = n_media};
    json_t *messages;
    tn_segments text;
    *ids = NULL;
    TN_TRY(find_marks(&a, err));
    TN_TRY(tn_chat_source(t, o, &a.source, err));
    TN_TRY(parse(o->messages, &messages, err));
    tn_segments_init(&text, ctx);
    size_t n = images_of(messages);
    tern_status st =
        n == n_media ? through_template(&a, messages, &text, err)
                     : tn_fail(err, TERN_E_INVALID,
                               "the messages have places for %zu pictures, and %zu are given", n, n_media);
    json_decref(messages);
    return finish(&a, st, &text, ids, n_ids, err);
}

tern_status tn_media_plain(tn_ctx *ctx, const tn_tokenizer *t, const char *text, size_t n_text,
                           const tn_medium *const *media, size_t n_media, int32_t **ids, size_t *n_ids,
                           tern_error *err) {
    asked a = {.ctx = ctx, .t = t, .media = media, .n_media = n_media};
    tn_segments all;
    *ids = NULL;
    TN_TRY(find_marks(&a, err));
    tn_segments_init(&all, ctx);
    for (size_t i = 0; i < n_media; i++) tn_medium_marks(media[i], (int32_t)i, &all);
    tn_segments_add(&all, text, n_text, true);
    return finish(&a, TERN_OK, &all, ids, n_ids, err);
}
