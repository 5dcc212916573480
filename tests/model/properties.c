/* tests/model/properties.c - the table of properties: every row has a key and a place of its own, takes what is in
 * its range and nothing else, and gives back what was put. */
#include "model/properties.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static size_t bytes_of(tn_property_type t) {
    static const size_t bytes[] = {[TN_PROPERTY_INT] = 4,
                                   [TN_PROPERTY_BOOL] = 1,
                                   [TN_PROPERTY_FLOAT] = 4,
                                   [TN_PROPERTY_DOUBLE] = 8,
                                   [TN_PROPERTY_KINDS] = TN_MAX_LAYERS,
                                   [TN_PROPERTY_NUMBERS] = 4 * TN_MAX_LAYERS};
    return bytes[t];
}

static void rows_are_apart(void **state) {
    (void)state;
    size_t n;
    const tn_property *p = tn_properties(&n);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_true(strcmp(p[i].key, p[j].key) != 0);
            bool before = p[i].at + bytes_of(p[i].type) <= p[j].at;
            bool after = p[j].at + bytes_of(p[j].type) <= p[i].at;
            assert_true(before || after);
        }
        assert_true(p[i].at + bytes_of(p[i].type) <= sizeof(tn_hparams));
    }
}

static void ranges(void **state) {
    (void)state;
    size_t n;
    const tn_property *p = tn_properties(&n);
    for (size_t i = 0; i < n; i++) {
        if (!tn_property_single(&p[i])) continue;
        tn_hparams h = {0}, blank = {0};
        double inside = p[i].type == TN_PROPERTY_INT || p[i].type == TN_PROPERTY_BOOL
                            ? p[i].max
                            : (p[i].min + p[i].max) / 2;
        assert_true(tn_property_ok(&p[i], inside));
        assert_false(tn_property_ok(&p[i], p[i].max * 2 + 1));
        assert_false(tn_property_ok(&p[i], p[i].min - 1));
        assert_false(tn_property_ok(&p[i], NAN));
        if (!p[i].always) assert_true(tn_property_ok(&p[i], p[i].none));
        if (p[i].type == TN_PROPERTY_INT) assert_false(tn_property_ok(&p[i], p[i].max - 0.5));
        if (p[i].open) assert_false(tn_property_ok(&p[i], p[i].max));
        tn_property_set(&p[i], &h, inside);
        double got = tn_property_get(&p[i], &h);
        assert_true(p[i].type == TN_PROPERTY_FLOAT ? got == (double)(float)inside : got == inside);
        /* and nothing else was written */
        memset((char *)&h + p[i].at, 0, bytes_of(p[i].type));
        assert_memory_equal(&h, &blank, sizeof h);
    }
}

/* Saved states, prefixes, packages and profiles belong to the identity of a model: every property is a part of it. */
static void each_is_part_of_the_identity(void **state) {
    (void)state;
    size_t n;
    const tn_property *p = tn_properties(&n);
    const tn_hparams plain = {0};
    for (size_t i = 0; i < n; i++) {
        tn_hparams h = plain;
        if (p[i].type == TN_PROPERTY_KINDS) h.layer_kind[TN_MAX_LAYERS - 1] = TN_LAYER_DELTA;
        else if (!tn_property_single(&p[i])) tn_property_numbers(&p[i], &h)[TN_MAX_LAYERS - 1] = 1;
        else tn_property_set(&p[i], &h, p[i].max);
        assert_true(tn_hparams_identity(&h) != tn_hparams_identity(&plain));
    }
    tn_hparams named = plain; /* a name computes nothing */
    memcpy(named.name, "other", 6);
    assert_true(tn_hparams_identity(&named) == tn_hparams_identity(&plain));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_apart), cmocka_unit_test(ranges),
                                       cmocka_unit_test(each_is_part_of_the_identity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
