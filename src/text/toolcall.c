/* text/toolcall.c - reads the answer as it arrives. Text is held back only while it may still become
 * something else. */
#include "base/status.h"
#include "text/toolcall_impl.h"

#include <stdio.h>
#include <string.h>

enum {
    BLANKS = 256, /* at most, white space before a call that is dropped with it */
    PAYLOAD_MAX = 4 << 20,
    HEADER_MAX = 1024,
    MARKERS = 4
};

typedef enum mode {
    AT_START, /* only white space so far: a thought or a bare call may follow */
    IN_THOUGHT,
    IN_TEXT,
    AT_PAYLOAD, /* after a marker */
    IN_PAYLOAD,
    BEHIND_CALL,
    BEHIND_BROKEN,
    IN_HEADER, /* harmony */
    IN_MESSAGE
} mode;

typedef enum shape { JSON, PYTHON, MARKED_XML, MARKED_GEMMA, TO_THE_END } shape;

/* How far a call in pieces is: not looked at, not certain yet, its arguments come, they are there, or it comes whole. */
typedef enum pieces { UNSEEN, COMES, CAME, WHOLE } pieces;

/* A scan of a growing text: its position, its depth in brackets, its quotes. */
typedef struct scan {
    size_t at;
    int depth;
    char quote;
} scan;

struct tn_answer {
    tn_ctx *ctx;
    tn_answer_options o;
    const char *markers[MARKERS], *closer;
    int n_markers;
    mode mode;
    bool fresh;  /* white space is dropped now */
    bool spoken; /* a thought or text has been seen: no thought may begin now */
    bool ended, stopped, plain, bare;
    bool by_name; /* the payload has no marker: it is a call if it names a tool */
    bool again;   /* the payload directly follows another */
    char *buf;
    size_t n, cap, at; /* buf[at..n) has not been given out */
    size_t skip;       /* no marker begins before this */
    size_t mark;       /* start of the payload: of its marker, or of itself */
    size_t payload;
    shape shape;
    scan look;
    char name[TN_CALL_NAME_MAX]; /* of the arguments alone */
    size_t n_name;
    bool to_tool, to_user; /* harmony's message; neither: a thought */
    size_t n_calls;
    tn_calls calls;
    /* of the payload, where calls are given out in pieces */
    pieces pieces;
    size_t piece_at; /* what has not been given out of the arguments */
    int piece_depth;
    bool piece_in, piece_escaped; /* within a string; after a backslash there */
};

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* ---- giving out ------------------------------------------------------------------------------------ */

static void give(tn_answer *a, bool thought, const char *p, size_t n) {
    bool (*fn)(void *, const char *, size_t) = thought ? a->o.on.on_thought : a->o.on.on_text;
    if (n && !a->stopped && fn && !fn(a->o.on.user, p, n)) a->stopped = true;
}

/* Gives out buf[at..end) as text or thought. Trailing blanks are kept back unless `all`. */
static void give_to(tn_answer *a, bool thought, size_t end, bool all) {
    size_t go = end;
    if (a->fresh)
        while (a->at < end && is_space(a->buf[a->at])) a->at++;
    if (!all)
        while (go > a->at && end - go < BLANKS && is_space(a->buf[go - 1])) go--;
    if (go <= a->at) return;
    give(a, thought, a->buf + a->at, go - a->at);
    a->at = go;
    a->fresh = false;
    a->spoken = true;
}

static void give_calls(tn_answer *a) {
    const char *p = a->calls.text.p;
    for (size_t i = 0; i < a->calls.n && !a->stopped; i++) {
        const char *args = p + strlen(p) + 1;
        if (a->o.on.on_call && !a->o.on.on_call(a->o.on.user, p, args)) a->stopped = true;
        p = args + strlen(args) + 1;
        a->n_calls++;
    }
    a->calls.n = a->calls.text.n = 0;
}

/* ---- looking --------------------------------------------------------------------------------------- */

typedef enum found { NO, YES, MAYBE } found; /* MAYBE: more text decides */

static found begins(const tn_answer *a, size_t at, const char *word) {
    size_t len = strlen(word), n = a->n - at, k = n < len ? n : len;
    if (memcmp(a->buf + at, word, k)) return NO;
    return k == len ? YES : a->ended ? NO : MAYBE;
}

/* Finds the first of the words at or after `from`. Returns its place, or where one may begin, or the end. */
static found find(const tn_answer *a, size_t from, const char *const *words, int n_words, size_t *where,
                  int *which) {
    for (size_t i = from; i < a->n; i++) {
        for (int k = 0; k < n_words; k++) {
            if (a->buf[i] != words[k][0]) continue;
            found f = begins(a, i, words[k]);
            if (f == NO) continue;
            *where = i;
            *which = k;
            return f;
        }
    }
    *where = a->n;
    return NO;
}

/* Scans to the bracket that closes the one at the beginning. */
static found scan_brackets(tn_answer *a, bool python, size_t *end) {
    scan *s = &a->look;
    for (; s->at < a->n; s->at++) {
        char c = a->buf[s->at];
        if (s->quote) {
            if (c == '\\') {
                if (s->at + 1 >= a->n) return MAYBE;
                s->at++;
            } else if (c == s->quote) {
                s->quote = 0;
            }
        } else if (c == '"' || (python && c == '\'')) {
            s->quote = c;
        } else if (c == '{' || c == '[' || c == '(') {
            s->depth++;
        } else if (c == '}' || c == ']' || c == ')') {
            if (--s->depth > 0) continue;
            *end = ++s->at;
            return s->depth ? NO : YES;
        }
    }
    return MAYBE;
}

/* Scans to `end`, which does not count between `open` and `close`. */
static found scan_marked(tn_answer *a, const char *open, const char *close, const char *end, size_t *out) {
    scan *s = &a->look;
    for (; s->at < a->n; s->at++) {
        if (a->buf[s->at] != '<') continue;
        const char *inner = s->quote ? close : open;
        found f = begins(a, s->at, inner), e = s->quote ? NO : begins(a, s->at, end);
        if (f == MAYBE || e == MAYBE) return MAYBE;
        if (e == YES) {
            *out = s->at += strlen(end);
            return YES;
        }
        if (f == YES) {
            s->at += strlen(inner) - 1;
            s->quote = !s->quote;
        }
    }
    return MAYBE;
}

/* ---- text and thoughts ----------------------------------------------------------------------------- */

static void to_payload(tn_answer *a, shape shape, size_t from) {
    a->mode = IN_PAYLOAD;
    a->shape = shape;
    a->payload = from;
    a->pieces = UNSEEN;
    a->look = (scan){.at = from};
}

static bool step_text(tn_answer *a) {
    size_t where;
    int which = 0;
    size_t from = a->skip > a->at ? a->skip : a->at;
    found f = find(a, from, (const char *const *)a->markers, a->plain ? 0 : a->n_markers, &where, &which);
    if (f == YES) {
        give_to(a, false, where, false);
        a->mark = where;
        a->by_name = a->bare;
        a->mode = AT_PAYLOAD;
        a->skip = where + strlen(a->markers[which]);
        a->payload = a->skip;
        if (a->markers[which][1] == 'f') a->payload = where, a->by_name = true; /* <function= */
        return true;
    }
    give_to(a, false, where, a->ended);
    return false;
}

static bool step_thought(tn_answer *a) {
    size_t where;
    int which;
    found f = find(a, a->at, &a->o.form.think_ends, 1, &where, &which);
    if (f != YES) {
        give_to(a, true, where, a->ended);
        return false;
    }
    give_to(a, true, where, false);
    a->at = where + strlen(a->o.form.think_ends);
    a->mode = AT_START;
    a->fresh = a->spoken = true;
    return true;
}

static bool step_start(tn_answer *a) {
    size_t i = a->at;
    while (i < a->n && is_space(a->buf[i])) i++;
    if (i == a->n && !a->ended && i - a->at < BLANKS) return false;
    if (i < a->n && i - a->at < BLANKS) {
        found f = a->o.form.think && !a->spoken ? begins(a, i, a->o.form.think) : NO;
        if (f == MAYBE) return false;
        if (f == YES) {
            a->at = i + strlen(a->o.form.think);
            a->mode = IN_THOUGHT;
            a->fresh = true;
            return true;
        }
        if (a->bare && !a->plain) {
            f = begins(a, i, "```");
            if (f == MAYBE) return false;
            if (f == YES || a->buf[i] == '{' || a->buf[i] == '[') {
                a->mark = i;
                a->by_name = true;
                a->payload = f == YES ? i + 3 : i;
                a->skip = a->payload;
                a->closer = f == YES ? "```" : NULL;
                a->mode = AT_PAYLOAD;
                return true;
            }
        }
    }
    a->mode = IN_TEXT;
    return true;
}

/* ---- payloads -------------------------------------------------------------------------------------- */

/* Gives out the text up to `end`: it is not a call. */
static bool not_a_call(tn_answer *a, size_t end) {
    a->closer = NULL;
    a->again = false;
    a->skip = end;
    a->mode = IN_TEXT;
    return true;
}

/* Reads NAME[CALL_ID]id[ARGS]{...} and NAME{...}, where the arguments alone follow a name. */
static bool named_payload(tn_answer *a, size_t i) {
    size_t from = i;
    while (i < a->n && is_name(a->buf[i]) && i - from < TN_CALL_NAME_MAX - 1) i++;
    if (i == a->n && !a->ended) return false;
    if (i == from) return not_a_call(a, a->payload);
    a->n_name = i - from;
    memcpy(a->name, a->buf + from, a->n_name);
    found f = begins(a, i, "[CALL_ID]");
    if (f == MAYBE) return false;
    if (f == YES) {
        for (i += 9; i < a->n && is_name(a->buf[i]) && i - from < 2 * TN_CALL_NAME_MAX;) i++;
        if (i == a->n && !a->ended) return false;
    }
    f = begins(a, i, "[ARGS]");
    if (f == MAYBE) return false;
    if (f == YES) i += 6;
    while (i < a->n && is_space(a->buf[i])) i++;
    if (i == a->n && !a->ended) return false;
    if (i == a->n || a->buf[i] != '{') return not_a_call(a, a->payload);
    to_payload(a, JSON, i);
    return true;
}

static bool step_at_payload(tn_answer *a) {
    size_t i = a->payload;
    a->n_name = 0;
    if (a->closer && !strcmp(a->closer, "```")) { /* the fence's language */
        static const char *const words[] = {"json", "tool_call", "tool_code"};
        for (int k = 0; k < 3; k++) {
            found f = begins(a, i, words[k]);
            if (f == MAYBE) return false;
            if (f == YES) i += strlen(words[k]);
        }
    }
    while (i < a->n && is_space(a->buf[i])) i++;
    if (i == a->n) return a->ended ? not_a_call(a, a->payload) : false;
    char c = a->buf[i];
    bool json = c == '{' || c == '[';
    tn_call_form form = a->bare && a->closer ? TN_CALLS_GENERIC : a->o.form.calls;
    if (form == TN_CALLS_GEMMA) {
        to_payload(a, MARKED_GEMMA, i);
    } else if (form == TN_CALLS_LFM2 && c != '{') {
        if (c != '[') return not_a_call(a, a->payload);
        to_payload(a, PYTHON, i);
    } else if (form == TN_CALLS_MISTRAL && !json) {
        return named_payload(a, i);
    } else if (form == TN_CALLS_LLAMA3 && c != '{' && !a->closer && a->mark != i) {
        to_payload(a, TO_THE_END, i);
    } else if (json) {
        to_payload(a, JSON, i);
    } else {
        found f = begins(a, i, "<function=");
        if (f == MAYBE) return false;
        if (f == NO) return not_a_call(a, a->payload);
        to_payload(a, MARKED_XML, i);
    }
    return true;
}

/* ---- calls in pieces ---------------------------------------------------------------------------------- */

/* Reads one of two words at *i, and the white space in front of it. */
static found word_at(const tn_answer *a, size_t *i, const char *word, const char *other) {
    while (*i < a->n && is_space(a->buf[*i])) ++*i;
    if (*i == a->n) return a->ended ? NO : MAYBE;
    found f = begins(a, *i, word), g = other ? begins(a, *i, other) : NO;
    if (f == YES || g == YES) *i += strlen(f == YES ? word : other);
    return f == YES || g == YES ? YES : f == MAYBE || g == MAYBE ? MAYBE : NO;
}

/* Is this {"name": "NAME", "arguments": { as far as it goes? *i: behind it, at the bracket. */
static found names_first(const tn_answer *a, size_t *i, size_t *name, size_t *n_name) {
    static const char *const words[][2] = {{"{", NULL}, {"\"name\"", NULL}, {":", NULL}, {"\"", NULL}},
                             *const then[][2] = {{"\"", NULL},
                                                 {",", NULL},
                                                 {"\"arguments\"", "\"parameters\""},
                                                 {":", NULL},
                                                 {"{", NULL}};
    found f = YES;
    for (size_t k = 0; f == YES && k < 4; k++) f = word_at(a, i, words[k][0], words[k][1]);
    if (f != YES) return f;
    *name = *i;
    while (*i < a->n && is_name(a->buf[*i]) && *i - *name < TN_CALL_NAME_MAX) ++*i;
    *n_name = *i - *name;
    if (*i < a->n && a->buf[*i] != '"') return NO;
    for (size_t k = 0; f == YES && k < 5; k++) f = word_at(a, i, then[k][0], then[k][1]);
    if (f == YES) --*i;
    return f;
}

static void piece(tn_answer *a, tn_call_piece what, const char *p, size_t n) {
    if (!a->stopped && !a->o.on.on_piece(a->o.on.user, what, p, n)) a->stopped = true;
}

/* Gives out what there is of the arguments before `end`. Raw control characters in texts are escaped, as in arguments
 * that come whole. */
static void give_pieces(tn_answer *a, size_t end) {
    size_t from = a->piece_at, i = from;
    for (; a->pieces == COMES && i < end; i++) {
        unsigned char c = (unsigned char)a->buf[i];
        if (a->piece_escaped) {
            a->piece_escaped = false;
        } else if (a->piece_in && c < 0x20) {
            char code[8];
            snprintf(code, sizeof code, "\\u%04x", c);
            if (i > from) piece(a, TN_PIECE_MORE, a->buf + from, i - from);
            piece(a, TN_PIECE_MORE, code, 6);
            from = i + 1;
        } else if (a->piece_in) {
            a->piece_escaped = c == '\\';
            a->piece_in = c != '"';
        } else if (c == '"') {
            a->piece_in = true;
        } else if (c == '{' || c == '[' || c == '(') {
            a->piece_depth++;
        } else if ((c == '}' || c == ']' || c == ')') && !--a->piece_depth) {
            a->pieces = CAME;
        }
    }
    if (i > from) piece(a, TN_PIECE_MORE, a->buf + from, i - from);
    a->piece_at = i;
}

/* Gives out what is certain of the call at the payload, whose text goes to `end` at least. */
static void look_for_pieces(tn_answer *a, size_t end) {
    size_t args = a->payload, name = 0, n_name = 0;
    char text[TN_CALL_NAME_MAX];
    if (!a->o.on.on_piece || a->pieces == CAME || a->pieces == WHOLE) return;
    if (a->pieces == UNSEEN) {
        found f = a->n_name ? word_at(a, &args, "{", NULL) : names_first(a, &args, &name, &n_name);
        if (f == MAYBE && a->n - a->payload <= HEADER_MAX) return;
        const char *p = a->n_name ? a->name : a->buf + name;
        if (a->n_name) args--, n_name = a->n_name;
        if (f != YES || n_name >= sizeof text || !tn_tools_find(a->o.tools, p, n_name)) {
            a->pieces = WHOLE;
            return;
        }
        snprintf(text, sizeof text, "%.*s", (int)n_name, p);
        if (!a->again && a->mode == IN_PAYLOAD) give_to(a, false, a->mark, false);
        a->pieces = COMES;
        a->piece_at = args;
        a->piece_depth = 0;
        a->piece_in = a->piece_escaped = false;
        piece(a, TN_PIECE_NAME, text, n_name);
    }
    give_pieces(a, end);
}

/* Did the payload come in pieces? Then it has ended; is_call: it was read, and is in a->calls. */
static bool end_pieces(tn_answer *a, bool is_call) {
    if (a->pieces != COMES && a->pieces != CAME) return false;
    a->pieces = UNSEEN;
    a->calls.n = a->calls.text.n = 0;
    if (a->calls.text.failed) return true;
    a->n_calls += is_call;
    piece(a, is_call ? TN_PIECE_WHOLE : TN_PIECE_BROKEN, "", 0);
    return true;
}

static bool read_calls(tn_answer *a, size_t end) {
    const char *p = a->buf + a->payload;
    size_t n = end - a->payload;
    tn_calls *c = &a->calls;
    c->tools = a->by_name ? a->o.tools : NULL;
    c->known = a->o.tools;
    switch (a->shape) {
    case JSON:
        if (a->n_name) return tn_calls_arguments(c, a->name, a->n_name, p, n);
        return tn_calls_json(c, p, n) || (a->o.form.calls == TN_CALLS_LFM2 && tn_calls_python(c, p, n));
    case PYTHON: return tn_calls_python(c, p, n) || tn_calls_json(c, p, n);
    case MARKED_XML: return tn_calls_xml(c, p, n);
    case MARKED_GEMMA: return tn_calls_gemma(c, p, n - strlen("<end_function_call>"));
    default: return tn_calls_python(c, p, n) || tn_calls_code(c, p, n);
    }
}

static bool step_payload(tn_answer *a) {
    size_t end = a->n;
    if (a->shape == JSON) look_for_pieces(a, a->n);
    found f = a->shape == JSON           ? scan_brackets(a, false, &end)
              : a->shape == PYTHON       ? scan_brackets(a, true, &end)
              : a->shape == MARKED_XML   ? scan_marked(a, "<parameter=", "</parameter>", "</function>", &end)
              : a->shape == MARKED_GEMMA ? scan_marked(a, "<escape>", "<escape>", "<end_function_call>", &end)
              : a->ended                 ? YES
                                         : MAYBE;
    bool far = f == MAYBE && a->n - a->payload > PAYLOAD_MAX;
    if (f == MAYBE && !a->ended && !far) return false;
    const bool is_call = f == YES && read_calls(a, end), came = a->shape == JSON && end_pieces(a, is_call);
    if (!is_call && !came) {
        a->plain |= f == MAYBE && !far; /* it never ended: the rest is text, whatever it contains */
        return not_a_call(a, f == MAYBE ? a->n : end);
    }
    if (!a->again && !came) give_to(a, false, a->mark, false);
    give_calls(a);
    a->again = false;
    a->at = a->skip = f == MAYBE ? a->n : end;
    a->fresh = true;
    a->mode = is_call ? BEHIND_CALL : BEHIND_BROKEN;
    return true;
}

/* What ends the markup of a call. */
static const char *closer_of(const tn_answer *a) {
    return a->closer                            ? a->closer
           : a->o.form.calls == TN_CALLS_LFM2   ? "<|tool_call_end|>"
           : a->o.form.calls == TN_CALLS_LLAMA3 ? "<|eom_id|>"
                                                : "</tool_call>";
}

/* The rest of what was given out in pieces, and is no call. */
static bool step_broken(tn_answer *a) {
    const char *words[MARKERS + 1] = {closer_of(a)};
    size_t where;
    int which = 0;
    memcpy(words + 1, a->markers, (size_t)a->n_markers * sizeof *words);
    found f = find(a, a->at, words, 1 + a->n_markers, &where, &which);
    if (f != YES && !a->ended) return false;
    if (f == YES && !which) {
        a->at = where + strlen(words[0]);
    } else {
        const char *line = memchr(a->buf + a->at, '\n', where - a->at);
        a->at = line ? (size_t)(line - a->buf) : where;
    }
    a->skip = a->at;
    a->closer = NULL;
    a->mode = IN_TEXT;
    return true;
}

static bool step_behind(tn_answer *a) {
    size_t i = a->at;
    while (i < a->n && (is_space(a->buf[i]) || a->buf[i] == ',' || a->buf[i] == ';')) i++;
    if (i == a->n) return false;
    tn_call_form form = a->o.form.calls;
    bool again = form == TN_CALLS_HERMES || form == TN_CALLS_LLAMA3 || form == TN_CALLS_GENERIC;
    const char *closer = closer_of(a);
    found f = begins(a, i, closer);
    if (f == MAYBE) return false;
    if (f == YES) {
        a->at = a->skip = i + strlen(closer);
        a->closer = NULL;
    } else if (again && a->buf[i] == '{') {
        a->mark = a->payload = i;
        a->again = true;
        a->mode = AT_PAYLOAD;
        return true;
    }
    a->closer = NULL;
    a->mode = IN_TEXT;
    return true;
}

/* ---- harmony --------------------------------------------------------------------------------------- */

static const char *const harmony_ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};

/* Reads <|start|>assistant to=functions.NAME<|channel|>commentary <|constrain|>json<|message|>. */
static bool step_header(tn_answer *a) {
    static const char *const begin[] = {"<|channel|>", "<|start|>", "<|message|>", " to=", "to="};
    static const char *const message[] = {"<|message|>"};
    size_t i = a->at, where = i;
    int which;
    if (a->fresh)
        while (i < a->n && is_space(a->buf[i]) && begins(a, i, " to=") == NO) i++;
    if (i == a->n) {
        if (a->ended) a->at = i;
        return false;
    }
    bool maybe = false, yes = false;
    for (int k = 0; k < 5; k++) {
        found f = begins(a, i, begin[k]);
        yes |= f == YES;
        maybe |= f == MAYBE;
    }
    if (!yes && maybe) return false;
    found f = yes ? find(a, i, message, 1, &where, &which) : NO;
    bool far = yes && where - i > HEADER_MAX;
    if (!yes || far || (f != YES && a->ended)) { /* an answer without its markup */
        a->skip = i + 1;
        a->to_tool = false;
        a->to_user = true;
        a->mode = IN_MESSAGE;
        return true;
    }
    if (f != YES) return false;
    const char *h = a->buf + i;
    size_t n = where - i;
    const char *to = memmem(h, n, "to=", 3);
    a->n_name = 0;
    if (to) {
        size_t k = (size_t)(to - h) + 3;
        if (n - k > 10 && !memcmp(h + k, "functions.", 10)) k += 10;
        while (k < n && is_name(h[k]) && a->n_name < TN_CALL_NAME_MAX - 1) a->name[a->n_name++] = h[k++];
    }
    a->to_tool = a->n_name && a->o.tools;
    a->pieces = UNSEEN;
    a->to_user = !a->to_tool && !memmem(h, n, "<|channel|>analysis", 19);
    a->payload = where + strlen("<|message|>");
    a->at = a->to_tool ? i : a->payload;
    a->look.at = a->payload;
    a->fresh = false;
    a->mode = IN_MESSAGE;
    return true;
}

static bool step_message(tn_answer *a) {
    size_t where, from = a->to_tool ? a->look.at : a->skip > a->at ? a->skip : a->at;
    int which = 0;
    found f = find(a, from, harmony_ends, 5, &where, &which);
    a->look.at = where;
    if (!a->to_tool) {
        give_to(a, !a->to_user, where, f == YES || a->ended);
        if (f != YES) return false;
    } else {
        look_for_pieces(a, where);
        if (f != YES && !a->ended) return false;
        a->calls.tools = NULL;
        a->calls.known = a->o.tools;
        const bool is_call =
            tn_calls_arguments(&a->calls, a->name, a->n_name, a->buf + a->payload, where - a->payload);
        const bool came = end_pieces(a, is_call);
        if (is_call) give_calls(a); /* none, where it came in pieces */
        else if (!came) give(a, false, a->buf + a->at, where - a->at);
        a->at = where;
        if (f != YES) return false;
    }
    a->at = where + (which < 3 ? strlen(harmony_ends[which]) : 0);
    if (which >= 3) a->at = where; /* the next header */
    a->fresh = true;
    a->mode = IN_HEADER;
    return true;
}

/* ---- the answer ------------------------------------------------------------------------------------ */

static void run(tn_answer *a) {
    static bool (*const steps[])(tn_answer *) = {step_start,      step_thought, step_text,
                                                 step_at_payload, step_payload, step_behind,
                                                 step_broken,     step_header,  step_message};
    while (!a->stopped && !a->calls.text.failed && steps[a->mode](a)) {
    }
    if (a->calls.text.failed) a->stopped = true;
    if (a->at < 4096 && a->at < a->n) return; /* moved only when worthwhile */
    memmove(a->buf, a->buf + a->at, a->n - a->at);
    a->n -= a->at;
    a->skip = a->skip > a->at ? a->skip - a->at : 0;
    a->mark = a->mark > a->at ? a->mark - a->at : 0;
    a->payload = a->payload > a->at ? a->payload - a->at : 0;
    a->look.at = a->look.at > a->at ? a->look.at - a->at : 0;
    a->piece_at = a->piece_at > a->at ? a->piece_at - a->at : 0;
    a->at = 0;
}

tern_status tn_answer_open(tn_ctx *ctx, const tn_answer_options *o, tn_answer **out, tern_error *err) {
    tn_answer *a = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *a);
    *out = a;
    TN_FAIL_IF(!a, err, TERN_E_MEMORY, "no memory to read an answer");
    a->ctx = ctx;
    a->o = *o;
    a->calls.text.ctx = ctx;
    tn_call_form form = o->form.calls;
    if (!o->tools) {
        a->n_markers = 0;
    } else if (o->forced) {
        a->bare = true;
    } else {
        static const char *const first[] = {
            "<tool_call>",         "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<start_function_call>",
            "<|tool_call_start|>", NULL};
        if (first[form]) a->markers[a->n_markers++] = first[form];
        if (form == TN_CALLS_HERMES) a->markers[a->n_markers++] = "<function=";
        a->bare = form == TN_CALLS_GENERIC || form == TN_CALLS_LLAMA3;
    }
    a->mode = form == TN_CALLS_HARMONY && !o->forced ? IN_HEADER
              : o->thinking && o->form.think_ends    ? IN_THOUGHT
                                                     : AT_START;
    a->fresh = a->mode == IN_THOUGHT;
    return TERN_OK;
}

void tn_answer_close(tn_answer **pa) {
    tn_answer *a = *pa;
    *pa = NULL;
    if (!a) return;
    tn_ctx *ctx = a->ctx;
    tn_sb_free(&a->calls.text);
    tn_free(ctx, a->buf);
    tn_free(ctx, a);
}

bool tn_answer_put(tn_answer *a, const char *text, size_t n) {
    if (a->stopped || !n) return !a->stopped;
    if (a->n + n > a->cap) {
        size_t cap = 2 * (a->n + n) + 64;
        char *more = tn_realloc(a->ctx, TN_MEM_TEXT, a->buf, cap, 1);
        if (!more) {
            a->stopped = a->calls.text.failed = true;
            return false;
        }
        a->buf = more;
        a->cap = cap;
    }
    memcpy(a->buf + a->n, text, n);
    a->n += n;
    run(a);
    return !a->stopped;
}

bool tn_answer_end(tn_answer *a) {
    a->ended = true;
    if (a->n && !a->stopped) run(a);
    return !a->stopped;
}

bool tn_answer_failed(const tn_answer *a) { return a->calls.text.failed; }
