/* cli/grammar_args.h - the flags that hold an answer to a grammar, which run and chat share. */
#ifndef TN_CLI_GRAMMAR_ARGS_H
#define TN_CLI_GRAMMAR_ARGS_H

#include "cli/args.h"

typedef struct grammar_args {
    const char *grammar, *schema, *after;
    char *text; /* of a file, owned */
} grammar_args;

#define GRAMMAR_ARGS(a)                                                                                      \
    {"grammar",                                                                                              \
     0,                                                                                                      \
     "TEXT|@FILE",                                                                                           \
     ARG_STR | ARG_MORE,                                                                                     \
     &(a).grammar,                                                                                           \
     0,                                                                                                      \
     0,                                                                                                      \
     "the answer follows this grammar (GBNF)"},                                                              \
        {"json-schema", 0, "FILE|TEXT", ARG_STR | ARG_MORE,                                                  \
         &(a).schema,   0, 0,           "the answer is JSON that this schema accepts; TEXT begins with {"},  \
    {                                                                                                        \
        "grammar-after", 0, "TEXT", ARG_STR | ARG_MORE, &(a).after, 0, 0,                                    \
            "with these: the grammar applies after TEXT, so that the model may think first"                  \
    }

/* Puts the grammar into the options and reads its files. Returns false with a message printed. */
bool cli_grammar_options(grammar_args *a, tern_generate_options *o);
void cli_grammar_args_free(grammar_args *a);

#endif
