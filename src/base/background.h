/* base/background.h - this program once more, for work that goes on when it has ended. For Windows there is
 * base/windows/background.c. */
#ifndef TN_BASE_BACKGROUND_H
#define TN_BASE_BACKGROUND_H

#include <stdbool.h>

/* Starts the process that will do it while there is one thread and nothing that is secret: a server that has sealed
 * itself could not any more. It waits until this one ends. words ends with NULL. */
void tn_background_prepare(const char *const *words);
/* Runs the program with these words and one more, at the lowest priority, without the terminal and without any open
 * file. Returns false with errno set where it cannot. */
bool tn_background_run(const char *const *words, const char *last);

#endif
