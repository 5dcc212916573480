/* tern models - the models on this machine, whether they run here and how much memory they want. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/inspect.h"
#include "cli/output.h"
#include "cli/suggest.h"

#include "formats/package.h"
#include "model/catalogue.h"

#include <stdio.h>
#include <string.h>

enum { NAME = 26, LINE = 80 }; /* columns */
enum { PACKED_BITS = 5 };      /* a weight in most packages that tern pack makes */

typedef struct listing {
    bool is_json; /* else a table */
    json_t *json;
    int n;
} listing;

/* Prints a text below its line, over as many lines as it takes. */
static void print_below(const char *text) {
    static const char margin[] = "    ";
    int at = 0;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (!at || at + 1 + n > LINE) at = printf("%s%s%.*s", at ? "\n" : "", margin, n, text) - (at > 0);
        else at += printf(" %.*s", n, text);
        text += n + (text[n] == ' ');
    }
    putchar('\n');
}

/* About what a package of a model that runs takes; 0: it would be no smaller, or such models have none. */
static uint64_t packed_bytes(const tn_catalogue_entry *e) {
    tn_ctx ctx;
    tn_source *s;
    if (tn_pkg_is(e->path)) return 0;
    tn_ctx_init(&ctx, NULL);
    if (tn_source_open(&ctx, e->path, &s, NULL) != TERN_OK) return 0;
    const uint64_t n = tn_source_hparams(s)->bidirectional ? 0 : cli_count_params(s) * PACKED_BITS / 8;
    tn_source_close(&s);
    return n < e->n_bytes ? n : 0;
}

static bool list_one(void *user, const tn_catalogue_entry *e) {
    listing *l = user;
    tern_estimate m;
    tern_error err = {0};
    bool runs = tern_engine_estimate(e->path, NULL, &m, &err) == TERN_OK;
    double mib = 1 << 20, memory = runs ? (double)(m.weight_bytes + m.kv_bytes + m.work_bytes) / mib : 0;
    const uint64_t packed = runs ? packed_bytes(e) : 0;
    l->n++;
    if (l->is_json) {
        tn_json_append(&l->json, tn_json_pack("{s:s, s:s, s:s, s:I, s:s, s:b, s:s, s:I, s:I, s:I}", "name",
                                              e->name, "path", e->path, "where", e->where, "bytes",
                                              (json_int_t)e->n_bytes, "arch", runs ? m.arch : "", "runs",
                                              (int)runs, "why_not", runs ? "" : err.message, "weight_bytes",
                                              (json_int_t)(runs ? m.weight_bytes : 0), "session_bytes",
                                              (json_int_t)(runs ? m.kv_bytes + m.work_bytes : 0),
                                              "packed_bytes", (json_int_t)packed));
        return l->json != NULL;
    }
    if (l->n == 1)
        printf("%-*s %8s %7s %10s  %-10s %s\n", NAME, "NAME", "MiB", "PACKED", "MEMORY MiB", "ARCH", "WHERE");
    const char *name = cli_shown(e->name);
    printf("%-*s", NAME, name);
    if (strlen(name) > NAME) printf("\n%-*s", NAME, ""); /* on a line of its own */
    printf(" %8.0f ", (double)e->n_bytes / mib);
    if (packed) printf("%7.0f ", (double)packed / mib);
    else printf("%7s ", "-");
    if (runs) printf("%10.0f  %-10s %s\n", memory, m.arch, e->where);
    else {
        printf("%10s  %-10s %s\n", "-", "-", e->where);
        print_below(cli_shown(err.message));
    }
    return !ferror(stdout);
}

int cmd_models(int argc, char **argv) {
    bool json = false;
    const arg_spec specs[] = {
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print a JSON array"},
        {0},
    };
    const command c = {
        "models", "[OPTIONS]",
        "List the models in the folders of $TERN_MODELS (colon-separated) and in the caches of Hugging Face, "
        "Ollama and LM Studio, which are only read.\nMEMORY covers the weights and a context of 4096 tokens. "
        "PACKED is about what a "
        "package takes where it is smaller: a token reads that much instead (tern pack; models of floats are "
        "packed by themselves). "
        "Use a model by its name, or by the last part of the name if that is unique.",
        specs, 0};
    const char *words[1];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    listing l = {.is_json = json, .json = json ? json_array() : NULL};
    if (!json || l.json) tn_catalogue_each(list_one, &l);
    if (json) return cli_emit_json(l.json, JSON_INDENT(2));
    if (!l.n) {
        fputs("tern: no models found: fetch one with tern pull NAME, list your folders in TERN_MODELS, or "
              "give a path\n",
              stderr);
        cli_suggest_here();
    }
    return EXIT_OK;
}
