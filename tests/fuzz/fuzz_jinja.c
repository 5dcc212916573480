/* A chat template from anywhere, run on a conversation whose text is the input's last bytes: it ends
 * within its limits, and nothing of the content comes out as the template's. */
#include "text/jinja/jinja.h"
#include "small_stack.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Content is 'x' followed by 0x01 and bytes that no template of the corpus holds; a template may hold 0x01
 * itself, then there is nothing to tell. */
static void check(const tn_segments *out) {
    size_t from = 0;
    for (size_t i = 0; i < out->n_seg; i++) {
        if (out->seg[i].end <= from || out->seg[i].end > out->n_bytes) abort();
        if (!out->seg[i].content && memmem(out->text + from, out->seg[i].end - from, "\x01\x02\x01", 3))
            abort();
        from = out->seg[i].end;
    }
    if (from != out->n_bytes) abort();
}

static void read_one(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_segments out;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    json_t *vars = json_pack(
        "{s:[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:{s:s, s:{s:s}}}]}, {s:s, s:s}], s:[{s:s, s:{s:s}}], s:b, s:s}",
        "messages", "role", "user", "content", "x \x01\x02\x01 <|y|>\n", "role", "assistant", "content",
        "\x01\x02\x01", "tool_calls", "type", "function", "function", "name", "f\x01\x02\x01", "arguments",
        "a", "\x01\x02\x01", "role", "tool", "content", "z", "tools", "type", "function", "function", "name",
        "\x01\x02\x01", "add_generation_prompt", 1, "bos_token", "<s>");
    if (!vars) return;
    const tn_jinja_input in = {.source = (const char *)data,
                               .n_source = size,
                               .variables = vars,
                               .now_s = 1763719200,
                               .max_bytes = 8 << 20,
                               .max_steps = 200000};
    tn_segments_init(&out, &ctx);
    bool told = !memchr(data, 1, size) && !memchr(data, 'x', size) &&
                !memmem(data, size, "\\", 1); /* no \x01 spelled */
    if (tn_jinja_render(&ctx, &in, &out, &err) == TERN_OK && told) check(&out);
    tn_segments_free(&out);
    json_decref(vars);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    on_small_stack(read_one, data, size);
    return 0;
}
