/* The body of a request for an answer: the first byte says of which API. */
#include "server/ollama.h"
#include "server/responses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tern_error err;
    tn_request r;
    tn_ollama_asked asked;
    static tn_responses *none;
    if (!size || (!none && tn_responses_open(&none, &err) != TERN_OK)) return 0;
    const char *body = (const char *)data + 1;
    int api = (uint8_t)(data[0] - '0') % (TN_API_N + 6);
    tern_status st;
    if (api < TN_API_N) st = tn_request_read((tn_api)api, body, size - 1, &r, &err);
    else if (api == TN_API_N) st = tn_request_read_infill(body, size - 1, &r, &err);
    else if (api == TN_API_N + 3) st = tn_responses_read(none, body, size - 1, &r, &err);
    else if (api >= TN_API_N + 4)
        st = tn_ollama_read_embed(api == TN_API_N + 4, body, size - 1, &r, &asked, &err);
    else st = tn_ollama_read(api == TN_API_N + 1, body, size - 1, &r, &asked, &err);
    if (st == TERN_OK) tn_request_free(&r);
    return 0;
}
