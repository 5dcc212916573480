/* Bodies of /v1/rag: the first byte says whether a document or a question. */
#include "server/rag_body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tern_error err;
    if (!size) return 0;
    const char *body = (const char *)data + 1;
    if (data[0] % 2) {
        tn_rag_given g;
        if (tn_rag_read_document(body, size - 1, &g, &err) != TERN_OK) return 0;
        volatile char sum = 0; /* all of it can be read */
        for (size_t i = 0; i < g.n; i++) sum = (char)(sum ^ g.bytes[i]);
        tn_rag_given_free(&g);
        return 0;
    }
    json_t *v;
    const char *question;
    tn_request r;
    if (tn_rag_read_question(body, size - 1, &v, &question, &err) != TERN_OK) return 0;
    if (tn_rag_request(v, question, &r, &err) == TERN_OK) tn_request_free(&r);
    json_decref(v);
    return 0;
}
