/* model/tower_folder.h - what config.json and the processor of a Hugging Face folder say of its encoder of pictures. */
#ifndef TN_MODEL_TOWER_FOLDER_H
#define TN_MODEL_TOWER_FOLDER_H

#include "model/tower_impl.h"

#include <jansson.h>

/* Families that a key is of, a bit each. */
enum {
    IDEFICS3 = 1 << TN_TOWER_IDEFICS3,
    GEMMA3 = 1 << TN_TOWER_GEMMA3,
    WINDOWS = 1 << TN_TOWER_QWEN25VL,
    DEEP = 1 << TN_TOWER_QWEN3VL,
    LFM2 = 1 << TN_TOWER_LFM2,
    INTERNVL = 1 << TN_TOWER_INTERNVL,
    GEMMA4 = 1 << TN_TOWER_GEMMA4,
    MINICPM = 1 << TN_TOWER_MINICPM,
    TILED = IDEFICS3 | GEMMA3,
    QWEN = WINDOWS | DEEP,
    ALL = (1 << TN_N_TOWER_KINDS) - 1
};

typedef struct tn_tower_config {
    tn_tower_shape s;
    int32_t deep[TN_TOWER_DEEP]; /* the layers that are read beside the last, in the folder's order */
    bool limited, standard;      /* Gemma 4: linears have limits; pooled rows a bias and a scale */
} tn_tower_config;

/* Reads what there is. A key that is not known, or whose value is not what is computed here, is refused by its name. */
tern_status tn_tower_config_read(const char *folder, tn_tower_config *out, tern_error *err);
/* The same of what was read; the names stand for the two files in messages. */
tern_status tn_tower_config_of(const json_t *config, const json_t *processor, const char *config_name,
                               const char *processor_name, tn_tower_config *out, tern_error *err);
/* The encoder among the tensors of st, which is taken, also on failure; path stands for the folder in messages. */
tern_status tn_tower_folder_make(tn_ctx *ctx, const char *path, const tn_tower_config *c, tn_safetensors **st,
                                 tn_tower_folder **out, tern_error *err);
/* The same as the bytes of an mmproj file, to be freed with tn_free. */
tern_status tn_tower_folder_write(const tn_tower_folder *f, uint8_t **bytes, uint64_t *n_bytes,
                                  tern_error *err);
/* Writes the keys of an mmproj file that say the same. */
void tn_tower_put_keys(tn_gguf_writer *w, const tn_tower_shape *s);

#endif
