/* The encoder of pictures against one in double precision that is written down here from its equations, on random
 * towers of two shapes in every storage; what an mmproj file may say wrong; and the same bits whatever the threads and
 * the tiles beside. */
#include "model/tower.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/status.h"
#include "formats/gguf.h"
#include "lab/synth.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

static tn_ctx ctx;
static tn_pool *pool;
static tn_kernels kern;

/* ---- the model in double precision ------------------------------------------------------------------- */

static double *tensor(const tn_gguf *g, const char *format, int layer, const char *name) {
    char full[80];
    snprintf(full, sizeof full, format, layer, name);
    const tn_tensor *t = tn_gguf_tensor(g, full);
    assert_non_null(t);
    size_t n = (size_t)(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]);
    float *f = malloc(n * sizeof *f);
    double *d = malloc(n * sizeof *d);
    tn_dequantise(t->dtype, t->data, f, n);
    for (size_t i = 0; i < n; i++) d[i] = (double)f[i];
    free(f);
    return d;
}

static void linear(const double *w, const double *b, const double *x, int rows, int k, int n, double *out) {
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            double s = b ? b[i] : 0;
            for (int j = 0; j < k; j++) s += x[r * k + j] * w[i * k + j];
            out[r * n + i] = s;
        }
}

static void norm(const double *w, const double *b, double eps, const double *x, int rows, int n,
                 double *out) {
    for (int r = 0; r < rows; r++) {
        double mean = 0, var = 0;
        for (int i = 0; i < n; i++) mean += x[r * n + i] / n;
        for (int i = 0; i < n; i++) var += (x[r * n + i] - mean) * (x[r * n + i] - mean) / n;
        for (int i = 0; i < n; i++) out[r * n + i] = (x[r * n + i] - mean) / sqrt(var + eps) * w[i] + b[i];
    }
}

static void attend(const double *q, const double *k, const double *v, int n, int width, int heads,
                   double *out) {
    int d = width / heads;
    double *p = malloc((size_t)n * sizeof *p);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < n; i++) {
            double most = -INFINITY, sum = 0;
            for (int j = 0; j < n; j++) {
                p[j] = 0;
                for (int c = 0; c < d; c++) p[j] += q[i * width + h * d + c] * k[j * width + h * d + c];
                p[j] /= sqrt(d);
                most = fmax(most, p[j]);
            }
            for (int j = 0; j < n; j++) sum += p[j] = exp(p[j] - most);
            for (int c = 0; c < d; c++) {
                double s = 0;
                for (int j = 0; j < n; j++) s += p[j] / sum * v[j * width + h * d + c];
                out[i * width + h * d + c] = s;
            }
        }
    free(p);
}

/* x += linear(in); both have n rows */
static void add_linear(const tn_gguf *g, int layer, const char *name, const double *in, int n, int k,
                       int width, double *x) {
    double *w = tensor(g, "v.blk.%d.%s.weight", layer, name), *b = tensor(g, "v.blk.%d.%s.bias", layer, name),
           *y = malloc((size_t)(n * width) * sizeof *y);
    linear(w, b, in, n, k, width, y);
    for (int i = 0; i < n * width; i++) x[i] += y[i];
    free(w), free(b), free(y);
}

static double *of_layer(const tn_gguf *g, int layer, const char *name, const double *in, int n, int k,
                        int out) {
    double *y = calloc((size_t)(n * out), sizeof *y);
    add_linear(g, layer, name, in, n, k, out, y);
    return y;
}

static double *normed(const tn_gguf *g, const char *format, int layer, const char *name, double eps,
                      const double *x, int n, int width) {
    char full[80];
    snprintf(full, sizeof full, "%s.weight", format);
    double *w = tensor(g, full, layer, name);
    snprintf(full, sizeof full, "%s.bias", format);
    double *b = tensor(g, full, layer, name), *out = malloc((size_t)(n * width) * sizeof *out);
    norm(w, b, eps, x, n, width, out);
    free(w), free(b);
    return out;
}

static double *patches(const tn_gguf *g, const tn_tower_shape *s, const uint8_t *rgb) {
    int side = tn_tower_side(s), n = side * side, p = s->patch, k = 3 * p * p;
    double *in = malloc((size_t)(n * k) * sizeof *in), *x = malloc((size_t)(n * s->width) * sizeof *x);
    for (int i = 0; i < n; i++)
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < p; y++)
                for (int z = 0; z < p; z++)
                    in[i * k + (c * p + y) * p + z] =
                        (rgb[((i / side * p + y) * s->image + i % side * p + z) * 3 + c] / 255.0 -
                         (double)s->mean[c]) /
                        (double)s->std[c];
    double *w = tensor(g, "v.patch_embd.weight", 0, ""), *b = tensor(g, "v.patch_embd.bias", 0, ""),
           *at = tensor(g, "v.position_embd.weight", 0, "");
    linear(w, b, in, n, k, s->width, x);
    for (int i = 0; i < n * s->width; i++) x[i] += at[i];
    free(in), free(w), free(b), free(at);
    return x;
}

/* The mean of k x k patches, its RMS norm, and the projection, whose file has inputs by outputs. */
static void pool_rows(const tn_gguf *g, const tn_tower_shape *s, const double *h, double *rows) {
    int side = tn_tower_side(s), width = s->width, k = s->shuffle, nb = side / k;
    double *weight = tensor(g, "mm.soft_emb_norm.weight", 0, ""),
           *fc = tensor(g, "mm.input_projection.weight", 0, ""), *mean = calloc((size_t)width, sizeof *mean);
    for (int i = 0; i < nb * nb; i++) {
        double squares = 0;
        for (int c = 0; c < width; c++) {
            mean[c] = 0;
            for (int j = 0; j < k * k; j++)
                mean[c] += h[((i / nb * k + j / k) * side + i % nb * k + j % k) * width + c] / (k * k);
            squares += mean[c] * mean[c] / width;
        }
        for (int c = 0; c < width; c++) mean[c] *= weight[c] / sqrt(squares + (double)s->eps);
        for (int o = 0; o < s->out; o++) {
            rows[i * s->out + o] = 0;
            for (int c = 0; c < width; c++) rows[i * s->out + o] += mean[c] * fc[c * s->out + o];
        }
    }
    free(weight), free(fc), free(mean);
}

static void model(const tn_gguf *g, const tn_tower_shape *s, const uint8_t *rgb, double *rows) {
    int side = tn_tower_side(s), n = side * side, width = s->width, k = s->shuffle, nb = side / k;
    double *x = patches(g, s, rgb), eps = (double)s->eps;
    for (int l = 0; l < s->n_layers; l++) {
        double *h = normed(g, "v.blk.%d.%s", l, "ln1", eps, x, n, width);
        double *q = of_layer(g, l, "attn_q", h, n, width, width),
               *v = of_layer(g, l, "attn_v", h, n, width, width),
               *keys = of_layer(g, l, "attn_k", h, n, width, width);
        attend(q, keys, v, n, width, s->n_heads, h);
        add_linear(g, l, "attn_out", h, n, width, width, x);
        free(h), free(q), free(v), free(keys);
        h = normed(g, "v.blk.%d.%s", l, "ln2", eps, x, n, width);
        double *up = of_layer(g, l, "ffn_up", h, n, width, s->ff);
        for (int i = 0; i < n * s->ff; i++)
            up[i] = 0.5 * up[i] * (1 + tanh(sqrt(2 / acos(-1)) * (up[i] + 0.044715 * up[i] * up[i] * up[i])));
        add_linear(g, l, "ffn_down", up, n, s->ff, width, x);
        free(h), free(up);
    }
    double *h = normed(g, "v.post_ln", 0, "", eps, x, n, width);
    if (s->kind == TN_TOWER_GEMMA3) {
        pool_rows(g, s, h, rows);
        free(x), free(h);
        return;
    }
    double *wide = malloc((size_t)(n * width) * sizeof *wide), *fc = tensor(g, "mm.model.fc.weight", 0, "");
    for (int i = 0; i < nb * nb; i++)
        for (int j = 0; j < k * k; j++)
            memcpy(wide + (i * k * k + j) * width,
                   h + ((i / nb * k + j / k) * side + i % nb * k + j % k) * width, (size_t)width * sizeof *h);
    linear(fc, NULL, wide, nb * nb, k * k * width, s->out, rows);
    free(x), free(h), free(wide), free(fc);
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

static void write_tower(char path[FIXTURE_PATH], const char *name, tn_dtype d) {
    tern_error err;
    fixture_file(path, "tower.gguf");
    must(tn_synth_tower(&ctx, name, path, 7, d, &err), &err);
}

static uint8_t *pixels(const tn_tower_shape *s, int n_tiles) {
    size_t n = (size_t)n_tiles * (size_t)s->image * (size_t)s->image * 3;
    uint8_t *rgb = malloc(n);
    tn_rng r = {11};
    for (size_t i = 0; i < n; i++) rgb[i] = (uint8_t)(tn_rng_u64(&r) >> 40);
    return rgb;
}

static void times(const tn_gguf *g, int layer, const char *name, size_t at, size_t step, float by) {
    char full[80];
    snprintf(full, sizeof full, "v.blk.%d.%s", layer, name);
    const tn_tensor *t = tn_gguf_tensor(g, full);
    size_t n = (size_t)(t->dims[0] * t->dims[1]);
    for (size_t i = at; i < n; i += step) ((float *)t->data)[i] *= by; /* the test's own bytes */
}

/* A channel in front of each layer's linears becomes 20 times larger and their weights for it as much smaller. */
static void stand_out(const tn_gguf *g, const tn_tower_shape *s) {
    static const char *const norms[] = {"ln1", "ln2"}, *const linears[] = {"attn_q", "attn_k", "attn_v",
                                                                           "ffn_up"};
    char name[40];
    for (int l = 0; l < s->n_layers; l++) {
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "%s.%s", norms[i / 2], i % 2 ? "bias" : "weight");
            times(g, l, name, 5, (size_t)s->width, 20);
            snprintf(name, sizeof name, "%s.weight", linears[i]);
            times(g, l, name, 5, (size_t)s->width, 0.05f);
        }
    }
}

/* The largest difference to the model in double precision, in parts of the largest value. */
static double off(const char *name, tn_dtype d, tn_tower_scheme scheme, bool outliers) {
    char path[FIXTURE_PATH], *bytes;
    size_t n_bytes;
    tern_error err;
    tn_tower *t;
    tn_gguf *g;
    write_tower(path, name, d);
    must(tn_file_slurp(path, 1 << 24, &bytes, &n_bytes, &err), &err);
    must(tn_gguf_open_memory(&ctx, bytes, n_bytes, "memory", &g, &err), &err);
    must(tn_tower_open_memory(&ctx, pool, bytes, n_bytes, 0, scheme, &t, &err), &err);
    if (outliers) {
        stand_out(g, tn_tower_shape_of(t));
        tn_tower_close(&t);
        must(tn_tower_open_memory(&ctx, pool, bytes, n_bytes, 0, scheme, &t, &err), &err);
    }
    const tn_tower_shape *s = tn_tower_shape_of(t);
    enum { TILES = 2 };
    size_t n = (size_t)(tn_tower_rows(s) * s->out);
    uint8_t *rgb = pixels(s, TILES);
    float *rows = malloc(TILES * n * sizeof *rows);
    double *want = malloc(n * sizeof *want), most = 0, worst = 0;
    must(tn_tower_encode(t, &kern, pool, rgb, TILES, NULL, rows, &err), &err);
    for (int i = 0; i < TILES; i++) {
        model(g, s, rgb + (size_t)i * (size_t)s->image * (size_t)s->image * 3, want);
        for (size_t j = 0; j < n; j++) {
            most = fmax(most, fabs(want[j]));
            worst = fmax(worst, fabs(want[j] - (double)rows[(size_t)i * n + j]));
        }
    }
    free(rgb), free(rows), free(want);
    tn_gguf_close(&g);
    tn_tower_close(&t);
    free(bytes);
    return worst / most;
}

static void as_in_double_precision(void **state) {
    (void)state;
    static const tn_dtype types[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0};
    static const char *const names[] = {"tiny-smolvlm-mmproj", "tiny-idefics3-mmproj", "tiny-gemma3-mmproj"};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++) {
            double d = off(names[i], types[j], TN_TOWER_FLOAT, false);
            print_message("%s %s: largest difference %.1e of the largest value\n", names[i],
                          tn_dtype_name(types[j]), d);
            assert_true(d < 1e-5);
        }
    for (int i = 0; i < 3; i++) {
        double plain = off(names[i], TN_F32, TN_TOWER_INT8, false),
               outliers = off(names[i], TN_F32, TN_TOWER_INT8, true);
        print_message("%s in INT8: %.1e; where channels stand out %.1e\n", names[i], plain, outliers);
        assert_true(plain > 1e-4 && plain < 0.04 && outliers < 0.08);
    }
}

static void same_bits(const char *name, int32_t out, tn_tower_scheme scheme) {
    char path[FIXTURE_PATH];
    tern_error err;
    tn_tower *t;
    tn_pool *one;
    tn_kernels plain;
    write_tower(path, name, TN_F16);
    must(tn_pool_open(&ctx, 1, &one, &err), &err);
    must(tn_tower_open(&ctx, one, path, out, scheme, &t, &err), &err);
    const tn_tower_shape *s = tn_tower_shape_of(t);
    size_t n = (size_t)(tn_tower_rows(s) * s->out), tile = (size_t)s->image * (size_t)s->image * 3;
    uint8_t *rgb = pixels(s, 3);
    float *all = malloc(3 * n * sizeof *all), *alone = malloc(n * sizeof *alone);
    must(tn_tower_encode(t, &kern, pool, rgb, 3, NULL, all, &err), &err);
    tn_kernels_init(&plain, 0);
    for (size_t i = 0; i < 3; i++) {
        must(tn_tower_encode(t, i ? &kern : &plain, one, rgb + i * tile, 1, NULL, alone, &err), &err);
        assert_memory_equal(alone, all + i * n, n * sizeof *all);
    }
    atomic_bool cancel = true;
    assert_int_equal(tn_tower_encode(t, &kern, pool, rgb, 1, &cancel, alone, &err), TERN_E_CANCELLED);
    free(rgb), free(all), free(alone);
    tn_tower_close(&t);
    tn_pool_close(&one);
}

static void same_bits_whatever_is_beside(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        same_bits("tiny-idefics3-mmproj", 40, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-gemma3-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-smolvlm-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
    }
}

/* Writes `with` over the text `what` of the file, `skip` bytes after it. */
static void patch(char *bytes, size_t n, const char *what, size_t skip, const void *with, size_t n_with) {
    char *at = memmem(bytes, n, what, strlen(what));
    if (!at) fail_msg("the file has no %s", what);
    memcpy(at + strlen(what) + skip, with, n_with);
}

static const struct {
    const char *what; /* in the file */
    size_t skip;
    const char *with;
    size_t n_with;
    tern_status status;
    const char *part;
} wrong[] = {
    {"clip.use_gelu", 0, "", 0, TERN_OK, NULL},
    {"clip.use_gel", 0, "X", 1, TERN_E_UNSUPPORTED, "quick form of GELU"},
    {"clip.use_gelu", 4, "\0", 1, TERN_E_UNSUPPORTED, "quick form of GELU"},
    {"clip.vision.preproc_image_siz", 0, "X", 1, TERN_E_UNSUPPORTED,
     "clip.vision.preproc_image_sizX is not known"},
    {"clip.vision.block_coun", 0, "X", 1, TERN_E_UNSUPPORTED, "clip.vision.block_counX is not known"},
    {"idefics", 0, "9", 1, TERN_E_UNSUPPORTED, "the projector \"idefics9\" is not known"},
    {"clip.projector_typ", 0, "X", 1, TERN_E_FORMAT, "names no projector"},
    {"clip.vision.image_size", 4, "\xff\xff\xff\xff", 4, TERN_E_FORMAT, "want 1 to 4096"},
    {"clip.vision.patch_size", 4, "\0", 1, TERN_E_FORMAT, "want 1 to 256"},
    {"clip.vision.patch_size", 4, "\x07", 1, TERN_E_FORMAT, "v.patch_embd.weight has"},
    {"clip.vision.patch_size", 4, "\x21", 1, TERN_E_FORMAT, "do not go together"},
    {"clip.vision.attention.head_count", 4, "\x03", 1, TERN_E_UNSUPPORTED, "3 heads over a width of 32"},
    {"clip.vision.projector.scale_factor", 4, "\x03", 1, TERN_E_FORMAT, "do not go together"},
    {"clip.vision.projection_dim", 4, "\x41", 1, TERN_E_INVALID,
     "its rows have 65 values and the model's have 64"},
    {"clip.vision.preproc_image_size", 4, "\x01", 1, TERN_E_FORMAT, "want 32 to 512"},
    {"clip.vision.image_std", 16, "\0\0\0\0", 4, TERN_E_FORMAT, "image_std is not positive"},
    {"clip.vision.image_mean", 16, "\0\0\xc0\x7f", 4, TERN_E_FORMAT, "is no colour"},
    {"v.post_ln.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.post_ln.bias"},
    {"general.architecture", 12, "llam", 4, TERN_E_FORMAT, "no encoder of pictures"},
    {"clip.vision.block_count", 4, "\x01", 1, TERN_E_UNSUPPORTED, "v.blk.1.ln1.weight is not known"},
};

static void wrong_files_are_refused_by_name(void **state) {
    (void)state;
    char path[FIXTURE_PATH], *bytes;
    size_t n;
    tern_error err;
    write_tower(path, "tiny-smolvlm-mmproj", TN_F32);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_tower *t = NULL;
        must(tn_file_slurp(path, 1 << 24, &bytes, &n, &err), &err);
        patch(bytes, n, wrong[i].what, wrong[i].skip, wrong[i].with, wrong[i].n_with);
        tern_status st = tn_tower_open_memory(&ctx, pool, bytes, n, 64, TN_TOWER_FLOAT, &t, &err);
        if (st != wrong[i].status || (wrong[i].part && !strstr(err.message, wrong[i].part)))
            fail_msg("%zu %s: status %d, '%s'", i, wrong[i].what, (int)st, st == TERN_OK ? "" : err.message);
        tn_tower_close(&t);
        free(bytes);
    }
    /* a value that is none; and every end of the file */
    must(tn_file_slurp(path, 1 << 24, &bytes, &n, &err), &err);
    memcpy(bytes + n - 4, "\0\0\x80\x7f", 4);
    tn_tower *t = NULL;
    assert_int_equal(tn_tower_open_memory(&ctx, pool, bytes, n, 64, TN_TOWER_FLOAT, &t, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "not finite"));
    for (size_t cut = 0; cut < n; cut += cut < 4096 ? 97 : 4001)
        assert_int_not_equal(tn_tower_open_memory(&ctx, pool, bytes, cut, 64, TN_TOWER_FLOAT, &t, &err),
                             TERN_OK);
    free(bytes);
}

int main(void) {
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    if (tn_pool_open(&ctx, 3, &pool, &err) != TERN_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_double_precision),
        cmocka_unit_test(same_bits_whatever_is_beside),
        cmocka_unit_test(wrong_files_are_refused_by_name),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tn_pool_close(&pool);
    return rc;
}
