#include "lab/synth_text.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* These are the last tokens. Other engines look the first three up by name in anything called Phi-3. */
static const char *const control[] = {"<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_end|>"};
enum { N_CONTROL = sizeof control / sizeof control[0], I_END = 3 };

/* Writes a byte in GPT-2's alphabet: printable bytes stand for themselves, the others for 256 + their rank
 * among the unprintable. */
static size_t byte_text(int b, char out[4]) {
    int code = b, rank = 0;
    bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    for (int i = 0; i < b && !plain; i++)
        rank += !((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174);
    if (!plain) code = 256 + rank;
    if (code < 128) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
}

/* Marks of pictures: in front of the control tokens where a model sees. */
enum { SEES_GRID = 4, N_MARKS = 3 + SEES_GRID * SEES_GRID, LONGEST = 32 };
static int mark_text(int family, size_t i, char out[LONGEST]) {
    static const char *const marks[][3] = {{"<image>", "<fake_token_around_image>", "<global-img>"},
                                           {"<start_of_image>", "<image_soft_token>", "<end_of_image>"},
                                           {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"},
                                           {"<image>", "<|image_start|>", "<|image_end|>"},
                                           {"<IMG_CONTEXT>", "<img>", "</img>"},
                                           {"<|image|>", "<|image>", "<image|>"},
                                           {"<image>", "</image>", "<slice>"}};
    static const char *const minicpm[] = {"</slice>", "<image_id>", "</image_id>"};
    if (i < 3) return snprintf(out, LONGEST, "%s", marks[family - 1][i]);
    const int cell = (int)i - 3, r = cell / SEES_GRID % SEES_GRID + 1, c = cell % SEES_GRID + 1;
    if (family == 7 && i < 6) return snprintf(out, LONGEST, "%s", minicpm[i - 3]);
    if (family == 4 && i == N_MARKS - 1) return snprintf(out, LONGEST, "<|img_thumbnail|>");
    return snprintf(out, LONGEST, family == 4 ? "<|img_row_%d_col_%d|>" : "<row_%d_col_%d>", r, c);
}

/* A turn for a line; pictures of a message stand where its parts have them. */
static const char sees_template[] =
    "{% for m in messages %}{{ m['role'] | capitalize }}:{% if m['content'] is string %} {{ m['content'] }}"
    "{% else %}{% for p in m['content'] %}{% if p['type'] == 'image' %}{{ '%s' }}"
    "{% else %} {{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

/* One that knows no pictures, as MiniCPM-V's. */
static const char plain_template[] =
    "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

static void put_template(tn_gguf_writer *w, int sees) {
    if (sees == 7) {
        tn_gguf_put_str(w, "tokenizer.chat_template", plain_template);
        return;
    }
    char mark[3][LONGEST] = {"", "", ""}, text[sizeof sees_template + sizeof mark];
    const char *hole = strstr(sees_template, "%s");
    for (size_t i = 0; i < (sees == 3 ? 3 : 1); i++) (void)mark_text(sees, i, mark[i]);
    snprintf(text, sizeof text, "%.*s%s%s%s%s", (int)(hole - sees_template), sees_template, mark[0], mark[1],
             mark[2], hole + 2);
    tn_gguf_put_str(w, "tokenizer.chat_template", text);
}

tern_status tn_synth_put_tokenizer(tn_ctx *ctx, tn_gguf_writer *w, int32_t n_vocab, int sees,
                                   tern_error *err) {
    size_t n = (size_t)n_vocab, first_mark = sees ? n - N_CONTROL - N_MARKS : n;
    char *text = tn_alloc(ctx, TN_MEM_TEXT, n, LONGEST);
    const char **tokens = tn_alloc(ctx, TN_MEM_TEXT, n, sizeof *tokens);
    size_t *lens = tn_alloc(ctx, TN_MEM_TEXT, n, sizeof *lens);
    int32_t *types = tn_alloc(ctx, TN_MEM_TEXT, n, sizeof *types);
    tern_status st = text && tokens && lens && types
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory for a vocabulary of %d", n_vocab);
    /* "th", "he", "in", "er", "an" are merges, so that merging is exercised */
    static const char *const merges[] = {"t h", "h e", "i n", "e r", "a n"};
    static const size_t merge_lens[] = {3, 3, 3, 3, 3};
    for (size_t i = 0; i < n && st == TERN_OK; i++) {
        char *s = text + LONGEST * i;
        tokens[i] = s;
        types[i] = 1;
        if (i < 256) {
            lens[i] = byte_text((int)i, s);
        } else if (i < 261) {
            s[0] = merges[i - 256][0];
            s[1] = merges[i - 256][2];
            lens[i] = 2;
        } else if (i >= n - N_CONTROL) {
            lens[i] = (size_t)snprintf(s, LONGEST, "%s", control[i - (n - N_CONTROL)]);
            types[i] = 3;
        } else if (i >= first_mark) {
            lens[i] = (size_t)mark_text(sees, i - first_mark, s);
            types[i] = 3;
        } else {
            lens[i] = (size_t)snprintf(s, LONGEST, "[unused%zu]", i);
            types[i] = 5;
        }
    }
    if (st == TERN_OK) {
        tn_gguf_put_str(w, "tokenizer.ggml.model", "gpt2");
        tn_gguf_put_str(w, "tokenizer.ggml.pre", "qwen2");
        tn_gguf_put_arr_str(w, "tokenizer.ggml.tokens", tokens, lens, n);
        tn_gguf_put_arr_i32(w, "tokenizer.ggml.token_type", types, n);
        tn_gguf_put_arr_str(w, "tokenizer.ggml.merges", merges, merge_lens, 5);
        tn_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)(n_vocab - N_CONTROL + I_END));
        tn_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)(n_vocab - N_CONTROL + I_END));
        tn_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
        if (sees) put_template(w, sees);
    }
    tn_free(ctx, text);
    tn_free(ctx, tokens);
    tn_free(ctx, lens);
    tn_free(ctx, types);
    return st;
}
