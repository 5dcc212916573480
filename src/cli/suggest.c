#include "cli/suggest.h"

#include <stdio.h>
#include <unistd.h>

enum { MOST = 3 };

/* Files of 4 bits in Ollama's registry, smallest first. What one takes in memory is its file and about a fifth for a
 * context of 4096 tokens and the work. */
static const struct {
    const char *name;
    double gb;
} models[] = {
    {"qwen3:0.6b", 0.5}, {"qwen3:1.7b", 1.4}, {"qwen3:4b", 2.6}, {"qwen3:8b", 5.2}, {"qwen3:14b", 9.3},
};
enum { N_MODELS = sizeof models / sizeof *models };

int cli_suggest(uint64_t memory_bytes, char *out, size_t cap) {
    int n = 0;
    size_t at = 0;
    if (cap) *out = 0;
    for (int i = N_MODELS; i-- > 0 && n < MOST;) {
        if (models[i].gb * 1.2e9 > (double)memory_bytes / 4) continue;
        int len = snprintf(out + at, cap - at, "  tern pull %-12s %4.1f GB\n", models[i].name, models[i].gb);
        if (len < 0 || (size_t)len >= cap - at) break;
        at += (size_t)len;
        n++;
    }
    return n;
}

void cli_suggest_here(void) {
    char text[256];
    double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (bytes <= 0 || !cli_suggest((uint64_t)bytes, text, sizeof text)) return;
    fprintf(stderr, "good models for this machine's %.0f GB of memory, the best answers first:\n%s",
            bytes * 1e-9, text);
}
