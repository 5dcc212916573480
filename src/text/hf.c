/* text/hf.c - tokenizers out of Hugging Face folders: tokenizer.json; else vocab.json + merges.txt; else a
 * tokenizer.model, tiktoken's or SentencePiece's; plus what tokenizer_config.json, generation_config.json and
 * config.json add.
 *
 * Each reader fills a draft of the description; one place completes and opens it. Anything in a file that
 * tern does not support is an error that names it, never a silently different tokenisation. */
#include "text/hf.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/status.h"
#include "text/pretok.h"
#include "text/hf_impl.h"
#include "text/rwkv.h"
#include "text/spm.h"
#include "text/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILE_BYTES = 256 << 20 };

static tern_status add_merge(tn_hf_draft *d, const char *text, size_t n) {
    if (d->n_merges == d->cap_merges) {
        size_t cap = d->cap_merges * 2 + 1024;
        if (!tn_hf_grow(d->ctx, &d->merges, sizeof *d->merges, cap) ||
            !tn_hf_grow(d->ctx, &d->merge_bytes, sizeof *d->merge_bytes, cap))
            return tn_hf_no_memory(d);
        d->cap_merges = cap;
    }
    d->merges[d->n_merges] = text;
    d->merge_bytes[d->n_merges++] = n;
    return TERN_OK;
}

static tern_status add_pattern(tn_hf_draft *d, const char *p) {
    TN_FAIL_IF(d->n_patterns == TN_HF_PATTERNS, d->err, TERN_E_UNSUPPORTED,
               "more than %d pre-tokenisation steps", TN_HF_PATTERNS);
    d->patterns[d->n_patterns++] = p;
    return TERN_OK;
}

static tern_status add_named_patterns(tn_hf_draft *d, const char *name) {
    for (const char *const *p = tn_pretok_named(name)->patterns; *p; p++) TN_TRY(add_pattern(d, *p));
    return TERN_OK;
}

static int32_t find_token(const tn_hf_draft *d, const char *text) {
    size_t n = strlen(text);
    for (size_t i = d->n_vocab; i-- > 0;) /* the search is usually for an added token, at the end */
        if (d->token_bytes[i] == n && !memcmp(d->tokens[i], text, n) && d->types[i] != TN_TOKEN_UNUSED)
            return (int32_t)i;
    return -1;
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static tern_status parse_json(tn_hf_draft *d, const char *name, const char *text, size_t n, json_t **out) {
    json_error_t je;
    *out = tn_json_parse(text, n, JSON_ALLOW_NUL, &je);
    if (*out) return TERN_OK;
    for (char *c = je.text; *c; c++)
        if ((uint8_t)*c < ' ') *c = ' ';
    return tn_fail(d->err, json_error_code(&je) == json_error_out_of_memory ? TERN_E_MEMORY : TERN_E_FORMAT,
                   "%s: line %d: %s", name, je.line, je.text);
}

static tern_status read_normalizer(tn_hf_draft *d, const json_t *n, int depth) {
    if (!json_is_object(n)) return TERN_OK;
    if (tn_hf_is(n, "type", "Sequence")) {
        TN_FAIL_IF(depth > 4, d->err, TERN_E_UNSUPPORTED, "normalizers nest too deep");
        size_t i;
        json_t *e;
        json_array_foreach(json_object_get(n, "normalizers"), i, e) TN_TRY(read_normalizer(d, e, depth + 1));
        return TERN_OK;
    }
    bool pieces = d->spec.kind > TN_TOK_BPE_SPM;
    if (pieces && tn_hf_is(n, "type", "BertNormalizer")) return tn_hf_bert_normalizer(d, n);
    if (pieces && tn_hf_is(n, "type", "Precompiled")) return tn_hf_charsmap(d, n);
    if (pieces && tn_hf_is(n, "type", "Replace") &&
        tn_hf_is(json_object_get(n, "pattern"), "Regex", " {2,}") && tn_hf_is(n, "content", " ")) {
        d->spec.merge_spaces = true;
        return TERN_OK;
    }
    if (tn_hf_is(n, "type", "NFC")) {
        d->spec.nfc = true;
        return TERN_OK;
    }
    if (tn_hf_is(n, "type", "Prepend") && tn_hf_is(n, "prepend", "\xe2\x96\x81")) {
        d->spaces_visible = d->spec.add_space_prefix = true;
        return TERN_OK;
    }
    if (tn_hf_is(n, "type", "Replace") && tn_hf_is(json_object_get(n, "pattern"), "String", " ") &&
        tn_hf_is(n, "content", "\xe2\x96\x81")) {
        d->spaces_visible = true;
        return TERN_OK;
    }
    return tn_fail(d->err, TERN_E_UNSUPPORTED, "normalizer \"%.40s\" is not supported",
                   tn_hf_text(n, "type"));
}

static tern_status read_split(tn_hf_draft *d, const json_t *p) {
    const json_t *pattern = json_object_get(p, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
    bool invert = json_is_true(json_object_get(p, "invert"));
    /* Gemma: the normalizer has already replaced what this would split at */
    if (d->spaces_visible && tn_hf_is(pattern, "String", " ")) return TERN_OK;
    /* "Removed" with an inverted pattern (tiktoken conversions) is the same as "Isolated": these patterns
     * match everything. */
    bool isolated = tn_hf_is(p, "behavior", "Isolated") || (tn_hf_is(p, "behavior", "Removed") && invert);
    TN_FAIL_IF(!isolated, d->err, TERN_E_UNSUPPORTED,
               "pre-tokenizer Split with behavior \"%.40s\" is not supported", tn_hf_text(p, "behavior"));
    if (json_is_string(regex)) {
        TN_FAIL_IF(strlen(json_string_value(regex)) != json_string_length(regex), d->err, TERN_E_FORMAT,
                   "a Split pattern holds a zero byte");
        return add_pattern(d, json_string_value(regex));
    }
    TN_FAIL_IF(!json_is_string(text), d->err, TERN_E_FORMAT, "pre-tokenizer Split without a pattern");
    const char *s = json_string_value(text);
    char *q = tn_hf_make(d, 4 * json_string_length(text)); /* every byte of the text, escaped for a pattern */
    if (!q) return tn_hf_no_memory(d);
    size_t n = 0;
    for (; *s; s++) {
        if (strchr("\\^$.[]|()?*+{}#", *s)) q[n++] = '\\';
        q[n++] = *s;
    }
    return add_pattern(d, q);
}

static tern_status read_pre_tokenizer(tn_hf_draft *d, const json_t *p, int depth) {
    if (!json_is_object(p)) return TERN_OK;
    if (tn_hf_is(p, "type", "Sequence")) {
        TN_FAIL_IF(depth > 4, d->err, TERN_E_UNSUPPORTED, "pre-tokenizers nest too deep");
        size_t i;
        json_t *e;
        json_array_foreach(json_object_get(p, "pretokenizers"), i, e)
            TN_TRY(read_pre_tokenizer(d, e, depth + 1));
        return TERN_OK;
    }
    if (tn_hf_is(p, "type", "ByteLevel")) {
        d->byte_level = true;
        if (json_is_true(json_object_get(p, "add_prefix_space"))) {
            TN_FAIL_IF(d->n_patterns, d->err, TERN_E_UNSUPPORTED,
                       "ByteLevel with add_prefix_space after another pre-tokenizer");
            d->spec.add_space_prefix = d->spec.space_prefix_missing = true;
        }
        const json_t *use = json_object_get(p, "use_regex"); /* absent: on */
        return json_is_false(use) ? TERN_OK : add_named_patterns(d, "gpt-2");
    }
    if (tn_hf_is(p, "type", "Digits"))
        return add_pattern(d, json_is_true(json_object_get(p, "individual_digits")) ? "\\p{N}" : "\\p{N}+");
    if (tn_hf_is(p, "type", "Split")) return read_split(d, p);
    if (tn_hf_is(p, "type", "Punctuation")) {
        TN_FAIL_IF(json_object_get(p, "behavior") && !tn_hf_is(p, "behavior", "Isolated") &&
                       !tn_hf_is(p, "behavior", "Contiguous"),
                   d->err, TERN_E_UNSUPPORTED,
                   "pre-tokenizer Punctuation with behavior \"%.40s\" is not supported",
                   tn_hf_text(p, "behavior"));
        return add_pattern(d, tn_hf_is(p, "behavior", "Contiguous") ? "[\\p{P}\\$\\+<=>\\^~\\|`]+"
                                                                    : "[\\p{P}\\$\\+<=>\\^~\\|`]");
    }
    bool pieces = d->spec.kind > TN_TOK_BPE_SPM;
    if (pieces && tn_hf_is(p, "type", "BertPreTokenizer")) return TERN_OK; /* WordPiece does this anyway */
    if (pieces && tn_hf_is(p, "type", "WhitespaceSplit")) {
        d->spec.merge_spaces = true;
        return TERN_OK;
    }
    if (tn_hf_is(p, "type", "Metaspace")) {
        d->spaces_visible = true;
        const char *scheme = tn_hf_text(p, "prepend_scheme");
        const json_t *prefix =
            json_object_get(p, "add_prefix_space"); /* from before there were schemes; absent: on */
        d->spec.add_space_prefix = *scheme ? strcmp(scheme, "never") != 0 : !json_is_false(prefix);
        d->spec.space_prefix_first = !strcmp(scheme, "first");
        d->spec.space_prefix_missing = true;
        const json_t *split = json_object_get(p, "split"); /* absent: on */
        /* every space starts a piece; spaces are plain inside tern */
        return json_is_false(split) ? TERN_OK : add_pattern(d, " [^ ]*|[^ ]+");
    }
    return tn_fail(d->err, TERN_E_UNSUPPORTED, "pre-tokenizer \"%.40s\" is not supported",
                   tn_hf_text(p, "type"));
}

/* Reads the special tokens that the post-processor puts around one text. */
static tern_status read_post_processor(tn_hf_draft *d, const json_t *p, int depth) {
    if (!json_is_object(p)) return TERN_OK;
    size_t i;
    json_t *e;
    if (tn_hf_is(p, "type", "Sequence")) {
        TN_FAIL_IF(depth > 4, d->err, TERN_E_UNSUPPORTED, "post-processors nest too deep");
        json_array_foreach(json_object_get(p, "processors"), i, e)
            TN_TRY(read_post_processor(d, e, depth + 1));
        return TERN_OK;
    }
    if (tn_hf_is(p, "type", "ByteLevel")) return TERN_OK;
    const bool pieces = d->spec.kind > TN_TOK_BPE_SPM;
    if ((pieces && tn_hf_is(p, "type", "BertProcessing")) || tn_hf_is(p, "type", "RobertaProcessing")) {
        const json_t *cls = json_array_get(json_object_get(p, "cls"), 1),
                     *sep = json_array_get(json_object_get(p, "sep"), 1);
        TN_FAIL_IF(!json_is_integer(cls) || !json_is_integer(sep) || json_integer_value(cls) < 0 ||
                       json_integer_value(sep) < 0 || json_integer_value(cls) >= TN_HF_VOCAB ||
                       json_integer_value(sep) >= TN_HF_VOCAB,
                   d->err, TERN_E_FORMAT, "post-processor \"%s\" without cls and sep", tn_hf_text(p, "type"));
        d->spec.add_bos = d->spec.add_eos = true;
        d->spec.end_twice = d->spec.end_twice || tn_hf_is(p, "type", "RobertaProcessing");
        d->spec.bos = (int32_t)json_integer_value(cls);
        d->spec.eos = (int32_t)json_integer_value(sep);
        return TERN_OK;
    }
    TN_FAIL_IF(!tn_hf_is(p, "type", "TemplateProcessing"), d->err, TERN_E_UNSUPPORTED,
               "post-processor \"%.40s\" is not supported", tn_hf_text(p, "type"));
    bool text_seen = false;
    json_array_foreach(json_object_get(p, "single"), i, e) {
        const json_t *special = json_object_get(e, "SpecialToken");
        if (!special) {
            text_seen = true;
            continue;
        }
        const json_t *ids = json_object_get(
            json_object_get(json_object_get(p, "special_tokens"), tn_hf_text(special, "id")), "ids");
        json_t *first = json_array_get(ids, 0);
        TN_FAIL_IF(json_array_size(ids) != 1 || !json_is_integer(first) || json_integer_value(first) < 0 ||
                       json_integer_value(first) >= TN_HF_VOCAB,
                   d->err, TERN_E_UNSUPPORTED, "the post-processor's token \"%.40s\" is not one id",
                   tn_hf_text(special, "id"));
        int32_t id = (int32_t)json_integer_value(first);
        bool *add = text_seen ? &d->spec.add_eos : &d->spec.add_bos;
        TN_FAIL_IF(*add, d->err, TERN_E_UNSUPPORTED, "the post-processor adds more than one token on a side");
        *add = true;
        *(text_seen ? &d->spec.eos : &d->spec.bos) = id;
    }
    return TERN_OK;
}

static tern_status read_merges(tn_hf_draft *d, const json_t *merges) {
    size_t i;
    json_t *m;
    json_array_foreach(merges, i, m) {
        if (json_is_string(m)) {
            TN_TRY(add_merge(d, json_string_value(m), json_string_length(m)));
            continue;
        }
        const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        TN_FAIL_IF(!json_is_string(a) || !json_is_string(b), d->err, TERN_E_FORMAT,
                   "merge %zu is neither a string nor a pair", i);
        size_t na = json_string_length(a), nb = json_string_length(b);
        char *s = tn_hf_make(d, na + 1 + nb);
        if (!s) return tn_hf_no_memory(d);
        memcpy(s, json_string_value(a), na);
        s[na] = ' ';
        memcpy(s + na + 1, json_string_value(b), nb);
        TN_TRY(add_merge(d, s, na + 1 + nb));
    }
    return TERN_OK;
}

static tern_status read_added_tokens(tn_hf_draft *d, const json_t *added) {
    size_t i;
    json_t *a;
    json_array_foreach(added, i, a) {
        const json_t *text = json_object_get(a, "content"), *id = json_object_get(a, "id");
        TN_FAIL_IF(!json_is_string(text) || !json_is_integer(id), d->err, TERN_E_FORMAT,
                   "added token %zu lacks content or id", i);
        uint8_t type = json_is_true(json_object_get(a, "special")) ? TN_TOKEN_CONTROL : TN_TOKEN_USER;
        if (json_is_true(json_object_get(a, "lstrip"))) type |= TN_TOKEN_LSTRIP;
        if (json_is_true(json_object_get(a, "rstrip"))) type |= TN_TOKEN_RSTRIP;
        TN_TRY(tn_hf_set_token(d, json_integer_value(id), json_string_value(text), json_string_length(text),
                               type));
    }
    return TERN_OK;
}

static bool byte_spelling(const char *s, size_t n) { return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>'; }

static tern_status read_vocab(tn_hf_draft *d, const json_t *vocab, bool byte_fallback) {
    const char *key;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, id) {
        TN_FAIL_IF(!json_is_integer(id), d->err, TERN_E_FORMAT, "token \"%.40s\" has no id", key);
        size_t n = strlen(key);
        uint8_t type = byte_fallback && byte_spelling(key, n) ? TN_TOKEN_BYTE : TN_TOKEN_NORMAL;
        TN_TRY(tn_hf_set_token(d, json_integer_value(id), key, n, type));
    }
    return TERN_OK;
}

static tern_status read_pieces(tn_hf_draft *d, const json_t *root, const json_t *model) {
    bool words = tn_hf_is(model, "type", "WordPiece");
    TN_TRY(words ? tn_hf_wordpieces(d, model) : tn_hf_unigrams(d, model));
    TN_TRY(read_normalizer(d, json_object_get(root, "normalizer"), 0));
    TN_TRY(read_pre_tokenizer(d, json_object_get(root, "pre_tokenizer"), 0));
    d->n_patterns = 0; /* of Metaspace: its pieces stay within words anyway */
    TN_TRY(read_added_tokens(d, json_object_get(root, "added_tokens")));
    if (!words) TN_TRY(tn_hf_score_all(d));
    TN_TRY(read_post_processor(d, json_object_get(root, "post_processor"), 0));
    const char *unk = tn_hf_text(model, "unk_token");
    if (*unk) d->spec.unk = find_token(d, unk);
    if (d->spec.unk >= 0 && (size_t)d->spec.unk < d->n_vocab) d->types[d->spec.unk] = TN_TOKEN_UNKNOWN;
    return TERN_OK;
}

static tern_status read_tokenizer_json(tn_hf_draft *d, const json_t *root) {
    const json_t *model = json_object_get(root, "model");
    TN_FAIL_IF(!json_is_object(root) || !json_is_object(model), d->err, TERN_E_FORMAT,
               "tokenizer.json has no \"model\"");
    const char *type = tn_hf_text(model, "type"); /* absent in early files, all of them BPE */
    if (!strcmp(type, "WordPiece") || !strcmp(type, "Unigram")) return read_pieces(d, root, model);
    d->spec.kind = TN_TOK_BPE_BYTES;
    TN_FAIL_IF(*type && strcmp(type, "BPE"), d->err, TERN_E_UNSUPPORTED,
               "tokenizer model \"%.40s\" is not supported (BPE, WordPiece and Unigram are)", type);
    TN_FAIL_IF(!json_is_object(json_object_get(model, "vocab")) ||
                   !json_is_array(json_object_get(model, "merges")),
               d->err, TERN_E_FORMAT, "tokenizer.json: the model lacks its vocab or merges");
    TN_FAIL_IF(*tn_hf_text(model, "continuing_subword_prefix") || *tn_hf_text(model, "end_of_word_suffix"),
               d->err, TERN_E_UNSUPPORTED, "subword prefixes or suffixes are not supported");
    bool byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    d->spec.ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    TN_TRY(read_normalizer(d, json_object_get(root, "normalizer"), 0));
    TN_TRY(read_pre_tokenizer(d, json_object_get(root, "pre_tokenizer"), 0));
    TN_TRY(read_vocab(d, json_object_get(model, "vocab"), byte_fallback));
    TN_TRY(read_merges(d, json_object_get(model, "merges")));
    TN_TRY(read_added_tokens(d, json_object_get(root, "added_tokens")));
    TN_TRY(read_post_processor(d, json_object_get(root, "post_processor"), 0));
    const char *unk = tn_hf_text(model, "unk_token");
    if (*unk) d->spec.unk = find_token(d, unk);
    TN_FAIL_IF(d->byte_level && d->spaces_visible, d->err, TERN_E_UNSUPPORTED,
               "a byte-level tokenizer that also rewrites spaces");
    TN_FAIL_IF(!d->byte_level && !d->spaces_visible && !byte_fallback, d->err, TERN_E_UNSUPPORTED,
               "neither a byte-level nor a SentencePiece tokenizer");
    d->spec.kind = d->byte_level ? TN_TOK_BPE_BYTES : TN_TOK_BPE_SPM;
    if (d->spec.unk >= 0 && d->spec.kind == TN_TOK_BPE_SPM) d->types[d->spec.unk] = TN_TOKEN_UNKNOWN;
    return TERN_OK;
}

/* ---- the configuration files -------------------------------------------------------------------- */

/* Reads "bos_token": "<s>" or {"content": "<s>", ...}, and leaves *id alone if there is none. */
static void read_named_token(const tn_hf_draft *d, const json_t *config, const char *key, int32_t *id) {
    const json_t *v = json_object_get(config, key);
    const char *s = json_is_object(v) ? tn_hf_text(v, "content") : json_string_value(v);
    int32_t found = s && *s ? find_token(d, s) : -1;
    if (found >= 0) *id = found;
}

static void read_special_flag(const json_t *config, const char *key, bool *flag) {
    const json_t *v = json_object_get(config, key);
    if (json_is_boolean(v)) *flag = json_is_true(v);
}

static void read_tokenizer_config(tn_hf_draft *d, const json_t *c) {
    read_named_token(d, c, "bos_token", &d->spec.bos);
    read_named_token(d, c, "eos_token", &d->spec.eos);
    read_named_token(d, c, "unk_token", &d->spec.unk);
    read_named_token(d, c, "pad_token", &d->spec.pad);
    read_special_flag(c, "add_bos_token", &d->spec.add_bos);
    read_special_flag(c, "add_eos_token", &d->spec.add_eos);
    const json_t *t = json_object_get(c, "chat_template");
    if (json_is_string(t)) d->spec.chat_template = json_string_value(t);
    size_t i;
    json_t *e;
    json_array_foreach(t, i, e) { /* several templates, by name */
        const char *source = json_string_value(json_object_get(e, "template"));
        if (tn_hf_is(e, "name", "tool_use")) d->spec.tool_template = source;
        if (!d->spec.chat_template || tn_hf_is(e, "name", "default")) d->spec.chat_template = source;
    }
}

static void add_end(tn_hf_draft *d, const json_t *id) {
    json_int_t v = json_integer_value(id);
    if (json_is_integer(id) && v >= 0 && v < TN_HF_VOCAB && d->n_ends < TN_HF_ENDS)
        d->ends[d->n_ends++] = (int32_t)v;
}

/* Reads ids from generation_config.json and config.json, where the tokenizer's own files name none. */
static void read_model_config(tn_hf_draft *d, const json_t *c) {
    const json_t *eos = json_object_get(c, "eos_token_id"), *bos = json_object_get(c, "bos_token_id");
    size_t i;
    json_t *e;
    add_end(d, eos);
    json_array_foreach(eos, i, e) add_end(d, e);
    const json_t *one = json_is_array(eos) ? json_array_get(eos, 0) : eos;
    if (d->spec.eos < 0 && json_is_integer(one) && json_integer_value(one) >= 0 &&
        json_integer_value(one) < TN_HF_VOCAB)
        d->spec.eos = (int32_t)json_integer_value(one);
    if (d->spec.bos < 0 && json_is_integer(bos) && json_integer_value(bos) >= 0 &&
        json_integer_value(bos) < TN_HF_VOCAB)
        d->spec.bos = (int32_t)json_integer_value(bos);
}

static tern_status open_draft(tn_hf_draft *d, tn_tokenizer **out) {
    tn_tokenizer_spec *s = &d->spec;
    s->n_vocab = d->n_vocab;
    s->tokens = d->tokens;
    s->token_bytes = d->token_bytes;
    s->types = d->types;
    s->scores = d->scores;
    s->merges = d->merges;
    s->merge_bytes = d->merge_bytes;
    s->n_merges = d->n_merges;
    d->patterns[d->n_patterns] = NULL;
    s->pre_regex = d->patterns;
    s->ends = d->ends;
    s->n_ends = d->n_ends;
    return tn_tokenizer_open(d->ctx, s, out, d->err);
}

tern_status tn_hf_parse(tn_ctx *ctx, const char *text, size_t n, tn_tokenizer **out, tern_error *err) {
    *out = NULL;
    tn_hf_draft d;
    json_t *root;
    tn_hf_draft_init(&d, ctx, err);
    tern_status st = parse_json(&d, "tokenizer.json", text, n, &root);
    if (st == TERN_OK) st = read_tokenizer_json(&d, root);
    if (st == TERN_OK) st = open_draft(&d, out);
    tn_hf_draft_free(&d);
    json_decref(root);
    return st;
}

/* ---- vocab.json + merges.txt, tiktoken ---------------------------------------------------------- */

/* Finds the family of a folder without tokenizer.json in its configuration. */
static tern_status read_family(tn_hf_draft *d, const json_t *tokenizer_config, const json_t *config) {
    const char *class = tn_hf_text(tokenizer_config, "tokenizer_class"),
               *type = tn_hf_text(config, "model_type");
    if (!strncmp(class, "Qwen2", 5) || !strncmp(type, "qwen2", 5) || !strncmp(type, "qwen3", 5)) {
        d->spec.nfc = true;
        return add_named_patterns(d, "qwen2");
    }
    /* GPT2Tokenizer, CodeGenTokenizer (Phi-2), or no class: the format is GPT-2's */
    return add_named_patterns(d, "gpt-2");
}

/* Reads tokenizer_config.json's "added_tokens_decoder": {"151643": {"content": ..., "special": true}, ...} */
static tern_status read_added_decoder(tn_hf_draft *d, const json_t *added) {
    const char *key;
    json_t *a;
    json_object_foreach((json_t *)(uintptr_t)added, key, a) {
        const json_t *text = json_object_get(a, "content");
        char *end;
        long id = strtol(key, &end, 10);
        TN_FAIL_IF(*end || end == key || !json_is_string(text), d->err, TERN_E_FORMAT,
                   "added token \"%.40s\" lacks content or id", key);
        uint8_t type = json_is_true(json_object_get(a, "special")) ? TN_TOKEN_CONTROL : TN_TOKEN_USER;
        if (json_is_true(json_object_get(a, "lstrip"))) type |= TN_TOKEN_LSTRIP;
        if (json_is_true(json_object_get(a, "rstrip"))) type |= TN_TOKEN_RSTRIP;
        TN_TRY(tn_hf_set_token(d, id, json_string_value(text), json_string_length(text), type));
    }
    return TERN_OK;
}

static tern_status read_merges_txt(tn_hf_draft *d, const char *text, size_t n) {
    const char *end = text + n;
    for (const char *p = text; p < end;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol) eol = end;
        size_t len = (size_t)(eol - p);
        if (len && p[len - 1] == '\r') len--;
        bool version = p == text && len > 8 && !memcmp(p, "#version", 8);
        if (len && !version) TN_TRY(add_merge(d, p, len));
        p = eol + 1;
    }
    return TERN_OK;
}

/* Reads lines of "base64 rank". */
static tern_status read_tiktoken(tn_hf_draft *d, const char *text, size_t n) {
    const char *end = text + n;
    long line = 1;
    for (const char *p = text; p < end; line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol) eol = end;
        const char *sp = memchr(p, ' ', (size_t)(eol - p));
        TN_FAIL_IF(
            !sp || (sp - p) % 4 || sp == p, d->err, TERN_E_FORMAT,
            "tokenizer.model: neither SentencePiece's nor tiktoken's (line %ld is not a token in base64 "
            "and its rank)",
            line);
        size_t n64 = (size_t)(sp - p);
        char *token = tn_hf_make(d, n64 / 4 * 3 * 2); /* in the byte alphabet a byte takes at most two */
        if (!token) return tn_hf_no_memory(d);
        size_t m = 0;
        for (size_t i = 0; i < n64; i += 4) {
            int v[4], pad = 0;
            for (int k = 0; k < 4; k++) {
                v[k] = tn_hf_base64(p[i + k]);
                if (v[k] >= 0) continue;
                TN_FAIL_IF(p[i + k] != '=' || i + 4 < n64 || k < 2, d->err, TERN_E_FORMAT,
                           "tokenizer.model: line %ld is not base64", line);
                v[k] = 0;
                pad++;
            }
            uint32_t bits =
                (uint32_t)v[0] << 18 | (uint32_t)v[1] << 12 | (uint32_t)v[2] << 6 | (uint32_t)v[3];
            for (int k = 0; k < 3 - pad; k++)
                m += tn_utf8_encode(tn_byte_to_alphabet((uint8_t)(bits >> (16 - 8 * k))),
                                    (uint8_t *)token + m);
        }
        char digits[16] = {0}, *stop;
        size_t nd = (size_t)(eol - sp - 1);
        memcpy(digits, sp + 1, nd < 15 ? nd : 15);
        long rank = strtol(digits, &stop, 10);
        TN_FAIL_IF(stop == digits || (*stop && *stop != '\r'), d->err, TERN_E_FORMAT,
                   "tokenizer.model: line %ld has no rank", line);
        TN_TRY(tn_hf_set_token(d, rank, token, m, TN_TOKEN_NORMAL));
        p = eol + 1;
    }
    /* The file holds only the ranks; the special tokens after them are the family's. */
    enum { LLAMA3_RANKS = 128000, LLAMA3_SPECIALS = 256 };
    TN_FAIL_IF(d->n_vocab != LLAMA3_RANKS, d->err, TERN_E_UNSUPPORTED,
               "tokenizer.model with %zu ranks; of this format only Llama 3's is known (%d)", d->n_vocab,
               LLAMA3_RANKS);
    static const char *const named[] = {
        "<|begin_of_text|>",   "<|end_of_text|>",   NULL, NULL,        NULL, NULL,
        "<|start_header_id|>", "<|end_header_id|>", NULL, "<|eot_id|>"};
    for (int i = 0, reserved = 0; i < LLAMA3_SPECIALS; i++) {
        const char *name = i < 10 ? named[i] : NULL;
        if (!name) {
            char *s = tn_hf_make(d, 48);
            if (!s) return tn_hf_no_memory(d);
            snprintf(s, 48, "<|reserved_special_token_%d|>", reserved++);
            name = s;
        }
        TN_TRY(tn_hf_set_token(d, LLAMA3_RANKS + i, name, strlen(name), TN_TOKEN_CONTROL));
    }
    TN_TRY(tn_hf_score_all(d));
    for (size_t i = 0; i < d->n_vocab; i++) d->scores[i] = -(float)i;
    d->spec.ignore_merges = true;
    d->spec.bos = LLAMA3_RANKS;
    d->spec.eos = LLAMA3_RANKS + 1;
    d->spec.eot = LLAMA3_RANKS + 9;
    d->spec.add_bos = true;
    return add_named_patterns(d, "llama-bpe");
}

static tern_status add_piece(void *user, int32_t id, const char *text, size_t n, float score,
                             tn_token_type type) {
    tn_hf_draft *d = user;
    TN_TRY(tn_hf_set_token(d, id, text, n, (uint8_t)type));
    TN_TRY(tn_hf_score_all(d));
    d->scores[id] = score;
    return TERN_OK;
}

/* Reads SentencePiece's own file. The pieces point into its text. */
static tern_status read_sentencepiece(tn_hf_draft *d, const char *text, size_t n) {
    tn_spm m;
    tn_tokenizer_spec_defaults(&d->spec, TN_TOK_BPE_SPM, NULL);
    TN_TRY(tn_spm_read(text, n, &m, add_piece, d, d->err));
    d->spec.bos = m.bos;
    d->spec.eos = m.eos;
    d->spec.unk = m.unk;
    d->spec.pad = m.pad;
    d->spec.add_space_prefix = d->spec.space_prefix_first = m.dummy_prefix;
    return TERN_OK;
}

static tern_status add_bytes(void *user, int32_t id, const char *bytes, size_t n) {
    tn_hf_draft *d = user;
    char *token = tn_hf_make(d, 2 * n);
    size_t m = 0;
    if (!token) return tn_hf_no_memory(d);
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\\') token[m++] = '\\'; /* as GGUF files have it */
        token[m++] = bytes[i];
    }
    if (n == 2 && !memcmp(bytes, "\n\n", 2)) d->spec.eot = id; /* ends a turn, as converters say too */
    return tn_hf_set_token(d, id, token, m, TN_TOKEN_NORMAL);
}

/* Reads RWKV's own file. */
static tern_status read_rwkv(tn_hf_draft *d, const char *text, size_t n) {
    tn_tokenizer_spec_defaults(&d->spec, TN_TOK_LONGEST, NULL);
    d->spec.bos = d->spec.eos = 0;
    TN_TRY(tn_hf_set_token(d, 0, "<s>", 3, TN_TOKEN_CONTROL));
    return tn_rwkv_read(text, n, add_bytes, d, d->err);
}

/* ---- the folder --------------------------------------------------------------------------------- */

/* Reads a whole file, zero-terminated. An absent file gives TERN_OK and *text NULL. */
static tern_status slurp(tn_hf_draft *d, const char *folder, const char *name, char **text, size_t *n) {
    *text = NULL;
    *n = 0;
    char path[4096];
    TN_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path, d->err,
               TERN_E_INVALID, "path too long: %.80s...", folder);
    FILE *f = fopen(path, "rb");
    if (!f && errno == ENOENT) return TERN_OK;
    TN_FAIL_IF(!f, d->err, TERN_E_IO, "%s: %s", path, strerror(errno));
    struct stat sb;
    tern_status st = TERN_OK;
    TN_BAIL_IF(fstat(fileno(f), &sb) != 0 || !S_ISREG(sb.st_mode), d->err, TERN_E_IO, "%s is not a file",
               path);
    TN_BAIL_IF(sb.st_size > MAX_FILE_BYTES, d->err, TERN_E_LIMIT, "%s has %lld bytes, at most %d are read",
               path, (long long)sb.st_size, MAX_FILE_BYTES);
    size_t size = (size_t)sb.st_size;
    char *b = tn_hf_make(d, size);
    if (!b) {
        st = tn_hf_no_memory(d);
        goto out;
    }
    TN_BAIL_IF(fread(b, 1, size, f) != size, d->err, TERN_E_IO, "%s: could not read %zu bytes", path, size);
    *text = b;
    *n = size;
out:
    fclose(f);
    return st;
}

/* Reads a JSON file. *root is NULL when the file is absent. */
static tern_status slurp_json(tn_hf_draft *d, const char *folder, const char *name, json_t **root) {
    char *text;
    size_t n;
    *root = NULL;
    TN_TRY(slurp(d, folder, name, &text, &n));
    return text ? parse_json(d, name, text, n, root) : TERN_OK;
}

static tern_status read_folder(tn_ctx *ctx, const char *folder, tn_tokenizer **out, tern_error *err) {
    *out = NULL;
    enum { TOKENIZER, VOCAB, TOKENIZER_CONFIG, GENERATION_CONFIG, CONFIG, N_DOCS };
    static const char *const names[N_DOCS] = {"tokenizer.json", "vocab.json", "tokenizer_config.json",
                                              "generation_config.json", "config.json"};
    json_t *doc[N_DOCS] = {0};
    char *merges = NULL, *ranks = NULL, *vocab = NULL, *jinja;
    size_t n_merges, n_ranks, n_vocab, n_jinja;
    tern_status st = TERN_OK;
    tn_hf_draft d;
    tn_hf_draft_init(&d, ctx, err);
    for (int i = 0; i < N_DOCS; i++) {
        if (i == VOCAB && doc[TOKENIZER]) continue;
        if ((st = slurp_json(&d, folder, names[i], &doc[i])) != TERN_OK) goto out;
    }
    if (doc[TOKENIZER]) {
        if ((st = read_tokenizer_json(&d, doc[TOKENIZER])) != TERN_OK) goto out;
    } else {
        if ((st = slurp(&d, folder, "merges.txt", &merges, &n_merges)) != TERN_OK) goto out;
        if ((st = slurp(&d, folder, "tokenizer.model", &ranks, &n_ranks)) != TERN_OK) goto out;
        if (doc[VOCAB] && merges) {
            d.spec.kind = TN_TOK_BPE_BYTES;
            if ((st = read_family(&d, doc[TOKENIZER_CONFIG], doc[CONFIG])) != TERN_OK ||
                (st = read_vocab(&d, doc[VOCAB], false)) != TERN_OK ||
                (st = read_merges_txt(&d, merges, n_merges)) != TERN_OK)
                goto out;
        } else {
            if ((st = slurp(&d, folder, TN_RWKV_VOCAB, &vocab, &n_vocab)) != TERN_OK) goto out;
            TN_BAIL_IF(!ranks && !vocab, err, TERN_E_FORMAT,
                       "%.300s has no tokenizer.json, no vocab.json with merges.txt and no tokenizer.model",
                       folder);
            d.spec.kind = TN_TOK_BPE_BYTES;
            st = vocab                       ? read_rwkv(&d, vocab, n_vocab)
                 : tn_spm_is(ranks, n_ranks) ? read_sentencepiece(&d, ranks, n_ranks)
                                             : read_tiktoken(&d, ranks, n_ranks);
            if (st != TERN_OK) goto out;
        }
        if ((st = read_added_decoder(&d, json_object_get(doc[TOKENIZER_CONFIG], "added_tokens_decoder"))) !=
            TERN_OK)
            goto out;
        if (d.scores && (st = tn_hf_score_all(&d)) != TERN_OK) goto out;
    }
    read_tokenizer_config(&d, doc[TOKENIZER_CONFIG]);
    if ((st = slurp(&d, folder, "chat_template.jinja", &jinja, &n_jinja)) != TERN_OK) goto out;
    if (jinja) d.spec.chat_template = jinja;
    read_model_config(&d, doc[GENERATION_CONFIG]);
    read_model_config(&d, doc[CONFIG]);
    read_model_config(&d, json_object_get(doc[CONFIG], "text_config")); /* of a model that sees */
    st = open_draft(&d, out);
out:
    tn_hf_draft_free(&d);
    for (int i = 0; i < N_DOCS; i++) json_decref(doc[i]);
    return st;
}

tern_status tn_tokenizer_open_hf(tn_ctx *ctx, const char *folder, tn_tokenizer **out, tern_error *err) {
    tern_error why;
    tern_status st = read_folder(ctx, folder, out, &why);
    if (st == TERN_OK) return st;
    const size_t n = strlen(folder);
    const bool named = !strncmp(why.message, folder, n) && strchr("/: ", why.message[n]);
    const bool of_a_file = (st == TERN_E_FORMAT || st == TERN_E_UNSUPPORTED) && !named;
    return of_a_file ? tn_fail(err, st, "%.300s: %s", folder, why.message)
                     : tn_fail(err, st, "%s", why.message);
}
