/* store/plugin.c - the store's interface for sessions: the one symbol that libtern-store exports. */
#include "store/store.h"

#include "tern.h"

__attribute__((visibility("default"))) const tn_store_ops tn_store_plugin = {
    .size_bytes = sizeof(tn_store_ops),
    .version = TERN_VERSION_STRING,
    .open = tn_store_open,
    .close = tn_store_close,
    .vocab = tn_store_vocab,
    .put = tn_store_put,
    .quoting = tn_store_quoting,
    .each = tn_store_each,
    .put_recalled = tn_store_put_recalled,
    .get_recalled = tn_store_get_recalled,
};
