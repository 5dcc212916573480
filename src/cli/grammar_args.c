#include "cli/grammar_args.h"

#include <stdlib.h>

bool cli_grammar_options(grammar_args *a, tern_generate_options *o) {
    const char *file = a->grammar && a->grammar[0] == '@' ? a->grammar + 1
                       : a->schema && a->schema[0] != '{' ? a->schema
                                                          : NULL;
    size_t n;
    if (a->grammar && a->schema) {
        cli_failed_text("--grammar and --json-schema: want one of them");
        return false;
    }
    if (a->after && !a->grammar && !a->schema) {
        cli_failed_text("--grammar-after goes with --grammar or --json-schema");
        return false;
    }
    if (file && !(a->text = cli_read_text_file(file, &n))) return false;
    o->grammar = a->grammar && file ? a->text : a->grammar;
    o->json_schema = a->schema && file ? a->text : a->schema;
    o->grammar_after = a->after;
    return true;
}

void cli_grammar_args_free(grammar_args *a) { free(a->text); }
