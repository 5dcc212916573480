/* lean/unicode_table.h - the form of the tables that scripts/unicode_tables.py writes. */
#ifndef TN_LEAN_UNICODE_TABLE_H
#define TN_LEAN_UNICODE_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* Characters cp, cp + step, ... (n of them) become what is delta further. */
typedef struct tn_uni_case {
    uint32_t cp;
    uint16_t n;
    uint8_t step, kind; /* kind: 0 upper, 1 lower, 2 title case */
    int32_t delta;
} tn_uni_case;

typedef struct tn_uni_range {
    uint32_t first, last;
} tn_uni_range;

/* Runs, ascending: first character << 5 | general category, << 8 | combining class. */
extern const uint32_t tn_uni_categories[], tn_uni_classes[];
extern const size_t tn_uni_categories_n, tn_uni_classes_n;
extern const tn_uni_case tn_uni_cases[]; /* by kind, then ascending */
extern const size_t tn_uni_cases_n;
/* Canonical decompositions, ascending: character << 42 | first << 21 | second (0: none); bit 63: the two compose
 * to it. `composed` has the indices of those by first and second. */
extern const uint64_t tn_uni_pairs[];
extern const uint16_t tn_uni_composed[];
extern const size_t tn_uni_pairs_n, tn_uni_composed_n;
extern const tn_uni_range tn_uni_han[];
extern const size_t tn_uni_han_n;

#endif
