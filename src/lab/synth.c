#include "lab/synth.h"

#include "base/half.h"
#include "base/rng.h"
#include "base/status.h"
#include "formats/code_books.h"
#include "formats/ik_types.h"
#include "formats/gguf.h"
#include "lab/noise.h"
#include "lab/shapes.h"
#include "lab/synth_text.h"
#include "model/arch_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef tn_synth_shape shape;

const char *tn_synth_name(size_t i) {
    const shape *p = tn_synth_shape_at(i);
    return p ? p->name : NULL;
}

/* ---- weights ------------------------------------------------------------------------------------------ */

typedef struct fill {
    tn_dtype dtype;
    uint64_t seed, n; /* values of the tensor */
    float scale, offset;
    uint8_t *out;
    uint64_t first, count; /* the part in memory */
    uint64_t cols;         /* of a row */
} fill;

#define FLOOR (-5.0f)                         /* of the logarithms of decays, where they have one */
enum { FILL_ITEM = 1 << 14, PART = 1 << 22 }; /* values per item of the pool, per write */

/* Whether blocks of a type are random bytes, whose scale gives their values the size they should have. */
static bool random_blocks(tn_dtype d) {
    return tn_code_type(d) || tn_ik_type(d) || d == TN_Q6_0 || d == TN_Q1_0 || d == TN_Q2_0 ||
           d == TN_NVFP4 || d == TN_MXFP4;
}

static void set_scale(tn_dtype d, uint8_t *block, float scale) {
    const uint16_t half = tn_f32_f16(scale);
    if (tn_ik_type(d)) tn_ik_set_d(d, block, scale);
    else if (tn_code_type(d)) tn_code_set_d(d, block, half);
    else if (d == TN_MXFP4) block[0] = (uint8_t)(scale > 0 ? 128 + (int)floorf(log2f(scale)) : 0);
    else if (d != TN_NVFP4) memcpy(block, &half, sizeof half);
    else memset(block, tn_f32_f16(scale / 128) >> 7 & 0x7f, 4);
}

static void random_block(const fill *f, uint64_t i_block, uint8_t *block) {
    const size_t n_bytes = (size_t)tn_dtype_block_bytes(f->dtype);
    const int n = tn_dtype_block(f->dtype);
    const bool ternary = f->dtype == TN_TQ2_0 || f->dtype == TN_Q2_0; /* of four digits, three are values */
    tn_rng r = {f->seed + i_block * 0x9e3779b97f4a7c15u};
    for (size_t i = 0; i < n_bytes; i++) {
        block[i] = (uint8_t)tn_rng_below(&r, 256);
        if (ternary) block[i] &= (uint8_t) ~(block[i] << 1 & 0xaa);
    }
    float v[TN_CODE_BLOCK], square = 0;
    set_scale(f->dtype, block, 1);
    tn_dequantise(f->dtype, block, v, (uint64_t)n);
    for (int i = 0; i < n; i++) square += v[i] * v[i] / (float)n;
    set_scale(f->dtype, block, square > 0 ? f->scale / sqrtf(square) : 0);
}

/* A row of a type whose rows have a head: random blocks, and the head that gives the first one's values their size. */
static void random_row(const fill *f, uint64_t i_row, uint8_t *row) {
    const size_t n_bytes = (size_t)tn_dtype_row_bytes(f->dtype, f->cols);
    tn_rng r = {f->seed + i_row * 0x9e3779b97f4a7c15u};
    for (size_t i = 0; i < n_bytes; i++) row[i] = (uint8_t)tn_rng_below(&r, 256);
    float v[TN_IK_BLOCK], square = 0;
    tn_ik_set_d(f->dtype, row, 1);
    tn_dequantise(f->dtype, row, v, TN_IK_BLOCK);
    for (int i = 0; i < TN_IK_BLOCK; i++) square += v[i] * v[i] / (float)TN_IK_BLOCK;
    tn_ik_set_d(f->dtype, row, square > 0 ? f->scale / sqrtf(square) : 0);
}

/* Rows of such a type, one an item. */
static void fill_row(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const fill *f = arg;
    random_row(f, f->first / f->cols + (uint64_t)i_item,
               f->out + (uint64_t)i_item * tn_dtype_row_bytes(f->dtype, f->cols));
}

static void fill_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const fill *f = arg;
    uint64_t at = (uint64_t)i_item * FILL_ITEM, end = at + FILL_ITEM < f->count ? at + FILL_ITEM : f->count;
    float v[32];
    const uint64_t block = (uint64_t)tn_dtype_block(f->dtype);
    for (; random_blocks(f->dtype) && at < end; at += block)
        random_block(f, (f->first + at) / block,
                     f->out + at / block * (uint64_t)tn_dtype_block_bytes(f->dtype));
    for (; at < end; at += 32) {
        uint64_t n = end - at < 32 ? end - at : 32;
        for (uint64_t i = 0; i < n; i++)
            v[i] = f->offset + f->scale * tn_synth_noise(f->seed, f->first + at + i);
        if (f->dtype == TN_Q8_0) {
            tn_quantise_q8_0(v, f->out + at / 32 * 34, 32);
        } else if (f->dtype == TN_Q4_0) {
            tn_quantise_q4_0(v, f->out + at / 32 * 18, 32);
        } else if (f->dtype == TN_F16) {
            for (uint64_t i = 0; i < n; i++) {
                uint16_t h = tn_f32_f16(v[i]);
                memcpy(f->out + 2 * (at + i), &h, 2);
            }
        } else {
            memcpy(f->out + 4 * at, v, n * 4);
        }
    }
}

typedef struct synth {
    tn_ctx *ctx;
    tn_pool *pool;
    const tn_arch *arch;
    tn_hparams h;
    tn_gguf_writer *w;
    tn_dtype dtype;
    uint64_t seed;
    bool spread, joint;
    uint8_t *buf; /* PART values */
    tern_error *err;
} synth;

/* Gate and up of the experts as one tensor. */
static bool gate_up(const synth *s) {
    const char *name = s->arch->gguf_names[TN_W_UP_EXPS];
    return name && strstr(name, "gate_up");
}

/* Gemma 3n's files have keys and values of layers that read others', too. */
static bool present(const synth *s, int layer, tn_role role) {
    if (s->arch->streams && layer >= 0 && (role == TN_W_K || role == TN_W_V || role == TN_W_K_NORM))
        return true;
    if (s->arch->wkv && !layer && (role == TN_W_LOW_V_B || role == TN_W_LOW_V_1 || role == TN_W_LOW_V_2))
        return true;
    return tn_arch_required(s->arch, &s->h, role) && tn_layer_may_have(&s->h, layer, role);
}

/* Chooses the type of rows. Those that are no multiple of a block long are Q4_0, or F16. */
static tn_dtype dtype_of(const synth *s, int64_t rows, int64_t cols) {
    if (rows == 1) return TN_F32;
    if (cols % tn_dtype_block(s->dtype) == 0) return s->dtype;
    return cols % 32 ? TN_F16 : TN_Q4_0;
}

static bool is_turned(tn_role role) {
    return role == TN_W_CONV || role == TN_W_DELTA_CONV || tn_role_of_kda_conv(role);
}
/* Steps and shares of the heads of Mamba 2 are columns, and its norm is a row for every group. */
static bool is_column(const synth *s, tn_role role) {
    return (s->arch->mamba || s->arch->kda) && (role == TN_W_DELTA_A || role == TN_W_MAMBA_D);
}
/* As converters write them, and as other engines want them. */
static bool always_f32(tn_role role) {
    return role == TN_W_ROUTER || role == TN_W_CONV || role == TN_W_DELTA_CONV || role == TN_W_DELTA_A ||
           role == TN_W_MAMBA_D || role == TN_W_DELTA_NORM || role == TN_W_LERP_R ||
           tn_role_of_kda_conv(role) || (role >= TN_W_ALTUP_ROUTER && role <= TN_W_ALTUP_CORRECT);
}
/* What the streams begin with is one tensor, and so is what they leave. */
static bool is_stream(tn_role role) { return role >= TN_W_ALTUP_IN_1 && role <= TN_W_ALTUP_OUT_3; }

/* Mixtures with the row before are one tensor. What the first layer does not read is there all the same, as converters
 * write it: other engines want it. */
static bool tensor_of_wkv(const synth *s, int layer, tn_role role, int64_t *rows, int64_t *cols) {
    if (role == TN_W_LERP_R) *rows = s->h.low.gate ? 6 : 5;
    if (!layer && role == TN_W_LOW_V_1) *rows = s->h.low.rate;
    if (!layer && role == TN_W_LOW_V_2) *cols = s->h.low.rate;
    return role < TN_W_LERP_W || role > TN_W_LERP_G;
}

/* Finds a role's tensor: its name and shape. Returns false when the file has none, or the role is part of a
 * fused one named elsewhere. */
static bool tensor_of(const synth *s, int layer, tn_role role, char *name, size_t cap, int64_t *rows,
                      int64_t *cols) {
    if (!present(s, layer, role)) return false;
    if ((role == TN_W_PLE_IN || role == TN_W_PLE_NORM) && layer) return false; /* one for all layers */
    tn_role_shape(&s->h, layer, role, rows, cols);
    tn_arch_gguf_name(s->arch, &s->h, layer, role, name, cap);
    if (tn_role_by_head(role) && s->joint) { /* one tensor of both */
        snprintf(name, cap, "blk.%d.attn_kv_b.weight", layer);
        *rows = s->h.n_heads * (s->h.latent.d_nope + s->h.latent.d_value);
        *cols = s->h.latent.rank;
        return role == TN_W_K_UP;
    }
    if (is_turned(role)) { /* in files, channels are rows */
        int64_t taps = *rows;
        *rows = *cols, *cols = taps;
    }
    if (role == TN_W_PLE_IN) *rows *= s->h.n_layers;
    if (gate_up(s) && role == TN_W_UP_EXPS) return false;
    if (gate_up(s) && role == TN_W_GATE_EXPS) *rows *= 2;
    if (is_stream(role)) *rows *= TN_STREAMS - 1;
    if (is_stream(role) && role != TN_W_ALTUP_IN_1 && role != TN_W_ALTUP_OUT_1) return false;
    if (s->arch->attn_gate && role == TN_W_Q) *rows *= 2;
    if (is_column(s, role)) *rows = *cols, *cols = 1;
    if (s->arch->mamba && role == TN_W_DELTA_NORM) *rows = s->h.delta.n_key_heads, *cols /= *rows;
    if (s->arch->mamba && role == TN_W_DELTA_Q) { /* gate, values, keys, queries, steps */
        *rows = tn_delta_channels(&s->h.delta) + s->h.delta.n_heads * (s->h.delta.d_value + 1);
        return true;
    }
    if (s->arch->mamba && (role == TN_W_DELTA_GATE || role == TN_W_DELTA_DECAY)) return false;
    if (s->arch->kda && (tn_role_of_delta(role) || tn_role_of_kda(role))) return true;
    if (s->arch->wkv) return tensor_of_wkv(s, layer, role, rows, cols);
    if (role == TN_W_DELTA_Q) *rows = tn_delta_channels(&s->h.delta);
    if (role == TN_W_ATT_GATE) return s->arch->latent;
    if (role == TN_W_DELTA_K || role == TN_W_DELTA_V) return false;
    if (!s->arch->delta_apart && role == TN_W_DELTA_RATE) {
        snprintf(name, cap, "blk.%d.ssm_ba.weight", layer);
        *rows *= 2;
    }
    if (!s->arch->delta_apart && role == TN_W_DELTA_DECAY) return false;
    if (s->arch->gguf_fused_ffn && role == TN_W_UP) *rows *= 2;
    if (s->arch->gguf_fused_ffn) return role != TN_W_GATE;
    if (!s->arch->gguf_fused && !s->arch->fused_in_order) return true;
    if (role == TN_W_Q) {
        snprintf(name, cap, "blk.%d.attn_qkv.weight", layer);
        *rows += 2 * (int64_t)s->h.n_kv_heads * s->h.d_head;
    }
    if (s->arch->gguf_fused && role == TN_W_UP) *rows *= 2;
    return role != TN_W_K && role != TN_W_V && (role != TN_W_GATE || !s->arch->gguf_fused);
}

static void declare(synth *s, int layer, tn_role role) {
    char name[160];
    int64_t rows, cols;
    if (!tensor_of(s, layer, role, name, sizeof name, &rows, &cols)) return;
    uint64_t dims[3] = {(uint64_t)s->h.n_experts, (uint64_t)rows, (uint64_t)cols};
    bool vector = rows == 1 && !(s->arch->mamba && role == TN_W_DELTA_NORM);
    if (tn_role_of_experts(role)) { /* one after another, as one more dimension */
        dims[rows == 1 ? 2 : 1] /= dims[0];
        if (rows == 1) dims[1] = dims[0];
        tn_gguf_add_tensor(s->w, name, dtype_of(s, rows, cols), rows == 1 ? 2 : 3,
                           rows == 1 ? dims + 1 : dims);
        return;
    }
    if (tn_role_by_head(role) && !s->joint) {
        dims[0] = (uint64_t)s->h.n_heads, dims[1] /= dims[0];
        tn_gguf_add_tensor(s->w, name, dtype_of(s, rows, cols), 3, dims);
        return;
    }
    if (tn_role_of_kda_conv(role) || (s->arch->kda && role == TN_W_DELTA_A)) { /* as converters write them */
        const bool taps = role != TN_W_DELTA_A;
        const uint64_t four[4] = {1, taps ? dims[1] : 1, taps ? 1 : dims[1], dims[2]};
        tn_gguf_add_tensor(s->w, name, TN_F32, 4, four);
        return;
    }
    if (role == TN_W_LERP_R) {
        const uint64_t four[4] = {dims[1], 1, 1, dims[2]};
        tn_gguf_add_tensor(s->w, name, TN_F32, 4, four);
        return;
    }
    if (is_stream(role)) {
        dims[0] = TN_STREAMS - 1, dims[1] = dims[2];
        tn_gguf_add_tensor(s->w, name, dtype_of(s, rows, cols), 3, dims);
        return;
    }
    dims[0] = dims[1];
    dims[1] = dims[2];
    tn_dtype dtype = always_f32(role) ? TN_F32 : dtype_of(s, rows, cols);
    tn_gguf_add_tensor(s->w, name, dtype, vector ? 1 : 2, vector ? dims + 1 : dims);
}

static tern_status produce(synth *s, int layer, tn_role role) {
    char name[160];
    int64_t rows, cols;
    if (!tensor_of(s, layer, role, name, sizeof name, &rows, &cols)) return TERN_OK;
    fill f = {.dtype = always_f32(role) ? TN_F32 : dtype_of(s, rows, cols),
              .seed = s->seed ^ (uint64_t)(layer + 2) << 40 ^ (uint64_t)role << 56,
              .n = (uint64_t)(rows * cols),
              .out = s->buf,
              .cols = (uint64_t)cols};
    bool vector = rows == 1 || is_column(s, role) || role == TN_W_DELTA_NORM;
    f.scale = vector ? 0.02f : 1 / sqrtf((float)cols);
    if (s->spread && vector) f.scale = 0.25f;
    if (s->spread && (role == TN_W_Q || role == TN_W_K || role == TN_W_LATENT_Q || role == TN_W_KV_A))
        f.scale *= 2; /* attention is far from uniform */
    if (s->spread && role == TN_W_OUT) f.scale *= 3;
    if (s->spread && role == TN_W_ROUTER) f.scale *= 3;
    /* where no norm takes back what values, keys and queries make of each other, multipliers are below a half */
    if (s->h.delta.no_norm && role == TN_W_DELTA_Q) f.scale *= 0.4f;
    if (role == TN_W_ROUTER && s->arch->experts_beside) f.scale *= sqrtf((float)cols); /* and so are these */
    if (role == TN_W_ALTUP_ROUTER) f.scale = sqrtf((float)cols); /* scores are divided by the row's size */
    if (role == TN_W_ALTUP_PREDICT) f.scale = 0.1f;              /* more would make the model chaotic */
    if (role == TN_W_ALTUP_CORRECT) f.scale = 0.25f;
    if (role == TN_W_SINKS) f.scale = 1;
    bool is_norm = role == TN_W_OUT_NORM || role == TN_W_ATTN_NORM || role == TN_W_FFN_NORM ||
                   role == TN_W_Q_NORM || role == TN_W_K_NORM || role == TN_W_ATTN_POST_NORM ||
                   role == TN_W_FFN_POST_NORM || role == TN_W_PLE_NORM || role == TN_W_PLE_POST_NORM ||
                   role == TN_W_Q_A_NORM || role == TN_W_KV_A_NORM || role == TN_W_ALTUP_NORM ||
                   role == TN_W_ALTUP_SCALE || role == TN_W_LAUREL_NORM || tn_role_of_beside(role) ||
                   role == TN_W_ATTN_SUB_NORM || role == TN_W_FFN_SUB_NORM || role == TN_W_EMBD_NORM ||
                   (tn_role_of_next(role) && rows == 1);
    if (role == TN_W_LAYER_SCALE) f.offset = 0.8f, f.scale = 0.1f;
    if (is_norm || role == TN_W_DELTA_NORM || role == TN_W_MAMBA_D) f.offset = 1;
    /* scores are not scaled by the size of heads: norms are as small as it takes */
    if (role == TN_W_K_NORM && s->arch->attn_scale > 0) f.offset = 0.3f, f.scale = 0.08f;
    /* nor what blocks add to a stream, of which every layer makes twice its part: the model would be chaotic */
    if (s->arch->streams && (role == TN_W_ATTN_POST_NORM || role == TN_W_FFN_POST_NORM ||
                             role == TN_W_LAUREL_NORM || role == TN_W_PLE_POST_NORM))
        f.offset = 0.3f, f.scale = 0.08f;
    if (role == TN_W_DELTA_A)
        f.offset =
            s->arch->kda_bounded ? 1 : -1; /* decays of about 0.95, some of little and some of long memory */
    if (role == TN_W_DELTA_DT) f.offset = -3, f.scale = 1;
    if (role == TN_W_LERP_R || role == TN_W_LERP_FFN) f.offset = 0.5f, f.scale = 0.25f;
    if (role == TN_W_LOW_W_B) f.offset = -2, f.scale = 1;
    if (role == TN_W_LOW_A_B || role == TN_W_LOW_V_B) f.scale = 1;
    if (role == TN_W_WKV_KK || role == TN_W_WKV_KA) f.offset = 0.8f;
    const bool by_rows = tn_dtype_head_bytes(f.dtype);
    const uint64_t part = by_rows ? PART / f.cols * f.cols : PART;
    for (f.first = 0; f.first < f.n; f.first += part) {
        f.count = f.n - f.first < part ? f.n - f.first : part;
        if (by_rows) tn_pool_for(s->pool, (int)(f.count / f.cols), fill_row, &f);
        else tn_pool_for(s->pool, (int)((f.count + FILL_ITEM - 1) / FILL_ITEM), fill_item, &f);
        uint64_t bytes =
            by_rows ? f.count / f.cols * tn_dtype_row_bytes(f.dtype, f.cols)
                    : f.count / (uint64_t)tn_dtype_block(f.dtype) * (uint64_t)tn_dtype_block_bytes(f.dtype);
        TN_TRY(tn_gguf_write(s->w, s->buf, bytes, s->err));
    }
    return TERN_OK;
}

/* Computes what each rope frequency is divided by, in the tensor that converters write for Llama 3.1 and
 * later, and in those of Phi-3 for short and long texts. */
static void rope_factors(const shape *p, bool longer, float out[TN_MAX_ROT / 2]) {
    for (int i = 0; p->longrope && i < p->n_rot / 2; i++) out[i] = 1 + (float)i * (longer ? 0.7f : 0.05f);
    for (int i = 0; p->window_d && i < p->d_head / 2; i++) out[i] = i < p->d_head / 8 ? 1 : 1e30f;
    for (int i = 0; !p->longrope && !p->window_d && i < p->d_head / 2; i++) {
        double f = pow((double)p->rope_base, -2.0 * i / p->d_head), scaled = f;
        tn_rope_llama3(&scaled, 1, (double)p->llama3_factor, 1, 4, 8192);
        out[i] = (float)(f / scaled);
    }
}

static void put_delta_keys(synth *s, const shape *p) {
    const tn_delta_net *n = &s->h.delta;
    const struct {
        const char *tail;
        int32_t v;
    } keys[] = {
        {"ssm.conv_kernel", p->conv_len},    {"ssm.inner_size", n->n_heads * n->d_value},
        {"ssm.state_size", n->d_key},        {"ssm.time_step_rank", n->n_heads},
        {"ssm.group_count", n->n_key_heads}, {"full_attention_interval", p->attends ? p->attends : 4}};
    char key[96];
    for (size_t i = 0; i < sizeof keys / sizeof *keys - n->mamba;
         i++) { /* KV heads tell which layers attend */
        snprintf(key, sizeof key, "%s.%s", p->arch, keys[i].tail);
        tn_gguf_put_u32(s->w, key, (uint32_t)keys[i].v);
    }
}

static void put_wkv_keys(synth *s, const shape *p) {
    const struct {
        const char *tail;
        int32_t v;
    } keys[] = {{"wkv.head_size", p->delta_d},
                {"attention.decay_lora_rank", p->low[0]},
                {"attention.iclr_lora_rank", p->low[1]},
                {"attention.value_residual_mix_lora_rank", p->low[2]},
                {"attention.gate_lora_rank", p->low[3]}};
    char key[96];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", p->arch, keys[i].tail);
        tn_gguf_put_u32(s->w, key, (uint32_t)keys[i].v);
    }
}

/* What layers with a window and without one differ in, and what they share. */
static void put_layer_keys(synth *s, const shape *p) {
    const tn_hparams *h = &s->h;
    int32_t windowed[TN_MAX_LAYERS], kv_heads[TN_MAX_LAYERS], ff[TN_MAX_LAYERS];
    size_t n = (size_t)p->n_layers;
    char key[96];
    for (int32_t i = 0; i < p->n_layers; i++) {
        windowed[i] = tn_layer_window(h, i) > 0;
        kv_heads[i] = tn_layer_kv_heads(h, i);
        ff[i] = tn_layer_ff(h, i);
    }
#define KEY(tail) (snprintf(key, sizeof key, "%s.%s", p->arch, tail), key)
    tn_gguf_put_arr_i32(s->w, KEY("attention.sliding_window_pattern"), windowed, n);
    tn_gguf_put_arr_i32(s->w, KEY("attention.head_count_kv"), kv_heads, n);
    tn_gguf_put_arr_i32(s->w, KEY("feed_forward_length"), ff, n);
    if (p->window_d) {
        tn_gguf_put_u32(s->w, KEY("attention.key_length_swa"), (uint32_t)p->window_d);
        tn_gguf_put_u32(s->w, KEY("attention.value_length_swa"), (uint32_t)p->window_d);
        tn_gguf_put_u32(s->w, KEY("rope.dimension_count_swa"), (uint32_t)p->window_d);
    }
    tn_gguf_put_f32(s->w, KEY("rope.freq_base_swa"), 10000);
    tn_gguf_put_u32(s->w, KEY("attention.shared_kv_layers"), (uint32_t)p->n_shared);
    tn_gguf_put_u32(s->w, KEY("embedding_length_per_layer_input"), (uint32_t)p->n_ple);
    if (!s->arch->streams) return;
    tn_gguf_put_u32(s->w, KEY("altup.num_inputs"), TN_STREAMS);
    tn_gguf_put_u32(s->w, KEY("altup.active_idx"), 0);
    /* llama.cpp divides the squares by one less than their number, and Gemma 3n by their number: the key says
     * what makes the two the same, and at the published size differs in the fifth digit. */
    float sparse[TN_MAX_LAYERS];
    for (int32_t i = 0; i < p->n_layers; i++)
        sparse[i] =
            i < p->n_sparse ? 1.6448533535f * sqrtf((float)p->n_ff / (float)(p->n_ff - 1)) : -INFINITY;
    tn_gguf_put_arr_f32(s->w, KEY("activation_sparsity_scale"), sparse, n);
#undef KEY
}

/* A dense block in the first layers, and a shared expert in the others. */
static void put_dense_keys(synth *s, const shape *p) {
    char key[96];
    if (s->arch->experts_before) {
        snprintf(key, sizeof key, "%s.interleave_moe_layer_step", p->arch);
        tn_gguf_put_u32(s->w, key, (uint32_t)p->every);
        return;
    }
    snprintf(key, sizeof key, "%s.expert_shared_count", p->arch);
    tn_gguf_put_u32(s->w, key, (uint32_t)(p->n_ff / p->n_ff_exp));
    snprintf(key, sizeof key, "%s.%s", p->arch,
             s->arch->experts_sigmoid ? "expert_weights_scale" : "interleave_moe_layer_step");
    if (s->arch->experts_sigmoid) tn_gguf_put_f32(s->w, key, 1.5f);
    else tn_gguf_put_u32(s->w, key, 1);
    snprintf(key, sizeof key, "%s.expert_weights_norm", p->arch);
    tn_gguf_put_bool(s->w, key, true);
}

/* What these architectures leave to the file; and how many pairs turn by each of several positions, which are the
 * same in text. */
static void put_said(synth *s, const shape *p) {
    int32_t pairs = (p->n_rot ? p->n_rot : p->d_head) / 2;
    const int32_t sections[4] = {pairs - 2 * (pairs / 3), pairs / 3, pairs / 3, 0};
    char key[96];
    snprintf(key, sizeof key, "%s.use_parallel_residual", p->arch);
    if (s->arch->may_be_parallel) tn_gguf_put_bool(s->w, key, p->parallel);
    snprintf(key, sizeof key, "%s.hidden_act", p->arch);
    if (s->arch->sub_norms && !p->unsaid) tn_gguf_put_str(s->w, key, "relu2");
    if (!s->arch->sections) return;
    snprintf(key, sizeof key, "%s.rope.dimension_sections", p->arch);
    tn_gguf_put_arr_i32(s->w, key, sections, 4);
    snprintf(key, sizeof key, "%s.n_deepstack_layers", p->arch);
    if (p->deepstack) tn_gguf_put_u32(s->w, key, (uint32_t)p->deepstack);
}

/* Sizes of heads; of latents too, where those of heads have names of their own if keys and values are tensors apart. */
static void put_head_keys(synth *s, const shape *p) {
    const bool heads = !p->latent || p->joint;
    const int32_t key = p->latent ? p->d_nope + p->n_rot : p->d_head, row = p->latent + p->n_rot;
    const struct {
        const char *tail;
        int32_t v;
    } keys[] = {{"attention.kv_lora_rank", p->latent},
                {"attention.key_length", heads ? key : row},
                {"attention.value_length", !p->latent ? p->d_head
                                           : p->joint ? p->d_value
                                                      : p->latent},
                {"attention.q_lora_rank", p->q_rank},
                {"attention.key_length_mla", heads ? 0 : key},
                {"attention.value_length_mla", heads ? 0 : p->d_value}};
    char name[96];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(name, sizeof name, "%s.%s", p->arch, keys[i].tail);
        if (keys[i].v) tn_gguf_put_u32(s->w, name, (uint32_t)keys[i].v);
    }
    snprintf(name, sizeof name, "%s.rope.scaling.yarn_log_multiplier", p->arch);
    if (p->latent && p->yarn > 0) tn_gguf_put_f32(s->w, name, s->arch->temperature ? 0.1f : 0.0707f);
    snprintf(name, sizeof name, "%s.attention.temperature_length", p->arch);
    if (p->latent && s->arch->temperature) tn_gguf_put_u32(s->w, name, (uint32_t)p->orig_ctx);
}

/* Granite 4 says how large its experts are; layers of one block say what each is by their sizes. */
static void put_ff_keys(synth *s, const shape *p) {
    char key[96];
    int32_t ff[TN_MAX_LAYERS];
    snprintf(key, sizeof key, "%s.feed_forward_length", p->arch);
    for (int32_t i = 0; i < p->n_layers; i++)
        ff[i] = s->h.layer_kind[i] != TN_LAYER_FEEDS ? 0 : p->n_experts ? p->n_ff_exp : p->n_ff;
    if (s->arch->window_heads) put_layer_keys(s, p);
    else if (s->arch->alone && s->arch->single) tn_gguf_put_u32(s->w, key, 0);
    else if (s->arch->single) tn_gguf_put_arr_i32(s->w, key, ff, (size_t)p->n_layers);
    else
        tn_gguf_put_u32(s->w, key,
                        (uint32_t)(p->n_ff_dense             ? p->n_ff_dense
                                   : s->arch->shared_ungated ? p->n_ff_exp
                                                             : p->n_ff));
}

static void put_expert_keys(synth *s, const shape *p) {
    char key[96];
#define KEY(tail) (snprintf(key, sizeof key, "%s.%s", p->arch, tail), key)
    tn_gguf_put_u32(s->w, KEY("expert_count"), (uint32_t)p->n_experts);
    tn_gguf_put_u32(s->w, KEY("expert_used_count"), (uint32_t)p->n_used);
    tn_gguf_put_u32(s->w, KEY("expert_feed_forward_length"), (uint32_t)s->h.n_ff_exp);
    if (s->arch->shared_expert)
        tn_gguf_put_u32(s->w, KEY("expert_shared_feed_forward_length"), (uint32_t)p->n_ff);
    if (p->groups) {
        tn_gguf_put_u32(s->w, KEY("expert_group_count"), (uint32_t)p->groups);
        tn_gguf_put_u32(s->w, KEY("expert_group_used_count"), (uint32_t)p->groups_used);
    }
    if (s->arch->dense_first) tn_gguf_put_u32(s->w, KEY("leading_dense_block_count"), (uint32_t)p->n_dense);
    if (s->arch->experts_sigmoid || p->sigmoid) tn_gguf_put_u32(s->w, KEY("expert_gating_func"), 2);
    if (p->latent && !p->n_ff_dense) tn_gguf_put_u32(s->w, KEY("expert_shared_count"), 1);
    if (s->arch->single || (p->latent && !p->n_ff_dense))
        tn_gguf_put_bool(s->w, KEY("expert_weights_norm"), true);
    if (p->n_ff_dense) put_dense_keys(s, p);
#undef KEY
}

/* Kimi's delta attention; Ling 3's decays have a floor, and in its last layers activations are clamped. */
static void put_kda_keys(synth *s, const shape *p) {
    char key[96];
    float most[2][TN_MAX_LAYERS] = {0};
#define KEY(tail) (snprintf(key, sizeof key, "%s.%s", p->arch, tail), key)
    tn_gguf_put_u32(s->w, KEY("ssm.conv_kernel"), (uint32_t)p->conv_len);
    tn_gguf_put_u32(s->w, KEY("kda.head_dim"), (uint32_t)p->delta_d);
    if (!s->arch->kda_bounded) return;
    tn_gguf_put_f32(s->w, KEY("kda.gate_lower_bound"), FLOOR);
    for (int32_t i = 2; i < p->n_layers; i++) most[0][i] = 0.5f, most[1][i] = i > 2 ? 0.75f : 0;
    tn_gguf_put_arr_f32(s->w, KEY("swiglu_clamp_exp"), most[0], (size_t)p->n_layers);
    tn_gguf_put_arr_f32(s->w, KEY("swiglu_clamp_shexp"), most[1], (size_t)p->n_layers);
#undef KEY
}

static void put_keys(synth *s, const shape *p) {
    char key[96];
#define KEY(tail) (snprintf(key, sizeof key, "%s.%s", p->arch, tail), key)
    tn_gguf_put_str(s->w, "general.architecture", p->arch);
    tn_gguf_put_str(s->w, "general.name", p->name);
    tn_gguf_put_u32(s->w, KEY("block_count"), (uint32_t)(p->n_layers + p->next));
    if (p->next) tn_gguf_put_u32(s->w, KEY("nextn_predict_layers"), 1);
    tn_gguf_put_u32(s->w, KEY("context_length"), (uint32_t)p->ctx);
    tn_gguf_put_u32(s->w, KEY("embedding_length"), (uint32_t)p->n_embd);
    put_ff_keys(s, p);
    tn_gguf_put_u32(s->w, KEY("attention.head_count"), s->arch->alone ? 0 : (uint32_t)p->n_heads);
    int32_t kv_heads[TN_MAX_LAYERS];
    for (int i = 0; i < p->n_layers; i++) kv_heads[i] = tn_layer_attends(&s->h, i) ? p->n_kv_heads : 0;
    if (s->arch->conv) tn_gguf_put_u32(s->w, KEY("shortconv.l_cache"), (uint32_t)p->conv_len);
    if (s->arch->wkv) {
        tn_gguf_put_f32(s->w, KEY("attention.layer_norm_epsilon"), p->eps);
        put_wkv_keys(s, p);
        return;
    }
    if (s->arch->alone) {
        tn_gguf_put_f32(s->w, KEY("attention.layer_norm_rms_epsilon"), p->eps);
        put_delta_keys(s, p);
        return;
    }
    if (s->arch->conv || s->arch->kda || (s->arch->mamba && !s->arch->mamba_beside)) {
        tn_gguf_put_arr_i32(s->w, KEY("attention.head_count_kv"), kv_heads, (size_t)p->n_layers);
    } else if (!s->arch->window_heads) {
        tn_gguf_put_u32(s->w, KEY("attention.head_count_kv"), /* joined ones stand for those of every head */
                        (uint32_t)(p->joint ? p->n_heads : p->n_kv_heads));
    }
    put_head_keys(s, p);
    tn_gguf_put_u32(s->w, KEY("rope.dimension_count"), (uint32_t)(p->n_rot ? p->n_rot : p->d_head));
    tn_gguf_put_f32(s->w, KEY("rope.freq_base"), p->rope_base);
    tn_gguf_put_f32(s->w,
                    KEY(s->arch->norm == TN_NORM_LAYER && s->arch->experts_mixer == 0
                            ? "attention.layer_norm_epsilon"
                            : "attention.layer_norm_rms_epsilon"),
                    p->eps);
    if (!strcmp(p->arch, "gemma2")) {
        tn_gguf_put_f32(s->w, KEY("attn_logit_softcapping"), 50);
        tn_gguf_put_f32(s->w, KEY("final_logit_softcapping"), 30);
    }
    /* Phi-3 mini: 2047 of 4096 */
    uint32_t window = p->window                    ? (uint32_t)p->window
                      : !strcmp(p->arch, "gemma2") ? 4096
                      : s->arch->gguf_fused        ? (uint32_t)p->ctx / 2 - 1
                                                   : 0;
    if (p->longrope) window = (uint32_t)p->ctx;
    if (window) tn_gguf_put_u32(s->w, KEY("attention.sliding_window"), window);
    if (p->linear > 0 || p->yarn > 0) {
        tn_gguf_put_str(s->w, KEY("rope.scaling.type"), p->yarn > 0 ? "yarn" : "linear");
        tn_gguf_put_f32(s->w, KEY("rope.scaling.factor"), p->yarn > 0 ? p->yarn : p->linear);
    }
    if (p->orig_ctx)
        tn_gguf_put_u32(s->w, KEY("rope.scaling.original_context_length"), (uint32_t)p->orig_ctx);
    if (p->longrope) tn_gguf_put_f32(s->w, KEY("rope.scaling.attn_factor"), 1.19f);
    if (s->arch->experts) put_expert_keys(s, p);
    put_said(s, p);
    if (s->arch->kda) put_kda_keys(s, p);
    else if (s->arch->delta) put_delta_keys(s, p);
    if (s->arch->chunked && !p->unsaid) {
        tn_gguf_put_u32(s->w, KEY("attention.temperature_length"), 64);
    } else if (s->arch->temperature) {
        tn_gguf_put_f32(s->w, KEY("attention.temperature_scale"), 0.1f);
        if (!s->arch->latent) tn_gguf_put_f32(s->w, KEY("rope.scaling.yarn_log_multiplier"), 1);
    }
    if (s->arch->scales == TN_SCALES_COHERE) {
        tn_gguf_put_f32(s->w, KEY("logit_scale"), 0.5f);
    } else if (s->arch->scales != TN_SCALES_NONE && !s->arch->latent) { /* MiniCPM3's files do not say them */
        tn_gguf_put_f32(s->w, KEY("embedding_scale"), 3);
        tn_gguf_put_f32(s->w, KEY("residual_scale"), 0.7f);
        tn_gguf_put_f32(s->w, KEY("logit_scale"), s->arch->scales == TN_SCALES_GRANITE ? 0.25f : 2);
    }
    if (s->arch->scales == TN_SCALES_GRANITE) tn_gguf_put_f32(s->w, KEY("attention.scale"), 0.15f);
    if (s->arch->mamba && !s->arch->mamba_beside && !s->arch->single)
        tn_gguf_put_bool(s->w, KEY("rope.scaling.finetuned"), false);
#undef KEY
}

static tern_status write_all(synth *s, const shape *p) {
    put_keys(s, p);
    TN_TRY(tn_synth_put_tokenizer(s->ctx, s->w, p->n_vocab, p->sees, s->err));
    float factors[2][TN_MAX_ROT / 2];
    uint64_t n_factors = (uint64_t)(p->n_rot ? p->n_rot : p->d_head) / 2;
    int n_tables = p->longrope ? 2 : p->llama3_factor > 0 || p->window_d;
    static const char *const names[2][2] = {{"rope_freqs.weight", ""},
                                            {"rope_factors_long.weight", "rope_factors_short.weight"}};
    for (int i = 0; i < n_tables; i++) {
        rope_factors(p, i == 0, factors[i]);
        tn_gguf_add_tensor(s->w, names[p->longrope][i], TN_F32, 1, &n_factors);
    }
    for (int pass = 0; pass < 2; pass++) { /* declare every tensor, then produce them in the same order */
        if (pass) TN_TRY(tn_gguf_begin_data(s->w, s->err));
        for (int i = 0; pass && i < n_tables; i++)
            TN_TRY(tn_gguf_write(s->w, factors[i], n_factors * sizeof *factors[i], s->err));
        for (int layer = -1; layer < p->n_layers + p->next; layer++) {
            for (int r = 0; r < TN_W_N_ROLES; r++) {
                if (tn_role_of_model((tn_role)r) != (layer < 0)) continue;
                if (pass) TN_TRY(produce(s, layer, (tn_role)r));
                else declare(s, layer, (tn_role)r);
            }
            if (pass && !tn_progress(s->ctx, "synth", (layer + 2.0) / (p->n_layers + p->next + 1)))
                return tn_fail(s->err, TERN_E_CANCELLED, "writing was cancelled");
        }
    }
    return tn_gguf_finish(&s->w, s->err);
}

tn_dtype tn_synth_type(const char *name) {
    static const struct {
        const char *name;
        tn_dtype dtype;
    } types[] = {
        {"f32", TN_F32},         {"f16", TN_F16},         {"q8_0", TN_Q8_0},       {"q4_0", TN_Q4_0},
        {"iq1_s", TN_IQ1_S},     {"iq1_m", TN_IQ1_M},     {"iq2_xxs", TN_IQ2_XXS}, {"iq2_xs", TN_IQ2_XS},
        {"iq2_s", TN_IQ2_S},     {"iq3_xxs", TN_IQ3_XXS}, {"iq3_s", TN_IQ3_S},     {"tq1_0", TN_TQ1_0},
        {"tq2_0", TN_TQ2_0},     {"q1_0", TN_Q1_0},       {"q2_0", TN_Q2_0},       {"nvfp4", TN_NVFP4},
        {"mxfp4", TN_MXFP4},     {"q6_0", TN_Q6_0},       {"iq2_k", TN_IQ2_K},     {"iq3_k", TN_IQ3_K},
        {"iq4_k", TN_IQ4_K},     {"iq5_k", TN_IQ5_K},     {"iq6_k", TN_IQ6_K},     {"iq4_ks", TN_IQ4_KS},
        {"iq4_kss", TN_IQ4_KSS}, {"iq5_ks", TN_IQ5_KS},   {"iq2_ks", TN_IQ2_KS},   {"iq3_ks", TN_IQ3_KS},
        {"iq2_kl", TN_IQ2_KL},   {"iq1_kt", TN_IQ1_KT},   {"iq2_kt", TN_IQ2_KT},   {"iq3_kt", TN_IQ3_KT},
        {"iq4_kt", TN_IQ4_KT}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (!strcmp(types[i].name, name)) return types[i].dtype;
    }
    return TN_N_DTYPES;
}

/* Latent attention; RWKV-7. */
static void set_forms(synth *s, const shape *p) {
    tn_hparams *h = &s->h;
    h->n_rot = p->n_rot;
    h->latent.rank = p->latent;
    h->latent.q_rank = p->q_rank;
    h->latent.d_nope = p->d_nope;
    h->latent.d_value = p->d_value;
    s->joint = p->joint;
    if (s->arch->kda) tn_arch_kda(h, p->delta_heads, p->delta_d, s->arch->kda_bounded ? (double)FLOOR : 0);
    if (!s->arch->wkv) return;
    tn_arch_wkv(h, p->delta_heads, p->delta_d);
    h->low.decay = p->low[0];
    h->low.rate = p->low[1];
    h->low.value = p->low[2];
    h->low.gate = p->low[3];
}

tern_status tn_synth(tn_ctx *ctx, tn_pool *pool, const char *name, const char *path, uint64_t seed,
                     tn_dtype dtype, tern_error *err) {
    const shape *p = tn_synth_shape_of(name);
    if (tn_synth_is_tower(name)) return tn_synth_tower(ctx, name, path, seed, dtype, err);
    TN_FAIL_IF(!p, err, TERN_E_INVALID, "model '%s' is unknown; tern synth --list names those there are",
               name);
    TN_FAIL_IF(dtype != TN_F32 && dtype != TN_F16 && dtype != TN_Q8_0 && dtype != TN_Q4_0 &&
                   !random_blocks(dtype),
               err, TERN_E_INVALID, "weights cannot be written as %s", tn_dtype_name(dtype));
    synth s = {.ctx = ctx,
               .pool = pool,
               .arch = tn_arch_variant(tn_arch_by_gguf(p->arch, strlen(p->arch)), p->n_experts > 0),
               .dtype = dtype,
               .spread = p->spread,
               .err = err};
    tn_rng r = {seed};
    s.seed = tn_rng_u64(&r);
    tn_arch_begin(s.arch, &s.h);
    s.h.n_layers = p->n_layers;
    s.h.n_next = p->next;
    s.h.n_embd = p->n_embd;
    s.h.n_heads = p->n_heads;
    s.h.n_kv_heads = p->n_kv_heads;
    s.h.d_head = p->d_head;
    s.h.n_ff = p->n_ff;
    s.h.n_vocab = p->n_vocab;
    s.h.ctx_train = p->ctx;
    s.h.tied = p->tied;
    s.h.conv_len = p->conv_len;
    for (int i = 0; i < p->n_layers; i++) {
        if (s.arch->conv && i % 3 != 2) s.h.layer_kind[i] = TN_LAYER_CONVOLVES;
        if (s.arch->delta && ((i + 1) % (p->attends ? p->attends : 4) || s.arch->wkv))
            s.h.layer_kind[i] = TN_LAYER_DELTA;
        if (s.arch->mamba_beside) s.h.layer_kind[i] = TN_LAYER_BOTH;
        if (p->blocks)
            s.h.layer_kind[i] = p->blocks[i] == 'M'   ? TN_LAYER_DELTA
                                : p->blocks[i] == '*' ? TN_LAYER_ATTENDS
                                                      : TN_LAYER_FEEDS;
    }
    s.h.delta = (tn_delta_net){.n_heads = p->delta_heads,
                               .n_key_heads = p->delta_keys,
                               .d_key = p->delta_d,
                               .d_value = p->delta_d,
                               .tiled = s.arch->delta_tiled,
                               .mamba = s.arch->mamba,
                               .no_norm = p->no_norm};
    if (p->period) {
        s.h.window = p->window;
        s.h.window_pattern = p->period;
        s.h.window_d_head = p->window_d;
        s.h.window_kv_heads = p->window_kv;
        s.h.n_kv_shared = p->n_shared;
        s.h.n_ff_shared = p->n_ff_shared;
        s.h.n_ple = p->n_ple;
        s.h.v_is_k = p->v_is_k;
        s.h.layer_scale = !s.arch->streams;
        s.h.n_streams = s.arch->streams ? TN_STREAMS : 0;
        s.h.laurel_rank = p->rank;
    }
    set_forms(&s, p);
    s.h.n_ff_exp = p->n_ff_exp ? p->n_ff_exp : p->n_ff;
    s.h.n_dense = p->n_dense;
    s.h.n_ff_dense = p->n_ff_dense;
    s.h.experts_every = p->every;
    s.h.parallel_block = s.arch->parallel_block || p->parallel;
    s.h.qk_norm = s.arch->qk_norm || p->qk_norm;
    s.h.experts_bias =
        (s.arch->experts_sigmoid && !s.arch->experts_before) || s.arch->experts_biased || p->sigmoid;
    s.h.n_experts = p->n_experts;
    s.h.n_experts_used = p->n_used;
    s.buf = tn_alloc(ctx, TN_MEM_OTHER, PART, 4);
    TN_FAIL_IF(!s.buf, err, TERN_E_MEMORY, "no memory to write a model");
    tern_status st = tn_gguf_create(ctx, path, &s.w, err);
    if (st == TERN_OK) st = write_all(&s, p);
    tn_gguf_abort(&s.w);
    tn_free(ctx, s.buf);
    return st;
}
