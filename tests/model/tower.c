/* The encoder of pictures against one in double precision that is written down here from its equations, on random
 * towers of every family in every storage; what an mmproj file may say wrong; and the same bits whatever the threads. */
#include "model/tower.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/status.h"
#include "formats/gguf.h"

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
    if (!t && strstr(full, ".bias")) return NULL; /* the family has none */
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

/* With a bias a layer norm, else an RMS norm. */
static void norm(const double *w, const double *b, double eps, const double *x, int rows, int n,
                 double *out) {
    for (int r = 0; !b && r < rows; r++) {
        double squares = 0;
        for (int i = 0; i < n; i++) squares += x[r * n + i] * x[r * n + i] / n;
        for (int i = 0; i < n; i++) out[r * n + i] = x[r * n + i] / sqrt(squares + eps) * w[i];
    }
    for (int r = 0; b && r < rows; r++) {
        double mean = 0, var = 0;
        for (int i = 0; i < n; i++) mean += x[r * n + i] / n;
        for (int i = 0; i < n; i++) var += (x[r * n + i] - mean) * (x[r * n + i] - mean) / n;
        for (int i = 0; i < n; i++) out[r * n + i] = (x[r * n + i] - mean) / sqrt(var + eps) * w[i] + b[i];
    }
}

/* window [n]: patches see those of the same number; NULL: all. */
static void attend(const double *q, const double *k, const double *v, int n, int width, int heads,
                   const int *window, bool scaled, double *out) {
    int d = width / heads;
    double *p = malloc((size_t)n * sizeof *p);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < n; i++) {
            double most = -INFINITY, sum = 0;
            for (int j = 0; j < n; j++) {
                p[j] = 0;
                for (int c = 0; c < d; c++) p[j] += q[i * width + h * d + c] * k[j * width + h * d + c];
                p[j] = window && window[i] != window[j] ? -INFINITY : scaled ? p[j] / sqrt(d) : p[j];
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

static double eps_of(const tn_gguf *g) {
    double eps = 0;
    (void)tn_gguf_f64(g, "clip.vision.attention.layer_norm_epsilon", &eps);
    return eps;
}

/* x [n] within the limits that a linear of Gemma 4 has; `end` says of what. */
static void limit(const tn_gguf *g, int layer, const char *name, const char *end, double *x, int n) {
    char full[80];
    snprintf(full, sizeof full, "v.blk.%d.%s.%s_min", layer, name, end);
    if (!tn_gguf_tensor(g, full)) return;
    snprintf(full, sizeof full, "%s.%s_min", name, end);
    double *least = tensor(g, "v.blk.%d.%s", layer, full);
    snprintf(full, sizeof full, "%s.%s_max", name, end);
    double *most = tensor(g, "v.blk.%d.%s", layer, full);
    for (int i = 0; i < n; i++) x[i] = fmin(fmax(x[i], *least), *most);
    free(least), free(most);
}

/* x += scale linear(in), or its RMS norm where the scale is one's; both have n rows. scale: the name of a tensor; NULL: 1. */
static void add_scaled(const tn_gguf *g, int layer, const char *name, const char *scale, const double *in,
                       int n, int k, int width, double *x) {
    double *w = tensor(g, "v.blk.%d.%s.weight", layer, name), *b = tensor(g, "v.blk.%d.%s.bias", layer, name),
           *y = malloc((size_t)(n * width) * sizeof *y);
    double *by = scale ? tensor(g, "v.blk.%d.%s.weight", layer, scale) : NULL;
    double *within = malloc((size_t)(n * k) * sizeof *within);
    memcpy(within, in, (size_t)(n * k) * sizeof *within);
    limit(g, layer, name, "input", within, n * k);
    linear(w, b, within, n, k, width, y);
    limit(g, layer, name, "output", y, n * width);
    free(within);
    if (by && strstr(scale, "norm")) {
        norm(by, NULL, eps_of(g), y, n, width, y);
        free(by);
        by = NULL;
    }
    for (int i = 0; i < n * width; i++) x[i] += by ? by[i % width] * y[i] : y[i];
    free(w), free(b), free(y), free(by);
}

static void add_linear(const tn_gguf *g, int layer, const char *name, const double *in, int n, int k,
                       int width, double *x) {
    add_scaled(g, layer, name, NULL, in, n, k, width, x);
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

/* The picture's patches, [channel][y][x] each, times the kernel, whose moments of a film add up. */
static double level(const tn_tower_shape *s, uint8_t byte, int colour) {
    const double x = (byte / 255.0 - (double)s->mean[colour]) / (double)s->std[colour];
    return s->kind == TN_TOWER_GEMMA4 ? 2 * (x - 0.5) : x;
}

static double *patches(const tn_gguf *g, const tn_tower_shape *s, tn_tower_size z, const uint8_t *rgb) {
    int p = s->patch, across = z.width / p, n = across * (z.height / p), k = 3 * p * p;
    double *in = malloc((size_t)(n * k) * sizeof *in), *x = malloc((size_t)((n + 1) * s->width) * sizeof *x);
    for (int i = 0; i < n; i++)
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < p; y++)
                for (int v = 0; v < p; v++)
                    in[i * k + (c * p + y) * p + v] =
                        level(s, rgb[((i / across * p + y) * z.width + i % across * p + v) * 3 + c], c);
    double *w = tensor(g, "v.patch_embd.weight", 0, ""), *b = tensor(g, "v.patch_embd.bias", 0, "");
    if (tn_tower_has_axes(s->kind)) {
        double *other = tensor(g, "v.patch_embd.weight.1", 0, "");
        for (int i = 0; i < s->width * k; i++) w[i] += other[i];
        free(other);
    }
    linear(w, b, in, n, k, s->width, x);
    free(in), free(w), free(b);
    return x;
}

/* What place `at` of a table of `side` has in line i of n: a triangle around the line's centre, no narrower than a line of
 * the table; in parts of all that the line has. */
static double triangle(int i, int n, int side, int at) {
    double sum = 0, share = 0, scale = (double)side / n;
    for (int k = 0; k < side; k++) {
        double x = fmax(0, 1 - fabs((i + 0.5) * scale - (k + 0.5)) / fmax(scale, 1));
        sum += x;
        if (k == at) share = x;
    }
    return share / sum;
}

/* x += the column's place of the first table and the line's of the second. */
static void add_places(const tn_gguf *g, const tn_tower_shape *s, tn_tower_size z, double *x) {
    const tn_tensor *t = tn_gguf_tensor(g, "v.position_embd.weight");
    double *at = tensor(g, "v.position_embd.weight", 0, "");
    int across = z.width / s->patch, w = s->width, places = (int)t->dims[1];
    for (int i = 0; i < across * (z.height / s->patch); i++)
        for (int k = 0; k < w; k++)
            x[i * w + k] += at[i % across * w + k] + at[(places + i / across) * w + k];
    free(at);
}

/* x += positions: those of the table, or where it is of another size, bilinearly between its first and last, or the table
 * resized with centres and antialiased. */
static void add_positions(const tn_gguf *g, const tn_tower_shape *s, tn_tower_size z, double *x) {
    if (s->kind == TN_TOWER_QWEN25VL) return;
    if (s->kind == TN_TOWER_GEMMA4) {
        add_places(g, s, z, x);
        return;
    }
    int across = z.width / s->patch, down = z.height / s->patch, side = s->image / s->patch,
        first = s->kind == TN_TOWER_INTERNVL; /* the class has the first place */
    double *table = tensor(g, "v.position_embd.weight", 0, ""), *at = table + first * s->width;
    for (int i = 0; s->kind == TN_TOWER_MINICPM && i < across * down; i++) { /* the place that it lies in */
        side = (int)sqrt((double)tn_gguf_tensor(g, "v.position_embd.weight")->dims[0]);
        int line = (int)floor((double)side * (i / across) / down + 1e-9),
            column = (int)floor((double)side * (i % across) / across + 1e-9);
        for (int k = 0; k < s->width; k++) x[i * s->width + k] += at[(line * side + column) * s->width + k];
    }
    for (int i = 0; s->kind != TN_TOWER_MINICPM && i < across * down; i++) {
        double y = i / across, c = i % across;
        if (s->kind == TN_TOWER_QWEN3VL) {
            y = down > 1 ? y * (side - 1) / (down - 1) : 0;
            c = across > 1 ? c * (side - 1) / (across - 1) : 0;
        }
        for (int ty = 0; ty < side; ty++)
            for (int tc = 0; tc < side; tc++) {
                double share = fmax(0, 1 - fabs(y - ty)) * fmax(0, 1 - fabs(c - tc)); /* tents */
                if (s->kind == TN_TOWER_LFM2)
                    share = triangle(i / across, down, side, ty) * triangle(i % across, across, side, tc);
                for (int k = 0; k < s->width; k++)
                    x[i * s->width + k] += share * at[(ty * side + tc) * s->width + k];
            }
    }
    double *class = first ? tensor(g, "v.class_embd", 0, "") : NULL, *last = x + across * down * s->width;
    for (int k = 0; class && k < s->width; k++) last[k] = class[k] + table[k];
    free(table), free(class);
}

/* Rotates heads: values j and j + d/2 by the patch's line for the first half of j, by its column for the others. */
static void turn(double *x, int n, int across, int width, int heads) {
    int d = width / heads, pairs = d / 2, each = pairs / 2;
    for (int i = 0; i < n; i++)
        for (int h = 0; h < heads; h++)
            for (int j = 0; j < pairs; j++) {
                double at = j < each ? i / across : i % across, a = at / pow(1e4, 2.0 * (j % each) / pairs);
                double *u = &x[i * width + h * d + j], *v = u + pairs, was = *u;
                *u = was * cos(a) - *v * sin(a);
                *v = *v * cos(a) + was * sin(a);
            }
}

/* Gemma 4's: each head's RMS norm (values': without weights); then the first half of queries and keys is rotated by the
 * column, the second by the line, in pairs a quarter of the head apart. */
static void ready(const tn_gguf *g, const tn_tower_shape *s, int layer, const char *name, double *x, int n,
                  int across) {
    int d = s->width / s->n_heads, quarter = d / 4;
    double *w = name ? tensor(g, "v.blk.%d.%s.weight", layer, name) : malloc((size_t)d * sizeof *w);
    for (int i = 0; !name && i < d; i++) w[i] = 1;
    norm(w, NULL, (double)s->eps, x, n * s->n_heads, d, x);
    for (int i = 0; name && i < n; i++)
        for (int h = 0; h < s->n_heads; h++)
            for (int j = 0; j < 2 * quarter; j++) {
                int half = j / quarter, k = j % quarter;
                double at = half ? i / across : i % across, a = at / pow(100, 2.0 * k / (d / 2));
                double *u = &x[i * s->width + h * d + half * d / 2 + k], *v = u + quarter, was = *u;
                *u = was * cos(a) - *v * sin(a);
                *v = *v * cos(a) + was * sin(a);
            }
    free(w);
}

/* Linears of q, k and v, or the parts of one. */
static double *projected(const tn_gguf *g, const tn_tower_shape *s, int layer, int part, const double *h,
                         int n) {
    static const char *const names[] = {"attn_q", "attn_k", "attn_v"};
    int width = s->width;
    if (s->kind != TN_TOWER_QWEN3VL) return of_layer(g, layer, names[part], h, n, width, width);
    double *all = of_layer(g, layer, "attn_qkv", h, n, width, 3 * width),
           *out = malloc((size_t)(n * width) * sizeof *out);
    for (int i = 0; i < n; i++)
        memcpy(out + i * width, all + i * 3 * width + part * width, (size_t)width * sizeof *out);
    free(all);
    return out;
}

/* Blocks of k x k patches of x, row after row, their patches side by side. */
static double *beside(const tn_tower_shape *s, tn_tower_size z, const double *x) {
    int k = s->shuffle, across = z.width / s->patch, down = z.height / s->patch, width = s->width,
        nb = across / k;
    double *out = malloc((size_t)(across * down * width) * sizeof *out);
    for (int i = 0; i < across / k * (down / k); i++)
        for (int j = 0; j < k * k; j++)
            memcpy(out + (i * k * k + j) * width,
                   x + ((i / nb * k + j / k) * across + i % nb * k + j % k) * width,
                   (size_t)width * sizeof *x);
    return out;
}

/* Outputs of a linear. */
static int width_of(const tn_gguf *g, const char *format, int layer) {
    char full[80];
    snprintf(full, sizeof full, format, layer);
    return (int)tn_gguf_tensor(g, full)->dims[0];
}

/* out [n] at `stride` = fc2(gelu(fc1(in [n][wide]))) */
static void merge(const tn_gguf *g, const char *fc1, const char *fc2, int layer, const double *in, int n,
                  int wide, int n_out, int stride, double *out) {
    char full[80];
    snprintf(full, sizeof full, "%s.weight", fc1);
    const int mid = width_of(g, full, layer);
    double *between = malloc((size_t)(n * mid) * sizeof *between),
           *y = malloc((size_t)(n * n_out) * sizeof *y);
    for (int i = 0; i < 2; i++) {
        snprintf(full, sizeof full, "%s.weight", i ? fc2 : fc1);
        double *w = tensor(g, full, layer, "");
        snprintf(full, sizeof full, "%s.bias", i ? fc2 : fc1);
        double *b = tensor(g, full, layer, "");
        linear(w, b, i ? between : in, n, i ? mid : wide, i ? n_out : mid, i ? y : between);
        free(w), free(b);
        for (int j = 0; !i && j < n * mid; j++) between[j] *= 0.5 * (1 + erf(between[j] / sqrt(2)));
    }
    for (int i = 0; i < n; i++) memcpy(out + i * stride, y + i * n_out, (size_t)n_out * sizeof *y);
    free(between), free(y);
}

/* What the layer gives for layers of the language model: LN of blocks side by side, then two products. */
static void deepstack(const tn_gguf *g, const tn_tower_shape *s, tn_tower_size z, int layer, const double *x,
                      double *out) {
    int wide = s->width * s->shuffle * s->shuffle, n = tn_tower_rows(s, z);
    double *blocks = beside(s, z, x),
           *h = normed(g, "v.deepstack.%d.norm", layer, "", (double)s->eps, blocks, n, wide);
    merge(g, "v.deepstack.%d.fc1", "v.deepstack.%d.fc2", layer, h, n, wide, s->out, tn_tower_row_width(s),
          out);
    free(blocks), free(h);
}

/* The mean of k x k patches, its RMS norm, and the projection, whose file has inputs by outputs. */
static void pool_rows(const tn_gguf *g, const tn_tower_shape *s, tn_tower_size z, const double *h,
                      double *rows) {
    int side = z.width / s->patch, width = s->width, k = s->shuffle, nb = side / k;
    double *weight = tensor(g, "mm.soft_emb_norm.weight", 0, ""),
           *fc = tensor(g, "mm.input_projection.weight", 0, ""), *mean = calloc((size_t)width, sizeof *mean);
    for (int i = 0; i < tn_tower_rows(s, z); i++) {
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

/* Gemma 4's: the mean of a block times the root of its width, less a bias and scaled where the file says so; its RMS norm
 * and the projection, of outputs by inputs. */
static void mean_rows(const tn_gguf *g, const tn_tower_shape *s, const double *blocks, int n, double *rows) {
    int width = s->width, k = s->shuffle * s->shuffle;
    const bool standard = tn_gguf_tensor(g, "v.std_bias");
    double *bias = standard ? tensor(g, "v.std_bias", 0, "") : NULL,
           *scale = standard ? tensor(g, "v.std_scale", 0, "") : NULL,
           *fc = tensor(g, "mm.input_projection.weight", 0, ""), *x = calloc((size_t)width, sizeof *x),
           *ones = malloc((size_t)width * sizeof *ones);
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < width; c++) {
            x[c] = 0, ones[c] = 1;
            for (int j = 0; j < k; j++) x[c] += blocks[(i * k + j) * width + c] / k;
            x[c] *= sqrt(width);
            if (standard) x[c] = (x[c] - bias[c]) * scale[c];
        }
        norm(ones, NULL, (double)s->eps, x, 1, width, x);
        linear(fc, NULL, x, 1, width, s->out, rows + i * s->out);
    }
    free(bias), free(scale), free(fc), free(x), free(ones);
}

/* The number of each patch's window, which has as many whole blocks as go into its side. */
static int *windows(const tn_tower_shape *s, int n, int across) {
    int *of = malloc((size_t)n * sizeof *of), side = s->window / s->patch / s->shuffle * s->shuffle;
    for (int i = 0; i < n; i++) of[i] = i / across / side * 1000 + i % across / side;
    return of;
}

static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* x after a layer. */
static void run_layer(const tn_gguf *g, const tn_tower_shape *s, int l, int n, int across, double *x) {
    int width = s->width;
    double eps = (double)s->eps, *h = normed(g, "v.blk.%d.%s", l, "ln1", eps, x, n, width);
    double *q = projected(g, s, l, 0, h, n), *keys = projected(g, s, l, 1, h, n),
           *v = projected(g, s, l, 2, h, n);
    int *window = s->window && (l + 1) % s->full_every ? windows(s, n, across) : NULL;
    if (tn_tower_has_axes(s->kind)) {
        turn(q, n, across, width, s->n_heads);
        turn(keys, n, across, width, s->n_heads);
    }
    const bool gemma4 = s->kind == TN_TOWER_GEMMA4;
    if (gemma4) {
        ready(g, s, l, "attn_q_norm", q, n, across);
        ready(g, s, l, "attn_k_norm", keys, n, across);
        ready(g, s, l, NULL, v, n, across);
    }
    attend(q, keys, v, n, width, s->n_heads, window, !gemma4, h);
    const bool scaled = s->kind == TN_TOWER_INTERNVL;
    add_scaled(g, l, "attn_out", scaled ? "ls1" : gemma4 ? "attn_post_norm" : NULL, h, n, width, width, x);
    free(h), free(q), free(v), free(keys), free(window);
    h = normed(g, "v.blk.%d.%s", l, "ln2", eps, x, n, width);
    double *up = of_layer(g, l, "ffn_up", h, n, width, s->ff);
    double *gate =
        s->kind == TN_TOWER_QWEN25VL || gemma4 ? of_layer(g, l, "ffn_gate", h, n, width, s->ff) : NULL;
    for (int i = 0; gate && i < n * s->ff; i++)
        up[i] *= gemma4 ? gelu_tanh(gate[i]) : gate[i] / (1 + exp(-gate[i]));
    for (int i = 0; scaled && i < n * s->ff; i++) up[i] *= 0.5 * (1 + erf(up[i] / sqrt(2)));
    for (int i = 0; !gate && !scaled && i < n * s->ff; i++)
        up[i] = 0.5 * up[i] * (1 + tanh(sqrt(2 / acos(-1)) * (up[i] + 0.044715 * up[i] * up[i] * up[i])));
    add_scaled(g, l, "ffn_down", scaled ? "ls2" : gemma4 ? "ffn_post_norm" : NULL, up, n, s->ff, width, x);
    free(h), free(up), free(gate);
}

/* rows = two products of blocks side by side, or of their layer norm. */
static void project(const tn_gguf *g, const tn_tower_shape *s, const double *blocks, int n, double *rows) {
    const bool internvl = s->kind == TN_TOWER_INTERNVL;
    const int wide = s->width * s->shuffle * s->shuffle;
    const char *norm = internvl ? "mm.model.mlp.0" : "mm.input_norm",
               *fc1 = internvl                   ? "mm.model.mlp.1"
                      : s->kind == TN_TOWER_LFM2 ? "mm.1"
                                                 : "mm.0",
               *fc2 = internvl ? "mm.model.mlp.3" : "mm.2";
    double *in = internvl || tn_gguf_tensor(g, "mm.input_norm.weight")
                     ? normed(g, norm, 0, "", 1e-5, blocks, n, wide)
                     : NULL;
    merge(g, fc1, fc2, 0, in ? in : blocks, n, wide, s->out, tn_tower_row_width(s), rows);
    free(in);
}

/* y = W x + b of a tensor of the resampler, b where there is one. */
static double *resampled(const tn_gguf *g, const char *name, const double *x, int rows, int k, int n) {
    double *w = tensor(g, "%.0d%s.weight", 0, name), *b = tensor(g, "%.0d%s.bias", 0, name),
           *out = malloc((size_t)(rows * n) * sizeof *out);
    linear(w, b, x, rows, k, n, out);
    free(w), free(b);
    return out;
}

/* MiniCPM-V's: queries, as many heads of 128 as there are, see all patches by keys that have their places added. */
static void query_rows(const tn_gguf *g, const tn_tower_shape *s, const double *h, int n, int across,
                       double *rows) {
    const tn_tensor *of = tn_gguf_tensor(g, "resampler.query");
    const int nq = (int)of->dims[0], out = (int)of->dims[1], d = 128, quarter = out / 4;
    double *query = tensor(g, "resampler.query", 0, ""), eps = (double)s->eps;
    double *kv = resampled(g, "resampler.kv", h, n, s->width, out),
           *values_in = normed(g, "%.0d%s", 0, "resampler.ln_kv", eps, kv, n, out),
           *keys_in = malloc((size_t)(n * out) * sizeof *keys_in),
           *q_in = normed(g, "%.0d%s", 0, "resampler.ln_q", eps, query, nq, out);
    for (int i = 0; i < n * out; i++) {
        int c = i % out, part = c / quarter, at = part < 2 ? i / out % across : i / out / across;
        double angle = at / pow(1e4, (double)(c % quarter) / quarter);
        keys_in[i] = values_in[i] + (part % 2 ? cos(angle) : sin(angle));
    }
    double *q = resampled(g, "resampler.attn.q", q_in, nq, out, out),
           *k = resampled(g, "resampler.attn.k", keys_in, n, out, out),
           *v = resampled(g, "resampler.attn.v", values_in, n, out, out), *p = malloc((size_t)n * sizeof *p),
           *given = calloc((size_t)(nq * out), sizeof *given);
    for (int i = 0; i < nq; i++)
        for (int head = 0; head < out / d; head++) {
            double sum = 0;
            for (int j = 0; j < n; j++) {
                p[j] = 0;
                for (int c = head * d; c < (head + 1) * d; c++) p[j] += q[i * out + c] * k[j * out + c];
                sum += p[j] = exp(p[j] / sqrt(d)); /* they are small */
            }
            for (int j = 0; j < n; j++)
                for (int c = head * d; c < (head + 1) * d; c++)
                    given[i * out + c] += p[j] / sum * v[j * out + c];
        }
    double *o = resampled(g, "resampler.attn.out", given, nq, out, out),
           *last = normed(g, "%.0d%s", 0, "resampler.ln_post", eps, o, nq, out),
           *y = resampled(g, "resampler.proj", last, nq, out, out);
    memcpy(rows, y, (size_t)(nq * out) * sizeof *y);
    free(query), free(kv), free(values_in), free(keys_in), free(q_in), free(q), free(k), free(v), free(p);
    free(given), free(o), free(last), free(y);
}

/* rows [tn_tower_rows][tn_tower_row_width] */
static void model(const tn_gguf *g, const tn_tower_shape *s, tn_tower_size z, const uint8_t *rgb,
                  double *rows) {
    int across = z.width / s->patch, n = across * (z.height / s->patch), width = s->width, n_deep = 0,
        n_rows = n + (s->kind == TN_TOWER_INTERNVL), wide = width * s->shuffle * s->shuffle;
    double *x = patches(g, s, z, rgb);
    add_positions(g, s, z, x);
    for (int l = 0; l < s->n_layers; l++) {
        run_layer(g, s, l, n_rows, across, x);
        if (tn_tower_is_deep(s, l)) deepstack(g, s, z, l, x, rows + ++n_deep * s->out);
    }
    const bool last = s->kind != TN_TOWER_INTERNVL && s->kind != TN_TOWER_GEMMA4;
    double *h = last ? normed(g, "v.post_ln", 0, "", (double)s->eps, x, n, width) : NULL,
           *blocks = beside(s, z, last ? h : x);
    if (s->kind == TN_TOWER_MINICPM) {
        query_rows(g, s, h, n, across, rows);
    } else if (s->kind == TN_TOWER_GEMMA4) {
        mean_rows(g, s, blocks, tn_tower_rows(s, z), rows);
    } else if (s->kind == TN_TOWER_GEMMA3) {
        pool_rows(g, s, z, h, rows);
    } else if (s->kind != TN_TOWER_IDEFICS3) {
        project(g, s, blocks, tn_tower_rows(s, z), rows);
    } else {
        double *fc = tensor(g, "mm.model.fc.weight", 0, "");
        linear(fc, NULL, blocks, tn_tower_rows(s, z), wide, s->out, rows);
        free(fc);
    }
    free(x), free(h), free(blocks);
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

/* A tile and pieces of one; of families without tiles of one size, pictures of sizes that are no multiples of the table,
 * smaller and larger. */
static tn_tower_size size_of(const tn_tower_shape *s, int i) {
    const int block = s->patch * s->shuffle, whole = s->image / block * block;
    tn_tower_size sizes[] = {{5 * block, 3 * block}, {block, 4 * block}, {9 * block, 5 * block}},
                  pieces[] = {tn_tower_tile(s), {whole - block, whole}, {whole, block}};
    return tn_tower_any_size(s->kind) ? sizes[i % 3] : pieces[i % 3];
}

static size_t bytes_of(tn_tower_size z) { return (size_t)z.width * (size_t)z.height * 3; }

static uint8_t *pixels(tn_tower_size z, int which) {
    uint8_t *rgb = malloc(bytes_of(z));
    tn_rng r = {11 + (uint64_t)which};
    for (size_t i = 0; i < bytes_of(z); i++) rgb[i] = (uint8_t)(tn_rng_u64(&r) >> 40);
    return rgb;
}

static void times(const tn_gguf *g, int layer, const char *name, size_t at, size_t step, float by) {
    char full[80];
    snprintf(full, sizeof full, "v.blk.%d.%s", layer, name);
    const tn_tensor *t = tn_gguf_tensor(g, full);
    size_t n = t ? (size_t)(t->dims[0] * t->dims[1]) : 0;              /* not every family has it */
    for (size_t i = at; i < n; i += step) ((float *)t->data)[i] *= by; /* the test's own bytes */
}

/* A channel in front of each layer's linears becomes 20 times larger and their weights for it as much smaller. */
static void stand_out(const tn_gguf *g, const tn_tower_shape *s) {
    static const char *const larger[] = {"ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"},
                             *const smaller[] = {"attn_q.weight",   "attn_k.weight", "attn_v.weight",
                                                 "attn_qkv.weight", "ffn_up.weight", "ffn_gate.weight"};
    for (int l = 0; l < s->n_layers; l++) {
        for (int i = 0; i < 4; i++) times(g, l, larger[i], 5, (size_t)s->width, 20);
        for (int i = 0; i < 6; i++) times(g, l, smaller[i], 5, (size_t)s->width, 0.05f);
    }
}

/* The largest difference to the model in double precision, in parts of the largest value. */
static double off(const char *name, tn_dtype d, tn_tower_scheme scheme, bool outliers) {
    char path[FIXTURE_PATH], *bytes;
    size_t n_bytes;
    tern_error err;
    tn_tower *t;
    tn_gguf *g;
    fixture_tower(path, "tower.gguf", name, 7, d);
    must(tn_file_slurp(path, 1 << 24, &bytes, &n_bytes, &err), &err);
    must(tn_gguf_open_memory(&ctx, bytes, n_bytes, "memory", &g, &err), &err);
    must(tn_tower_open_memory(&ctx, pool, bytes, n_bytes, 0, scheme, &t, &err), &err);
    if (outliers) {
        stand_out(g, tn_tower_shape_of(t));
        tn_tower_close(&t);
        must(tn_tower_open_memory(&ctx, pool, bytes, n_bytes, 0, scheme, &t, &err), &err);
    }
    const tn_tower_shape *s = tn_tower_shape_of(t);
    double most = 0, worst = 0;
    for (int i = 0; i < 3; i++) {
        tn_tower_size z = size_of(s, i);
        size_t n = (size_t)(tn_tower_rows(s, z) * tn_tower_row_width(s));
        uint8_t *rgb = pixels(z, i);
        float *rows = malloc(n * sizeof *rows);
        double *want = malloc(n * sizeof *want);
        must(tn_tower_encode(t, &kern, pool, rgb, z, NULL, NULL, rows, &err), &err);
        model(g, s, z, rgb, want);
        for (size_t j = 0; j < n; j++) {
            most = fmax(most, fabs(want[j]));
            worst = fmax(worst, fabs(want[j] - (double)rows[j]));
        }
        free(rgb), free(rows), free(want);
    }
    tn_gguf_close(&g);
    tn_tower_close(&t);
    free(bytes);
    return worst / most;
}

static void as_in_double_precision(void **state) {
    (void)state;
    static const tn_dtype types[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0};
    static const char *const names[] = {
        "tiny-smolvlm-mmproj",  "tiny-idefics3-mmproj", "tiny-gemma3-mmproj", "tiny-qwen3vl-mmproj",
        "tiny-qwen35-mmproj",   "tiny-qwen25vl-mmproj", "tiny-lfm2vl-mmproj", "tiny-lfm2.5vl-mmproj",
        "tiny-internvl-mmproj", "tiny-interns1-mmproj", "tiny-gemma4-mmproj", "tiny-gemma4-31b-mmproj",
        "tiny-minicpmv-mmproj", "tiny-minicpmo-mmproj"};
    enum { N = sizeof names / sizeof *names };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 4; j++) {
            double d = off(names[i], types[j], TN_TOWER_FLOAT, false);
            print_message("%s %s: largest difference %.1e of the largest value\n", names[i],
                          tn_dtype_name(types[j]), d);
            assert_true(d < 1e-5);
        }
    for (int i = 0; i < N; i++) {
        double plain = off(names[i], TN_F32, TN_TOWER_INT8, false),
               outliers = off(names[i], TN_F32, TN_TOWER_INT8, true);
        print_message("%s in INT8: %.1e; where channels stand out %.1e\n", names[i], plain, outliers);
        assert_true(plain > 1e-4 && plain < 0.05 && outliers < 0.08);
    }
}

static void same_bits(const char *name, int32_t out, tn_tower_scheme scheme) {
    char path[FIXTURE_PATH];
    tern_error err;
    tn_tower *t;
    tn_pool *one;
    tn_kernels plain;
    fixture_tower(path, "tower.gguf", name, 7, TN_F16);
    must(tn_pool_open(&ctx, 1, &one, &err), &err);
    must(tn_tower_open(&ctx, one, path, out, scheme, &t, &err), &err);
    tn_kernels_init(&plain, 0);
    for (int i = 0; i < 3; i++) {
        const tn_tower_shape *s = tn_tower_shape_of(t);
        tn_tower_size z = size_of(s, i);
        size_t n = (size_t)(tn_tower_rows(s, z) * tn_tower_row_width(s));
        uint8_t *rgb = pixels(z, i);
        float *some = malloc(n * sizeof *some), *others = malloc(n * sizeof *others);
        atomic_bool cancel = true;
        must(tn_tower_encode(t, &kern, pool, rgb, z, NULL, NULL, some, &err), &err);
        must(tn_tower_encode(t, i ? &kern : &plain, one, rgb, z, NULL, NULL, others, &err), &err);
        assert_memory_equal(some, others, n * sizeof *some);
        assert_int_equal(tn_tower_encode(t, &kern, pool, rgb, z, &cancel, NULL, some, &err),
                         TERN_E_CANCELLED);
        z.width++;
        assert_int_equal(tn_tower_encode(t, &kern, pool, rgb, z, NULL, NULL, some, &err), TERN_E_INVALID);
        free(rgb), free(some), free(others);
    }
    tn_tower_close(&t);
    tn_pool_close(&one);
}

static void same_bits_whatever_the_threads(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        same_bits("tiny-idefics3-mmproj", 40, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-gemma3-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-smolvlm-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-qwen3vl-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-qwen35-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-qwen25vl-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-lfm2vl-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-lfm2.5vl-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-internvl-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-interns1-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-gemma4-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-gemma4-31b-mmproj", 64, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-minicpmv-mmproj", 256, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
        same_bits("tiny-minicpmo-mmproj", 128, i ? TN_TOWER_INT8 : TN_TOWER_FLOAT);
    }
}

/* Writes `with` over the text `what` of the file, `skip` bytes after it. */
static void patch(char *bytes, size_t n, const char *what, size_t skip, const void *with, size_t n_with) {
    char *at = memmem(bytes, n, what, strlen(what));
    if (!at) fail_msg("the file has no %s", what);
    memcpy(at + strlen(what) + skip, with, n_with);
}

typedef struct fault {
    const char *what; /* in the file */
    size_t skip;
    const char *with;
    size_t n_with;
    tern_status status;
    const char *part;
} fault;

static const fault wrong[] = {
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

/* Of Qwen2.5-VL's, whose windows are of 112 pixels where the file says nothing else. */
static const fault wrong_windows[] = {
    {"clip.vision.n_wa_patter", 0, "X", 1, TERN_E_UNSUPPORTED, "clip.vision.n_wa_patterX is not known"},
    {"clip.vision.n_wa_pattern", 4, "\0", 1, TERN_E_FORMAT, "n_wa_pattern is missing or not 1 to 256"},
    {"clip.use_silu", 4, "\0", 1, TERN_E_UNSUPPORTED, "is the quick form of GELU, and SiLU is what is known"},
    {"v.blk.2.ffn_gate.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.2.ffn_gate.bias"},
    {"clip.vision.patch_size", 4, "\x39", 1, TERN_E_FORMAT, "windows of 112 pixels, and blocks of 114"},
    {"clip.use_silu", 0, "", 0, TERN_OK, NULL},
};

/* Of Qwen3-VL's. */
static const fault wrong_qwen[] = {
    {"clip.vision.spatial_merge_siz", 0, "X", 1, TERN_E_UNSUPPORTED,
     "clip.vision.spatial_merge_sizX is not known"},
    {"clip.vision.spatial_merge_size", 4, "\x03", 1, TERN_E_FORMAT, "v.deepstack.0.norm.weight has"},
    {"clip.vision.block_count", 4, "\x02", 1, TERN_E_FORMAT,
     "is_deepstack_layers must have 2 values and has 3"},
    {"clip.vision.is_deepstack_layers", 16, "\0", 1, TERN_E_UNSUPPORTED,
     "v.deepstack.0.norm.weight is not known"},
    {"clip.vision.is_deepstack_layers", 17, "\1", 1, TERN_E_FORMAT,
     "lacks the tensor v.deepstack.1.norm.weight"},
    {"clip.vision.is_deepstack_layers", 4, "\4", 1, TERN_E_FORMAT, ""},
    {"clip.vision.image_size", 4, "\x18", 1, TERN_E_FORMAT, "v.position_embd.weight has 25 x 32"},
    {"v.patch_embd.weight.", 0, "2", 1, TERN_E_FORMAT, "lacks the tensor v.patch_embd.weight.1"},
    {"v.blk.1.attn_qkv.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.1.attn_qkv.bias"},
    {"mm.2.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor mm.2.bias"},
    {"clip.has_vision_encoder", 4, "\0", 1, TERN_E_UNSUPPORTED, "has no encoder of pictures"},
    {"clip.has_vision_encoder", 0, "", 0, TERN_OK, NULL},
};

/* Of LFM2-VL's. */
static const fault wrong_lfm2[] = {
    {"mm.input_norm.weigh", 0, "X", 1, TERN_E_UNSUPPORTED, "mm.input_norm.weighX is not known"},
    {"mm.input_norm.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor mm.input_norm.bias"},
    {"mm.1.weigh", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor mm.1.weight"},
    {"mm.2.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor mm.2.bias"},
    {"clip.vision.projector.scale_facto", 0, "X", 1, TERN_E_UNSUPPORTED, "scale_factoX is not known"},
    {"clip.vision.projector.scale_factor", 4, "\x03", 1, TERN_E_FORMAT, "mm.input_norm.weight has 128"},
    {"clip.vision.projector.scale_factor", 4, "\x41", 1, TERN_E_FORMAT, "want 1 to 64"},
    {"clip.vision.image_size", 4, "\x18", 1, TERN_E_FORMAT, "v.position_embd.weight has 25 x 32"},
    {"lfm2", 0, "", 0, TERN_OK, NULL},
};

/* Of InternVL's. */
static const fault wrong_internvl[] = {
    {"v.class_emb", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.class_embd"},
    {"v.class_embd", 4, "\1\0\0\0\0\0\0\0\x20", 9, TERN_E_FORMAT, "v.class_embd has 1 x 32"}, /* turned */
    {"v.blk.1.ls1.weigh", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.1.ls1.weight"},
    {"v.blk.0.ls2.weigh", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.0.ls2.weight"},
    {"v.blk.0.ln1.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.0.ln1.bias"}, /* of 6B: RMS norms */
    {"mm.model.mlp.0.weigh", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor mm.model.mlp.0.weight"},
    {"mm.model.mlp.1.bia", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor mm.model.mlp.1.bias"},
    {"clip.vision.image_size", 4, "\x20", 1, TERN_E_FORMAT, "v.position_embd.weight has 1 x 37"},
    {"clip.vision.image_size", 4, "\x19", 1, TERN_OK, NULL}, /* a rest that no patch has */
    {"clip.vision.projector.scale_factor", 4, "\4", 1, TERN_E_FORMAT, "do not go together"},
    {"clip.use_gelu", 4, "\0", 1, TERN_E_UNSUPPORTED, "is the quick form of GELU, and GELU is what is known"},
    {"clip.vision.projection_dim", 4, "\x41", 1, TERN_E_INVALID,
     "its rows have 65 values and the model's have 64"},
};

/* Of Gemma 4's, with an encoder of sound in the file. */
static const fault wrong_gemma4[] = {
    {"clip.audio.block_coun", 0, "X", 1, TERN_OK, NULL}, /* of the encoder of sound */
    {"clip.vision.block_coun", 0, "X", 1, TERN_E_UNSUPPORTED, "clip.vision.block_counX is not known"},
    {"mm.a.fc.bia", 0, "X", 1, TERN_OK, NULL},
    {"a.blk.0.norm.weigh", 0, "X", 1, TERN_OK, NULL},
    {"mm.a.fc.bias", 4, "", 0, TERN_OK, NULL},
    {"mm.a", 0, "x", 1, TERN_E_UNSUPPORTED, "is not known, and the tower would be another without it"},
    {"v.blk.0.attn_q.input_ma", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.0.attn_q.input_max"},
    {"v.blk.1.ffn_down.output_mi", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.1.ffn_down.output_min"},
    {"v.blk.0.attn_v.input_mi", 0, "X", 1, TERN_E_UNSUPPORTED, "attn_v.input_m"},
    {"v.blk.0.attn_q_norm.weigh", 0, "X", 1, TERN_E_FORMAT, "lacks the tensor v.blk.0.attn_q_norm.weight"},
    {"v.blk.1.ffn_post_norm.weigh", 0, "X", 1, TERN_E_FORMAT,
     "lacks the tensor v.blk.1.ffn_post_norm.weight"},
    {"v.position_embd.weight", 12, "\2\0\0\0\0\0\0\0\x84\3", 10, TERN_E_FORMAT,
     "v.position_embd.weight has 900 x 2"},
    {"clip.vision.patch_size", 4, "\5", 1, TERN_E_FORMAT, "v.patch_embd.weight has"},
    {"clip.has_vision_encoder", 4, "\0", 1, TERN_E_UNSUPPORTED, "has no encoder of pictures"},
};

/* Of MiniCPM-V's. */
static const fault wrong_minicpm[] = {
    {"clip.minicpmv_version", 4, "\2", 1, TERN_E_UNSUPPORTED,
     "clip.minicpmv_version is 2; MiniCPM-V 2.6 (3)"},
    {"clip.minicpmv_version", 4, "\5", 1, TERN_E_INVALID, "its rows have 256 values and the model's have 64"},
    {"clip.minicpmv_versio", 0, "X", 1, TERN_E_UNSUPPORTED, "clip.minicpmv_versioX is not known"},
    {"clip.minicpmv_query_num", 4, "\6", 1, TERN_E_FORMAT, "query_num is 6, and there are 5 queries"},
    {"resampler.quer", 0, "X", 1, TERN_E_FORMAT, "resampler.query is missing"},
    {"resampler.query", 4, "\x40\0", 2, TERN_E_FORMAT, "no rows of a multiple of 128 values"},
    {"v.position_embd.weight", 12, "\x30", 1, TERN_E_FORMAT, "no square of up to 256 x 256 places"},
};

static void is_refused(const char *tower, const fault *faults, size_t n_faults) {
    char path[FIXTURE_PATH], *bytes;
    size_t n;
    tern_error err;
    fixture_tower(path, "tower.gguf", tower, 7, TN_F32);
    for (size_t i = 0; i < n_faults; i++) {
        tn_tower *t = NULL;
        must(tn_file_slurp(path, 1 << 24, &bytes, &n, &err), &err);
        patch(bytes, n, faults[i].what, faults[i].skip, faults[i].with, faults[i].n_with);
        tern_status st = tn_tower_open_memory(&ctx, pool, bytes, n, 64, TN_TOWER_FLOAT, &t, &err);
        if (st != faults[i].status || (faults[i].part && !strstr(err.message, faults[i].part)))
            fail_msg("%s %zu %s: status %d, '%s'", tower, i, faults[i].what, (int)st,
                     st == TERN_OK ? "" : err.message);
        tn_tower_close(&t);
        free(bytes);
    }
}

static void wrong_files_are_refused_by_name(void **state) {
    (void)state;
    char path[FIXTURE_PATH], *bytes;
    size_t n;
    tern_error err;
    is_refused("tiny-qwen25vl-mmproj", wrong_windows, sizeof wrong_windows / sizeof *wrong_windows);
    is_refused("tiny-qwen3vl-mmproj", wrong_qwen, sizeof wrong_qwen / sizeof *wrong_qwen);
    is_refused("tiny-lfm2vl-mmproj", wrong_lfm2, sizeof wrong_lfm2 / sizeof *wrong_lfm2);
    is_refused("tiny-internvl-mmproj", wrong_internvl, sizeof wrong_internvl / sizeof *wrong_internvl);
    is_refused("tiny-gemma4-mmproj", wrong_gemma4, sizeof wrong_gemma4 / sizeof *wrong_gemma4);
    is_refused("tiny-minicpmv-mmproj", wrong_minicpm, sizeof wrong_minicpm / sizeof *wrong_minicpm);
    is_refused("tiny-smolvlm-mmproj", wrong, sizeof wrong / sizeof *wrong);
    fixture_tower(path, "tower.gguf", "tiny-smolvlm-mmproj", 7, TN_F32);
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

/* Limits may be infinite, and then are none; a picture has no more patches of a side than the tables have places. */
static void limits_and_places(void **state) {
    (void)state;
    char path[FIXTURE_PATH], *bytes;
    size_t n_bytes;
    tern_error err;
    tn_tower *t;
    tn_gguf *g;
    fixture_tower(path, "tower.gguf", "tiny-gemma4-mmproj", 7, TN_F32);
    must(tn_file_slurp(path, 1 << 24, &bytes, &n_bytes, &err), &err);
    must(tn_gguf_open_memory(&ctx, bytes, n_bytes, "memory", &g, &err), &err);
    float *most = (float *)tn_gguf_tensor(g, "v.blk.0.attn_q.output_max")->data; /* the test's own bytes */
    *most = INFINITY;
    must(tn_tower_open_memory(&ctx, pool, bytes, n_bytes, 64, TN_TOWER_FLOAT, &t, &err), &err);
    const tn_tower_shape *s = tn_tower_shape_of(t);
    tn_tower_size z = {2 * 12, 12};
    uint8_t *rgb = pixels(z, 1);
    float rows[2][64];
    double want[2][64];
    must(tn_tower_encode(t, &kern, pool, rgb, z, NULL, NULL, &rows[0][0], &err), &err);
    model(g, s, z, rgb, &want[0][0]);
    for (int i = 0; i < 64; i++) assert_true(fabs(want[1][i] - (double)rows[1][i]) < 1e-4);
    free(rgb);
    z = (tn_tower_size){304 * 12, 12}; /* 912 patches, of 900 places */
    rgb = pixels(z, 1);
    assert_int_equal(tn_tower_encode(t, &kern, pool, rgb, z, NULL, NULL, &rows[0][0], &err), TERN_E_LIMIT);
    assert_non_null(strstr(err.message, "places for 900 patches"));
    tn_tower_close(&t);
    *most = NAN;
    assert_int_equal(tn_tower_open_memory(&ctx, pool, bytes, n_bytes, 64, TN_TOWER_FLOAT, &t, &err),
                     TERN_E_FORMAT);
    tn_gguf_close(&g);
    free(rgb), free(bytes);
}

int main(void) {
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    if (tn_pool_open(&ctx, 3, &pool, &err) != TERN_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_double_precision),
        cmocka_unit_test(same_bits_whatever_the_threads),
        cmocka_unit_test(wrong_files_are_refused_by_name),
        cmocka_unit_test(limits_and_places),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tn_pool_close(&pool);
    return rc;
}
