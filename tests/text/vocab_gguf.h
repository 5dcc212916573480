/* tests/text/vocab_gguf.h - a tokenizer description out of a vocabulary GGUF, for tests of the text storey,
 * which lies below the formats. Trusts its file. */
#ifndef TESTS_TEXT_VOCAB_GGUF_H
#define TESTS_TEXT_VOCAB_GGUF_H

#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct vocab_gguf {
    char *file;
    tn_tokenizer_spec spec;
    char pre[32];
} vocab_gguf;

static uint64_t gguf_num(const char **p, int n) {
    uint64_t v = 0;
    memcpy(&v, *p, (size_t)n);
    *p += n;
    return v;
}

static const char *gguf_str(const char **p, size_t *n) {
    *n = gguf_num(p, 8);
    const char *s = *p;
    *p += *n;
    return s;
}

static int gguf_size(uint32_t type) {
    static const int size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return size[type];
}

static char *read_whole(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *b = malloc((size_t)size + 1);
    if (!b || fread(b, 1, (size_t)size, f) != (size_t)size) abort();
    b[size] = 0;
    fclose(f);
    *n = (size_t)size;
    return b;
}

static const char **gguf_strings(const char **p, uint64_t n, size_t **lens) {
    const char **s = malloc(n * sizeof *s);
    *lens = malloc(n * sizeof **lens);
    for (uint64_t i = 0; i < n; i++) s[i] = gguf_str(p, &(*lens)[i]);
    return s;
}

/* false: no such file */
static bool vocab_gguf_read(const char *path, vocab_gguf *v) {
    size_t n_file;
    memset(v, 0, sizeof *v);
    v->file = read_whole(path, &n_file);
    if (!v->file) return false;
    tn_tokenizer_spec *s = &v->spec;
    tn_tokenizer_spec_defaults(s, TN_TOK_BPE_BYTES, NULL);
    const char *p = v->file + 16;
    uint64_t n_keys = gguf_num(&p, 8);
    for (uint64_t k = 0; k < n_keys; k++) {
        size_t nk, n;
        const char *key = gguf_str(&p, &nk);
        uint32_t type = (uint32_t)gguf_num(&p, 4);
#define KEY(name) (nk == strlen("tokenizer." name) && !memcmp(key, "tokenizer." name, nk))
        if (type == 8) {
            const char *str = gguf_str(&p, &n);
            if (KEY("ggml.model") && n == 5)
                tn_tokenizer_spec_defaults(s, TN_TOK_BPE_SPM, NULL); /* "llama", not "gpt2" */
            if (KEY("ggml.pre")) {                                   /* both come before the lists */
                snprintf(v->pre, sizeof v->pre, "%.*s", (int)n, str);
                tn_tokenizer_spec_defaults(s, s->kind, v->pre);
            }
            if (KEY("chat_template")) s->chat_template = strndup(str, n);
        } else if (type == 9) {
            uint32_t et = (uint32_t)gguf_num(&p, 4);
            uint64_t count = gguf_num(&p, 8);
            size_t *lens;
            if (et == 8) {
                const char **list = gguf_strings(&p, count, &lens);
                if (KEY("ggml.tokens")) s->tokens = list, s->token_bytes = lens, s->n_vocab = count;
                else if (KEY("ggml.merges")) s->merges = list, s->merge_bytes = lens, s->n_merges = count;
                else free(list), free(lens);
            } else {
                char *data = malloc(count * (size_t)gguf_size(et));
                memcpy(data, p, count * (size_t)gguf_size(et));
                p += count * (size_t)gguf_size(et);
                if (KEY("ggml.scores")) {
                    s->scores = (float *)data;
                } else if (KEY("ggml.token_type")) {
                    /* GGUF counts the same types from 1 in the order normal, unknown, control, user, unused,
                     * byte */
                    uint8_t *types = malloc(count);
                    for (uint64_t i = 0; i < count; i++) {
                        int32_t t;
                        memcpy(&t, data + 4 * i, 4);
                        types[i] = (uint8_t)(t - 1);
                    }
                    s->types = types;
                    free(data);
                } else {
                    free(data);
                }
            }
        } else {
            uint64_t x = gguf_num(&p, gguf_size(type));
            if (KEY("ggml.bos_token_id")) s->bos = (int32_t)x;
            if (KEY("ggml.eos_token_id")) s->eos = (int32_t)x;
            if (KEY("ggml.unknown_token_id")) s->unk = (int32_t)x;
            if (KEY("ggml.add_bos_token")) s->add_bos = x;
        }
#undef KEY
    }
    return true;
}

static void vocab_gguf_free(vocab_gguf *v) {
    const void *owned[] = {v->spec.tokens, v->spec.token_bytes, v->spec.merges,        v->spec.merge_bytes,
                           v->spec.scores, v->spec.types,       v->spec.chat_template, v->file};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free((void *)(uintptr_t)owned[i]);
}

/* The tokenizer of a Hugging Face folder or of a vocabulary's GGUF. */
static inline tern_status vocab_open_any(tn_ctx *ctx, const char *path, tn_tokenizer **t, tern_error *err) {
    if (!strstr(path, ".gguf")) return tn_tokenizer_open_hf(ctx, path, t, err);
    vocab_gguf v;
    if (!vocab_gguf_read(path, &v)) return TERN_E_IO;
    tern_status st = tn_tokenizer_open(ctx, &v.spec, t, err);
    vocab_gguf_free(&v);
    return st;
}

#endif
