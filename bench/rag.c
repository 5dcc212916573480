/* bench/rag.c - time of retrievals from a store: bench_rag STORE QUESTIONS, a file of lines
 * "path<tab>question". bench/rag.sh makes both. */
#include "base/clock.h"
#include "base/order.h"
#include "documents/rag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_QUESTIONS = 1000, ROUNDS = 5 };

int main(int argc, char **argv) {
    tn_ctx ctx;
    tern_error err;
    tn_store *s;
    tn_ctx_init(&ctx, NULL);
    FILE *f = argc == 3 ? fopen(argv[2], "r") : NULL;
    if (!f || tn_store_open(&ctx, argv[1], NULL, &s, &err) != TERN_OK) {
        fprintf(stderr, "usage: bench_rag STORE QUESTIONS\n");
        return 2;
    }
    static char lines[MAX_QUESTIONS][600];
    static double ms[MAX_QUESTIONS * ROUNDS];
    int n = 0, n_ms = 0, first = 0, among = 0;
    while (n < MAX_QUESTIONS && fgets(lines[n], sizeof lines[n], f)) {
        lines[n][strcspn(lines[n], "\n")] = 0;
        n += strchr(lines[n], '\t') != NULL;
    }
    fclose(f);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < n; i++) {
            char *question = strchr(lines[i], '\t');
            tn_rag_hit *hits;
            int32_t n_hits;
            double t0 = tn_now_s();
            if (tn_rag_search(s, question + 1, TN_RAG_K, NULL, &hits, &n_hits, &err) != TERN_OK) {
                fprintf(stderr, "%s\n", err.message);
                return 1;
            }
            ms[n_ms++] = (tn_now_s() - t0) * 1e3;
            bool found = false;
            for (int h = 0; h < n_hits && !round && !found; h++) {
                found = !strncmp(hits[h].path, lines[i], (size_t)(question - lines[i])) &&
                        !hits[h].path[question - lines[i]];
                first += found && !h;
            }
            among += found;
            tn_rag_hits_free(&ctx, &hits, n_hits);
        }
    }
    tn_store_close(&s);
    if (!n_ms) return 1;
    double cold = ms[0];
    qsort(ms, (size_t)n_ms, sizeof *ms, tn_by_double);
    printf("%d retrievals: median %.2f ms, 99 %% below %.2f ms, longest %.2f ms, the very first %.2f ms; "
           "right document first %d of %d, among %d: %d\n",
           n_ms, ms[n_ms / 2], ms[n_ms * 99 / 100], ms[n_ms - 1], cold, first, n, TN_RAG_K, among);
    return 0;
}
