/* Pictures by the public interface: decoding them by libtern-pictures, and prompts with them. */
#include "base/json.h"
#include "base/sized.h"
#include "base/status.h"
#include "media/decoder.h"
#include "session/session.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libtern-pictures.so.1"

static _Atomic(const tn_decoder_ops *) provided;

void tn_decoder_provide(const tn_decoder_ops *ops) { atomic_store(&provided, ops); }

/* Finds the decoders' library. It stays loaded. */
static tern_status find_decoder(const tn_decoder_ops **out, tern_error *err) {
    *out = atomic_load(&provided);
    if (*out) return TERN_OK;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    TN_FAIL_IF(!library, err, TERN_E_UNSUPPORTED, "decoding a picture needs " LIBRARY " beside libtern: %s",
               dlerror());
    const tn_decoder_ops *ops = dlsym(library, TN_DECODER_PLUGIN);
    bool ours = ops && ops->size_bytes == sizeof *ops && !strcmp(ops->version, TERN_VERSION_STRING);
    if (!ours) dlclose(library);
    TN_FAIL_IF(!ours, err, TERN_E_UNSUPPORTED, LIBRARY " is not that of tern %s", TERN_VERSION_STRING);
    tn_decoder_provide(*out = ops);
    return TERN_OK;
}

tern_status tern_image_decode(const void *bytes, size_t n_bytes, tern_image *out, tern_error *err) {
    const tn_decoder_ops *ops;
    tn_picture p;
    tn_ctx ctx;
    TN_FAIL_IF(!bytes || !out, err, TERN_E_INVALID, "no bytes, or no place for a picture");
    *out = (tern_image){0};
    TN_TRY(find_decoder(&ops, err));
    tn_ctx_init(&ctx, NULL);
    TN_TRY(ops->decode(&ctx, bytes, n_bytes, &p, err));
    const size_t n = 3 * (size_t)p.width * (size_t)p.height;
    uint8_t *rgb = malloc(n);
    if (rgb) {
        memcpy(rgb, p.rgb, n);
        *out = (tern_image){p.width, p.height, rgb};
    }
    tn_picture_free(&p);
    TN_FAIL_IF(!rgb, err, TERN_E_MEMORY, "no memory for the pixels of a picture");
    return TERN_OK;
}

void tern_image_free(tern_image *image) {
    if (!image) return;
    free((void *)(uintptr_t)image->rgb);
    *image = (tern_image){0};
}

bool tern_engine_sees(const tern_engine *e) { return e && tn_sight_can((tern_engine *)(uintptr_t)e, NULL); }

/* ---- prompts --------------------------------------------------------------------------------------------- */

/* The messages as JSON; those of texts alone have the images in front of the last one's. */
static tern_status messages_of(const tern_message *msgs, size_t n, size_t n_images, char **out,
                               tern_error *err) {
    for (size_t i = 0; i < n; i++)
        TN_FAIL_IF(!msgs[i].role || !msgs[i].content, err, TERN_E_INVALID,
                   "message %zu lacks its role or content", i);
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *parts = json_array();
        for (size_t k = 0; i + 1 == n && k < n_images; k++)
            tn_json_append(&parts, tn_json_pack("{s:s}", "type", "image"));
        tn_json_append(&parts, tn_json_pack("{s:s, s:s}", "type", "text", "text", msgs[i].content));
        tn_json_append(&all, tn_json_pack("{s:s, s:o}", "role", msgs[i].role, "content", parts));
    }
    tern_status st = tn_json_text(all, JSON_COMPACT, out, err);
    json_decref(all);
    return st;
}

static tern_status look_at(tern_session *s, const tern_image *images, size_t n, tn_look **looks,
                           tern_error *err) {
    for (size_t i = 0; i < n; i++) {
        const tn_picture p = {
            .width = images[i].width, .height = images[i].height, .rgb = (uint8_t *)(uintptr_t)images[i].rgb};
        TN_FAIL_IF(!images[i].rgb || p.width < 1 || p.height < 1, err, TERN_E_INVALID,
                   "image %zu has no pixels", i);
        TN_TRY(tn_picture_check("image", (uint64_t)p.width, (uint64_t)p.height, err));
        TN_TRY(tn_look_at(s->e, &p, false, &looks[i], err));
    }
    return TERN_OK;
}

static tern_status encode(tern_session *s, tn_look *const *looks, size_t n, tern_error *err) {
    tern_status st = TERN_OK;
    for (size_t i = 0; i < n && st == TERN_OK; i++)
        for (bool more = true; more && st == TERN_OK;) st = tn_look_encode(looks[i], &s->cancel, &more, err);
    if (st == TERN_E_CANCELLED) atomic_store(&s->cancel, false);
    return st == TERN_OK ? tn_session_look(s, looks, n, err) : st;
}

static tern_status look(tern_session *s, const tern_chat_options *o, const tern_image *images,
                        size_t n_images, tn_look **looks, int32_t *ids, size_t cap, size_t *n_ids,
                        tern_error *err) {
    int32_t *all;
    TN_TRY(look_at(s, images, n_images, looks, err));
    TN_TRY(tn_look_chat(s->e, o, looks, n_images, &all, n_ids, err));
    const bool fits = *n_ids <= cap;
    if (fits) memcpy(ids, all, *n_ids * sizeof *ids);
    free(all);
    TN_FAIL_IF(!fits, err, TERN_E_LIMIT, "the prompt has %zu tokens, and there is room for %zu", *n_ids, cap);
    return encode(s, looks, n_images, err);
}

tern_status tern_session_look(tern_session *s, const tern_message *msgs, size_t n_msgs,
                              const tern_chat_options *opt, const tern_image *images, size_t n_images,
                              int32_t *ids, size_t cap, size_t *n_ids, tern_error *err) {
    tern_chat_options o;
    char *messages = NULL;
    TN_FAIL_IF(
        !s || !n_ids || (!ids && cap) || (!images && n_images) || (!msgs && n_msgs), err, TERN_E_INVALID,
        "tern_session_look needs a session, messages, images, a place for the ids and one for their number");
    tern_chat_options_defaults(&o);
    if (opt)
        TN_TRY(tn_sized_in(&o, sizeof o, opt, opt->size_bytes, TN_SIZE_UP_TO(tern_chat_options, no_answer),
                           "tern_chat_options", err));
    if (!o.messages) {
        TN_TRY(messages_of(msgs, n_msgs, n_images, &messages, err));
        o.messages = messages;
    }
    tn_look **looks = tn_calloc(&s->e->ctx, TN_MEM_OTHER, n_images + 1, sizeof(tn_look *));
    tern_status st = looks ? look(s, &o, images, n_images, looks, ids, cap, n_ids, err)
                           : tn_fail(err, TERN_E_MEMORY, "no memory for %zu images", n_images);
    for (size_t i = 0; looks && i < n_images; i++) tn_look_close(&looks[i]);
    tn_free(&s->e->ctx, looks);
    free(messages);
    return st;
}
