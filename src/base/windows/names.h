/* base/windows/names.h - between UTF-8 and the wide characters of Windows; for base/windows/ alone. */
#ifndef TN_BASE_WINDOWS_NAMES_H
#define TN_BASE_WINDOWS_NAMES_H

#include <stdbool.h>
#include <wchar.h>

enum { TN_WIN_PATH = 4096 };

/* Returns false with errno set where it is no UTF-8 or too long. */
bool tn_win_wide(const char *path, wchar_t out[TN_WIN_PATH]);
/* The caller frees it with free; NULL: no memory. */
char *tn_win_utf8(const wchar_t *s);

#endif
