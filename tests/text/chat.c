/* Chat templates: the families' own sources, and what they write by their definition. */
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tn_ctx ctx;

static tn_tokenizer *open_with(const char *template) {
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
                              .chat_template = template};
    tn_tokenizer *t;
    tern_error err;
    if (tn_tokenizer_open(&ctx, &spec, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

static const tern_message talk[] = {{"user", "Hi"}, {"assistant", "Hello!"}, {"user", " Bye "}};
static const tern_message talk_sys[] = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", " Bye "}};

static void check(const char *template, const char *want, const char *want_sys) {
    tn_tokenizer *t = open_with(template);
    for (int sys = 0; sys < 2; sys++) {
        char buf[2048];
        size_t n;
        tern_error err = {0};
        const char *expect = sys ? want_sys : want;
        if (tn_chat_render(t, sys ? talk_sys : talk, sys ? 4 : 3, true, buf, sizeof buf - 1, &n, &err) !=
            TERN_OK)
            fail_msg("%s", err.message);
        buf[n] = 0;
        assert_string_equal(buf, expect);
        /* the cap rule: the number needed, nothing beyond the cap */
        memset(buf, '#', sizeof buf);
        size_t need;
        assert_int_equal(tn_chat_render(t, sys ? talk_sys : talk, sys ? 4 : 3, true, buf, 10, &need, &err),
                         TERN_E_LIMIT);
        assert_int_equal(need, n);
        assert_memory_equal(buf, expect, 10);
        assert_int_equal(buf[10], '#');
    }
    tn_tokenizer_close(&t);
}

#define IM(role, text) "<|im_start|>" role "\n" text "<|im_end|>\n"
#define CHATML_LOOP                                                                                          \
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"   \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static void chatml(void **state) {
    (void)state;
    check("{% for message in messages %}" CHATML_LOOP,
          IM("user", "Hi") IM("assistant", "Hello!") IM("user", " Bye ") "<|im_start|>assistant\n",
          IM("system", "Be brief.") IM("user", "Hi") IM("assistant", "Hello!")
              IM("user", " Bye ") "<|im_start|>assistant\n");
}

static void chatml_defaults(void **state) {
    (void)state;
    const char *with_sys = IM("system", "Be brief.") IM("user", "Hi") IM("assistant", "Hello!")
        IM("user", " Bye ") "<|im_start|>assistant\n";
    /* SmolLM2 */
    check("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
          "'<|im_start|>system\\nYou are a helpful AI assistant "
          "named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}" CHATML_LOOP,
          IM("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
              IM("user", "Hi") IM("assistant", "Hello!") IM("user", " Bye ") "<|im_start|>assistant\n",
          with_sys);
    /* Qwen2, with true newlines as some conversions have them */
    check("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
          "'<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
          "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
          "'\n'}}{% endfor %}",
          IM("system", "You are a helpful assistant.") IM("user", "Hi") IM("assistant", "Hello!")
              IM("user", " Bye ") "<|im_start|>assistant\n",
          with_sys);
    /* Qwen2.5 (shortened): the literal is the third of its kind */
    check("{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0]['role'] == 'system' "
          "%}\n        {{- messages[0]['content'] }}\n"
          "    {%- else %}\n        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful "
          "assistant.' }}\n    {%- endif %}\n{%- else %}\n"
          "    {%- if messages[0]['role'] == 'system' %}\n        {{- '<|im_start|>system\\n' + "
          "messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n"
          "        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
          "assistant.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n"
          "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + message.content + "
          "'<|im_end|>' + '\\n' }}\n{%- endfor %}",
          IM("system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
              IM("user", "Hi") IM("assistant", "Hello!") IM("user", " Bye ") "<|im_start|>assistant\n",
          with_sys);
}

static void chatml_thoughts(void **state) {
    (void)state;
    tn_tokenizer *t = open_with(
        "{{- '<|im_start|>' + message.role }} content.split('</think>')[-1].lstrip('\\n') <|im_end|>");
    const tern_message msgs[] = {
        {"user", "1+1"}, {"assistant", "<think>\nhm\n</think>\n\n2"}, {"user", "sure?"}};
    char buf[512];
    size_t n;
    assert_int_equal(tn_chat_render(t, msgs, 3, true, buf, sizeof buf, &n, NULL), TERN_OK);
    buf[n] = 0;
    assert_string_equal(buf,
                        IM("user", "1+1") IM("assistant", "2") IM("user", "sure?") "<|im_start|>assistant\n");
    assert_int_equal(tn_chat_render(t, msgs, 2, false, buf, sizeof buf, &n, NULL), TERN_OK);
    buf[n] = 0;
    assert_string_equal(buf, IM("user", "1+1") IM("assistant", "2"));
    tn_tokenizer_close(&t);
}

#define L3(role, text) "<|start_header_id|>" role "<|end_header_id|>\n\n" text "<|eot_id|>"

static void llama3(void **state) {
    (void)state;
    const char *gen = L3("user", "Hi") L3("assistant", "Hello!")
        L3("user", "Bye") "<|start_header_id|>assistant<|end_header_id|>\n\n";
    char want[1024], want_sys[1024];
    snprintf(want, sizeof want, "%s", gen);
    snprintf(want_sys, sizeof want_sys, "%s%s", L3("system", "Be brief."), gen);
    check("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
          "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
          "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token "
          "+ content %}{% endif %}{{ content }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif "
          "%}",
          want, want_sys);
    /* 3.2: dates, and the template's own default */
    snprintf(want, sizeof want, "%s%s",
             L3("system", "Cutting Knowledge Date: December 2023\nToday Date: 30 Sep 2025\n\n"), gen);
    snprintf(want_sys, sizeof want_sys, "%s%s",
             L3("system", "Cutting Knowledge Date: December 2023\nToday Date: 30 Sep 2025\n\nBe brief."),
             gen);
    check("{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n        {%- set "
          "date_string = strftime_now(\"%d %b %Y\") %}\n    {%- else %}\n"
          "        {%- set date_string = \"30 Sep 2025\" %}\n    {%- endif %}\n{%- endif %}\n{{- "
          "\"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n"
          "{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n{{- \"Today Date: \" + date_string + "
          "\"\\n\\n\" }}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}",
          want, want_sys);
}

static void llama2(void **state) {
    (void)state;
    check("{% for message in loop_messages %}{% if loop.index0 == 0 and system_message != false %}{% set "
          "content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' "
          "+ message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + "
          "content.strip() + ' [/INST]' }}"
          "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif "
          "%}{% endfor %}",
          "[INST] Hi [/INST] Hello! </s><s>[INST] Bye [/INST]",
          "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]");
}

static void mistral(void **state) {
    (void)state;
    check(
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
        "message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% endif %}{% endfor %}",
        "[INST] Hi [/INST]Hello!</s>[INST]  Bye  [/INST]",
        "[INST] Be brief.\n\nHi [/INST]Hello!</s>[INST]  Bye  [/INST]");
    check("{%- for message in loop_messages %}{%- if message[\"role\"] == \"user\" %}{%- if loop.last and "
          "system_message is defined %}"
          "{{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}{%- else "
          "%}{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}"
          "{%- endif %}{%- elif message[\"role\"] == \"assistant\" %}{{- \" \" + message[\"content\"]|trim + "
          "eos_token}}{%- endif %}{%- endfor %}",
          "[INST] Hi[/INST] Hello!</s>[INST]  Bye [/INST]",
          "[INST] Hi[/INST] Hello!</s>[INST] Be brief.\n\n Bye [/INST]");
}

static void gemma(void **state) {
    (void)state;
    const char *rest = "<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n<start_of_turn>user\nBye<"
                       "end_of_turn>\n<start_of_turn>model\n";
    char want[512], want_sys[512];
    snprintf(want, sizeof want, "<start_of_turn>user\nHi%s", rest);
    snprintf(want_sys, sizeof want_sys, "<start_of_turn>user\nBe brief.\n\nHi%s", rest);
    check("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not "
          "supported') }}{% endif %}{% for message in messages %}"
          "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor "
          "%}{% if add_generation_prompt %}"
          "{{'<start_of_turn>model\\n'}}{% endif %}",
          want, want_sys);
}

static void phi3(void **state) {
    (void)state;
    const char *gen =
        "<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\n Bye <|end|>\n<|assistant|>\n";
    char want_sys[512];
    snprintf(want_sys, sizeof want_sys, "<|system|>\nBe brief.<|end|>\n%s", gen);
    check("{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + "
          "message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}"
          "{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' "
          "%}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}"
          "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ "
          "eos_token }}{% endif %}",
          gen, want_sys);
    /* the first version, as GGUF files have it: no system role */
    check("{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|user|>' + "
          "'\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' "
          "+ '\n'}}{% elif (message['role'] == 'assistant') %}{{message['content'] + '<|end|>' + '\n'}}{% "
          "endif %}{% endfor %}",
          gen,
          "<|user|>\nBe brief.\n\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\n Bye "
          "<|end|>\n<|assistant|>\n");
    /* Phi-4-mini */
    check("{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' "
          "}}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
          "<|user|>Hi<|end|><|assistant|>Hello!<|end|><|user|> Bye <|end|><|assistant|>",
          "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Hello!<|end|><|user|> Bye "
          "<|end|><|assistant|>");
}

static void zephyr(void **state) {
    (void)state;
    const char *gen = "<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\n Bye </s>\n<|assistant|>\n";
    char want_sys[512];
    snprintf(want_sys, sizeof want_sys, "<|system|>\nBe brief.</s>\n%s", gen);
    check("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + "
          "message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
          "{{ '<|system|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' "
          "%}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n"
          "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% "
          "endfor %}",
          gen, want_sys);
}

static void refused(void **state) {
    (void)state;
    char buf[64];
    size_t n;
    tern_error err;
    tn_tokenizer *t = open_with(NULL);
    assert_int_equal(tn_chat_render(t, talk, 3, true, buf, sizeof buf, &n, &err), TERN_E_UNSUPPORTED);
    assert_string_equal(err.message, "the model has no chat template; give it plain text");
    tn_tokenizer_close(&t);
    t = open_with(
        "{% for message in messages %}{{ message['role'].upper() }}:\n{{ message['content'] }}{% endfor %}");
    assert_int_equal(tn_chat_render(t, talk, 3, true, buf, sizeof buf, &n, &err), TERN_E_UNSUPPORTED);
    assert_string_equal(
        err.message,
        "unknown chat template: {% for message in messages %}{{ message['role'].upper() }}: ...");
    tn_tokenizer_close(&t);
    t = open_with("<start_of_turn><end_of_turn>");
    const tern_message twice[] = {{"user", "a"}, {"user", "b"}}, tool[] = {{"tool", "x"}};
    assert_int_equal(tn_chat_render(t, twice, 2, true, buf, sizeof buf, &n, &err), TERN_E_INVALID);
    assert_int_equal(tn_chat_render(t, tool, 1, true, buf, sizeof buf, &n, &err), TERN_E_INVALID);
    tn_tokenizer_close(&t);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(chatml),          cmocka_unit_test(chatml_defaults),
                                       cmocka_unit_test(chatml_thoughts), cmocka_unit_test(llama3),
                                       cmocka_unit_test(llama2),          cmocka_unit_test(mistral),
                                       cmocka_unit_test(gemma),           cmocka_unit_test(phi3),
                                       cmocka_unit_test(zephyr),          cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
