/* text/pretok_families.c - the families of byte-level tokenizers, by the names that GGUF files give them. */
#include "text/pretok.h"

#include <string.h>

/* The patterns are those of the models' own tokenizer.json files, as far as these are public. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s+(?!\\S)|\\s+"
/* Llama 3 and its relatives differ in the number of digits kept together */
#define LLAMA3(digits)                                                                                       \
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Case-aware words: GPT-4o and Tekken */
#define CASED(suffix, digits)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" SPACES
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Words with their marks, punctuation and symbols apart: DeepSeek V3 and AFMoE */
#define MARKED                                                                                               \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "                                \
    "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES
/* The cased letters outside of the scripts that have no case, as DeepSeek LLM lists them. */
#define CASED_LETTERS                                                                                        \
    "[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"         \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}"   \
    "\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"          \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"        \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"        \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}"                   \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                  \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"        \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}" \
    "\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{"     \
    "214e}"                                                                                                  \
    "\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"          \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}"        \
    "\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"        \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"                   \
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]"
/* Everything between clause-ending punctuation of many scripts: BLOOM */
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
/* Kimi K2: a cased word, but Han characters are words of their own */
#define HAN_UPPER "(?:(?!\\p{Han})" UPPER ")"
#define HAN_LOWER "(?:(?!\\p{Han})" LOWER ")"

static const char *const pre_gpt2[] = {GPT2, NULL};
static const char *const pre_digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const pre_llama3[] = {LLAMA3("\\p{N}{1,3}"), NULL};
static const char *const pre_minicpm5[] = {"\\p{N}{1,3}", LLAMA3("\\p{N}+"), NULL};
static const char *const pre_qwen2[] = {LLAMA3("\\p{N}"), NULL};
static const char *const pre_laguna[] = {"[^\\n]+|\\n+", LLAMA3("\\p{N}"), NULL};
static const char *const pre_qwen35[] = {
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
           "\\s*[\\r\\n]+|" SPACES,
    NULL};
static const char *const pre_deepseek_llm[] = {
    "[\\r\\n]",
    "\\s?" CASED_LETTERS "+",
    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
    "\\s+$",
    CJK,
    "\\p{N}+",
    NULL};
static const char *const pre_deepseek_coder[] = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
                                                 CJK,        "\\p{N}",      NULL};
static const char *const pre_deepseek3[] = {
    "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", MARKED, NULL};
static const char *const pre_falcon[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]", NULL};
static const char *const pre_default[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]",
                                          NULL};
static const char *const pre_gpt4o[] = {CASED(SUFFIX "?", "\\p{N}{1,3}"), NULL};
static const char *const pre_tekken[] = {CASED("", "\\p{N}"), NULL};
static const char *const pre_youtu[] = {
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|"
    "[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}"
    "\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|"
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
    CASED(SUFFIX "?", "\\p{N}"), NULL};
static const char *const pre_tiny_aya[] = {"\\d{1,3}(?=(?:\\d{3})*\\b)", CASED(SUFFIX "?", "\\p{N}{1,3}"),
                                           NULL};
static const char *const pre_bloom[] = {BLOOM, NULL};
static const char *const pre_viking[] = {BLOOM, "\\p{N}", NULL};
static const char *const pre_jais2[] = {
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
           "\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|"
           "\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s",
    NULL};
static const char *const pre_superbpe[] = {"\\p{N}+", "\\d{1,3}(?=(?:\\d{3})*(?!\\d))", NULL};
static const char *const pre_bailing[] = {
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]|" SPACES,
    NULL};
static const char *const pre_seed_coder[] = {
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|" SPACES, NULL};
static const char *const pre_exaone_moe[] = {
    SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
           "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|" SPACES,
    NULL};
static const char *const pre_kimi[] = {"\\p{Han}+",
                                       "[^\\r\\n\\p{L}\\p{N}]?" HAN_UPPER "*" HAN_LOWER "+" SUFFIX
                                       "?|[^\\r\\n\\p{L}\\p{N}]?" HAN_UPPER "+" HAN_LOWER "*" SUFFIX
                                       "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES,
                                       NULL};
static const char *const pre_afmoe[] = {
    "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}"
    "\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}\\x{e80}-\\x{eff}\\x{1780}-\\x{17ff}"
    "\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+",
    MARKED, NULL};
static const char *const pre_chameleon[] = {"<sentinel:[0-9]+>",
                                            "IMGIMG[A-I]{1,4}Z",
                                            "[\\t\\n]|    |  ",
                                            "\\p{N}",
                                            "[\\p{P}!-/:-@\\[-`{-~]",
                                            GPT2,
                                            NULL};

static const tn_pretok_family families[] = {
    {.name = "default", .patterns = pre_default},
    {.name = "gpt-2", .patterns = pre_gpt2},
    {.name = "phi-2", .patterns = pre_gpt2},
    {.name = "olmo", .patterns = pre_gpt2},
    {.name = "mpt", .patterns = pre_gpt2},
    {.name = "jais", .patterns = pre_gpt2},
    {.name = "jina-es", .patterns = pre_gpt2},
    {.name = "jina-de", .patterns = pre_gpt2},
    {.name = "jina-v1-en", .patterns = pre_gpt2, .end_twice = true},
    {.name = "jina-v2-es", .patterns = pre_gpt2},
    {.name = "jina-v2-de", .patterns = pre_gpt2},
    {.name = "jina-v2-code", .patterns = pre_gpt2, .end_twice = true},
    {.name = "roberta-bpe", .patterns = pre_gpt2, .end_twice = true},
    {.name = "gigachat", .patterns = pre_gpt2},
    {.name = "a.x-4.0", .patterns = pre_gpt2},
    {.name = "mellum", .patterns = pre_gpt2},
    {.name = "modern-bert", .patterns = pre_gpt2},
    {.name = "exaone4", .patterns = pre_gpt2},
    {.name = "trillion", .patterns = pre_gpt2},
    {.name = "granite-docling", .patterns = pre_gpt2},
    {.name = "smollm", .patterns = pre_digits_gpt2},
    {.name = "starcoder", .patterns = pre_digits_gpt2},
    {.name = "refact", .patterns = pre_digits_gpt2},
    {.name = "command-r", .patterns = pre_digits_gpt2},
    {.name = "cohere2_moe", .patterns = pre_digits_gpt2},
    {.name = "codeshell", .patterns = pre_digits_gpt2},
    {.name = "exaone", .patterns = pre_digits_gpt2},
    {.name = "minerva-7b", .patterns = pre_digits_gpt2},
    {.name = "mellum2", .patterns = pre_digits_gpt2},
    {.name = "llama-bpe", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "falcon3", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "falcon-h1", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "pixtral", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "midm-2.0", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "lfm2", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "jina-v5-nano", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "minicpm5", .patterns = pre_minicpm5, .ignore_merges = true},
    {.name = "dbrx", .patterns = pre_llama3},
    {.name = "smaug-bpe", .patterns = pre_llama3},
    {.name = "chatglm-bpe", .patterns = pre_llama3},
    {.name = "glm4", .patterns = pre_llama3},
    {.name = "qwen2", .patterns = pre_qwen2, .nfc = true},
    {.name = "stablelm2", .patterns = pre_qwen2},
    {.name = "deepseek-r1-qwen", .patterns = pre_qwen2, .nfc = true},
    {.name = "megrez", .patterns = pre_qwen2},
    {.name = "kormo", .patterns = pre_qwen2},
    {.name = "openpangu", .patterns = pre_qwen2},
    {.name = "f2llmv2", .patterns = pre_qwen2},
    {.name = "hunyuan", .patterns = pre_qwen2},
    {.name = "solar-open", .patterns = pre_qwen2},
    {.name = "grok-2", .patterns = pre_qwen2},
    {.name = "laguna", .patterns = pre_laguna},
    {.name = "qwen35", .patterns = pre_qwen35, .nfc = true},
    {.name = "deepseek-llm", .patterns = pre_deepseek_llm},
    {.name = "deepseek-coder", .patterns = pre_deepseek_coder},
    {.name = "deepseek-v3", .patterns = pre_deepseek3},
    {.name = "hunyuan-dense", .patterns = pre_deepseek3},
    {.name = "joyai-llm", .patterns = pre_deepseek3},
    {.name = "falcon", .patterns = pre_falcon},
    {.name = "gpt-4o", .patterns = pre_gpt4o},
    {.name = "llama4", .patterns = pre_gpt4o},
    {.name = "kanana2", .patterns = pre_gpt4o},
    {.name = "talkie", .patterns = pre_gpt4o},
    {.name = "minimax-m2", .patterns = pre_gpt4o},
    {.name = "granite-embed-multi-97m", .patterns = pre_gpt4o, .ignore_merges = true},
    {.name = "tekken", .patterns = pre_tekken, .ignore_merges = true, .add_bos = true},
    {.name = "youtu", .patterns = pre_youtu, .ignore_merges = true},
    {.name = "tiny_aya", .patterns = pre_tiny_aya},
    {.name = "cohere2moe", .patterns = pre_tiny_aya},
    {.name = "poro-chat", .patterns = pre_bloom},
    {.name = "bloom", .patterns = pre_bloom},
    {.name = "gpt3-finnish", .patterns = pre_bloom},
    {.name = "viking", .patterns = pre_viking},
    {.name = "jais-2", .patterns = pre_jais2},
    {.name = "superbpe", .patterns = pre_superbpe},
    {.name = "bailingmoe", .patterns = pre_bailing},
    {.name = "bailingmoe2", .patterns = pre_bailing},
    {.name = "llada-moe", .patterns = pre_bailing},
    {.name = "seed-coder", .patterns = pre_seed_coder},
    {.name = "exaone-moe", .patterns = pre_exaone_moe},
    {.name = "kimi-k2", .patterns = pre_kimi},
    {.name = "afmoe", .patterns = pre_afmoe},
    {.name = "chameleon", .patterns = pre_chameleon, .add_bos = true},
};

const tn_pretok_family *tn_pretok_named(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].name, name)) return &families[i];
    return NULL;
}

const tn_pretok_grouping *tn_pretok_grouped(const char *pattern) {
    static const tn_pretok_grouping all[] = {
        {"\\d{1,3}(?=(?:\\d{3})*\\b)", "\\d++", true},
        {"\\d{1,3}(?=(?:\\d{3})*(?!\\d))", "\\d++", false},
        {"\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", "\\p{N}++", false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(pattern, all[i].pattern)) return &all[i];
    return NULL;
}

size_t tn_pretok_three(const char *run, size_t n) {
    size_t at = 0;
    for (int k = 0; k < 3 && at < n; k++)
        for (at++; at < n && ((uint8_t)run[at] & 0xc0) == 0x80;) at++;
    return at;
}

size_t tn_pretok_first_group(const char *run, size_t n) {
    size_t n_chars = 0, at = 0;
    for (size_t i = 0; i < n; i++) n_chars += ((uint8_t)run[i] & 0xc0) != 0x80;
    if (n_chars % 3 == 0) return tn_pretok_three(run, n);
    for (size_t k = 0; k < n_chars % 3; k++)
        for (at++; at < n && ((uint8_t)run[at] & 0xc0) == 0x80;) at++;
    return at;
}
