/* model/lora.h - adapters: what was learned on top of a model, as low-rank changes of its linears (LoRA).
 *
 *   y = W x + scale B (A x)
 *
 * W stays what it is, on the device or as panels. The low-rank product is float arithmetic on the CPU
 * beside W's own, for whatever rows ask for it, so changing the adapter of a text moves no weights. Of an
 * embedding the rows of A are looked up as its own are. An adapter is immutable once opened and shared by
 * sessions; a mix is what one session adds up. */
#ifndef TN_MODEL_LORA_H
#define TN_MODEL_LORA_H

#include "base/ctx.h"
#include "kernels/kernels.h"
#include "model/program.h"

struct tn_gguf;
struct tn_safetensors;

enum {
    TN_MAX_LORAS = 64,
    TN_LORA_MIX = 8,
    TN_LORA_RANK = 1024,
    TN_LORA_NAME = 64,
    TN_LORA_ROWS = 16,
    TN_LORA_PREFIX = 4096 /* bytes in front of a text, at most */
};

/* What it changes at a site: the A's of its linears one below the other, and their B's. */
typedef struct tn_lora_site {
    int32_t rank; /* of all linears together; 0: nothing */
    float *a;     /* panels of [rank][k] */
    struct {
        int32_t rank, first; /* of this linear; 0: nothing. Its rows of A begin at `first` */
        float *b;            /* panels of [n][rank], which hold alpha / rank */
    } op[TN_SITE_MAX_OPS];
} tn_lora_site;

/* What it adds to a token's row of the embedding: of an encoder, whose output is no second use of it. */
typedef struct tn_lora_embedding {
    int32_t rank; /* 0: nothing */
    float *a;     /* [n_vocab][rank] */
    float *b;     /* [rank][n_embd], which holds alpha / rank */
    float *type;  /* [n_embd], the same of the type that all texts have; NULL: nothing */
} tn_lora_embedding;

typedef struct tn_lora {
    tn_ctx *ctx;
    char name[TN_LORA_NAME];
    char task[TN_LORA_NAME]; /* that it was learned for; "": its file says none */
    char *prefix;            /* what its texts begin with; NULL: nothing */
    float scale; /* that a session takes which was not asked for another; 0: it does not take it */
    int32_t n_sites, n_linears; /* n_linears: that it changes */
    tn_lora_site *sites;        /* as the program's */
    tn_lora_embedding embd;
    uint64_t fingerprint, n_bytes;
} tn_lora;

/* Whose result is added, and how much of it; in the order of the engine's adapters. */
typedef struct tn_lora_mix {
    int32_t n;
    const tn_lora *at[TN_LORA_MIX];
    float scale[TN_LORA_MIX];
} tn_lora_mix;

/* A package has inputs and outputs of its linears in scales of its own. What adapters are fitted to them
 * by. */
typedef struct tn_lora_basis {
    const void *user;
    /* row [k]: weights for the site's inputs as they are in the file; to be made those for the inputs as
     * they are */
    void (*inputs)(const void *user, int32_t site, float *row);
    /* what an output of the site's linear `op` is multiplied by in this model */
    float (*output)(const void *user, int32_t site, int32_t op, int32_t i);
} tn_lora_basis;

/* Opens a GGUF adapter (general.type "adapter") or a folder of PEFT (adapter_config.json,
 * adapter_model.safetensors) for a model of these hyperparameters. basis: NULL where the model's inputs
 * are the file's. Fails with TERN_E_FORMAT where shapes, pairs or values are wrong, TERN_E_UNSUPPORTED
 * where it changes what cannot be changed, or how. */
tern_status tn_lora_open(tn_ctx *ctx, const char *path, const tn_hparams *h, const tn_program *p,
                         const tn_lora_basis *basis, tn_lora **out, tern_error *err);
/* The same of what was opened: one of gguf and st, with PEFT's configuration as text. path is for
 * messages. */
tern_status tn_lora_read(tn_ctx *ctx, const struct tn_gguf *gguf, const struct tn_safetensors *st,
                         const char *config, const char *path, const tn_hparams *h, const tn_program *p,
                         const tn_lora_basis *basis, tn_lora **out, tern_error *err);

/* One of n adapters that a folder holds one below the other, beside the weights (Jina's third model). */
typedef struct tn_lora_task {
    const char *name, *prefix;
    int32_t i, n;
    int64_t rank;
    double alpha;
} tn_lora_task;
tern_status tn_lora_read_task(tn_ctx *ctx, const struct tn_safetensors *st, const tn_lora_task *task,
                              const char *path, const tn_hparams *h, const tn_program *p, tn_lora **out,
                              tern_error *err);
/* All of them, in the order of the folder's configuration, with a scale of 0: each has a part where its task is asked
 * for. *n is 0 for what is no folder, and for one without adapters. On failure nothing is open. */
tern_status tn_lora_open_tasks(tn_ctx *ctx, const char *path, const tn_hparams *h, const tn_program *p,
                               tn_lora *out[TN_MAX_LORAS], int32_t *n, tern_error *err);
/* Their memory, by the configuration alone; 0: there are none, or it cannot be read. */
uint64_t tn_lora_tasks_bytes(const char *path, const tn_hparams *h);
#ifndef TERN_MINIMAL
void tn_lora_close(tn_lora **l);

/* Does the mix change a linear of the site? mix may be NULL. */
bool tn_lora_at(const tn_lora_mix *mix, int32_t site);
/* Adds to out[op] [n_rows], row stride ldo[op], what the mix gives for x [n_rows][k], row stride ldx.
 * scratch: tn_lora_scratch floats. A row does not depend on the others. */
void tn_lora_rows(const tn_lora_mix *mix, const tn_kernels *kern, const tn_site_ops *ops, int32_t site,
                  const float *x, size_t ldx, int32_t n_rows, float *const *out, const size_t *ldo,
                  float *scratch);
/* Adds what the mix gives for a token to its row of the embedding, x [n]. */
void tn_lora_embed(const tn_lora_mix *mix, const tn_kernels *kern, int32_t id, float *x, size_t n);
/* Floats for adapters of a model with this program; 0: n is 0. */
size_t tn_lora_scratch(tn_lora *const *loras, int32_t n, const tn_program *p);
/* Tells mixes apart; 0: none. */
uint64_t tn_lora_mix_id(const tn_lora_mix *mix);
/* For messages: "adapters NAME:SCALE,..." or "no adapter". Returns buf. */
const char *tn_lora_mix_text(const tn_lora_mix *mix, char *buf, size_t cap);
#else /* a build for packages alone has no adapters, and what asks for them is nothing */
static inline void tn_lora_close(tn_lora **l) { (void)l; }
static inline bool tn_lora_at(const tn_lora_mix *mix, int32_t site) { return (void)mix, (void)site, false; }
static inline void tn_lora_rows(const tn_lora_mix *mix, const tn_kernels *kern, const tn_site_ops *ops,
                                int32_t site, const float *x, size_t ldx, int32_t n_rows, float *const *out,
                                const size_t *ldo, float *scratch) {
    (void)mix, (void)kern, (void)ops, (void)site, (void)x, (void)ldx, (void)n_rows, (void)out, (void)ldo,
        (void)scratch;
}
static inline void tn_lora_embed(const tn_lora_mix *mix, const tn_kernels *kern, int32_t id, float *x,
                                 size_t n) {
    (void)mix, (void)kern, (void)id, (void)x, (void)n;
}
static inline size_t tn_lora_scratch(tn_lora *const *loras, int32_t n, const tn_program *p) {
    return (void)loras, (void)n, (void)p, (size_t)0;
}
static inline uint64_t tn_lora_mix_id(const tn_lora_mix *mix) { return (void)mix, (uint64_t)0; }
static inline const char *tn_lora_mix_text(const tn_lora_mix *mix, char *buf, size_t cap) {
    return (void)mix, (void)buf, (void)cap, "no adapter";
}
#endif

#endif
