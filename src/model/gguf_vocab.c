#include "model/gguf_vocab.h"

#include <string.h>

enum { AT_ONCE = 512 /* values of an array */ };

typedef struct strings {
    const char **s;
    size_t *n;
} strings;

static tern_status read_strings(tn_ctx *ctx, const tn_gguf *g, const char *key, strings *out,
                                tern_error *err) {
    int64_t n = tn_gguf_arr_n(g, key);
    out->s = tn_alloc(ctx, TN_MEM_TEXT, (size_t)n, sizeof *out->s);
    out->n = tn_alloc(ctx, TN_MEM_TEXT, (size_t)n, sizeof *out->n);
    TN_FAIL_IF(!out->s || !out->n, err, TERN_E_MEMORY, "%s: no memory for the tokenizer", tn_gguf_path(g));
    TN_FAIL_IF(!tn_gguf_arr_strs(g, key, 0, n, out->s, out->n), err, TERN_E_FORMAT,
               "%s: '%s' is no array of strings", tn_gguf_path(g), key);
    return TERN_OK;
}

static void id_key(const tn_gguf *g, const char *key, size_t n_vocab, int32_t *id) {
    int64_t v;
    if (tn_gguf_i64(g, key, &v)) *id = v >= 0 && (uint64_t)v < n_vocab ? (int32_t)v : -1;
}

/* *out stays NULL where the file has none, or not one for every token. */
static tern_status read_scores(tn_ctx *ctx, const tn_gguf *g, size_t n_vocab, float **out, tern_error *err) {
    if (tn_gguf_arr_n(g, "tokenizer.ggml.scores") != (int64_t)n_vocab) return TERN_OK;
    *out = tn_alloc(ctx, TN_MEM_TEXT, n_vocab, sizeof **out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the tokenizer");
    double some[AT_ONCE];
    for (size_t i = 0; i < n_vocab; i += AT_ONCE) {
        const size_t n = n_vocab - i < AT_ONCE ? n_vocab - i : AT_ONCE;
        TN_FAIL_IF(!tn_gguf_arr_f64s(g, "tokenizer.ggml.scores", (int64_t)i, (int64_t)n, some), err,
                   TERN_E_FORMAT, "%s: token scores are no numbers", tn_gguf_path(g));
        for (size_t j = 0; j < n; j++) (*out)[i + j] = (float)some[j];
    }
    return TERN_OK;
}

static tern_status read_types(tn_ctx *ctx, const tn_gguf *g, size_t n_vocab, uint8_t **out, tern_error *err) {
    if (tn_gguf_arr_n(g, "tokenizer.ggml.token_type") != (int64_t)n_vocab) return TERN_OK;
    *out = tn_alloc(ctx, TN_MEM_TEXT, n_vocab, 1);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the tokenizer");
    int64_t some[AT_ONCE];
    for (size_t i = 0; i < n_vocab; i += AT_ONCE) {
        const size_t n = n_vocab - i < AT_ONCE ? n_vocab - i : AT_ONCE;
        TN_FAIL_IF(!tn_gguf_arr_i64s(g, "tokenizer.ggml.token_type", (int64_t)i, (int64_t)n, some), err,
                   TERN_E_FORMAT, "%s: 'tokenizer.ggml.token_type' are no whole numbers", tn_gguf_path(g));
        for (size_t j = 0; j < n; j++) {
            const int64_t v = some[j];
            TN_FAIL_IF(v < 0 || v > TN_TOKEN_BYTE + 1, err, TERN_E_FORMAT, "%s: token %zu has type %lld",
                       tn_gguf_path(g), i + j, (long long)v);
            (*out)[i + j] = v ? (uint8_t)(v - 1) : TN_TOKEN_NORMAL;
        }
    }
    return TERN_OK;
}

/* *out stays NULL where the file has none. */
static tern_status read_charsmap(tn_ctx *ctx, const tn_gguf *g, uint8_t **out, size_t *n, tern_error *err) {
    int64_t n_map = tn_gguf_arr_n(g, "tokenizer.ggml.precompiled_charsmap");
    if (n_map <= 0) return TERN_OK;
    *out = tn_alloc(ctx, TN_MEM_TEXT, (size_t)n_map, 1);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the tokenizer");
    for (int64_t i = 0; i < n_map; i += AT_ONCE) {
        int64_t some[AT_ONCE];
        const int64_t n_some = n_map - i < AT_ONCE ? n_map - i : AT_ONCE;
        bool ok = tn_gguf_arr_i64s(g, "tokenizer.ggml.precompiled_charsmap", i, n_some, some);
        for (int64_t j = 0; j < n_some && ok; j++) {
            ok = some[j] >= -128 && some[j] <= 255;
            (*out)[i + j] = (uint8_t)some[j];
        }
        TN_FAIL_IF(!ok, err, TERN_E_FORMAT, "%s: 'tokenizer.ggml.precompiled_charsmap' are no bytes",
                   tn_gguf_path(g));
    }
    *n = (size_t)n_map;
    return TERN_OK;
}

/* Special tokens, and what is done around a text. */
static void read_ids(const tn_gguf *g, bool wordpiece, size_t n_vocab, tn_tokenizer_spec *spec) {
    if (wordpiece)
        spec->bos = 101, spec->eos = 102, spec->unk = 100; /* BERT's, where the file does not say */
    id_key(g, "tokenizer.ggml.cls_token_id", n_vocab, &spec->bos);
    id_key(g, "tokenizer.ggml.bos_token_id", n_vocab, &spec->bos);
    id_key(g, "tokenizer.ggml.eos_token_id", n_vocab, &spec->eos);
    id_key(g, "tokenizer.ggml.eot_token_id", n_vocab, &spec->eot);
    id_key(g, "tokenizer.ggml.unknown_token_id", n_vocab, &spec->unk);
    id_key(g, "tokenizer.ggml.padding_token_id", n_vocab, &spec->pad);
    if (wordpiece) id_key(g, "tokenizer.ggml.seperator_token_id", n_vocab, &spec->eos);
    (void)tn_gguf_bool(g, "tokenizer.ggml.normalizer.lowercase", &spec->lowercase);
    spec->strip_accents = spec->lowercase;
    (void)tn_gguf_bool(g, "tokenizer.ggml.normalizer.strip_accents", &spec->strip_accents);
    (void)tn_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &spec->merge_spaces);
    (void)tn_gguf_bool(g, "tokenizer.ggml.add_bos_token", &spec->add_bos);
    (void)tn_gguf_bool(g, "tokenizer.ggml.add_eos_token", &spec->add_eos);
    if (wordpiece) spec->add_eos = true; /* whatever the files say of ends, texts end with a separator */
    (void)tn_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &spec->add_space_prefix);
}

/* The file's text of that name; NULL: it has none. */
static tern_status read_text(tn_ctx *ctx, const tn_gguf *g, const char *key, char **out, tern_error *err) {
    const char *text;
    size_t n;
    if (!tn_gguf_str(g, key, &text, &n)) return TERN_OK;
    *out = tn_strndup(ctx, TN_MEM_TEXT, text, n);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "%s: no memory for '%s'", tn_gguf_path(g), key);
    return TERN_OK;
}

/* Pre-tokenisations of files that say gpt2, and have SentencePiece's tokens by ranked merges all the same. */
static bool of_pieces(const char *pre) {
    static const char *const all[] = {"gemma4", "granite-embed-multi-311m", "sarvam-moe"};
    for (size_t i = 0; pre && i < sizeof all / sizeof *all; i++)
        if (!strcmp(pre, all[i])) return true;
    return false;
}

tern_status tn_gguf_tokenizer(tn_ctx *ctx, const tn_gguf *g, tn_tokenizer **out, tern_error *err) {
    *out = NULL;
    const char *model;
    size_t n_model;
    if (!tn_gguf_str(g, "tokenizer.ggml.model", &model, &n_model) ||
        tn_gguf_arr_n(g, "tokenizer.ggml.tokens") < 1)
        return TERN_OK;
    bool spm = n_model == 5 && !memcmp(model, "llama", 5), bpe = n_model == 4 && !memcmp(model, "gpt2", 4),
         wordpiece = n_model == 4 && !memcmp(model, "bert", 4),
         unigram = n_model == 2 && !memcmp(model, "t5", 2), rwkv = n_model == 4 && !memcmp(model, "rwkv", 4),
         gemma4 = n_model == 6 && !memcmp(model, "gemma4", 6); /* SentencePiece's tokens by ranked merges */
    TN_FAIL_IF(!spm && !bpe && !gemma4 && !wordpiece && !unigram && !rwkv, err, TERN_E_UNSUPPORTED,
               "%s: tokenizer model '%.*s' is not supported (llama, gpt2, gemma4, bert, t5 and rwkv are)",
               tn_gguf_path(g), (int)(n_model < 40 ? n_model : 40), model);

    char *pre_name = NULL, *tmpl_text = NULL, *tool_text = NULL, *rank_text = NULL;
    strings tokens = {0}, merges = {0};
    float *scores = NULL;
    uint8_t *types = NULL, *charsmap = NULL;
    size_t n_vocab = (size_t)tn_gguf_arr_n(g, "tokenizer.ggml.tokens");
    tern_status st = TERN_OK;
    if ((st = read_text(ctx, g, "tokenizer.ggml.pre", &pre_name, err)) != TERN_OK ||
        (st = read_text(ctx, g, "tokenizer.chat_template", &tmpl_text, err)) != TERN_OK ||
        (st = read_text(ctx, g, "tokenizer.chat_template.tool_use", &tool_text, err)) != TERN_OK ||
        (st = read_text(ctx, g, "tokenizer.chat_template.rerank", &rank_text, err)) != TERN_OK)
        goto out;
    tn_tokenizer_spec spec;
    const bool pieces = bpe && of_pieces(pre_name), ranked = gemma4 || pieces;
    const tn_tok_kind kind = bpe && !pieces ? TN_TOK_BPE_BYTES
                             : wordpiece    ? TN_TOK_WORDPIECE
                             : unigram      ? TN_TOK_UNIGRAM
                             : rwkv         ? TN_TOK_LONGEST
                                            : TN_TOK_BPE_SPM;
    tn_tokenizer_spec_defaults(&spec, kind, ranked ? NULL : pre_name);
    if (pieces) spec.add_bos = spec.add_space_prefix = false; /* unless the file says so */
    spec.chat_template = tmpl_text;
    spec.tool_template = tool_text;
    spec.rerank_template = rank_text;
    spec.n_vocab = n_vocab;
    if ((st = read_strings(ctx, g, "tokenizer.ggml.tokens", &tokens, err)) != TERN_OK) goto out;
    spec.tokens = tokens.s;
    spec.token_bytes = tokens.n;
    if ((st = read_scores(ctx, g, n_vocab, &scores, err)) != TERN_OK) goto out;
    if (spm || unigram) spec.scores = scores;
    if ((st = read_charsmap(ctx, g, &charsmap, &spec.charsmap_bytes, err)) != TERN_OK) goto out;
    spec.charsmap = charsmap;
    if ((st = read_types(ctx, g, n_vocab, &types, err)) != TERN_OK) goto out;
    spec.types = types;
    if (ranked && tn_gguf_arr_n(g, "tokenizer.ggml.merges") < 1) {
        st = tn_fail(err, TERN_E_FORMAT, "%s: 'tokenizer.ggml.merges' is missing", tn_gguf_path(g));
        goto out;
    }
    if ((bpe || gemma4) && tn_gguf_arr_n(g, "tokenizer.ggml.merges") >= 0) {
        if ((st = read_strings(ctx, g, "tokenizer.ggml.merges", &merges, err)) != TERN_OK) goto out;
        spec.merges = merges.s;
        spec.merge_bytes = merges.n;
        spec.n_merges = (size_t)tn_gguf_arr_n(g, "tokenizer.ggml.merges");
    }
    read_ids(g, wordpiece, n_vocab, &spec);
    int32_t eom = -1; /* ends an answer as well: GLM's calls of tools */
    id_key(g, "tokenizer.ggml.eom_token_id", n_vocab, &eom);
    spec.ends = &eom;
    spec.n_ends = eom >= 0;
    if (gemma4) spec.add_bos = true; /* whatever the first files say */
    st = tn_tokenizer_open(ctx, &spec, out, err);
out:
    tn_free(ctx, tokens.s);
    tn_free(ctx, tokens.n);
    tn_free(ctx, merges.s);
    tn_free(ctx, merges.n);
    tn_free(ctx, scores);
    tn_free(ctx, types);
    tn_free(ctx, charsmap);
    tn_free(ctx, pre_name);
    tn_free(ctx, tmpl_text);
    tn_free(ctx, tool_text);
    tn_free(ctx, rank_text);
    return st;
}
