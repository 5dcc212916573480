#include "documents/doc_text.h"

void tn_doc_put(tn_doc_text *t, const char *s, size_t n) {
    if (t->no_memory || t->full || !n) return;
    if (n > t->max - t->n) {
        t->full = true;
        return;
    }
    if (t->cap - t->n < n + 1) {
        size_t cap = t->cap * 2 + n + 256;
        char *p = tn_realloc(t->ctx, TN_MEM_TEXT, t->p, cap, 1);
        if (!p) {
            t->no_memory = true;
            return;
        }
        t->p = p;
        t->cap = cap;
    }
    memcpy(t->p + t->n, s, n);
    t->n += n;
    t->p[t->n] = 0;
}

void tn_doc_break(tn_doc_text *t, int n_newlines) {
    if (!t->n) return;
    while (t->n && (t->p[t->n - 1] == ' ' || t->p[t->n - 1] == '\t')) t->p[--t->n] = 0;
    int have = 0;
    while (have < n_newlines && (size_t)have < t->n && t->p[t->n - 1 - (size_t)have] == '\n') have++;
    for (; have < n_newlines; have++) tn_doc_put(t, "\n", 1);
}
