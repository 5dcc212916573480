/* measure/suite_file.c - the file of results: read, checked, gone on with. */
#include "base/file.h"
#include "base/status.h"
#include "measure/suite_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { VERSION = 1, MOST_GROUPS = 8 };
static const uint64_t MOST = (uint64_t)1 << 30;

struct tn_suite_file {
    char *path;
    int fd;
    int64_t n_bytes; /* of whole lines */
};

/* ---- reading ------------------------------------------------------------------------------------- */

static tern_status check_head(const json_t *v, const char *name, tern_error *err) {
    const json_t *version = json_object_get(v, "tern_eval");
    TN_FAIL_IF(!json_is_integer(version), err, TERN_E_FORMAT,
               "%s is no file of results: its first line has no tern_eval", name);
    TN_FAIL_IF(json_integer_value(version) != VERSION, err, TERN_E_UNSUPPORTED,
               "%s has results of form %lld; this tern reads form %d", name,
               (long long)json_integer_value(version), VERSION);
    TN_FAIL_IF(!json_is_string(json_object_get(v, "task")) || !json_is_object(json_object_get(v, "model")) ||
                   !json_is_object(json_object_get(v, "form")) ||
                   !json_is_object(json_object_get(v, "data")) ||
                   !json_is_object(json_object_get(v, "asked")),
               err, TERN_E_FORMAT, "%s: its first line does not say what was measured", name);
    return TERN_OK;
}

static bool is_record(const json_t *v) {
    const json_t *score = json_object_get(v, "score"), *groups = json_object_get(v, "groups"), *g;
    double x = json_number_value(score);
    size_t i;
    json_array_foreach(groups, i, g) if (!json_is_string(g)) return false;
    return json_string_length(json_object_get(v, "id")) && json_is_array(groups) &&
           json_array_size(groups) <= MOST_GROUPS &&
           (json_is_null(score) || (json_is_number(score) && x >= 0 && x <= 1));
}

/* One line: the head, or a record, which is known by its id. */
static tern_status take_line(const char *line, size_t n, size_t i_line, const char *name, json_t **head,
                             json_t **items, json_t **seen, tern_error *err) {
    json_error_t je;
    json_t *v = tn_json_parse(line, n, JSON_REJECT_DUPLICATES, &je);
    if (!v && json_error_code(&je) == json_error_out_of_memory)
        return tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    TN_FAIL_IF(!v && i_line == 1, err, TERN_E_FORMAT, "%s is no file of results: its first line is not JSON",
               name);
    TN_FAIL_IF(!v, err, TERN_E_FORMAT, "%s line %zu: not JSON: %s", name, i_line, je.text);
    tern_status st = TERN_OK;
    const char *id = json_string_value(json_object_get(v, "id"));
    if (i_line == 1) {
        st = check_head(v, name, err);
        if (st == TERN_OK) *head = json_incref(v);
    } else if (!is_record(v)) {
        st = tn_fail(err, TERN_E_FORMAT,
                     "%s line %zu: no result: it needs an id, groups and a score of 0 to 1 or null", name,
                     i_line);
    } else if (json_object_get(*seen, id)) {
        st = tn_fail(err, TERN_E_FORMAT, "%s line %zu: item %.80s is there twice", name, i_line, id);
    } else {
        tn_json_set(seen, id, json_true());
        tn_json_append(items, json_incref(v));
        if (!*items || !*seen) st = tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    }
    json_decref(v);
    return st;
}

tern_status tn_suite_parse(const char *text, size_t n, const char *name, size_t *n_whole, json_t **results,
                           tern_error *err) {
    json_t *head = NULL, *items = json_array(), *seen = json_object();
    tern_status st = items && seen ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    size_t at = 0, i_line = 0;
    *results = NULL;
    for (const char *end; st == TERN_OK && (end = memchr(text + at, '\n', n - at));
         at = (size_t)(end + 1 - text))
        st = take_line(text + at, (size_t)(end - text) - at, ++i_line, name, &head, &items, &seen, err);
    *n_whole = at;
    if (st == TERN_OK && !head)
        st = tn_fail(err, TERN_E_FORMAT, "%s is no file of results: it has no whole first line", name);
    if (st == TERN_OK) *results = tn_json_pack("{s:O, s:O}", "head", head, "items", items);
    if (st == TERN_OK && !*results) st = tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    json_decref(head);
    json_decref(items);
    json_decref(seen);
    return st;
}

tern_status tn_suite_read(const char *path, json_t **results, tern_error *err) {
    char *text;
    size_t n, whole;
    *results = NULL;
    TN_TRY(tn_file_slurp(path, MOST, &text, &n, err));
    tern_status st = tn_suite_parse(text, n, path, &whole, results, err);
    free(text);
    return st;
}

/* ---- going on ------------------------------------------------------------------------------------ */

/* Says the first thing in which two first lines differ. */
static tern_status same_head(const char *path, const json_t *there, const json_t *now, const char *of_file,
                             tern_error *err) {
    const char *key, *inner;
    const json_t *want, *w;
    if (json_equal(there, now)) return TERN_OK;
    json_object_foreach((json_t *)now, key, want) {
        const json_t *has = json_object_get(there, key);
        if (json_equal(has, want)) continue;
        json_object_foreach((json_t *)want, inner, w) {
            const json_t *h = json_object_get(has, inner);
            if (json_equal(h, w)) continue;
            bool packed = of_file && !strcmp(inner, "package") && json_is_false(h);
            char *a = NULL, *b = NULL;
            (void)tn_json_text(h ? h : json_null(), JSON_ENCODE_ANY | JSON_COMPACT, &a, err);
            (void)tn_json_text(w, JSON_ENCODE_ANY | JSON_COMPACT, &b, err);
            tern_status st = tn_fail(err, TERN_E_INVALID,
                                     "%s holds results of something else: %s %s is %.80s there and %.80s "
                                     "now. Name another file, or "
                                     "remove it%s%s",
                                     path, key, inner, a ? a : "?", b ? b : "?",
                                     packed ? "; they go on with " : "", packed ? of_file : "");
            free(a);
            free(b);
            return st;
        }
        return tn_fail(err, TERN_E_INVALID,
                       "%s holds results of something else: another %s. Name another file, or remove it",
                       path, key);
    }
    return tn_fail(err, TERN_E_INVALID, "%s holds results of something else. Name another file, or remove it",
                   path);
}

static tern_status put_line(tn_suite_file *f, const json_t *v, tern_error *err) {
    char *text = NULL;
    TN_TRY(tn_json_text(v, JSON_COMPACT, &text, err));
    size_t n = strlen(text), done = 0;
    text[n++] = '\n'; /* in place of the zero */
    int why = 0;
    while (done < n && !why) {
        ssize_t w = write(f->fd, text + done, n - done);
        if (w < 0 && errno != EINTR) why = errno;
        else if (w > 0) done += (size_t)w;
    }
    free(text);
    /* what is whole stays; half a line that cannot be taken back is dropped by the next start */
    bool left = why && ftruncate(f->fd, f->n_bytes);
    (void)left;
    TN_FAIL_IF(why, err, TERN_E_IO, "%s: cannot be written: %s", f->path, strerror(why));
    f->n_bytes += (int64_t)n;
    return TERN_OK;
}

static tern_status lock(tn_suite_file *f, tern_error *err) {
    struct stat sb;
    do f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    while (f->fd < 0 && errno == EINTR);
    TN_FAIL_IF(f->fd < 0, err, TERN_E_IO, "%s: cannot be opened: %s", f->path, strerror(errno));
    TN_FAIL_IF(fstat(f->fd, &sb) || !S_ISREG(sb.st_mode), err, TERN_E_IO, "%s is no regular file", f->path);
    int taken;
    do taken = flock(f->fd, LOCK_EX | LOCK_NB);
    while (taken && errno == EINTR);
    TN_FAIL_IF(taken && errno != EWOULDBLOCK, err, TERN_E_IO, "%s: cannot be locked: %s", f->path,
               strerror(errno));
    TN_FAIL_IF(taken, err, TERN_E_IO, "%s: another process writes results into it", f->path);
    return TERN_OK;
}

/* The first line was begun and not ended, by a run that was killed there: the file holds nothing yet. */
static bool only_begun(const char *text, size_t n) {
    static const char begins[] = "{\"tern_eval\":";
    size_t k = n < sizeof begins - 1 ? n : sizeof begins - 1;
    return !memchr(text, '\n', n) && !memcmp(text, begins, k);
}

static tern_status go_on(tn_suite_file *f, const json_t *head, const char *of_file, json_t **known,
                         tern_error *err) {
    char *text;
    size_t n, whole = 0;
    json_t *results = NULL;
    TN_TRY(tn_file_slurp(f->path, MOST, &text, &n, err));
    tern_status st = TERN_OK;
    bool empty = only_begun(text, n);
    if (!empty) st = tn_suite_parse(text, n, f->path, &whole, &results, err);
    free(text);
    if (st == TERN_OK && results)
        st = same_head(f->path, json_object_get(results, "head"), head, of_file, err);
    if (st == TERN_OK) {
        *known = results ? json_incref(json_object_get(results, "items")) : json_array();
        if (!*known) st = tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    }
    json_decref(results);
    if (st == TERN_OK && (ftruncate(f->fd, (int64_t)whole) || lseek(f->fd, 0, SEEK_END) < 0))
        st = tn_fail(err, TERN_E_IO, "%s: cannot be written: %s", f->path, strerror(errno));
    f->n_bytes = (int64_t)whole;
    return st == TERN_OK && empty ? put_line(f, head, err) : st;
}

tern_status tn_suite_file_open(const char *path, const json_t *head, const char *of_file, tn_suite_file **out,
                               json_t **known, tern_error *err) {
    tn_suite_file *f = calloc(1, sizeof *f);
    *out = NULL;
    *known = NULL;
    TN_FAIL_IF(!f, err, TERN_E_MEMORY, "no memory for the file of results");
    f->fd = -1;
    f->path = strdup(path);
    tern_status st =
        f->path ? lock(f, err) : tn_fail(err, TERN_E_MEMORY, "no memory for the file of results");
    if (st == TERN_OK) st = go_on(f, head, of_file, known, err);
    if (st == TERN_OK) {
        *out = f;
        return st;
    }
    json_decref(*known);
    *known = NULL;
    (void)tn_suite_file_close(&f, NULL);
    return st;
}

tern_status tn_suite_file_put(tn_suite_file *f, const json_t *record, tern_error *err) {
    return put_line(f, record, err);
}

tern_status tn_suite_file_close(tn_suite_file **pf, tern_error *err) {
    tn_suite_file *f = *pf;
    *pf = NULL;
    if (!f) return TERN_OK;
    bool ok = f->fd < 0 || !fdatasync(f->fd) || errno == EINVAL;
    int why = errno;
    if (f->fd >= 0) close(f->fd);
    tern_status st =
        ok ? TERN_OK : tn_fail(err, TERN_E_IO, "%s: cannot be written: %s", f->path, strerror(why));
    free(f->path);
    free(f);
    return st;
}
