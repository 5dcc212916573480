/* Pieces of words in a tokenizer.json: WordPiece, Unigram, and how their texts are normalised. */
#include "text/hf_impl.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

int tn_hf_base64(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* SentencePiece's map of characters. */
tern_status tn_hf_charsmap(tn_hf_draft *d, const json_t *n) {
    const char *text = tn_hf_text(n, "precompiled_charsmap");
    size_t len = strlen(text), out = 0;
    char *map = tn_hf_make(d, len / 4 * 3);
    if (!map) return tn_hf_no_memory(d);
    TN_FAIL_IF(len % 4, d->err, TERN_E_FORMAT, "normalizer Precompiled: its map is not base64");
    for (size_t i = 0; i < len; i += 4) {
        uint32_t bits = 0;
        int pad = 0;
        for (int k = 0; k < 4; k++) {
            int v = tn_hf_base64(text[i + (size_t)k]);
            bool end = v < 0 && text[i + (size_t)k] == '=' && i + 4 == len && k > 1;
            TN_FAIL_IF((v < 0 && !end) || (v >= 0 && pad), d->err, TERN_E_FORMAT,
                       "normalizer Precompiled: its map is not base64");
            pad += end;
            bits = bits << 6 | (uint32_t)(end ? 0 : v);
        }
        for (int k = 0; k < 3 - pad; k++) map[out++] = (char)(bits >> (16 - 8 * k));
    }
    d->spec.charsmap = (const uint8_t *)map;
    d->spec.charsmap_bytes = out;
    return TERN_OK;
}

/* BERT's. Control characters and ideographs are always handled; no known file turns that off. */
tern_status tn_hf_bert_normalizer(tn_hf_draft *d, const json_t *n) {
    static const char *const always[] = {"clean_text", "handle_chinese_chars"};
    for (int i = 0; i < 2; i++)
        TN_FAIL_IF(json_is_false(json_object_get(n, always[i])), d->err, TERN_E_UNSUPPORTED,
                   "normalizer BertNormalizer with %s false is not supported", always[i]);
    const json_t *strip = json_object_get(n, "strip_accents");
    d->spec.lowercase = !json_is_false(json_object_get(n, "lowercase"));
    d->spec.strip_accents = json_is_boolean(strip) ? json_is_true(strip) : d->spec.lowercase;
    return TERN_OK;
}

/* Inside, "##able" is spelled "able", and pieces that begin a word have a space before them. */
tern_status tn_hf_wordpieces(tn_hf_draft *d, const json_t *model) {
    const char *key, *prefix = tn_hf_text(model, "continuing_subword_prefix");
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    json_t *id;
    TN_FAIL_IF(strcmp(prefix, "##") || (json_is_integer(most) && json_integer_value(most) != 100), d->err,
               TERN_E_UNSUPPORTED, "WordPiece with the prefix \"%.20s\" and words of at most %lld characters",
               prefix, (long long)json_integer_value(most));
    json_object_foreach(json_object_get(model, "vocab"), key, id) {
        size_t n = strlen(key);
        bool inside = n > 2 && !strncmp(key, "##", 2);
        char *s = tn_hf_make(d, n + 3);
        if (!s) return tn_hf_no_memory(d);
        snprintf(s, n + 4, "%s%s", inside ? "" : "\xe2\x96\x81", inside ? key + 2 : key);
        TN_FAIL_IF(!json_is_integer(id), d->err, TERN_E_FORMAT, "token \"%.40s\" has no id", key);
        TN_TRY(tn_hf_set_token(d, json_integer_value(id), s, strlen(s), TN_TOKEN_NORMAL));
    }
    d->spec.kind = TN_TOK_WORDPIECE;
    return TERN_OK;
}

/* [["piece", score], ...], the first with id 0. */
tern_status tn_hf_unigrams(tn_hf_draft *d, const json_t *model) {
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(model, "vocab"), i, e) {
        const json_t *text = json_array_get(e, 0), *score = json_array_get(e, 1);
        TN_FAIL_IF(!json_is_string(text) || !json_is_number(score), d->err, TERN_E_FORMAT,
                   "piece %zu lacks text or score", i);
        TN_TRY(tn_hf_set_token(d, (json_int_t)i, json_string_value(text), json_string_length(text),
                               TN_TOKEN_NORMAL));
        TN_TRY(tn_hf_score_all(d));
        d->scores[i] = (float)json_number_value(score);
    }
    TN_FAIL_IF(json_is_true(json_object_get(model, "byte_fallback")), d->err, TERN_E_UNSUPPORTED,
               "Unigram with byte_fallback is not supported");
    const json_t *unk = json_object_get(model, "unk_id");
    if (json_is_integer(unk) && json_integer_value(unk) >= 0 && json_integer_value(unk) < TN_HF_VOCAB)
        d->spec.unk = (int32_t)json_integer_value(unk);
    d->spec.kind = TN_TOK_UNIGRAM;
    return TERN_OK;
}
