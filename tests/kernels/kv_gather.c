/* Keys and values of listed positions: every variant copies exactly them, and attention over the copy is attention over the cache. */
#include "check.h"
#include "f32_variants.h"

#include <math.h>

static void test_gather(void **state) {
    (void)state;
    f32_variant v[4];
    int n_variants = f32_variants(v);
    static const size_t ds[] = {4, 20, 64, 128, 160};
    tn_rng rng = {5};
    for (int round = 0; round < 100; round++) {
        size_t d = ds[round % 5], n_pos = 1 + tn_rng_below(&rng, 400), n_room = (n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
        check_buf k = check_new(n_room * d * 4), vals = check_new(n_pos * d * 4);
        check_fill_f32(&rng, CHECK_RANDOM, k.p, k.n_bytes / 4);
        check_fill_f32(&rng, CHECK_RANDOM, vals.p, vals.n_bytes / 4);
        uint32_t list[400], share = 1 + (uint32_t)tn_rng_below(&rng, 100);
        size_t n = 0;
        for (uint32_t p = 0; p < n_pos; p++) {
            if (round % 4 == 0 || tn_rng_below(&rng, 100) < share) list[n++] = p;
        }
        if (!n) list[n++] = (uint32_t)n_pos - 1;
        check_buf idx = check_new(n * 4);
        memcpy(idx.p, list, n * 4);
        for (int x = 0; x < n_variants; x++) {
            check_buf ko = check_new(tn_kv_gather_room(n, d) * 4), vo = check_new(n * d * 4);
            v[x].k.kv_gather(&(tn_kv_gather_args){.k_panels = k.p, .v = vals.p, .d_head = d, .idx = idx.p, .n_idx = n, .k_out = ko.p, .v_out = vo.p});
            for (size_t i = 0; i < tn_kv_gather_room(n, d) / d; i++) {
                for (size_t j = 0; j < d; j++) {
                    float got = ((float *)ko.p)[i / TN_KV_PANEL * d * TN_KV_PANEL + j * TN_KV_PANEL + i % TN_KV_PANEL];
                    float want = i < n ? ((float *)k.p)[list[i] / TN_KV_PANEL * d * TN_KV_PANEL + j * TN_KV_PANEL + list[i] % TN_KV_PANEL] : 0;
                    if (memcmp(&got, &want, 4)) fail_msg("%s: key %zu of %zu, element %zu", v[x].name, i, n, j);
                }
                if (i < n) assert_memory_equal((float *)vo.p + i * d, (float *)vals.p + list[i] * d, d * 4);
            }
            check_free(&ko);
            check_free(&vo);
        }
        check_free(&idx);
        check_free(&k);
        check_free(&vals);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gather)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
