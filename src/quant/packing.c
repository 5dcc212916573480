/* tern_pack: packing for programs. */
#include "base/sized.h"
#include "base/status.h"
#include "formats/package.h"
#include "quant/pack.h"

#include <string.h>

enum { LEAST_OPTIONS = TN_SIZE_UP_TO(tern_pack_options, n_threads) };

tern_status tern_pack_options_init(tern_pack_options *o, size_t size_bytes) {
    const tern_pack_options d = {.size_bytes = size_bytes};
    return tn_sized_out(o, size_bytes, &d, sizeof d, LEAST_OPTIONS);
}

static tern_status scheme_of(const char *name, tn_scheme *out, tern_error *err) {
    for (int s = 0; s < TN_N_SCHEMES; s++) {
        if (strcmp(name, tn_scheme_name((tn_scheme)s))) continue;
        *out = (tn_scheme)s;
        return TERN_OK;
    }
    return tn_fail(err, TERN_E_INVALID,
                   "scheme '%s' is unknown; there are gram, edgeflow, llm-npu, naive-w8a8, smoothquant",
                   name);
}

tern_status tern_pack_sized(const char *src, const char *out, const tern_pack_options *opt,
                            tern_pack_report *report, size_t report_bytes, tern_error *err) {
    TN_FAIL_IF(!src || !*src || !out || !*out, err, TERN_E_INVALID, "no model or no package path given");
    tern_pack_options o;
    tern_hooks hooks;
    tern_pack_options_defaults(&o);
    tern_hooks_defaults(&hooks);
    if (opt) TN_TRY(tn_sized_in(&o, sizeof o, opt, opt->size_bytes, LEAST_OPTIONS, "tern_pack_options", err));
    if (o.hooks)
        TN_TRY(tn_sized_in(&hooks, sizeof hooks, o.hooks, o.hooks->size_bytes,
                           TN_SIZE_UP_TO(tern_hooks, user), "tern_hooks", err));
    tn_pack_options p;
    tn_pack_defaults(&p);
    if (o.scheme) TN_TRY(scheme_of(o.scheme, &p.scheme, err));
    TN_FAIL_IF(!(o.bits == 0 || (o.bits >= 1 && o.bits <= 8)), err, TERN_E_INVALID, "%g bits: want 1 to 8",
               (double)o.bits);
    TN_FAIL_IF(o.n_threads < 0 || o.n_threads > 64, err, TERN_E_INVALID, "%d threads: want 1 to 64",
               o.n_threads);
    TN_FAIL_IF(tn_pkg_is(src), err, TERN_E_INVALID,
               "%s is a package already; packages are made from a GGUF file or a Hugging Face folder", src);
    p.bits = (double)o.bits;
    p.calib_path = o.calibration;
    p.n_threads = o.n_threads;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_pack_report r;
    TN_TRY(tn_pack(&ctx, src, out, &p, &r, err));
    const tern_pack_report all = {.package_bytes = r.package_bytes,
                                  .n_calibration_tokens = r.n_calib_tokens,
                                  .n_sites = r.n_sites,
                                  .n_outlier_sites = r.n_outlier_sites};
    if (!report) return TERN_OK;
    return tn_sized_out(report, report_bytes, &all, sizeof all,
                        TN_SIZE_UP_TO(tern_pack_report, n_outlier_sites));
}
