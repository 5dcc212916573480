/* server/page.h - the page at `/` and what it asks for.
 *
 *   GET  / and its parts /page.css, /page/NAME.js     files built into the program; without a key, as nothing in them is secret
 *   GET  /manifest.webmanifest, /sw.js, /_app/version.json     the same: for who installs the page, and who had another's here
 *   GET  /page/state                                  models, memory, what runs
 *   GET  /page/talks[?q=WORDS]   POST /page/talks     the conversations; a new one
 *   GET, POST, DELETE /page/talks/ID                  one; its title, leaf and settings change; it is erased
 *   POST /page/talks/ID/say                           words, and the answer to them begins (server/answers.h)
 *   GET  /page/talks/ID/answers/N                     the answer as it grows, as server-sent events
 *   GET  /page/talks/ID/answers/N/how                 its drafts, and what each mechanism did
 *   POST /page/talks/ID/answers/N/stop
 *   POST /page/talks/ID/answers/N/calls/CALL          {allow: "once" | "always" | "no"}: a call of a tool that it asks for
 *   GET  /page/documents   POST /page/documents?name=NAME   DELETE /page/documents/ID      server/uploads.h
 *   GET  /page/timeline[?model=NAME]                  what the lanes do, as server-sent events (server/live.h)
 *
 * Every reply forbids scripts, styles and connections but the page's own, and being framed. Requests
 * of other sites' pages do not come here (server/http.c). */
#ifndef TN_SERVER_PAGE_H
#define TN_SERVER_PAGE_H

#include "server/models.h"
#include "server/uploads.h"

#include <microhttpd.h>

typedef struct tn_page tn_page;
struct tn_mcp_servers; /* server/mcp_servers.h */

/* Without a folder for conversations the page is there, and tells why it cannot keep any. It borrows them;
 * uploads may be NULL: documents cannot be added; tools too: there are none. */
tern_status tn_page_open(tn_models *models, tn_uploads *uploads, struct tn_mcp_servers *tools, tn_page **out,
                         tern_error *err);
/* After tn_models_stop and when no connection is left. */
void tn_page_close(tn_page **p);

bool tn_page_owns(const char *url);
/* Is it the same for everybody, so that no key is needed? */
bool tn_page_is_public(const char *url);
/* Answers a request whose body is complete. */
enum MHD_Result tn_page_answer(tn_page *p, struct MHD_Connection *c, const char *url, const char *method,
                               const char *body, size_t n_body);

/* The files of src/server/page, made by cmake/embed.cmake. */
typedef struct tn_page_file {
    const char *name;
    const unsigned char *data;
    size_t n;
} tn_page_file;
extern const tn_page_file tn_page_files[];
extern const size_t tn_n_page_files;

#endif
