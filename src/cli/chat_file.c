#include "cli/chat_file.h"

#include <string.h>

void cli_chat_file_write(FILE *f, const char *role, const char *content) {
    fprintf(f, "%s: ", role);
    for (const char *p = content; *p; p++) {
        putc(*p, f);
        if (*p == '\n') putc('\t', f);
    }
    putc('\n', f);
}

char *cli_chat_file_next(char **text, const char **role) {
    static const char *const roles[] = {"system", "user", "assistant"};
    char *p = *text, *out;
    *role = NULL;
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(roles[i]);
        if (strncmp(p, roles[i], n) || p[n] != ':' || p[n + 1] != ' ') continue;
        *role = roles[i];
        p += n + 2;
        break;
    }
    if (!*role) return NULL;
    char *begin = out = p;
    while (*p && !(*p == '\n' && p[1] != '\t')) {
        *out++ = *p;
        p += *p == '\n' ? 2 : 1;
    }
    *text = *p ? p + 1 : p;
    *out = 0;
    return begin;
}
