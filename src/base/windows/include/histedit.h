/* histedit.h - as much of libedit's interface as cli/terminal.c uses, by the line editor of Windows' console, which has a
 * history of its own for as long as a program runs. */
#ifndef TN_BASE_WINDOWS_HISTEDIT_H
#define TN_BASE_WINDOWS_HISTEDIT_H

#include <stdio.h>

typedef struct tn_win_edit EditLine;
typedef struct tn_win_history History;
typedef struct HistEvent {
    int num;
    const char *str;
} HistEvent;

enum { EL_PROMPT, EL_EDITOR, EL_HIST, EL_GETCFN, EL_BIND, EL_CLIENTDATA };
enum { H_SETSIZE, H_SETUNIQUE, H_LOAD, H_SAVE_FP, H_ENTER, H_FIRST, H_DEL };

EditLine *el_init(const char *name, FILE *in, FILE *out, FILE *err);
void el_end(EditLine *e);
int el_set(EditLine *e, int what,
           ...); /* the prompt and the client's data; the console does the rest its own way */
int el_get(EditLine *e, int what, ...); /* EL_CLIENTDATA alone */
/* A line in UTF-8 with its end, or NULL at the end of input and where Ctrl-C came. */
const char *el_gets(EditLine *e, int *n);
void el_reset(EditLine *e); /* nothing: the console forgets a line that Ctrl-C ended by itself */
void el_push(EditLine *e,
             const char *text); /* shown before the prompt, to be copied: the console takes no beginning */

/* No history lasts: all but H_ENTER fail, so nothing is written and nothing is promised. */
History *history_init(void);
void history_end(History *h);
int history(History *h, HistEvent *ev, int what, ...);

#endif
