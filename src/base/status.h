/* base/status.h - failing with numbers: outside data and resources only (our own bugs are asserts). */
#ifndef TN_BASE_STATUS_H
#define TN_BASE_STATUS_H

#include "tern.h"

#include <inttypes.h>

/* Fill err (may be NULL) with code and one formatted line; returns code. */
tern_status tn_fail(tern_error *err, tern_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* FAIL_IF and BAIL_IF name the code again where tn_fail's result would do: the compiler then sees that it is
 * not TERN_OK, so that what a failed call left unset is not read after TN_TRY. */
#define TN_FAIL_IF(cond, err, code, ...)                                                                     \
    do {                                                                                                     \
        if (cond) {                                                                                          \
            (void)tn_fail(err, code, __VA_ARGS__);                                                           \
            return code;                                                                                     \
        }                                                                                                    \
    } while (0)

/* As TN_FAIL_IF, for functions with one clean-up label: sets `st` and jumps to `out`. */
#define TN_BAIL_IF(cond, err, code, ...)                                                                     \
    do {                                                                                                     \
        if (cond) {                                                                                          \
            (void)tn_fail(err, code, __VA_ARGS__);                                                           \
            st = code;                                                                                       \
            goto out;                                                                                        \
        }                                                                                                    \
    } while (0)

#define TN_TRY(call)                                                                                         \
    do {                                                                                                     \
        tern_status tn_try_st_ = (call);                                                                     \
        if (tn_try_st_ != TERN_OK) return tn_try_st_;                                                        \
    } while (0)

#endif
