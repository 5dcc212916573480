/* server/live.h - the engine's live timeline for any number of readers, as server-sent events.
 *
 * While somebody reads, the engine notes what its lanes do (tn_engine_watch); whoever reads next takes the new
 * events away and makes one piece of text of them, which every reader gets. Without readers nothing is noted.
 *
 *   {"type": "lanes", "lanes": [{name, workers}], "now_us"}     first, once
 *   {"type": "tasks", "names": {"12": "name"}, "tasks": [track, start_us, duration_us, name, chunk, layer, home lane, ...],
 *    "lost": N, "now_us"}                                       seven numbers a task; names are told when they first come */
#ifndef TN_SERVER_LIVE_H
#define TN_SERVER_LIVE_H

#include "server/queue.h"

typedef struct tn_live tn_live;
typedef struct tn_live_reader tn_live_reader;

tern_status tn_live_open(tern_engine *e, tn_live **out, tern_error *err);
void tn_live_close(tn_live **l); /* no reader may be left */

tern_status tn_live_reader_open(tn_live *l, tn_live_reader **out, tern_error *err);
/* At most cap bytes, 0: nothing new. It never waits. */
size_t tn_live_reader_read(tn_live_reader *r, char *buf, size_t cap);
void tn_live_reader_close(tn_live_reader **r);

#endif
