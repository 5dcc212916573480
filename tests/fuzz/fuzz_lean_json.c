/* Own JSON values are read, refused and written as jansson's. */
#include "lean/json.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "../lean/same_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size &&
        memchr(data, 0, size)) { /* jansson takes a zero byte behind a number for the end of the text */
        tn_lean_error err;
        if (tn_lean_load((const char *)data, size, TN_LEAN_DECODE_ANY | TN_LEAN_ALLOW_NUL, &err)) abort();
        return 0;
    }
    if (!same_reading((const char *)data, size)) abort();
    return 0;
}
