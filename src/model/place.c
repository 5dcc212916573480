#include "model/place.h"

#include <stdio.h>
#include <string.h>

/* What an adapter's file calls the B of a tensor. */
static bool name_of_b(const tn_model_file *f, const char *name, char *out, size_t cap) {
    size_t n = strlen(name), end = strlen(".weight");
    if (n <= end || strcmp(name + n - end, ".weight")) return false; /* biases have none */
    if (f->gguf) return (size_t)snprintf(out, cap, "%s.lora_b", name) < cap;
    if (f->tasks)
        return (size_t)snprintf(out, cap, "%.*s.parametrizations.weight.0.lora_B", (int)(n - end), name) <
               cap;
    return (size_t)snprintf(out, cap, "base_model.model.%.*s.lora_B.weight", (int)(n - end), name) < cap;
}

static const tn_tensor *named(const tn_model_file *f, const char *name) {
    char of_adapter[320];
    if (f->adapter) {
        if (!name_of_b(f, name, of_adapter, sizeof of_adapter)) return NULL;
        name = of_adapter;
    }
    if (!f->gguf && !strncmp(name, "dense.", 6) && strlen(name) > 8)
        return f->dense[name[6] == '1'] ? tn_safetensors_tensor(f->dense[name[6] == '1'], name + 8) : NULL;
    return f->gguf ? tn_gguf_tensor(f->gguf, name) : tn_safetensors_tensor(f->st, name);
}

/* Of a model with something after it, whose names say so; of one that says nothing where others say so; or of one whose
 * weights have a form in training (Jina's third). */
static const tn_tensor *before_or_bare(const tn_model_file *f, const char *name) {
    const tn_tensor *t = NULL;
    char other[256];
    const size_t n = strlen(name), end = strlen(".weight");
    for (int i = 0; !t && i < 2 && f->arch->hf_before[i]; i++) {
        const size_t n_before = strlen(f->arch->hf_before[i]);
        if (!strncmp(name, f->arch->hf_before[i], n_before) && name[n_before] == '.')
            t = named(f, name + n_before + 1);
        snprintf(other, sizeof other, "%s.%s", f->arch->hf_before[i], name);
        if (!t) t = named(f, other);
    }
    if (t || !f->arch->encoder || strstr(name, ".parametrizations.") || n < end ||
        strcmp(name + n - end, ".weight"))
        return t;
    snprintf(other, sizeof other, "%.*s.parametrizations.weight.original", (int)(n - end), name);
    t = named(f, other);
    return t ? t : before_or_bare(f, other);
}

const tn_tensor *tn_file_tensor(const tn_model_file *f, const char *name) {
    const tn_tensor *t = named(f, name);
    char of_text[256];
    if (!t && f->st) t = before_or_bare(f, name);
    if (!t && f->st && f->arch->head && f->arch->hf_layers &&
        !strncmp(name, f->arch->hf_layers, strlen(f->arch->hf_layers))) {
        snprintf(of_text, sizeof of_text, "layers.0.%s", name + strlen(f->arch->hf_layers));
        return named(f, of_text);
    }
    if (t || !f->st) return t;
    /* of a model that sees and reads */
    const bool head = !strncmp(name, "lm_head.", 8);
    if (!head && strncmp(name, "model.", 6)) return NULL;
    for (int i = 0; !t && i < 4; i++) {
        static const char *const before[] = {"model.language_model.", "model.text_model.",
                                             "language_model.model.", "llm.model."},
                                 *const before_head[] = {"language_model.", "llm."};
        if (head && i == 2) break;
        snprintf(of_text, sizeof of_text, "%s%s", head ? before_head[i] : before[i], name + (head ? 0 : 6));
        t = named(f, of_text);
    }
    return t;
}

const tn_tensor *tn_file_stacked(const tn_model_file *f, tn_role role, const char **name, char *buf,
                                 size_t cap) {
    const char *at = strstr(*name, ".experts."), *part = role == TN_W_GATE_EXPS ? "gate"
                                                         : role == TN_W_UP_EXPS ? "up"
                                                                                : "down";
    if (!f->st || !at || role < TN_W_GATE_EXPS || role > TN_W_DOWN_EXPS) return NULL;
    snprintf(buf, cap, "%.*s.switch_mlp.%s_proj.weight", (int)(at - *name), *name, part);
    const tn_tensor *t = tn_file_tensor(f, buf);
    if (t) *name = buf;
    return t;
}

/* The fused tensor a role may be part of (NULL: none), the rows it must have and the one where the role
 * begins. */
static const tn_tensor *fused(const tn_model_file *f, int layer, tn_role role, int64_t *row0,
                              uint64_t *n_rows) {
    const tn_hparams *h = f->h;
    int64_t q = (int64_t)h->n_heads * h->d_head, kv = (int64_t)h->n_kv_heads * h->d_head;
    const char *hf = NULL, *gguf = NULL;
    *row0 = 0;
    char joined[64];
    switch (role) {
    case TN_W_Q:
    case TN_W_K:
    case TN_W_V: hf = "self_attn.qkv_proj.weight", gguf = "attn_qkv.weight"; break;
    case TN_W_Q_B:
    case TN_W_K_B:
    case TN_W_V_B: hf = "self_attn.qkv_proj.bias", gguf = "attn_qkv.bias"; break;
    case TN_W_GATE:
    case TN_W_UP: hf = "mlp.gate_up_proj.weight", gguf = "ffn_up.weight"; break;
    default: return NULL;
    }
    const bool gate_up = role == TN_W_GATE || role == TN_W_UP;
    const char *own = gate_up ? f->arch->hf_gate_up : f->arch->hf_qkv;
    if (own && strstr(hf, ".bias"))
        snprintf(joined, sizeof joined, "%.*s.bias", (int)(strlen(own) - strlen(".weight")), own),
            hf = joined;
    else if (own) hf = own;
    if (role == TN_W_K || role == TN_W_K_B) *row0 = q;
    if (role == TN_W_V || role == TN_W_V_B) *row0 = q + kv;
    if (role == (h->attn_norm_twice ? TN_W_GATE : TN_W_UP))
        *row0 = h->n_ff; /* Jina's of code: up, then gate */
    char name[160];
    if (f->gguf) snprintf(name, sizeof name, "blk.%d.%s", layer, gguf);
    else snprintf(name, sizeof name, "%s%d.%s", tn_arch_hf_layers(f->arch), layer, hf);
    *n_rows = (uint64_t)(gate_up ? 2 * (int64_t)h->n_ff : q + 2 * kv);
    return tn_file_tensor(f, name);
}

/* Gate, values, keys, queries and steps of Mamba 2 are one tensor, in this order; its convolution has the channels
 * of values, keys, queries, which are the other way round here. */
static bool part_of_mamba(const tn_delta_net *n, tn_role role, tn_place *p, uint64_t *n_rows) {
    int64_t keys = (int64_t)n->n_key_heads * n->d_key, values = (int64_t)n->n_heads * n->d_value;
    switch (role) {
    case TN_W_DELTA_GATE: p->row0 = 0; break;
    case TN_W_DELTA_V: p->row0 = values; break;
    case TN_W_DELTA_K: p->row0 = 2 * values; break;
    case TN_W_DELTA_Q: p->row0 = 2 * values + keys; break;
    case TN_W_DELTA_DECAY: p->row0 = 2 * values + 2 * keys; break;
    case TN_W_DELTA_CONV:
    case TN_W_MAMBA_CONV_B:
        p->parts[0] = keys;
        p->parts[1] = keys;
        p->parts[2] = values;
        return false; /* a tensor of its own */
    default: return false;
    }
    *n_rows = (uint64_t)(2 * values + 2 * keys + n->n_heads);
    return true;
}

/* Folders for MLX hold either by itself, as queries and values are multiplied with it: name becomes its own. */
static bool apart_for_mlx(const tn_model_file *f, tn_role role, char *name, size_t cap) {
    char own[160];
    const char *at = strstr(name, "kv_b_proj.weight");
    if (f->gguf || !at) return false;
    snprintf(own, sizeof own, "%.*s%s.weight", (int)(at - name), name,
             role == TN_W_K_UP ? "embed_q" : "unembed_out");
    if (!tn_file_tensor(f, own)) return false;
    snprintf(name, cap, "%s", own);
    return true;
}

/* Of latent attention, K and V may be one tensor, head by head: what makes a key of a latent, whose columns queries are
 * multiplied with, then what makes a value. */
static bool part_of_latent(const tn_model_file *f, int layer, tn_role role, char *name, size_t cap,
                           tn_place *p, uint64_t *n_rows) {
    const int32_t nope = f->h->latent.d_nope, value = f->h->latent.d_value, rank = f->h->latent.rank;
    if (f->gguf ? f->arch->gguf_permuted : f->arch->hf_permuted) {
        if (role == TN_W_LATENT_Q)
            p->permuted_heads = f->h->n_heads, p->permuted_d = nope + f->h->n_rot, p->permuted_at = nope;
        if (role == TN_W_KV_A)
            p->permuted_heads = 1, p->permuted_d = rank + f->h->n_rot, p->permuted_at = rank;
    }
    if (!tn_role_by_head(role) || (f->gguf && tn_file_tensor(f, name)) || apart_for_mlx(f, role, name, cap))
        return false;
    if (f->gguf) snprintf(name, cap, "blk.%d.attn_kv_b.weight", layer);
    *n_rows = (uint64_t)f->h->n_heads * (uint64_t)(nope + value);
    p->crossed = role == TN_W_K_UP;
    p->group_stride = nope + value;
    p->group_rows = p->crossed ? nope : value;
    p->row0 = p->crossed ? 0 : nope;
    return true;
}

/* Queries, keys and values, one after another. */
static bool part_in_order(const tn_hparams *h, tn_role role, tn_place *p, uint64_t *n_rows) {
    int64_t d = h->d_head, queries = h->n_heads * d, keys = h->n_kv_heads * d;
    p->row0 = role == TN_W_Q ? 0 : role == TN_W_K ? queries : queries + keys;
    *n_rows = (uint64_t)(queries + 2 * keys);
    return true;
}

/* RWKV-7's mixtures of a row and the one before are one tensor of GGUF; all else, and what delta attention has, are tensors
 * of their own. */
static bool part_of_wkv(const tn_model_file *f, tn_role role, tn_place *p, uint64_t *n_rows) {
    if (!f->gguf || role < TN_W_LERP_R || role > TN_W_LERP_G) return false; /* a tensor of its own */
    p->row0 = (int64_t)(role - TN_W_LERP_R) * f->h->n_embd;
    *n_rows *= f->h->low.gate ? 6 : 5;
    return true;
}

/* Scores of a model that writes: rows of its output layer, a yes and a no, in either order. */
static bool part_of_output(const tn_model_file *f, char *name, size_t cap, tn_place *p, uint64_t *n_rows) {
    (void)tn_arch_hf_name(f->arch, f->h, -1, f->h->tied ? TN_W_EMBD : TN_W_OUT, name, cap);
    p->row0 = f->score_rows[0];
    p->group_rows = 1;
    p->group_stride = f->score_rows[1] - f->score_rows[0];
    *n_rows = (uint64_t)f->h->n_vocab;
    return true;
}

/* The projections of a delta net, and of attention with a gate, are parts of tensors. *n_rows: of the
 * whole one. Returns false where the role is a tensor of its own. */
static bool part_of(const tn_model_file *f, int layer, tn_role role, char *name, size_t cap, tn_place *p,
                    uint64_t *n_rows) {
    const tn_delta_net *n = &f->h->delta;
    int64_t keys = (int64_t)n->n_key_heads * n->d_key, values = (int64_t)n->n_heads * n->d_value,
            each = n->n_key_heads ? n->n_heads / n->n_key_heads : 0, of_head = each * n->d_value;
    char where[64], all[128], gates[128];
    if (!f->gguf && strstr(name, "attention.wqkv.")) { /* by KV head: its queries, its key, its value */
        int64_t d = f->h->d_head, queries = f->h->n_heads / f->h->n_kv_heads * d;
        p->group_rows = role == TN_W_Q ? queries : d;
        p->group_stride = queries + 2 * d;
        p->row0 = role == TN_W_Q ? 0 : role == TN_W_K ? queries : queries + d;
        *n_rows = (uint64_t)(f->h->n_kv_heads * p->group_stride);
        return true;
    }
    if (f->h->attn_gate && !tn_latent(f->h) &&
        (role == TN_W_Q || role == TN_W_ATT_GATE)) { /* head by head: queries, then their gate */
        p->group_rows = f->h->d_head;
        p->group_stride = 2 * p->group_rows;
        p->row0 = role == TN_W_Q ? 0 : f->h->d_head;
        *n_rows = (uint64_t)(2 * f->h->n_heads * f->h->d_head);
        return true;
    }
    if (!f->gguf && f->arch->fused_in_order && (role == TN_W_Q || role == TN_W_K || role == TN_W_V))
        return part_in_order(f->h, role, p, n_rows);
    if (tn_role_of_latent(role)) return part_of_latent(f, layer, role, name, cap, p, n_rows);
    if (role == TN_W_POSITIONS) {
        p->row0 = f->h->positions_from;
        *n_rows += (uint64_t)f->h->positions_from;
        return true;
    }
    if (role == TN_W_PLE_IN) { /* layer by layer in one tensor */
        p->row0 = (int64_t)layer * f->h->n_ple;
        *n_rows = (uint64_t)f->h->n_layers * (uint64_t)f->h->n_ple;
        return true;
    }
    if (f->gguf && role >= TN_W_ALTUP_IN_1 && role <= TN_W_ALTUP_OUT_3) { /* stream by stream in one tensor */
        p->row0 = (int64_t)((role - TN_W_ALTUP_IN_1) % (TN_STREAMS - 1)) * f->h->n_embd;
        *n_rows *= TN_STREAMS - 1;
        return true;
    }
    if (role == TN_W_EMBD && f->h->n_vocab_rest) {
        *n_rows += (uint64_t)f->h->n_vocab_rest;
        return true;
    }
    if (f->arch->mamba && !f->arch->mamba_beside && !f->arch->single &&
        (role == TN_W_GATE || role == TN_W_UP) && !f->gguf) {
        p->row0 = role == TN_W_UP ? f->h->n_ff : 0;
        *n_rows = 2 * (uint64_t)f->h->n_ff;
        return true;
    }
    if (f->arch->wkv || (f->arch->kda && tn_role_of_delta(role))) return part_of_wkv(f, role, p, n_rows);
    if (f->arch->mamba) return part_of_mamba(n, role, p, n_rows);
    if (role < TN_W_DELTA_Q || role > TN_W_DELTA_RATE) return false;
    snprintf(where, sizeof where, f->gguf ? "blk.%d." : "model.layers.%d.linear_attn.", layer);
    snprintf(gates, sizeof gates, "%s%s", where, f->gguf ? "ssm_ba.weight" : "in_proj_ba.weight");
    snprintf(all, sizeof all, "%s%s", where, f->gguf ? "ssm_in.weight" : "in_proj_qkvz.weight");
    if (role == TN_W_DELTA_DECAY || role == TN_W_DELTA_RATE) {
        if (!tn_file_tensor(f, gates)) return false;
        snprintf(name, cap, "%s", gates); /* key head by key head: rates, then decays */
        p->group_rows = each;
        p->group_stride = 2 * each;
        p->row0 = role == TN_W_DELTA_RATE ? 0 : each;
        *n_rows = 2 * (uint64_t)n->n_heads;
        return true;
    }
    if (tn_file_tensor(f, all)) { /* key head by key head: q, k, v, gate */
        snprintf(name, cap, "%s", all);
        p->group_rows = role == TN_W_DELTA_Q || role == TN_W_DELTA_K ? n->d_key : of_head;
        p->group_stride = 2 * n->d_key + 2 * of_head;
        p->row0 = role == TN_W_DELTA_Q   ? 0
                  : role == TN_W_DELTA_K ? n->d_key
                  : role == TN_W_DELTA_V ? 2 * n->d_key
                                         : 2 * n->d_key + of_head;
        *n_rows = 2 * (uint64_t)(keys + values);
        return true;
    }
    if (role == TN_W_DELTA_GATE) return false;
    p->row0 = role == TN_W_DELTA_Q ? 0 : role == TN_W_DELTA_K ? keys : 2 * keys;
    *n_rows = (uint64_t)(2 * keys + values);
    return true;
}

void tn_place_find(const tn_model_file *f, int layer, tn_role role, char *name, size_t cap, tn_place *p,
                   uint64_t *n_rows) {
    uint64_t n_own = *n_rows;
    const bool scores = role == TN_W_SCORE && f->score_rows[0] != f->score_rows[1];
    bool part =
        scores ? part_of_output(f, name, cap, p, n_rows) : part_of(f, layer, role, name, cap, p, n_rows);
    p->t = tn_file_tensor(f, name);
    char *low = f->gguf && f->arch->kda_bounded ? strstr(name, "_a.weight") : NULL;
    if (!p->t && low) { /* some converters do not call them as the first of Kimi's two products */
        snprintf(low, cap - (size_t)(low - name), ".weight");
        p->t = tn_file_tensor(f, name);
    }
    /* Phi-3's GGUF calls the fused gate and up "ffn_up": told apart by its rows */
    if ((!p->t && !part) ||
        (f->gguf && p->t && role == TN_W_UP && f->h->gated && p->t->dims[0] == 2 * n_own)) {
        const tn_tensor *whole = fused(f, layer, role, &p->row0, n_rows);
        /* and a model whose gate is missing has an "ffn_up" too, which is not fused */
        if (whole && !(f->gguf && role == TN_W_GATE && whole->dims[0] != *n_rows)) p->t = whole;
    }
    if (p->t && (f->gguf ? f->arch->gguf_permuted : f->arch->hf_permuted)) {
        if (role == TN_W_Q || role == TN_W_Q_B) p->permuted_heads = f->h->n_heads;
        if (role == TN_W_K || role == TN_W_K_B) p->permuted_heads = f->h->n_kv_heads;
        if (!p->permuted_d) p->permuted_d = f->h->d_head;
    }
}

/* Interleaved order puts the pair (i, i + n_rot/2) at rows (2i, 2i + 1). */
int64_t tn_place_row(const tn_model_file *f, const tn_place *p, int64_t row) {
    if (p->parts[0]) { /* the last part comes first */
        int64_t first = p->parts[0], second = p->parts[1], third = p->parts[2];
        return row < first            ? third + second + row
               : row < first + second ? third + row - first
                                      : row - first - second;
    }
    if (p->group_rows) return row / p->group_rows * p->group_stride + row % p->group_rows + p->row0;
    if (!p->permuted_heads) return p->row0 + row;
    int64_t d = p->permuted_d, rot = f->h->n_rot, head = row / d, r = row % d - p->permuted_at;
    if (r < 0 || r >= rot) return p->row0 + row;
    return p->row0 + head * d + p->permuted_at + 2 * (r % (rot / 2)) + r / (rot / 2);
}
