#include "model/folder_identity.h"

#include "text/tokenizer.h"

#include <stdio.h>
#include <sys/stat.h>
#include <xxhash.h>

uint64_t tn_folder_identity(const char *folder) {
    static const char *const names[] = {"",
                                        "config.json",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "modules.json",
                                        "1_Pooling/config.json",
                                        "2_Dense/model.safetensors",
                                        "3_Dense/model.safetensors",
                                        "vocab.json",
                                        "merges.txt",
                                        TN_RWKV_VOCAB,
                                        "model.safetensors",
                                        "model.safetensors.index.json"};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[4096];
        struct stat sb = {0};
        int64_t id[5] = {0};
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, names[i]) < sizeof path &&
            !stat(path, &sb)) {
            id[0] = (int64_t)sb.st_dev, id[1] = (int64_t)sb.st_ino;
            if (*names[i]) /* the folder itself changes when others write beside the model */
                id[2] = (int64_t)sb.st_size, id[3] = sb.st_mtim.tv_sec, id[4] = sb.st_mtim.tv_nsec;
        }
        hash = XXH64(id, sizeof id, hash);
    }
    return hash;
}
