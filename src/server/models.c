#include "base/wait.h"
#include "engine/sight.h"
#include "model/catalogue.h"
#include "model/model.h"
#include "model/streamed.h"
#include "package/loader.h"
#include "server/models_impl.h"
#include "text/chat.h"
#include "server/refusals.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LOOK_MS = 100 };

int64_t tn_models_now(const tn_models *m) { return m->o.now_ns ? m->o.now_ns() : tn_now_ns(); }

__attribute__((format(printf, 2, 3))) static void tell(const tn_models *m, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    if (!m->o.tell) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    m->o.tell(m->o.user, line);
}

static double mib(uint64_t bytes) { return (double)bytes / 1048576; }

/* ---- the list -------------------------------------------------------------------------------------- */

static tn_served *find_exactly(const tn_models *m, const char *name) {
    tn_served *last_part = NULL;
    int n = 0;
    for (tn_served *k = m->first; k; k = k->next) {
        if (!strcmp(k->name, name)) return k;
        if (tn_catalogue_last_part(k->name, name)) last_part = k, n++;
    }
    return n == 1 ? last_part : NULL;
}

tn_served *tn_models_find(const tn_models *m, const char *name) {
    static const char tag[] = ":latest"; /* clients of Ollama put it after a name that has no tag */
    char bare[TN_MODELS_NAME];
    size_t n = strlen(name), n_tag = sizeof tag - 1;
    tn_served *k = find_exactly(m, name);
    if (k || n <= n_tag || n - n_tag >= sizeof bare || strcmp(name + n - n_tag, tag) != 0) return k;
    snprintf(bare, sizeof bare, "%.*s", (int)(n - n_tag), name);
    return find_exactly(m, bare);
}

static int64_t usual_idle(const tn_models *m) { return m->o.idle_ns ? m->o.idle_ns : -1; }

static void model_free(tn_served *k) {
    tn_live_close(&k->live);
    free(k->name);
    free(k->path);
    free(k->opened);
    free(k);
}

tern_status tn_models_add(tn_models *m, const char *name, const char *path, tern_error *err) {
    size_t n = 0;
    struct stat sb;
    for (const tn_served *k = m->first; k; k = k->next, n++)
        if (!strcmp(k->name, name) || !strcmp(k->path, path)) return TERN_OK;
    TN_FAIL_IF(n >= TN_MODELS_MAX, err, TERN_E_LIMIT, "there are more than %d models", TN_MODELS_MAX);
    TN_FAIL_IF(strlen(name) >= TN_MODELS_NAME, err, TERN_E_LIMIT, "a model's name is longer than %d bytes",
               TN_MODELS_NAME - 1);
    tn_served *k = calloc(1, sizeof *k);
    TN_FAIL_IF(!k, err, TERN_E_MEMORY, "no memory for the list of models");
    k->all = m;
    k->idle_ns = usual_idle(m);
    k->name = strdup(name);
    k->path = strdup(path);
    tern_status st = tn_live_open(&k->live, err);
    if (st == TERN_OK && (!k->name || !k->path))
        st = tn_fail(err, TERN_E_MEMORY, "no memory for the list of models");
    if (st != TERN_OK) {
        model_free(k);
        return st;
    }
    k->n_bytes = tn_catalogue_bytes(path);
    if (!stat(path, &sb)) k->made_s = (int64_t)sb.st_mtim.tv_sec;
    if (m->last) atomic_store(&m->last->next, k);
    else atomic_store(&m->first, k);
    m->last = k;
    return TERN_OK;
}

void tn_models_look_again(tn_models *m) {
    enum { EVERY_NS = 1000 * 1000 * 1000 };
    if (!m->o.look) return;
    pthread_mutex_lock(&m->adding);
    const int64_t now = tn_models_now(m);
    if (!m->looked_ns || now - m->looked_ns >= EVERY_NS) {
        m->o.look(m->o.user);
        m->looked_ns = now;
    }
    pthread_mutex_unlock(&m->adding);
}

size_t tn_models_count(const tn_models *m) {
    size_t n = 0;
    for (const tn_served *k = m->first; k; k = k->next) n++;
    return n;
}

void tn_models_default(tn_models *m, const char *name) { m->deflt = name ? tn_models_find(m, name) : NULL; }

/* ---- loading and unloading: the keeper's ------------------------------------------------------------- */

/* Another session of the model: counted, or refused where there is no room for it. */
static bool room(void *user, uint64_t bytes) {
    tn_served *k = user;
    tn_models *m = k->all;
    pthread_mutex_lock(&m->mu);
    uint64_t limit = m->o.engine.max_memory_bytes;
    bool ok = !limit || (bytes <= limit && m->held_bytes <= limit - bytes);
    if (ok) m->held_bytes += bytes, k->held_bytes += bytes;
    pthread_mutex_unlock(&m->mu);
    return ok;
}

/* What is needed at least: weights, one session, and what both compute in. */
static tern_status measure(tn_served *k, char path[TN_MODELS_PATH], tern_options *o, uint64_t *need,
                           tern_error *err) {
    tn_models *m = k->all;
    tn_fit fit;
    tern_estimate e;
    if (m->o.place) m->o.place(m->o.user, k->path, path);
    else snprintf(path, TN_MODELS_PATH, "%s", k->path);
    *o = m->o.engine;
    o->session.n_ctx = m->o.queue.n_ctx;
    tern_status st = tn_fit_memory(path, o, &fit, err);
    if (fit.n_ctx) o->session.n_ctx = fit.n_ctx;
    if (st == TERN_OK) st = tern_engine_estimate(path, o, &e, err);
    if (st == TERN_OK) *need = e.weight_bytes + e.kv_bytes + e.work_bytes;
    else tn_queue_hide_path(path, k->name, err);
    if (st != TERN_E_LIMIT) return st;
    return err->code = TERN_E_MEMORY; /* the request is not at fault */
}

static tern_status load(tn_served *k, const char *path, const tern_options *o, tern_error *err) {
    tn_models *m = k->all;
    tn_queue_options qo = m->o.queue;
    free(k->opened);
    k->opened = strdup(path);
    TN_FAIL_IF(!k->opened, err, TERN_E_MEMORY, "no memory for the model");
    tern_options with = *o;
    with.beside = k->path;
    TN_TRY(tern_engine_open(path, &with, &k->e, err));
    if (k->e->model->streamed) tn_streamed_ahead(k->e->model->streamed);
    qo.e = k->e;
    qo.model = k->name;
    qo.path = k->opened;
    qo.from = strcmp(path, k->path) ? "cache" : k->e->npu ? "package" : "file";
    if (strcmp(path, k->path)) tn_cache_about_get(path, &qo.about);
    if (!qo.chat_template && !tern_has_chat_template(k->e) && k->e->model->tokenizer) {
        qo.chat_template = tn_chat_builtin("chatml");
        tn_log(&m->ctx, TERN_LOG_WARN,
               "%s has no chat template: conversations are written as ChatML (--chat-template names another)",
               k->name);
    }
    qo.turns = m->o.look || atomic_load(&m->first)->next ? &m->turns : NULL;
    qo.room = room;
    qo.room_user = k;
    tern_status st = tn_queue_open(&qo, &k->q, err);
    if (st == TERN_OK) tn_live_attach(k->live, k->e);
    else tern_engine_close(&k->e);
    return st;
}

/* With the lock, which is given up meanwhile. Nobody uses the model. */
static void unload(tn_served *k, const char *why) {
    tn_models *m = k->all;
    assert(k->state == TN_SERVED_READY && !k->n_users);
    k->state = TN_SERVED_LOADING;
    tn_queue_counts n = tn_queue_count(k->q);
    n.waiting = n.running = 0;
    tn_counts_add(&k->before, &n);
    pthread_mutex_unlock(&m->mu);
    tn_queue_close(&k->q); /* conversations go to disk */
    tn_live_detach(k->live);
    tern_engine_close(&k->e);
    tn_mem_trim();
    if (why) tell(m, "%s left memory: %s", k->name, why);
    pthread_mutex_lock(&m->mu);
    m->held_bytes -= k->held_bytes;
    k->held_bytes = 0;
    k->n_unloads++;
    k->idle_ns = usual_idle(m);
    k->state = TN_SERVED_AWAY;
    pthread_cond_broadcast(&m->changed);
}

/* Weights are read while prompts are, and a failure stays with the engine. Where memory was missing, or a read failed or the
 * file was written to, the model is opened again; what is damaged stays refused. With the lock. */
static bool is_broken(const tn_served *k) {
    if (k->state != TN_SERVED_READY) return false;
    if (k->e->npu) return tn_loader_is_broken(k->e->npu->loader);
    const tern_status st = tn_model_failure(k->e->model);
    return st == TERN_E_MEMORY || st == TERN_E_IO;
}

/* The one that nobody uses and that was left longest ago; NULL: none. */
static tn_served *oldest_idle(const tn_models *m) {
    tn_served *oldest = NULL;
    for (tn_served *k = m->first; k; k = k->next)
        if (k->state == TN_SERVED_READY && !k->n_users && (!oldest || k->used_ns < oldest->used_ns))
            oldest = k;
    return oldest;
}

static void unlink_waiter(tn_models *m, tn_waiter *w) {
    for (tn_waiter **p = &m->waiting; *p; p = &(*p)->next) {
        if (*p != w) continue;
        *p = w->next;
        m->n_waiting--;
        return;
    }
}

/* All who wait for the model, now that it is ready (err NULL) or cannot be. */
static void answer_waiters(tn_models *m, tn_served *k, const tern_error *err) {
    for (tn_waiter *w = m->waiting, *next; w; w = next) {
        next = w->next;
        if (w->model != k) continue;
        unlink_waiter(m, w);
        if (err) w->err = *err;
        else w->granted = true, k->n_users++;
    }
    pthread_cond_broadcast(&m->changed);
}

/* One step towards the model that the first who waits asked for. With the lock, which may be given up
 * meanwhile. false: others must leave first. */
static bool serve_first(tn_models *m) {
    tn_served *k = m->waiting->model;
    char path[TN_MODELS_PATH];
    tern_options o;
    uint64_t need = 0, limit = m->o.engine.max_memory_bytes;
    tern_error err = {0};
    if (is_broken(k)) {
        if (!k->n_users) unload(k, "its weights could not be read: it is opened again");
        return !k->n_users;
    }
    if (k->state == TN_SERVED_READY) {
        answer_waiters(m, k, NULL);
        return true;
    }
    pthread_mutex_unlock(&m->mu);
    tern_status st = measure(k, path, &o, &need, &err);
    pthread_mutex_lock(&m->mu);
    k->need_bytes = need;
    if (st == TERN_OK && limit && m->held_bytes > limit - need) {
        tn_served *idle = oldest_idle(m);
        if (idle) unload(idle, "its room is wanted");
        return idle != NULL;
    }
    if (st == TERN_OK) {
        k->state = TN_SERVED_LOADING;
        k->held_bytes = need;
        m->held_bytes += need;
        pthread_mutex_unlock(&m->mu);
        double begin = tn_now_s(), took;
        st = load(k, path, &o, &err);
        took = tn_now_s() - begin;
        if (st == TERN_OK) tell(m, "%s is in memory: %.0f MiB, opened in %.2f s", k->name, mib(need), took);
        pthread_mutex_lock(&m->mu);
        k->load_s = took;
        k->first_s = 0;
        k->told_first = false;
        k->used_ns = tn_models_now(m);
        k->state = st == TERN_OK ? TN_SERVED_READY : TN_SERVED_AWAY;
        if (st == TERN_OK) k->n_loads++;
        else m->held_bytes -= k->held_bytes, k->held_bytes = 0;
    }
    if (st != TERN_OK) tn_queue_hide_path(path, k->name, &err);
    if (st == TERN_E_UNSUPPORTED || st == TERN_E_LIMIT)
        err.code = TERN_E_FORMAT; /* the file is at fault, no request */
    k->why = err;
    if (st != TERN_OK) tell(m, "%s cannot be used: %s", k->name, err.message);
    answer_waiters(m, k, st == TERN_OK ? NULL : &err);
    return true;
}

/* Until when the keeper may sleep: when the next idle model has been so for long enough, in nanoseconds
 * from now; it unloads those whose time has come. -1: nothing is due. With the lock, which may be given up
 * meanwhile. */
static int64_t let_idle_go(tn_models *m) {
    int64_t next = -1;
    for (tn_served *k = m->first; k; k = k->next) {
        if (k->state != TN_SERVED_READY || k->n_users || k->idle_ns < 0) continue;
        int64_t left = k->used_ns + k->idle_ns - tn_models_now(m);
        if (left <= 0) {
            char why[80];
            snprintf(why, sizeof why, "nobody asked it for %.0f s", (double)k->idle_ns * 1e-9);
            unload(k, why);
            return 0;
        }
        if (next < 0 || left < next) next = left;
    }
    return next;
}

/* Encoders of pictures whose minute is over leave memory. Until when the keeper may sleep, as above. With the
 * lock. */
static int64_t let_encoders_rest(tn_models *m) {
    int64_t next = -1;
    for (tn_served *k = m->first; k; k = k->next) {
        if (k->state != TN_SERVED_READY) continue;
        const int64_t left = tn_sight_idle(k->e, tn_models_now(m));
        if (left >= 0 && (next < 0 || left < next)) next = left;
    }
    return next;
}

static void sleep_for(tn_models *m, int64_t ns) {
    if (ns < 0) pthread_cond_wait(&m->changed, &m->mu);
    else tn_cond_wait_ns(&m->changed, &m->mu, ns);
}

static void *keep(void *user) {
    tn_models *m = user;
    pthread_mutex_lock(&m->mu);
    while (!m->closing) {
        bool stuck = m->waiting && !serve_first(m);
        m->no_room = stuck && m->waiting;
        if (m->waiting && !stuck) continue;
        int64_t next = stuck ? -1 : let_idle_go(m), rest = next ? let_encoders_rest(m) : -1;
        if (rest >= 0 && (next < 0 || rest < next)) next = rest;
        if (next && !m->closing && (stuck || !m->waiting)) sleep_for(m, next);
    }
    pthread_mutex_unlock(&m->mu);
    return NULL;
}

/* ---- using ------------------------------------------------------------------------------------------- */

static tern_status find(tn_models *m, const char *name, tn_served **out, tern_error *err) {
    bool named = name && *name && !m->o.any_name;
    *out = named ? tn_models_find(m, name) : (tn_served *)(uintptr_t)m->deflt;
    if (!*out && named) {
        tn_models_look_again(m);
        *out = tn_models_find(m, name);
    }
    tn_served *first = m->first;
    if (!*out && !named && first && !first->next) *out = first;
    TN_FAIL_IF(!*out && !named, err, TERN_E_INVALID,
               "'model' is missing: there are %zu models, which GET /v1/models lists", tn_models_count(m));
    TN_FAIL_IF(!*out, err, TN_E_ABSENT, "there is no model '%.80s'; GET /v1/models lists those there are",
               name);
    return TERN_OK;
}

tern_status tn_models_use(tn_models *m, const char *name, bool (*gone)(void *), void *user, tn_served **out,
                          tern_error *err) {
    tn_served *k;
    tn_waiter w = {0};
    *out = NULL;
    TN_TRY(find(m, name, &k, err));
    w.model = k;
    pthread_mutex_lock(&m->mu);
    tern_status st = TERN_OK;
    bool ready = k->state == TN_SERVED_READY && !m->no_room && !m->closing && !is_broken(k);
    if (ready) k->n_users++;
    else if (!m->closing && m->n_waiting >= m->o.queue.max_waiting)
        st = tn_fail(err, TN_E_BUSY, "the queue is full: %d requests wait for a model", m->n_waiting);
    if (!ready && st == TERN_OK) {
        tn_waiter **end = &m->waiting;
        while (*end) end = &(*end)->next;
        *end = &w;
        m->n_waiting++;
        pthread_cond_broadcast(&m->changed);
    }
    while (!ready && st == TERN_OK && !w.granted) {
        if (w.err.code != TERN_OK) {
            st = w.err.code;
            if (err) *err = w.err;
            break;
        }
        bool left = false;
        if (!m->closing) {
            sleep_for(m, (int64_t)LOOK_MS * 1000000);
            pthread_mutex_unlock(&m->mu);
            left = gone && gone(user);
            pthread_mutex_lock(&m->mu);
        }
        if (w.granted || w.err.code != TERN_OK || (!m->closing && !left)) continue;
        unlink_waiter(m, &w);
        pthread_cond_broadcast(&m->changed); /* the keeper may have been stuck on this one */
        st = m->closing ? tn_fail(err, TN_E_CLOSING, "the server is closing")
                        : tn_fail(err, TERN_E_CANCELLED, "cancelled");
    }
    pthread_mutex_unlock(&m->mu);
    if (st == TERN_OK) *out = k;
    return st;
}

/* The time from the request for which the model was loaded to its first token is told once. With the lock. */
static void look_at_first(tn_served *k) {
    if (k->told_first) return;
    double s = tn_queue_count(k->q).opened_first_s;
    if (s <= 0) return;
    k->told_first = true;
    k->first_s = s;
    tell(k->all, "%s: first token %.2f s after the request for which it was loaded", k->name, s);
}

void tn_models_leave(tn_served *k) {
    tn_models *m = k->all;
    pthread_mutex_lock(&m->mu);
    look_at_first(k);
    k->used_ns = tn_models_now(m);
    k->n_users--;
    if (!k->n_users) pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mu);
}

void tn_models_keep(tn_served *k, const int64_t *ns) {
    pthread_mutex_lock(&k->all->mu);
    k->idle_ns = ns ? *ns : usual_idle(k->all);
    pthread_mutex_unlock(&k->all->mu);
}

const char *tn_served_name(const tn_served *k) { return k->name; }
tn_queue *tn_served_queue(const tn_served *k) { return k->q; }

tern_status tn_models_live(tn_models *m, const char *name, tn_live **out, tern_error *err) {
    tn_served *k;
    TN_TRY(find(m, name, &k, err));
    *out = k->live;
    return TERN_OK;
}

/* ---- all -------------------------------------------------------------------------------------------- */

static void models_free(tn_models *m) {
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->mu);
    pthread_mutex_destroy(&m->adding);
    tn_turns_destroy(&m->turns);
    free(m);
}

tern_status tn_models_open(const tn_models_options *o, tn_models **out, tern_error *err) {
    tn_models *m = *out = calloc(1, sizeof *m);
    TN_FAIL_IF(!m, err, TERN_E_MEMORY, "no memory for the server");
    m->o = *o;
    tn_ctx_init(&m->ctx, o->engine.hooks);
    tn_turns_init(&m->turns);
    tn_cond_init(&m->changed);
    pthread_mutex_init(&m->mu, NULL);
    pthread_mutex_init(&m->adding, NULL);
    if (!pthread_create(&m->keeper, NULL, keep, m)) return TERN_OK;
    models_free(m);
    *out = NULL;
    return tn_fail(err, TERN_E_MEMORY, "cannot start a thread");
}

void tn_models_stop(tn_models *m) {
    if (!m) return;
    pthread_mutex_lock(&m->mu);
    m->closing = true;
    for (tn_served *k = m->first; k; k = k->next)
        if (k->state == TN_SERVED_READY) tn_queue_stop(k->q);
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mu);
}

void tn_models_close(tn_models **pm) {
    tn_models *m = *pm;
    if (!m) return;
    *pm = NULL;
    tn_models_stop(m);
    pthread_join(m->keeper, NULL);
    pthread_mutex_lock(&m->mu);
    for (tn_served *k = m->first; k; k = k->next)
        if (k->state == TN_SERVED_READY) unload(k, NULL);
    pthread_mutex_unlock(&m->mu);
    for (tn_served *k = m->first, *next; k; k = next) {
        next = k->next;
        model_free(k);
    }
    models_free(m);
}

tn_ctx *tn_models_ctx(tn_models *m) { return &m->ctx; }

bool tn_models_closing(tn_models *m) {
    pthread_mutex_lock(&m->mu);
    bool closing = m->closing;
    pthread_mutex_unlock(&m->mu);
    return closing;
}

void tn_models_look(tn_models *m) {
    pthread_mutex_lock(&m->mu);
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mu);
}
