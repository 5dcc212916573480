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

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* Llama 3 and its relatives differ in how many digits stay together */
#define LLAMA3(digits)                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Case-aware words: GPT-4o and Tekken */
#define CASED(suffix, digits)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

static const char *const pre_gpt2[] = {GPT2, NULL};
static const char *const pre_digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const pre_llama3[] = {LLAMA3("\\p{N}{1,3}"), NULL};
static const char *const pre_qwen2[] = {LLAMA3("\\p{N}"), NULL};
static const char *const pre_deepseek_coder[] = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
                                                 CJK,        "\\p{N}",      NULL};
static const char *const pre_deepseek3[] = {
    "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    NULL};
static const char *const pre_falcon[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]", NULL};
static const char *const pre_default[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]",
                                          NULL};
static const char *const pre_gpt4o[] = {CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}"), NULL};
static const char *const pre_tekken[] = {CASED("", "\\p{N}"), NULL};

static const tn_pretok_family families[] = {
    {.name = "default", .patterns = pre_default},
    {.name = "gpt-2", .patterns = pre_gpt2},
    {.name = "phi-2", .patterns = pre_gpt2},
    {.name = "olmo", .patterns = pre_gpt2},
    {.name = "mpt", .patterns = pre_gpt2},
    {.name = "jais", .patterns = pre_gpt2},
    {.name = "smollm", .patterns = pre_digits_gpt2},
    {.name = "starcoder", .patterns = pre_digits_gpt2},
    {.name = "refact", .patterns = pre_digits_gpt2},
    {.name = "command-r", .patterns = pre_digits_gpt2},
    {.name = "codeshell", .patterns = pre_digits_gpt2},
    {.name = "llama-bpe", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "falcon3", .patterns = pre_llama3, .ignore_merges = true, .add_bos = true},
    {.name = "dbrx", .patterns = pre_llama3},
    {.name = "smaug-bpe", .patterns = pre_llama3},
    {.name = "qwen2", .patterns = pre_qwen2, .nfc = true},
    {.name = "stablelm2", .patterns = pre_qwen2},
    {.name = "deepseek-r1-qwen", .patterns = pre_qwen2, .nfc = true},
    {.name = "deepseek-coder", .patterns = pre_deepseek_coder},
    {.name = "deepseek-v3", .patterns = pre_deepseek3},
    {.name = "falcon", .patterns = pre_falcon},
    {.name = "gpt-4o", .patterns = pre_gpt4o},
    {.name = "tekken", .patterns = pre_tekken, .ignore_merges = true, .add_bos = true},
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
        p->jit[p->n] = pcre2_jit_compile(c, PCRE2_JIT_COMPLETE) == 0;
    }
out:
    pcre2_compile_context_free(cctx);
    if (st != TERN_OK) tn_pretok_close(&p);
    *out = p;
    return st;
}

/* One run: the patterns' match data, and where the pieces go. */
typedef struct run {
    const tn_pretok *p;
    pcre2_match_context *mctx;
    pcre2_match_data *md[TN_PRETOK_MAX];
    tn_piece_fn fn;
    void *user;
    tern_error *err;
} run;

/* text is valid UTF-8 and never empty */
static tern_status split(run *r, size_t stage, const char *text, size_t n) {
    if (stage == r->p->n) return r->fn(r->user, text, n);
    const pcre2_code *code = r->p->code[stage];
    pcre2_match_data *md = r->md[stage];
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
    size_t done = 0, from = 0; /* pieces are given out up to `done`, the search goes on at `from` */
    while (from < n) {
        int rc;
        if (r->p->jit[stage]) {
            rc = pcre2_jit_match(code, (PCRE2_SPTR)text, n, from, 0, md, r->mctx);
            if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
                rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, md,
                                 r->mctx);
        } else {
            rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, md, r->mctx);
        }
        if (rc == PCRE2_ERROR_NOMATCH) break;
        TN_FAIL_IF(rc < 0, r->err, rc == PCRE2_ERROR_NOMEMORY ? TERN_E_MEMORY : TERN_E_LIMIT,
                   "pre-tokenisation pattern %zu gave up at byte %zu of %zu (PCRE2 error %d)", stage, from, n,
                   rc);
        size_t a = ov[0], b = ov[1];
        TN_FAIL_IF(a < done || b < a || b > n, r->err, TERN_E_UNSUPPORTED,
                   "pre-tokenisation pattern %zu moves the start of its match", stage);
        if (a == b) { /* nothing to cut out: look again behind the next character */
            from = a;
            do from++;
            while (from < n && ((uint8_t)text[from] & 0xc0) == 0x80);
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
    if (n == 0) return TERN_OK;
    if (p->n == 0) return fn(user, text, n);
    tern_status st = TERN_OK;
    run r = {.p = p, .fn = fn, .user = user, .err = err};
    r.mctx = pcre2_match_context_create(p->gctx);
    TN_BAIL_IF(!r.mctx, err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    /* A sane pattern looks at each character a few times; a long run of one class may count as one match. */
    size_t limit = n < (1u << 28) ? 1000000 + 4 * n : UINT32_MAX;
    pcre2_set_match_limit(r.mctx, (uint32_t)limit);
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
