/* Are the published benchmarks judged as their authors do it (against suite_judged.py, item by item), are ruler's texts what
 * its description says, and are tables and results read or refused? */
#include "measure/suite_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- against Python ------------------------------------------------------------------------------ */

static void judge_call(const json_t *c, const char *line) {
    char why[200];
    bool right, want = json_is_true(json_object_get(c, "right"));
    assert_true(
        tn_bfcl_right(json_object_get(c, "item"), json_object_get(c, "calls"), why, sizeof why, &right));
    if (right != want)
        fail_msg("call is %s, want %s (%s): %s", right ? "right" : "wrong", want ? "right" : "wrong", why,
                 line);
}

static void judge_answer(const json_t *c, const char *line) {
    json_t *lines = json_array(), *items = NULL, *marks = NULL;
    const json_t *answer = json_object_get(c, "answer");
    tern_error err = {0};
    json_array_append(lines, json_object_get(c, "item"));
    if (tn_ifeval_items(lines, "cases", &items, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(tn_ifeval_check(json_array_get(items, 0), json_string_value(answer),
                                     json_string_length(answer), &marks, &err),
                     TERN_OK);
    if (!json_equal(marks, json_object_get(c, "marks")))
        fail_msg("%s\nwe say %s", line, json_dumps(marks, 0));
    json_decref(marks);
    json_decref(items);
    json_decref(lines);
}

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static void judge_number(const json_t *c, const char *line) {
    double from, to, p = tn_suite_mcnemar((int64_t)number(c, "a"), (int64_t)number(c, "b"));
    tn_suite_wilson(number(c, "share"), number(c, "n"), &from, &to);
    const json_t *want = json_object_get(c, "interval");
    if (fabs(from - json_number_value(json_array_get(want, 0))) > 1e-9 ||
        fabs(to - json_number_value(json_array_get(want, 1))) > 1e-9)
        fail_msg("interval %.12g to %.12g: %s", from, to, line);
    if (fabs(p - number(c, "p")) > 1e-9 * fmax(1, p)) fail_msg("McNemar %.12g: %s", p, line);
}

static void as_python(void **state) {
    (void)state;
    static const char *const kinds[] = {"call", "instruction", "number"};
    static void (*const judges[])(const json_t *, const char *) = {judge_call, judge_answer, judge_number};
    const char *seed = getenv("TERN_SEED");
    char command[300], *line = NULL;
    int n[3] = {0}, n_right = 0;
    size_t cap = 0;
    snprintf(command, sizeof command, "python3 '" TN_SOURCE_DIR "/tests/measure/suite_judged.py' %d 6000",
             seed ? atoi(seed) : 1);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_error_t je;
        json_t *c = json_loads(line, 0, &je);
        if (!c) fail_msg("%s: %s", je.text, line);
        for (int i = 0; i < 3; i++)
            if (!strcmp(kinds[i], json_string_value(json_object_get(c, "kind")))) judges[i](c, line), n[i]++;
        n_right += json_is_true(json_object_get(c, "right"));
        json_decref(c);
    }
    free(line);
    assert_int_equal(pclose(f), 0);
    assert_true(n[0] > 1500 && n[1] > 1500 && n[2] > 1500 && n_right > 200 && n_right < n[0] / 2);
}

/* ---- ruler --------------------------------------------------------------------------------------- */

static tern_status words(void *user, const tn_ruler_text *t, size_t *n, tern_error *err) {
    (void)user;
    (void)err;
    *n = 0;
    for (const char *p = t->prompt.p; *p; p++) *n += *p == ' ' || *p == '\n';
    return TERN_OK;
}

static size_t times(const char *text, const char *what) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
    return n;
}

/* Texts fit, and one more unit would not; they hold what they ask for, as often as they should; a seed gives one text. */
static void texts(void **state) {
    (void)state;
    const char *task, *needs;
    int32_t tokens;
    json_error_t je;
    json_t *shared = json_loads(
        "{\"text\": [\"One is here.\", \"Two is there.\"], \"squad\": {\"docs\": [\"first x\", \"second y\", "
        "\"third z\"], "
        "\"qas\": [{\"question\": \"Which?\", \"answers\": [\"second Y\", \"no\"], \"gold\": [1]}]}}",
        0, &je);
    assert_non_null(shared);
    for (size_t i = 0; (task = tn_ruler_task(i, &tokens, &needs)); i++) {
        tern_error err = {0};
        tn_ruler_text t, again, other;
        size_t n, least = 1000, k;
        json_t *want;
        double score;
        assert_true(tokens > 0);
        if (needs && !json_object_get(shared, needs)) continue;
        if (tn_ruler_make(task, 5, least, shared, words, NULL, &t, &err) != TERN_OK)
            fail_msg("%s: %s", task, err.message);
        assert_int_equal(words(NULL, &t, &n, &err), TERN_OK);
        assert_true(n <= least && (n > least - 60 || !strcmp(task, "qa_1")));
        assert_int_equal(tn_ruler_make(task, 5, least, shared, words, NULL, &again, &err), TERN_OK);
        assert_int_equal(tn_ruler_make(task, 6, least, shared, words, NULL, &other, &err), TERN_OK);
        assert_string_equal(t.prompt.p, again.prompt.p);
        if (strcmp(task, "qa_1") != 0) assert_string_not_equal(t.prompt.p, other.prompt.p);
        assert_true(tn_ruler_score(t.answers, t.any, t.prompt.p, &score) &&
                    score == 1); /* the text has its answers */
        assert_true(tn_ruler_score(t.answers, t.any, "zzz", &score) && score == 0);
        json_array_foreach(t.answers, k, want) {
            char spaced[80];
            size_t found = times(t.prompt.p, json_string_value(want));
            snprintf(spaced, sizeof spaced, " %s", json_string_value(want));
            if (!strncmp(task, "niah", 4)) assert_int_equal(found, 1);
            else if (!strcmp(task, "vt")) assert_int_equal(found, k + 1 < json_array_size(t.answers) ? 2 : 1);
            else if (!strcmp(task, "cwe")) assert_int_equal(times(t.prompt.p, spaced), 6);
            else if (!strcmp(task, "fwe")) assert_true(found > 2);
        }
        if (!strcmp(task, "niah_multivalue") || !strcmp(task, "niah_multiquery")) {
            assert_int_equal(json_array_size(t.answers), 4);
            assert_true(
                tn_ruler_score(t.answers, t.any, json_string_value(json_array_get(t.answers, 2)), &score) &&
                score == .25);
        }
        tn_ruler_free(&other);
        assert_int_equal(tn_ruler_make(task, 5, 3, shared, words, NULL, &other, &err) == TERN_E_LIMIT, 1);
        tn_ruler_free(&other);
        tn_ruler_free(&again);
        tn_ruler_free(&t);
    }
    json_decref(shared);
}

/* ---- what is read and refused -------------------------------------------------------------------- */

static void table(void **state) {
    (void)state;
    static const char text[] = "\"a, \"\"b\"\"\nc\",1,2,3,4,A\r\n\nx,\"\",2,3,4,D";
    static const char *const wrong[] = {"",
                                        "\n",
                                        "a,1,2,3,A\n",
                                        "a,1,2,3,4,5,A\n",
                                        "a,1,2,3,4,E\n",
                                        "a,1,2,3,4,AB\n",
                                        "a,1,2,3,4,\n",
                                        "\"a,1,2,3,4,A\n",
                                        "\"a\"b,1,2,3,4,A\n"};
    json_t *rows, *items = NULL;
    tern_error err = {0};
    assert_int_equal(tn_suite_csv(text, sizeof text - 1, "table", &rows, &err), TERN_OK);
    assert_int_equal(tn_mmlu_items(rows, "s", "table", &items, &err), TERN_OK);
    assert_int_equal(json_array_size(items), 2);
    assert_string_equal(json_string_value(json_array_get(json_array_get(rows, 0), 0)), "a, \"b\"\nc");
    assert_string_equal(json_string_value(json_array_get(json_array_get(rows, 0), 5)), "A");
    assert_string_equal(json_string_value(json_array_get(json_array_get(rows, 1), 1)), "");
    json_decref(items);
    json_decref(rows);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tern_status st = tn_suite_csv(wrong[i], strlen(wrong[i]), "table", &rows, &err);
        if (st == TERN_OK) {
            st = tn_mmlu_items(rows, "s", "table", &items, &err);
            json_decref(rows);
        }
        if (st != TERN_E_FORMAT) fail_msg("'%s' is taken", wrong[i]);
        assert_non_null(strstr(err.message, "table"));
    }
}

/* A line of good data with one value in place of another: it is refused, and the message has the line. */
static void wrong_lines(void **state) {
    (void)state;
    static const char call[] =
        "{\"id\":\"1\",\"question\":[[{\"role\":\"user\",\"content\":\"x\"}]],\"function\":[{\"name\":\"f\","
        "\"parameters\":{\"properties\":{\"a\":{"
        "\"type\":\"string\"}},\"required\":[\"a\"]}}],\"ground_truth\":[{\"f\":{\"a\":[\"b\"]}}]}",
                      prompt[] =
                          "{\"key\":1,\"prompt\":\"x\",\"instruction_id_list\":[\"keywords:frequency\"],"
                          "\"kwargs\":[{\"keyword\":\"a\",\"frequency\":2,\"relation\":\"less than\"}]}",
                      record[] = "{\"tern_eval\":1,\"task\":\"mmlu\",\"model\":{},\"form\":{},\"data\":{},"
                                 "\"asked\":{}}\n{\"id\":\"1\",\"groups\":[\"g\"],\"score\":1}\n";
    static const struct {
        const char *text, *was, *is;
    } cases[] = {
        {call, "\"id\":\"1\",", ""},
        {call, "\"1\"", "1"},
        {call, "[[{", "[{"},
        {call, "]],\"f", "],[]],\"f"},
        {call, "\"user\"", "null"},
        {call, "\"content\":\"x\"", "\"content\":[]"},
        {call, "\"function\":[", "\"function\":7,\"x\":["},
        {call, "\"name\":\"f\",", ""},
        {call, "\"properties\":{", "\"properties\":[],\"x\":{"},
        {call, "{\"type\":\"string\"}", "[]"},
        {call, "\"required\":[\"a\"]", "\"required\":\"a\""},
        {call, "\"required\":[\"a\"]", "\"required\":[1]"},
        {call, "[{\"f\":{\"a\"", "[{},{\"f\":{\"a\""},
        {call, "{\"f\":{\"a\"", "{\"g\":{\"a\""},
        {call, "{\"a\":[\"b\"]}", "[]"},
        {call, "[\"b\"]", "\"b\""},
        {call, "{\"id\"", "{\"id\":\"2\",\"id\""},
        {prompt, "\"key\":1", "\"key\":\"1\""},
        {prompt, "\"prompt\":\"x\"", "\"prompt\":\"\""},
        {prompt, "keywords:frequency", "keywords:all"},
        {prompt, "[\"keywords:frequency\"]", "[]"},
        {prompt, "[\"keywords:frequency\"]", "[7]"},
        {prompt, "[{\"keyword\"", "[{},{\"keyword\""},
        {prompt, "\"a\"", "\"\""},
        {prompt, "\"a\"", "\"(\""},
        {prompt, ":2", ":\"2\""},
        {prompt, ":2", ":-2"},
        {prompt, "less than", "about"},
        {record, "\"tern_eval\":1", "\"tern_eval\":2"},
        {record, "\"tern_eval\":1,", ""},
        {record, "\"task\":\"mmlu\"", "\"task\":7"},
        {record, "\"form\":{}", "\"form\":[]"},
        {record, "\"id\":\"1\"", "\"id\":1"},
        {record, "[\"g\"]", "\"g\""},
        {record, "[\"g\"]", "[7]"},
        {record, "\"score\":1", "\"score\":2"},
        {record, "\"score\":1", "\"score\":true"},
        {record, "\"score\":1}", "\"score\":1}\n{\"id\":\"1\",\"groups\":[],\"score\":0}"},
        {record, "\n", " "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1000];
        const char *at = strstr(cases[i].text, cases[i].was);
        json_t *lines = NULL, *items = NULL;
        size_t whole;
        tern_error err = {0};
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - cases[i].text), cases[i].text, cases[i].is,
                 at + strlen(cases[i].was));
        tern_status st;
        if (cases[i].text == record) {
            st = tn_suite_parse(text, strlen(text), "here", &whole, &items, &err);
        } else {
            st = tn_suite_lines(text, strlen(text), "here", &lines, &err);
            if (st == TERN_OK && cases[i].text == call)
                st = tn_bfcl_items(lines, lines, "multiple", "here", &items, &err);
            else if (st == TERN_OK) st = tn_ifeval_items(lines, "here", &items, &err);
        }
        if (st != TERN_E_FORMAT && st != TERN_E_UNSUPPORTED) fail_msg("it is taken: %s", text);
        if (!strstr(err.message, "here")) fail_msg("%s", err.message);
        assert_null(items);
        json_decref(lines);
    }
}

/* Two results whose differences are known: 1, 1, 0, -1, 0.5 of five pairs. */
static void pairs(void **state) {
    (void)state;
    static const char head[] =
        "{\"tern_eval\":1,\"task\":\"ruler\",\"model\":{},\"form\":{},\"data\":{},\"asked\":{}}\n";
    static const double a[] = {1, 1, 1, 0, .5}, b[] = {0, 0, 1, 1, 0};
    char text[2][2000];
    json_t *r[2], *c = NULL, *s = NULL;
    tern_error err = {0};
    for (int k = 0; k < 2; k++) {
        size_t n = (size_t)snprintf(text[k], sizeof text[k], "%s", head), whole;
        for (int i = 0; i < 5; i++)
            n += (size_t)snprintf(text[k] + n, sizeof text[k] - n,
                                  "{\"id\":\"%d\",\"groups\":[\"%s\"],\"score\":%g}\n", i, i < 3 ? "x" : "y",
                                  k ? b[i] : a[i]);
        n += (size_t)snprintf(text[k] + n, sizeof text[k] - n,
                              k ? "{\"id\":\"7\",\"groups\":[],\"score\":1}\n{\"id\":\"8\""
                                : "{\"id\":\"9\",\"groups\":[],\"score\":null}\n");
        if (tn_suite_parse(text[k], n, "r", &whole, &r[k], &err) != TERN_OK) fail_msg("%s", err.message);
        assert_int_equal(
            whole, n - (k ? strlen("{\"id\":\"8\"") : 0)); /* what a kill left of a line is not part of it */
    }
    assert_int_equal(tn_suite_compare(r[0], r[1], &c, &err), TERN_OK);
    assert_int_equal(number(c, "items"), 5);
    assert_int_equal(number(c, "unpaired"), 2);
    assert_float_equal(number(c, "difference"), .3, 1e-6);
    assert_float_equal(number(c, "stderr"), .3741657,
                       1e-6); /* sqrt(.7 / 5): the variance of the five with n - 1 is .7 */
    assert_int_equal(number(c, "first_better"), 3);
    assert_int_equal(number(c, "second_better"), 1);
    assert_null(json_object_get(c, "mcnemar_p")); /* a half is neither right nor wrong */
    const json_t *x = json_array_get(json_object_get(c, "groups"), 0);
    assert_float_equal(number(x, "difference"), 2. / 3, 1e-6);
    assert_float_equal(number(x, "mcnemar_p"), .5, 1e-6);
    assert_int_equal(tn_suite_summary(r[0], &s, &err), TERN_OK);
    assert_float_equal(number(s, "accuracy"), .7, 1e-6);
    assert_int_equal(number(s, "skipped"), 1);
    json_decref(s);
    json_object_set_new(json_object_get(r[1], "head"), "data", json_pack("{s:i}", "sha256", 1));
    json_decref(c);
    assert_int_equal(tn_suite_compare(r[0], r[1], &c, &err), TERN_E_INVALID);
    json_decref(r[0]);
    json_decref(r[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_python), cmocka_unit_test(texts),
                                       cmocka_unit_test(table), cmocka_unit_test(wrong_lines),
                                       cmocka_unit_test(pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
