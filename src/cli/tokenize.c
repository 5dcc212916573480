/* tern tokenize - standard input to token ids, or back. */
#include "cli/args.h"
#include "cli/commands.h"

#include "package/tokens.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int decode(const tn_tokenizer *t, const char *text) {
    size_t cap = 8 * tn_tokenizer_max_token_bytes(t) + 64;
    char *buf = malloc(cap);
    if (!buf) return cli_failed_text("no memory for a token");
    tn_detok d;
    tn_detok_init(&d, t, true, true);
    int rc = EXIT_OK;
    for (const char *p = text; rc == EXIT_OK;) {
        while (isspace((unsigned char)*p) || *p == ',' || *p == '[' || *p == ']') p++;
        if (!*p) break;
        char *end;
        long id = strtol(p, &end, 10);
        if (end == p || id < 0 || (unsigned long)id >= tn_tokenizer_n_vocab(t)) {
            rc = cli_failed_text("'%.20s': want token ids from 0 to %zu", p, tn_tokenizer_n_vocab(t) - 1);
            break;
        }
        fwrite(buf, 1, tn_detok_push(&d, (int32_t)id, buf, cap), stdout);
        p = end;
    }
    fwrite(buf, 1, tn_detok_flush(&d, buf, cap), stdout);
    free(buf);
    return rc;
}

static int encode(const tn_tokenizer *t, const char *text, size_t n, bool ids_only, bool special) {
    size_t cap = n + 16, n_ids;
    int32_t *ids = malloc(cap * sizeof *ids);
    if (!ids) return cli_failed_text("no memory for %zu bytes of text", n);
    tern_error err;
    if (tn_tokenize(t, text, n, special, true, ids, cap, &n_ids, &err) != TERN_OK) {
        free(ids);
        return cli_failed(&err);
    }
    size_t cap_buf = tn_tokenizer_max_token_bytes(t) + 1;
    char *buf = malloc(cap_buf);
    if (!buf) {
        free(ids);
        return cli_failed_text("no memory for a token");
    }
    for (size_t i = 0; i < n_ids; i++) {
        if (ids_only) {
            printf("%s%d", i ? " " : "", ids[i]);
            continue;
        }
        size_t len = tn_token_bytes(t, ids[i], true, buf, cap_buf);
        printf("%7d  '", ids[i]);
        for (size_t b = 0; b < len && b < cap_buf; b++) {
            unsigned char ch = (unsigned char)buf[b];
            if (ch == '\n') fputs("\\n", stdout);
            else if (ch < 32) printf("\\x%02x", ch);
            else putchar(ch);
        }
        puts("'");
    }
    if (ids_only) putchar('\n');
    free(buf);
    free(ids);
    return EXIT_OK;
}

int cmd_tokenize(int argc, char **argv) {
    model_args ma = {0};
    bool ids = false, back = false, no_special = false;
    const arg_spec specs[] = {
        {"model", 'm', "MODEL", ARG_STR, &ma.model, 0, 0,
         "a GGUF file (one with only a vocabulary will do), a Hugging Face folder or a .tern package"},
        {"ids", 0, NULL, ARG_FLAG, &ids, 0, 0, "print only the ids, on one line"},
        {"decode", 0, NULL, ARG_FLAG, &back, 0, 0, "read ids from standard input and print their text"},
        {"no-special", 0, NULL, ARG_FLAG, &no_special, 0, 0,
         "do not add the tokens that the model expects around a prompt (BOS)"},
        {0},
    };
    const command c = {"tokenize", "MODEL [--ids | --decode]  or  -m MODEL [--ids | --decode]",
                       "Turn standard input into tokens, one per line, or ids back into text.", specs, 1};
    const char *words[2];
    char path[MODEL_PATH_MAX];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (ma.model && words[0]) return cli_usage_error(&c, "unexpected argument '%s'", words[0]);
    if (words[0]) ma.model = words[0];
    if (!ma.model) return cli_usage_error(&c, "MODEL is required");
    if (ids && back) return cli_usage_error(&c, "--ids and --decode exclude each other");
    if ((rc = cli_model_word(&ma.model, path)) >= 0) return rc;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_tokenizer *t = NULL;
    tern_error err;
    if (tn_tokens_open(&ctx, ma.model, &t, &err) != TERN_OK) return cli_failed(&err);
    size_t n;
    char *text = cli_read_text_file("-", &n);
    rc = !text ? EXIT_FAILED : back ? decode(t, text) : encode(t, text, n, ids, !no_special);
    free(text);
    tn_tokenizer_close(&t);
    return rc;
}
