/* Office documents, books and messages from outside: valid UTF-8 within its bound, or a reason; and their
 * pictures. The first byte says which name the file has. */
#include "documents/documents.h"
#include "documents/office.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"a.eml", "a.docx", "a.html", "a.txt"};
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    if (!size) return 0;
    char *out;
    size_t n;
    const char *why;
    if (tn_doc_is_container((const char *)data + 1, size - 1)) {
        if (tn_doc_office_picture(&ctx, (const char *)data + 1, size - 1, 1 + data[0] % 4, &out, &n, &why,
                                  NULL) != TERN_OK)
            return 0;
        if (out && (why || out[n])) abort();
        tn_free(&ctx, out);
    }
    if (tn_document_text(&ctx, names[data[0] % 4], (const char *)data + 1, size - 1, 1 << 20, &out, &n, &why,
                         NULL) != TERN_OK)
        return 0;
    if (!out != !!why) abort();
    if (!out) return 0;
    if (out[n] || n > 1 << 20) abort();
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len =
            utf8proc_iterate((const utf8proc_uint8_t *)out + i, (utf8proc_ssize_t)(n - i), &c);
        if (len < 1) abort();
        i += (size_t)len;
    }
    tn_free(&ctx, out);
    return 0;
}
