/* npu/hexagon/dsp/main_qemu.c - the DSP program under qemu-hexagon: a freestanding process with its
 * requests on descriptor 0, its replies on 1 and the arenas from 3 on. The peer's death is the end of 0.
 * "VTCM" is ordinary memory of that size. Its threads are cloned without a C library and wait for work at
 * a futex. */
#include "runtime.h"

#include <stddef.h>

enum { READ = 63, WRITE = 64, EXIT_GROUP = 94, MMAP2 = 222, READ_WRITE = 3, SHARED = 1, ARENA_FD = 3 };
enum { FUTEX = 98, CLONE = 220, FUTEX_WAIT = 0, FUTEX_WAKE = 1, STACK = 64 << 10 };
#define THREAD_FLAGS 0x50f00 /* VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: the flags of a thread for qemu */

static uint8_t vtcm[TN_HEX_VTCM_MOST] __attribute__((aligned(128)));
static tn_hex_runtime runtime;

static long call(long n, long a, long b, long c, long d, long e, long f) {
    register long r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c, r3 __asm__("r3") = d,
                     r4 __asm__("r4") = e, r5 __asm__("r5") = f, r6 __asm__("r6") = n;
    __asm__ volatile("trap0(#1)"
                     : "+r"(r0)
                     : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5), "r"(r6)
                     : "memory");
    return r0;
}

static uint8_t *map_arena(uint32_t i, uint32_t n_bytes) {
    long p = call(MMAP2, 0, (long)n_bytes, READ_WRITE, SHARED, ARENA_FD + (long)i, 0);
    return (unsigned long)p < (unsigned long)-4096 ? (uint8_t *)p : NULL;
}

static uint8_t *get_vtcm(uint32_t n_bytes) { return n_bytes <= sizeof vtcm ? vtcm : NULL; }

/* ---- threads ----------------------------------------------------------------------------------------- */

static uint8_t stacks[TN_HEX_MAX_THREADS][STACK] __attribute__((aligned(128)));

/* What the threads share. Work is handed over by the round's number; n_left counts the threads that have
 * not finished the round, with or without a part of it. */
static struct {
    int32_t round, n_left, n_threads;
    void (*fn)(void *arg, uint32_t i);
    void *arg;
    uint32_t n;
} team = {.n_threads = 1};

static void wait_while(int32_t *p, int32_t value) {
    while (__atomic_load_n(p, __ATOMIC_ACQUIRE) == value) call(FUTEX, (long)p, FUTEX_WAIT, value, 0, 0, 0);
}
static void wake(int32_t *p) { call(FUTEX, (long)p, FUTEX_WAKE, TN_HEX_MAX_THREADS, 0, 0, 0); }

__attribute__((used, noreturn)) static void work_for_ever(uint32_t i) {
    for (int32_t seen = 0;; seen++) {
        wait_while(&team.round, seen);
        if (i < team.n) team.fn(team.arg, i);
        if (__atomic_sub_fetch(&team.n_left, 1, __ATOMIC_ACQ_REL) == 0) wake(&team.n_left);
    }
}

/* The child returns from the call with an empty stack: its number has to come in a register. */
static long clone_thread(uint8_t *top, uint32_t i) {
    register long r0 __asm__("r0") = THREAD_FLAGS, r1 __asm__("r1") = (long)top, r2 __asm__("r2") = 0,
                     r3 __asm__("r3") = 0, r4 __asm__("r4") = 0, r6 __asm__("r6") = CLONE,
                     r16 __asm__("r16") = (long)i;
    __asm__ volatile("trap0(#1)\n"
                     "p0 = cmp.eq(r0, #0)\n"
                     "if (!p0) jump 1f\n"
                     "r0 = r16\n"
                     "jump work_for_ever\n"
                     "1:"
                     : "+r"(r0)
                     : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r6), "r"(r16)
                     : "p0", "memory");
    return r0;
}

static int make_threads(uint32_t n) {
    for (; team.n_threads < (int32_t)n; team.n_threads++)
        if (clone_thread(stacks[team.n_threads] + STACK, (uint32_t)team.n_threads) < 0) return -1;
    return 0;
}

static void on_threads(void (*fn)(void *arg, uint32_t i), void *arg, uint32_t n) {
    team.fn = fn, team.arg = arg, team.n = n, team.n_left = team.n_threads - 1;
    __atomic_add_fetch(&team.round, 1, __ATOMIC_RELEASE);
    wake(&team.round);
    fn(arg, 0);
    for (int32_t left; (left = __atomic_load_n(&team.n_left, __ATOMIC_ACQUIRE)) > 0;)
        wait_while(&team.n_left, left);
}

/* ---- messages ---------------------------------------------------------------------------------------- */

__attribute__((used, noreturn)) static void serve(void) {
    tn_hex_request g;
    tn_hex_reply reply;
    runtime.platform = (tn_hex_platform){
        .map_arena = map_arena, .get_vtcm = get_vtcm, .make_threads = make_threads, .on_threads = on_threads};
    for (;;) {
        for (long n = 0; n < (long)sizeof g;) {
            long got = call(READ, 0, (long)((char *)&g + n), (long)sizeof g - n, 0, 0, 0);
            if (got <= 0) call(EXIT_GROUP, got < 0, 0, 0, 0, 0, 0);
            n += got;
        }
        tn_hex_answer(&runtime, &g, &reply);
        if (call(WRITE, 1, (long)&reply, sizeof reply, 0, 0, 0) != sizeof reply)
            call(EXIT_GROUP, 1, 0, 0, 0, 0, 0);
    }
}

__attribute__((naked, used, noreturn)) void _start(void) {
    __asm__ volatile("{ r29 = and(r29, #-128) }\n jump serve");
}

/* Called by code that the compiler generates. */
void *memset(void *p, int c, size_t n) {
    for (volatile char *d = p; n--;) *d++ = (char)c;
    return p;
}
void *memcpy(void *to, const void *from, size_t n) {
    volatile char *d = to;
    for (const char *s = from; n--;) *d++ = *s++;
    return to;
}
void __hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *to, const void *from, size_t n) {
    memcpy(to, from, n);
}

/* Divides, because there is no division instruction. d is not 0. */
uint32_t __hexagon_udivsi3(uint32_t n, uint32_t d) {
    uint32_t q = 0;
    if (n < d) return 0;
    for (int i = __builtin_clz(d) - __builtin_clz(n); i >= 0; i--) {
        if (n >> i >= d) n -= d << i, q |= 1u << i;
    }
    return q;
}
uint32_t __hexagon_umodsi3(uint32_t n, uint32_t d) { return n - __hexagon_udivsi3(n, d) * d; }
