/* What /load and /attach of tern chat read. A conversation from anywhere: what is read of it comes back as
 * it is when it is written again. A file to attach: valid UTF-8 within its bound, or an error. */
#include "tiny.h"

#include "cli/chat_file.h"
#include "documents/file_text.h"

#include <utf8proc.h>

enum { MESSAGES = 256, ATTACH_MAX = 1 << 16 };

static size_t read_all(char *text, const char **roles, char **contents) {
    size_t n = 0;
    while (*text && n < MESSAGES && (contents[n] = cli_chat_file_next(&text, &roles[n]))) n++;
    return n;
}

static void load(const uint8_t *data, size_t size) {
    const char *roles[MESSAGES], *again_roles[MESSAGES];
    char *contents[MESSAGES], *again_contents[MESSAGES], *text = malloc(size + 1), *written = NULL;
    size_t n_written;
    FILE *f = open_memstream(&written, &n_written);
    if (!text || !f) abort();
    memcpy(text, data, size);
    text[size] = 0;
    size_t n = read_all(text, roles, contents);
    for (size_t i = 0; i < n; i++) cli_chat_file_write(f, roles[i], contents[i]);
    if (fclose(f)) abort();
    if (read_all(written, again_roles, again_contents) != n) abort();
    for (size_t i = 0; i < n; i++)
        if (roles[i] != again_roles[i] || strcmp(contents[i], again_contents[i])) abort();
    free(text);
    free(written);
}

static void attach(const uint8_t *data, size_t size) {
    static const char *const names[] = {"a.txt", "a.eml", "a.html", "a.docx"};
    static char path[320];
    if (!tiny_folder[0]) tiny_place();
    snprintf(path, sizeof path, "%s/%s", tiny_folder, names[size % 4]);
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f)) abort();
    tn_ctx ctx;
    tern_error err = {0};
    char *text = NULL;
    size_t n = 0;
    tn_ctx_init(&ctx, NULL);
    if (tn_file_text(&ctx, path, 0, ATTACH_MAX, NULL, NULL, &text, &n, &err) != TERN_OK) {
        if (text || !err.message[0]) abort();
    } else {
        if (text[n] || n > ATTACH_MAX) abort();
        for (size_t i = 0; i < n;) {
            utf8proc_int32_t c;
            utf8proc_ssize_t len =
                utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
            if (len < 1) abort();
            i += (size_t)len;
        }
    }
    tn_free(&ctx, text);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    if (data[0] == 'a') {
        if (size < 5 || memcmp(data + 1, "%PDF", 4)) attach(data + 1, size - 1); /* not another program */
    } else {
        load(data + 1, size - 1);
    }
    return 0;
}
