/* base/order.h - comparisons for qsort. */
#ifndef TN_BASE_ORDER_H
#define TN_BASE_ORDER_H

static inline int tn_by_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
