/* session/pictures.h - rows that stand in a session's text in place of tokens: what an encoder made of a picture.
 *
 * A row has an id beyond the vocabulary (engine/sight.h), and a prompt has these ids where the picture stands. Ids belong
 * to content, so that comparing ids, as the prefix cache does, compares pictures. The session holds the views of the
 * prompt that it was told of last; only their rows can be evaluated. Texts keep the ids of earlier ones, whose keys and
 * values are there. Stores and drafts see a token in their place, and saved sessions name them by their content. */
#ifndef TN_SESSION_PICTURES_H
#define TN_SESSION_PICTURES_H

#include "engine/sight.h"

typedef struct tn_session_rows tn_session_rows;

/* The views of the next prompt, in any order, which the session holds from now on; those of the prompt before are let go
 * of. On failure it holds what it held. */
tern_status tn_session_see(tern_session *s, tn_seen *const *views, size_t n, tern_error *err);
/* The same of looks. */
tern_status tn_session_look(tern_session *s, tn_look *const *looks, size_t n, tern_error *err);
/* Whether the row of an id beyond the vocabulary can be evaluated. */
bool tn_session_has_row(const tern_session *s, int32_t id);
/* Of n tokens that follow the text, as many of the first `most` as leave pictures whose rows see each other
 * within one chunk of the evaluator's: such a picture begins a piece where a chunk would end in it.
 * TERN_E_LIMIT: one is longer than a chunk; TERN_E_INVALID: one is not whole. */
tern_status tn_session_whole(const tern_session *s, const int32_t *tokens, size_t n, int32_t most,
                             int32_t *rows, tern_error *err);
/* The text grew by n tokens to s->n_tok: fills s->next for them. */
void tn_session_axes(tern_session *s, int32_t n);
/* The same for the first n tokens of a text that was loaded, which has rows of these views. */
tern_status tn_session_axes_of(tern_session *s, int32_t n, tn_seen *const *views, size_t n_views,
                               tern_error *err);
/* dst holds what src holds, for a text that is copied. */
tern_status tn_session_see_same(tern_session *dst, const tern_session *src, tern_error *err);
void tn_session_rows_close(tern_session *s);

#endif
