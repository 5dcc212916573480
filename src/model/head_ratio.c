#include "model/head_ratio.h"

void tn_head_ratios(const float *weight, size_t n, float ratio, float *out) {
    double left = (double)ratio * (double)n, sum = 0;
    for (size_t i = 0; i < n; i++) {
        out[i] = -1;
        sum += (double)weight[i];
    }
    for (size_t n_full = 1;
         n_full;) { /* heads that would get more than all positions get all; the rest is divided anew */
        double each = sum > 0 ? left / sum : 0;
        n_full = 0;
        for (size_t i = 0; i < n; i++) {
            if (out[i] >= 0 || (double)weight[i] * each < 1) continue;
            out[i] = 1;
            left -= 1;
            sum -= (double)weight[i];
            n_full++;
        }
        for (size_t i = 0; !n_full && i < n; i++) {
            if (out[i] < 0) out[i] = (float)((double)weight[i] * each);
        }
    }
}
