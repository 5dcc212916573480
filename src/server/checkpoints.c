#include "server/checkpoints.h"

#include "base/file.h"
#include "base/status.h"
#include "engine/sight_kept.h"
#include "session/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { PATH_BYTES = TN_CHECKPOINTS_PATH, NAME_BYTES = 64, ENTRIES_MAX = 4096 };

typedef struct entry {
    char name[NAME_BYTES];
    int32_t *tokens;
    int32_t n;
    tn_state_places places; /* where the state can go back to some only */
} entry;

struct tn_checkpoints {
    tn_ctx *ctx;
    char folder[PATH_BYTES];
    uint64_t limit_bytes;
    entry *entries;
    size_t n, cap;
    bool full;      /* told: what cannot be written is not tried again */
    uint64_t stamp; /* of the folder's forgetting that is known */
};

/* ---- the folder ------------------------------------------------------------------------------------ */

bool tn_checkpoints_place(char out[PATH_BYTES]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *middle = "";
    if (!cache || !tn_file_is_absolute(cache)) cache = home, middle = "/.cache";
    return cache && *cache &&
           snprintf(out, PATH_BYTES, "%s%s/tern/prefixes", cache, middle) < PATH_BYTES - NAME_BYTES;
}

static void path_of(const char *folder, const char *name, char out[PATH_BYTES + NAME_BYTES]) {
    snprintf(out, PATH_BYTES + NAME_BYTES, "%.4095s/%.60s", folder, name);
}

/* Sixteen digits and ".session": nothing else in the folder is touched. */
static bool is_entry(const char *name) {
    return strlen(name) == 24 && strspn(name, "0123456789abcdef") == 16 && !strcmp(name + 16, ".session");
}

/* An entry, or what a writer that was killed left of one (base/outfile.c). */
static bool is_of_entry(const char *name) {
    char entry_name[25];
    size_t n = strlen(name);
    snprintf(entry_name, sizeof entry_name, "%.24s", name);
    return is_entry(entry_name) &&
           (n == 24 || (n == 24 + 21 && name[24] == '.' && !strcmp(name + n - 4, ".tmp")));
}

/* Each forgetting leaves another random number in this file of the folder. */
static const char STAMP[] = "forgotten";

static uint64_t read_stamp(const char *folder) {
    char path[PATH_BYTES + NAME_BYTES];
    uint64_t stamp = 0;
    path_of(folder, STAMP, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && read(fd, &stamp, sizeof stamp) != sizeof stamp) stamp = 0;
    if (fd >= 0) close(fd);
    return stamp;
}

static bool write_stamp(const char *folder) {
    char path[PATH_BYTES + NAME_BYTES];
    uint64_t stamp;
    path_of(folder, STAMP, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    bool ok = fd >= 0 && getrandom(&stamp, sizeof stamp, 0) == sizeof stamp &&
              pwrite(fd, &stamp, sizeof stamp, 0) == sizeof stamp;
    return fd >= 0 && !close(fd) && ok;
}

uint64_t tn_checkpoints_identity(const tern_session *s) {
    const tern_engine *e = s->e;
    const tn_attn_options *a = &e->attention;
    const tn_npu_model *heads =
        tn_engine_heads(e); /* of a package, or of a file, where the beginning is measured too */
    char text[256];
    int n =
        snprintf(text, sizeof text, "%d %d %d %d %d %.6f %d %d %d %d %d %d %d %.6f", (int)e->model->scheme,
                 (int)s->state.kv.type, e->npu ? (int)e->npu->chunk : 0, (int)a->mode, a->automatic,
                 (double)a->ratio, a->falls ? TN_ATTN_FALLS_TO : 0, a->n_buckets, a->no_head_ratios,
                 a->share_rows, a->pool_heads, heads ? tn_sparse_attn_from(heads, a) : a->threshold,
                 heads ? tn_sparse_decode_from(heads, &e->model->h, a, INT32_MAX) : a->decode,
                 (double)a->decode_ratio);
    return XXH64(text, (size_t)n, tn_model_fingerprint(e->model) ^ tn_lora_mix_id(&s->mix));
}

static void name_of(const tern_session *s, const int32_t *tokens, size_t n, char out[NAME_BYTES]) {
    snprintf(out, NAME_BYTES, "%016llx.session",
             (unsigned long long)XXH64(tokens, n * sizeof *tokens, tn_checkpoints_identity(s)));
}

/* ---- entries --------------------------------------------------------------------------------------- */

static void drop(tn_checkpoints *c, size_t i, bool unlinks) {
    char path[PATH_BYTES + NAME_BYTES];
    path_of(c->folder, c->entries[i].name, path);
    if (unlinks) unlink(path);
    free(c->entries[i].tokens);
    c->entries[i] = c->entries[--c->n];
}

/* Takes tokens. */
static bool add(tn_checkpoints *c, const char *name, int32_t *tokens, int32_t n,
                const tn_state_places *places) {
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 16;
        entry *more = c->n < ENTRIES_MAX ? realloc(c->entries, cap * sizeof *more) : NULL;
        if (!more) {
            free(tokens);
            return false;
        }
        c->entries = more;
        c->cap = cap;
    }
    entry *e = &c->entries[c->n++];
    *e = (entry){.tokens = tokens, .n = n, .places = *places};
    snprintf(e->name, sizeof e->name, "%.24s", name);
    return true;
}

static tern_status read_folder(tn_checkpoints *c, tern_session *s, tern_error *err) {
    DIR *d = opendir(c->folder);
    TN_FAIL_IF(!d, err, TERN_E_IO, "%s: %s", c->folder, strerror(errno));
    for (struct dirent *f; (f = readdir(d));) {
        char path[PATH_BYTES + NAME_BYTES];
        int32_t *tokens, n;
        tn_state_places places;
        tern_error why;
        if (!is_entry(f->d_name)) continue;
        path_of(c->folder, f->d_name, path);
        tern_status st = tn_session_peek(s, path, &tokens, &n, &places, &why);
        char name[NAME_BYTES];
        if (st == TERN_OK) name_of(s, tokens, (size_t)n, name);
        if (st == TERN_OK && strcmp(name, f->d_name)) { /* computed with other settings */
            free(tokens);
        } else if (st == TERN_OK) {
            add(c, name, tokens, n, &places);
        } else if (st == TERN_E_FORMAT) {
            tn_log(c->ctx, TERN_LOG_WARN, "a kept conversation is lost: %s", why.message);
            unlink(path);
        } /* of another model: its own server's */
    }
    closedir(d);
    return TERN_OK;
}

/* The entry used longest ago; 0 bytes: there is none. All models' count. */
static uint64_t look_around(const tn_checkpoints *c, char oldest[NAME_BYTES]) {
    DIR *d = opendir(c->folder);
    uint64_t total = 0;
    struct timespec when = {0};
    *oldest = 0;
    for (struct dirent *f; d && (f = readdir(d));) {
        char path[PATH_BYTES + NAME_BYTES];
        struct stat sb;
        if (!is_entry(f->d_name)) continue;
        path_of(c->folder, f->d_name, path);
        if (lstat(path, &sb) || !S_ISREG(sb.st_mode)) continue;
        total += (uint64_t)sb.st_size;
        bool older = sb.st_mtim.tv_sec < when.tv_sec ||
                     (sb.st_mtim.tv_sec == when.tv_sec && sb.st_mtim.tv_nsec < when.tv_nsec);
        if (*oldest && !older) continue;
        when = sb.st_mtim;
        snprintf(oldest, NAME_BYTES, "%.24s", f->d_name);
    }
    if (d) closedir(d);
    return total;
}

/* Until `more` bytes fit. false: they never will. */
static bool make_room(tn_checkpoints *c, uint64_t more) {
    if (more > c->limit_bytes) return false;
    char oldest[NAME_BYTES], path[PATH_BYTES + NAME_BYTES];
    while (look_around(c, oldest) > c->limit_bytes - more && *oldest) {
        size_t i = 0;
        while (i < c->n && strcmp(c->entries[i].name, oldest)) i++;
        path_of(c->folder, oldest, path);
        if (i < c->n) drop(c, i, false);
        if (unlink(path) && errno != ENOENT) return false;
    }
    return true;
}

tern_status tn_checkpoints_open(tern_session *s, uint64_t limit_bytes, tn_checkpoints **out,
                                tern_error *err) {
    tn_checkpoints *c = calloc(1, sizeof *c);
    *out = NULL;
    TN_FAIL_IF(!c, err, TERN_E_MEMORY, "no memory for kept conversations");
    c->ctx = &s->e->ctx;
    c->limit_bytes = limit_bytes;
    tern_status st = tn_checkpoints_place(c->folder)
                         ? tn_file_private_folder(c->folder, err)
                         : tn_fail(err, TERN_E_IO, "neither XDG_CACHE_HOME nor HOME is set");
    if (st == TERN_OK) c->stamp = read_stamp(c->folder);
    if (st == TERN_OK) st = read_folder(c, s, err);
    if (st == TERN_OK && !make_room(c, 0)) st = tn_fail(err, TERN_E_IO, "%s: %s", c->folder, strerror(errno));
    if (st == TERN_OK) *out = c;
    else tn_checkpoints_close(&c);
    return st;
}

void tn_checkpoints_close(tn_checkpoints **pc) {
    tn_checkpoints *c = *pc;
    *pc = NULL;
    if (!c) return;
    for (size_t i = 0; i < c->n; i++) free(c->entries[i].tokens);
    free(c->entries);
    free(c);
}

static size_t shared(const entry *e, const int32_t *ids, size_t n) {
    size_t k = 0;
    while (k < n && k < (size_t)e->n && e->tokens[k] == ids[k]) k++;
    return k;
}

/* A prompt's last token is evaluated again, where its logits are not kept. */
static size_t place_before(const entry *e, size_t same, size_t n) {
    if (same == (size_t)e->n && same < n) return same;
    int32_t k = e->places.n;
    while (k && ((size_t)e->places.at[k - 1] > same ||
                 ((size_t)e->places.at[k - 1] == n && e->places.at[k - 1] != e->places.end)))
        k--;
    return k ? (size_t)e->places.at[k - 1] : 0;
}

size_t tn_checkpoints_match(const tn_checkpoints *c, const int32_t *ids, size_t n, bool in_places,
                            size_t *which) {
    size_t best = 0;
    for (size_t i = 0; i < c->n; i++) {
        size_t k = shared(&c->entries[i], ids, n);
        if (in_places) k = place_before(&c->entries[i], k, n);
        if (k <= best) continue;
        best = k;
        *which = i;
    }
    return best;
}

bool tn_checkpoints_load(tn_checkpoints *c, size_t which, tern_session *s) {
    char path[PATH_BYTES + NAME_BYTES];
    tern_error err;
    path_of(c->folder, c->entries[which].name, path);
    tern_status st = tern_session_load(s, path, &err);
    if (st == TERN_OK) {
        utimensat(AT_FDCWD, path, NULL, 0); /* used now */
        return true;
    }
    tn_session_truncate(s, 0);
    tn_log(c->ctx, TERN_LOG_WARN, "a kept conversation is lost: %s", err.message);
    drop(c, which, true);
    return false;
}

/* ---- saving ---------------------------------------------------------------------------------------- */

void tn_checkpoints_save(tn_checkpoints *c, const tern_session *s) {
    char name[NAME_BYTES], path[PATH_BYTES + NAME_BYTES];
    size_t n = (size_t)s->n_tok;
    if (c->full || n < TN_CHECKPOINT_LEAST) return;
    for (size_t i = 0; i < c->n; i++) /* nothing new */
        if ((size_t)c->entries[i].n >= n && shared(&c->entries[i], s->tokens, n) == n) return;
    name_of(s, s->tokens, n, name);
    path_of(c->folder, name, path);
    tn_state_places places = {.end = s->end.at};
    uint64_t n_places;
    tn_state_places_of(&s->state, &places, &n_places);
    uint64_t about = n_places + tn_state_bytes(&s->state) / (uint64_t)s->n_ctx * (n + 64) +
                     n * sizeof *s->tokens + 2 * (uint64_t)s->e->model->h.n_vocab * sizeof(float) + 4096;
    if (!make_room(c, about)) return;
    tern_error err;
    if (tern_session_save(s, path, &err) != TERN_OK) {
        tn_log(c->ctx, TERN_LOG_WARN, "conversations are kept in memory only: %s", err.message);
        c->full = true;
        return;
    }
    for (size_t i = c->n; i-- > 0;) /* those that it continues */
        if ((size_t)c->entries[i].n < n && shared(&c->entries[i], s->tokens, n) == (size_t)c->entries[i].n)
            drop(c, i, true);
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (!tokens) return; /* found again by the next server */
    memcpy(tokens, s->tokens, n * sizeof *tokens);
    add(c, name, tokens, (int32_t)n, &places);
}

bool tn_checkpoints_forgotten(tn_checkpoints *c) {
    uint64_t stamp = read_stamp(c->folder);
    if (stamp == c->stamp) return false;
    c->stamp = stamp;
    while (c->n) drop(c, c->n - 1, false);
    return true;
}

tern_status tn_checkpoints_clear(int64_t *n, tern_error *err) {
    char folder[PATH_BYTES], path[PATH_BYTES + NAME_BYTES];
    int64_t n_views;
    *n = 0;
    TN_TRY(tn_kept_clear(&n_views, err));
    if (!tn_checkpoints_place(folder)) return TERN_OK;
    DIR *d = opendir(folder);
    if (!d) return errno == ENOENT ? TERN_OK : tn_fail(err, TERN_E_IO, "%s: %s", folder, strerror(errno));
    /* servers are told first: what they save from now on they know to be new */
    tern_status st = write_stamp(folder)
                         ? TERN_OK
                         : tn_fail(err, TERN_E_IO, "%s: cannot be written to: %s", folder, strerror(errno));
    for (struct dirent *f; (f = readdir(d));) {
        if (!is_of_entry(f->d_name)) continue;
        path_of(folder, f->d_name, path);
        if (!unlink(path)) ++*n;
        else if (errno != ENOENT && st == TERN_OK)
            st = tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
    }
    closedir(d);
    return st;
}
