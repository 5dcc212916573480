/* The table of parameters through tern_options: every row takes what its range says and nothing else, comes
 * back as it went in, and what has no effect or contradicts is said. */
#include "engine/engine.h"
#include "params/params.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char model[256], package[256];

static int setup(void **state) {
    (void)state;
    char cmd[1500];
    snprintf(model, sizeof model, TN_BINARY_DIR "/options-%ld.gguf", (long)getpid());
    snprintf(package, sizeof package, TN_BINARY_DIR "/options-%ld.tern", (long)getpid());
    snprintf(cmd, sizeof cmd,
             TN_TERN " synth --arch tiny-llama -o %s && " TN_TERN " pack %s -o %s >/dev/null", model, model,
             package);
    return system(cmd) ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(model);
    return unlink(package);
}

static tern_options *fresh(void) {
    tern_options *o;
    tern_error err;
    if (tern_options_new(&o, &err) != TERN_OK) fail_msg("%s", err.message);
    return o;
}

static const char *value_of(const tern_options *o, const char *name) {
    static char buf[256];
    size_t n;
    tern_error err;
    if (tern_options_get(o, name, buf, sizeof buf - 1, &n, &err) != TERN_OK) fail_msg("%s", err.message);
    buf[n] = 0;
    return buf;
}

static void takes(tern_options *o, const tn_param *p, const char *value, const char *back) {
    tern_error err = {0};
    if (tern_options_set(o, p->name, value, &err) != TERN_OK)
        fail_msg("%s=%s: %s", p->name, value, err.message);
    assert_string_equal(value_of(o, p->name), back);
}

static void refuses(tern_options *o, const tn_param *p, const char *value) {
    tern_error err = {0};
    char before[256];
    snprintf(before, sizeof before, "%s", value_of(o, p->name));
    if (tern_options_set(o, p->name, value, &err) != TERN_E_INVALID)
        fail_msg("%s takes '%s'", p->name, value);
    assert_non_null(strstr(err.message, p->name)); /* says which */
    assert_null(strchr(err.message, '\n'));
    assert_string_equal(value_of(o, p->name), before);
}

static void number_row(tern_options *o, const tn_param *p) {
    char v[32];
    bool whole = p->kind == TN_PARAM_INT || p->kind == TN_PARAM_SIZE || p->kind == TN_PARAM_STEAL;
    double ends[] = {p->min, p->max, p->step > 0 ? p->min + p->step : p->max};
    for (int i = 0; i < 3; i++) {
        snprintf(v, sizeof v, whole ? "%.0f" : "%.6g", ends[i]);
        takes(o, p, v, v);
    }
    snprintf(v, sizeof v, "%.0f", p->max + 1);
    refuses(o, p, v);
    snprintf(v, sizeof v, "%.0f", p->min - 3);
    refuses(o, p, v);
    if (p->step > 1) {
        snprintf(v, sizeof v, "%.0f", p->min + 1);
        refuses(o, p, v);
    }
}

static void every_row(void **state) {
    (void)state;
    tern_options *o = fresh();
    for (size_t i = 0; i < tn_params_count(); i++) {
        const tn_param *p = tn_param_at(i);
        assert_ptr_equal(tn_param_find(p->name, strlen(p->name)), p);
        assert_true(strlen(p->help) > 8 && p->dflt && (p->unit || p->kind == TN_PARAM_FLAG));
        switch (p->kind) {
        case TN_PARAM_FLAG:
            takes(o, p, "on", "on");
            takes(o, p, "false", "off");
            refuses(o, p, "perhaps");
            break;
        case TN_PARAM_INT:
        case TN_PARAM_FLOAT:
        case TN_PARAM_PERCENT: number_row(o, p); break;
        case TN_PARAM_SIZE:
            if (p->max > 0) number_row(o, p);
            takes(o, p, "64K", "65536");
            refuses(o, p, "1Q");
            refuses(o, p, "99999999999G");
            break;
        case TN_PARAM_U64: takes(o, p, "18446744073709551615", "18446744073709551615"); break;
        case TN_PARAM_STEAL:
            number_row(o, p);
            takes(o, p, "-1", "none"); /* as earlier versions said it */
            takes(o, p, "measured", "measured");
            takes(o, p, "share-cores", "share-cores");
            break;
        case TN_PARAM_CHOICE:
            for (const char *c = p->choices; *c;) {
                char one[64];
                size_t n = strcspn(c, "|");
                snprintf(one, sizeof one, "%.*s", (int)n, c);
                takes(o, p, one, one);
                c += n + (c[n] == '|');
            }
            refuses(o, p, "");
            refuses(o, p, p->choices); /* all of them are none of them */
            break;
        case TN_PARAM_TEXT: takes(o, p, "some text", "some text"); break;
        }
        if (p->kind != TN_PARAM_TEXT) refuses(o, p, "12x");
    }
    tern_options_free(&o);
    assert_null(o);
}

static void values_are_copied(void **state) {
    (void)state;
    tern_options *o = fresh();
    char text[] = "lookup", buf[4];
    size_t n;
    tern_error err = {0};
    assert_int_equal(tern_options_set(o, "draft", text, &err), TERN_OK);
    memset(text, 'x', 6);
    assert_string_equal(value_of(o, "draft"), "lookup");
    assert_int_equal(tern_options_get(o, "draft", buf, sizeof buf, &n, &err), TERN_E_LIMIT);
    assert_int_equal(n, 6);
    assert_int_equal(tern_options_set(o, "drafts", "all", &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "drafts"));
    assert_int_equal(tern_options_set(o, NULL, "all", &err), TERN_E_INVALID);
    assert_int_equal(tern_options_set(o, "draft", NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_options_set(NULL, "draft", "all", &err), TERN_E_INVALID);
    assert_int_equal(tern_options_get(NULL, "draft", buf, sizeof buf, &n, &err), TERN_E_INVALID);
    assert_int_equal(tern_options_new(NULL, &err), TERN_E_INVALID);
    tern_options_free(&o);
    tern_options_free(&o);
    tern_options_free(NULL);
}

typedef struct heard {
    int n;
    char lines[8][512];
} heard;

static void hear(void *user, tern_log_level level, const char *line) {
    heard *h = user;
    if (level <= TERN_LOG_WARN && h->n < 8) snprintf(h->lines[h->n++], sizeof h->lines[0], "%s", line);
}

static void without_effect_is_announced(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *beside, *beside_value;
        bool on_package, on_float; /* whether it is announced */
    } cases[] = {
        {"chunk", "64", NULL, NULL, false, true},
        {"threads", "2", NULL, NULL, false, false},
        {"ratio", "20", NULL, NULL, false, true},
        {"ratio", "20", "exact", "on", true, true},
        {"ratio", "20", "attention", "full", true, true},
        {"ratio", "20", "attention", "shadow", false, false},
        {"switch", "sync", NULL, NULL, true, true},
        {"switch", "sync", "npu-separate-weights", "on", false, true},
        {"npu-vtcm", "64K", NULL, NULL, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int on_package = 0; on_package < 2; on_package++) {
            heard h = {0};
            tern_hooks k;
            tern_hooks_defaults(&k);
            k.log = hear;
            k.user = &h;
            tern_options *o = fresh();
            tern_engine *e;
            tern_error err = {0};
            assert_int_equal(tern_options_set_hooks(o, &k, &err), TERN_OK);
            assert_int_equal(tern_options_set(o, cases[i].name, cases[i].value, &err), TERN_OK);
            if (cases[i].beside)
                assert_int_equal(tern_options_set(o, cases[i].beside, cases[i].beside_value, &err), TERN_OK);
            tern_status st = tern_engine_open(on_package ? package : model, o, &e, &err);
            bool said = false, want = on_package ? cases[i].on_package : cases[i].on_float;
            for (int l = 0; l < h.n; l++)
                said |= !strncmp(h.lines[l], cases[i].name, strlen(cases[i].name)) &&
                        strstr(h.lines[l], "has no effect");
            if (st == TERN_OK && said != want)
                fail_msg("case %zu, %s: %s", i, on_package ? "package" : "float",
                         said ? h.lines[0] : "silence");
            if (st != TERN_OK && (on_package || !cases[i].beside)) fail_msg("case %zu: %s", i, err.message);
            tern_engine_close(&e);
            tern_options_free(&o);
        }
    }
}

static void contradictions_are_refused(void **state) {
    (void)state;
    static const char *const cases[][4] = {
        {"exact", "on", "attention", "shadow"},       {"exact", "on", "attention-decode", "on"},
        {"exact", "on", "attention-preset", "paper"}, {"steal", "7", "policy", "ooe"},
        {"steal", "measured", "policy", "overlap"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tern_options *o = fresh();
        tern_engine *e = NULL;
        tern_error err = {0};
        assert_int_equal(tern_options_set(o, cases[i][0], cases[i][1], &err), TERN_OK);
        assert_int_equal(tern_options_set(o, cases[i][2], cases[i][3], &err), TERN_OK);
        assert_int_equal(tern_engine_open(package, o, &e, &err), TERN_E_INVALID);
        assert_null(e);
        assert_true(strlen(err.message) > 20);
        tern_options_free(&o);
    }
}

/* Opens the package with the paper's preset and one option beside it (or NULL), and gives what became of them. */
static tn_attn_options preset_with(const char *name, const char *value, heard *said) {
    tern_hooks k;
    tern_hooks_defaults(&k);
    k.log = hear;
    k.user = said;
    tern_options *o = fresh();
    tern_engine *e;
    tern_error err = {0};
    assert_int_equal(tern_options_set_hooks(o, &k, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "attention-preset", "paper", &err), TERN_OK);
    if (name) assert_int_equal(tern_options_set(o, name, value, &err), TERN_OK);
    if (tern_engine_open(package, o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_attn_options got = e->attention;
    tern_engine_close(&e);
    tern_options_free(&o);
    return got;
}

/* shadowAttn as printed: rows and heads by themselves, 20 %, 9 buckets, Algorithm 1 on two lanes, any length. */
static void preset_of_the_paper(void **state) {
    (void)state;
    heard h = {0};
    tn_attn_options a = preset_with(NULL, NULL, &h);
    assert_true(a.mode == TN_ATTN_SHADOW && !a.automatic && a.share_rows == -1 && a.threshold == 1);
    assert_true(a.pipeline == TN_ATTN_PIPELINE_ON && a.plan.as_printed && !a.plan.in_order);
    assert_true(a.ratio == 0.2f && a.n_buckets == 9 && !a.no_head_ratios && !a.decode);
    /* The package was made without measuring heads, and the paper's ratios are what a head is worth. */
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.lines[0], "--head-importance"));
    /* What is set beside it counts. */
    h = (heard){0};
    assert_int_equal(preset_with("attention-share", "4", &h).share_rows, 4);
    assert_int_equal(preset_with("attention-threshold", "77", &h).threshold, 77);
    assert_true(preset_with("attention-pipeline", "off", &h).pipeline == TN_ATTN_PIPELINE_OFF);
    assert_true(preset_with("attention-plan", "in-order", &h).plan.in_order);
    assert_false(preset_with("attention-plan", "paper", &h).plan.as_printed);
    assert_true(preset_with("attention", "float-sparse", &h).mode == TN_ATTN_FLOAT_SPARSE);
    h = (heard){0};
    assert_true(preset_with("no-head-ratios", "on", &h).no_head_ratios);
    assert_int_equal(h.n, 0);
}

static void answers_as_structs(void **state) {
    (void)state;
    tern_options *o = fresh();
    tern_error err = {0};
    assert_int_equal(tern_options_set(o, "temp", "0.25", &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "n-predict", "7", &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "ctx-size", "99", &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "draft", "lookup", &err), TERN_OK);
    tern_session_options s;
    tern_generate_options g;
    assert_int_equal(tern_options_answer(o, &s, &g, &err), TERN_OK);
    assert_int_equal(s.size_bytes, sizeof s);
    assert_int_equal(g.size_bytes, sizeof g);
    assert_int_equal(s.n_ctx, 99);
    assert_string_equal(s.draft, "lookup");
    assert_int_equal(g.max_tokens, 7);
    assert_true(g.sampling.temperature == 0.25f);
    /* one of them alone; and a struct smaller than any header had */
    assert_int_equal(tern_options_answer_sized(o, NULL, 0, &g, sizeof g, &err), TERN_OK);
    assert_int_equal(tern_options_answer_sized(o, &s, 4, NULL, 0, &err), TERN_E_INVALID);
    assert_int_equal(tern_options_answer_sized(o, NULL, 0, &g, 16, &err), TERN_E_INVALID);
    tern_options_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row),
        cmocka_unit_test(values_are_copied),
        cmocka_unit_test(answers_as_structs),
        cmocka_unit_test(without_effect_is_announced),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(preset_of_the_paper),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
