/* engine/minimal.c - refusals in place of imports.c and quant/packing.c, for builds that only read
 * packages (TERN_MINIMAL). */
#include "base/sized.h"
#include "base/status.h"
#include "engine/adapters.h"
#include "engine/engine.h"
#include "engine/imports.h"

#include <string.h>

static tern_status no_package(const char *path, tern_error *err) {
    return tn_fail(err, TERN_E_UNSUPPORTED, "%s is no package, and this build of tern runs packages alone",
                   path);
}

tern_status tn_import_open(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                           tern_error *err) {
    (void)e, (void)o, (void)n_threads;
    return no_package(path, err);
}

tern_status tn_import_estimate(tn_ctx *ctx, const char *path, const char *scheme, tn_hparams *h,
                               uint64_t *n_bytes, uint64_t *n_next_bytes, tn_experts_need *experts,
                               bool *blocks, tern_error *err) {
    (void)ctx, (void)scheme, (void)h, (void)n_bytes, (void)n_next_bytes, (void)experts, (void)blocks;
    return no_package(path, err);
}

tern_status tn_engine_open_adapters(tern_engine *e, const char *path, const char *list, tern_error *err) {
    (void)e, (void)path;
    TN_FAIL_IF(list && *list, err, TERN_E_UNSUPPORTED, "%s: this build of tern has no adapters", list);
    return TERN_OK;
}

uint64_t tn_adapters_bytes(const char *model, const tn_hparams *h, const char *list) {
    return (void)model, (void)h, (void)list, 0;
}

tern_status tn_mix_parse(const tern_engine *e, const char *text, tn_lora_mix *out, tern_error *err) {
    (void)e;
    *out = (tn_lora_mix){0};
    return tn_engine_open_adapters(NULL, NULL, text && strcmp(text, "none") ? text : NULL, err);
}

const char *tern_engine_lora(const tern_engine *e, size_t i) { return (void)e, (void)i, NULL; }
const char *tern_engine_lora_task(const tern_engine *e, size_t i, const char **prefix) {
    return (void)e, (void)i, (void)prefix, NULL;
}

tern_status tern_pack_options_init(tern_pack_options *o, size_t size_bytes) {
    const tern_pack_options d = {.size_bytes = size_bytes};
    return tn_sized_out(o, size_bytes, &d, sizeof d, TN_SIZE_UP_TO(tern_pack_options, n_threads));
}

tern_status tern_pack_sized(const char *src, const char *out, const tern_pack_options *opt,
                            tern_pack_report *report, size_t report_bytes, tern_error *err) {
    (void)opt, (void)report, (void)report_bytes;
    TN_FAIL_IF(!src || !*src || !out || !*out, err, TERN_E_INVALID, "no model or no package path given");
    return tn_fail(err, TERN_E_UNSUPPORTED, "%s: this build of tern runs packages and makes none", src);
}
