/* server/watch.h - what a request does, told to who asked: when it began, its tokens, which of them were
 * drafts, and in the end what each mechanism did. The page has one for every answer; other requests have none
 * and pay nothing.
 *
 * The queue's worker writes (begin, read, token, end), any thread reads. The watch outlives its job. */
#ifndef TN_SERVER_WATCH_H
#define TN_SERVER_WATCH_H

#include "base/json.h"

typedef struct tn_watch tn_watch;

tn_watch *tn_watch_open(void); /* NULL: no memory */
void tn_watch_close(tn_watch **w);

/* The four steps of a request; w may be NULL. Begin: its session is chosen, n_prompt tokens will be read,
 * of which n_cached are known. Read: the prompt is in. End: nothing more of the session is touched. */
void tn_watch_begin(tn_watch *w, tern_session *s, size_t n_prompt, size_t n_cached);
void tn_watch_read(tn_watch *w);
void tn_watch_token(tn_watch *w, int32_t token);
void tn_watch_end(tn_watch *w);

/* Where it is: {state: "waiting"|"reading"|"writing"|"done", prompt_tokens, cached_tokens, tokens,
 * prefill_s, decode_s, begin_us, first_us, end_us (of the clock of timelines; absent where not yet),
 * n_ctx}. */
json_t *tn_watch_progress(tn_watch *w);
/* How the text came: {tokens: [text], steps: [[accepted, proposed, "what was wrong"]]}. A step's root is
 * the token after those of the steps before, and its accepted drafts follow. */
json_t *tn_watch_drafts(tn_watch *w);
/* [{mechanism, on, saved {count, of, unit} (absent: nothing was counted), text}], or an empty list before the end. */
json_t *tn_watch_explained(tn_watch *w);

#endif
