/* cli/looking.h - the pictures of a question: found among a command's words or typed into a chat, read, and looked at.
 * Everything that can be wrong is found before anything is computed. One picture's pixels are in memory at a time. */
#ifndef TN_CLI_LOOKING_H
#define TN_CLI_LOOKING_H

#include "base/json.h"
#include "cli/args.h"
#include "engine/sight.h"
#include "pictures/sealed.h"

#include <stdio.h>

enum { LOOK_MOST = 16 }; /* pictures of a question */

typedef struct looked {
    char *name;  /* of the file, or "-" */
    char *bytes; /* of the file, until it is looked at; NULL: not read yet */
    size_t n_bytes;
    tn_look *look;
} looked;

typedef struct looking {
    looked at[LOOK_MOST];
    int n;
} looking;

/* Tells by the first bytes whether a file is a picture. */
bool cli_is_picture(const char *path);
bool cli_is_picture_bytes(const char *bytes, size_t n);
/* Take a picture's path, or its bytes, which are the looking's then. false: there are too many, or no memory. */
bool cli_looking_add(looking *l, const char *path);
bool cli_looking_add_bytes(looking *l, const char *name, char *bytes, size_t n);

/* Whether a word names a PDF file, or pages of one: FILE#3, FILE#3-5. What else stands after # is an error of
 * cli_looking_add_pdf. */
bool cli_is_pdf(const char *word);
/* Reads it: *text becomes its text, to be freed with free, where it has one and no page was named; else its pages, as many
 * as there is room for, become pictures. Returns false with a message printed. */
bool cli_looking_add_pdf(looking *l, tn_reader *r, const char *word, char **text);

/* Looks at all pictures, by the encoder of the engine's model. Returns false with a message printed. */
bool cli_looking_at(looking *l, tern_engine *e, tn_reader *r);
/* The looks of all, in their order: out [LOOK_MOST]. */
size_t cli_looking_all(const looking *l, tn_look **out);
/* The question's prompt, malloc'ed: through the chat template o->chat_template, or the pictures and the text as they are. */
tern_status cli_looking_prompt(const looking *l, tern_engine *e, const char *system, const char *text,
                               const char *source, bool raw, int32_t **ids, size_t *n_ids, tern_error *err);
/* Encodes what is not known, and gives all rows to the session. */
tern_status cli_looking_encode(tn_look *const *looks, size_t n, tern_session *s, tern_error *err);

json_t *cli_looking_json(const looking *l);
void cli_looking_print(const looking *l); /* on standard error */
void cli_verdict_print(FILE *to, tn_tower_verdict v);
void cli_looking_drop(looking *l); /* the last one */
void cli_looking_free(looking *l);

#endif
