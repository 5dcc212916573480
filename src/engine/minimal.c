/* engine/minimal.c - what a build for packages alone (TERN_MINIMAL) has in place of imports.c and quant/packing.c: refusals. */
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

tern_status tn_import_estimate(tn_ctx *ctx, const char *path, tn_hparams *h, uint64_t *n_bytes,
                               tern_error *err) {
    (void)ctx, (void)h, (void)n_bytes;
    return no_package(path, err);
}

tern_status tn_engine_open_adapters(tern_engine *e, const char *list, tern_error *err) {
    (void)e;
    TN_FAIL_IF(list && *list, err, TERN_E_UNSUPPORTED, "%s: this build of tern has no adapters", list);
    return TERN_OK;
}

uint64_t tn_adapters_bytes(const char *list) { return (void)list, 0; }

tern_status tn_mix_parse(const tern_engine *e, const char *text, tn_lora_mix *out, tern_error *err) {
    (void)e;
    *out = (tn_lora_mix){0};
    return tn_engine_open_adapters(NULL, text && strcmp(text, "none") ? text : NULL, err);
}

const char *tern_engine_lora(const tern_engine *e, size_t i) { return (void)e, (void)i, NULL; }

bool tn_lora_at(const tn_lora_mix *mix, int32_t site) { return (void)mix, (void)site, false; }

void tn_lora_rows(const tn_lora_mix *mix, const tn_kernels *kern, const tn_site_ops *ops, int32_t site,
                  const float *x, size_t ldx, int32_t n_rows, float *const *out, const size_t *ldo,
                  float *scratch) {
    (void)mix, (void)kern, (void)ops, (void)site, (void)x, (void)ldx, (void)n_rows, (void)out, (void)ldo,
        (void)scratch;
}

size_t tn_lora_scratch(tn_lora *const *loras, int32_t n, const tn_program *p) {
    return (void)loras, (void)n, (void)p, (size_t)0;
}

uint64_t tn_lora_mix_id(const tn_lora_mix *mix) { return (void)mix, 0; }
const char *tn_lora_mix_text(const tn_lora_mix *mix, char *buf, size_t cap) {
    return (void)mix, (void)buf, (void)cap, "no adapter";
}
void tn_lora_close(tn_lora **l) { (void)l; }

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
