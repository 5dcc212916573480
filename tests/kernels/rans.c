/* Entropy-coded weightlets: they come back bit by bit from every decoder, in as many bytes as their entropy says; a
 * damaged stream is told, and nothing beside it is read or written. */
#include "base/cpu.h"
#include "kernels/kernels.h"
#include "quant/encode.h"
#include "kernels/unpack.h"

#include "check.h"

#include <math.h>

/* A matrix of codes that are bell-shaped in their width, a table for each width, and its stream. */
typedef struct coded {
    tn_rans_args a;
    uint8_t *bits, *which;
    tn_rans_table *tables;
    check_buf packed, stream;
    size_t n_bytes;
    double entropy_bytes;
} coded;

static int8_t bell(tn_rng *r, unsigned b) {
    double z = 0;
    for (int i = 0; i < 12; i++) z += tn_rng_f64(r) - .5;
    const int top = (1 << b) - 1;
    int u = (int)floor(z * (top + 1) / 7 + (top + 1) / 2.0);
    u = u < 0 ? 0 : u > top ? top : u;
    return (int8_t)(b == 8 ? u - 128 : 2 * u - top);
}

static coded make(tn_rng *r, size_t n, size_t k, unsigned fixed_bits, bool even) {
    coded c = {.bits = calloc(tn_channel_bits_bytes(n), 1), .which = calloc(n, 1)};
    int8_t *w = malloc(n * k);
    uint64_t counts[9][TN_RANS_SYMBOLS] = {0};
    assert_int_equal(posix_memalign((void **)&c.tables, 64, 9 * sizeof *c.tables), 0);
    for (size_t i = 0; i < n; i++) {
        const unsigned b = fixed_bits ? fixed_bits : 1 + (unsigned)tn_rng_below(r, 8);
        tn_channel_bits_put(c.bits, i, b);
        c.which[i] = (uint8_t)b;
        for (size_t j = 0; j < k; j++) {
            w[i * k + j] = bell(r, b);
            if (even) w[i * k + j] = (int8_t)(b == 8 ? 127 : (1 << b) - 1);
        }
    }
    c.packed = check_new(tn_weightlets_bytes(c.bits, 0, n, k));
    tn_weightlets_pack(c.packed.p, c.bits, w, 0, n, k);
    for (size_t i = 0; i < n; i++)
        tn_rans_count((uint8_t *)c.packed.p + tn_weightlets_bytes(c.bits, 0, i / 16 * 16, k), c.bits, i, n, k,
                      counts[c.which[i]]);
    for (unsigned b = 1; b <= 8; b++) {
        uint16_t f[TN_RANS_SYMBOLS];
        tn_rans_frequencies(counts[b], tn_rans_n_symbols(b), f);
        assert_true(tn_rans_table_make(f, tn_rans_n_symbols(b), &c.tables[b]));
        uint64_t sum = 0;
        for (unsigned s = 0; s < TN_RANS_SYMBOLS; s++) sum += counts[b][s];
        for (unsigned s = 0; s < TN_RANS_SYMBOLS; s++)
            if (counts[b][s])
                c.entropy_bytes += (double)counts[b][s] * log2((double)sum / (double)counts[b][s]) / 8;
        if (b > TN_RANS_SYMBOL_BITS) c.entropy_bytes += (double)(sum * (b - TN_RANS_SYMBOL_BITS)) / 8;
    }
    c.a =
        (tn_rans_args){.packed_bits = c.bits, .channel_table = c.which, .tables = c.tables, .n1 = n, .k = k};
    uint8_t *room = malloc(tn_rans_bound(&c.a));
    c.n_bytes = tn_rans_encode(&c.a, c.packed.p, room);
    assert_true(c.n_bytes <= tn_rans_bound(&c.a));
    c.stream = check_new(c.n_bytes);
    memcpy(c.stream.p, room, c.n_bytes);
    free(room), free(w);
    return c;
}

static void drop(coded *c) {
    free(c->bits), free(c->which), free(c->tables);
    check_free(&c->packed), check_free(&c->stream);
}

/* The decoder of a processor without AVX-512, or with all that this one has. */
static tn_rans_decode_fn chosen(bool narrow) {
    tn_kernels k;
    tn_kernels_init(&k, tn_cpu_flags(NULL) & (narrow ? TN_CPU_AVX2 | TN_CPU_NEON : UINT32_MAX));
    return k.rans_decode;
}

static void whole(void **state) {
    (void)state;
    static const size_t ns[] = {1, 15, 16, 17, 50}, ks[] = {1, 3, 63, 64, 65, 127, 128, 129, 200, 513};
    tn_rng r = {check_seed()};
    const tn_rans_decode_fn fns[] = {tn_rans_decode_ref, chosen(true), chosen(false)};
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
        for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
            for (unsigned b = 0; b <= 9; b++) { /* 9: one symbol alone, which takes no bits */
                coded c = make(&r, ns[i], ks[j], b % 9, b == 9);
                for (int f = 0; f < 3; f++) {
                    check_buf got = check_new(c.packed.n_bytes);
                    assert_true(fns[f](&c.a, c.stream.p, c.n_bytes, got.p));
                    assert_memory_equal(got.p, c.packed.p, c.packed.n_bytes);
                    check_free(&got);
                }
                drop(&c);
            }
}

/* The size is the entropy's, counted here from the codes; what coders add are their states. */
static void size(void **state) {
    (void)state;
    tn_rng r = {check_seed()};
    for (unsigned b = 0; b <= 8; b++) {
        coded c = make(&r, 256, 896, b, false);
        const double more = (double)c.n_bytes - c.entropy_bytes;
        if (more < 0 || more > .004 * c.entropy_bytes + 256)
            fail_msg("%u bits: %zu bytes for an entropy of %.0f", b, c.n_bytes, c.entropy_bytes);
        if (b > 2 && (double)c.n_bytes > .97 * (double)c.packed.n_bytes)
            fail_msg("%u bits: %zu bytes for %zu of weightlets", b, c.n_bytes, c.packed.n_bytes);
        drop(&c);
    }
}

/* Any change, and any end but its own, is told; ASan sees what is read and written. */
static void damage(void **state) {
    (void)state;
    tn_rng r = {check_seed()};
    const tn_rans_decode_fn fns[] = {tn_rans_decode_ref, chosen(true), chosen(false)};
    coded c = make(&r, 33, 200, 0, false);
    check_buf got = check_new(c.packed.n_bytes);
    for (int f = 0; f < 3; f++) {
        for (size_t n = 0; n < c.n_bytes; n += 1 + tn_rng_below(&r, 40)) {
            uint8_t *cut = malloc(n + 1);
            memcpy(cut, c.stream.p, n);
            assert_false(fns[f](&c.a, cut, n, got.p));
            free(cut);
        }
        int told = 0;
        for (int i = 0; i < 400; i++) {
            uint8_t *at = (uint8_t *)c.stream.p + tn_rng_below(&r, c.n_bytes), was = *at;
            *at = (uint8_t)tn_rng_u64(&r);
            told += *at != was && !fns[f](&c.a, c.stream.p, c.n_bytes, got.p);
            told += *at == was;
            *at = was;
        }
        /* Bits below symbols are as they are: a change there is another code, which the package's checksum tells. */
        if (told < 200) fail_msg("%d of 400 changes were told", told);
        uint8_t *noise = malloc(c.n_bytes);
        for (int i = 0; i < 200; i++) {
            for (size_t j = 0; j < c.n_bytes; j++) noise[j] = (uint8_t)tn_rng_u64(&r);
            assert_false(fns[f](&c.a, noise, c.n_bytes, got.p));
        }
        free(noise);
    }
    check_free(&got);
    drop(&c);
}

/* Tables: numbers of each symbol are as many as its frequency, each index once; and what is none is refused. */
static void tables(void **state) {
    (void)state;
    tn_rng r = {check_seed()};
    for (int i = 0; i < 2000; i++) {
        const unsigned n = 1u << tn_rng_below(&r, 6);
        uint64_t counts[TN_RANS_SYMBOLS] = {0};
        uint16_t f[TN_RANS_SYMBOLS];
        for (unsigned s = 0; s < n; s++) counts[s] = tn_rng_below(&r, 1ull << tn_rng_below(&r, 40));
        tn_rans_frequencies(counts, n, f);
        tn_rans_table t;
        assert_true(tn_rans_table_make(f, n, &t));
        uint8_t seen[TN_RANS_SCALE] = {0};
        unsigned first[TN_RANS_SYMBOLS + 1] = {0};
        for (unsigned s = 0; s < TN_RANS_SYMBOLS; s++) first[s + 1] = first[s] + f[s];
        for (unsigned slot = 0; slot < TN_RANS_SCALE; slot++) {
            const unsigned b = slot >> 7, in = slot & 127, own = in < (t.shared[b] & 255u),
                           s = own ? b : t.shared[b] >> 8;
            const uint16_t index = (uint16_t)(in + t.base[own ? b : 32 + b]);
            assert_true(s < n && index < f[s]);
            seen[first[s] + index]++;
        }
        for (unsigned slot = 0; slot < TN_RANS_SCALE; slot++) assert_int_equal(seen[slot], 1);
        f[tn_rng_below(&r, n)]++;
        assert_false(tn_rans_table_make(f, n, &t));
    }
    uint16_t f[TN_RANS_SYMBOLS] = {[20] = TN_RANS_SCALE};
    tn_rans_table t;
    assert_true(tn_rans_table_make(f, 32, &t));
    assert_false(tn_rans_table_make(f, 16, &t));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole), cmocka_unit_test(size),
                                       cmocka_unit_test(damage), cmocka_unit_test(tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
