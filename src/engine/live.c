/* Live reports of the sessions' work. While nobody watches, nothing is recorded and nothing is spent. */
#include "engine/engine.h"

#include <string.h>

enum { LIVE_EVENTS = 1 << 14 }; /* of a track between two reads: a second of the smallest model's tasks */

tern_status tn_engine_watch(tern_engine *e, tn_timeline **out, tern_error *err) {
    static const char *const own[] = {"session"};
    if (!e->live) {
        tn_timeline_options o = {
            .cap_events = LIVE_EVENTS, .cap_flows = 1, .extra = own, .n_extra = 1, .live = true};
        memcpy(o.n_workers, e->n_lane_workers, sizeof o.n_workers);
        TN_TRY(tn_timeline_open(&e->ctx, &o, &e->live, err));
    }
    *out = e->live;
    atomic_store_explicit(&e->watched, e->live, memory_order_release);
    return TERN_OK;
}

/* A running forward may still add events; the ring takes them or drops them. */
void tn_engine_unwatch(tern_engine *e) { atomic_store(&e->watched, NULL); }
