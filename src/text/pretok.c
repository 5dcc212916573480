/* text/pretok.c - pre-tokenisation through PCRE2, compiled to machine code where it can. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok.h"

#include "base/status.h"
#include "text/utf8.h"

#include <assert.h>
#include <pcre2.h>
#include <string.h>

struct tn_pretok {
    tn_ctx *ctx;
    pcre2_general_context *gctx;
    size_t n;
    pcre2_code *code[TN_PRETOK_MAX];
    bool jit[TN_PRETOK_MAX];
};

/* The patterns are those of the models' own tokenizer.json files, as far as these are public. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s+(?!\\S)|\\s+"
/* Llama 3 and its relatives differ in how many digits stay together */
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
/* Everything between what ends a clause in many scripts: BLOOM */
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
/* Kimi K2: a cased word, but Han characters are words of their own */
#define HAN_UPPER "(?:(?!\\p{Han})" UPPER ")"
#define HAN_LOWER "(?:(?!\\p{Han})" LOWER ")"

static const char *const pre_gpt2[] = {GPT2, NULL};
static const char *const pre_digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const pre_llama3[] = {LLAMA3("\\p{N}{1,3}"), NULL};
static const char *const pre_qwen2[] = {LLAMA3("\\p{N}"), NULL};
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
    {.name = "jina-v1-en", .patterns = pre_gpt2},
    {.name = "jina-v2-es", .patterns = pre_gpt2},
    {.name = "jina-v2-de", .patterns = pre_gpt2},
    {.name = "jina-v2-code", .patterns = pre_gpt2},
    {.name = "roberta-bpe", .patterns = pre_gpt2},
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
    {.name = "laguna", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "jina-v5-nano", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
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
    {.name = "minimax-m2", .patterns = pre_gpt4o},
    {.name = "tekken", .patterns = pre_tekken, .ignore_merges = true, .add_bos = true},
    {.name = "youtu", .patterns = pre_youtu, .ignore_merges = true},
    {.name = "tiny_aya", .patterns = pre_tiny_aya},
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

static void *pcre_alloc(PCRE2_SIZE n, void *ctx) { return tn_alloc(ctx, TN_MEM_TEXT, n, 1); }
static void pcre_release(void *p, void *ctx) { tn_free(ctx, p); }

void tn_pretok_close(tn_pretok **pp) {
    tn_pretok *p = *pp;
    if (!p) return;
    for (size_t i = 0; i < p->n; i++) pcre2_code_free(p->code[i]);
    pcre2_general_context_free(p->gctx);
    tn_free(p->ctx, p);
    *pp = NULL;
}

tern_status tn_pretok_open(tn_ctx *ctx, const char *const *patterns, size_t n, tn_pretok **out,
                           tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(n > TN_PRETOK_MAX, err, TERN_E_UNSUPPORTED, "pre-tokenisation with %zu patterns, at most %d",
               n, TN_PRETOK_MAX);
    tern_status st = TERN_OK;
    pcre2_compile_context *cctx = NULL;
    tn_pretok *p = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    p->ctx = ctx;
    p->gctx = pcre2_general_context_create(pcre_alloc, pcre_release, ctx);
    cctx = p->gctx ? pcre2_compile_context_create(p->gctx) : NULL;
    TN_BAIL_IF(!cctx, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    pcre2_set_max_pattern_length(cctx, 1 << 16);
    for (; p->n < n; p->n++) {
        int code;
        PCRE2_SIZE at;
        pcre2_code *c = pcre2_compile((PCRE2_SPTR)patterns[p->n], PCRE2_ZERO_TERMINATED,
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, cctx);
        if (!c) {
            char text[128];
            pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
            st = tn_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? TERN_E_MEMORY : TERN_E_UNSUPPORTED,
                         "pre-tokenisation pattern %zu, offset %zu: %s", p->n, (size_t)at, text);
            goto out;
        }
        p->code[p->n] = c;
        /* No JIT (hardened host, unusual CPU) only costs speed. */
        p->jit[p->n] = pcre2_jit_compile(c, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    }
out:
    pcre2_compile_context_free(cctx);
    if (st != TERN_OK) tn_pretok_close(&p);
    *out = p;
    return st;
}

/* One run: the patterns' match data, and where the pieces go.
 *
 * What a text may cost. PCRE2's match limit counts decisions, not the characters that a loop or a look-ahead passes, and
 * it holds for one call only. So a call sees a window of the text: when it touches the window's end, PCRE2 says so
 * (a partial match), and the same place is tried again with a window four times as long. A window is charged to the
 * text's budget, and so are decisions beyond what ordinary words take. A text's cost is then bounded by its length,
 * whatever the patterns. */
typedef struct run {
    const tn_pretok *p;
    pcre2_match_context *mctx;
    pcre2_match_data *md[TN_PRETOK_MAX];
    tn_piece_fn fn;
    void *user;
    tern_error *err;
    size_t window;  /* the first one's length */
    size_t n_bytes; /* of the whole text */
    size_t budget;
} run;

enum { WINDOW = 512, DECISIONS = 20000, DECISIONS_MAX = 1 << 24, BUDGET = 4 << 20, BUDGET_PER_BYTE = 16 };

static tern_status gave_up(const run *r, size_t stage, size_t from, size_t n) {
    return tn_fail(r->err, TERN_E_LIMIT,
                   "pre-tokenisation pattern %zu gave up at byte %zu of a stretch of %zu: "
                   "it takes more than %d steps and %d for each of the text's %zu bytes",
                   stage, from, n, BUDGET, BUDGET_PER_BYTE, r->n_bytes);
}

static tern_status charge(run *r, size_t steps, size_t stage, size_t from, size_t n) {
    if (steps > r->budget) return gave_up(r, stage, from, n);
    r->budget -= steps;
    return TERN_OK;
}

/* One call on text[0..end), from `from`; here: only a match that starts there. More decisions are allowed until the
 * budget is spent. *rc: what PCRE2 says. */
static tern_status call(run *r, size_t stage, const char *text, size_t n, size_t end, size_t from, bool here,
                        int *rc) {
    const pcre2_code *code = r->p->code[stage];
    pcre2_match_data *md = r->md[stage];
    uint32_t options = end < n ? PCRE2_PARTIAL_HARD : 0;
    for (uint32_t limit = DECISIONS;; limit *= 8) {
        pcre2_set_match_limit(r->mctx, limit);
        if (r->p->jit[stage] && !here) { /* compiled code knows nothing of anchors */
            *rc = pcre2_jit_match(code, (PCRE2_SPTR)text, end, from, options, md, r->mctx);
            if (*rc != PCRE2_ERROR_JIT_STACKLIMIT && *rc != PCRE2_ERROR_MATCHLIMIT) return TERN_OK;
        }
        if (!r->p->jit[stage] || here || *rc == PCRE2_ERROR_JIT_STACKLIMIT)
            *rc = pcre2_match(code, (PCRE2_SPTR)text, end, from,
                              options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | (here ? PCRE2_ANCHORED : 0), md,
                              r->mctx);
        if (*rc != PCRE2_ERROR_MATCHLIMIT) return TERN_OK;
        if (limit > DECISIONS_MAX) return gave_up(r, stage, from, n);
        TN_TRY(charge(r, limit, stage, from, n));
    }
}

/* The end of a window of that length: never within a character. */
static size_t window_end(const char *text, size_t n, size_t from, size_t length) {
    if (length >= n - from) return n;
    size_t end = from + length;
    while (end < n && ((uint8_t)text[end] & 0xc0) == 0x80) end++;
    return end;
}

/* The next match at or behind `from`, *a = SIZE_MAX: there is none. */
static tern_status next_match(run *r, size_t stage, const char *text, size_t n, size_t from, size_t *a,
                              size_t *b) {
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(r->md[stage]);
    *a = *b = SIZE_MAX;
    bool here = false;
    for (size_t length = r->window; from < n;) {
        size_t end = window_end(text, n, from, length);
        int rc;
        TN_TRY(call(r, stage, text, n, end, from, here, &rc));
        if (rc == PCRE2_ERROR_PARTIAL || (rc >= 0 && end < n && ov[1] == end)) {
            /* nothing starts in front of ov[0]; what starts there needs to see more */
            if (ov[0] > from && ov[0] < end) from = ov[0];
            here = true;
            length *= 4;
            TN_TRY(charge(r, length < n - from ? length : n - from, stage, from, n));
        } else if (rc == PCRE2_ERROR_NOMATCH) {
            from = here ? window_end(text, n, from, 1) : end;
            here = false;
            length = r->window;
        } else {
            TN_FAIL_IF(rc < 0, r->err, rc == PCRE2_ERROR_NOMEMORY ? TERN_E_MEMORY : TERN_E_LIMIT,
                       "pre-tokenisation pattern %zu gave up at byte %zu of %zu (PCRE2 error %d)", stage,
                       from, n, rc);
            *a = ov[0];
            *b = ov[1];
            return TERN_OK;
        }
    }
    return TERN_OK;
}

/* text is valid UTF-8 and never empty */
static tern_status split(run *r, size_t stage, const char *text, size_t n) {
    if (stage == r->p->n) return r->fn(r->user, text, n);
    size_t done = 0, from = 0; /* pieces are given out up to `done`, the search goes on at `from` */
    while (from < n) {
        size_t a, b;
        TN_TRY(next_match(r, stage, text, n, from, &a, &b));
        if (a == SIZE_MAX) break;
        TN_FAIL_IF(a < done || b < a || b > n, r->err, TERN_E_UNSUPPORTED,
                   "pre-tokenisation pattern %zu moves the start of its match", stage);
        if (a == b) { /* nothing to cut out: look again behind the next character */
            from = window_end(text, n, a, 1);
            continue;
        }
        if (a > done) TN_TRY(split(r, stage + 1, text + done, a - done));
        TN_TRY(split(r, stage + 1, text + a, b - a));
        done = from = b;
    }
    return done < n ? split(r, stage + 1, text + done, n - done) : TERN_OK;
}

tern_status tn_pretok_run(const tn_pretok *p, const char *text, size_t n, tn_piece_fn fn, void *user,
                          tern_error *err) {
    return tn_pretok_run_windows(p, text, n, WINDOW, fn, user, err);
}

tern_status tn_pretok_run_windows(const tn_pretok *p, const char *text, size_t n, size_t window,
                                  tn_piece_fn fn, void *user, tern_error *err) {
    if (n == 0) return TERN_OK;
    if (p->n == 0) return fn(user, text, n);
    tern_status st = TERN_OK;
    run r = {.p = p, .fn = fn, .user = user, .err = err, .window = window, .n_bytes = n};
    r.budget =
        BUDGET + (n < SIZE_MAX / BUDGET_PER_BYTE / 2 ? n : SIZE_MAX / BUDGET_PER_BYTE / 2) * BUDGET_PER_BYTE;
    r.mctx = pcre2_match_context_create(p->gctx);
    TN_BAIL_IF(!r.mctx, err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    pcre2_set_heap_limit(r.mctx, 64 * 1024);
    for (size_t i = 0; i < p->n; i++) {
        r.md[i] = pcre2_match_data_create(1, p->gctx);
        TN_BAIL_IF(!r.md[i], err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    }
    /* Checked here once, not by PCRE2 at each match. What is not UTF-8 is a piece by itself. */
    const uint8_t *b = (const uint8_t *)text, *end = b + n;
    while (b < end) {
        const uint8_t *q = b;
        uint32_t cp;
        for (size_t len; q < end && (len = tn_utf8_decode(q, end, &cp)); q += len) {
        }
        if (q > b) st = split(&r, 0, (const char *)b, (size_t)(q - b));
        if (st != TERN_OK) goto out;
        for (b = q; q < end && !tn_utf8_decode(q, end, &cp); q++) {
        }
        if (q > b) st = fn(user, (const char *)b, (size_t)(q - b));
        if (st != TERN_OK) goto out;
        b = q;
    }
out:
    for (size_t i = 0; i < p->n; i++) pcre2_match_data_free(r.md[i]);
    pcre2_match_context_free(r.mctx);
    return st;
}
