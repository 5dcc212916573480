#include "package/tuned.h"

#include "base/json.h"
#include "sched/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tn_tuned_key(uint32_t cpu, const int32_t *n_lane_workers, char key[40]) {
    snprintf(key, 40, "%08x-w%d.%d", cpu, n_lane_workers[TN_LANE_CPU], n_lane_workers[TN_LANE_NPU]);
}

static int32_t chunk_in(const json_t *tuned) {
    json_int_t chunk = json_integer_value(json_object_get(tuned, "chunk"));
    return chunk >= TN_CHUNK_MIN && chunk <= TN_CHUNK_MAX && chunk % 32 == 0 ? (int32_t)chunk : 0;
}

static int32_t threshold_in(const json_t *tuned) {
    json_int_t from = json_integer_value(json_object_get(tuned, "attention_from"));
    return from > 0 && from <= 1 << 24 ? (int32_t)from : 0;
}

void tn_tuned_lengths(const char *package, int32_t *chunk, int32_t *attn_threshold) {
    char path[4096];
    json_t *j = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s.profile", package) < sizeof path)
        (void)tn_json_read(path, 0, &j, NULL);
    const json_t *tuned = json_object_get(j, "tuned");
    *chunk = chunk_in(tuned) ? chunk_in(tuned) : TN_CHUNK_DEFAULT;
    *attn_threshold = threshold_in(tuned);
    json_decref(j);
}

bool tn_tuned_load(const char *profile_path, uint32_t cpu, const int32_t *n_lane_workers, tn_tuned *out) {
    *out = (tn_tuned){0};
    json_t *j;
    (void)tn_json_read(profile_path, 0, &j, NULL); /* NULL: nothing was tuned */
    const json_t *t = json_object_get(j, "tuned");
    char key[40];
    tn_tuned_key(cpu, n_lane_workers, key);
    const char *stored = json_string_value(json_object_get(t, "key")),
               *print = json_string_value(json_object_get(t, "fingerprint"));
    bool ok = stored && print && !strcmp(stored, key);
    if (ok) {
        out->fingerprint = strtoull(print, NULL, 16);
        json_int_t chunk = out->chunk = chunk_in(t);
        ok = chunk > 0;
        for (int s = 0; s < TN_N_SITES && ok; s++) {
            if (!tn_site_in_layers((tn_site)s)) continue;
            json_int_t rows = json_integer_value(
                json_object_get(json_object_get(t, "rows_per_run"), tn_site_name((tn_site)s)));
            out->rows_per_run[s] = rows > 0 && rows <= chunk ? (int32_t)rows : 0;
        }
        out->attn_threshold = threshold_in(t);
        out->unfinished = json_is_true(json_object_get(t, "unfinished"));
        (void)tn_attn_times_read(json_object_get(t, "attention_times"), &out->attn_times);
    }
    json_decref(j);
    return ok;
}

const char *const tn_tuned_read_names[TN_TUNED_READS] = {"threads", "threads-direct", "uring",
                                                         "uring-direct"};

void tn_tuned_read(int fd, const char *profile_path, tn_aio_options *o) {
    bool ok = false;
    if (tn_aio_cached_share(fd) < 0.9) {
        json_t *j;
        (void)tn_json_read(profile_path, 0, &j, NULL);
        const char *kept = json_string_value(json_object_get(json_object_get(j, "read"), "method"));
        ok = (kept && tn_aio_method_parse(kept, o)) || tn_aio_method_parse(TN_TUNED_READ_DEFAULT, o);
        json_decref(j);
    }
    if (!ok) (void)tn_aio_method_parse("threads", o);
}
