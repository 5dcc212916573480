/* Caches of long texts move to huge pages: those that are filled by three quarters, no others, and what they hold
 * stays. Skipped where the system has no huge pages for those who ask, or cannot move what is there (Linux 6.1). */
#include "model/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
enum { CTX = 32768, N_LAYERS = 2, N_KV = 2, D = 64, PAGE = 2 << 20, ROW = D * 2, FULL = 12288 };

static bool on_request(void) {
    char line[80] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    bool read = f && fgets(line, sizeof line, f);
    if (f) fclose(f);
    return read && strstr(line, "[madvise]");
}

static bool can_move(void) {
    char *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    memset(p, 1, 2 * PAGE);
    bool moved = !madvise((char *)(((uintptr_t)p + PAGE - 1) / PAGE * PAGE), PAGE, MADV_COLLAPSE);
    munmap(p, 2 * PAGE);
    return moved;
}

/* Bytes in huge pages, of all that the process has. */
static size_t huge_bytes(void) {
    size_t sum = 0, kb;
    char line[256];
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "AnonHugePages: %zu kB", &kb) == 1) sum += kb << 10;
    }
    fclose(f);
    return sum;
}

static void fill_and_grow(void (*grow)(tn_kv *kv)) {
    if (!on_request() || !can_move()) skip();
    tn_ctx ctx = {0};
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    tn_hparams h = {
        .n_layers = N_LAYERS, .n_embd = 2 * D, .n_heads = N_KV, .n_kv_heads = N_KV, .d_head = D, .n_rot = D};
    tn_kv kv;
    assert_int_equal(tn_kv_open(&ctx, &h, CTX, TN_KV_F16, &kv, &err), TERN_OK);
    const size_t before = huge_bytes(), head = kv.layers[0].head_bytes;
    assert_int_equal(head, 2 * PAGE);
    for (int i = 0; i < N_LAYERS * N_KV; i++) {
        for (size_t at = 0; at < FULL * ROW; at++) {
            kv.k[(size_t)i * head + at] = (uint8_t)(at * 7 + (size_t)i);
            kv.v[(size_t)i * head + at] = (uint8_t)(at * 5 + (size_t)i);
        }
    }
    tn_kv_state.append(&kv, 0, FULL / 2); /* three eighths of the first page of each head */
    assert_int_equal(huge_bytes(), before);
    grow(&kv);
    /* Of each head the first of two pages, of which three quarters are filled. */
    assert_int_equal(huge_bytes(), before + (size_t)2 * N_LAYERS * N_KV * PAGE);
    for (int i = 0; i < N_LAYERS * N_KV; i++) {
        for (size_t at = 0; at < FULL * ROW; at++) {
            assert_int_equal(kv.k[(size_t)i * head + at], (uint8_t)(at * 7 + (size_t)i));
            assert_int_equal(kv.v[(size_t)i * head + at], (uint8_t)(at * 5 + (size_t)i));
        }
    }
    tn_kv_close(&kv);
}

static void append(tn_kv *kv) { tn_kv_state.append(kv, FULL / 2, FULL / 2); }
static void keep(tn_kv *kv) { tn_kv_state.keep(kv, FULL - 1, FULL - 1); }

/* A saved text that is loaded: what is read are the bytes that are there. */
static void leave(void *user, void *at, size_t n) { (void)user, (void)at, (void)n; }
static void load(tn_kv *kv) { tn_kv_state.transfer(kv, FULL, false, leave, NULL); }

static void by_a_chunk(void **state) { (void)state, fill_and_grow(append); }
static void by_a_token(void **state) { (void)state, fill_and_grow(keep); }
static void by_a_saved_text(void **state) { (void)state, fill_and_grow(load); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_a_chunk), cmocka_unit_test(by_a_token),
                                       cmocka_unit_test(by_a_saved_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
