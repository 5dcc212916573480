/* Time of token masks: a document's tokens are followed under a grammar, a mask before each.
 *
 *   bench_grammar VOCABULARY...     each a Hugging Face folder or a vocabulary GGUF
 *
 * "first": a new grammar's first document, with everything computed that it needs; "again": the same once
 * more, from what was kept. Microseconds per token: mean over the document, and the longest. */
#include "base/clock.h"
#include "base/order.h"
#include "text/grammar/grammar.h"
#include "text/vocab_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char orders[] = "{\"$defs\":{\"address\":{\"type\":\"object\",\"properties\":{\"street\":{"
                             "\"type\":\"string\"},\"city\":{\"type\":"
                             "\"string\",\"maxLength\":60},\"zip\":{\"type\":\"string\",\"pattern\":\"^[0-9]{"
                             "5}$\"}},\"required\":[\"street\",\"city\"],"
                             "\"additionalProperties\":false}},\"type\":\"object\",\"properties\":{\"id\":{"
                             "\"type\":\"integer\",\"minimum\":1},\"customer\":{"
                             "\"type\":\"string\",\"minLength\":1,\"maxLength\":80},\"when\":{\"type\":"
                             "\"string\",\"format\":\"date-time\"},\"to\":{\"$ref\":"
                             "\"#/$defs/"
                             "address\"},\"items\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":"
                             "\"object\",\"properties\":{\"name\":{"
                             "\"type\":\"string\"},\"count\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":"
                             "999},\"price\":{\"type\":\"number\",\"minimum\":0},"
                             "\"state\":{\"enum\":[\"new\",\"packed\",\"sent\"]}},\"required\":[\"name\","
                             "\"count\"],\"additionalProperties\":false}},"
                             "\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}},\"required\":"
                             "[\"id\",\"customer\",\"items\"],"
                             "\"additionalProperties\":false}";
static const char open_schema[] =
    "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"},\"customer\":{\"type\":\"string\"}}}";
static const char gbnf[] =
    "root ::= object\nobject ::= \"{\" ws (pair (\",\" ws pair)*)? ws \"}\"\npair ::= string \":\" ws value\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))* "
    "\"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)?\nws ::= [ \\n]{0,20}\n";
static const char document[] =
    "{\"id\": 40712, \"customer\": \"J\xc3\xbcrgen M\xc3\xb6ller & S\xc3\xb6hne, Hamburg\", \"when\": "
    "\"2024-02-29T17:03:59+01:00\", "
    "\"to\": {\"street\": \"Gro\xc3\x9f"
    "e Elbstra\xc3\x9f"
    "e 14, back yard, second door on the left\", \"city\": \"Hamburg-Altona\", \"zip\": "
    "\"22767\"}, \"items\": [\n  {\"name\": \"walnut shelf, oiled, 120 x 30 cm\", \"count\": 2, \"price\": "
    "89.90, \"state\": \"packed\"}, "
    "{\"name\": \"brass hook (pack of ten) \xe2\x80\x94 \xe7\x9c\x9f\xe9\x8d\xae\", \"count\": 12, "
    "\"price\": 4.5, \"state\": \"new\"}, {\"name\": "
    "\"linseed oil \\\"cold pressed\\\", 500 ml\", \"count\": 1, \"state\": \"sent\"}], \"note\": \"Please "
    "ring twice; the bell at the "
    "front is broken since Thursday and the neighbours' dog barks at anyone who stays for longer than a "
    "minute.\"}";

/* Follows the document once; microseconds of the masks: mean and longest. */
static bool follow(tn_grammar *g, const int32_t *ids, size_t n, double *mean, double *most) {
    tern_error err = {0};
    double sum = 0;
    *most = 0;
    if (tn_grammar_begin(g, NULL, &err) != TERN_OK) return false;
    for (size_t i = 0; i < n; i++) {
        const uint64_t *mask;
        int64_t t0 = tn_now_ns();
        tern_status st = tn_grammar_mask(g, &mask, &err);
        double us = (double)(tn_now_ns() - t0) * 1e-3;
        sum += us;
        *most = us > *most ? us : *most;
        if (st != TERN_OK) {
            fprintf(stderr, "%s\n", err.message);
            return false;
        }

        if (!(mask[ids[i] >> 6] >> (ids[i] & 63) & 1) || !tn_grammar_take(g, ids[i])) {
            fprintf(stderr, "token %zu of the document is not allowed\n", i);
            return false;
        }
    }
    *mean = sum / (double)n;
    return tn_grammar_can_end(g);
}

static bool one(tn_ctx *ctx, const tn_gvocab *v, const char *name, const char *text, bool schema,
                const int32_t *ids, size_t n) {
    enum { ROUNDS = 9 };
    double make[ROUNDS], first[ROUNDS], first_most[ROUNDS], again[ROUNDS], again_most[ROUNDS];
    tn_grammar_stats s = {0};
    for (int r = 0; r < ROUNDS; r++) {
        tern_error err = {0};
        tn_grammar *g;
        int64_t t0 = tn_now_ns();
        tern_status st = schema ? tn_grammar_open_schema(ctx, text, strlen(text), &g, &err)
                                : tn_grammar_open_gbnf(ctx, text, strlen(text), &g, &err);
        if (st == TERN_OK) st = tn_grammar_bind(g, v, &err);
        make[r] = (double)(tn_now_ns() - t0) * 1e-3;
        if (st != TERN_OK || !follow(g, ids, n, &first[r], &first_most[r]) ||
            !follow(g, ids, n, &again[r], &again_most[r])) {
            fprintf(stderr, "%s: %s\n", name, err.message);
            return false;
        }
        s = tn_grammar_get_stats(g);
        tn_grammar_close(&g);
    }
    double *all[] = {make, first, first_most, again, again_most};
    for (int i = 0; i < 5; i++) qsort(all[i], ROUNDS, sizeof(double), tn_by_double);
    printf("  %-14s %7zu %9.0f %9.1f %9.0f %9.2f %9.1f %8zu\n", name, n, make[ROUNDS / 2], first[ROUNDS / 2],
           first_most[ROUNDS / 2], again[ROUNDS / 2], again_most[ROUNDS / 2], s.n_states);
    return true;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s VOCABULARY...\n", argv[0]);
        return 2;
    }
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    for (int a = 1; a < argc; a++) {
        tern_error err = {0};
        tn_tokenizer *t;
        tn_gvocab *v;
        if (vocab_open_any(&ctx, argv[a], &t, &err) != TERN_OK) {
            fprintf(stderr, "%s: %s\n", argv[a], err.message);
            return 1;
        }
        int64_t t0 = tn_now_ns();
        if (tn_gvocab_open(&ctx, t, tn_tokenizer_n_vocab(t), &v, &err) != TERN_OK) return 1;
        printf("%s: %zu tokens, tree of %zu nodes in %.1f ms\n", argv[a], tn_tokenizer_n_vocab(t), v->n_nodes,
               (double)(tn_now_ns() - t0) * 1e-6);
        printf("  %-14s %7s %9s %9s %9s %9s %9s %8s\n", "grammar", "tokens", "make us", "first", "longest",
               "again", "longest", "states");
        int32_t ids[2000];
        size_t n;
        if (tn_tokenize(t, document, strlen(document), false, false, ids, 2000, &n, &err) != TERN_OK)
            return 1;
        bool ok = one(&ctx, v, "schema", orders, true, ids, n) &&
                  one(&ctx, v, "open schema", open_schema, true, ids, n) &&
                  one(&ctx, v, "any JSON", "true", true, ids, n) && one(&ctx, v, "GBNF", gbnf, false, ids, n);
        tn_gvocab_close(&v);
        tn_tokenizer_close(&t);
        if (!ok) return 1;
    }
    return 0;
}
