/* package/no_on_demand.c - replaces on_demand.c and next.c in minimal builds (TERN_MINIMAL): all experts
 * are in memory, so reading them on demand is refused, and a layer that guesses one token further stays in
 * the file. */
#include "package/on_demand.h"

#include "base/status.h"
#include "package/impl.h"

#include <string.h>

void tn_experts_need_of(const tn_pkg *pkg, const tn_hparams *h, bool packed, tn_experts_need *out) {
    (void)pkg, (void)h, (void)packed;
    *out = (tn_experts_need){.can = false};
}

tern_status tn_on_demand_open(tn_npu_model *m, const char *path, uint64_t budget_bytes,
                              const tn_aio_options *io, tn_on_demand **out, tern_error *err) {
    (void)m, (void)budget_bytes, (void)io;
    *out = NULL;
    return tn_fail(err, TERN_E_UNSUPPORTED, "%s: this build of tern reads no experts on demand", path);
}

void tn_on_demand_close(tn_on_demand **d) { (void)d; }

tern_status tn_on_demand_take(tn_on_demand *d, const tn_npu_site *s, int32_t expert, bool pass,
                              tern_error *err) {
    (void)d, (void)s, (void)expert, (void)pass, (void)err;
    return TERN_OK;
}

void tn_on_demand_give(tn_on_demand *d, const tn_npu_site *s, int32_t expert) {
    (void)d, (void)s, (void)expert;
}

void tn_on_demand_hint(tn_on_demand *d, const tn_npu_site *s, const int32_t *experts, int32_t n, bool pass) {
    (void)d, (void)s, (void)experts, (void)n, (void)pass;
}

void tn_on_demand_correct(tn_on_demand *d, int32_t layer, float *scores) {
    (void)d, (void)layer, (void)scores;
}

void tn_on_demand_learn(tn_on_demand *d, int32_t layer, const float *scores) {
    (void)d, (void)layer, (void)scores;
}

void tn_on_demand_predict(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n) {
    (void)d, (void)layer, (void)experts, (void)n;
}

void tn_on_demand_chosen(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n) {
    (void)d, (void)layer, (void)experts, (void)n;
}

void tn_on_demand_stats_get(tn_on_demand *d, tn_on_demand_stats *out) {
    (void)d;
    memset(out, 0, sizeof *out);
}

tern_status tn_package_next_open(tn_npu_model *m, tern_error *err) {
    (void)m, (void)err;
    return TERN_OK;
}

tern_status tn_package_next_ready(tn_npu_model *m, tern_error *err) {
    (void)m, (void)err;
    return TERN_OK;
}
