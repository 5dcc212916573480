/* The body of a request for a completion: the first byte says of which API. */
#include "server/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tern_error err;
    tn_request r;
    if (!size) return 0;
    if (tn_request_read((tn_api)(data[0] % 3), (const char *)data + 1, size - 1, &r, &err) != TERN_OK)
        return 0;
    tn_request_free(&r);
    return 0;
}
