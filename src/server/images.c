#include "server/images.h"

#include "base/file.h"
#include "base/hex.h"
#include "pictures/sealed.h"
#include "base/bytes.h"
#include "server/refusals.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading a request -------------------------------------------------------------------------------- */

static bool is(const json_t *v, const char *word) {
    return json_is_string(v) && !strcmp(json_string_value(v), word);
}

/* Where a part says its picture is: an address, or bytes in base64. false: the part is no picture. */
static bool source_of(const json_t *part, const json_t **url, const json_t **data, const json_t **detail) {
    const json_t *type = json_object_get(part, "type"), *at = json_object_get(part, "image_url"),
                 *source = json_object_get(part, "source");
    *url = *data = NULL;
    *detail = json_object_get(json_is_object(at) ? at : part, "detail");
    if (is(type, "image_url") || is(type, "input_image")) {
        *url = json_is_object(at) ? json_object_get(at, "url") : at;
        return true;
    }
    if (!is(type, "image")) return false;
    *data = json_object_get(part, "data");
    if (is(json_object_get(source, "type"), "base64")) *data = json_object_get(source, "data");
    if (is(json_object_get(source, "type"), "url")) *url = json_object_get(source, "url");
    return true;
}

static tern_status add_picture(tn_request *r, const json_t *part, const char *where, json_t **out,
                               tern_error *err) {
    const json_t *url, *data, *detail;
    (void)source_of(part, &url, &data, &detail);
    const json_t *from = json_is_string(url) ? url : data;
    TN_FAIL_IF(
        !json_is_string(from), err, TERN_E_INVALID,
        "%s: a picture needs a data: URL, or its bytes in base64 (file_id and others are not supported)",
        where);
    TN_FAIL_IF(!tn_says_nothing(detail) && !is(detail, "low") && !is(detail, "high") && !is(detail, "auto") &&
                   !is(detail, "original"),
               err, TERN_E_INVALID, "%s: 'detail' of a picture is low, high, auto or original", where);
    TN_FAIL_IF(json_array_size(r->pictures) >= TN_REQUEST_PICTURES, err, TERN_E_LIMIT,
               "more than %d pictures in one request", TN_REQUEST_PICTURES);
    if (!r->pictures) r->pictures = json_array();
    const size_t k = json_array_size(r->pictures);
    json_t *p = tn_json_pack("{s:b}", "low", (int)is(detail, "low"));
    tn_json_set(&p, from == url ? "url" : "data", json_incref((json_t *)(uintptr_t)from));
    tn_json_append(&r->pictures, p);
    *out = tn_json_pack("{s:s, s:I}", "type", "image", "picture", (json_int_t)k);
    TN_FAIL_IF(!r->pictures || !*out, err, TERN_E_MEMORY, "no memory for the request");
    return TERN_OK;
}

static bool has_picture(const json_t *content) {
    const json_t *a, *b, *c;
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++)
        if (source_of(json_array_get(content, i), &a, &b, &c)) return true;
    return false;
}

/* Texts that stand together become one part. */
static tern_status add_texts(const json_t *content, size_t from, size_t end, const char *where, bool lines,
                             json_t **parts, tern_error *err) {
    if (from == end) return TERN_OK;
    json_t *some = json_array(), *text = NULL;
    for (size_t i = from; i < end; i++) tn_json_append(&some, json_incref(json_array_get(content, i)));
    tern_status st = some ? tn_content_text(some, where, lines, &text, err)
                          : tn_fail(err, TERN_E_MEMORY, "no memory for the request");
    json_decref(some);
    if (st == TERN_OK) tn_json_append(parts, tn_json_pack("{s:s, s:o}", "type", "text", "text", text));
    return st;
}

tern_status tn_images_content(tn_request *r, const json_t *content, const char *where, bool lines,
                              json_t **out, tern_error *err) {
    if (!has_picture(content)) return tn_content_text(content, where, lines, out, err);
    json_t *parts = json_array();
    const json_t *a, *b, *c;
    size_t from = 0, n = json_array_size(content);
    tern_status st = TERN_OK;
    *out = NULL;
    for (size_t i = 0; i < n && st == TERN_OK; i++) {
        const json_t *p = json_array_get(content, i);
        json_t *picture = NULL;
        if (!source_of(p, &a, &b, &c)) continue;
        st = add_texts(content, from, i, where, lines, &parts, err);
        if (st == TERN_OK) st = add_picture(r, p, where, &picture, err);
        if (st == TERN_OK) tn_json_append(&parts, picture);
        from = i + 1;
    }
    if (st == TERN_OK) st = add_texts(content, from, n, where, lines, &parts, err);
    if (st == TERN_OK && !parts) st = tn_fail(err, TERN_E_MEMORY, "no memory for the request");
    if (st == TERN_OK) *out = parts;
    else json_decref(parts);
    return st;
}

/* ---- in the messages ------------------------------------------------------------------------------------ */

/* Calls for every picture of the messages. */
static size_t each(const json_t *messages, tn_look *const *looks, tn_look **out) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *c = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; json_is_array(c) && k < json_array_size(c); k++) {
            const json_t *at = json_object_get(json_array_get(c, k), "picture");
            if (!json_is_integer(at)) continue;
            if (out) out[n] = looks[json_integer_value(at)];
            n++;
        }
    }
    return n;
}

size_t tn_images_count(const json_t *messages) { return each(messages, NULL, NULL); }

void tn_images_shown(const json_t *messages, tn_look *const *looks, tn_look **out) {
    (void)each(messages, looks, out);
}

/* ---- their bytes ---------------------------------------------------------------------------------------- */

static tern_status from_base64(const char *text, size_t n, tn_bytes *out, tern_error *err) {
    size_t bad;
    if (tn_bytes_from_base64(out, text, n, &bad)) return TERN_OK;
    TN_FAIL_IF(bad < n, err, TERN_E_INVALID, "the picture is not base64 at byte %zu", bad);
    return tn_fail(err, TERN_E_MEMORY, "no memory for a picture of %zu bytes", n);
}

static bool lies_below(const char *real, const char *folder) {
    size_t n = strlen(folder);
    return n && !strncmp(real, folder, n) && (real[n] == '/' || folder[n - 1] == '/');
}

/* The file that is meant, where it lies below one of the folders, links followed: a path from the root, or, of a file:
 * address, one that begins at a folder, as llama.cpp's server has them. The caller's; NULL: there is none. */
static char *allowed_file(const char *path, bool of_address, const char *const *folders) {
    char *found = NULL;
    for (; folders && *folders && !found; folders++) {
        char *folder = realpath(*folders, NULL), *joined = NULL;
        char *real = tn_file_is_absolute(path) ? realpath(path, NULL) : NULL;
        if (folder && real && lies_below(real, folder)) found = real;
        else free(real);
        tn_bytes b = {0};
        if (folder && !found && of_address && tn_bytes_put(&b, folder) && tn_bytes_put(&b, "/") &&
            tn_bytes_put(&b, path))
            joined = realpath(b.p, NULL);
        free(b.p);
        if (joined && lies_below(joined, folder)) found = joined;
        else free(joined);
        free(folder);
    }
    return found;
}

/* One answer for whatever is not let in, there or not: nobody learns which files there are. */
static tern_status from_file(const char *path, bool of_address, const tn_images_from *from, tn_bytes *out,
                             tern_error *err) {
    char *real = allowed_file(path, of_address, from->folders);
    bool ok = real != NULL;
    tern_status st = ok ? tn_file_slurp(real, TN_PICTURE_MAX_BYTES, &out->p, &out->n, NULL) : TERN_OK;
    free(real);
    TN_FAIL_IF(!ok || st == TERN_E_IO, err, TERN_E_INVALID,
               "there is no picture at this path that may be read (tern serve --allow-path DIR)");
    TN_FAIL_IF(st != TERN_OK, err, st, "the picture has more than %d bytes", TN_PICTURE_MAX_BYTES);
    return TERN_OK;
}

static tern_status from_url(const char *url, const tn_images_from *from, tn_bytes *out, tern_error *err) {
    if (!strncasecmp(url, "data:", 5)) {
        const char *comma = strchr(url, ',');
        size_t n_head = comma ? (size_t)(comma - url) : 0;
        TN_FAIL_IF(n_head < 12 || strncasecmp(comma - 7, ";base64", 7), err, TERN_E_INVALID,
                   "the picture's data: URL is not in base64");
        return from_base64(comma + 1, strlen(comma + 1), out, err);
    }
    TN_FAIL_IF(!strncasecmp(url, "http:", 5) || !strncasecmp(url, "https:", 6), err, TERN_E_UNSUPPORTED,
               "nothing is fetched from the net: send the picture itself, as a data: URL");
    const bool is_file = !strncasecmp(url, "file://", 7);
    TN_FAIL_IF(!is_file && url[0] != '/', err, TERN_E_INVALID,
               "want the picture as a data: URL (data:image/png;base64,...)");
    char *path = strdup(is_file ? url + 7 : url);
    TN_FAIL_IF(!path, err, TERN_E_MEMORY, "no memory for a picture");
    if (is_file) (void)tn_percent_decode(path);
    tern_status st = from_file(path, is_file, from, out, err);
    free(path);
    return st;
}

enum { AT_ONCE = 2 };

static void take_turn(tn_images_turns *t) {
    pthread_mutex_lock(&t->mu);
    while (t->n == AT_ONCE) pthread_cond_wait(&t->is_free, &t->mu);
    t->n++;
    pthread_mutex_unlock(&t->mu);
}

static void end_turn(tn_images_turns *t) {
    pthread_mutex_lock(&t->mu);
    t->n--;
    pthread_cond_signal(&t->is_free);
    pthread_mutex_unlock(&t->mu);
}

/* Clients are not told where files lie: of every path its last name is left. */
static void hide_folders(tern_error *err) {
    char *to = err->message;
    for (const char *at = err->message; *at;) {
        const size_t n = strcspn(at, " ");
        const char *last = at;
        for (size_t i = 0; i < n; i++)
            if (at[i] == '/' && i + 1 < n) last = at + i + 1;
        memmove(to, last, (size_t)(at + n - last));
        to += at + n - last;
        at += n;
        while (*at == ' ') *to++ = *at++;
    }
    *to = 0;
}

static tern_status look_at(const json_t *p, tern_engine *e, const tn_images_from *from, tn_look **out,
                           tern_error *err) {
    const json_t *url = json_object_get(p, "url"), *data = json_object_get(p, "data");
    tn_bytes bytes = {0};
    tn_ctx ctx;
    tn_picture picture;
    tn_ctx_init(&ctx, NULL);
    tern_status st = url ? from_url(json_string_value(url), from, &bytes, err)
                         : from_base64(json_string_value(data), json_string_length(data), &bytes, err);
    if (st != TERN_OK) {
        free(bytes.p);
        return st;
    }
    take_turn(from->turns);
    st = tn_picture_decode_sealed(from->reader, &ctx, (const uint8_t *)bytes.p, bytes.n, &picture, err);
    free(bytes.p);
    if (st != TERN_OK) hide_folders(err);
    if (st == TERN_OK) {
        st = tn_look_at(e, &picture, json_is_true(json_object_get(p, "low")), out, err);
        tn_picture_free(&picture);
    }
    end_turn(from->turns);
    return st;
}

tern_status tn_images_look(const tn_request *r, tern_engine *e, const tn_images_from *from, tn_look ***looks,
                           tern_error *err) {
    const size_t n = json_array_size(r->pictures);
    tern_error blind;
    *looks = NULL;
    if (!n) return TERN_OK;
    TN_FAIL_IF(!from->reader, err, TERN_E_UNSUPPORTED, "this server reads no pictures");
    if (!tn_sight_can(e, &blind)) {
        hide_folders(&blind);
        return tn_fail(err, r->api == TN_API_MESSAGES ? TN_E_BLIND : TERN_E_UNSUPPORTED,
                       "image input is not supported: %.450s", blind.message);
    }
    *looks = calloc(n, sizeof **looks);
    TN_FAIL_IF(!*looks, err, TERN_E_MEMORY, "no memory for the request");
    for (size_t i = 0; i < n; i++) {
        tern_error why = {0};
        tern_status st = look_at(json_array_get(r->pictures, i), e, from, &(*looks)[i], &why);
        if (st == TERN_OK) continue;
        tn_images_free(*looks, n);
        *looks = NULL;
        return tn_fail(err, st == TERN_E_FORMAT ? TERN_E_INVALID : st, "picture %zu: %.400s", i + 1,
                       why.message);
    }
    return TERN_OK;
}

void tn_images_free(tn_look **looks, size_t n) {
    for (size_t i = 0; looks && i < n; i++) tn_look_close(&looks[i]);
    free(looks);
}
