/* base/cpu.h - instruction sets that the processor has and the operating system supports.
 * TERN_CPU=scalar|avx2|avx512|neon|... lowers the set, in every tool. */
#ifndef TN_BASE_CPU_H
#define TN_BASE_CPU_H

#include <stddef.h>
#include <stdint.h>

enum {
    TN_CPU_AVX2 = 1u << 0,    /* AVX2 + FMA + F16C */
    TN_CPU_AVXVNNI = 1u << 1, /* VEX-coded VNNI */
    TN_CPU_AVX512 = 1u << 2,  /* F, BW, DQ, VL */
    TN_CPU_AVX512VNNI = 1u << 3,
    TN_CPU_AVX512VBMI = 1u << 4,
    TN_CPU_AVX512BF16 = 1u << 5,
    TN_CPU_AMXINT8 = 1u << 6, /* tiles of bytes, on Linux, which gives their state to who asks */
    TN_CPU_NEON = 1u << 8,
    TN_CPU_DOTPROD = 1u << 9,
    TN_CPU_I8MM = 1u << 10,
    TN_CPU_BF16 = 1u << 11,
    TN_CPU_FP16 = 1u << 12,
};

/* Returns the features that the hardware has and the operating system saves. */
uint32_t tn_cpu_detect(void);
/* Returns the hardware's set, lowered by the environment variable TERN_CPU. An unknown word is ignored, and
 * *bad points to it. */
uint32_t tn_cpu_flags(const char **bad);
/* Returns the features of a TERN_CPU word, intersected with `have`, or UINT32_MAX for an unknown word. */
uint32_t tn_cpu_limit(const char *word, uint32_t have);
/* Returns word i of those that TERN_CPU takes, in ascending order for each architecture, or NULL after the last. */
const char *tn_cpu_word(size_t i);
const char *tn_cpu_flag_name(uint32_t one_flag);
/* In a loop that waits for another thread. */
static inline void tn_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
int tn_cpu_count(void); /* number of online processors this process may use */

#endif
