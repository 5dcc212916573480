/* measure/suite_data.c - data as it is published: files, lines of JSON, tables of CSV. */
#include "base/file.h"
#include "base/status.h"
#include "base/utf8.h"
#include "measure/suite_impl.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static const uint64_t MOST = (uint64_t)1 << 30;

/* ---- texts --------------------------------------------------------------------------------------- */

/* Letter by letter; what is no UTF-8 stays. */
void tn_suite_lower(tn_bytes *t, const char *p, size_t n) {
    const uint8_t *at = (const uint8_t *)p, *end = at + n;
    while (at < end) {
        uint32_t cp;
        uint8_t out[4];
        size_t k = tn_utf8_decode(at, end, &cp);
        if (k)
            tn_bytes_add(t, (const char *)out,
                         tn_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), out));
        else tn_bytes_add(t, (const char *)at, 1);
        at += k ? k : 1;
    }
}

/* ---- files --------------------------------------------------------------------------------------- */

void tn_suite_notice(const tn_suite *u, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (u->o->notice) u->o->notice(u->o->user, line);
}

tern_status tn_suite_slurp(tn_suite *u, const char *path, char **text, size_t *n, tern_error *err) {
    TN_TRY(tn_file_slurp(path, MOST, text, n, err));
    uint64_t size = *n; /* so that no byte can move from one file into the next */
    tn_sum_add(&u->sum, &size, sizeof size);
    tn_sum_add(&u->sum, *text, *n);
    return TERN_OK;
}

char *tn_suite_path(const char *folder, const char *name) {
    char *p = NULL;
    return asprintf(&p, "%s/%s", folder, name) < 0 ? NULL : p;
}

bool tn_suite_is_folder(const char *path) {
    struct stat sb;
    return !stat(path, &sb) && S_ISDIR(sb.st_mode);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

tern_status tn_suite_names(const char *folder, const char *ends, json_t **out, tern_error *err) {
    DIR *d = opendir(folder);
    size_t n = 0, cap = 0, n_ends = strlen(ends);
    char **names = NULL;
    bool ok = true;
    *out = NULL;
    TN_FAIL_IF(!d, err, TERN_E_IO, "%s: cannot read the folder: %s", folder, strerror(errno));
    for (struct dirent *f; ok && (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        if (len <= n_ends || strcmp(f->d_name + len - n_ends, ends) || f->d_name[0] == '.') continue;
        if (n == cap) {
            char **more = realloc(names, (cap = 2 * cap + 64) * sizeof *names);
            ok = more != NULL;
            if (more) names = more;
        }
        char *name = NULL;
        if (ok && asprintf(&name, "%.*s", (int)(len - n_ends), f->d_name) < 0) name = NULL;
        ok = name != NULL;
        if (name) names[n++] = name;
    }
    closedir(d);
    json_t *list = ok ? json_array() : NULL;
    if (n) qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++) {
        tn_json_append(&list, tn_json_string(names[i], strlen(names[i])));
        free(names[i]);
    }
    free(names);
    TN_FAIL_IF(!list, err, TERN_E_MEMORY, "no memory for the names of %s", folder);
    *out = list;
    return TERN_OK;
}

/* ---- JSON Lines ---------------------------------------------------------------------------------- */

tern_status tn_suite_lines(const char *text, size_t n, const char *name, json_t **out, tern_error *err) {
    json_t *list = json_array();
    tern_status st = TERN_OK;
    size_t i_line = 0;
    *out = NULL;
    for (size_t at = 0; st == TERN_OK && at < n;) {
        const char *line = text + at, *end = memchr(line, '\n', n - at);
        size_t n_line = end ? (size_t)(end - line) : n - at, blank = 0;
        json_error_t je;
        at += n_line + 1;
        i_line++;
        while (blank < n_line && memchr(" \t\r", line[blank], 3)) blank++;
        if (blank == n_line) continue;
        json_t *v = tn_json_parse(line, n_line, JSON_REJECT_DUPLICATES, &je);
        if (!v) {
            bool memory = json_error_code(&je) == json_error_out_of_memory;
            st = tn_fail(err, memory ? TERN_E_MEMORY : TERN_E_FORMAT, "%s line %zu: not JSON: %s", name,
                         i_line, je.text);
        } else if (!json_is_object(v)) {
            st = tn_fail(err, TERN_E_FORMAT, "%s line %zu: not an object", name, i_line);
        } else {
            json_incref(v);
            json_t *own = v;
            tn_json_set(&own, "line", json_integer((json_int_t)i_line));
            tn_json_append(&list, own);
            if (!list) st = tn_fail(err, TERN_E_MEMORY, "no memory for %s", name);
        }
        json_decref(v);
    }
    if (st == TERN_OK && !json_array_size(list))
        st = tn_fail(err, TERN_E_FORMAT, "%s has no line of JSON", name);
    if (st == TERN_OK) *out = list;
    else json_decref(list);
    return st;
}

/* ---- CSV ----------------------------------------------------------------------------------------- */

/* One field from *at on, which is then after the comma or the end of its line. Quotes within quotes are doubled.
 * *ends: it was the last of its row. */
static bool field(const char *text, size_t n, size_t *at, tn_bytes *out, bool *ends) {
    size_t i = *at;
    bool quoted = i < n && text[i] == '"';
    out->n = 0;
    tn_bytes_add(out, "", 0);
    if (quoted) {
        for (i++; i < n && (text[i] != '"' || (i + 1 < n && text[i + 1] == '"')); i++) {
            i += text[i] == '"'; /* the second of two */
            tn_bytes_add(out, text + i, 1);
        }
        if (i++ >= n) return false; /* it never ends */
    } else {
        size_t from = i;
        while (i < n && text[i] != ',' && text[i] != '\n' && text[i] != '\r') i++;
        tn_bytes_add(out, text + from, i - from);
    }
    *ends = i >= n || text[i] != ',';
    if (i < n && text[i] == '\r') i++;
    bool ok = i >= n || text[i] == ',' || text[i] == '\n' || text[i - 1] == '\r';
    *at = i < n && (text[i] == ',' || text[i] == '\n') ? i + 1 : i;
    return ok;
}

tern_status tn_suite_csv(const char *text, size_t n, const char *name, json_t **rows, tern_error *err) {
    json_t *list = json_array();
    tn_bytes f = {0};
    tern_status st = TERN_OK;
    *rows = NULL;
    for (size_t at = 0, i_row = 1; at < n && st == TERN_OK; i_row++) {
        json_t *row = json_array();
        for (bool ends = false; !ends && st == TERN_OK;) {
            if (!field(text, n, &at, &f, &ends))
                st = tn_fail(err, TERN_E_FORMAT,
                             "%s row %zu: a quoted field does not end where a comma or a line does", name,
                             i_row);
            tn_json_append(&row, tn_json_string(f.p ? f.p : "", f.n));
        }
        bool blank = json_array_size(row) == 1 && !json_string_length(json_array_get(row, 0));
        if (blank) json_decref(row);
        else tn_json_append(&list, row);
        if (!list || f.failed) st = tn_fail(err, TERN_E_MEMORY, "no memory for %s", name);
    }
    free(f.p);
    if (st == TERN_OK && !json_array_size(list)) st = tn_fail(err, TERN_E_FORMAT, "%s has no row", name);
    if (st == TERN_OK) *rows = list;
    else json_decref(list);
    return st;
}
