/* base/status.h - errors with numbers, for outside data and resources only; our own bugs are asserts. */
#ifndef TN_BASE_STATUS_H
#define TN_BASE_STATUS_H

#include "tern.h"

#include <inttypes.h>

/* Fills err, which may be NULL, with the code and one formatted line. Returns the code. */
tern_status tn_fail(tern_error *err, tern_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* TN_FAIL_IF and TN_BAIL_IF repeat the code although tn_fail returns it: the compiler then knows that it
 * is not TERN_OK, and does not warn about unset values after TN_TRY. */
#define TN_FAIL_IF(cond, err, code, ...)                                                                     \
    do {                                                                                                     \
        if (cond) {                                                                                          \
            (void)tn_fail(err, code, __VA_ARGS__);                                                           \
            return code;                                                                                     \
        }                                                                                                    \
    } while (0)

/* The same for functions with one clean-up label: sets `st` and jumps to `out`. */
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
