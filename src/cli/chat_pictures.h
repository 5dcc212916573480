/* cli/chat_pictures.h - pictures of a conversation in a terminal: named by /image, or by a path that is pasted or dragged
 * into a message. They go with the next question, and stay with it. */
#ifndef TN_CLI_CHAT_PICTURES_H
#define TN_CLI_CHAT_PICTURES_H

#include "cli/chat_talk.h"

/* Looks at a file for the next question. false: why was printed. */
bool cli_chat_look(chat *c, const char *path);
/* Looks at the pictures and PDF files without text that the words name, and takes these words out: *words is malloc'ed,
 * before and afterwards. Words that name none stay as they are, and so do all where the model cannot look, which is told. false: one cannot be looked at, or a PDF file has text;
 * why was printed, and of these words no picture goes with the next question. */
bool cli_chat_find_pictures(chat *c, char **words);

/* Whether a line that begins with a slash begins with the path of a picture or of a PDF file. */
bool cli_chat_is_path(const char *text);

/* The last message gets the pictures of the next question, or gives them back. */
void cli_chat_give_pictures(chat *c);
void cli_chat_take_pictures(chat *c);
void cli_chat_drop_pictures(chat *c, size_t i_msg);

/* Whether messages from `from` on have pictures. */
bool cli_chat_has_pictures(const chat *c, size_t from);
/* The prompt of messages, the system's and those from `from` on, malloc'ed; NULL: why was printed. */
int32_t *cli_chat_looking_ids(const chat *c, size_t from, size_t *n_ids);
/* Encodes what is not known of those in the context, and gives them to the session. */
tern_status cli_chat_see(chat *c, size_t from, tern_error *err);

#endif
