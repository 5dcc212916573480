/* Benchmarks' data and files of results (measure/suite.h). The first byte chooses the reader; zeros divide its texts. What a
 * reader takes is judged, summed up and compared, which cannot fail. */
#include "measure/suite_impl.h"

#include <stdlib.h>
#include <string.h>

static void results(const char *text, size_t n) {
    json_t *v = NULL, *sum = NULL, *pair = NULL;
    size_t whole = 0;
    if (tn_suite_parse(text, n, "results", &whole, &v, NULL) != TERN_OK) return;
    if (whole > n || tn_suite_summary(v, &sum, NULL) != TERN_OK) abort();
    json_int_t scored = json_integer_value(json_object_get(sum, "items")),
               skipped = json_integer_value(json_object_get(sum, "skipped"));
    if ((size_t)(scored + skipped) != json_array_size(json_object_get(v, "items"))) abort();
    if (tn_suite_compare(v, v, &pair, NULL) == TERN_OK) {
        if (json_number_value(json_object_get(pair, "difference")) != 0) abort();
    } else if (scored) {
        abort();
    }
    json_decref(sum);
    json_decref(pair);
    json_decref(v);
}

static void mmlu(const char *text, size_t n) {
    json_t *rows = NULL, *items = NULL;
    if (tn_suite_csv(text, n, "table", &rows, NULL) != TERN_OK) return;
    (void)tn_mmlu_items(rows, "a subject", "table", &items, NULL);
    json_decref(items);
    json_decref(rows);
}

static void bfcl(const char *text, size_t n, const char *more, size_t n_more) {
    json_t *questions = NULL, *answers = NULL, *items = NULL, *item, *calls;
    const char *zero = memchr(more, 0, n_more), *arguments = zero ? zero + 1 : "{}";
    size_t i;
    tern_status st = tn_suite_lines(text, n, "questions", &questions, NULL);
    if (st == TERN_OK)
        st = tn_suite_lines(more, zero ? (size_t)(zero - more) : n_more, "answers", &answers, NULL);
    if (st == TERN_OK) st = tn_bfcl_items(questions, answers, "multiple", "questions", &items, NULL);
    json_array_foreach(items, i, item) {
        const char *name =
            json_string_value(json_object_get(json_array_get(json_object_get(item, "function"), 0), "name"));
        json_t *tools = tn_bfcl_tools(item),
               *call = tn_json_pack("{s:s, s:s}", "name", name ? name : "", "arguments", arguments);
        char why[40];
        bool right;
        calls = json_array();
        tn_json_append(&calls, call);
        if (!tools || !tn_bfcl_right(item, calls, why, sizeof why, &right)) abort();
        if (!right && !why[0]) abort();
        json_decref(calls);
        json_decref(tools);
    }
    json_decref(questions);
    json_decref(answers);
    json_decref(items);
}

static void ifeval(const char *text, size_t n, const char *answer, size_t n_answer) {
    json_t *lines = NULL, *items = NULL, *item, *marks, *m;
    size_t i, k;
    tern_status st = tn_suite_lines(text, n, "prompts", &lines, NULL);
    if (st == TERN_OK) (void)tn_ifeval_items(lines, "prompts", &items, NULL);
    json_array_foreach(items, i, item) {
        if (tn_ifeval_check(item, answer, n_answer < 400 ? n_answer : 400, &marks, NULL) != TERN_OK) abort();
        if (json_array_size(marks) != json_array_size(json_object_get(item, "instructions"))) abort();
        json_array_foreach(marks, k, m) /* what holds as it is holds loosely */
            if (json_is_true(json_object_get(m, "strict")) && !json_is_true(json_object_get(m, "loose")))
                abort();
        json_decref(marks);
    }
    json_decref(lines);
    json_decref(items);
}

static tern_status short_enough(void *user, const tn_ruler_text *t, size_t *n, tern_error *err) {
    (void)user;
    (void)err;
    *n = t->prompt.n;
    return TERN_OK;
}

static void ruler(const char *text, size_t n) {
    json_t *v = tn_json_parse(text, n, JSON_REJECT_DUPLICATES, NULL), *set = NULL, *shared = NULL;
    tn_ruler_text t;
    bool squad = json_is_object(v);
    tern_status st =
        squad ? tn_ruler_squad(v, "questions", &set, NULL) : tn_ruler_hotpotqa(v, "questions", &set, NULL);
    if (st == TERN_OK) {
        shared = tn_json_pack("{s:O}", squad ? "squad" : "hotpotqa", set);
        st = tn_ruler_make(squad ? "qa_1" : "qa_2", 7, 4000, shared, short_enough, NULL, &t, NULL);
        double score;
        if (st == TERN_OK && (t.prompt.n > 4000 || !tn_ruler_score(t.answers, t.any, t.prompt.p, &score)))
            abort();
        tn_ruler_free(&t);
    }
    json_decref(shared);
    json_decref(set);
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text || !size) return free(text), 0;
    memcpy(text, data, size);
    text[size] = 0;
    const char *p = text + 1, *zero = memchr(p, 0, size - 1), *more = zero ? zero + 1 : text + size;
    size_t n = size - 1, n_one = zero ? (size_t)(zero - p) : n, n_more = (size_t)(text + size - more);
    switch (data[0]) {
    case 'r': results(p, n); break;
    case 'm': mmlu(p, n); break;
    case 'b': bfcl(p, n_one, more, n_more); break;
    case 'i': ifeval(p, n_one, more, n_more); break;
    case 'q': ruler(p, n); break;
    }
    free(text);
    return 0;
}
