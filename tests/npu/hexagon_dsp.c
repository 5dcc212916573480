/* The DSP program itself, spoken to without the backend: what it refuses, what it survives, and its unpacking
 * of weightlets. */
#include "base/rng.h"
#include "kernels/topk.h"
#include "kernels/unpack.h"
#include "npu/npu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef TERN_HEXAGON
#include "npu/hexagon/message.h"
#include "npu/hexagon/transport.h"

enum { WINDOW = 4096, WINDOW_BYTES = 1 << 20, AREA = 2 << 20, VTCM = 64 << 10, CAP = 1 << 20 };

static tn_ctx ctx;

static tn_hex_link *start(void) {
    tern_error err;
    tn_hex_link *l;
    tn_ctx_init(&ctx, NULL);
    setenv("TERN_HEXAGON_DSP", TN_BINARY_DIR "/hexagon-dsp", 0);
    if (tn_hex_transport_here.open(&ctx, &l, &err) != TERN_OK) fail_msg("%s", err.message);
    return l;
}

static tn_hex_reply send(tn_hex_link *l, tn_hex_request g) {
    static uint32_t serial;
    tn_hex_reply r = {0};
    g.serial = ++serial;
    assert_true(tn_hex_transport_here.send(l, &g, sizeof g));
    assert_int_equal(tn_hex_transport_here.receive(l, &r, sizeof r, 20000), TN_HEX_CAME);
    assert_int_equal(r.serial, serial);
    return r;
}

static uint32_t ask(tn_hex_link *l, tn_hex_request g) { return send(l, g).status; }

static tn_hex_request hello(const tn_hex_link *l) {
    return (tn_hex_request){.what = TN_HEX_HELLO,
                            .hello = {.version = TN_HEX_VERSION,
                                      .arena_bytes = l->arena_bytes,
                                      .window = WINDOW,
                                      .window_bytes = WINDOW_BYTES,
                                      .cap_bytes = CAP,
                                      .vtcm_bytes = VTCM,
                                      .n_threads = 3,
                                      .n_arenas = 1}};
}

static tn_hex_request map(uint32_t what, uint32_t place, uint32_t size) {
    return (tn_hex_request){.what = what, .map = {place, size}};
}

/* n 40, k 100: tiles of 48 x 100 at AREA, scales after. */
static tn_hex_request graph(uint32_t id) {
    tn_hex_request g = {.what = TN_HEX_LOAD, .id = id, .load = {.m = 10, .k = 100, .n_ops = 1}};
    g.load.ops[0].n = 40;
    g.load.ops[0].tiles = AREA;
    g.load.ops[0].scale = AREA + 4800;
    return g;
}

static tn_hex_request run(uint32_t id) {
    tn_hex_request g = {.what = TN_HEX_RUN, .id = id, .run = {.n_rows = 10}};
    g.run.ops[0].in = WINDOW;
    g.run.ops[0].in_stride = 104;
    g.run.ops[0].out = WINDOW + 8192;
    g.run.ops[0].out_stride = g.run.ops[0].cols = 40;
    return g;
}

static void test_order(void **state) {
    (void)state;
    tn_hex_link *l = start();
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, 4096)), TN_HEX_E_MESSAGE); /* nothing before the hello */
    assert_int_equal(ask(l, run(0)), TN_HEX_E_MESSAGE);
    tn_hex_request h = hello(l);
    h.hello.version++;
    assert_int_equal(ask(l, h), TN_HEX_E_MESSAGE);
    h = hello(l), h.hello.vtcm_bytes = TN_HEX_VTCM_LEAST - 1;
    assert_int_equal(ask(l, h), TN_HEX_E_LIMIT);
    h = hello(l), h.hello.vtcm_bytes = UINT32_MAX;
    assert_int_equal(ask(l, h), TN_HEX_E_LIMIT);
    h = hello(l), h.hello.n_threads = 0;
    assert_int_equal(ask(l, h), TN_HEX_E_LIMIT);
    h = hello(l), h.hello.n_threads = TN_HEX_MAX_THREADS + 1;
    assert_int_equal(ask(l, h), TN_HEX_E_LIMIT);
    h = hello(l), h.hello.window_bytes = UINT32_MAX;
    assert_int_equal(ask(l, h), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, hello(l)), TN_HEX_OK);
    assert_int_equal(ask(l, hello(l)), TN_HEX_E_MESSAGE); /* once */
    assert_int_equal(ask(l, (tn_hex_request){.what = 7}), TN_HEX_E_MESSAGE);
    tn_hex_transport_here.close(&l);
    assert_null(l);
}

static void test_memory(void **state) {
    (void)state;
    tn_hex_link *l = start();
    assert_int_equal(ask(l, hello(l)), TN_HEX_OK);
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, 0)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, 0, 64)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, l->arena_bytes - 64, 128)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, UINT32_MAX, 1)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, WINDOW + WINDOW_BYTES - 1, 2)), TN_HEX_E_PLACE);
    tn_hex_reply r = send(l, map(TN_HEX_MAP, AREA, CAP - 100));
    assert_int_equal(r.status, TN_HEX_OK);
    assert_int_equal(r.used_bytes, CAP - 100);
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA + 10, 20)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA + CAP - 101, 1)), TN_HEX_E_PLACE);
    r = send(l, map(TN_HEX_MAP, 8 << 20, 101)); /* the cap */
    assert_int_equal(r.status, TN_HEX_E_LIMIT);
    assert_int_equal(r.used_bytes, CAP - 100);
    assert_int_equal(ask(l, map(TN_HEX_MAP, 8 << 20, 100)), TN_HEX_OK);
    assert_int_equal(ask(l, map(TN_HEX_MAP, 9 << 20, 1)), TN_HEX_E_LIMIT);
    assert_int_equal(ask(l, map(TN_HEX_UNMAP, 8 << 20, 99)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_UNMAP, (8 << 20) + 1, 99)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_UNMAP, 8 << 20, 100)), TN_HEX_OK);
    assert_int_equal(ask(l, map(TN_HEX_UNMAP, 8 << 20, 100)), TN_HEX_E_PLACE);
    r = send(l, map(TN_HEX_UNMAP, AREA, CAP - 100));
    assert_int_equal(r.status, TN_HEX_OK);
    assert_int_equal(r.used_bytes, 0);
    for (uint32_t i = 0; i < TN_HEX_MAX_MAPS; i++) { /* a full table, in no order */
        uint32_t at = (i * 7919 % TN_HEX_MAX_MAPS) * 128;
        assert_int_equal(ask(l, map(TN_HEX_MAP, (16 << 20) + at, 32)), TN_HEX_OK);
    }
    assert_int_equal(ask(l, map(TN_HEX_MAP, 9 << 20, 1)), TN_HEX_E_LIMIT);
    tn_hex_transport_here.close(&l);
}

#define REFUSED(request, field, value, code)                                                                 \
    do {                                                                                                     \
        tn_hex_request g_ = request;                                                                         \
        g_.field = value;                                                                                    \
        assert_int_equal(ask(l, g_), code);                                                                  \
    } while (0)

static void test_graphs(void **state) {
    (void)state;
    tn_hex_link *l = start();
    assert_int_equal(ask(l, hello(l)), TN_HEX_OK);
    assert_int_equal(ask(l, graph(5)), TN_HEX_E_PLACE); /* nothing is mapped */
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, 4800 + 192)), TN_HEX_OK);
    REFUSED(graph(5), id, TN_HEX_MAX_GRAPHS, TN_HEX_E_GRAPH);
    REFUSED(graph(5), id, UINT32_MAX, TN_HEX_E_GRAPH);
    REFUSED(graph(5), load.m, 0, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.m, TN_HEX_MAX_ROWS + 1, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.k, 0, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.k, UINT32_MAX, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.k, 105, TN_HEX_E_PLACE);
    REFUSED(graph(5), load.is_qk, 2, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.is_qk, 1, TN_HEX_E_PLACE); /* Q.K has no tiles */
    REFUSED(graph(5), load.n_ops, 0, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.n_ops, TN_HEX_MAX_OPS + 1, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.n_ops, 2, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.ops[0].n, UINT32_MAX, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.ops[0].n, TN_HEX_MAX_N, TN_HEX_E_PLACE);
    REFUSED(graph(5), load.ops[0].n, 49, TN_HEX_E_PLACE);
    REFUSED(graph(5), load.ops[0].out_form, 4, TN_HEX_E_SHAPE);
    REFUSED(graph(5), load.ops[0].tiles, AREA + 1, TN_HEX_E_PLACE);
    REFUSED(graph(5), load.ops[0].tiles, AREA - 64, TN_HEX_E_PLACE);
    REFUSED(graph(5), load.ops[0].scale, AREA + 4804, TN_HEX_E_PLACE);
    REFUSED(graph(5), load.ops[0].bias, AREA + 4808, TN_HEX_E_PLACE);
    REFUSED(graph(5), load.ops[0].bias, UINT32_MAX - 7, TN_HEX_E_PLACE);
    assert_int_equal(ask(l, run(5)), TN_HEX_E_GRAPH);
    assert_int_equal(ask(l, graph(5)), TN_HEX_OK);
    assert_int_equal(ask(l, graph(5)), TN_HEX_E_GRAPH);
    assert_int_equal(ask(l, map(TN_HEX_UNMAP, AREA, 4800 + 192)), TN_HEX_E_PLACE); /* in use */
    assert_int_equal(ask(l, run(4)), TN_HEX_E_GRAPH);
    REFUSED(run(5), id, UINT32_MAX, TN_HEX_E_GRAPH);
    REFUSED(run(5), run.n_rows, 0, TN_HEX_E_SHAPE);
    REFUSED(run(5), run.n_rows, 11, TN_HEX_E_SHAPE);
    REFUSED(run(5), run.ops[0].cols, 41, TN_HEX_E_SHAPE);
    REFUSED(run(5), run.ops[0].cols, 39, TN_HEX_E_SHAPE);
    REFUSED(run(5), run.ops[0].out_stride, 39, TN_HEX_E_SHAPE);
    REFUSED(run(5), run.ops[0].out_stride, UINT32_MAX, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].in_stride, 96, TN_HEX_E_SHAPE);
    REFUSED(run(5), run.ops[0].in_stride, 108, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].in_stride, UINT32_MAX - 7, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].in, WINDOW + 4, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].in, 0, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].in, WINDOW + WINDOW_BYTES - 1032, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].out, WINDOW - 4, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].out, AREA + 2, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].out, 4 << 20, TN_HEX_E_PLACE);
    REFUSED(run(5), run.ops[0].out, UINT32_MAX - 3, TN_HEX_E_PLACE);
    for (int i = 0; i < 10 * 104; i++) l->arena[WINDOW + i] = (uint8_t)(128 + i % 3);
    memset(l->arena + AREA, 1, 4800);
    for (int i = 0; i < 48; i++) ((float *)(l->arena + AREA + 4800))[i] = 2;
    assert_int_equal(ask(l, run(5)), TN_HEX_OK);
    for (int m = 0; m < 10; m++) {
        int sum = 0;
        for (int k = 0; k < 100; k++) sum += (m * 104 + k) % 3;
        for (int n = 0; n < 40; n++)
            assert_true(((float *)(l->arena + WINDOW + 8192))[m * 40 + n] == (float)(2 * sum));
    }
    REFUSED(run(5), run.ops[0].cols, 0, TN_HEX_OK); /* left out */
    tn_hex_request end = {.what = TN_HEX_FREE, .id = 5};
    assert_int_equal(ask(l, end), TN_HEX_OK);
    assert_int_equal(ask(l, end), TN_HEX_E_GRAPH);
    assert_int_equal(ask(l, run(5)), TN_HEX_E_GRAPH);
    for (uint32_t i = 0; i < TN_HEX_MAX_GRAPHS; i++) assert_int_equal(ask(l, graph(i)), TN_HEX_OK);
    end.id = TN_HEX_MAX_GRAPHS;
    assert_int_equal(ask(l, end), TN_HEX_E_GRAPH);
    tn_hex_transport_here.close(&l);
}

/* A product whose tiles, factors, rows and results lie in four arenas. Nothing may reach from one into the next. */
static void test_arenas(void **state) {
    (void)state;
    setenv("TERN_HEXAGON_ARENA_MB", "34", 1);
    tn_hex_link *l = start();
    assert_int_equal(l->n_arenas, TN_HEX_MAX_ARENAS);
    assert_int_equal(l->arena_bytes, 34 << 20);
    uint32_t size = l->arena_bytes;
    REFUSED(hello(l), hello.n_arenas, 0, TN_HEX_E_PLACE);
    REFUSED(hello(l), hello.n_arenas, TN_HEX_MAX_ARENAS + 1, TN_HEX_E_PLACE);
    tn_hex_request h = hello(l);
    h.hello.n_arenas = 8, h.hello.arena_bytes = 1u << 29;
    assert_int_equal(ask(l, h), TN_HEX_E_PLACE); /* 4 GiB: a place has 32 bits */
    h = hello(l), h.hello.n_arenas = l->n_arenas;
    assert_int_equal(ask(l, h), TN_HEX_OK);
    assert_int_equal(ask(l, map(TN_HEX_MAP, size - 64, 128)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, 8 * size, 64)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, 8 * size - 64, 128)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, size, 4800)), TN_HEX_OK);            /* the second's begin */
    assert_int_equal(ask(l, map(TN_HEX_MAP, 4 * size - 192, 192)), TN_HEX_OK);   /* the fourth's end */
    assert_int_equal(ask(l, map(TN_HEX_MAP, 5 * size + 4096, 1040)), TN_HEX_OK); /* the sixth */
    assert_int_equal(ask(l, map(TN_HEX_MAP, 8 * size - 1600, 1600)), TN_HEX_OK); /* the last's end */
    tn_hex_request g = graph(5), r = run(5);
    g.load.ops[0].tiles = size, g.load.ops[0].scale = 4 * size - 192;
    r.run.ops[0].in = 5 * size + 4096, r.run.ops[0].out = 8 * size - 1600;
    for (int i = 0; i < 10 * 104; i++) l->arenas[5][4096 + i] = (uint8_t)(128 + i % 3);
    memset(l->arenas[1], 1, 4800);
    for (int i = 0; i < 48; i++) ((float *)(l->arenas[3] + size - 192))[i] = 2;
    assert_int_equal(ask(l, g), TN_HEX_OK);
    assert_int_equal(ask(l, r), TN_HEX_OK);
    for (int m = 0; m < 10; m++) {
        int sum = 0;
        for (int k = 0; k < 100; k++) sum += (m * 104 + k) % 3;
        for (int n = 0; n < 40; n++)
            assert_true(((float *)(l->arenas[7] + size - 1600))[m * 40 + n] == (float)(2 * sum));
    }
    tn_hex_transport_here.close(&l);
    setenv("TERN_HEXAGON_ARENA_MB", "33", 1); /* no room for more than the window */
    tern_error err;
    assert_int_equal(tn_hex_transport_here.open(&ctx, &l, &err), TERN_E_INVALID);
    unsetenv("TERN_HEXAGON_ARENA_MB");
}

static tn_hex_request packed(void) {
    tn_hex_request g = {
        .what = TN_HEX_UNPACK,
        .unpack = {.src = WINDOW, .src_bytes = 20 * 3 * 16, .tiles = AREA, .n_channels = 20, .k = 65}};
    for (size_t c = 0; c < 20; c++) tn_channel_bits_put(g.unpack.bits, c, 3);
    return g;
}

static void test_unpack_refusals(void **state) {
    (void)state;
    tn_hex_link *l = start();
    assert_int_equal(ask(l, hello(l)), TN_HEX_OK);
    assert_int_equal(ask(l, packed()), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, 32 * 68)), TN_HEX_OK);
    assert_int_equal(ask(l, packed()), TN_HEX_OK);
    REFUSED(packed(), unpack.n_channels, 0, TN_HEX_E_SHAPE);
    REFUSED(packed(), unpack.n_channels, TN_HEX_MAX_CHANNELS + 1, TN_HEX_E_SHAPE);
    REFUSED(packed(), unpack.n_channels, 21, TN_HEX_E_SHAPE);
    REFUSED(packed(), unpack.k, 0, TN_HEX_E_SHAPE);
    REFUSED(packed(), unpack.k, UINT32_MAX, TN_HEX_E_SHAPE);
    REFUSED(packed(), unpack.k, 69, TN_HEX_E_PLACE);
    REFUSED(packed(), unpack.bits[0], 0xff, TN_HEX_E_SHAPE);
    REFUSED(packed(), unpack.src_bytes, 0, TN_HEX_E_SHAPE);
    REFUSED(packed(), unpack.src, WINDOW + WINDOW_BYTES - 959, TN_HEX_E_PLACE);
    REFUSED(packed(), unpack.tiles, AREA + 16, TN_HEX_E_PLACE);
    REFUSED(packed(), unpack.tiles, AREA + 64, TN_HEX_E_PLACE);
    tn_hex_transport_here.close(&l);
}

/* ---- top-k ------------------------------------------------------------------------------------------ */

enum { SCORES = AREA, IDX = AREA + (480 << 10), TOP_MOST = 15000 };

static tn_hex_request top(uint32_t n_rows, uint32_t bound) {
    tn_hex_request g = {.what = TN_HEX_TOPK, .topk = {.n_rows = n_rows, .bound = bound}};
    for (uint32_t r = 0; r < TN_HEX_TOP_ROWS; r++) {
        g.topk.rows[r].scores = SCORES + r * 4 * TOP_MOST, g.topk.rows[r].idx = IDX + r * 4 * TOP_MOST;
        g.topk.rows[r].n = 100, g.topk.rows[r].k = 20;
    }
    return g;
}

/* Sound requests with random damage: each is answered, and nothing outside mapped memory is written. */
static void test_hostile(void **state) {
    (void)state;
    enum { FENCE = 1 << 16, SIZE = 1 << 14, N = 3000 };
    tn_hex_link *l = start();
    tn_hex_request h = hello(l);
    h.hello.window_bytes = 1 << 16;
    assert_int_equal(ask(l, h), TN_HEX_OK);
    memset(l->arena + WINDOW + (1 << 16), 0x3c, FENCE);
    memset(l->arena + AREA - FENCE, 0x3c, FENCE);
    memset(l->arena + AREA + SIZE, 0x3c, FENCE);
    memset(l->arena, 0x3c, WINDOW);
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, SIZE)), TN_HEX_OK);
    const char *s = getenv("TERN_SEED");
    tn_rng r = {s ? strtoull(s, NULL, 0) : 11};
    int n_ok = 0;
    for (int i = 0; i < N; i++) {
        uint32_t id = (uint32_t)tn_rng_below(&r, 4);
        tn_hex_request g = tn_rng_below(&r, 3) ? run(id) : tn_rng_below(&r, 2) ? graph(id) : packed();
        if (g.what == TN_HEX_LOAD) {
            g.load.is_qk = tn_rng_below(&r, 4) == 0;
            if (g.load.is_qk) g.load.ops[0].tiles = 0;
            g.load.ops[0].out_form = (uint32_t)tn_rng_below(&r, 4);
        } else if (g.what == TN_HEX_RUN) {
            g.run.ops[0].tiles = AREA;
        }
        if (!tn_rng_below(&r, 12)) g = (tn_hex_request){.what = TN_HEX_FREE, .id = id};
        if (!tn_rng_below(&r, 8)) {
            g = top(1 + (uint32_t)tn_rng_below(&r, 3), 7);
            for (uint32_t j = 0; j < 3; j++)
                g.topk.rows[j].scores = AREA, g.topk.rows[j].idx = AREA + 4096 + 128 * j;
        }
        uint32_t *words = (uint32_t *)&g;
        for (uint64_t n = tn_rng_below(&r, 3); n--;) {
            uint32_t w = (uint32_t)tn_rng_below(&r, tn_rng_below(&r, 2) ? 12 : sizeof g / 4),
                     v = (uint32_t)tn_rng_u64(&r);
            if (w == 0) continue; /* maps stay as they are */
            switch (tn_rng_below(&r, 5)) {
            case 0: words[w] = v; break;
            case 1: words[w] += (uint32_t)tn_rng_below(&r, 129) - 64; break;
            case 2: words[w] ^= 1u << v % 32; break;
            case 3: words[w] = v % 5000; break;
            default: words[w] = AREA + v % (2 * SIZE);
            }
        }
        n_ok += ask(l, g) == TN_HEX_OK;
    }
    print_message("%d of %d requests were sound\n", n_ok, N);
    assert_in_range(n_ok, N / 20, N);
    for (int i = 0; i < FENCE; i++)
        assert_true(l->arena[WINDOW + (1 << 16) + i] == 0x3c && l->arena[AREA - FENCE + i] == 0x3c &&
                    l->arena[AREA + SIZE + i] == 0x3c);
    for (int i = 0; i < WINDOW; i++) assert_int_equal(l->arena[i], 0x3c);
    tn_hex_transport_here.close(&l);
}

/* However many threads there are, products and unpackings give the same bits, in so little VTCM that every thread has
 * to bring its rows and weights in pieces. They are shared: a part is 32 columns or 16 channels. */
static void test_threads(void **state) {
    (void)state;
    enum {
        N = 200,
        K = 1100,
        M = 9,
        COLS = (N + 15) / 16 * 16,
        OUT = WINDOW + (1 << 16),
        PACKED = WINDOW + (1 << 17)
    };
    static uint8_t first[M * N * 4 + COLS * K];
    for (uint32_t n_threads = 1; n_threads <= TN_HEX_MAX_THREADS; n_threads++) {
        tn_hex_link *l = start();
        tn_hex_request h = hello(l), g = graph(0), r = run(0),
                       u = {.what = TN_HEX_UNPACK,
                            .unpack = {.src = PACKED, .tiles = AREA, .n_channels = N, .k = K}};
        h.hello.n_threads = n_threads, h.hello.vtcm_bytes = 130 << 10, h.hello.flags = TN_HEX_POISON;
        assert_int_equal(ask(l, h), TN_HEX_OK);
        assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, COLS * K + 2 * COLS * 4)), TN_HEX_OK);
        tn_rng rng = {7};
        for (uint32_t c = 0; c < N; c++) {
            uint32_t bits = 1 + (uint32_t)tn_rng_below(&rng, 8);
            tn_channel_bits_put(u.unpack.bits, c, bits);
            u.unpack.src_bytes += bits * ((K + 127) / 128) * 16;
        }
        for (uint32_t i = 0; i < u.unpack.src_bytes; i++) l->arena[PACKED + i] = (uint8_t)tn_rng_u64(&rng);
        for (uint32_t i = 0; i < M * 1104; i++) l->arena[WINDOW + i] = (uint8_t)tn_rng_u64(&rng);
        for (uint32_t i = 0; i < 2 * COLS; i++)
            ((float *)(l->arena + AREA + COLS * K))[i] = (float)tn_rng_below(&rng, 1000) / 7;
        g.load.m = M, g.load.k = K, g.load.ops[0].n = N;
        g.load.ops[0].scale = AREA + COLS * K, g.load.ops[0].bias = AREA + COLS * K + COLS * 4;
        r.run.n_rows = M, r.run.ops[0].in_stride = 1104, r.run.ops[0].out = OUT;
        r.run.ops[0].out_stride = r.run.ops[0].cols = N;
        tn_hex_reply said = send(l, u);
        assert_int_equal(said.status, TN_HEX_OK);
        assert_int_equal(said.n_threads, n_threads); /* 13 parts, and at least 16 KiB for each thread */
        assert_int_equal(ask(l, g), TN_HEX_OK);
        said = send(l, r);
        assert_int_equal(said.status, TN_HEX_OK);
        assert_int_equal(said.n_threads, n_threads < 7 ? n_threads : 7); /* of 32 columns */
        if (n_threads == 1) {
            memcpy(first, l->arena + OUT, M * N * 4), memcpy(first + M * N * 4, l->arena + AREA, COLS * K);
        } else {
            assert_memory_equal(first, l->arena + OUT, M * N * 4);
            assert_memory_equal(first + M * N * 4, l->arena + AREA, COLS * K);
        }
        tn_hex_transport_here.close(&l);
    }
    tn_hex_link *l = start(); /* too little VTCM for so many */
    tn_hex_request h = hello(l);
    h.hello.n_threads = 8, h.hello.vtcm_bytes = 40 << 10;
    assert_int_equal(ask(l, h), TN_HEX_OK);
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, CAP)), TN_HEX_OK);
    tn_hex_request u = packed();
    u.unpack.n_channels = 100, u.unpack.src_bytes = 300 * 16;
    for (size_t c = 20; c < 100; c++) tn_channel_bits_put(u.unpack.bits, c, 3);
    assert_int_equal(send(l, u).n_threads, 2);
    tn_hex_transport_here.close(&l);
}

static int32_t score_of(tn_rng *r, int kind, int32_t bound) {
    int32_t half = bound / 2 > 0 ? bound / 2 : 1;
    switch (kind) {
    case 0: return (int32_t)tn_rng_below(r, 2 * (uint64_t)bound + 1) - bound;
    case 1: return (int32_t)tn_rng_below(r, 3) - 1;      /* many that are equal */
    case 2: return tn_rng_below(r, 50) ? -bound : bound; /* only the ends */
    case 3: return -bound / 3;                           /* all equal */
    default: /* around nothing, as real scores are, with a few far off */
        return (int32_t)((tn_rng_below(r, (uint64_t)half) + tn_rng_below(r, (uint64_t)half)) /
                         (tn_rng_below(r, 9) ? 16 : 1)) -
               half / 16;
    }
}

/* The host's selection to the position, whatever the scores, of as many rows as a message takes, however many threads
 * share them, where VTCM holds a row and where it does not. */
static void test_topk(void **state) {
    (void)state;
    void *scratch = aligned_alloc(64, (tn_topk_scratch(TOP_MOST) + 63) / 64 * 64);
    static uint32_t want[TOP_MOST + 32];
    tn_rng r = {17};
    for (int way = 0; way < 3; way++) {
        tn_hex_link *l = start();
        tn_hex_request h = hello(l);
        h.hello.vtcm_bytes = way == 0 ? 16 << 10 : 200 << 10, h.hello.n_threads = way == 2 ? 3 : 1;
        h.hello.flags = TN_HEX_POISON;
        assert_int_equal(ask(l, h), TN_HEX_OK);
        assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, CAP)), TN_HEX_OK);
        for (int i = 0; i < 90; i++) {
            uint32_t n_rows = 1 + (uint32_t)tn_rng_below(&r, TN_HEX_TOP_ROWS),
                     bound = i % 3 ? 1 + (uint32_t)tn_rng_below(&r, 1 << 20) : TN_HEX_MAX_BOUND;
            tn_hex_request g = top(n_rows, bound);
            for (uint32_t row = 0; row < n_rows; row++) {
                uint32_t n = 1 + (uint32_t)tn_rng_below(&r, tn_rng_below(&r, 3) ? 300 : TOP_MOST);
                g.topk.rows[row].n = n;
                g.topk.rows[row].k = tn_rng_below(&r, 8) ? 1 + (uint32_t)tn_rng_below(&r, n) : n;
                int32_t *scores = (int32_t *)(l->arena + g.topk.rows[row].scores);
                for (uint32_t p = 0; p < n; p++) scores[p] = score_of(&r, i % 5, (int32_t)bound);
            }
            memset(l->arena + IDX, 0x77, TN_HEX_TOP_ROWS * 4 * TOP_MOST);
            tn_hex_reply said = send(l, g);
            assert_int_equal(said.status, TN_HEX_OK);
            assert_int_equal(said.n_threads, way == 2 ? (n_rows < 3 ? n_rows : 3) : 1);
            for (uint32_t row = 0; row < n_rows; row++) {
                uint32_t n = g.topk.rows[row].n, k = g.topk.rows[row].k;
                const uint32_t *got = (const uint32_t *)(l->arena + g.topk.rows[row].idx);
                tn_topk_ref(&(tn_topk_args){.scores = (const int32_t *)(l->arena + g.topk.rows[row].scores),
                                            .n = n,
                                            .k = k,
                                            .bound = (int32_t)bound,
                                            .idx = want,
                                            .scratch = scratch});
                if (memcmp(got, want, k * sizeof *want))
                    fail_msg("way %d, scores of kind %d up to %u: %u of %u are others", way, i % 5, bound, k,
                             n);
                assert_int_equal(k < TOP_MOST ? got[k] : 0x77777777, 0x77777777);
            }
        }
        tn_hex_transport_here.close(&l);
    }
    free(scratch);
}

/* What is wrong is refused; scores beyond their bound give some positions, and no more than were asked for. */
static void test_topk_refusals(void **state) {
    (void)state;
    tn_hex_link *l = start();
    assert_int_equal(ask(l, hello(l)), TN_HEX_OK);
    assert_int_equal(ask(l, top(8, 5)), TN_HEX_E_PLACE);
    assert_int_equal(ask(l, map(TN_HEX_MAP, AREA, CAP)), TN_HEX_OK);
    REFUSED(top(8, 5), topk.n_rows, 0, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.n_rows, TN_HEX_TOP_ROWS + 1, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.bound, 0, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.bound, TN_HEX_MAX_BOUND + 1, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.rows[7].n, 0, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.rows[7].n, TN_HEX_MAX_N + 1, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.rows[7].n, TN_HEX_MAX_N, TN_HEX_E_PLACE);
    REFUSED(top(8, 5), topk.rows[7].k, 0, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.rows[7].k, 101, TN_HEX_E_SHAPE);
    REFUSED(top(8, 5), topk.rows[7].scores, AREA + 2, TN_HEX_E_PLACE);
    REFUSED(top(8, 5), topk.rows[7].scores, AREA + CAP - 396, TN_HEX_E_PLACE);
    REFUSED(top(8, 5), topk.rows[7].idx, UINT32_MAX - 3, TN_HEX_E_PLACE);
    REFUSED(top(8, 5), topk.rows[7].idx, AREA + CAP - 76, TN_HEX_E_PLACE);
    for (uint32_t p = 0; p < 100; p++) ((int32_t *)(l->arena + SCORES))[p] = p % 2 ? INT32_MAX : INT32_MIN;
    memset(l->arena + IDX, 0x77, 400);
    assert_int_equal(ask(l, top(1, 5)), TN_HEX_OK);
    assert_int_equal(((uint32_t *)(l->arena + IDX))[20], 0x77777777);
    tn_hex_transport_here.close(&l);
}

/* ---- weightlets, through the backend ----------------------------------------------------------------- */

static int n_warnings;

static void on_log(void *user, tern_log_level level, const char *line) {
    (void)user;
    if (level <= TERN_LOG_WARN) n_warnings++, print_message("%s\n", line);
}

static void check_unpack(tn_npu_device *d, tn_rng *r, size_t n, size_t k, unsigned bits, bool there) {
    uint8_t *widths = calloc(tn_channel_bits_bytes(n) + 1, 1);
    for (size_t c = 0; c < n; c++)
        tn_channel_bits_put(widths, c, bits ? bits : 1 + (unsigned)tn_rng_below(r, 8));
    size_t n_packed = tn_weightlets_bytes(widths, 0, n, k), n_tiles = (n + 15) / 16 * 16 * ((k + 3) / 4 * 4),
           from = n > 32 ? 16 : 0;
    tern_error err;
    void *lent, *tiles;
    assert_int_equal(tn_npu_mem_alloc(d, n_packed, &lent, &err), TERN_OK);
    assert_int_equal(tn_npu_mem_alloc(d, n_tiles, &tiles, &err), TERN_OK);
    uint8_t *packed = there ? lent : malloc(n_packed), *want = aligned_alloc(64, (n_tiles + 63) / 64 * 64);
    for (size_t i = 0; i < n_packed; i++) packed[i] = (uint8_t)tn_rng_u64(r);
    memset(want, 0x77, n_tiles);
    memset(tiles, 0x77, n_tiles);
    size_t skip = tn_weightlets_bytes(widths, 0, from, k);
    tn_weightlets_unpack(tn_unpack_tile_ref, packed + skip, widths, from, n, k, (int8_t *)want);
    assert_true(tn_npu_unpack(d, packed + skip, widths, (int64_t)from, (int64_t)n, (int64_t)k, tiles));
    for (size_t i = 0; i < n_tiles; i++) {
        if (want[i] != ((uint8_t *)tiles)[i])
            fail_msg("%zu channels of %zu weights, %u bits: byte %zu is %d, not %d", n, k, bits, i,
                     ((int8_t *)tiles)[i], (int8_t)want[i]);
    }
    assert_false(tn_npu_unpack(d, packed, widths, 0, (int64_t)n, (int64_t)k,
                               (int8_t *)want)); /* not the device's memory */
    if (!there) free(packed);
    tn_npu_mem_free(d, lent);
    tn_npu_mem_free(d, tiles);
    free(want);
    free(widths);
}

/* A product of 20 rows by 500 columns on the device. Its bits are judged in conformance.c; here they are to stay. */
static void product(tn_npu_device *d, float *out) {
    enum { M = 20, N = 500, K = 200 };
    tern_error err;
    tn_npu_weights *w;
    tn_npu_graph *graph;
    void *in, *to;
    tn_npu_graph_desc g = {.kind = TN_NPU_LINEARS, .m = M, .k = K, .in_stride = K, .n_ops = 1};
    g.ops[0] = (tn_npu_op){.n = N, .act_scale = 0.01f, .out = TN_NPU_OUT_F32, .out_stride = N};
    if (tn_npu_weights_open(d, N, K, false, &w, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_npu_weights_data data = tn_npu_weights_get(w);
    uint64_t n_tiles = tn_npu_tiles_bytes(&tn_npu_device_caps(d)->layout, N, K);
    for (uint64_t i = 0; i < n_tiles; i++) data.tiles[i] = (int8_t)(i * 7 % 23 - 11);
    for (int i = 0; i < (N + 15) / 16 * 16; i++) data.scale[i] = (float)(1 + i % 5), data.col_sum[i] = 0;
    assert_int_equal(tn_npu_mem_alloc(d, M * K, &in, &err), TERN_OK);
    assert_int_equal(tn_npu_mem_alloc(d, M * N * 4, &to, &err), TERN_OK);
    for (int i = 0; i < M * K; i++) ((uint8_t *)in)[i] = (uint8_t)(i * 13);
    if (tn_npu_compile(d, &g, &graph, &err) != TERN_OK) fail_msg("%s", err.message);
    if (tn_npu_load(graph, &w, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_npu_job j = {.graph = graph, .n_rows = M, .in = {in}, .out = {to}};
    assert_int_equal(tn_npu_submit(&j, &err), TERN_OK);
    assert_int_equal(tn_npu_wait(&j), TERN_OK);
    memcpy(out, to, M * N * 4);
    tn_npu_graph_close(&graph);
    tn_npu_weights_close(&w);
    tn_npu_mem_free(d, in), tn_npu_mem_free(d, to);
}

/* Blocks fill one arena after the other, up to the cap, and what lies between them is computed with all the same. */
static void test_arenas_fill(void **state) {
    (void)state;
    enum { MB = 1 << 20, MOST = 16 };
    static float want[20 * 500], got[20 * 500];
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    tn_ctx c;
    tn_ctx_init(&c, &hooks);
    tn_npu_device *d;
    tern_error err;
    assert_int_equal(tn_npu_open(&c, "hexagon", NULL, &d, &err), TERN_OK); /* all in one arena */
    product(d, want);
    tn_npu_close(&d);
    setenv("TERN_HEXAGON_ARENA_MB", "40", 1);
    if (tn_npu_open(&c, "hexagon", NULL, &d, &err) != TERN_OK) fail_msg("%s", err.message);
    uint64_t cap = tn_npu_device_caps(d)->memory_cap_bytes;
    assert_in_range(cap, 8 * 35 * MB - 32 * MB, 8 * 40 * MB - 32 * MB);
    tn_rng r = {9};
    void *small, *big[MOST];
    assert_int_equal(tn_npu_mem_alloc(d, 41 * MB, &small, &err), TERN_E_LIMIT);
    assert_int_equal(tn_npu_mem_alloc(d, 8 * MB - 8192, &small, &err), TERN_OK); /* the first is full */
    int n = 0;
    for (; n < MOST && tn_npu_mem_alloc(d, 19 * MB, &big[n], &err) == TERN_OK; n++) {
        memset(big[n], n, 19 * MB);
        product(d, got);
        assert_memory_equal(got, want, sizeof want);
        check_unpack(d, &r, 100, 700, 0, true);
    }
    assert_int_equal(err.code, TERN_E_LIMIT);
    assert_in_range(n, 11, 14); /* two in each of seven, as far as the cap goes */
    for (int i = 0; i < n; i++) {
        assert_int_equal(((uint8_t *)big[i])[0], i);
        assert_memory_equal(big[i], (uint8_t *)big[i] + 1, 19 * MB - 1);
    }
    tn_npu_mem_free(d, big[3]);
    assert_int_equal(tn_npu_mem_alloc(d, 10 * MB, &big[3], &err), TERN_OK); /* where there is room again */
    for (int i = 0; i < n; i++) tn_npu_mem_free(d, big[i]);
    tn_npu_mem_free(d, small);
    tn_npu_close(&d);
    unsetenv("TERN_HEXAGON_ARENA_MB");
    assert_int_equal(n_warnings, 0); /* the DSP was there to the end */
}

static void test_unpack(void **state) {
    (void)state;
    static const size_t ks[] = {1, 3, 4, 5, 63, 64, 124, 127, 128, 129, 130, 200, 255, 256, 257, 960, 2051},
                        ns[] = {1, 2, 15, 16, 17, 31, 33, 48, 100};
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    tn_ctx c;
    tn_ctx_init(&c, &hooks);
    setenv("TERN_HEXAGON_POISON", "1", 1);
    for (int big = 0; big < 2; big++) {
        tn_npu_options opt;
        tn_npu_options_defaults(&opt);
        opt.scratch_bytes = big ? 0 : 16 << 10;
        tn_npu_device *d;
        tern_error err;
        if (tn_npu_open(&c, "hexagon", &opt, &d, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_true(tn_npu_device_caps(d)->unpacks);
        tn_rng r = {5};
        for (unsigned bits = 0; bits <= 8; bits++) {
            for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++)
                check_unpack(d, &r, ns[tn_rng_below(&r, sizeof ns / sizeof ns[0])], ks[i], bits, i & 1);
        }
        check_unpack(d, &r, 600, 300, 0, false); /* more than one message */
        check_unpack(d, &r, 256, 20000, 8, false);
        check_unpack(d, &r, 16, 65536, 7, true);
        tn_npu_close(&d);
    }
    unsetenv("TERN_HEXAGON_POISON");
    assert_int_equal(n_warnings, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),         cmocka_unit_test(test_memory),
        cmocka_unit_test(test_graphs),        cmocka_unit_test(test_arenas),
        cmocka_unit_test(test_arenas_fill),   cmocka_unit_test(test_unpack_refusals),
        cmocka_unit_test(test_hostile),       cmocka_unit_test(test_topk),
        cmocka_unit_test(test_topk_refusals), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_unpack)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: this build has no Hexagon backend");
    return 77;
}
#endif
