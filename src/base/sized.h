/* base/sized.h - structs of tern.h whose caller says how large they are. Nothing is read or written after
 * that size. */
#ifndef TN_BASE_SIZED_H
#define TN_BASE_SIZED_H

#include "tern.h"

/* Copies what a caller gave into what this library knows; other fields keep their defaults. `least` is the
 * size of the struct's first version. What a newer caller has after `have` must be zero. */
tern_status tn_sized_in(void *dst, size_t have, const void *src, size_t given, size_t least, const char *name,
                        tern_error *err);

/* Copies what this library knows into a caller's struct of `given` bytes. A longer struct gets zeros after
 * that. NULL, and less than the first version, is TERN_E_INVALID; nothing is written then. */
tern_status tn_sized_out(void *dst, size_t given, const void *src, size_t have, size_t least);

/* Gives the end of a field: the size of a struct whose last field it was, with the padding of its
 * alignment. */
#define TN_SIZE_UP_TO(type, field)                                                                           \
    ((offsetof(type, field) + sizeof(((type *)0)->field) + _Alignof(type) - 1) / _Alignof(type) *            \
     _Alignof(type))

#endif
