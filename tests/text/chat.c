/* Conversations through templates: those by name, those that models ship, what is refused, what is moved, and
 * memory running out. That the interpreter is right is tests/text/jinja.c's matter. */
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tn_ctx ctx;

static tn_tokenizer *open_in(tn_ctx *c, const char *template, const char *tool_template) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "b"};
    static const size_t bytes[] = {5, 3, 4, 1, 1};
    static const uint8_t types[] = {TN_TOKEN_UNKNOWN, TN_TOKEN_CONTROL, TN_TOKEN_CONTROL, TN_TOKEN_NORMAL,
                                    TN_TOKEN_NORMAL};
    static const float scores[5];
    tn_tokenizer_spec spec = {.kind = TN_TOK_BPE_SPM,
                              .n_vocab = 5,
                              .tokens = tokens,
                              .token_bytes = bytes,
                              .types = types,
                              .scores = scores,
                              .bos = 1,
                              .eos = 2,
                              .eot = -1,
                              .unk = 0,
                              .pad = -1,
                              .add_bos = true,
                              .chat_template = template,
                              .tool_template = tool_template};
    tn_tokenizer *t;
    tern_error err;
    if (tn_tokenizer_open(c, &spec, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}
static tn_tokenizer *open_with(const char *template) { return open_in(&ctx, template, NULL); }

static const tern_message talk[] = {{"user", "Hi"}, {"assistant", "Hello!"}, {"user", " Bye "}};
static const tern_message talk_sys[] = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", " Bye "}};

static void check_opt(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                      const tern_chat_options *o, const char *expect) {
    char buf[8192];
    size_t n;
    tern_error err = {0};
    if (tn_chat_render(t, msgs, n_msgs, o, buf, sizeof buf - 1, &n, &err) != TERN_OK)
        fail_msg("%s", err.message);
    buf[n] = 0;
    assert_string_equal(buf, expect);
    /* the cap rule: the number needed, nothing beyond the cap */
    memset(buf, '#', sizeof buf);
    size_t need;
    assert_int_equal(tn_chat_render(t, msgs, n_msgs, o, buf, 10, &need, &err), TERN_E_LIMIT);
    assert_int_equal(need, n);
    assert_memory_equal(buf, expect, 10);
    assert_int_equal(buf[10], '#');
}

static void check_fails(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                        const tern_chat_options *o, tern_status want, const char *message) {
    char buf[64];
    size_t n;
    tern_error err = {0};
    assert_int_equal(tn_chat_render(t, msgs, n_msgs, o, buf, sizeof buf, &n, &err), want);
    assert_string_equal(err.message, message);
}

static void check(const char *template, const char *want, const char *want_sys) {
    tn_tokenizer *t = open_with(template);
    check_opt(t, talk, 3, NULL, want);
    check_opt(t, talk_sys, 4, NULL, want_sys);
    tn_tokenizer_close(&t);
}

#define IM(role, text) "<|im_start|>" role "\n" text "<|im_end|>\n"
#define L3(role, text) "<|start_header_id|>" role "<|end_header_id|>\n\n" text "<|eot_id|>"
#define PHI(role, text) "<|" role "|>\n" text "<|end|>\n"
#define ZEPHYR(role, text) "<|" role "|>\n" text "</s>\n"
#define P4(role, text) "<|im_start|>" role "<|im_sep|>" text "<|im_end|>"
#define CR(role, text) "<|START_OF_TURN_TOKEN|><|" role "_TOKEN|>" text "<|END_OF_TURN_TOKEN|>"
#define GR(role, text) "<|start_of_role|>" role "<|end_of_role|>" text "<|end_of_text|>\n"
#define L4(role, text) "<|header_start|>" role "<|header_end|>\n\n" text "<|eot|>"
#define GEMMA(role, text) "<start_of_turn>" role "\n" text "<end_of_turn>\n"

/* The families' definitions, written out. */
static void by_name(void **state) {
    (void)state;
    static const struct {
        const char *name, *want, *want_sys;
    } all[] = {
        {"chatml", IM("user", "Hi") IM("assistant", "Hello!") IM("user", " Bye ") "<|im_start|>assistant\n",
         IM("system", "Be brief.") IM("user", "Hi") IM("assistant", "Hello!")
             IM("user", " Bye ") "<|im_start|>assistant\n"},
        {"llama3",
         L3("user", "Hi") L3("assistant", "Hello!")
             L3("user", "Bye") "<|start_header_id|>assistant<|end_header_id|>\n\n",
         L3("system", "Be brief.") L3("user", "Hi") L3("assistant", "Hello!")
             L3("user", "Bye") "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"llama2", "[INST] Hi [/INST] Hello! </s><s>[INST] Bye [/INST]",
         "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]"},
        {"mistral", "[INST] Hi [/INST]Hello!</s>[INST]  Bye  [/INST]",
         "[INST] Be brief.\n\nHi [/INST]Hello!</s>[INST]  Bye  [/INST]"},
        {"gemma", GEMMA("user", "Hi") GEMMA("model", "Hello!") GEMMA("user", "Bye") "<start_of_turn>model\n",
         GEMMA("user", "Be brief.\n\nHi") GEMMA("model", "Hello!")
             GEMMA("user", "Bye") "<start_of_turn>model\n"},
        {"phi3", PHI("user", "Hi") PHI("assistant", "Hello!") PHI("user", " Bye ") "<|assistant|>\n",
         PHI("system", "Be brief.") PHI("user", "Hi") PHI("assistant", "Hello!")
             PHI("user", " Bye ") "<|assistant|>\n"},
        {"zephyr",
         ZEPHYR("user", "Hi") ZEPHYR("assistant", "Hello!") ZEPHYR("user", " Bye ") "<|assistant|>\n",
         ZEPHYR("system", "Be brief.") ZEPHYR("user", "Hi") ZEPHYR("assistant", "Hello!")
             ZEPHYR("user", " Bye ") "<|assistant|>\n"},
        {"phi4",
         P4("user", "Hi") P4("assistant", "Hello!") P4("user", " Bye ") "<|im_start|>assistant<|im_sep|>",
         P4("system", "Be brief.") P4("user", "Hi") P4("assistant", "Hello!")
             P4("user", " Bye ") "<|im_start|>assistant<|im_sep|>"},
        {"mistral-v7", "[INST] Hi[/INST] Hello!</s>[INST]  Bye [/INST]",
         "[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hi[/INST] Hello!</s>[INST]  Bye [/INST]"},
        {"command-r",
         CR("USER", "Hi") CR("CHATBOT", "Hello!")
             CR("USER", "Bye") "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
         CR("SYSTEM", "Be brief.") CR("USER", "Hi") CR("CHATBOT", "Hello!")
             CR("USER", "Bye") "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
        {"deepseek3", "<｜User｜>Hi<｜Assistant｜>Hello!<｜end▁of▁sentence｜><｜User｜> Bye <｜Assistant｜>",
         "Be brief.\n\n<｜User｜>Hi<｜Assistant｜>Hello!<｜end▁of▁sentence｜><｜User｜> Bye <｜Assistant｜>"},
        {"falcon3", "<|user|>\nHi\n<|assistant|>\nHello!\n<|user|>\n Bye \n<|assistant|>\n",
         "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\nHello!\n<|user|>\n Bye \n<|assistant|>\n"},
        {"chatglm4", "[gMASK]<sop><|user|>\nHi<|assistant|>\nHello!<|user|>\n Bye <|assistant|>\n",
         "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\nHello!<|user|>\n Bye <|assistant|>\n"},
        {"granite",
         GR("user", "Hi") GR("assistant", "Hello!")
             GR("user", " Bye ") "<|start_of_role|>assistant<|end_of_role|>",
         GR("system", "Be brief.") GR("user", "Hi") GR("assistant", "Hello!")
             GR("user", " Bye ") "<|start_of_role|>assistant<|end_of_role|>"},
        {"llama4",
         L4("user", "Hi") L4("assistant", "Hello!")
             L4("user", "Bye") "<|header_start|>assistant<|header_end|>\n\n",
         L4("system", "Be brief.") L4("user", "Hi") L4("assistant", "Hello!")
             L4("user", "Bye") "<|header_start|>assistant<|header_end|>\n\n"},
    };
    tn_tokenizer *t = open_with(NULL);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const tern_chat_options o = {.size_bytes = sizeof o, .chat_template = all[i].name};
        check_opt(t, talk, 3, &o, all[i].want);
        check_opt(t, talk_sys, 4, &o, all[i].want_sys);
    }
    const tern_message twice[] = {{"user", "a"}, {"user", "b"}};
    const tern_chat_options gemma = {.size_bytes = sizeof gemma, .chat_template = "gemma"};
    check_fails(t, twice, 2, &gemma, TERN_E_INVALID,
                "chat template, line 1: it refuses the conversation: user and assistant take turns");
    tn_tokenizer_close(&t);
}

/* Templates as models have them. */
static void shipped(void **state) {
    (void)state;
    const char *gen =
        IM("user", "Hi") IM("assistant", "Hello!") IM("user", " Bye ") "<|im_start|>assistant\n";
    char want[1024], want_sys[1024];
    /* SmolLM2 */
    snprintf(want, sizeof want, "%s%s",
             IM("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"), gen);
    snprintf(want_sys, sizeof want_sys, "%s%s", IM("system", "Be brief."), gen);
    check("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
          "'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
          "Face<|im_end|>\n' }}{% endif %}"
          "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
          want, want_sys);
    /* Gemma 2 refuses system messages: their text goes in front of the first question */
    check("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not "
          "supported') }}"
          "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == "
          "0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% "
          "endif %}"
          "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = "
          "message['role'] %}"
          "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' "
          "}}{% endfor %}"
          "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
          GEMMA("user", "Hi") GEMMA("model", "Hello!") GEMMA("user", "Bye") "<start_of_turn>model\n",
          GEMMA("user", "Be brief.\n\nHi") GEMMA("model", "Hello!")
              GEMMA("user", "Bye") "<start_of_turn>model\n");
    /* the first Phi-3 leaves them out */
    check(
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|user|>' + "
        "'\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}{% elif (message['role'] == "
        "'assistant') %}{{message['content'] + '<|end|>' + '\n'}}{% endif %}{% endfor %}",
        PHI("user", "Hi") PHI("assistant", "Hello!") PHI("user", " Bye ") "<|assistant|>\n",
        PHI("user", "Be brief.\n\nHi") PHI("assistant", "Hello!") PHI("user", " Bye ") "<|assistant|>\n");
}

/* A system message within a conversation, as Claude Code and Codex send them, stays where a template takes it, and is
 * the user's where one refuses it (Qwen 3.5) or leaves it out. */
static void later_systems(void **state) {
    (void)state;
    const tern_message all[] = {{"system", "Be brief."}, {"user", "Hi"},    {"system", "It is noon."},
                                {"assistant", "Hello!"}, {"system", "Now"}, {"system", "later."},
                                {"user", "Bye"},         {"system", "End."}},
                       alone[] = {{"user", "Hi"}, {"assistant", "Hello!"}, {"system", "It is noon."}};
#define ALL "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    const struct {
        const char *template, *want, *want_alone;
    } cases[] = {
        {ALL,
         "[system] Be brief.\n[user] Hi\n[system] It is noon.\n[assistant] Hello!\n[system] Now\n[system] "
         "later.\n[user] Bye\n[system] End.\n",
         "[user] Hi\n[assistant] Hello!\n[system] It is noon.\n"},
        {"{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% "
         "endif "
         "%}[{{ m.role }}] {{ m.content }}\n{% endfor %}",
         "[system] Be brief.\n[user] Hi\n\nIt is noon.\n[assistant] Hello!\n[user] "
         "Now\n\nlater.\n\nBye\n\nEnd.\n",
         "[user] Hi\n[assistant] Hello!\n[user] It is noon.\n"},
        {"{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}] {{ m.content }}\n{% endif %}{% "
         "endfor %}",
         "[user] Be brief.\n\nHi\n\nIt is noon.\n[assistant] Hello!\n[user] Now\n\nlater.\n\nBye\n\nEnd.\n",
         "[user] Hi\n[assistant] Hello!\n[user] It is noon.\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_tokenizer *t = open_with(cases[i].template);
        check_opt(t, all, sizeof all / sizeof *all, NULL, cases[i].want);
        check_opt(t, alone, 3, NULL, cases[i].want_alone);
        tn_tokenizer_close(&t);
    }
#undef ALL
}

static void options(void **state) {
    (void)state;
    tn_tokenizer *t = open_in(
        &ctx, "{{ strftime_now('%Y') }} {{ messages[0].content }} {{ name }} {{ add_generation_prompt }}",
        "{{ tools[0].function.name }} {{ messages[1].tool_calls[0].function.arguments | tojson }} plus text");
    const tern_message hi = {"user", "Hi"};
    const tern_chat_options date = {
        .size_bytes = sizeof date, .now_s = 1763719200, .variables = "{\"name\": \"x\"}", .no_answer = true};
    check_opt(t, &hi, 1, &date, "2025 Hi x False");
    /* arguments that came as text go in as the object they are; a template for tools is used for tools */
    const tern_chat_options tools = {
        .size_bytes = sizeof tools,
        .tools = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
        .messages = "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": null, "
                    "\"tool_calls\": "
                    "[{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [1, 2.5]}\"}}]}]"};
    check_opt(t, NULL, 0, &tools, "f {\"a\": [1, 2.5]} plus text");
    tern_chat_options none = tools; /* no words are no arguments */
    none.messages = "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": null, "
                    "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \" \"}}]}]";
    check_opt(t, NULL, 0, &none, "f {} plus text");
    uint8_t *blob;
    size_t n;
    tern_error err;
    assert_int_equal(tn_tokenizer_save(t, &blob, &n, &err), TERN_OK);
    tn_tokenizer_close(&t);
    if (tn_tokenizer_load(&ctx, blob, n, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    check_opt(t, NULL, 0, &tools, "f {\"a\": [1, 2.5]} plus text");
    check_opt(t, &hi, 1, &date, "2025 Hi x False");
    tn_free(&ctx, blob);
    const tern_chat_options bad = {.size_bytes = sizeof bad, .variables = "[1]"},
                            broken = {.size_bytes = sizeof broken, .messages = "[{]"};
    check_fails(t, &hi, 1, &bad, TERN_E_INVALID, "template variables: not an object");
    check_fails(t, &hi, 1, &broken, TERN_E_INVALID, "messages: line 1 is not JSON");
    tn_tokenizer_close(&t);
}

static void refused(void **state) {
    (void)state;
    const struct {
        const char *template, *message;
        tern_status status;
    } all[] = {
        {NULL, "the model has no chat template; give it plain text, or name a template", TERN_E_UNSUPPORTED},
        {"a\n\n{{ messages | urlize }}", "chat template, line 3: the filter 'urlize' is not supported",
         TERN_E_UNSUPPORTED},
        {"{% if x is weird %}{% endif %}", "chat template, line 1: the test 'weird' is not supported",
         TERN_E_UNSUPPORTED},
        {"\n{% include 'x' %}", "chat template, line 2: the tag 'include' is not supported",
         TERN_E_UNSUPPORTED},
        {"{{ 'x'.zfill(3) }}", "chat template, line 1: the method 'zfill' of strings is not supported",
         TERN_E_UNSUPPORTED},
        {"{{ messages", "chat template, line 1: a tag that does not end", TERN_E_FORMAT},
        {"{% for x in messages %}", "chat template, line 1: the template ends before else", TERN_E_FORMAT},
        {"{{ x.y }}", "chat template, line 1: 'x' is undefined", TERN_E_INVALID},
        {"{{ raise_exception('no\nway') }}", "chat template, line 1: it refuses the conversation: no way",
         TERN_E_INVALID},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         "chat template, line 1: the template takes more than", TERN_E_LIMIT},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
         "chat template, line 1: the template nests deeper than 400", TERN_E_LIMIT},
        {"{{ messages[0].content * 999999999 }}", "chat template, line 1: the template takes more than",
         TERN_E_LIMIT},
        {"{% set a = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 1000 %}{{ a * 100000 }}",
         "chat template, line 1: the template takes more than", TERN_E_LIMIT},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char buf[64];
        size_t n;
        tern_error err = {0};
        tn_tokenizer *t = open_with(all[i].template);
        assert_int_equal(tn_chat_render(t, talk, 3, NULL, buf, sizeof buf, &n, &err), all[i].status);
        if (strncmp(err.message, all[i].message, strlen(all[i].message)))
            fail_msg("\"%s\", want \"%s\"", err.message, all[i].message);
        tn_tokenizer_close(&t);
    }
    tn_tokenizer *t = open_with("{{ messages[0].content }}");
    const tern_chat_options tools = {.size_bytes = sizeof tools, .tools = "[]"},
                            unknown = {.size_bytes = sizeof unknown, .chat_template = "vicuna"};
    check_fails(t, talk, 3, &tools, TERN_E_UNSUPPORTED, "the model's chat template knows no tools");
    const tern_chat_options named = {.size_bytes = sizeof named,
                                     .tools = "[{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}]",
                                     .chat_template =
                                         "{% if xml_tools %}tools{% endif %}{{ messages[0].content }}"};
    check_fails(t, talk, 3, &named, TERN_E_UNSUPPORTED,
                "the model's chat template leaves the tool 'weather' out");
    check_fails(t, talk, 3, &unknown, TERN_E_INVALID,
                "there is no chat template 'vicuna'; by name there are " TN_CHAT_NAMES);
    const tern_message lacking = {"user", NULL};
    check_fails(t, &lacking, 1, NULL, TERN_E_INVALID, "message 0 lacks its role or content");
    tn_tokenizer_close(&t);
}

/* ---- memory running out ---- */

static int allocations_left;

static void *failing_alloc(void *user, size_t n, size_t align) {
    (void)user;
    if (allocations_left == 0) return NULL;
    if (allocations_left > 0) allocations_left--;
    return aligned_alloc(align, (n + align - 1) / align * align);
}
static void release(void *user, void *p) {
    (void)user;
    free(p);
}

static void out_of_memory(void **state) {
    (void)state;
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.alloc = failing_alloc;
    hooks.release = release;
    tn_ctx c;
    tn_ctx_init(&c, &hooks);
    allocations_left = -1;
    tn_tokenizer *t = open_in(
        &c, "{% for m in messages %}{{ m | tojson(indent=2) }}{{ m.content.split('e') }}{% endfor %}", NULL);
    int32_t ids[512];
    size_t n;
    tern_error err;
    tern_status st = TERN_E_MEMORY;
    int fails = 0;
    for (; st != TERN_OK && fails < 100; fails++) {
        allocations_left = fails;
        st = tn_chat_tokens(t, talk_sys, 4, NULL, ids, 512, &n, &err);
        if (st != TERN_OK) assert_int_equal(st, TERN_E_MEMORY);
    }
    assert_int_equal(st, TERN_OK);
    assert_true(fails > 3);
    allocations_left = -1;
    tn_tokenizer_close(&t);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_name),       cmocka_unit_test(shipped),
                                       cmocka_unit_test(later_systems), cmocka_unit_test(options),
                                       cmocka_unit_test(refused),       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
