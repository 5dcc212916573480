#include "server/uploads.h"

#include "base/outfile.h"
#include "base/status.h"
#include "server/checkpoints.h"
#include "server/refusals.h"
#include "server/talks.h"
#include "documents/rag.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, ENDING_MAX = 5 };

struct tn_uploads {
    tn_ctx *ctx;
    tn_reader *reader;
    char folder[TN_TALKS_FOLDER];
    pthread_mutex_t mu;
    const tn_reranker *rank;   /* or NULL */
    pthread_mutex_t rank_turn; /* held for a passage: questions take turns. Never with mu */
};

tern_status tn_uploads_open(tn_ctx *ctx, tn_reader *r, const tn_reranker *rank, tn_uploads **out,
                            tern_error *err) {
    tn_uploads *u = *out = calloc(1, sizeof *u);
    TN_FAIL_IF(!u, err, TERN_E_MEMORY, "no memory for documents");
    u->ctx = ctx;
    u->reader = r;
    u->rank = rank;
    tern_status st = tn_talks_make_folder("uploads", u->folder, err);
    if (st != TERN_OK) {
        free(u);
        *out = NULL;
        return st;
    }
    pthread_mutex_init(&u->mu, NULL);
    pthread_mutex_init(&u->rank_turn, NULL);
    return TERN_OK;
}

void tn_uploads_close(tn_uploads **pu) {
    tn_uploads *u = *pu;
    *pu = NULL;
    if (!u) return;
    pthread_mutex_destroy(&u->mu);
    pthread_mutex_destroy(&u->rank_turn);
    free(u);
}

static void path_of(const tn_uploads *u, const char *id, const char *ending, char out[PATH_BYTES]) {
    snprintf(out, PATH_BYTES, "%.*s/%.16s.%.5s", TN_TALKS_FOLDER, u->folder, id, ending);
}

/* The id in a path of the folder; false: it is no document of the page's. */
static bool id_in(const tn_uploads *u, const char *path, char id[TN_TALK_ID]) {
    size_t n = strlen(u->folder);
    if (strncmp(path, u->folder, n) != 0 || path[n] != '/' || strlen(path + n) != TN_TALK_ID + 4)
        return false;
    snprintf(id, TN_TALK_ID, "%.16s", path + n + 1);
    return tn_talk_id_ok(id) && !strcmp(path + n + TN_TALK_ID, ".txt");
}

/* What people call the document: the first line of the page's, the name of a file that `tern rag add` has
 * read. false: its file is there, and cannot be read now. */
static bool title_of(const tn_uploads *u, const char *path, char out[TN_UPLOAD_NAME + 1]) {
    char id[TN_TALK_ID];
    const char *slash = strrchr(path, '/');
    snprintf(out, TN_UPLOAD_NAME + 1, "%.*s", TN_UPLOAD_NAME, slash ? slash + 1 : path);
    FILE *f = id_in(u, path, id) ? fopen(path, "re") : NULL;
    if (!f) return !id_in(u, path, id) || errno == ENOENT;
    bool read = fgets(out, TN_UPLOAD_NAME + 1, f) || !ferror(f);
    out[strcspn(out, "\n")] = 0;
    fclose(f);
    return read;
}

static tern_status open_store(tn_uploads *u, tn_store **out, tern_error *err) {
    char *path;
    TN_TRY(tn_store_default_path(u->ctx, &path, err));
    tern_status st = tn_store_open(u->ctx, path, NULL, out, err);
    tn_free(u->ctx, path);
    return st;
}

tern_status tn_uploads_enter(tn_uploads *u, tn_store **out, tern_error *err) {
    pthread_mutex_lock(&u->mu);
    const tern_status st = open_store(u, out, err);
    if (st != TERN_OK) pthread_mutex_unlock(&u->mu);
    return st;
}

void tn_uploads_leave(tn_uploads *u, tn_store **s) {
    tn_store_close(s);
    pthread_mutex_unlock(&u->mu);
}

/* ---- adding ----------------------------------------------------------------------------------------- */

static tern_status write_file(tn_uploads *u, const char *path, const char *const parts[], const size_t n[],
                              int n_parts, tern_error *err) {
    static const tn_outkind kind = {.what = "a document of the page", .begins = {""}, .is_private = true};
    tn_outfile *f;
    TN_TRY(tn_outfile_open(u->ctx, path, &kind, &f, err));
    tern_status st = TERN_OK;
    for (int i = 0; st == TERN_OK && i < n_parts; i++) st = tn_outfile_write(f, parts[i], n[i], err);
    if (st == TERN_OK) st = tn_outfile_commit(&f, err);
    tn_outfile_abort(&f);
    return st;
}

/* The name's ending, which helps to tell what the bytes are; letters and digits alone. */
static void ending_of(const char *name, char out[ENDING_MAX + 1]) {
    const char *dot = strrchr(name, '.');
    size_t n = 0;
    for (const char *p = dot ? dot + 1 : ""; *p && n < ENDING_MAX; p++)
        if (isalnum((unsigned char)*p)) out[n++] = (char)tolower((unsigned char)*p);
    out[n] = 0;
    if (!n || !strcmp(out, "txt")) snprintf(out, ENDING_MAX + 1, "raw");
}

static tern_status text_of(tn_uploads *u, const char *id, const char *name, const char *bytes, size_t n,
                           char **text, size_t *n_text, tern_error *err) {
    char ending[ENDING_MAX + 1], path[PATH_BYTES];
    ending_of(name, ending);
    path_of(u, id, ending, path);
    TN_TRY(write_file(u, path, &bytes, &n, 1, err));
    tern_status st = tn_reader_text(u->reader, path, TN_UPLOAD_TEXT, text, n_text, err);
    tern_error why;
    if (tn_talks_erase_file(path, &why) != TERN_OK && st == TERN_OK) {
        free(*text);
        *text = NULL;
        *err = why;
        st = why.code;
    }
    TN_FAIL_IF(st == TERN_OK && strspn(*text, " \t\r\n") == *n_text, err, TERN_E_UNSUPPORTED,
               "there is no text in it");
    return st;
}

/* Documents whose text is kept; those being read have other endings. */
static size_t count(const tn_uploads *u) {
    DIR *d = opendir(u->folder);
    size_t n = 0;
    for (struct dirent *f; d && (f = readdir(d));) {
        const char *dot = strrchr(f->d_name, '.');
        n += dot && !strcmp(dot, ".txt");
    }
    if (d) closedir(d);
    return n;
}

static tern_status check_room(const tn_uploads *u, tern_error *err) {
    TN_FAIL_IF(count(u) >= TN_UPLOADS_MAX, err, TERN_E_LIMIT, "there are %d documents, and no more may be",
               TN_UPLOADS_MAX);
    return TERN_OK;
}

/* Why a file was left out, without its path. */
static void note(void *user, const char *line) {
    const char *why = strstr(line, ".txt: skipped: "); /* after the name that tern gave it */
    snprintf(user, 200, "%s", why ? why + 15 : "it was left out");
}

static tern_status add(tn_uploads *u, const char *id, const char *title, const char *text, size_t n_text,
                       tn_rag_added *sum, tern_error *err) {
    char path[PATH_BYTES];
    const char *const parts[] = {title, "\n\n", text};
    const size_t sizes[] = {strlen(title), 2, n_text};
    tn_store *s = NULL;
    path_of(u, id, "txt", path);
    char why[200] = "";
    const tn_rag_options o = {.notice = note, .user = why};
    TN_TRY(write_file(u, path, parts, sizes, 3, err));
    tern_status st = open_store(u, &s, err);
    if (st == TERN_OK) st = tn_rag_add(s, path, &o, NULL, sum, err);
    tn_store_close(&s);
    if (st == TERN_OK && !sum->n_added)
        st = tn_fail(err, TERN_E_IO, "the document's text could not be read back%s%s", *why ? ": " : "", why);
    if (st != TERN_OK) (void)tn_talks_erase_file(path, NULL);
    return st;
}

tern_status tn_uploads_add(tn_uploads *u, const char *name, const char *bytes, size_t n, json_t **doc,
                           tern_error *err) {
    char title[TN_UPLOAD_NAME + 1], id[TN_TALK_ID], *text = NULL;
    size_t n_text = 0;
    tn_rag_added sum = {0};
    *doc = NULL;
    snprintf(title, sizeof title, "%.*s", TN_UPLOAD_NAME - 4, name);
    for (char *p = title; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = ' ';
    TN_FAIL_IF(!title[strspn(title, " ")], err, TERN_E_INVALID, "the document has no name");
    TN_TRY(tn_talk_new_id(id, err));
    tern_status st = check_room(u, err);
    if (st == TERN_OK) st = text_of(u, id, title, bytes, n, &text, &n_text, err);
    pthread_mutex_lock(&u->mu); /* not while it was read: that may take minutes */
    if (st == TERN_OK) st = check_room(u, err);
    if (st == TERN_OK) st = add(u, id, title, text, n_text, &sum, err);
    pthread_mutex_unlock(&u->mu);
    free(text);
    if (st != TERN_OK) return tn_own_files(err);
    *doc = tn_json_pack("{s:s, s:s, s:I, s:I, s:I}", "id", id, "title", title, "passages",
                        (json_int_t)sum.n_passages, "bytes", (json_int_t)n_text, "added",
                        (json_int_t)time(NULL));
    TN_FAIL_IF(!*doc, err, TERN_E_MEMORY, "no memory for the reply");
    return TERN_OK;
}

tern_status tn_uploads_text(tn_uploads *u, const char *name, const char *bytes, size_t n, char **text,
                            size_t *n_text, tern_error *err) {
    char id[TN_TALK_ID];
    TN_TRY(tn_talk_new_id(id, err));
    return text_of(u, id, name, bytes, n, text, n_text, err) == TERN_OK ? TERN_OK : tn_own_files(err);
}

/* ---- listing and removing --------------------------------------------------------------------------- */

typedef struct listing {
    const tn_uploads *u;
    json_t *list;
    int64_t others;
    bool unread; /* a name could not be read */
} listing;

static bool list_one(void *user, const tn_rag_document *d) {
    listing *l = user;
    char id[TN_TALK_ID], title[TN_UPLOAD_NAME + 1];
    if (!id_in(l->u, d->path, id)) {
        l->others++;
        return true;
    }
    if (!title_of(l->u, d->path, title)) l->unread = true;
    tn_json_append(&l->list, tn_json_pack("{s:s, s:s, s:I, s:I, s:I}", "id", id, "title", title, "passages",
                                          (json_int_t)d->n_passages, "bytes", (json_int_t)d->n_bytes, "added",
                                          (json_int_t)d->added));
    return l->list != NULL;
}

tern_status tn_uploads_list(tn_uploads *u, json_t **list, tern_error *err) {
    listing l = {.u = u, .list = json_array()};
    tn_store *s = NULL;
    pthread_mutex_lock(&u->mu);
    tern_status st = open_store(u, &s, err);
    if (st == TERN_OK) st = tn_rag_list(s, list_one, &l, err);
    tn_store_close(&s);
    pthread_mutex_unlock(&u->mu);
    if (st == TERN_OK && l.unread) st = tn_fail(err, TERN_E_IO, "a document's name cannot be read");
    *list = tn_json_pack("{s:o, s:I}", "documents", l.list, "others", (json_int_t)l.others);
    if (st == TERN_OK && !*list) st = tn_fail(err, TERN_E_MEMORY, "no memory for the list of documents");
    if (st == TERN_OK) return st;
    json_decref(*list);
    *list = NULL;
    return tn_own_files(err);
}

tern_status tn_uploads_remove(tn_uploads *u, const char *id, tern_error *err) {
    char path[PATH_BYTES];
    int64_t n = 0;
    tn_store *s = NULL;
    TN_FAIL_IF(!tn_talk_id_ok(id), err, TN_E_GONE, "there is no such document");
    path_of(u, id, "txt", path);
    pthread_mutex_lock(&u->mu);
    tern_status st = open_store(u, &s, err);
    if (st == TERN_OK) st = tn_rag_remove(s, path, &n, err);
    tn_store_close(&s);
    if (st == TERN_OK) st = tn_talks_erase_file(path, err);
    pthread_mutex_unlock(&u->mu);
    int64_t n_prefixes;
    if (st == TERN_OK) st = tn_checkpoints_clear(&n_prefixes, err); /* prompts had its passages */
    TN_FAIL_IF(st == TERN_OK && !n, err, TN_E_GONE, "there is no such document");
    return st == TERN_OK ? st : tn_own_files(err);
}

tern_status tn_uploads_clear(int64_t *n, tern_error *err) {
    return tn_talks_clear_folder("uploads", ".txt", n, err);
}

/* ---- asking ------------------------------------------------------------------------------------------ */

/* The passages' documents by their titles, in the prompt and in what is shown. */
static tern_status entitle(tn_uploads *u, tn_rag_hit *hits, int32_t n, json_t **sources, tern_error *err) {
    for (int32_t i = 0; i < n; i++) {
        char title[TN_UPLOAD_NAME + 1], id[TN_TALK_ID];
        bool own = id_in(u, hits[i].path, id);
        TN_FAIL_IF(!title_of(u, hits[i].path, title), err, TERN_E_IO, "a document's name cannot be read: %s",
                   strerror(errno));
        char *copy = tn_strdup(u->ctx, TN_MEM_TEXT, title);
        TN_FAIL_IF(!copy, err, TERN_E_MEMORY, "no memory for the passages");
        tn_free(u->ctx, hits[i].path);
        hits[i].path = copy;
        json_t *v = tn_json_pack("{s:s, s:i, s:s}", "title", title, "number", (int)hits[i].number, "text",
                                 hits[i].text);
        if (hits[i].reranked) tn_json_set(&v, "relevance_score", tn_json_real((double)hits[i].relevance));
        if (own) tn_json_set(&v, "document", tn_json_string(id, strlen(id)));
        tn_json_append(sources, v);
    }
    TN_FAIL_IF(!*sources, err, TERN_E_MEMORY, "no memory for the passages");
    return TERN_OK;
}

/* Brings the passages that fit to the front, in their order. Returns how many. */
static int32_t fitting(tn_rag_hit *hits, int32_t n) {
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!hits[i].fits) continue;
        tn_rag_hit h = hits[i];
        hits[i] = hits[k];
        hits[k++] = h;
    }
    return k;
}

static tern_status score(void *user, const char *question, const char *text, float *out, tern_error *err) {
    tn_uploads *u = user;
    pthread_mutex_lock(&u->rank_turn);
    const tern_status st = u->rank->score(u->rank->user, question, text, out, err);
    pthread_mutex_unlock(&u->rank_turn);
    return st;
}

tern_status tn_uploads_search(tn_uploads *u, const char *question, int32_t k, tn_rag_hit **hits, int32_t *n,
                              tern_error *err) {
    tn_store *s;
    const tn_reranker mine = {.score = score, .user = u, .yes = u->rank ? u->rank->yes : 0},
                      *r = u->rank ? &mine : NULL;
    *hits = NULL;
    *n = 0;
    TN_TRY(tn_uploads_enter(u, &s, err));
    tern_status st = tn_rag_search(s, question, tn_rag_reach(r, k), NULL, hits, n, err);
    tn_uploads_leave(u, &s);
    if (st == TERN_OK) st = tn_rag_rerank(u->ctx, r, question, k, *hits, n, err);
    if (st != TERN_OK) tn_rag_hits_free(u->ctx, hits, *n);
    return st;
}

tern_status tn_uploads_ask(tn_uploads *u, const char *question, char **prompt, json_t **sources,
                           tern_error *err) {
    tn_rag_hit *hits;
    int32_t n;
    *prompt = NULL;
    *sources = json_array();
    tern_status st = tn_uploads_search(u, question, TN_RAG_K, &hits, &n, err);
    int32_t n_fit = st == TERN_OK ? fitting(hits, n) : 0;
    if (st == TERN_OK) st = entitle(u, hits, n_fit, sources, err);
    char *text = st == TERN_OK && n_fit ? tn_rag_prompt(u->ctx, question, hits, n_fit) : NULL;
    if (text) *prompt = strdup(text);
    tn_free(u->ctx, text);
    if (st == TERN_OK && n_fit && !*prompt) st = tn_fail(err, TERN_E_MEMORY, "no memory for the passages");
    tn_rag_hits_free(u->ctx, &hits, n);
    return st == TERN_OK ? st : tn_own_files(err);
}
