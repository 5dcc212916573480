/* model/catalogue.h - the model files on this machine, where people and other tools keep them: the folders of
 * $TERN_MODELS, the caches of Hugging Face, Ollama and LM Studio. They are read, never written. */
#ifndef TN_MODEL_CATALOGUE_H
#define TN_MODEL_CATALOGUE_H

#include "tern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tn_catalogue_entry {
    const char *name;  /* "ORG/NAME", "qwen3:0.6b", "folder/file" */
    const char *path;  /* what to open */
    const char *where; /* "TERN_MODELS", "Hugging Face", "Ollama", "LM Studio" */
    uint64_t n_bytes;  /* of the files; of all parts of a split one */
} tn_catalogue_entry;

/* Calls on_entry for every model, sorted by place and name within a folder; it returns false to stop.
 * Folders that are not there or not readable have no models. */
void tn_catalogue_each(bool (*on_entry)(void *user, const tn_catalogue_entry *e), void *user);

/* The same for the models of one folder, which is `where`. */
void tn_catalogue_folder(const char *folder, bool (*on_entry)(void *user, const tn_catalogue_entry *e),
                         void *user);
/* Bytes of the model at a path, as an entry has them; 0: there is nothing that opens. */
uint64_t tn_catalogue_bytes(const char *path);
/* Whether name is the last part of an entry's, with or without its ending or its tag "latest". */
bool tn_catalogue_last_part(const char *entry, const char *name);
/* Whether the name says that the file belongs to a model that lies beside it: an encoder of pictures (mmproj), a head that
 * drafts (eagle3, dflash, Gemma 4's assistants). */
bool tn_catalogue_is_beside(const char *name);
/* Whether an entry answers by itself: by its name, and by the config.json of a folder, which tells a head. */
bool tn_catalogue_is_model(const tn_catalogue_entry *e);

/* Fails for a folder without config.json: the message says which file or folder in it is a model, if one is. */
tern_status tn_catalogue_refuse(const char *folder, tern_error *err);

/* The path of a model by its name: the whole name, or its last part without the file's ending where one model
 * alone has it. false: none, or several. */
bool tn_catalogue_find(const char *name, char *path, size_t cap);

#endif
