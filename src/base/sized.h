/* base/sized.h - structs of tern.h whose size the caller gives. Nothing is read or written beyond that
 * size. */
#ifndef TN_BASE_SIZED_H
#define TN_BASE_SIZED_H

#include "tern.h"

/* Copies a caller's struct into this library's; fields beyond `given` keep their defaults. `least` is the
 * size of the struct's first version. Fields of a newer caller beyond this library's size must be zero. */
tern_status tn_sized_in(void *dst, size_t have, const void *src, size_t given, size_t least, const char *name,
                        tern_error *err);

/* Copies this library's struct into a caller's of `given` bytes, and zeros beyond it. A NULL pointer or less
 * than the first version is TERN_E_INVALID; nothing is written then. */
tern_status tn_sized_out(void *dst, size_t given, const void *src, size_t have, size_t least);

/* Gives the size that the struct had when this field was its last, including alignment padding. */
#define TN_SIZE_UP_TO(type, field)                                                                           \
    ((offsetof(type, field) + sizeof(((type *)0)->field) + _Alignof(type) - 1) / _Alignof(type) *            \
     _Alignof(type))

#endif
