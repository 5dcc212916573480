#include "base/cpu.h"

#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Tile registers hold 8 KiB, which Linux keeps for a process only after it asked. It refuses where a signal stack is too
 * small for them. */
static bool may_use_tiles(void) {
#if defined(__linux__)
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* What the processor has, of these TN_CPU_* features. */
static uint32_t detect(uint32_t wanted) {
    uint32_t a, b, c, d, flags = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!(c & bit_OSXSAVE)) return 0;
    uint64_t os = xcr0();
    int fma = (c & bit_FMA) && (c & bit_F16C) && (c & bit_AVX) && (os & 6) == 6;
    uint32_t a7, b7, c7, d7;
    if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return 0;
    if (fma && (b7 & (1u << 5))) flags |= TN_CPU_AVX2;
    uint32_t a71 = 0, b71, c71, d71;
    if (a7 >= 1) __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
    if ((flags & TN_CPU_AVX2) && (a71 & (1u << 4))) flags |= TN_CPU_AVXVNNI;
    uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if ((flags & TN_CPU_AVX2) && (b7 & f_dq_bw_vl) == f_dq_bw_vl && (os & 0xe6) == 0xe6) {
        flags |= TN_CPU_AVX512;
        if (c7 & (1u << 11)) flags |= TN_CPU_AVX512VNNI;
        if (c7 & (1u << 1)) flags |= TN_CPU_AVX512VBMI;
        if (a71 & (1u << 5)) flags |= TN_CPU_AVX512BF16;
        uint32_t tile_int8 = 1u << 24 | 1u << 25;
        if ((flags & TN_CPU_AVX512VNNI) && (d7 & tile_int8) == tile_int8 && (os & 0x60000) == 0x60000 &&
            (wanted & TN_CPU_AMXINT8) && may_use_tiles())
            flags |= TN_CPU_AMXINT8;
    }
    return flags;
}
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

static uint32_t detect(uint32_t wanted) {
    (void)wanted;
    unsigned long h1 = getauxval(AT_HWCAP), h2 = getauxval(AT_HWCAP2);
    uint32_t flags = (h1 & HWCAP_ASIMD) ? TN_CPU_NEON : 0;
    if (h1 & HWCAP_ASIMDDP) flags |= TN_CPU_DOTPROD;
    if (h1 & HWCAP_ASIMDHP) flags |= TN_CPU_FP16;
#ifdef HWCAP2_I8MM
    if (h2 & HWCAP2_I8MM) flags |= TN_CPU_I8MM;
#endif
#ifdef HWCAP2_BF16
    if (h2 & HWCAP2_BF16) flags |= TN_CPU_BF16;
#endif
    (void)h2;
    return flags;
}
#elif defined(__aarch64__)
static uint32_t detect(uint32_t wanted) { return wanted & TN_CPU_NEON; }
#else
static uint32_t detect(uint32_t wanted) {
    (void)wanted;
    return 0;
}
#endif

static const struct {
    const char *word;
    uint32_t flags;
} limits[] = {
    {"scalar", 0},
    {"avx2", TN_CPU_AVX2},
    {"avxvnni", TN_CPU_AVX2 | TN_CPU_AVXVNNI},
    {"avx512", TN_CPU_AVX2 | TN_CPU_AVXVNNI | TN_CPU_AVX512},
    {"avx512vnni", TN_CPU_AVX2 | TN_CPU_AVXVNNI | TN_CPU_AVX512 | TN_CPU_AVX512VNNI | TN_CPU_AVX512VBMI |
                       TN_CPU_AVX512BF16},
    {"amxint8", TN_CPU_AVX2 | TN_CPU_AVXVNNI | TN_CPU_AVX512 | TN_CPU_AVX512VNNI | TN_CPU_AVX512VBMI |
                    TN_CPU_AVX512BF16 | TN_CPU_AMXINT8},
    {"neon", TN_CPU_NEON},
    {"dotprod", TN_CPU_NEON | TN_CPU_DOTPROD | TN_CPU_FP16},
    {"i8mm", TN_CPU_NEON | TN_CPU_DOTPROD | TN_CPU_FP16 | TN_CPU_I8MM | TN_CPU_BF16},
};

uint32_t tn_cpu_detect(void) { return detect(UINT32_MAX); }

uint32_t tn_cpu_limit(const char *word, uint32_t have) {
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (!strcmp(word, limits[i].word)) return have & limits[i].flags;
    }
    return UINT32_MAX;
}

const char *tn_cpu_word(size_t i) { return i < sizeof limits / sizeof limits[0] ? limits[i].word : NULL; }

uint32_t tn_cpu_flags(const char **bad) {
    const char *word = getenv("TERN_CPU");
    if (word && !*word) word = NULL;
    uint32_t wanted = word ? tn_cpu_limit(word, UINT32_MAX) : UINT32_MAX;
    if (bad) *bad = wanted == UINT32_MAX ? word : NULL;
    return detect(wanted) & wanted;
}

const char *tn_cpu_flag_name(uint32_t one_flag) {
    switch (one_flag) {
    case TN_CPU_AVX2: return "avx2";
    case TN_CPU_AVXVNNI: return "avxvnni";
    case TN_CPU_AVX512: return "avx512";
    case TN_CPU_AVX512VNNI: return "avx512vnni";
    case TN_CPU_AVX512VBMI: return "avx512vbmi";
    case TN_CPU_AVX512BF16: return "avx512bf16";
    case TN_CPU_AMXINT8: return "amxint8";
    case TN_CPU_NEON: return "neon";
    case TN_CPU_DOTPROD: return "dotprod";
    case TN_CPU_I8MM: return "i8mm";
    case TN_CPU_BF16: return "bf16";
    case TN_CPU_FP16: return "fp16";
    }
    return "?";
}

int tn_cpu_count(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}
