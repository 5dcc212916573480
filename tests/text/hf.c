/* tokenizer.json, feature by feature, and the files beside it. */
#include "text/chat.h"
#include "text/hf.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static tn_ctx ctx;

static tn_tokenizer *parse(const char *json) {
    tn_tokenizer *t;
    tern_error err = {0};
    if (tn_hf_parse(&ctx, json, strlen(json), &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

static void check(const tn_tokenizer *t, const char *text, bool add_special, const int32_t *want,
                  size_t n_want) {
    int32_t ids[64];
    size_t n;
    tern_error err = {0};
    if (tn_tokenize(t, text, strlen(text), add_special, true, ids, 64, &n, &err) != TERN_OK)
        fail_msg("%s", err.message);
    if (n != n_want || memcmp(ids, want, n * sizeof *ids)) {
        for (size_t i = 0; i < n; i++) print_error(" %d", ids[i]);
        fail_msg("\"%s\"", text);
    }
}
#define CHECK(t, text, add, ...)                                                                             \
    check(t, text, add, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* bytes of the letters used below, and what merging makes of them */
#define VOCAB                                                                                                \
    "\"vocab\": {\"a\": 0, \"b\": 1, \"\xc4\xa0\": 2, \"ab\": 3, \"\xc4\xa0"                                 \
    "ab\": 4, \"1\": 5, \"11\": 6, \"\xc3\xa9\": 7, \"<s>\": 8}"
#define MERGES "\"merges\": [\"a b\", \"\xc4\xa0 ab\", \"1 1\"]"
#define BPE "\"model\": {\"type\": \"BPE\", " VOCAB ", " MERGES "}"

static void byte_level(void **state) {
    (void)state;
    tn_tokenizer *t =
        parse("{\"added_tokens\": [{\"id\": 8, \"content\": \"<s>\", \"special\": true}, {\"id\": 12, "
              "\"content\": \"<x>\", \"special\": false}],"
              "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, " BPE "}");
    assert_int_equal(tn_tokenizer_n_vocab(t), 13);
    CHECK(t, "ab ab11", true, 3, 4, 6);
    CHECK(t, "<s>ab<x>", true, 8, 3, 12);
    tn_tokenizer_close(&t);
    /* pairs instead of strings; digits one by one */
    t = parse("{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
              "\"individual_digits\": true}, {\"type\": \"ByteLevel\", "
              "\"add_prefix_space\": false}]}, \"model\": {" VOCAB
              ", \"merges\": [[\"a\", \"b\"], [\"\xc4\xa0\", \"ab\"], [\"1\", \"1\"]]}}");
    CHECK(t, "ab11", true, 3, 5, 5);
    tn_tokenizer_close(&t);
    /* a space in front of text that has none */
    t = parse("{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}, " BPE "}");
    CHECK(t, "ab ab", true, 4, 4);
    CHECK(t, " ab", true, 4);
    tn_tokenizer_close(&t);
    /* an explicit pattern, and no other */
    t = parse("{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
              "\"pattern\": {\"Regex\": \"1\"}, \"behavior\": \"Isolated\", "
              "\"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "
              "false}]}, " BPE "}");
    CHECK(t, "ab ab11", true, 3, 4, 5, 5);
    tn_tokenizer_close(&t);
    /* a literal that would mean something to a pattern */
    t = parse("{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
              "\"pattern\": {\"String\": \"a|b\"}, \"behavior\": \"Isolated\"}, "
              "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}, " BPE "}");
    CHECK(t, "ab", true, 3);
    tn_tokenizer_close(&t);
}

static void merges_ignored(void **state) {
    (void)state;
#define WORD                                                                                                 \
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "                 \
    "{\"ignore_merges\": %s, \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4}, \"merges\": " \
    "[\"a b\"]}"
    char json[512];
    snprintf(json, sizeof json, "{" WORD "}", "true");
    tn_tokenizer *t = parse(json);
    CHECK(t, "abc", false, 4);
    tn_tokenizer_close(&t);
    snprintf(json, sizeof json, "{" WORD "}", "false");
    t = parse(json);
    CHECK(t, "abc", false, 3, 2); /* in the vocabulary, but no merge leads there */
    tn_tokenizer_close(&t);
}

static void normalised(void **state) {
    (void)state;
    tn_tokenizer *t = parse("{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
                            "\"NFC\"}]}, \"pre_tokenizer\": {\"type\": \"ByteLevel\"}, "
                            "\"model\": {\"vocab\": {\"e\": 0, \"\xc3\x83\": 1, \"\xc2\xa9\": 2, "
                            "\"\xc3\x8c\": 3, \"\xc4\xa3\": 4}, \"merges\": []}}");
    CHECK(t, "e\xcc\x81", false, 1, 2);
    tn_tokenizer_close(&t);
}

#define SP "\xe2\x96\x81"
#define SPM_MODEL                                                                                            \
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"byte_fallback\": true, \"fuse_unk\": true, " \
    "\"vocab\": {\"<unk>\": 0, \"<s>\": 1, "                                                                 \
    "\"<0xC3>\": 2, \"<0xA9>\": 3, \"" SP "\": 4, \"a\": 5, \"b\": 6, \"ab\": 7, \"" SP "ab\": 8, \"" SP SP  \
    "\": 9}, \"merges\": [\"a b\", \"" SP " ab\", \"" SP " " SP "\"]}"
#define ADDED                                                                                                \
    "\"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true}, {\"id\": 1, \"content\": "   \
    "\"<s>\", \"special\": true}], "

static void sentencepiece(void **state) {
    (void)state;
    /* Llama 2, TinyLlama, Phi-3 */
    tn_tokenizer *t =
        parse("{" ADDED "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
              "\"prepend\": \"" SP "\"}, {\"type\": \"Replace\", "
              "\"pattern\": {\"String\": \" \"}, \"content\": \"" SP
              "\"}]}, \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
              "{\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "
              "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [1], "
              "\"tokens\": [\"<s>\"]}}}, " SPM_MODEL "}");
    CHECK(t, "ab  ab", true, 1, 8, 4, 8);
    CHECK(t, "\xc3\xa9", false, 4, 2, 3);
    CHECK(t, "x\xe4\xb8\xad", false, 4, 0); /* not even as bytes: unknown, once */
    CHECK(t, "ab<s>ab", false, 8, 1, 8);
    assert_int_equal(tn_tokenizer_bos(t), 1);
    tn_tokenizer_close(&t);
    /* newer: Metaspace, the space only in front of the text */
    t = parse("{" ADDED "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"" SP
              "\", \"prepend_scheme\": \"first\", \"split\": false}, " SPM_MODEL "}");
    CHECK(t, "ab<s>ab", false, 8, 1, 7);
    CHECK(t, "  a", false, 9, 5); /* and only where there is none */
    tn_tokenizer_close(&t);
    /* each space begins a piece */
    t = parse("{" ADDED "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"prepend_scheme\": \"never\", "
              "\"split\": true}, " SPM_MODEL "}");
    CHECK(t, "  ab", false, 4, 8);
    tn_tokenizer_close(&t);
    /* Gemma: no space in front, a Split that has nothing left to do */
    t = parse("{" ADDED
              "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" SP
              "\"}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": "
              "{\"String\": \" \"}, \"behavior\": \"MergedWithPrevious\", \"invert\": false}, " SPM_MODEL
              "}");
    CHECK(t, "ab ab", false, 7, 8);
    tn_tokenizer_close(&t);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *json, *names;
        tern_status code;
    } bad[] = {
        {"", "tokenizer.json", TERN_E_FORMAT},
        {"[]", "model", TERN_E_FORMAT},
        {"{\"model\": {\"type\": \"WordLevel\"}}", "WordLevel", TERN_E_UNSUPPORTED},
        {"{\"model\": {\"type\": \"Unigram\"}}", "0 tokens", TERN_E_FORMAT},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", \"b\"]]}}", "piece 0", TERN_E_FORMAT},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"!!!!\"}, \"model\": "
         "{\"type\": "
         "\"Unigram\", \"vocab\": [[\"a\", -1]]}}",
         "base64", TERN_E_FORMAT},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAAAAAA\"}, \"model\": "
         "{\"type\": "
         "\"Unigram\", \"vocab\": [[\"a\", -1]]}}",
         "map of characters", TERN_E_FORMAT},
        {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}", "prefix", TERN_E_UNSUPPORTED},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}}}", "merges", TERN_E_FORMAT},
        {"{" BPE "}", "neither", TERN_E_UNSUPPORTED},
        {"{\"normalizer\": {\"type\": \"Lowercase\"}, " BPE "}", "Lowercase", TERN_E_UNSUPPORTED},
        {"{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, " BPE "}", "BertPreTokenizer",
         TERN_E_UNSUPPORTED},
        {"{\"post_processor\": {\"type\": \"BertProcessing\"}, \"pre_tokenizer\": {\"type\": "
         "\"ByteLevel\"}, " BPE "}",
         "BertProcessing", TERN_E_UNSUPPORTED},
        {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, "
         "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}]}, " BPE "}",
         "add_prefix_space", TERN_E_UNSUPPORTED},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": "
         "\"MergedWithNext\"}, " BPE "}",
         "MergedWithNext", TERN_E_UNSUPPORTED},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": -1}, \"merges\": "
         "[]}}",
         "-1", TERN_E_FORMAT},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 99999999999}, "
         "\"merges\": []}}",
         "99999999999", TERN_E_FORMAT},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 0}, \"merges\": "
         "[1]}}",
         "merge 0", TERN_E_FORMAT},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"x "
         "y\"]}}",
         "none of the 1 merges", TERN_E_FORMAT},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {}, \"merges\": []}}",
         "vocabulary of 0", TERN_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tn_tokenizer *t;
        tern_error err = {0};
        tern_status st = tn_hf_parse(&ctx, bad[i].json, strlen(bad[i].json), &t, &err);
        if (st != bad[i].code || !strstr(err.message, bad[i].names) || strchr(err.message, '\n'))
            fail_msg("%s: %d %s", bad[i].json, st, err.message);
        assert_null(t);
    }
}

static void put_file(const char *folder, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!text) {
        unlink(path);
        return;
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void folder(void **state) {
    (void)state;
    char dir[] = "/tmp/tern-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    tn_tokenizer *t;
    tern_error err = {0};
    char buf[256];
    size_t n;
    assert_int_equal(tn_tokenizer_open_hf(&ctx, dir, &t, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "no tokenizer.json"));
    put_file(dir, "tokenizer.json",
             "{\"added_tokens\": [{\"id\": 8, \"content\": \"<s>\", \"special\": true}, {\"id\": 9, "
             "\"content\": \"</s>\", \"special\": true}, "
             "{\"id\": 10, \"content\": \"<stop>\", \"special\": true}], \"pre_tokenizer\": {\"type\": "
             "\"ByteLevel\", \"add_prefix_space\": false}, " BPE "}");
    put_file(dir, "tokenizer_config.json",
             "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"add_bos_token\": true, "
             "\"chat_template\": "
             "[{\"name\": \"tool_use\", \"template\": \"?\"}, {\"name\": \"default\", \"template\": "
             "\"<|im_start|><|im_end|>\"}]}");
    put_file(dir, "generation_config.json", "{\"eos_token_id\": [9, 10]}");
    if (tn_tokenizer_open_hf(&ctx, dir, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    CHECK(t, "ab", true, 8, 3);
    assert_true(tn_tokenizer_is_end(t, 9) && tn_tokenizer_is_end(t, 10) && !tn_tokenizer_is_end(t, 8));
    const tern_message hi = {"user", "Hi"};
    assert_int_equal(tn_chat_render(t, &hi, 1, NULL, buf, sizeof buf, &n, &err), TERN_OK);
    tn_tokenizer_close(&t);
    put_file(dir, "tokenizer_config.json", "{ broken");
    assert_int_equal(tn_tokenizer_open_hf(&ctx, dir, &t, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "tokenizer_config.json: line 1"));
    /* without tokenizer.json: vocab.json and merges.txt, GPT-2's way unless the configuration says otherwise
     */
    put_file(dir, "tokenizer.json", NULL);
    put_file(dir, "tokenizer_config.json", NULL);
    put_file(dir, "generation_config.json", NULL);
    put_file(dir, "vocab.json",
             "{\"a\": 0, \"b\": 1, \"\xc4\xa0\": 2, \"ab\": 3, \"\xc4\xa0"
             "ab\": 4}");
    put_file(dir, "merges.txt", "#version: 0.2\na b\r\n\xc4\xa0 ab");
    put_file(dir, "config.json", "{\"eos_token_id\": 3, \"model_type\": \"phi\"}");
    if (tn_tokenizer_open_hf(&ctx, dir, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    CHECK(t, "ab ab", true, 3, 4);
    assert_true(tn_tokenizer_is_end(t, 3));
    tn_tokenizer_close(&t);
    put_file(dir, "vocab.json", NULL);
    put_file(dir, "merges.txt", NULL);
    put_file(dir, "tokenizer.model", "IQ== 0\nIg== one\n");
    assert_int_equal(tn_tokenizer_open_hf(&ctx, dir, &t, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "line 2"));
    put_file(dir, "tokenizer.model", "IQ== 0\nIg== 1\n");
    assert_int_equal(tn_tokenizer_open_hf(&ctx, dir, &t, &err), TERN_E_UNSUPPORTED);
    put_file(dir, "tokenizer.model", NULL);
    put_file(dir, "config.json", NULL);
    rmdir(dir);
}

static void copy_file(const char *dir, const char *name, const char *from, size_t cut) {
    char path[600];
    static char buf[1 << 16];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
    assert_true(in && out);
    size_t n = fread(buf, 1, sizeof buf, in);
    assert_true(n > cut && n < sizeof buf);
    assert_int_equal(fwrite(buf, 1, n - cut, out), n - cut);
    fclose(in);
    fclose(out);
}

/* A folder with SentencePiece's own file alone. The file and the ids are those of spm_train and spm_encode 0.1.97
 * (--model_type=bpe --byte_fallback --normalization_rule_name=identity --remove_extra_whitespaces=false
 * --split_digits --user_defined_symbols='<user>', on models/tern-tiny/calib.txt). */
static void sentencepieces_own_file(void **state) {
    (void)state;
    const char *model = TN_SOURCE_DIR "/tests/text/spm_small.model";
    char dir[] = "/tmp/tern-spm-XXXXXX", line[2000];
    tern_error err = {0};
    tn_tokenizer *t;
    assert_non_null(mkdtemp(dir));
    copy_file(dir, "tokenizer.model", model, 0);
    put_file(dir, "tokenizer_config.json",
             "{\"add_bos_token\": false, \"added_tokens_decoder\": {\"420\": {\"content\": \"<|more|>\", "
             "\"special\": true}}}");
    if (tn_tokenizer_open_hf(&ctx, dir, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(tn_tokenizer_n_vocab(t), 421);
    assert_int_equal(tn_tokenizer_bos(t), 1);
    assert_int_equal(tn_tokenizer_eos(t), 2);
    assert_int_equal(tn_tokenizer_find(t, "<|more|>"), 420);
    FILE *f = fopen(TN_SOURCE_DIR "/tests/text/spm_vectors.jsonl", "r");
    assert_non_null(f);
    int n_lines = 0;
    for (; fgets(line, sizeof line, f); n_lines++) {
        json_t *j = json_loads(line, 0, NULL), *ids = json_object_get(j, "ids");
        int32_t want[200];
        size_t n = json_array_size(ids);
        for (size_t i = 0; i < n; i++) want[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        check(t, json_string_value(json_object_get(j, "text")), true, want, n);
        json_decref(j);
    }
    fclose(f);
    assert_int_equal(n_lines, 7);
    tn_tokenizer_close(&t);
    static const struct {
        size_t cut;
        const char *words;
    } broken[] = {{1, "cut off"}, {60, "cut off"}, {300, "missing"}, {3000, "cut off"}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        copy_file(dir, "tokenizer.model", model, broken[i].cut);
        assert_int_not_equal(tn_tokenizer_open_hf(&ctx, dir, &t, &err), TERN_OK);
        if (!strstr(err.message, broken[i].words)) fail_msg("%s", err.message);
    }
    put_file(dir, "tokenizer.model",
             "\n\x03\n\x01"
             "a\x12\x02\x18\x01");
    assert_int_equal(tn_tokenizer_open_hf(&ctx, dir, &t, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "unigram"));
    put_file(dir, "tokenizer.model", NULL);
    put_file(dir, "tokenizer_config.json", NULL);
    rmdir(dir);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(sentencepieces_own_file),
                                       cmocka_unit_test(byte_level),
                                       cmocka_unit_test(merges_ignored),
                                       cmocka_unit_test(normalised),
                                       cmocka_unit_test(sentencepiece),
                                       cmocka_unit_test(refused),
                                       cmocka_unit_test(folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
