/* cli/captions.h - what a model that sees says of scans and pictures, for an index of documents: a passage
 * for each page that has no text, and a paragraph for each picture in an office document. */
#ifndef TN_CLI_CAPTIONS_H
#define TN_CLI_CAPTIONS_H

#include "cli/answer.h"
#include "documents/rag.h"

#define CAPTION_QUESTION                                                                                     \
    "Describe this picture in a few sentences, and repeat the writing in it word for word."
enum { CAPTION_TOKENS = 160 }; /* of an answer, at most: less than a passage has */

typedef struct captions {
    tern_engine *e;
    tern_session *s;
    struct tn_reader *reader; /* borrowed; it reads pictures (tn_picture_provide) */
    const atomic_bool *stopped;
    answer answer;
    bool terminal;
    int32_t least; /* pixels of a side: smaller pictures are passed over */
} captions;

/* Opens the model, which must have an encoder of pictures. Returns -1 to go on, or an exit status. */
int cli_captions_open(captions *c, const char *model);
void cli_captions_close(captions *c);
/* A tn_rag_caption_fn, with captions as user. */
tern_status cli_captions_make(void *user, const char *path, const char *bytes, size_t n, const char *had,
                              char **text, int64_t *n_told, tern_error *err);

#endif
