#include "server/talks.h"

#include "base/file.h"
#include "base/outfile.h"
#include "base/status.h"
#include "server/refusals.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

enum {
    FOLDER_BYTES = TN_TALKS_FOLDER,
    PATH_BYTES = 4096,
    ID_DIGITS = TN_TALK_ID - 1,
    WORDS_MAX = 8,
    AROUND_BYTES = 60
};

struct tn_talks {
    tn_ctx *ctx;
    char folder[FOLDER_BYTES];
    pthread_mutex_t mu;
    int lock_fd; /* flock: between processes */
};

/* ---- files ----------------------------------------------------------------------------------------- */

static bool default_folder(const char *name, char out[FOLDER_BYTES]) {
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME"), *middle = "";
    if (!data || !tn_file_is_absolute(data)) data = home, middle = "/.local/share";
    return data && tn_file_is_absolute(data) &&
           snprintf(out, FOLDER_BYTES, "%s%s/tern/%s", data, middle, name) < FOLDER_BYTES;
}

bool tn_talk_id_ok(const char *id) {
    return strlen(id) == ID_DIGITS && strspn(id, "0123456789abcdef") == ID_DIGITS;
}

tern_status tn_talk_new_id(char out[TN_TALK_ID], tern_error *err) {
    uint64_t r;
    TN_FAIL_IF(getrandom(&r, sizeof r, 0) != sizeof r, err, TERN_E_IO, "no random numbers: %s",
               strerror(errno));
    snprintf(out, TN_TALK_ID, "%016llx", (unsigned long long)r);
    return TERN_OK;
}

static void path_of(const char *folder, const char *id, char out[PATH_BYTES]) {
    snprintf(out, PATH_BYTES, "%.*s/%.16s.json", FOLDER_BYTES, folder, id);
}

/* The id that a file's name holds. */
static bool id_of(const char *name, const char *ending, char out[TN_TALK_ID]) {
    if (strlen(name) != ID_DIGITS + strlen(ending) || strcmp(name + ID_DIGITS, ending) != 0) return false;
    snprintf(out, TN_TALK_ID, "%.16s", name);
    return tn_talk_id_ok(out);
}

/* The same for what a writer that was killed left (base/outfile.c: "NAME.sixteen digits.tmp"). */
static bool left_of(const char *name, const char *ending) {
    char whole[64], id[TN_TALK_ID];
    size_t n = ID_DIGITS + strlen(ending);
    snprintf(whole, sizeof whole, "%.*s", (int)n, name);
    return id_of(whole, ending, id) && strlen(name) == n + 21 && !strcmp(name + n + 17, ".tmp");
}

/* Zeros over what fd holds. A conversation that was replaced has no name any more, but its bytes are on
 * the disk. */
static bool wipe(int fd) {
    static const char zeros[4096];
    struct stat sb;
    bool ok = fd >= 0 && !fstat(fd, &sb) && S_ISREG(sb.st_mode);
    for (off_t at = 0; ok && at < sb.st_size;) {
        off_t left = sb.st_size - at;
        ssize_t n = pwrite(fd, zeros, left < (off_t)sizeof zeros ? (size_t)left : sizeof zeros, at);
        if (n < 0 && errno == EINTR) continue;
        ok = n > 0;
        at += n;
    }
    return ok && !fdatasync(fd);
}

static int open_to_wipe(const char *path) {
    return open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

tern_status tn_talks_erase_file(const char *path, tern_error *err) {
    int fd = open_to_wipe(path);
    errno = 0;
    bool wiped = wipe(fd);
    const int why = errno;
    if (fd >= 0) close(fd);
    TN_FAIL_IF(unlink(path) && errno != ENOENT, err, TERN_E_IO, "%s: cannot be erased: %s", path,
               strerror(errno));
    TN_FAIL_IF(fd >= 0 && !wiped, err, TERN_E_IO,
               "%s: it is gone, but its bytes could not be overwritten: %s", path,
               why ? strerror(why) : "the disk takes none");
    return TERN_OK;
}

/* ---- opening --------------------------------------------------------------------------------------- */

tern_status tn_talks_make_folder(const char *name, char out[TN_TALKS_FOLDER], tern_error *err) {
    TN_FAIL_IF(!default_folder(name, out), err, TERN_E_IO, "neither XDG_DATA_HOME nor HOME names a folder");
    return tn_file_private_folder(out, err);
}

tern_status tn_talks_open(tn_ctx *ctx, tn_talks **out, tern_error *err) {
    *out = NULL;
    tn_talks *t = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for conversations");
    t->ctx = ctx;
    char path[PATH_BYTES];
    tern_status st = tn_talks_make_folder("conversations", t->folder, err);
    if (st == TERN_OK) {
        snprintf(path, sizeof path, "%.*s/lock", FOLDER_BYTES, t->folder);
        t->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (t->lock_fd < 0) st = tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
    }
    if (st != TERN_OK) {
        tn_free(ctx, t);
        return st;
    }
    pthread_mutex_init(&t->mu, NULL);
    *out = t;
    return TERN_OK;
}

void tn_talks_close(tn_talks **pt) {
    tn_talks *t = *pt;
    *pt = NULL;
    if (!t) return;
    close(t->lock_fd);
    pthread_mutex_destroy(&t->mu);
    tn_free(t->ctx, t);
}

const char *tn_talks_folder(const tn_talks *t) { return t->folder; }

void tn_talks_lock(tn_talks *t) {
    pthread_mutex_lock(&t->mu);
    while (flock(t->lock_fd, LOCK_EX) && errno == EINTR) {
    }
}

void tn_talks_unlock(tn_talks *t) {
    flock(t->lock_fd, LOCK_UN);
    pthread_mutex_unlock(&t->mu);
}

/* ---- one conversation ------------------------------------------------------------------------------- */

tern_status tn_talks_get(tn_talks *t, const char *id, json_t **out, tern_error *err) {
    char path[PATH_BYTES];
    struct stat sb;
    *out = NULL;
    path_of(t->folder, id, path);
    TN_FAIL_IF(!tn_talk_id_ok(id) || (lstat(path, &sb) && errno == ENOENT), err, TN_E_GONE,
               "there is no conversation %.16s", tn_talk_id_ok(id) ? id : "of this name");
    TN_TRY(tn_json_read(path, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, out, err));
    if (json_is_array(json_object_get(*out, "nodes"))) return TERN_OK;
    json_decref(*out);
    *out = NULL;
    return tn_fail(err, TERN_E_FORMAT, "%s: not a conversation of tern", path);
}

static size_t count(const tn_talks *t) {
    DIR *d = opendir(t->folder);
    size_t n = 0;
    char id[TN_TALK_ID];
    for (struct dirent *f; d && (f = readdir(d));) n += id_of(f->d_name, ".json", id);
    if (d) closedir(d);
    return n;
}

tern_status tn_talks_put(tn_talks *t, const char *id, const json_t *talk, tern_error *err) {
    static const tn_outkind kind = {.what = "a conversation", .begins = {"{"}, .is_private = true};
    char path[PATH_BYTES], *text;
    tn_outfile *f = NULL;
    assert(tn_talk_id_ok(id));
    path_of(t->folder, id, path);
    TN_TRY(tn_json_text(talk, JSON_INDENT(1), &text, err));
    size_t n = strlen(text);
    tern_status st = TERN_OK;
    if (n > TN_TALK_BYTES)
        st = tn_fail(err, TERN_E_LIMIT, "a conversation may have %d bytes, this one has %zu", TN_TALK_BYTES,
                     n);
    int old = open_to_wipe(path);
    if (st == TERN_OK && old < 0 && count(t) >= TN_TALKS_MAX)
        st = tn_fail(err, TERN_E_LIMIT, "there are %d conversations, and no more may be: erase some",
                     TN_TALKS_MAX);
    if (st == TERN_OK) st = tn_outfile_open(t->ctx, path, &kind, &f, err);
    if (st == TERN_OK) st = tn_outfile_write(f, text, n, err);
    if (st == TERN_OK) st = tn_outfile_commit(&f, err);
    tn_outfile_abort(&f);
    if (st == TERN_OK && old >= 0)
        (void)wipe(old); /* it has no name any more: nothing is lost where that fails */
    if (old >= 0) close(old);
    free(text);
    return st;
}

tern_status tn_talks_erase(tn_talks *t, const char *id, tern_error *err) {
    char path[PATH_BYTES];
    struct stat sb;
    path_of(t->folder, id, path);
    TN_FAIL_IF(!tn_talk_id_ok(id) || (lstat(path, &sb) && errno == ENOENT), err, TN_E_GONE,
               "there is no such conversation");
    return tn_talks_erase_file(path, err);
}

tern_status tn_talks_clear_folder(const char *name, const char *ending, int64_t *n, tern_error *err) {
    char folder[FOLDER_BYTES], path[2 * PATH_BYTES], id[TN_TALK_ID];
    *n = 0;
    DIR *d = default_folder(name, folder) ? opendir(folder) : NULL;
    tern_status st = TERN_OK;
    for (struct dirent *f; st == TERN_OK && d && (f = readdir(d));) {
        bool whole = id_of(f->d_name, ending, id);
        if (!whole && !left_of(f->d_name, ending)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        st = tn_talks_erase_file(path, err);
        *n += st == TERN_OK && whole;
    }
    if (d) closedir(d);
    return st;
}

tern_status tn_talks_clear(int64_t *n, tern_error *err) {
    return tn_talks_clear_folder("conversations", ".json", n, err);
}

/* ---- the list and the search ------------------------------------------------------------------------ */

/* A text in lower case, character by character, and where each of its bytes stands in the text. */
typedef struct folded {
    char *p;
    uint32_t *at;
    size_t n;
} folded;

static bool fold(const char *text, folded *out) {
    size_t n = strlen(text), cap = 2 * n + 8;
    *out = (folded){.p = malloc(cap), .at = malloc(cap * sizeof *out->at)};
    if (!out->p || !out->at) return false;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_uint8_t b[4];
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
        if (k <= 0) {
            i++;
            continue;
        }
        utf8proc_ssize_t m = utf8proc_encode_char(utf8proc_tolower(c), b);
        for (utf8proc_ssize_t j = 0; j < m && out->n + 1 < cap; j++) {
            out->at[out->n] = (uint32_t)i;
            out->p[out->n++] = (char)b[j];
        }
        i += (size_t)k;
    }
    out->p[out->n] = 0;
    return true;
}

static void unfold(folded *f) {
    free(f->p);
    free(f->at);
}

/* The text around the byte `at`, cut between characters. */
static json_t *around(const char *text, size_t at, size_t n_hit) {
    size_t n = strlen(text), from = at > AROUND_BYTES ? at - AROUND_BYTES : 0,
           to = at + n_hit + AROUND_BYTES < n ? at + n_hit + AROUND_BYTES : n;
    while (from && ((uint8_t)text[from] & 0xc0) == 0x80) from--;
    while (to < n && ((uint8_t)text[to] & 0xc0) == 0x80) to++;
    return tn_json_string(text + from, to - from);
}

/* Which of the words stand in the text, as bits; what stands around the first of all. */
static unsigned look(const char *text, char *const words[], int n_words, json_t **found) {
    folded f;
    unsigned bits = 0;
    bool ok = text && fold(text, &f);
    for (int i = 0; ok && i < n_words; i++) {
        const char *hit = strstr(f.p, words[i]);
        if (!hit) continue;
        bits |= 1u << i;
        if (!*found) *found = around(text, f.at[hit - f.p], strlen(words[i]));
    }
    if (text) unfold(&f);
    return bits;
}

/* Adds the conversation to the list where it holds all words. Takes talk. */
static void list_one(const char *id, json_t *talk, char *const words[], int n_words, json_t **list) {
    const json_t *nodes = json_object_get(talk, "nodes");
    const char *title = json_string_value(json_object_get(talk, "title"));
    json_t *found = NULL, *none = NULL;
    unsigned bits = look(title, words, n_words, &none);
    json_decref(none);
    for (size_t i = 0; i < json_array_size(nodes); i++)
        bits |= look(json_string_value(json_object_get(json_array_get(nodes, i), "content")), words, n_words,
                     &found);
    if (bits == (1u << n_words) - 1) {
        json_t *v = tn_json_pack("{s:s, s:s, s:I, s:I, s:I}", "id", id, "title", title ? title : "",
                                 "created", json_integer_value(json_object_get(talk, "created")), "updated",
                                 json_integer_value(json_object_get(talk, "updated")), "n_nodes",
                                 (json_int_t)json_array_size(nodes));
        if (found) tn_json_set(&v, "found", json_incref(found));
        tn_json_append(list, v);
    }
    json_decref(found);
    json_decref(talk);
}

static int by_updated(const void *a, const void *b) {
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "updated")),
               y = json_integer_value(json_object_get(*(json_t *const *)b, "updated"));
    return (x < y) - (x > y);
}

static tern_status sort(json_t *list, json_t **out, tern_error *err) {
    size_t n = json_array_size(list);
    json_t **v = malloc((n + 1) * sizeof(json_t *)), *sorted = json_array();
    for (size_t i = 0; v && i < n; i++) v[i] = json_array_get(list, i);
    if (v) qsort(v, n, sizeof *v, by_updated);
    for (size_t i = 0; v && i < n; i++) tn_json_append(&sorted, json_incref(v[i]));
    *out = v ? sorted : NULL;
    if (!v) json_decref(sorted);
    free(v);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the list of conversations");
    return TERN_OK;
}

tern_status tn_talks_list(tn_talks *t, const char *query, json_t **out, tern_error *err) {
    char *words[WORDS_MAX], id[TN_TALK_ID], *rest = NULL;
    int n_words = 0;
    folded q;
    *out = NULL;
    bool unread = false, ok = fold(query ? query : "", &q);
    for (char *w = ok ? strtok_r(q.p, " \t\r\n", &rest) : NULL; w && n_words < WORDS_MAX;
         w = strtok_r(NULL, " \t\r\n", &rest))
        words[n_words++] = w;
    DIR *d = ok ? opendir(t->folder) : NULL;
    json_t *list = json_array();
    for (struct dirent *f; d && (f = readdir(d));) {
        json_t *talk;
        if (!id_of(f->d_name, ".json", id)) continue;
        /* What is damaged is not listed. What could not be read this time would be missing without a word. */
        tern_status got = tn_talks_get(t, id, &talk, NULL);
        unread = got == TERN_E_IO;
        if (got == TERN_OK) list_one(id, talk, words, n_words, &list);
        if (got == TERN_E_MEMORY || unread || !list) {
            json_decref(list);
            list = NULL;
            break;
        }
    }
    tern_status st = !ok      ? tn_fail(err, TERN_E_MEMORY, "no memory for the search")
                     : !d     ? tn_fail(err, TERN_E_IO, "%s: %s", t->folder, strerror(errno))
                     : unread ? tn_fail(err, TERN_E_IO, "conversation %s cannot be read", id)
                     : list   ? sort(list, out, err)
                              : tn_fail(err, TERN_E_MEMORY, "no memory for the list of conversations");
    if (d) closedir(d);
    unfold(&q);
    json_decref(list);
    return st;
}
