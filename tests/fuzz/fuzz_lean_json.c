/* Own JSON values are read, refused and written as jansson's. */
#include "lean/json.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "../lean/same_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!same_reading((const char *)data, size)) abort();
    return 0;
}
