#include "cli/looking.h"

#include "base/file.h"
#include "base/status.h"
#include "cli/output.h"
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
    const tn_tower_shape *shape;
    if (l->n && tn_sight_shape(e, &shape, &err) != TERN_OK) return cli_failed(&err), false;
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

int32_t *cli_looking_prompt(const looking *l, tern_engine *e, const char *system, const char *text,
                            const char *source, bool raw, size_t *n_ids) {
    tn_look *looks[LOOK_MOST];
    size_t n = cli_looking_all(l, looks);
    int32_t *ids = NULL;
    char *messages = NULL;
    tern_error err;
    tern_status st;
    if (raw) {
        st = tn_look_plain(e, text, strlen(text), looks, n, &ids, n_ids, &err);
    } else {
        json_t *all = json_array();
        if (system) tn_json_append(&all, message("system", system, 0));
        tn_json_append(&all, message("user", text, n));
        st = tn_json_text(all, JSON_COMPACT, &messages, &err);
        json_decref(all);
        tern_chat_options o;
        tern_chat_options_defaults(&o);
        o.messages = messages;
        o.chat_template = source;
        if (st == TERN_OK) st = tn_look_chat(e, &o, looks, n, &ids, n_ids, &err);
        free(messages);
    }
    if (st != TERN_OK) cli_failed(&err);
    return ids;
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
        tn_json_append(&all, tn_json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f}", "file",
                                          p->name, "width", (int)k->width, "height", (int)k->height, "views",
                                          (int)k->medium.n_views, "grid_rows", (int)k->medium.rows,
                                          "grid_columns", (int)k->medium.columns, "rows", (int)k->n_rows,
                                          "encoded", (int)k->encoded, "from_memory", (int)k->in_memory,
                                          "from_disk", (int)k->on_disk, "encode_ms", k->encode_s * 1e3));
    }
    return all;
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
