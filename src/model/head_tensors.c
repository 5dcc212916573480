#include "model/head_tensors.h"

#include "base/status.h"

#include <inttypes.h>
#include <string.h>

bool tn_head_tensor_wanted(const tn_model_file *f, const char *name) {
    if (!strncmp(name, "rope_freqs", 10)) return false;
    if (f->arch->dflash) return true;
    if (!f->arch->assistant) return strcmp(name, "d2t") && strcmp(name, "t2d");
    return strncmp(name, "masked_emb", 10) && /* centroids tell which logits other programs compute */
           !(f->h->tied && !strcmp(name, "lm_head.weight"));
}

static tern_status eagle_tensors(const tn_model_file *f, const char *path, tn_hparams *h, tern_error *err) {
    char embd[64], out[64];
    bool (*const name)(const tn_arch *, const tn_hparams *, int, tn_role, char *, size_t) =
        f->gguf ? tn_arch_gguf_name : tn_arch_hf_name;
    (void)name(f->arch, h, -1, TN_W_EMBD, embd, sizeof embd);
    (void)name(f->arch, h, -1, TN_W_OUT, out, sizeof out);
    const tn_tensor *known = tn_file_tensor(f, "d2t");
    h->head.own_embd = tn_file_tensor(f, embd);
    h->head.own_out = tn_file_tensor(f, out);
    h->tied = false;
    if (known && f->gguf) h->head.n_vocab = known->dims[0] <= INT32_MAX ? (int32_t)known->dims[0] : -1;
    TN_FAIL_IF(h->head.n_vocab < 1 || h->head.n_vocab > h->n_vocab ||
                   (!known && h->head.n_vocab != h->n_vocab),
               err, TERN_E_FORMAT, "%s: its output layer knows %d of %d tokens%s", path, h->head.n_vocab,
               h->n_vocab, known ? "" : ", and no tensor d2t says which");
    return TERN_OK;
}

/* Embedding and output layer are the model's. */
static tern_status dflash_tensors(const tn_model_file *f, const char *path, tn_hparams *h, tern_error *err) {
    static const char *const of_others[][2] = {{"markov_w1.weight", "DSpark's Markov head"},
                                               {"markov_head.markov_w1.weight", "DSpark's Markov head"},
                                               {"token_embd.weight", "an embedding of its own"},
                                               {"embed_tokens.weight", "an embedding of its own"},
                                               {"output.weight", "an output layer of its own"},
                                               {"lm_head.weight", "an output layer of its own"},
                                               {"d2t", "tokens of its own"}};
    for (size_t i = 0; i < sizeof of_others / sizeof *of_others; i++)
        TN_FAIL_IF(tn_file_tensor(f, of_others[i][0]), err, TERN_E_UNSUPPORTED,
                   "%s: a DFlash drafter with %s (tensor %s) is not supported", path, of_others[i][1],
                   of_others[i][0]);
    h->tied = false;
    h->head.n_vocab = h->n_vocab;
    return TERN_OK;
}

tern_status tn_head_tensors(const tn_model_file *f, const char *path, tn_hparams *h, tern_error *err) {
    const int64_t most = 1 << 16;
    TN_FAIL_IF(h->head.n_target < 1 || h->head.n_target > most, err, TERN_E_FORMAT,
               "%s: a head for models %d values wide", path, h->head.n_target);
    if (f->arch->dflash) return dflash_tensors(f, path, h, err);
    if (!f->arch->assistant) return eagle_tensors(f, path, h, err);
    h->head.own_embd = h->head.own_out = true;
    h->head.n_vocab = h->n_vocab;
    return TERN_OK;
}

tern_status tn_head_ids(const tn_model_file *f, const char *path, int32_t *ids, tern_error *err) {
    const tn_tensor *t = f->arch->assistant ? NULL : tn_file_tensor(f, "d2t");
    const size_t n = (size_t)f->h->head.n_vocab;
    /* no weight has this type, and of those that have none these are the widest */
    TN_FAIL_IF(t && (t->dtype != TN_N_DTYPES || t->dims[0] != n || t->size_bytes != n * sizeof(int64_t)), err,
               TERN_E_FORMAT, "%s: tensor d2t at offset %" PRIu64 " is no list of %zu numbers of 64 bits",
               path, t ? t->off_bytes : 0, n);
    for (size_t i = 0; i < n; i++) {
        int64_t id = 0;
        if (t) memcpy(&id, t->data + i * sizeof id, sizeof id);
        const bool far = id < -(int64_t)INT32_MAX || id > INT32_MAX;
        if (!far && (!t || f->st)) id += (int64_t)i; /* folders say how much further it is */
        TN_FAIL_IF(far || id < 0 || id >= f->h->n_vocab, err, TERN_E_FORMAT,
                   "%s: tensor d2t: token %zu is %" PRId64 " of %d", path, i, id, f->h->n_vocab);
        ids[i] = (int32_t)id;
    }
    return TERN_OK;
}
