/* The interpreter against jinja2 (skipped where python3-jinja2 is absent): real templates with every kind of
 * conversation, and small random templates. tests/oracle/chat_templates.py makes the lines that are compared.
 * With a file as argument its lines are compared instead. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOW_S = 1763719200, SKIP = 77 };

typedef struct tally {
    int n, same, both_refuse, unsupported, corners, wrong;
} tally;

/* What jinja2 renders must be rendered the same, or, with `may_lack`, refused by name; what jinja2 refuses
 * must be refused. With may_lack, one of the two refusing is counted as a corner: jinja2 folds constants
 * by other rules than it runs by, generators fail late, and a name that a template sets is unknown to
 * macros before. */
static void compare(tn_ctx *ctx, const json_t *line, bool may_lack, tally *t) {
    const json_t *source = json_object_get(line, "source"), *text = json_object_get(line, "text");
    const tn_jinja_input in = {.source = json_string_value(source),
                               .n_source = json_string_length(source),
                               .variables = json_object_get(line, "variables"),
                               .now_s = NOW_S};
    tn_segments out;
    tern_error err = {0};
    tn_segments_init(&out, ctx);
    tern_status st = tn_jinja_render(ctx, &in, &out, &err);
    bool same = st == TERN_OK && json_is_string(text) && json_string_length(text) == out.n_bytes &&
                !memcmp(json_string_value(text), out.text ? out.text : "", out.n_bytes);
    t->n++;
    if (same) {
        t->same++;
    } else if (st != TERN_OK && json_is_null(text)) {
        t->both_refuse++;
    } else if ((st == TERN_E_UNSUPPORTED || st == TERN_E_LIMIT) && may_lack) {
        t->unsupported++;
        if (getenv("TERN_VERBOSE"))
            printf("%s: %s\n", json_string_value(json_object_get(line, "name")), err.message);
    } else if (may_lack && (st == TERN_OK) != json_is_string(text) && !getenv("TERN_VERBOSE")) {
        t->corners++;
    } else if (t->wrong++ < 20) {
        printf("FAILED: %s\n", json_string_value(json_object_get(line, "name")));
        if (in.n_source < 1000) printf("--- template\n%s\n", in.source);
        printf("--- jinja2\n%s\n--- tern\n", json_is_string(text) ? json_string_value(text) : "(refuses)");
        if (st == TERN_OK) printf("%.*s\n", (int)out.n_bytes, out.text ? out.text : "");
        else printf("(%s)\n", err.message);
    }
    tn_segments_free(&out);
}

static tally compare_all(tn_ctx *ctx, FILE *f, bool may_lack) {
    char *line = NULL;
    size_t cap = 0;
    tally t = {0};
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
        if (!j) {
            printf("not a line of JSON: %.60s\n", line);
            t.wrong++;
            continue;
        }
        compare(ctx, j, may_lack, &t);
        json_decref(j);
    }
    free(line);
    return t;
}

static bool oracle(tn_ctx *ctx, const char *what, const char *arguments, int least, bool may_lack) {
    char command[4096];
    snprintf(command, sizeof command, "python3 " TN_SOURCE_DIR "/tests/oracle/chat_templates.py %s",
             arguments);
    FILE *f = popen(command, "r");
    if (!f) return false;
    tally t = compare_all(ctx, f, may_lack);
    int rc = pclose(f);
    printf("%s: %d compared, %d the same, %d refused by both, %d lacking, %d corners, %d wrong\n", what, t.n,
           t.same, t.both_refuse, t.unsupported, t.corners, t.wrong);
    return rc == 0 && t.wrong == 0 && t.corners <= t.n / 200 && t.same >= least;
}

int main(int argc, char **argv) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    if (argc > 1) {
        FILE *f = fopen(argv[1], "r");
        if (!f) return 2;
        tally t = compare_all(&ctx, f, true);
        printf("%d compared, %d the same, %d refused by both, %d lacking, %d corners, %d wrong\n", t.n,
               t.same, t.both_refuse, t.unsupported, t.corners, t.wrong);
        fclose(f);
        return t.wrong != 0;
    }
    if (system("python3 -c 'import jinja2' 2>/dev/null")) {
        puts("python3-jinja2 is absent: skipped");
        return SKIP;
    }
    char arguments[2048];
    bool ok = oracle(&ctx, "templates", TN_SOURCE_DIR "/tests/oracle/templates", 300, false);
    const char *more = getenv("TERN_TEMPLATES"), *seed = getenv("TERN_SEED"), *n = getenv("TERN_TEST_ROUNDS");
    if (more) ok &= oracle(&ctx, "further templates", more, 0, false);
    snprintf(arguments, sizeof arguments, "--random %s %s", n ? n : "1500", seed ? seed : "20");
    ok &= oracle(&ctx, "random", arguments, 300, true);
    return !ok;
}
