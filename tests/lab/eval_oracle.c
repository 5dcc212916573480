/* Are the evaluation tasks' figures those computed from another engine's tokens and logits
 * (tests/oracle/eval)? */
#include "lab/eval.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

#define FOLDER TN_SOURCE_DIR "/tests/oracle/eval/"

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static void close_to(const char *what, size_t i, double got, double want) {
    if (!(fabs(got - want) <= 1e-4 * fabs(want) + 1e-9))
        fail_msg("result %zu: %s is %.7g, want %.7g", i, what, got, want);
}

static void expected_figures(void **state) {
    (void)state;
    const char *data = getenv("TERN_DATA");
    char path[1024];
    snprintf(path, sizeof path, "%s/models/stories260K.gguf", data ? data : TN_SOURCE_DIR "/../shared/data");
    struct stat st;
    if (stat(path, &st)) {
        print_message("no %s; skipped\n", path);
        skip();
    }
    tern_error err = {0};
    tern_engine *e = NULL;
    if (tern_engine_open(path, NULL, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    json_error_t je;
    json_t *j = json_load_file(FOLDER "expected.json", 0, &je), *list = json_object_get(j, "results"), *want;
    if (!j) fail_msg("%s:%d: %s", je.source, je.line, je.text);
    size_t i;
    assert_int_equal(json_array_size(list), 6);
    json_array_foreach(list, i, want) {
        char file[1024];
        snprintf(file, sizeof file, FOLDER "%s", json_string_value(json_object_get(want, "file")));
        tn_eval_options o = {.task = json_string_value(json_object_get(want, "task")),
                             .data = file,
                             .n_ctx = (int32_t)number(want, "n_ctx")};
        tn_eval_result r;
        if (tn_eval(e, &o, &r, &err) != TERN_OK) fail_msg("result %zu: %s", i, err.message);
        assert_int_equal(r.n_items, (int64_t)number(want, "items"));
        assert_int_equal(r.n_skipped, 0);
        close_to("perplexity", i, r.perplexity, number(want, "perplexity"));
        close_to("standard error", i, r.stderr_, number(want, "stderr"));
        if (!r.is_ppl) close_to("accuracy", i, r.value, number(want, "accuracy"));
    }
    json_decref(j);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(expected_figures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
