/* quant/cache_about.c - facts about an automatic package: a small JSON file beside it. */
#include "quant/cache.h"

#include "base/outfile.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* KEY.tern becomes KEY.about. */
static bool about_path(const char *package, char out[TN_CACHE_PATH]) {
    static const char ending[] = ".tern";
    size_t n = strlen(package), k = sizeof ending - 1;
    return n > k && !strcmp(package + n - k, ending) &&
           snprintf(out, TN_CACHE_PATH, "%.*s.about", (int)(n - k), package) < TN_CACHE_PATH;
}

static double number(const json_t *j, const char *key) {
    double v = json_number_value(json_object_get(j, key));
    return v > 0 && isfinite(v) ? v : 0;
}

void tn_cache_about_get(const char *package, tn_cache_about *out) {
    char path[TN_CACHE_PATH];
    json_t *j;
    *out = (tn_cache_about){0};
    if (!about_path(package, path) || tn_json_read(path, 0, &j, NULL) != TERN_OK) return;
    json_int_t n = json_integer_value(json_object_get(j, "held_tokens"));
    *out = (tn_cache_about){.bits = number(j, "bits"),
                            .kl = number(j, "kl"),
                            .kl_stderr = number(j, "kl_stderr"),
                            .n_held_tokens = n > 0 ? (uint64_t)n : 0,
                            .told = json_is_true(json_object_get(j, "told"))};
    json_decref(j);
}

void tn_cache_about_json(const tn_cache_about *a, json_t **into) {
    if (a->bits > 0) tn_json_set(into, "bits", tn_json_real(a->bits));
    if (!a->n_held_tokens) return;
    tn_json_set(into, "loss_percent", tn_json_real(100 * expm1(a->kl)));
    tn_json_set(into, "loss_stderr_percent", tn_json_real(100 * a->kl_stderr));
    tn_json_set(into, "held_tokens", json_integer((json_int_t)a->n_held_tokens));
}

tern_status tn_cache_about_put(tn_ctx *ctx, const char *package, const tn_cache_about *about,
                               tern_error *err) {
    static const tn_outkind kind = {.what = "a package's description", .begins = {"{"}, .is_private = true};
    char path[TN_CACHE_PATH], *text;
    tn_outfile *file;
    TN_FAIL_IF(!about_path(package, path), err, TERN_E_INVALID, "%s is no package of the cache", package);
    json_t *j = tn_json_pack("{s:f, s:f, s:f, s:I, s:b}", "bits", about->bits, "kl", about->kl, "kl_stderr",
                             about->kl_stderr, "held_tokens", (json_int_t)about->n_held_tokens, "told",
                             (int)about->told);
    tern_status st = tn_json_text(j, JSON_COMPACT | JSON_REAL_PRECISION(6), &text, err);
    json_decref(j);
    TN_TRY(st);
    st = tn_outfile_open(ctx, path, &kind, &file, err);
    if (st == TERN_OK) {
        st = tn_outfile_write(file, text, strlen(text), err);
        if (st == TERN_OK) st = tn_outfile_commit(&file, err);
        tn_outfile_abort(&file);
    }
    free(text);
    return st;
}
