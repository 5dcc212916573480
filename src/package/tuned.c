#include "package/tuned.h"

#include "base/json.h"
#include "sched/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tn_tuned_path(const char *package, char *out, size_t cap) {
    return (size_t)snprintf(out, cap, "%s.profile", package) < cap;
}

void tn_tuned_key(uint32_t cpu, const int32_t *n_lane_workers, char key[40]) {
    snprintf(key, 40, "%08x-w%d.%d", cpu, n_lane_workers[TN_LANE_CPU], n_lane_workers[TN_LANE_NPU]);
}

bool tn_tuned_load(const char *profile_path, uint32_t cpu, const int32_t *n_lane_workers, tn_tuned *out) {
    *out = (tn_tuned){0};
    json_t *j;
    (void)tn_json_read(profile_path, 0, &j, NULL); /* NULL: nothing was tuned */
    char key[40];
    tn_tuned_key(cpu, n_lane_workers, key);
    const json_t *t = json_object_get(j, "tuned"),
                 *other = json_object_get(json_object_get(j, "tuned_else"), key);
    if (other) t = other; /* other lanes, or another machine, were measured last */
    const char *stored = json_string_value(json_object_get(t, "key")),
               *print = json_string_value(json_object_get(t, "fingerprint"));
    bool ok = stored && print && !strcmp(stored, key);
    if (ok) {
        out->fingerprint = strtoull(print, NULL, 16);
        json_int_t chunk = json_integer_value(json_object_get(t, "chunk")),
                   from = json_integer_value(json_object_get(t, "attention_from"));
        ok = chunk >= TN_CHUNK_MIN && chunk <= TN_CHUNK_MAX && chunk % 32 == 0;
        out->chunk = (int32_t)(ok ? chunk : 0);
        for (int s = 0; s < TN_N_SITES && ok; s++) {
            if (!tn_site_in_layers((tn_site)s)) continue;
            json_int_t rows = json_integer_value(
                json_object_get(json_object_get(t, "rows_per_run"), tn_site_name((tn_site)s)));
            out->rows_per_run[s] = rows > 0 && rows <= chunk ? (int32_t)rows : 0;
        }
        out->attn_threshold = from > 0 && from <= 1 << 24 ? (int32_t)from : 0;
#ifndef TERN_MINIMAL /* has but one */
        const char *form = json_string_value(json_object_get(t, "packed_form"));
        if (form && strlen(form) < sizeof out->packed_form) strcpy(out->packed_form, form);
#endif
        out->unfinished = json_is_true(json_object_get(t, "unfinished"));
        (void)tn_attn_times_read(json_object_get(t, "attention_times"), &out->attn_times);
    }
    json_decref(j);
    return ok;
}

const char *const tn_tuned_read_names[TN_TUNED_READS] = {"threads", "threads-direct", "uring",
                                                         "uring-direct"};

void tn_tuned_method(const char *profile_path, tn_aio_options *o) {
    json_t *j = NULL;
    if (profile_path) (void)tn_json_read(profile_path, 0, &j, NULL);
    const char *kept = json_string_value(json_object_get(json_object_get(j, "read"), "method"));
    if (!kept || !tn_aio_method_parse(kept, o)) (void)tn_aio_method_parse(TN_TUNED_READ_DEFAULT, o);
    json_decref(j);
}

void tn_tuned_read(int fd, const char *profile_path, tn_aio_options *o) {
    if (tn_aio_cached_share(fd) < 0.9) tn_tuned_method(profile_path, o);
    else (void)tn_aio_method_parse("threads", o);
}
