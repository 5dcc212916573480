/* What clients are told of a model's file, and of how long things took. */
#include "server/queue.h"

#include <stdio.h>
#include <string.h>

void tn_queue_hide_path(const char *path, const char *name, tern_error *err) {
    tern_error told = *err;
    size_t n = strlen(path);
    char *at = strstr(err->message, path);
    if (!at) return;
    snprintf(told.message, sizeof told.message, "%.*s%.200s%s", (int)(at - err->message), err->message, name,
             at + n);
    *err = told;
}

void tn_queue_tell_from(const tn_queue_options *o, json_t **into) {
    if (!o->from) return;
    tn_json_set(into, "from", tn_json_string(o->from, strlen(o->from)));
    tn_cache_about_json(&o->about, into);
}

const double tn_times_s[TN_TIMES] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                     0.5,   1,      2.5,   5,    10,    30,   60};

void tn_times_add(tn_times *t, double s) {
    int i = 0;
    while (i < TN_TIMES && s > tn_times_s[i]) i++;
    t->n[i]++;
    t->count++;
    t->sum_s += s;
}
