/* A tokenizer.model of SentencePiece from anywhere: refused with a status, or pieces that lie in it, in order. */
#include "text/spm.h"

#include <stdint.h>
#include <stdlib.h>

typedef struct seen {
    const uint8_t *data;
    size_t size;
    int32_t n;
} seen;

static tern_status on_piece(void *user, int32_t id, const char *text, size_t n, float score,
                            tn_token_type type) {
    seen *s = user;
    (void)score;
    const uint8_t *p = (const uint8_t *)text;
    if (id != s->n++ || (n && (p < s->data || p + n > s->data + s->size)) || type > TN_TOKEN_BYTE) abort();
    return TERN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    seen s = {.data = data, .size = size};
    tn_spm m;
    tern_error err;
    if (tn_spm_read(data, size, &m, on_piece, &s, &err) != TERN_OK) return 0;
    const int32_t ids[] = {m.unk, m.bos, m.eos, m.pad};
    for (int i = 0; i < 4; i++)
        if (ids[i] < -1 || ids[i] >= s.n) abort();
    return 0;
}
