/* A profile from anywhere, as it is and with the key that belongs to the model: times in their ranges, or
 * none. */
#include "tiny.h"

#include "base/json.h"
#include "package/tuned.h"

#include <math.h>

static void check(const tern_engine *e) {
    tn_step_profile p;
    tn_profile_file file;
    tn_engine_profile(e, &file);
    tn_profile_load(&file, &e->model->program, &p);
    if (p.n_forwards < 0 || p.n_forwards > TN_PROFILE_FORWARDS) abort();
    for (int32_t i = 0; i < p.n_forwards; i++)
        if (!(p.forward_rows[i] >= 1) || !(p.forward_relative[i] > 0) || !isfinite(p.forward_relative[i]))
            abort();
    if (!(p.rest_us >= 0 && p.rest_us < 1e9) || !(p.whole_us >= 0 && p.whole_us < 1e12 && p.whole_tok >= 0))
        abort();
    if (p.measured && !(p.attn_us_per_pos >= 0 && p.attn_us_per_pos < 1e9)) abort();
    tn_tuned t;
    (void)tn_tuned_load(e->profile_path, e->kern.cpu, e->n_lane_workers, &t);
    tn_aio_options io;
    tn_aio_defaults(&io);
    tn_tuned_read(STDERR_FILENO, e->profile_path, &io);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static tern_engine *e;
    static char *own;
    static json_t *key, *tuned;
    if (!e) {
        tiny_make("tiny-llama", true);
        e = tiny_engine(tiny_package);
        own = e->profile_path;
        tern_error err;
        const tn_step_profile one = {.n_forwards = 1, .forward_rows = {1}, .forward_relative = {1}};
        tn_profile_file file;
        tn_engine_profile(e, &file);
        tn_profile_save(&e->ctx, &file, &e->model->program,
                        &one); /* so that there is a profile with the true key */
        json_t *j;
        if (tn_json_read(own, 0, &j, &err) != TERN_OK) abort();
        key = json_incref(json_object_get(j, "key"));
        json_decref(j);
        char name[40];
        tn_tuned_key(e->kern.cpu, e->n_lane_workers, name);
        tuned = tn_json_string(name, strlen(name));
        if (!key || !tuned) abort();
    }
    char path[64];
    int fd = tiny_file(data, size, path);
    e->profile_path = path;
    check(e);
    close(fd);
    json_t *j = json_loadb((const char *)data, size, 0, NULL);
    if (json_is_object(j)) {
        json_t *any = json_object_get(json_object_get(j, "tuned"), "any");
        tn_json_set(&j, "key", json_incref(key));
        if (any) {
            json_t *by_key = json_object();
            tn_json_set(&by_key, json_string_value(tuned), json_incref(any));
            tn_json_set(&j, "tuned", by_key);
        }
        char *text;
        if (tn_json_text(j, 0, &text, NULL) == TERN_OK) {
            fd = tiny_file(text, strlen(text), path);
            check(e);
            close(fd);
            free(text);
        }
    }
    json_decref(j);
    e->profile_path = own;
    return 0;
}
