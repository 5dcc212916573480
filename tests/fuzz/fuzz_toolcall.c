/* An answer from a model that may write anything: the first byte says which family and how it is asked,
 * the second how the text is cut, and whether calls come in pieces. However it is cut, the events are the same, arguments
 * that come whole are JSON, and without calls and thoughts nothing but white space is lost. */
#include "text/toolcall.h"

#include <stdlib.h>
#include <string.h>

typedef struct record {
    char *p;
    size_t n;
    bool others, open;
} record;

static bool add(record *r, char kind, const char *s, size_t n) {
    char *p = realloc(r->p, r->n + 2 * n + 1);
    if (!p) abort();
    r->p = p;
    for (size_t i = 0; i < n; i++) r->p[r->n++] = kind, r->p[r->n++] = s[i];
    return true;
}
static bool on_text(void *u, const char *p, size_t n) { return add(u, 't', p, n); }
static bool on_thought(void *u, const char *p, size_t n) {
    ((record *)u)->others = true;
    return add(u, 'T', p, n);
}
static bool on_call(void *u, const char *name, const char *args) {
    json_t *v = json_loads(args, JSON_DECODE_INT_AS_REAL, NULL);
    if (!json_is_object(v) || !*name) abort();
    json_decref(v);
    ((record *)u)->others = true;
    return add(u, 'n', name, strlen(name)) && add(u, 'a', args, strlen(args));
}

/* A call that comes in pieces is recorded as one that comes whole, and its end where it turns out to be none. */
static bool on_piece(void *u, tn_call_piece what, const char *text, size_t n) {
    record *r = u;
    if ((what == TN_PIECE_NAME) == r->open) abort();
    if (what == TN_PIECE_NAME) {
        if (!n || strlen(text) != n) abort();
        r->open = r->others = true;
        return add(r, 'n', text, n);
    }
    if (what == TN_PIECE_MORE) return n ? add(r, 'a', text, n) : false;
    r->open = false;
    return what == TN_PIECE_WHOLE || add(r, 'b', "", 1);
}

static void read_answer(const tn_answer_options *given, const char *text, size_t n, size_t step, bool pieces,
                        record *r) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_answer_options o = *given;
    o.on = (tn_answer_events){on_text, on_thought, on_call, r, pieces ? on_piece : NULL};
    tn_answer *a;
    *r = (record){0};
    if (tn_answer_open(&ctx, &o, &a, NULL) != TERN_OK) abort();
    for (size_t i = 0; i < n; i += step)
        if (!tn_answer_put(a, text + i, n - i < step ? n - i : step)) abort();
    if (!tn_answer_end(a) || r->open) abort();
    tn_answer_close(&a);
}

static size_t solid(const char *p, size_t n, size_t stride) {
    size_t k = 0;
    for (size_t i = stride - 1; i < n; i += stride) k += !strchr(" \n\t\r", p[i]) || !p[i];
    return k;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const thoughts[] = {NULL, "<think>", "</think>"};
    if (size < 2) return 0;
    json_t *tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}}}}},{\"type\":\"function\",\"function\":"
        "{\"name\":\"python\"}}]",
        0, NULL);
    bool thinks = data[0] & 8;
    tn_answer_options o = {.form = {.calls = (tn_call_form)((data[0] & 7) % 7),
                                    .think = thinks ? thoughts[1] : NULL,
                                    .think_ends = thinks ? thoughts[2] : NULL},
                           .tools = data[0] & 16 ? NULL : tools,
                           .thinking = data[0] & 32,
                           .forced = data[0] & 64};
    const char *text = (const char *)data + 2;
    record whole, cut;
    bool pieces = data[1] & 128;
    read_answer(&o, text, size - 2, size, pieces, &whole);
    read_answer(&o, text, size - 2, data[1] % 16 + 1u, pieces, &cut);
    if (whole.n != cut.n || (whole.n && memcmp(whole.p, cut.p, whole.n))) abort();
    if (!whole.others && o.form.calls != TN_CALLS_HARMONY && !thinks &&
        solid(whole.p, whole.n, 2) != solid(text, size - 2, 1))
        abort();
    free(whole.p);
    free(cut.p);
    json_decref(tools);
    return 0;
}
