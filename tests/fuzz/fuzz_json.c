/* A text from anywhere, read as JSON by tern's reader and by jansson's: both refuse it, or both give the same value.
 * The first byte is jansson's flags. Above ASCII it is read as clients' requests are: then no text has a zero byte, and
 * nothing else changes what is read. */
#include "base/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool is_whole(const json_t *v) {
    const char *key;
    json_t *x;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        if (!is_whole(x)) return false;
    }
    json_array_foreach(v, i, x) {
        if (!is_whole(x)) return false;
    }
    return !json_is_string(v) || strlen(json_string_value(v)) == json_string_length(v);
}

static void as_request(const char *text, size_t n) {
    json_t *ours = tn_json_parse(text, n, TN_JSON_REQUEST, NULL),
           *theirs = json_loadb(text, n, JSON_REJECT_DUPLICATES,
                                NULL); /* NULL where there is a zero byte, or it is deep */
    if ((ours && !is_whole(ours)) || (ours && theirs && !json_equal(ours, theirs))) abort();
    json_decref(ours);
    json_decref(theirs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t flags[] = {0, JSON_DECODE_ANY, JSON_REJECT_DUPLICATES,
                                   JSON_ALLOW_NUL | JSON_DECODE_ANY, JSON_DECODE_INT_AS_REAL};
    if (!size || memchr(data + 1, 0, size - 1))
        return 0; /* jansson takes a zero byte for a blank in places */
    if (data[0] >= 128) {
        as_request((const char *)data + 1, size - 1);
        return 0;
    }
    size_t how = flags[data[0] % 5];
    json_error_t je;
    json_t *ours = tn_json_parse((const char *)data + 1, size - 1, how, &je);
    bool deep = !ours && json_error_code(&je) == json_error_stack_overflow;
    json_t *theirs = deep ? NULL : json_loadb((const char *)data + 1, size - 1, how, NULL);
    if (!ours != !theirs || (ours && !json_equal(ours, theirs)) || (!ours && !je.text[0])) abort();
    json_decref(ours);
    json_decref(theirs);
    return 0;
}
