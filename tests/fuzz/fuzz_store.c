/* A database file from anywhere, opened as a store: refused, or everything that tern asks of it ends with
 * a status. */
#include "tiny.h"

#include "documents/rag.h"
#include "store/store.h"

static bool note_sequence(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n) {
    int64_t *sum = user;
    (void)kind;
    for (size_t i = 0; i < n; i++) *sum += ids[i]; /* all of it can be read */
    return true;
}

static bool note_document(void *user, const tn_rag_document *d) {
    *(size_t *)user += strlen(d->path);
    return true;
}

static tern_status embed_same(void *user, const char *text, size_t n, float *out, tern_error *err) {
    (void)text, (void)n, (void)err;
    for (int32_t i = 0; i < *(const int32_t *)user; i++) out[i] = i ? 0.0f : 1.0f;
    return TERN_OK;
}

static void ask_everything(tn_ctx *ctx, tn_store *s) {
    tern_error err;
    int64_t sum = 0, a, b;
    size_t n = 0;
    int32_t *data = NULL;
    if (tn_store_vocab(s, 7, 512, &err) == TERN_OK) {
        (void)tn_store_each(s, 4096, note_sequence, &sum, &err);
        if (tn_store_get_recalled(s, 3, &data, &n, &err) == TERN_OK) {
            for (size_t i = 0; data && i < n; i++) sum += data[i];
            tn_free(ctx, data);
        }
        int64_t id = 0;
        (void)tn_store_put(s, TN_SEQUENCE_CHAT, (const int32_t[]){1, 2, 3}, 3, 1, &id, &err);
    }
    tn_store_info info;
    (void)tn_store_info_get(s, &info, &err);
    (void)tn_rag_list(s, note_document, &n, &err);
    (void)tn_rag_counts(s, &a, &b, &err);
    tn_rag_hit *hits = NULL;
    int32_t n_hits = 0;
    if (tn_rag_search(s, "the old inn", 4, NULL, &hits, &n_hits, &err) == TERN_OK)
        tn_rag_hits_free(ctx, &hits, n_hits);
    tn_vectors_info vectors;
    if (tn_vectors_info_get(s, &vectors, &err) == TERN_OK && vectors.any && vectors.n > 0 && vectors.n < 64) {
        const tn_embedder e = {.model = "m",
                               .fingerprint = vectors.fingerprint,
                               .n = vectors.n,
                               .mean = vectors.mean,
                               .embed = embed_same,
                               .user = &vectors.n};
        if (tn_rag_search(s, "the old inn", 4, &e, &hits, &n_hits, &err) == TERN_OK)
            tn_rag_hits_free(ctx, &hits, n_hits);
        (void)tn_vectors_fill(s, &e, NULL, NULL, NULL, &a, &err);
    }
    (void)tn_rag_remove(s, "/d/a.txt", &a, &err);
    (void)tn_store_forget(s, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char path[300];
    static bool ready;
    if (!ready) {
        tiny_place();
        snprintf(path, sizeof path, "%s/x", tiny_folder);
        ready = true;
    }
    static const char *const others[] = {"-wal", "-shm", "-journal"};
    for (int i = 0; i < 3; i++) {
        char name[320];
        snprintf(name, sizeof name, "%s%s", path, others[i]);
        unlink(name);
    }
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f)) abort();
    tn_ctx ctx;
    tn_store *s;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    if (tn_store_open(&ctx, path, NULL, &s, &err) == TERN_OK) {
        ask_everything(&ctx, s);
        tn_store_close(&s);
    } else if (!err.message[0]) {
        abort();
    }
    return 0;
}
