#include "cli/chat_pictures.h"

#include "base/hex.h"
#include "cli/chat_tools.h"
#include "cli/output.h"
#include "session/pictures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- looking -------------------------------------------------------------------------------------------- */

static void let_go(looking **l) {
    if (*l) cli_looking_free(*l);
    free(*l);
    *l = NULL;
}

/* The next question has no more than its first n. */
static void drop_after(chat *c, int n) {
    while (c->next && c->next->n > n) cli_looking_drop(c->next);
    if (!n) let_go(&c->next); /* a question without pictures is asked as one */
}

static int n_next(const chat *c) { return c->next ? c->next->n : 0; }

static void tell_after(const chat *c, int n) {
    for (int i = n; i < n_next(c); i++) {
        const tn_look *l = c->next->at[i].look;
        fprintf(stderr, "%s: %d x %d pixels, %d tokens, go with the next message\n",
                cli_shown(c->next->at[i].name), l->width, l->height, l->n_rows);
    }
}

static bool look(chat *c, const char *path) {
    if (c->plain)
        return cli_failed_text("the model has no chat template: it takes no pictures in a conversation"),
               false;
    if (!c->next && !(c->next = calloc(1, sizeof *c->next)))
        return cli_failed_text("no memory for a picture"), false;
    const bool pdf = cli_is_pdf(path);
    char *text = NULL;
    bool ok = pdf ? cli_looking_add_pdf(c->next, c->reader, path, &text) : cli_looking_add(c->next, path);
    if (!ok && !pdf) cli_failed_text("a question has up to %d pictures", LOOK_MOST);
    if (text)
        ok = cli_failed_text("%s has text: /attach sends it, and /image %s#1 looks at a page", path, path) ==
             EXIT_OK;
    free(text);
    return ok && cli_looking_at(c->next, c->e, c->reader);
}

bool cli_chat_look(chat *c, const char *path) {
    const int before = n_next(c);
    const bool ok = look(c, path);
    if (!ok) drop_after(c, before);
    tell_after(c, before);
    return ok;
}

/* ---- paths in what is typed --------------------------------------------------------------------------------- */

/* A word as terminals write a file that is dragged into them: in quotes, with escaped blanks, as an address, or from the home
 * folder. Returns its length, and the path it stands for; 0: nothing is left. */
static size_t word_at(const char *text, char *path, size_t cap) {
    size_t n = 0, k = 0;
    const char quote = text[0] == '\'' || text[0] == '"' ? text[0] : 0, *home = getenv("HOME");
    if (!strncmp(text, "~/", 2) && home && strlen(home) < cap) {
        k = strlen(strcpy(path, home));
        n = 1;
    }
    if (quote) n = 1;
    for (; text[n] && k + 1 < cap && (quote ? text[n] != quote : !strchr(" \t\n", text[n])); n++) {
        if (!quote && text[n] == '\\' && text[n + 1]) n++;
        path[k++] = text[n];
    }
    path[k] = 0;
    if (quote && text[n] == quote) n++;
    if (!strncmp(path, "file://", 7)) {
        memmove(path, path + 7, k - 6);
        (void)tn_percent_decode(path);
    }
    return n;
}

/* Whether a word may name a file: nobody means one by a bare word. */
static bool names_file(const char *path) { return strchr(path, '/') || strchr(path, '.'); }

/* Whether it is looked at: a picture, a PDF file, or pages of one. */
static bool is_shown(const char *path) { return cli_is_picture(path) || cli_is_pdf(path); }

bool cli_chat_is_path(const char *text) {
    char path[4096];
    return word_at(text, path, sizeof path) && strchr(path + 1, '/') && is_shown(path);
}

/* The file that a word names which marks of a sentence may follow: the length of its part of the word; 0: none. */
static size_t file_at(const char *text, char *path, size_t cap) {
    size_t n = word_at(text, path, cap), k = strlen(path);
    while (n && names_file(path)) {
        if (is_shown(path)) return n;
        if (n < 2 || text[n - 1] != path[k - 1] || !strchr(".,;:!?)", path[k - 1])) return 0;
        n--;
        path[--k] = 0;
    }
    return 0;
}

/* Files that the words name stay words where the model cannot look at them. */
static bool cannot_look(const chat *c, const char *path) {
    tern_error err = {0};
    if (!c->plain && tn_sight_can(c->e, &err)) return false;
    fprintf(stderr, "%s is not looked at: %s%s\n", cli_shown(path),
            c->plain ? "the model has no chat template, so it takes no pictures in a conversation"
                     : err.message,
            cli_is_pdf(path) ? " (/attach sends the text of a PDF file)" : "");
    return true;
}

bool cli_chat_find_pictures(chat *c, char **words) {
    char path[4096], *text = *words, *to = text;
    const int before = n_next(c);
    for (const char *at = text; *at;) {
        if (*at == '(') *to++ = *at++;
        size_t n = file_at(at, path, sizeof path);
        if (n && !cannot_look(c, path)) {
            if (!look(c, path)) return drop_after(c, before), false;
            at += n;
            while (*at == ' ') at++;
            while (strchr(".,;:!?)", *at) && to > text && to[-1] == ' ') to--;
            continue;
        }
        n = word_at(at, path, sizeof path);
        n = n ? n : *at != 0;
        while (at[n] && strchr(" \t\n", at[n])) n++; /* with the blanks that follow */
        memmove(to, at, n);
        to += n;
        at += n;
    }
    *to = 0;
    tell_after(c, before);
    return true;
}

/* ---- with their messages -------------------------------------------------------------------------------------- */

void cli_chat_give_pictures(chat *c) {
    let_go(&c->seen[c->n_msgs - 1]);
    c->seen[c->n_msgs - 1] = c->next;
    c->next = NULL;
}

void cli_chat_take_pictures(chat *c) {
    if (!c->seen[c->n_msgs - 1]) return;
    let_go(&c->next);
    c->next = c->seen[c->n_msgs - 1];
    c->seen[c->n_msgs - 1] = NULL;
}

void cli_chat_drop_pictures(chat *c, size_t i_msg) {
    if (i_msg < CHAT_MESSAGES) let_go(&c->seen[i_msg]);
    else let_go(&c->next);
}

bool cli_chat_has_pictures(const chat *c, size_t from) {
    for (size_t i = from; i < c->n_msgs; i++)
        if (c->seen[i]) return true;
    return false;
}

/* The looks of messages from `from` on, in their order; malloc'ed. */
static tn_look **looks_of(const chat *c, size_t from, size_t *n) {
    tn_look **all = malloc((c->n_msgs * LOOK_MOST + 1) * sizeof *all);
    *n = 0;
    for (size_t i = from; all && i < c->n_msgs; i++)
        if (c->seen[i]) *n += cli_looking_all(c->seen[i], all + *n);
    return all;
}

static json_t *message_of(const chat *c, size_t i) {
    const char *text = c->msgs[i].content;
    if (c->as[i]) return cli_chat_message(c, i, tn_json_string(text, strlen(text)));
    json_t *parts = json_array();
    for (int k = 0; c->seen[i] && k < c->seen[i]->n; k++)
        tn_json_append(&parts, tn_json_pack("{s:s}", "type", "image"));
    tn_json_append(&parts, tn_json_pack("{s:s, s:s}", "type", "text", "text", text));
    return cli_chat_message(c, i, parts);
}

int32_t *cli_chat_looking_ids(const chat *c, size_t from, size_t *n_ids) {
    tern_error err;
    size_t n;
    int32_t *ids = NULL;
    char *messages = NULL, *tools = NULL;
    json_t *all = json_array();
    if (from && !strcmp(c->msgs[0].role, "system")) tn_json_append(&all, message_of(c, 0));
    for (size_t i = from; i < c->n_msgs; i++) tn_json_append(&all, message_of(c, i));
    tn_look **looks = looks_of(c, from, &n);
    tern_status st = looks ? cli_chat_tools_texts(c, all, &messages, &tools, &err) : TERN_E_MEMORY;
    if (!looks) snprintf(err.message, sizeof err.message, "no memory for the prompt");
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.messages = messages;
    o.tools = tools;
    o.chat_template = c->source;
    if (st == TERN_OK) st = tn_look_chat(c->e, &o, looks, n, &ids, n_ids, &err);
    if (st != TERN_OK) cli_failed(&err);
    json_decref(all);
    free(messages);
    free(tools);
    free(looks);
    return ids;
}

tern_status cli_chat_see(chat *c, size_t from, tern_error *err) {
    size_t n;
    if (!cli_chat_has_pictures(c, from)) return TERN_OK;
    tn_look **looks = looks_of(c, from, &n);
    if (!looks) {
        snprintf(err->message, sizeof err->message, "no memory for the prompt");
        return TERN_E_MEMORY;
    }
    tern_status st = cli_looking_encode(looks, n, c->s, err);
    free(looks);
    return st;
}
