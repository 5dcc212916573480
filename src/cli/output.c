#include "cli/output.h"

#include "cli/args.h"

#include <stdlib.h>

int emit_json(json_t *j, size_t flags) {
    char *text;
    tern_error err;
    tern_status st = tn_json_text(j, flags, &text, &err);
    json_decref(j);
    if (st != TERN_OK) return failed(&err);
    fputs(text, stdout);
    putchar('\n');
    free(text);
    return EXIT_OK; /* main checks the stream */
}
