#include "model/attn_times.h"

#include "base/json.h"

static json_t *list(const double *x, int32_t n) {
    json_t *a = json_array();
    for (int32_t i = 0; i < n; i++) tn_json_append(&a, tn_json_real(x[i]));
    return a;
}

json_t *tn_attn_times_json(const tn_attn_times *t) {
    return tn_json_pack("{s:i, s:i, s:o, s:o, s:f, s:f, s:f, s:f}", "share", (int)t->share, "pools",
                        (int)t->pools, "launch_us", list(t->launch_us, t->n_widths), "score_us",
                        list(t->score_us, t->n_widths), "select_us", t->select_us, "select_kpos_us",
                        t->select_kpos_us, "attend_us", t->attend_us, "attend_kpos_us", t->attend_kpos_us);
}

/* Up to ten seconds: nothing is 0 on the device of a real machine, but steps of a clock may be. */
static bool time_of(const json_t *v, double *out) {
    *out = json_number_value(v);
    return json_is_number(v) && *out >= 0 && *out <= 1e7;
}

bool tn_attn_times_read(const json_t *j, tn_attn_times *out) {
    tn_attn_times t = {0};
    const json_t *share = json_object_get(j, "share"), *pools = json_object_get(j, "pools"),
                 *launch = json_object_get(j, "launch_us"), *score = json_object_get(j, "score_us");
    size_t n = json_array_size(launch);
    json_int_t s = json_integer_value(share), p = json_integer_value(pools);
    bool ok = json_is_integer(share) && s >= 0 && s <= 8 && json_is_integer(pools) && p >= 1 && p <= 32 &&
              n >= 1 && n <= TN_ATTN_WIDTHS && json_array_size(score) == n;
    for (size_t i = 0; ok && i < n; i++)
        ok = time_of(json_array_get(launch, i), &t.launch_us[i]) &&
             time_of(json_array_get(score, i), &t.score_us[i]);
    ok = ok && time_of(json_object_get(j, "select_us"), &t.select_us) &&
         time_of(json_object_get(j, "select_kpos_us"), &t.select_kpos_us) &&
         time_of(json_object_get(j, "attend_us"), &t.attend_us) &&
         time_of(json_object_get(j, "attend_kpos_us"), &t.attend_kpos_us);
    t.share = (int32_t)s;
    t.pools = (int32_t)p;
    t.n_widths = (int32_t)n;
    *out = ok ? t : (tn_attn_times){0};
    return ok;
}
