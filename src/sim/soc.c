/* sim/soc.c - reads a SoC's data file and fits its costs. */
#include "sim/sim.h"

#include "base/status.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

enum { MAX_ROWS = 64 };

/* A positive number at o[key]. */
static tern_status number(const json_t *o, const char *section, const char *key, double *out, tern_error *err) {
    const json_t *v = json_object_get(o, key);
    *out = json_number_value(v);
    TN_FAIL_IF(!json_is_number(v) || !(*out > 0 && *out < 1e9), err, TERN_E_FORMAT, "%s: '%s' is not a number above 0", section, key);
    return TERN_OK;
}

/* launch_ns and byte_ns: least squares of time over weight bytes. */
static tern_status fit_products(tn_soc *soc, const json_t *rows, tern_error *err) {
    double bytes[MAX_ROWS], ns[MAX_ROWS], mean_b = 0, mean_t = 0, bb = 0, bt = 0, rel = 0;
    size_t n = json_array_size(rows);
    TN_FAIL_IF(n < 2 || n > MAX_ROWS, err, TERN_E_FORMAT, "npu_matmul: %zu rows; 2 to %d are needed", n, MAX_ROWS);
    for (size_t i = 0; i < n; i++) {
        double k, w, ms;
        TN_TRY(number(json_array_get(rows, i), "npu_matmul", "k", &k, err));
        TN_TRY(number(json_array_get(rows, i), "npu_matmul", "n", &w, err));
        TN_TRY(number(json_array_get(rows, i), "npu_matmul", "ms", &ms, err));
        bytes[i] = k * w;
        ns[i] = ms * 1e6;
        mean_b += bytes[i] / (double)n;
        mean_t += ns[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        bb += (bytes[i] - mean_b) * (bytes[i] - mean_b);
        bt += (bytes[i] - mean_b) * (ns[i] - mean_t);
    }
    TN_FAIL_IF(!(bb > 0), err, TERN_E_FORMAT, "npu_matmul: all rows have one size");
    soc->byte_ns = bt / bb;
    soc->launch_ns = fmax(mean_t - soc->byte_ns * mean_b, 0);
    TN_FAIL_IF(!(soc->byte_ns > 0), err, TERN_E_FORMAT, "npu_matmul: larger products take less time");
    for (size_t i = 0; i < n; i++) rel += pow((soc->launch_ns + soc->byte_ns * bytes[i]) / ns[i] - 1, 2);
    soc->fit_residual = sqrt(rel / (double)n);
    return TERN_OK;
}

static tern_status read_soc(tn_soc *soc, const json_t *root, tern_error *err) {
    const json_t *a = json_object_get(root, "npu_anchor");
    double tokens, layers, embd, heads, kv, d, ff, npu_ms, cpu_ms, gmac, channels, kept;
    TN_TRY(fit_products(soc, json_object_get(json_object_get(root, "npu_matmul"), "rows"), err));
    TN_TRY(number(a, "npu_anchor", "tokens", &tokens, err));
    TN_TRY(number(a, "npu_anchor", "layers", &layers, err));
    TN_TRY(number(a, "npu_anchor", "embd", &embd, err));
    TN_TRY(number(a, "npu_anchor", "heads", &heads, err));
    TN_TRY(number(a, "npu_anchor", "kv_heads", &kv, err));
    TN_TRY(number(a, "npu_anchor", "d_head", &d, err));
    TN_TRY(number(a, "npu_anchor", "ff", &ff, err));
    TN_TRY(number(a, "npu_anchor", "ms", &npu_ms, err));
    TN_TRY(number(json_object_get(root, "cpu_anchor"), "cpu_anchor", "ms", &cpu_ms, err));
    TN_TRY(number(json_object_get(root, "cpu_attention"), "cpu_attention", "gmac_per_s", &gmac, err));
    TN_TRY(number(json_object_get(root, "shadow"), "shadow", "channels", &channels, err));
    TN_TRY(number(json_object_get(root, "shadow"), "shadow", "kept_percent", &kept, err));
    double weights = embd * (2 * heads + 2 * kv) * d + 3 * embd * ff; /* of a layer's linears */
    double product_ns = npu_ms * 1e6 / layers - 4 * soc->launch_ns;   /* four graphs: qkv, o, ffn, down */
    soc->mac_ns = product_ns / (weights * tokens);
    TN_FAIL_IF(product_ns <= soc->byte_ns * weights, err, TERN_E_FORMAT, "npu_anchor: %.1f ms are less than the table allows", npu_ms);
    soc->attn_mac_ns = 1 / gmac;
    double attn_ns = 2 * tokens * tokens * heads * d * soc->attn_mac_ns;
    double elems = tokens * (2 * embd + (heads + 2 * kv) * d + ff); /* both norms, rope, activation */
    soc->elem_ns = (cpu_ms * 1e6 / layers - attn_ns) / elems;
    TN_FAIL_IF(soc->elem_ns <= 0, err, TERN_E_FORMAT, "cpu_anchor: %.1f ms are less than attention takes", cpu_ms);
    soc->shadow_channels = channels;
    soc->shadow_kept = kept / 100;
    const char *title = json_string_value(json_object_get(root, "title"));
    snprintf(soc->title, sizeof soc->title, "%s", title ? title : "");
    return TERN_OK;
}

tern_status tn_soc_load(tn_soc *out, const char *path, tern_error *err) {
    json_error_t je;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    TN_FAIL_IF(!root, err, TERN_E_FORMAT, "%s: line %d: %s", path, je.line, je.text);
    *out = (tn_soc){0};
    tern_status st = read_soc(out, root, err);
    json_decref(root);
    return st;
}
