#include "server/responses.h"

#include "server/refusals.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct kept {
    struct kept *next;
    char *id;
    json_t *response, *messages;
    size_t n_bytes;
} kept;

struct tn_responses {
    pthread_mutex_t mu;
    kept *first; /* guarded by mu; the one asked for last is first */
    size_t n, n_bytes;
};

tern_status tn_responses_open(tn_responses **out, tern_error *err) {
    tn_responses *x = *out = calloc(1, sizeof *x);
    TN_FAIL_IF(!x, err, TERN_E_MEMORY, "no memory for the server");
    pthread_mutex_init(&x->mu, NULL);
    return TERN_OK;
}

static void kept_free(kept *k) {
    json_decref(k->response);
    json_decref(k->messages);
    free(k->id);
    free(k);
}

void tn_responses_close(tn_responses **px) {
    tn_responses *x = *px;
    *px = NULL;
    if (!x) return;
    for (kept *k = x->first, *next; k; k = next) {
        next = k->next;
        kept_free(k);
    }
    pthread_mutex_destroy(&x->mu);
    free(x);
}

static size_t bytes_of(const json_t *v) {
    char *text = NULL;
    size_t n = 0;
    if (tn_json_text(v, JSON_COMPACT, &text, NULL) == TERN_OK) n = strlen(text);
    free(text);
    return n;
}

/* Takes it from the list. With the lock. */
static kept *take_out(tn_responses *x, const char *id) {
    for (kept **p = &x->first; *p; p = &(*p)->next) {
        kept *k = *p;
        if (strcmp(k->id, id) != 0) continue;
        *p = k->next;
        x->n--;
        x->n_bytes -= k->n_bytes;
        return k;
    }
    return NULL;
}

static void put_in(tn_responses *x, kept *k) {
    k->next = x->first;
    x->first = k;
    x->n++;
    x->n_bytes += k->n_bytes;
}

/* Whoever takes a response out never waited for the worker that gave its answer up, so they share no value. */
void tn_responses_keep(tn_responses *x, const char *id, const json_t *response, const json_t *messages) {
    kept *k = response && messages ? calloc(1, sizeof *k) : NULL;
    if (!k) return;
    k->id = strdup(id);
    k->response = tn_json_copy(response);
    k->messages = tn_json_copy(messages);
    if (!k->id || !k->response || !k->messages) {
        kept_free(k);
        return;
    }
    k->n_bytes = bytes_of(response) + bytes_of(messages);
    pthread_mutex_lock(&x->mu);
    put_in(x, k);
    while (x->first->next && (x->n > TN_RESPONSES_MAX || x->n_bytes > TN_RESPONSES_BYTES)) {
        const kept *last = x->first;
        while (last->next) last = last->next;
        kept_free(take_out(x, last->id));
    }
    pthread_mutex_unlock(&x->mu);
}

tern_status tn_responses_find(tn_responses *x, const char *id, json_t **response, json_t **messages,
                              tern_error *err) {
    pthread_mutex_lock(&x->mu);
    kept *k = take_out(x, id);
    if (k) put_in(x, k);
    if (k && response) *response = tn_json_copy(k->response);
    if (k && messages) *messages = tn_json_copy(k->messages);
    pthread_mutex_unlock(&x->mu);
    TN_FAIL_IF(!k, err, TN_E_GONE, "there is no response '%.80s': it was not stored, or has left memory", id);
    TN_FAIL_IF((response && !*response) || (messages && !*messages), err, TERN_E_MEMORY,
               "no memory for the response");
    return TERN_OK;
}

/* An item's id has that of its response within (sink_responses.c). */
static bool has_item(const kept *k, const char *id) {
    const char *whose = strchr(k->id, '_'), *part = strchr(id, '_');
    return whose && part && !strncmp(part, whose, strlen(whose));
}

tern_status tn_responses_item(tn_responses *x, const char *id, json_t **item, tern_error *err) {
    bool found = false;
    *item = NULL;
    pthread_mutex_lock(&x->mu);
    for (const kept *k = x->first; k && !found; k = k->next) {
        const json_t *list = has_item(k, id) ? json_object_get(k->response, "output") : NULL;
        for (size_t i = 0; i < json_array_size(list) && !found; i++) {
            const json_t *one = json_array_get(list, i);
            const char *its = json_string_value(json_object_get(one, "id"));
            found = its && !strcmp(its, id);
            if (found) *item = tn_json_copy(one);
        }
    }
    pthread_mutex_unlock(&x->mu);
    TN_FAIL_IF(!found, err, TN_E_GONE,
               "there is no item '%.80s': its response was not stored, or has left memory", id);
    TN_FAIL_IF(!*item, err, TERN_E_MEMORY, "no memory for the item");
    return TERN_OK;
}

tern_status tn_responses_forget(tn_responses *x, const char *id, tern_error *err) {
    pthread_mutex_lock(&x->mu);
    kept *k = take_out(x, id);
    pthread_mutex_unlock(&x->mu);
    TN_FAIL_IF(!k, err, TN_E_GONE, "there is no response '%.80s'", id);
    kept_free(k);
    return TERN_OK;
}
