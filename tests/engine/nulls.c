/* Every function of tern.h and tern_shadow.h with NULL for its pointers: none crashes, all that return a
 * status say TERN_E_INVALID. The list is complete: it is compared with the headers. */
#include <tern.h>
#include <tern_shadow.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

static char model[FIXTURE_PATH];
static char called[8192]; /* " name " of every function called */

static int setup(void **state) {
    (void)state;
    fixture_llama(model, "m.gguf", 1);
    return 0;
}

static void note(const char *name) {
    size_t n = strlen(called);
    snprintf(called + n, sizeof called - n, " %s ", name);
}

#define INVALID(function, ...)                                                                               \
    do {                                                                                                     \
        tern_error err_ = {0}, *err = &err_;                                                                 \
        note(#function);                                                                                     \
        if (function(__VA_ARGS__) != TERN_E_INVALID) fail_msg(#function " takes NULL");                      \
        if (!err_.message[0]) fail_msg(#function " does not say what is missing");                           \
        err = NULL;                                                                                          \
        assert_int_equal(function(__VA_ARGS__), TERN_E_INVALID);                                             \
    } while (0)
/* Functions that have no room for a message. */
#define REFUSES(function, ...)                                                                               \
    do {                                                                                                     \
        note(#function);                                                                                     \
        assert_int_equal(function(__VA_ARGS__), TERN_E_INVALID);                                             \
    } while (0)
#define NOTHING(function, ...) (note(#function), function(__VA_ARGS__))

static void without_objects(void **state) {
    (void)state;
    int32_t id = 1;
    size_t n = 0;
    char buf[8];
    assert_non_null(NOTHING(tern_version));
    assert_int_equal(NOTHING(tern_version_number), TERN_VERSION_NUMBER);
    assert_non_null(NOTHING(tern_status_text, (tern_status)77));
    REFUSES(tern_hooks_init, NULL, sizeof(tern_hooks));
    INVALID(tern_options_new, NULL, err);
    NOTHING(tern_options_free, NULL);
    INVALID(tern_options_set, NULL, NULL, NULL, err);
    INVALID(tern_options_get, NULL, NULL, NULL, 0, NULL, err);
    INVALID(tern_options_set_hooks, NULL, NULL, err);
    INVALID(tern_options_answer_sized, NULL, NULL, 0, NULL, 0, err);
    INVALID(tern_engine_open, NULL, NULL, NULL, err);
    NOTHING(tern_engine_close, NULL);
    INVALID(tern_engine_estimate_sized, NULL, NULL, NULL, sizeof(tern_estimate), err);
    REFUSES(tern_engine_info_sized, NULL, NULL, sizeof(tern_model_info));
    INVALID(tern_engine_open_fd, 0, NULL, NULL, err);
    assert_int_equal(NOTHING(tern_token_special, NULL, TERN_TOKEN_EOS), -1);
    assert_null(NOTHING(tern_engine_lora, NULL, 0));
    assert_null(NOTHING(tern_engine_lora_task, NULL, 0, NULL));
    INVALID(tern_session_lora, NULL, NULL, err);
    INVALID(tern_session_truncate, NULL, 0, err);
    INVALID(tern_session_copy, NULL, NULL, err);
    INVALID(tern_session_look, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL, err);
    INVALID(tern_image_decode, NULL, 0, NULL, err);
    NOTHING(tern_image_free, NULL);
    assert_false(NOTHING(tern_engine_sees, NULL));
    INVALID(tern_complete, NULL, NULL, 0, NULL, NULL, NULL, NULL, err);
    REFUSES(tern_pack_options_init, NULL, sizeof(tern_pack_options));
    INVALID(tern_pack_sized, NULL, NULL, NULL, NULL, 0, err);
    INVALID(tern_tokenize, NULL, NULL, 0, true, true, NULL, 0, NULL, err);
    assert_int_equal(NOTHING(tern_token_bytes, NULL, 1, true, NULL, 0), 0);
    assert_false(NOTHING(tern_token_is_end, NULL, 1));
    INVALID(tern_chat_tokens, NULL, NULL, 0, NULL, NULL, 0, NULL, err);
    assert_false(NOTHING(tern_has_chat_template, NULL));
    REFUSES(tern_chat_options_init, NULL, sizeof(tern_chat_options));
    INVALID(tern_chat_render, NULL, NULL, 0, NULL, 0, NULL, err);
    REFUSES(tern_session_options_init, NULL, sizeof(tern_session_options));
    INVALID(tern_session_open, NULL, NULL, NULL, err);
    NOTHING(tern_session_close, NULL);
    INVALID(tern_session_prefill, NULL, NULL, 0, err);
    INVALID(tern_session_prefill, NULL, &id, 1, err);
    INVALID(tern_session_score, NULL, NULL, 0, 0, NULL, NULL, err);
    INVALID(tern_session_step, NULL, 1, err);
    assert_null(NOTHING(tern_session_logits, NULL));
    assert_int_equal(NOTHING(tern_session_length, NULL), 0);
    assert_null(NOTHING(tern_session_tokens, NULL));
    INVALID(tern_session_embed, NULL, NULL, 0, true, NULL, 0, err);
    INVALID(tern_session_rank, NULL, NULL, 0, NULL, err);
    assert_int_equal(NOTHING(tern_session_capacity, NULL), 0);
    REFUSES(tern_sampling_init, NULL, sizeof(tern_sampling));
    REFUSES(tern_generate_options_init, NULL, sizeof(tern_generate_options));
    INVALID(tern_session_generate, NULL, NULL, NULL, err);
    INVALID(tern_session_learn, NULL, NULL, 0, err);
    INVALID(tern_answer_open, NULL, NULL, NULL, err);
    assert_false(NOTHING(tern_answer_more, NULL));
    INVALID(tern_answers_step, NULL, 0, err);
    INVALID(tern_answer_close, NULL, NULL, err);
    INVALID(tern_grammar_open, NULL, NULL, NULL, NULL, err);
    NOTHING(tern_grammar_close, NULL);
    assert_int_equal(NOTHING(tern_session_likeliest, NULL, 1, NULL, NULL), 0);
    assert_null(NOTHING(tern_engine_property, NULL, 0, NULL, 0));
    NOTHING(tern_session_cancel, NULL);
    assert_null(NOTHING(tern_session_counter, NULL, 0, NULL));
    INVALID(tern_session_write_trace, NULL, NULL, err);
    INVALID(tern_session_write_gantt, NULL, 1, 0, err);
    INVALID(tern_session_save, NULL, NULL, err);
    INVALID(tern_session_load, NULL, NULL, err);
    INVALID(tern_session_save_to, NULL, NULL, NULL, err);
    INVALID(tern_session_load_from, NULL, NULL, 0, err);
    REFUSES(tern_shadow_options_init, NULL, sizeof(tern_shadow_options));
    INVALID(tern_shadow_open, NULL, NULL, err);
    NOTHING(tern_shadow_close, NULL);
    INVALID(tern_shadow_append, NULL, NULL, NULL, 0, err);
    INVALID(tern_shadow_attend, NULL, NULL, 0, NULL, err);
    INVALID(tern_shadow_truncate, NULL, 0, err);
    assert_int_equal(NOTHING(tern_shadow_n_tokens, NULL), 0);
    assert_true(NOTHING(tern_shadow_selected, NULL) == 1);
    (void)n, (void)buf;
}

/* The object is there, the rest is not. */
static void without_the_rest(void **state) {
    (void)state;
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_options *o = NULL;
    tern_error first;
    size_t n;
    int32_t id;
    char buf[8];
    assert_int_equal(tern_options_new(&o, &first), TERN_OK);
    assert_int_equal(tern_engine_open(model, o, &e, &first), TERN_OK);
    assert_int_equal(tern_session_open(e, NULL, &s, &first), TERN_OK);
    INVALID(tern_options_set, o, "temp", NULL, err);
    INVALID(tern_options_set, o, NULL, "1", err);
    INVALID(tern_options_get, o, "temp", NULL, 4, &n, err);
    INVALID(tern_options_get, o, "temp", buf, 4, NULL, err);
    INVALID(tern_options_get, o, NULL, buf, 4, &n, err);
    INVALID(tern_engine_open, model, o, NULL, err);
    tern_engine *none = e;
    INVALID(tern_engine_open, NULL, o, &none, err);
    assert_null(none);
    assert_null(tern_session_counter(s, 0, NULL));
    assert_null(tern_engine_property(e, 0, NULL, 8));
    INVALID(tern_session_save_to, s, NULL, NULL, err);
    INVALID(tern_session_load_from, s, NULL, 0, err);
    INVALID(tern_answer_open, s, NULL, NULL, err);
    tern_grammar *no_grammar = NULL;
    INVALID(tern_grammar_open, e, NULL, NULL, &no_grammar, err);
    INVALID(tern_session_prefill, s, NULL, 3, err);
    INVALID(tern_session_score, s, NULL, 3, 0, NULL, NULL, err);
    INVALID(tern_session_score, s, &(int32_t){1}, 1, 0, NULL, NULL, err);
    INVALID(tern_session_generate, s, NULL, NULL, err); /* no prompt */
    INVALID(tern_session_learn, s, NULL, 2, err);
    INVALID(tern_session_embed, s, &(int32_t){1}, 1, true, NULL, 0, err);
    INVALID(tern_session_embed, s, NULL, 1, true, &(float){0}, 1, err);
    INVALID(tern_session_rank, s, &(int32_t){1}, 1, NULL, err);
    INVALID(tern_session_rank, s, NULL, 1, &(float){0}, err);
    INVALID(tern_session_write_trace, s, NULL, err);
    INVALID(tern_session_save, s, NULL, err);
    INVALID(tern_session_load, s, NULL, err);
    INVALID(tern_session_copy, s, NULL, err);
    INVALID(tern_session_look, s, NULL, 1, NULL, NULL, 0, NULL, 0, &(size_t){0}, err);
    INVALID(tern_session_look, s, NULL, 0, NULL, NULL, 1, NULL, 0, &(size_t){0}, err);
    INVALID(tern_session_look, s, NULL, 0, NULL, NULL, 0, NULL, 0, NULL, err);
    INVALID(tern_session_copy, NULL, s, err);
    INVALID(tern_complete, e, NULL, 1, NULL, NULL, NULL, NULL, err);
    INVALID(tern_pack_sized, model, NULL, NULL, NULL, 0, err);
    tern_session_close(&s);
    REFUSES(tern_engine_info_sized, e, NULL, sizeof(tern_model_info));
    INVALID(tern_tokenize, e, NULL, 2, true, true, &id, 1, &n, err);
    INVALID(tern_tokenize, e, "a", 1, true, true, NULL, 1, &n, err);
    INVALID(tern_tokenize, e, "a", 1, true, true, &id, 1, NULL, err);
    assert_int_equal(tern_token_bytes(e, 1, true, NULL, 9), 0);
    INVALID(tern_chat_tokens, e, NULL, 2, NULL, &id, 1, &n, err);
    INVALID(tern_chat_render, e, NULL, 2, buf, 1, &n, err);
    INVALID(tern_session_open, e, NULL, NULL, err);
    tern_engine_close(&e);
    tern_options_free(&o);
}

static void every_function_is_here(void **state) {
    (void)state;
    static const char *const headers[] = {TN_SOURCE_DIR "/include/tern.h",
                                          TN_SOURCE_DIR "/include/tern_shadow.h"};
    static char text[1 << 17];
    int n_found = 0;
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(headers[i], "r");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        for (char *p = text; (p = strstr(p, "\nTERN_API ")); p++) {
            char *open = strchr(p, '('), *name = open, listed[128];
            while (name[-1] == '_' || (name[-1] >= 'a' && name[-1] <= 'z')) name--;
            snprintf(listed, sizeof listed, " %.*s ", (int)(open - name), name);
            if (!strstr(called, listed)) fail_msg("%s is not called with NULL here", listed);
            n_found++;
        }
    }
    assert_true(n_found > 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_objects),
        cmocka_unit_test(without_the_rest),
        cmocka_unit_test(every_function_is_here),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
