/* server/images.h - pictures of requests, in the form of every API:
 *
 *   OpenAI      {"type": "image_url", "image_url": {"url", "detail"}}, {"type": "input_image", "image_url", "detail"}
 *   Anthropic   {"type": "image", "source": {"type": "base64", "data"}}
 *   Ollama      "images": [DATA]; here {"type": "image", "data"}
 *
 * An address is a data: URL, or file:// or a path where --allow-path lets in; nothing is fetched from the net. In the
 * messages of a tn_request a picture is the part {"type": "image", "picture": K}, and number K of r->pictures says where
 * its bytes are. They are decoded by the processes that read documents. */
#ifndef TN_SERVER_IMAGES_H
#define TN_SERVER_IMAGES_H

#include "documents/reader.h"
#include "engine/sight.h"
#include "server/request.h"

#include <pthread.h>

enum { TN_REQUEST_PICTURES = 64 };

/* Two pictures' pixels are in memory at once, of all requests: one of 100 megapixels takes 600 MB until its
 * views are made. More would gain nothing, because views are encoded one after another. Begins as
 * TN_IMAGES_TURNS. */
typedef struct tn_images_turns {
    pthread_mutex_t mu;
    pthread_cond_t is_free;
    int n;
} tn_images_turns;
#define TN_IMAGES_TURNS                                                                                      \
    { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 }

/* Who decodes, and folders whose files may be named; NULL: nobody, none. */
typedef struct tn_images_from {
    tn_reader *reader;
    tn_images_turns *turns;
    const char *const *folders; /* ends with NULL */
} tn_images_from;

/* A content, which is a text or a list of parts, as texts and pictures; without pictures it is one text, in which parts are
 * lines or follow each other as they are. *out is a new value. */
tern_status tn_images_content(tn_request *r, const json_t *content, const char *where, bool lines,
                              json_t **out, tern_error *err);
/* How many pictures the messages have: as many looks follow, in their order. */
size_t tn_images_count(const json_t *messages);
/* Decodes all pictures of the request and looks at them: *looks [json_array_size(r->pictures)], the caller's. */
tern_status tn_images_look(const tn_request *r, tern_engine *e, const tn_images_from *from, tn_look ***looks,
                           tern_error *err);
void tn_images_free(tn_look **looks, size_t n);
/* Those that the messages show, in the order in which they do: out [tn_images_count]. */
void tn_images_shown(const json_t *messages, tn_look *const *looks, tn_look **out);

#endif
