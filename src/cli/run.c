/* tern run - answer one prompt. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/grammar_args.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/sampling_args.h"
#include "cli/stats.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct output {
    bool json, logprobs, no_memory;
    char *text; /* the whole answer, for --json */
    size_t n, cap;
    json_t *tokens;
    double first_s; /* process age at the first token */
} output;

static tern_session *interrupted; /* the one session a signal handler may cancel */

static void on_interrupt(int sig) {
    (void)sig;
    if (interrupted) tern_session_cancel(interrupted);
}

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    output *o = user;
    if (o->first_s <= 0) o->first_s = process_age_s();
    if (!o->json) {
        put_answer(text, n);
        fflush(stdout);
        return !ferror(stdout);
    }
    if (o->n + n + 1 > o->cap) {
        size_t cap = (o->n + n + 1) * 2;
        char *more = realloc(o->text, cap);
        if (!more) {
            o->no_memory = true;
            return false;
        }
        o->text = more;
        o->cap = cap;
    }
    memcpy(o->text + o->n, text, n);
    o->text[o->n += n] = 0;
    if (o->logprobs && token >= 0)
        tn_json_append(&o->tokens, tn_json_pack("{s:i, s:f}", "id", (int)token, "logprob", (double)logprob));
    return true;
}

static const char *reason_text(tern_stop_reason r) {
    switch (r) {
    case TERN_STOP_LENGTH: return "length";
    case TERN_STOP_END: return "end";
    case TERN_STOP_STRING: return "stop";
    case TERN_STOP_CALLBACK: return "callback";
    case TERN_STOP_CONTEXT: return "context";
    }
    return "?";
}

int cmd_run(int argc, char **argv) {
    model_args ma = {0};
    const char *prompt = NULL, *file = NULL, *system = NULL, *template = NULL, *load = NULL, *save = NULL,
               *draft = "auto", *store = NULL;
    int32_t n_ctx = 0;
    const char *trace = NULL;
    bool gantt = false;
    bool chat = false, json = false, stats = false, logprobs = false;
    arg_list stop = {0};
    tern_generate_options g;
    grammar_args ga = {0};
    tern_generate_options_defaults(&g);
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        {"prompt", 'p', "TEXT", ARG_STR, &prompt, 0, 0, "the prompt"},
        {"file", 'f', "FILE", ARG_STR, &file, 0, 0,
         "read the prompt from FILE (-: standard input); with -p, the text of -p follows it"},
        {"n-predict", 'n', "N", ARG_INT, &g.max_tokens, -1, 1e9,
         "tokens to generate at most, -1 = until the end (default 128)"},
        {"ctx-size", 'c', "N", ARG_INT, &n_ctx, 1, 1 << 24,
         "context in tokens (default: the smaller of 4096 and the model's)"},
        {"chat", 0, NULL, ARG_FLAG, &chat, 0, 0, "wrap the prompt in the model's chat template"},
        {"system", 0, "TEXT", ARG_STR, &system, 0, 0, "system message (with --chat)"},
        TEMPLATE_ARG(template),
        {"stop", 0, "TEXT", ARG_LIST, &stop, 0, 0, "stop before this text; may be repeated"},
        {"ignore-eos", 0, NULL, ARG_FLAG, &g.ignore_end, 0, 0, "go on after the end-of-text token"},
        SAMPLING_ARGS(g.sampling),
        DRAFT_ARGS(draft, g),
        GRAMMAR_ARGS(ga),
        {"store", 0, "FILE", ARG_STR, &store, 0, 0,
         "keep the conversation in FILE and draft from those kept there (default: none)"},
        {"load-session", 0, "FILE", ARG_STR, &load, 0, 0,
         "start from a saved session; only what differs from it is evaluated"},
        {"save-session", 0, "FILE", ARG_STR, &save, 0, 0, "save the session at the end"},
        {"trace", 0, "FILE", ARG_STR, &trace, 0, 0,
         "packages: write the prefill's tasks as Chrome trace JSON (Perfetto)"},
        {"gantt", 0, NULL, ARG_FLAG, &gantt, 0, 0, "packages: draw the prefill's tasks on standard error"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print one JSON object instead of the text"},
        {"logprobs", 0, NULL, ARG_FLAG, &logprobs, 0, 0, "with --json: every token with its log-probability"},
        {"stats", 0, NULL, ARG_FLAG, &stats, 0, 0, "print times and memory on standard error"},
        {0},
    };
    const command c = {
        "run", "-m MODEL (-p TEXT | -f FILE) [OPTIONS]",
        "Answer one prompt. The answer goes to standard output, everything else to standard error.", specs,
        0};
    const char *words[1];
    int rc = args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (!prompt && !file) return usage_error(&c, "a prompt is required: -p TEXT or -f FILE");
    if (system && !chat) return usage_error(&c, "--system goes with --chat");
    if (template && !chat) return usage_error(&c, "--chat-template goes with --chat");
    if (logprobs && !json) return usage_error(&c, "--logprobs goes with --json");

    tern_engine *e = NULL;
    tern_session *s = NULL;
    int32_t *ids = NULL;
    char *text = NULL, *source = NULL;
    size_t n_text = 0, n_ids = 0;
    output out = {.json = json, .logprobs = logprobs, .tokens = json_array()};
    tern_error err;
    rc = EXIT_FAILED;
    if (!prompt_template(template, &source)) goto out;
    if (!grammar_options(&ga, &g)) goto out;
    if (file && !(text = read_text_file(file, &n_text))) goto out;
    if (prompt) {
        char *joined = realloc(text, n_text + strlen(prompt) + 1);
        if (!joined) {
            failed_text("no memory for the prompt");
            goto out;
        }
        text = joined;
        memcpy(text + n_text, prompt, strlen(prompt) + 1);
        n_text += strlen(prompt);
    }
    ma.trace = trace || gantt;
    int opened = open_engine(&c, &ma, &e);
    if (opened >= 0) {
        rc = opened;
        goto out;
    }
    double loaded_s = process_age_s();
    if (chat) {
        tern_message msgs[2];
        size_t n_msgs = 0;
        if (system) msgs[n_msgs++] = (tern_message){"system", system};
        msgs[n_msgs++] = (tern_message){"user", text};
        ids = prompt_chat(e, msgs, n_msgs, source, &n_ids);
    } else {
        ids = prompt_ids(e, text, n_text, true, &n_ids);
    }
    if (!ids) goto out;
    if (!n_ids) {
        rc = failed_text("the prompt is empty: it has no tokens");
        goto out;
    }
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n_ctx;
    so.draft = draft;
    so.store = store;
    if (tern_session_open(e, &so, &s, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    interrupted = s;
    signal(SIGINT, on_interrupt);
    if (load && tern_session_load(s, load, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    double t0 = tn_now_s();
    if (tern_session_prefill(s, ids, n_ids, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    double prefill_s = tn_now_s() - t0;
    g.stop = stop.n ? stop.items : NULL;
    g.on_token = on_token;
    g.no_logprobs = !logprobs;
    g.user = &out;
    tern_generate_result res;
    if (tern_session_generate(s, &g, &res, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    if (out.no_memory) {
        rc = failed_text("no memory for the answer");
        goto out;
    }
    tern_stats ts;
    tern_session_stats(s, &ts);
    if (ma.trace && ts.wall_s <= 0 && n_ids > 32) {
        rc = failed_text("--trace and --gantt show the tasks of a package; %s is a float model", ma.model);
        goto out;
    }
    if (trace && tern_session_write_trace(s, trace, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    if (gantt && tern_session_write_gantt(s, STDERR_FILENO, 0, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    if (save && tern_session_save(s, save, &err) != TERN_OK) {
        rc = failed(&err);
        goto out;
    }
    interrupted = NULL;
    double pp = prefill_s > 0 ? (double)n_ids / prefill_s : 0;
    double tg = res.n_tokens > 1 && res.decode_s > 0 ? (res.n_tokens - 1) / res.decode_s : 0;
    if (json) {
        json_t *j = tn_json_pack(
            "{s:s%, s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:I}", "text", out.text ? out.text : "", out.n,
            "tokens", (int)res.n_tokens, "prompt_tokens", (int)n_ids, "stop", reason_text(res.reason),
            "load_ms", loaded_s * 1e3, "ttft_ms",
            (out.first_s > 0 ? out.first_s : loaded_s + prefill_s) * 1e3, "prefill_tokens_per_second", pp,
            "decode_tokens_per_second", tg, "peak_rss_bytes", (json_int_t)peak_rss_bytes());
        if (logprobs) tn_json_set(&j, "token_logprobs", json_incref(out.tokens));
        tn_json_set(&j, "kv_bytes", json_integer((json_int_t)ts.kv_bytes));
        tn_json_set(&j, "draft", draft_json(s, prefill_s, res.decode_s, res.n_tokens));
        if (ts.wall_s > 0) tn_json_set(&j, "prefill", prefill_json(&ts));
        if (ts.attn_rows) tn_json_set(&j, "attention", attention_json(&ts));
        if (ts.n_switched) tn_json_set(&j, "switching", switching_json(&ts));
        if ((rc = emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6))) != EXIT_OK) goto out;
    } else {
        putchar('\n');
    }
    if (stats && ts.wall_s > 0) prefill_print(&ts);
    if (stats) draft_print(s, prefill_s, res.decode_s, res.n_tokens);
    if (stats) {
        fprintf(stderr,
                "prompt %zu tokens at %.1f/s, answer %d tokens at %.1f/s (stop: %s), first token %.0f ms "
                "after start, loaded in %.0f ms, peak memory %.1f MiB\n",
                n_ids, pp, res.n_tokens, tg, reason_text(res.reason), out.first_s * 1e3, loaded_s * 1e3,
                (double)peak_rss_bytes() / 1048576);
    }
    rc = EXIT_OK;
out:
    interrupted = NULL;
    json_decref(out.tokens);
    free(out.text);
    grammar_args_free(&ga);
    free(ids);
    free(text);
    free(source);
    tern_session_close(&s);
    tern_engine_close(&e);
    return rc;
}
