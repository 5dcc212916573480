/* Documents from outside: decode, strip, cut up. What comes out is UTF-8 within its bounds, and passages lie
 * in the text. */
#include "documents/extract.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static void must_be_utf8(const char *t, size_t n) {
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len =
            utf8proc_iterate((const utf8proc_uint8_t *)t + i, (utf8proc_ssize_t)(n - i), &c);
        if (len < 1) abort();
        i += (size_t)len;
    }
    if (t[n]) abort();
}

typedef struct range {
    const char *text, *last;
    size_t n;
} range;

static bool inside(void *user, const char *p, size_t n) {
    range *r = user;
    if (!n || p < r->text || p + n > r->text + r->n || (r->last && p <= r->last)) abort();
    r->last = p;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    char *text, *page;
    size_t n, n_page;
    tn_text_is_binary((const char *)data, size);
    if (tn_text_decode(&ctx, (const char *)data, size, &text, &n, NULL) != TERN_OK) return 0;
    must_be_utf8(text, n);
    if (tn_text_from_html(&ctx, text, n, &page, &n_page, NULL) == TERN_OK) {
        must_be_utf8(page, n_page);
        const tn_passage_options o = {.max_tokens = 1 + size % 50, .overlap_tokens = size % 50 / 3};
        range r = {.text = page, .n = n_page};
        tn_passages(page, n_page, &o, inside, &r);
        tn_free(&ctx, page);
    }
    tn_free(&ctx, text);
    return 0;
}
