/* Speed of the tokenizer: opening, a text to ids, ids to text; the median of several rounds.
 *
 *   bench_tokenizer TEXT VOCABULARY...   each a Hugging Face folder or a vocabulary GGUF */
#include "base/clock.h"
#include "base/order.h"
#include "text/vocab_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7 };

static double median(double *s) {
    qsort(s, ROUNDS, sizeof *s, tn_by_double);
    return s[ROUNDS / 2];
}

int main(int argc, char **argv) {
    size_t n;
    char *text = argc > 2 ? read_whole(argv[1], &n) : NULL;
    if (!text) {
        fprintf(stderr, "usage: %s TEXT VOCABULARY...\n", argv[0]);
        return 2;
    }
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    int32_t *ids = malloc((n + 2) * sizeof *ids);
    if (!ids) return 1;
    printf("%-32s %9s %9s %12s %12s %12s\n", "vocabulary", "open ms", "load ms", "tokens", "encode MB/s",
           "decode MB/s");
    for (int a = 2; a < argc; a++) {
        tern_error err = {0};
        tn_tokenizer *t, *u;
        double open_s[ROUNDS], load_s[ROUNDS], enc_s[ROUNDS], dec_s[ROUNDS];
        uint8_t *blob;
        size_t n_blob, n_ids = 0;
        for (int r = 0; r < ROUNDS; r++) {
            double t0 = (double)tn_now_ns();
            if (vocab_open_any(&ctx, argv[a], &t, &err) != TERN_OK ||
                tn_tokenizer_save(t, &blob, &n_blob, &err) != TERN_OK) {
                fprintf(stderr, "%s: %s\n", argv[a], err.message);
                return 1;
            }
            double t1 = (double)tn_now_ns();
            if (tn_tokenizer_load(&ctx, blob, n_blob, &u, &err) != TERN_OK) return 1;
            double t2 = (double)tn_now_ns();
            if (tn_tokenize(u, text, n, true, false, ids, n + 2, &n_ids, &err) != TERN_OK) return 1;
            double t3 = (double)tn_now_ns();
            size_t cap = 4 * tn_tokenizer_max_token_bytes(u) + 16, total = 0;
            char *buf = malloc(cap);
            tn_detok d;
            tn_detok_init(&d, u, false, true);
            for (size_t i = 0; i < n_ids; i++) total += tn_detok_push(&d, ids[i], buf, cap);
            total += tn_detok_flush(&d, buf, cap);
            double t4 = (double)tn_now_ns();
            free(buf);
            if (total != n) fprintf(stderr, "%s: %zu bytes come back of %zu\n", argv[a], total, n);
            open_s[r] = t1 - t0;
            load_s[r] = t2 - t1;
            enc_s[r] = t3 - t2;
            dec_s[r] = t4 - t3;
            tn_free(&ctx, blob);
            tn_tokenizer_close(&t);
            tn_tokenizer_close(&u);
        }
        const char *name = strlen(argv[a]) > 32 ? argv[a] + strlen(argv[a]) - 32 : argv[a];
        printf("%-32s %9.1f %9.1f %12zu %12.1f %12.1f\n", name, median(open_s) * 1e-6, median(load_s) * 1e-6,
               n_ids, (double)n / median(enc_s) * 1e3, (double)n / median(dec_s) * 1e3);
    }
    free(ids);
    free(text);
    return 0;
}
