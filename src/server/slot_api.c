/* server/slot_api.c - POST /slots/N?action=save|restore|erase, as llama.cpp's server has it. */
#include "server/api.h"
#include "server/connection.h"
#include "server/refusals.h"
#include "server/slot_acts.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 200, PATH_MAX_BYTES = 4096 };

static const char *const words[] = {"save", "restore", "erase"};

/* A name of a file in the folder, which leads nowhere else and hides nothing. */
static bool is_plain(const char *name) {
    const size_t n = strlen(name);
    if (!n || n > NAME_MAX_BYTES || *name == '.') return false;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127 || strchr("/\\:*?\"<>|", *c)) return false;
    return true;
}

/* What the address and the body ask for; the file's path goes to path. */
static tern_status read_act(const tn_api_call *a, const char *number, const json_t *body, tn_slot_act *act,
                            tern_error *err) {
    const char *word = MHD_lookup_connection_value(a->c, MHD_GET_ARGUMENT_KIND, "action");
    char *end;
    size_t i = 0;
    errno = 0;
    const long n = strtol(number, &end, 10);
    TN_FAIL_IF(*number < '0' || *number > '9' || *end || errno || n > INT16_MAX, err, TERN_E_INVALID,
               "'%.20s' is not the number of a slot", number);
    act->slot = (int32_t)n;
    while (i < sizeof words / sizeof *words && (!word || strcmp(words[i], word) != 0)) i++;
    TN_FAIL_IF(i == sizeof words / sizeof *words, err, TERN_E_INVALID,
               "the address wants ?action=save, restore or erase");
    act->what = (tn_slot_do)i;
    if (act->what == TN_SLOT_ERASE) return TERN_OK;
    const json_t *name = json_object_get(body, "filename");
    TN_FAIL_IF(!json_is_string(name), err, TERN_E_INVALID, "'filename' must be a text: the name of a file");
    act->name = json_string_value(name);
    TN_FAIL_IF(
        !is_plain(act->name), err, TERN_E_INVALID,
        "'filename' must be a name of at most %d bytes without a folder, which does not begin with a dot",
        NAME_MAX_BYTES);
    return TERN_OK;
}

static tern_status do_act(const tn_api_call *a, tn_queue *q, tn_slot_act *act, tern_error *err) {
    char path[PATH_MAX_BYTES];
    const char *folder = tn_queue_opts(q)->slot_folder;
    if (act->name && snprintf(path, sizeof path, "%s/%s", folder, act->name) >= (int)sizeof path)
        return tn_fail(err, TERN_E_LIMIT, "the path of '%s' is too long", act->name);
    if (act->what == TN_SLOT_RESTORE && access(path, F_OK))
        return tn_fail(err, TN_E_GONE, "there is no saved session '%s'", act->name);
    act->path = act->name ? path : NULL;
    tn_connection_busy(a->c, true);
    tern_status st = tn_queue_act(q, act, tn_client_gone, a->c, err);
    tn_connection_busy(a->c, false);
    act->path = NULL;
    if (st == TERN_E_FORMAT)
        st = err->code = TERN_E_INVALID; /* the client named the file, so it is his mistake */
    return st;
}

static json_t *told(const tn_slot_act *act) {
    const bool saves = act->what == TN_SLOT_SAVE;
    json_t *v = tn_json_pack("{s:i}", "id_slot", (int)act->slot);
    if (act->what == TN_SLOT_ERASE) {
        tn_json_set(&v, "n_erased", json_integer(act->n_tokens));
        return v;
    }
    tn_json_set(&v, "filename", tn_json_string(act->name, strlen(act->name)));
    tn_json_set(&v, saves ? "n_saved" : "n_restored", json_integer(act->n_tokens));
    tn_json_set(&v, saves ? "n_written" : "n_read", json_integer(act->n_bytes));
    tn_json_set(&v, "timings", tn_json_pack("{s:f}", saves ? "save_ms" : "restore_ms", act->ms));
    return v;
}

enum MHD_Result tn_api_slot(const tn_api_call *a, const char *number) {
    tern_error err = {0};
    tn_served *model = NULL;
    tn_slot_act act = {0};
    json_t *body = NULL;
    tern_status st = a->n_body ? tn_request_object(a->body, a->n_body, &body, &err) : TERN_OK;
    if (st == TERN_OK) st = read_act(a, number, body, &act, &err);
    if (st == TERN_OK) st = tn_api_use_at(a, body, &model, &err);
    tn_queue *q = model ? tn_served_queue(model) : NULL;
    const bool nowhere = q && act.name && !tn_queue_opts(q)->slot_folder;
    if (q && !nowhere) st = do_act(a, q, &act, &err);
    if (model) tn_models_leave(model);
    json_t *v = q && !nowhere && st == TERN_OK ? told(&act) : NULL;
    json_decref(body);
    if (nowhere)
        return tn_api_refuse(a, 501, "this server saves no sessions: start it with --slot-save-path DIR");
    return st == TERN_OK ? tn_api_json(a, 200, v) : tn_api_error(a, &err, TN_API_CHAT);
}
