#include "model/ternary.h"

#include "base/half.h"
#include "base/status.h"

#include <inttypes.h>
#include <math.h>

bool tn_ternary_role(tn_role role) {
    return (role >= TN_W_Q && role <= TN_W_O) || (role >= TN_W_GATE && role <= TN_W_DOWN);
}

tern_status tn_ternary_scale(tn_place *p, int64_t rows, int64_t cols, tern_error *err) {
    const tn_tensor *t = p->t;
    const int64_t n = rows * cols;
    double sum = 0;
    float some[256];
    for (int64_t at = 0; at < n; at += 256) {
        const int64_t part = n - at < 256 ? n - at : 256;
        tn_dequantise(t->dtype, t->data + (uint64_t)at * (uint64_t)tn_dtype_block_bytes(t->dtype), some,
                      (uint64_t)part);
        for (int64_t i = 0; i < part; i++) sum += (double)fabsf(some[i]);
    }
    TN_FAIL_IF(!isfinite(sum), err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " holds no finite numbers", t->file, t->name, t->off_bytes);
    const float mean = (float)fmax(sum / (double)n, 1e-5);
    p->ternary_mean = p->ternary = mean;
    if (t->dtype == TN_BF16) p->ternary = tn_round_bf16(mean);
    if (t->dtype == TN_F16) p->ternary = tn_f16_f32(tn_f32_f16(mean));
    return TERN_OK;
}

void tn_ternary_row(const tn_place *p, float *v, int64_t n) {
    const float by = 1 / p->ternary_mean;
    for (int64_t i = 0; i < n; i++) { /* half of the mean is 0 */
        const float x = v[i] * by;
        v[i] = x > 0.5f ? p->ternary : x < -0.5f ? -p->ternary : 0;
    }
}
