/* What a config.json says of rope. */
#include "model/arch_config.h"
#include "model/arch_impl.h"

#include "base/status.h"
#include "kernels/kv_cells.h"

#include <math.h>
#include <string.h>

static tern_status parse_factors(tn_config *c, const json_t *o, const char *key, int n, double *out) {
    const json_t *a = json_object_get(o, key);
    TN_FAIL_IF((int)json_array_size(a) != n, c->err, TERN_E_FORMAT, "%s: rope '%s' has %zu factors, want %d",
               c->file, key, json_array_size(a), n);
    for (int i = 0; i < n; i++) {
        out[i] = json_number_value(json_array_get(a, (size_t)i));
        TN_FAIL_IF(!(out[i] > 0), c->err, TERN_E_FORMAT, "%s: rope '%s' has a factor that is not positive",
                   c->file, key);
    }
    return TERN_OK;
}

/* What the config says of rope: an object of its own since transformers 5, one for each kind of layer
 * where they differ; beside the rest before. kind: "full_attention", "sliding_attention". */
static const json_t *rope_object(const tn_config *c, const char *kind) {
    const json_t *r = json_object_get(c->o, "rope_parameters");
    if (!json_is_object(r)) r = json_object_get(c->o, "rope_scaling");
    const json_t *of_kind = json_object_get(r, kind);
    return json_is_object(of_kind) ? of_kind : r;
}

static tern_status longrope(tn_config *c, const json_t *r, tn_hparams *h) {
    double short_f[TN_MAX_ROT / 2], long_f[TN_MAX_ROT / 2];
    TN_TRY(parse_factors(c, r, "short_factor", h->n_rot / 2, short_f));
    TN_TRY(parse_factors(c, r, "long_factor", h->n_rot / 2, long_f));
    double orig = tn_config_number(c, c->o, "original_max_position_embeddings", false,
                                   tn_config_number(c, r, "original_max_position_embeddings", false, 0));
    TN_FAIL_IF(!(orig >= 1 && orig <= h->ctx_train), c->err, TERN_E_FORMAT,
               "%s: longrope without a sane original_max_position_embeddings", c->file);
    double factor =
               tn_config_number(c, r, "attention_factor", false, 0), /* Phi-3.5-MoE says two, and means one */
        of_short = tn_config_number(c, r, "short_mscale", false, factor),
           of_long = tn_config_number(c, r, "long_mscale", false, factor);
    TN_FAIL_IF(of_short != of_long, c->err, TERN_E_UNSUPPORTED,
               "%s: rope's short_mscale of %g and long_mscale of %g differ, which is not supported", c->file,
               of_short, of_long);
    tn_rope_long(h, short_f, long_f, (int32_t)orig, of_long);
    return TERN_OK;
}

static tern_status yarn(tn_config *c, const json_t *r, tn_hparams *h, double f[TN_MAX_ROT / 2]) {
    tn_yarn y = {.factor = tn_config_number(c, r, "factor", true, 1),
                 .orig_ctx = tn_config_number(c, r, "original_max_position_embeddings", false, h->ctx_train),
                 .beta_fast = tn_config_number(c, r, "beta_fast", false, 32),
                 .beta_slow = tn_config_number(c, r, "beta_slow", false, 1),
                 .whole = !json_is_false(json_object_get(r, "truncate"))};
    double m = tn_config_number(c, r, "mscale", false, 0),
           all = tn_config_number(c, r, "mscale_all_dim", false, 0);
    double grown = m != 0 && all != 0 ? tn_yarn_mscale(y.factor, m) / tn_yarn_mscale(y.factor, all)
                                      : tn_yarn_mscale(y.factor, 1);
    if (tn_latent(h)) { /* what scores grow by is taken out of the scale of attention */
        grown = tn_yarn_mscale(y.factor, m != 0 ? m : 1) / tn_yarn_mscale(y.factor, all);
        h->attn_scale *= (float)pow(tn_yarn_mscale(y.factor, all), 2);
    }
    h->rope_mscale = (float)tn_config_number(c, r, "attention_factor", false, grown);
    TN_TRY(tn_rope_yarn(c->file, h, &y, f, c->err));
    return c->st;
}

static tern_status llama3(tn_config *c, const json_t *r, const tn_hparams *h, double f[TN_MAX_ROT / 2]) {
    double factor = tn_config_number(c, r, "factor", true, 1),
           low = tn_config_number(c, r, "low_freq_factor", true, 1),
           high = tn_config_number(c, r, "high_freq_factor", true, 4),
           orig = tn_config_number(c, r, "original_max_position_embeddings", true, 8192);
    TN_FAIL_IF(!(factor > 0 && low > 0 && high > low && orig > 0), c->err, TERN_E_FORMAT,
               "%s: rope scaling of type llama3 with odd factors", c->file);
    tn_rope_llama3(f, h->n_rot / 2, factor, low, high, orig);
    return TERN_OK;
}

/* Frequencies by the scaling's type; f holds the plain ones. */
static tern_status scale_rope(tn_config *c, const json_t *r, const char *type, tn_hparams *h,
                              double f[TN_MAX_ROT / 2]) {
    double alpha = tn_config_number(c, r, "alpha", false, 0);
    if (!type || !strcmp(type, "default")) {
        return TERN_OK;
    } else if (!strcmp(type, "linear")) {
        double factor = tn_config_number(c, r, "factor", true, 1);
        TN_FAIL_IF(!(factor > 0), c->err, TERN_E_FORMAT, "%s: rope factor %g", c->file, factor);
        for (int i = 0; i < h->n_rot / 2; i++) f[i] /= factor;
    } else if (!strcmp(type, "dynamic") && alpha > 0) { /* Hunyuan: the base grows, whatever the length */
        h->rope_base *= pow(alpha, h->n_rot / (h->n_rot - 2.0));
        tn_rope_plain(h, f);
    } else if (!strcmp(type, "llama3")) {
        return llama3(c, r, h, f);
    } else if (!strcmp(type, "yarn")) {
        return yarn(c, r, h, f);
    } else {
        return tn_fail(c->err, TERN_E_UNSUPPORTED,
                       "%s: rope scaling '%.40s' is not supported (linear, llama3, longrope and yarn are)",
                       c->file, type);
    }
    return TERN_OK;
}

/* Rotated values of the layers with a window, where these differ in heads. */
static tern_status window_rot(tn_config *c, const json_t *local, const tn_arch *a, tn_hparams *h) {
    if (!a->window_heads) return TERN_OK;
    double partial = tn_config_number(c, local, "partial_rotary_factor", false, 1);
    const char *type = json_string_value(json_object_get(local, "rope_type"));
    TN_FAIL_IF(!(partial > 0 && partial <= 1) || (type && strcmp(type, "default")), c->err,
               TERN_E_UNSUPPORTED,
               "%s: rope of type '%.40s' with a partial_rotary_factor of %g in layers with "
               "a window is not supported",
               c->file, type ? type : "?", partial);
    h->window_rot = (int32_t)((double)(h->window_d_head ? h->window_d_head : h->d_head) * partial) / 2 * 2;
    if (h->window_rot == h->n_rot) h->window_rot = 0;
    TN_FAIL_IF(h->window_rot < 0 || h->window_rot > h->n_rot, c->err, TERN_E_UNSUPPORTED,
               "%s: %d rotated values in layers with a window, %d in the others", c->file, h->window_rot,
               h->n_rot);
    return c->st;
}

static void parse_axes(const json_t *rope, const tn_arch *a, tn_hparams *h) {
    const json_t *all = json_object_get(rope, "mrope_section");
    int64_t axes[TN_AXES] = {0};
    if (!a->sections || json_array_size(all) != TN_AXES) return;
    for (size_t i = 0; i < TN_AXES; i++) axes[i] = json_integer_value(json_array_get(all, i));
    tn_rope_set_axes(a, h, axes);
}

tern_status tn_arch_rope_hf(tn_config *c, const tn_arch *a, tn_hparams *h) {
    if (a->positions || a->alibi > 0) return TERN_OK; /* none: positions are learned rows, or distances */
    const json_t *r = rope_object(c, "full_attention"), *local = rope_object(c, "sliding_attention");
    h->rope_base =
        tn_config_number(c, c->o, "rope_theta", false, tn_config_number(c, r, "rope_theta", false, 10000));
    static const char *const shares[] = {"partial_rotary_factor", "rope_pct", "rotary_pct", NULL};
    double partial = tn_config_first(
        c, shares, tn_config_number(c, r, "partial_rotary_factor", false, a->partial > 0 ? a->partial : 1));
    double local_base = tn_config_number(c, c->o, "rope_local_base_freq", false,
                                         a->local_base > 0 ? a->local_base : h->rope_base);
    if (local != r) local_base = tn_config_number(c, local, "rope_theta", false, local_base);
    if (a->qk_norm_whole && a->experts_sigmoid && h->d_head > 0) /* MiniMax says how many values */
        partial = tn_config_number(c, c->o, "rotary_dim", false, partial * h->d_head) / h->d_head;
    TN_FAIL_IF(!(partial > 0 && partial <= 1), c->err, TERN_E_FORMAT, "%s: partial_rotary_factor %g", c->file,
               partial);
    TN_TRY(c->st);
    TN_FAIL_IF(h->d_head < 4 || h->d_head > (a->latent ? TN_MAX_HEAD : 512) || !(h->rope_base > 1) ||
                   !(local_base > 1),
               c->err, TERN_E_FORMAT, "%s: head size %d, rope bases %g and %g", c->file, h->d_head,
               h->rope_base, local_base);
    TN_FAIL_IF(!a->local_rope && local_base != h->rope_base, c->err, TERN_E_UNSUPPORTED,
               "%s: 'rope_local_base_freq' is not supported for model type %s", c->file, a->hf);
    const char *type = json_string_value(json_object_get(r, "rope_type"));
    if (!type) type = json_string_value(json_object_get(r, "type"));
    if (type && a->sections && !strcmp(type, "mrope")) type = NULL; /* text: one position on all axes */
    if (type && a->dynamic && !strcmp(type, "dynamic")) type = NULL;
    bool proportional = a->window_heads && type && !strcmp(type, "proportional");
    if (!a->latent)
        h->n_rot = proportional ? h->d_head / 2 * 2 : (int32_t)((double)h->d_head * partial) / 2 * 2;
    TN_FAIL_IF(h->n_rot > TN_MAX_ROT || h->n_rot < 2, c->err, TERN_E_UNSUPPORTED,
               "%s: %d rotated values, 2 to %d are possible", c->file, h->n_rot, TN_MAX_ROT);
    TN_TRY(window_rot(c, local, a, h));
    parse_axes(r, a, h);
    if (type && (!strcmp(type, "longrope") || !strcmp(type, "su"))) return longrope(c, r, h);
    double f[TN_MAX_ROT / 2];
    tn_rope_plain(h, f);
    if (!proportional) TN_TRY(scale_rope(c, r, type, h, f));
    for (int i = (int)(partial * h->d_head / 2); proportional && i < h->n_rot / 2; i++)
        f[i] = 0; /* these pairs stay as they are, and those before them turn as if all did */
    tn_rope_set(h, f);
    tn_rope_set_local(h, local_base);
    double beta = tn_config_number(c, r, "llama_4_scaling_beta", false, 0);
    TN_FAIL_IF(beta != 0 && !a->temperature, c->err, TERN_E_UNSUPPORTED,
               "%s: 'llama_4_scaling_beta' is not supported for model type %s", c->file, a->hf);
    if (beta != 0) {
        double every = tn_config_number(c, r, "original_max_position_embeddings", true, 0);
        h->temp_scale = (float)beta;
        h->temp_every = every >= 1 && every <= INT32_MAX ? (int32_t)every : 0;
    }
    return c->st;
}
