/* base/sum.h - SHA-256, by which content is told apart, and SHA-1, by which git and registries name files. */
#ifndef TN_BASE_SUM_H
#define TN_BASE_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tn_sum {
    bool sha1; /* else SHA-256 */
    uint32_t state[8];
    uint8_t block[64];
    uint64_t n_bytes;
} tn_sum;

enum { TN_SUM_TEXT = 65 };

void tn_sum_begin(tn_sum *s, bool sha1);
void tn_sum_add(tn_sum *s, const void *data, size_t n);
/* The sum's 20 or 32 bytes. */
void tn_sum_bytes(tn_sum *s, uint8_t out[32]);
/* The same in hexadecimal. */
void tn_sum_end(tn_sum *s, char out[TN_SUM_TEXT]);
#endif
