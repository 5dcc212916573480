/* cli/pull_sum.h - the sums that registries name their files by: SHA-256, and SHA-1 of what git would keep. */
#ifndef TN_CLI_PULL_SUM_H
#define TN_CLI_PULL_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pull_sum {
    bool sha1; /* else SHA-256 */
    uint32_t state[8];
    uint8_t block[64];
    uint64_t n_bytes;
} pull_sum;

enum { PULL_SUM_TEXT = 65 };

void cli_sum_begin(pull_sum *s, bool sha1);
void cli_sum_add(pull_sum *s, const void *data, size_t n);
/* In hexadecimal. */
void cli_sum_end(pull_sum *s, char out[PULL_SUM_TEXT]);
#endif
