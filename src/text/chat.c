/* text/chat.c - chat templates without a Jinja interpreter: a model's template is recognised by what it
 * writes, and the few places where members of a family differ (default system prompts, white space, dates)
 * are read out of the template itself. What is not recognised is refused.
 *
 * No template's BOS is written: the tokenizer adds it (tokenizer.h). */
#include "text/chat.h"

#include "base/status.h"
#include "text/tokenizer_impl.h"

#include <assert.h>

typedef struct writer {
    const tn_tokenizer *t;
    const char *source; /* the template */
    const tern_message *msgs;
    size_t n_msgs;
    bool answer; /* end where the assistant answers */
    tn_segments *out;
    tern_error *err;
} writer;

static void put_n(writer *w, const char *s, size_t n) { tn_segments_add(w->out, s, n, false); }
static void put(writer *w, const char *s) { put_n(w, s, strlen(s)); }

/* What a message says. */
static void say(writer *w, const char *s) { tn_segments_add(w->out, s, strlen(s), true); }

static const char blanks[] = " \t\n\v\f\r";

/* Without white space at the end */
static void say_end_trimmed(writer *w, const char *s) {
    size_t n = strlen(s);
    while (n && strchr(blanks, s[n - 1])) n--;
    tn_segments_add(w->out, s, n, true);
}
static void say_trimmed(writer *w, const char *s) { say_end_trimmed(w, s + strspn(s, blanks)); }

static void put_eos(writer *w) {
    size_t n;
    if (w->t->eos < 0) return;
    const uint8_t *p = tn_tok_text(w->t, (uint32_t)w->t->eos, &n);
    put_n(w, (const char *)p, n);
}

static bool has(const writer *w, const char *s) { return strstr(w->source, s) != NULL; }
static bool is_role(const tern_message *m, const char *role) { return !strcmp(m->role, role); }

/* The system message, when the conversation starts with one. */
static const char *system_text(const writer *w) {
    return w->n_msgs && is_role(w->msgs, "system") ? w->msgs[0].content : NULL;
}

/* Families without a system role of their own, or with alternating turns: an optional system message, then
 * user and assistant in turn. */
static tern_status check_turns(const writer *w) {
    size_t first = system_text(w) ? 1 : 0;
    for (size_t i = first; i < w->n_msgs; i++) {
        const char *want = (i - first) % 2 ? "assistant" : "user";
        TN_FAIL_IF(strcmp(w->msgs[i].role, want), w->err, TERN_E_INVALID,
                   "message %zu is of role \"%.32s\"; this model's chat takes user and assistant in turn", i,
                   w->msgs[i].role);
    }
    return TERN_OK;
}

/* A literal of the template may spell a newline as backslash n. */
static size_t newline_at(const char *s) { return s[0] == '\n' ? 1 : s[0] == '\\' && s[1] == 'n' ? 2 : 0; }

/* ---- ChatML: Qwen, SmolLM2, PhoneLM and many others ---------------------------------------------- */

/* The system prompt the template brings itself, literally, when a conversation has none (Qwen, SmolLM2). */
static const char *chatml_default_system(const writer *w, size_t *n) {
    static const char open[] = "<|im_start|>system", close[] = "<|im_end|>";
    for (const char *s = w->source; (s = strstr(s, open));) {
        s += sizeof open - 1;
        size_t nl = newline_at(s);
        const char *end = nl ? strstr(s, close) : NULL;
        if (!end) continue;
        s += nl;
        bool literal = end > s;
        for (const char *c = s; c < end; c++)
            literal &= *c != '\'' && *c != '"' && *c != '{' && *c != '}' && *c != '\\' && *c != '\n';
        if (!literal) continue;
        *n = (size_t)(end - s);
        return s;
    }
    return NULL;
}

static void chatml_open(writer *w, const char *role) {
    put(w, "<|im_start|>");
    put(w, role);
    put(w, "\n");
}

static tern_status chatml(writer *w) {
    size_t n;
    const char *own = chatml_default_system(w, &n);
    if (own && !system_text(w)) {
        chatml_open(w, "system");
        put_n(w, own, n);
        put(w, "<|im_end|>\n");
    }
    bool trim = has(w, "message['content'] | trim") || has(w, "message['content']|trim");
    /* Qwen3: what the model thought in earlier turns is not shown to it again */
    bool forget_thoughts = has(w, "</think>");
    for (size_t i = 0; i < w->n_msgs; i++) {
        const char *text = w->msgs[i].content;
        if (forget_thoughts && is_role(&w->msgs[i], "assistant")) {
            for (const char *s = text; (s = strstr(s, "</think>"));) text = s += strlen("</think>");
            while (*text == '\n') text++;
        }
        chatml_open(w, w->msgs[i].role);
        if (trim) say_trimmed(w, text);
        else say(w, text);
        put(w, "<|im_end|>\n");
    }
    if (w->answer) chatml_open(w, "assistant");
    return TERN_OK;
}

/* ---- Llama 3 ------------------------------------------------------------------------------------ */

static void llama3_header(writer *w, const char *role) {
    put(w, "<|start_header_id|>");
    put(w, role);
    put(w, "<|end_header_id|>\n\n");
}

static tern_status llama3(writer *w) {
    size_t i = 0;
    if (has(w, "Cutting Knowledge Date")) { /* 3.1 and later: a system turn always, with dates */
        llama3_header(w, "system");
        put(w, "Cutting Knowledge Date: December 2023\nToday Date: ");
        /* the template's own fallback, the same every day: {% set date_string = "26 Jul 2024" %} */
        static const char *const marks[] = {"date_string = \"", "date_string = '"};
        const char *date = NULL;
        for (int k = 0; k < 2 && !date; k++)
            if ((date = strstr(w->source, marks[k]))) date += strlen(marks[k]);
        const char *end = date ? strpbrk(date, "\"'") : NULL;
        if (end) put_n(w, date, (size_t)(end - date));
        else put(w, "26 Jul 2024");
        put(w, "\n\n");
        if (system_text(w)) say_trimmed(w, w->msgs[i++].content);
        put(w, "<|eot_id|>");
    }
    for (; i < w->n_msgs; i++) {
        llama3_header(w, w->msgs[i].role);
        say_trimmed(w, w->msgs[i].content);
        put(w, "<|eot_id|>");
    }
    if (w->answer) llama3_header(w, "assistant");
    return TERN_OK;
}

/* ---- Llama 2, Mistral --------------------------------------------------------------------------- */

static tern_status llama2(writer *w) {
    TN_TRY(check_turns(w));
    const char *sys = system_text(w);
    size_t first = sys ? 1 : 0, bos_bytes = 0;
    const uint8_t *bos = w->t->bos >= 0 ? tn_tok_text(w->t, (uint32_t)w->t->bos, &bos_bytes) : NULL;
    for (size_t i = first; i < w->n_msgs; i++) {
        if ((i - first) % 2) {
            put(w, " ");
            say_trimmed(w, w->msgs[i].content);
            put(w, " ");
            put_eos(w);
            continue;
        }
        if (i > first && bos)
            put_n(w, (const char *)bos, bos_bytes); /* every exchange is a text of its own */
        put(w, "[INST] ");
        if (i == first && sys) {
            put(w, "<<SYS>>\n");
            say(w, sys);
            put(w, "\n<</SYS>>\n\n");
            say_end_trimmed(w, w->msgs[i].content);
        } else {
            say_trimmed(w, w->msgs[i].content);
        }
        put(w, " [/INST]");
    }
    return TERN_OK;
}

/* The versions of Mistral's template differ in spaces and in where the system message goes. */
static tern_status mistral(writer *w) {
    TN_TRY(check_turns(w));
    const char *sys = system_text(w);
    bool own_system = has(w, "[SYSTEM_PROMPT]");
    size_t first = sys ? 1 : 0, host = first; /* the user message that carries the system text */
    if (has(w, "loop.last"))
        for (size_t i = first; i < w->n_msgs; i += 2) host = i;
    const char *open = has(w, "' [INST] ") || has(w, "\" [INST] ") ? " [INST] "
                       : has(w, "[INST] ")                         ? "[INST] "
                                                                   : "[INST]";
    const char *close = has(w, " [/INST]") ? " [/INST]" : "[/INST]";
    const char *answer = has(w, "' ' + message") || has(w, "\" \" + message") ? " " : "";
    const char *between = has(w, "eos_token + ' '") || has(w, "eos_token + \" \"") ? " " : "";
    bool trim = has(w, "message[\"content\"]|trim + eos") || has(w, "message['content']|trim + eos");
    if (sys && own_system) {
        put(w, has(w, "[SYSTEM_PROMPT] ") ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]");
        say(w, sys);
        put(w, "[/SYSTEM_PROMPT]");
    }
    for (size_t i = first; i < w->n_msgs; i++) {
        if ((i - first) % 2) {
            put(w, answer);
            if (trim) say_trimmed(w, w->msgs[i].content);
            else say(w, w->msgs[i].content);
            put_eos(w);
            put(w, between);
            continue;
        }
        put(w, open);
        if (sys && !own_system && i == host) {
            say(w, sys);
            put(w, "\n\n");
        }
        say(w, w->msgs[i].content);
        put(w, close);
    }
    return TERN_OK;
}

/* ---- Gemma -------------------------------------------------------------------------------------- */

static tern_status gemma(writer *w) {
    TN_TRY(check_turns(w));
    const char *sys = system_text(w);
    size_t first = sys ? 1 : 0;
    for (size_t i = first; i < w->n_msgs; i++) {
        put(w, (i - first) % 2 ? "<start_of_turn>model\n" : "<start_of_turn>user\n");
        if (i == first && sys) { /* no system role: in front of the first question */
            say(w, sys);
            put(w, "\n\n");
        }
        say_trimmed(w, w->msgs[i].content);
        put(w, "<end_of_turn>\n");
    }
    if (w->answer) put(w, "<start_of_turn>model\n");
    return TERN_OK;
}

/* ---- <|role|>: Phi-3 and Phi-4-mini, Zephyr, TinyLlama ------------------------------------------- */

static void role_open(writer *w, const char *role, const char *newline) {
    put(w, "<|");
    put(w, role);
    put(w, "|>");
    put(w, newline);
}

static tern_status phi3(writer *w) {
    /* Phi-4-mini writes no newlines. */
    const char *newline = has(w, "|>\\n") || has(w, "|>\n") || has(w, "'\\n'") || has(w, "'\n'") ? "\n" : "";
    /* The first templates drop system messages; dropping what the user wrote is worse than moving it. */
    const char *sys = has(w, "system") || has(w, "message['role'] + '|>") ? NULL : system_text(w);
    for (size_t i = sys ? 1 : 0, moved = 0; i < w->n_msgs; i++) {
        role_open(w, w->msgs[i].role, newline);
        if (sys && !moved && is_role(&w->msgs[i], "user")) {
            say(w, sys);
            put(w, "\n\n");
            moved = 1;
        }
        say(w, w->msgs[i].content);
        put(w, "<|end|>");
        put(w, newline);
    }
    if (w->answer) role_open(w, "assistant", newline);
    return TERN_OK;
}

static tern_status zephyr(writer *w) {
    /* In some only the assistant's turns are closed. */
    const char *user = strstr(w->source, "<|user|>"), *end = strstr(user, "}}"),
               *mark = strstr(user, "eos_token"), *text = strstr(user, "<|endoftext|>");
    bool close_all = !end || (mark && mark < end) || (text && text < end);
    for (size_t i = 0; i < w->n_msgs; i++) {
        role_open(w, w->msgs[i].role, "\n");
        say(w, w->msgs[i].content);
        if (close_all || is_role(&w->msgs[i], "assistant")) {
            if (mark || !text) put_eos(w);
            else put(w, "<|endoftext|>");
        }
        put(w, "\n");
    }
    if (w->answer) role_open(w, "assistant", "\n");
    return TERN_OK;
}

/* ---- which one ---------------------------------------------------------------------------------- */

/* The first whose marks are all in the template. More particular families come first. */
static const struct {
    const char *marks[3];
    tern_status (*render)(writer *w);
} families[] = {
    {{"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, llama3},
    {{"<start_of_turn>", "<end_of_turn>"}, gemma},
    {{"<|assistant|>", "<|end|>"}, phi3},
    {{"<|user|>", "<|assistant|>"}, zephyr},
    {{"[INST]", "<<SYS>>"}, llama2},
    {{"[INST]", "[/INST]"}, mistral},
    {{"<|im_start|>", "<|im_end|>"}, chatml},
};

tern_status tn_chat_segments(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                             bool add_generation_prompt, tn_segments *out, tern_error *err) {
    assert(t && out && (msgs || !n_msgs));
    const char *source = t->chat_template;
    TN_FAIL_IF(!source || !*source, err, TERN_E_UNSUPPORTED,
               "the model has no chat template; give it plain text");
    for (size_t i = 0; i < n_msgs; i++) {
        TN_FAIL_IF(!msgs[i].role || !msgs[i].content, err, TERN_E_INVALID,
                   "message %zu lacks its role or content", i);
        bool known =
            is_role(&msgs[i], "system") || is_role(&msgs[i], "user") || is_role(&msgs[i], "assistant");
        TN_FAIL_IF(!known, err, TERN_E_INVALID,
                   "message %zu is of role \"%.32s\"; known are system, user and assistant", i, msgs[i].role);
    }
    writer w = {.t = t,
                .source = source,
                .msgs = msgs,
                .n_msgs = n_msgs,
                .answer = add_generation_prompt,
                .out = out,
                .err = err};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        bool all = true;
        for (int k = 0; k < 3 && families[i].marks[k]; k++) all &= has(&w, families[i].marks[k]);
        /* Phi-4 separates role and text by a token of its own */
        if (!all || has(&w, "<|im_sep|>")) continue;
        TN_TRY(families[i].render(&w));
        TN_FAIL_IF(out->failed, err, TERN_E_MEMORY, "out of memory for the conversation");
        return TERN_OK;
    }
    char head[61]; /* one line of it, whole characters */
    size_t n = 0;
    for (; n < 60 && source[n]; n++) head[n] = (uint8_t)source[n] < ' ' ? ' ' : source[n];
    while (n && source[n] && ((uint8_t)source[n] & 0xc0) == 0x80) n--;
    head[n] = 0;
    return tn_fail(err, TERN_E_UNSUPPORTED, "unknown chat template: %s%s", head, source[n] ? "..." : "");
}

tern_status tn_chat_render(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           bool add_generation_prompt, char *buf, size_t cap, size_t *n_bytes,
                           tern_error *err) {
    assert(n_bytes && (buf || !cap));
    *n_bytes = 0;
    tn_segments text;
    tn_segments_init(&text, t->ctx);
    tern_status st = tn_chat_segments(t, msgs, n_msgs, add_generation_prompt, &text, err);
    if (st == TERN_OK) {
        *n_bytes = text.n_bytes;
        if (text.n_bytes && cap) memcpy(buf, text.text, text.n_bytes < cap ? text.n_bytes : cap);
        if (text.n_bytes > cap)
            st = tn_fail(err, TERN_E_LIMIT, "the conversation takes %zu bytes, room for %zu", text.n_bytes,
                         cap);
    }
    tn_segments_free(&text);
    return st;
}

tern_status tn_chat_tokens(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           bool add_generation_prompt, int32_t *ids, size_t cap, size_t *n_ids,
                           tern_error *err) {
    assert(n_ids && (ids || !cap));
    *n_ids = 0;
    tn_segments text;
    tn_segments_init(&text, t->ctx);
    tern_status st = tn_chat_segments(t, msgs, n_msgs, add_generation_prompt, &text, err);
    if (st == TERN_OK) st = tn_tokenize_segments(t, &text, true, ids, cap, n_ids, err);
    tn_segments_free(&text);
    return st;
}
