#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

tern_status tn_fail(tern_error *err, tern_status code, const char *fmt, ...) {
    if (!err) return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    for (char *p = err->message; *p; p++) {
        if (*p == '\n' || *p == '\r') *p = ' ';
    }
    return code;
}

const char *tern_status_text(tern_status s) {
    switch (s) {
#define TN_STATUS_CASE(name, value, text)                                                                    \
    case name: return text;
        TERN_STATUS_TABLE(TN_STATUS_CASE)
#undef TN_STATUS_CASE
    }
    return "unknown status";
}

const char *tern_version(void) { return TERN_VERSION_STRING; }
uint32_t tern_version_number(void) { return TERN_VERSION_NUMBER; }
