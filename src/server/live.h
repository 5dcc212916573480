/* server/live.h - a model's live timeline for any number of readers, as server-sent events.
 *
 * While somebody reads, the engine notes what its lanes do (tn_engine_watch); whoever reads next takes the new
 * events away and makes one piece of text of them, which every reader gets. Without readers nothing is noted. Readers
 * stay when the model leaves memory and comes back, and are told the lanes anew; a model that is away has none.
 *
 *   {"type": "lanes", "lanes": [{name, workers}], "now_us"}     first, and when the model comes or goes
 *   {"type": "tasks", "names": {"12": "name"}, "tasks": [track, start_us, duration_us, name, chunk, layer, home lane, ...],
 *    "lost": N, "now_us"}                                       seven numbers a task; names are told when they first come */
#ifndef TN_SERVER_LIVE_H
#define TN_SERVER_LIVE_H

#include "server/queue.h"

typedef struct tn_live tn_live;
typedef struct tn_live_reader tn_live_reader;

tern_status tn_live_open(tn_live **out, tern_error *err);
/* The model is in memory. Where the engine cannot note what it does, readers see lanes without tasks. */
void tn_live_attach(tn_live *l, tern_engine *e);
void tn_live_detach(tn_live *l); /* before the engine is closed */
void tn_live_close(tn_live **l); /* no reader may be left */

tern_status tn_live_reader_open(tn_live *l, tn_live_reader **out, tern_error *err);
/* At most cap bytes, 0: nothing new. It never waits. */
size_t tn_live_reader_read(tn_live_reader *r, char *buf, size_t cap);
void tn_live_reader_close(tn_live_reader **r);

#endif
