#include "base/background.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "base/windows/names.h"

/* A process of Windows starts another one at any time. */
void tn_background_prepare(const char *const *words) { (void)words; }

enum { LINE = 8192 };

/* Puts a word into a command line, in quotes. The words that come here are this program's own and a path: none ends
 * with a backslash or has a quote in it. */
static bool put(wchar_t *line, const char *word) {
    wchar_t wide[TN_WIN_PATH];
    size_t n = wcslen(line);
    if (strchr(word, '"') || !tn_win_wide(word, wide) || n + wcslen(wide) + 4 > LINE) return false;
    swprintf(line + n, LINE - n, n ? L" \"%ls\"" : L"\"%ls\"", wide);
    return true;
}

bool tn_background_run(const char *const *words, const char *last) {
    static wchar_t line[LINE];
    wchar_t self[TN_WIN_PATH];
    STARTUPINFOW start = {.cb = sizeof start};
    PROCESS_INFORMATION p;
    bool ok = put(line, "tern");
    for (; ok && *words; words++) ok = put(line, *words);
    ok = ok && put(line, last);
    DWORD n = ok ? GetModuleFileNameW(NULL, self, TN_WIN_PATH) : 0;
    errno = ENOENT;
    if (!n || n == TN_WIN_PATH) return false;
    if (!CreateProcessW(self, line, NULL, NULL, FALSE, DETACHED_PROCESS | IDLE_PRIORITY_CLASS, NULL, NULL,
                        &start, &p))
        return false;
    CloseHandle(p.hThread);
    CloseHandle(p.hProcess);
    return true;
}
