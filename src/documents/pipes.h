/* documents/pipes.h - the pipes between a process that reads what comes from anywhere and the one that asked it to. */
#ifndef TN_DOCUMENTS_PIPES_H
#define TN_DOCUMENTS_PIPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All of it, across interruptions. */
bool tn_pipe_write(int fd, const void *p, size_t n);
bool tn_pipe_read_all(int fd, void *p, size_t n);
/* The same of one that may sleep for ever: what has not come by then (tn_now_ns) does not come. */
bool tn_pipe_read(int fd, void *p, size_t n, int64_t end_ns);

/* Closes all that the process was born with but these two, which may be one, and puts /dev/null in the place of its standard
 * input and outputs: the terminal, the store, connections, and the pipes of others who read, by which it could ask them
 * for any file. Ends the process where it cannot. */
void tn_pipe_keep(int *a, int *b);

#endif
