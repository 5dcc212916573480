/* What the names that people give to tern pull mean, and which mean nothing. */
#include "cli/pull_name.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

static void is(const char *text, const char *want) {
    pull_name n;
    char got[6 * PULL_TEXT];
    assert_true(cli_pull_name(text, &n));
    snprintf(got, sizeof got, "%d %s|%s|%s|%s|%s", n.from, n.host, n.org, n.model, n.tag, n.file);
    assert_string_equal(got, want);
}

static void names(void **state) {
    (void)state;
    is("Qwen/Qwen3-0.6B", "0 |Qwen|Qwen3-0.6B||");
    is("Qwen/Qwen3-0.6B-GGUF:Q8_0", "0 |Qwen|Qwen3-0.6B-GGUF|Q8_0|");
    is("hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0", "0 |Qwen|Qwen3-0.6B-GGUF|Q8_0|");
    is("Qwen/Qwen3-0.6B-GGUF/q/x.gguf", "0 |Qwen|Qwen3-0.6B-GGUF||q/x.gguf");
    is("https://huggingface.co/Qwen/Qwen3-0.6B", "0 |Qwen|Qwen3-0.6B||");
    is("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "0 |Qwen|Qwen3-0.6B||");
    is("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", "0 |a|b||c.gguf");
    is("https://huggingface.co/a/b/blob/main/d/c.gguf", "0 |a|b||d/c.gguf");
    is("qwen3:0.6b", "1 registry.ollama.ai|library|qwen3|0.6b|");
    is("llama3.2", "1 registry.ollama.ai|library|llama3.2|latest|");
    is("ollama.com/library/qwen3", "1 registry.ollama.ai|library|qwen3|latest|");
    is("ollama.com/somebody/model:1b", "1 registry.ollama.ai|somebody|model|1b|");
    is("localhost:5000/library/tiny:0.1b", "1 localhost:5000|library|tiny|0.1b|");
    is("https://example.org/files/m.gguf?x=1", "2 example.org||m.gguf||");
    is("http://example.org:81/m.gguf", "2 example.org-81||m.gguf||");
}

static void not_names(void **state) {
    (void)state;
    static const char *const all[] = {"",
                                      "a b",
                                      "../x",
                                      "a/..",
                                      "/etc/passwd",
                                      "~/m.gguf",
                                      "-x",
                                      "a/b/../c",
                                      "a/b:c/d",
                                      "x:y:z",
                                      "a:",
                                      ":b",
                                      "ftp://a/b.gguf",
                                      "https://user@example.org/m.gguf",
                                      "https://example.org/",
                                      "https:///m.gguf",
                                      "a/b\n",
                                      "a/b/.hidden",
                                      "a\\b/c",
                                      "https://example.org/a/..",
                                      "hf.co/",
                                      "hf.co/a"};
    pull_name n;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (cli_pull_name(all[i], &n)) fail_msg("%s", all[i]);
    assert_false(cli_pull_path_ok("a//b"));
    assert_false(cli_pull_path_ok("a/"));
    assert_true(cli_pull_path_ok("a/b c.gguf"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(not_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
