/* base/background.h - a second process of this program, for work that continues after the first has ended.
 * On Windows: base/windows/background.c. */
#ifndef TN_BASE_BACKGROUND_H
#define TN_BASE_BACKGROUND_H

#include <stdbool.h>

/* Starts that process early, while there is one thread and no secret: a server that has sealed itself
 * could not do it later. It waits until this process ends. words ends with NULL. */
void tn_background_prepare(const char *const *words);
/* Makes it run the program with these words and one more, at the lowest priority, without terminal or open
 * files. Returns false with errno set on failure. */
bool tn_background_run(const char *const *words, const char *last);

#endif
