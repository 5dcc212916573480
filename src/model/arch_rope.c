/* Tables of rope, and what scales them. */
#include "model/arch_impl.h"

#include <math.h>

void tn_rope_plain(const tn_hparams *h, double out[TN_MAX_ROT / 2]) {
    for (int i = 0; i < h->n_rot / 2; i++) out[i] = pow(h->rope_base, -2.0 * i / h->n_rot);
}

void tn_rope_set(tn_hparams *h, const double f[TN_MAX_ROT / 2]) {
    for (int i = 0; i < h->n_rot / 2; i++) h->inv_freq[i] = h->inv_freq_long[i] = (float)f[i];
}

void tn_rope_set_axes(const tn_arch *a, tn_hparams *h, const int64_t axes[TN_AXES]) {
    int64_t pairs = 0;
    bool ok = true;
    for (int i = 0; i < TN_AXES; i++) {
        ok = ok && axes[i] > 0 && axes[i] <= TN_MAX_ROT;
        pairs += ok ? axes[i] : 0;
    }
    if (!ok || 2 * pairs != h->n_rot) return;
    for (int i = 0; i < TN_AXES; i++) h->rope_axes[i] = (int32_t)axes[i];
    h->rope_interleaved = a->interleaved;
}

void tn_rope_set_local(tn_hparams *h, double base) {
    int32_t n = tn_local_rot(h);
    for (int i = 0; i < n / 2; i++) h->inv_freq_local[i] = (float)pow(base, -2.0 * i / n);
}

double tn_yarn_mscale(double factor, double m) { return factor > 1 ? 1 + 0.1 * m * log(factor) : 1; }

/* The pair that turns `turns` times in the original context. */
static double pair_of(const tn_hparams *h, const tn_yarn *y, double turns) {
    return h->n_rot * log(y->orig_ctx / (turns * 2 * M_PI)) / (2 * log(h->rope_base));
}

tern_status tn_rope_yarn(const char *file, const tn_hparams *h, const tn_yarn *y, double f[TN_MAX_ROT / 2],
                         tern_error *err) {
    const bool ok = y->factor >= 1 && y->factor < 1e6 && y->orig_ctx >= 1 && y->beta_slow > 0 &&
                    y->beta_fast > y->beta_slow && y->beta_fast < 1e6;
    TN_FAIL_IF(!ok, err, TERN_E_FORMAT,
               "%s: rope scaling of type yarn with a factor of %g from %g tokens, betas %g and %g", file,
               y->factor, y->orig_ctx, y->beta_fast, y->beta_slow);
    double low = pair_of(h, y, y->beta_fast), high = pair_of(h, y, y->beta_slow);
    if (y->whole) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, h->n_rot - 1);
    if (high - low < 1e-3) high = low + 1e-3;
    for (int i = 0; i < h->n_rot / 2; i++) {
        double slowed = fmin(fmax((i - low) / (high - low), 0), 1);
        f[i] = slowed * f[i] / y->factor + (1 - slowed) * f[i];
    }
    return TERN_OK;
}

void tn_rope_llama3(double *f, int n, double factor, double low, double high, double orig) {
    for (int i = 0; i < n; i++) {
        double wavelength = 2 * M_PI / f[i];
        if (wavelength < orig / high) continue;
        if (wavelength > orig / low) {
            f[i] /= factor;
            continue;
        }
        double smooth = (orig / wavelength - low) / (high - low);
        f[i] = (1 - smooth) * f[i] / factor + smooth * f[i];
    }
}

void tn_rope_long(tn_hparams *h, const double *short_f, const double *long_f, int32_t orig,
                  double attn_factor) {
    double f[TN_MAX_ROT / 2];
    tn_rope_plain(h, f);
    for (int i = 0; i < h->n_rot / 2; i++) {
        h->inv_freq[i] = (float)(f[i] / short_f[i]);
        h->inv_freq_long[i] = (float)(f[i] / long_f[i]);
    }
    h->rope_orig_ctx = orig;
    double stretch = (double)h->ctx_train / orig;
    h->rope_mscale = attn_factor > 0           ? (float)attn_factor
                     : stretch > 1 && orig > 1 ? (float)sqrt(1 + log(stretch) / log((double)orig))
                                               : 1;
}
