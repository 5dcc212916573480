/* tern run - answer one prompt. */
#include "cli/answer.h"
#include "session/stats.h"
#include "cli/args.h"
#include "cli/best_of.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/grammar_args.h"
#include "cli/looking.h"
#include "documents/file_text.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/stats.h"

#include "base/clock.h"
#include "base/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A request is what was asked for. */
typedef struct request {
    model_args ma;
    const char
        *words[LOOK_MOST + 4]; /* MODEL, TEXT and pictures, unless -m and -p say them; - is standard input */
    const char *prompt, *file, *system, *load, *save, *store, *trace, *template;
    bool gantt, chat, raw, json, explain, logprobs;
    int32_t stats;
    bool by_words; /* the short way: through the chat template where there is one */
    arg_list stop;
    grammar_args ga;
    best_of_args best;
    char *source; /* of --chat-template */
    looking look;
    const char *shown[LOOK_MOST]; /* words that name pictures, PDF files or pages of them */
    int n_shown;
    const char *pdf; /* the first of them that is a PDF file; NULL: none is */
    char *piped;     /* a picture that came by standard input; NULL: none */
    size_t n_piped;
    struct tn_reader *reader; /* of pictures; NULL: there are none */
} request;

/* An outcome is what became of it. */
typedef struct outcome {
    tern_engine *e;
    tern_session *s;
    int32_t *ids;
    char *text; /* the prompt */
    size_t n_text, n_ids;
    answer answer;
    best_of best;
    bool told; /* why it failed was printed */
    double loaded_s, prefill_s;
    tern_generate_result res;
    tn_stats stats;
    tn_ctx ctx;      /* of the meter */
    tn_power *power; /* NULL: nobody asks */
} outcome;

/* Finds MODEL [PICTURE...] [TEXT] [-] in whatever is not said by options. */
static int sort_words(const command *c, request *r) {
    bool input = false;
    for (int i = 0; r->words[i]; i++) {
        const char *w = r->words[i];
        bool picture;
        if (!strcmp(w, "-")) {
            if (input || r->file) return cli_usage_error(c, "one text comes from standard input or a file");
            input = true;
        } else if (!r->ma.model) {
            r->ma.model = w;
        } else if ((picture = cli_is_picture(w)) || cli_is_pdf(w)) {
            if (r->n_shown == LOOK_MOST)
                return cli_usage_error(c, "a question has up to %d pictures and documents", LOOK_MOST);
            if (!r->pdf && !picture) r->pdf = w;
            r->shown[r->n_shown++] = w;
            r->by_words = true;
        } else if (!r->prompt) {
            r->prompt = w;
            r->by_words = true;
        } else {
            const bool is_file = !access(r->prompt, F_OK);
            return cli_usage_error(c, "unexpected argument '%s': %s '%s'%s, so it is the prompt", w,
                                   is_file ? "the file" : "there is no file", r->prompt,
                                   is_file ? " is not a picture that can be read" : "");
        }
    }
    if (input) {
        r->file = "-";
        r->by_words = true;
    }
    return -1;
}

static int parse(int argc, char **argv, request *r) {
    cli_model_args_defaults(&r->ma, TN_IN_RUN);
    const arg_spec specs[] = {
        MODEL_ARGS(r->ma),
        PACK_ARG(r->ma),
        {"prompt", 'p', "TEXT", ARG_STR, &r->prompt, 0, 0, "the prompt"},
        {"file", 'f', "FILE", ARG_STR, &r->file, 0, 0,
         "read the prompt from FILE (-: standard input); with -p, the text of -p follows it"},
        {"chat", 0, NULL, ARG_FLAG | ARG_MORE, &r->chat, 0, 0,
         "also apply the chat template to the prompt of -p and -f"},
        {"raw", 0, NULL, ARG_FLAG, &r->raw, 0, 0, "plain text: no chat template"},
        {"system", 0, "TEXT", ARG_STR, &r->system, 0, 0, "system message of the chat template"},
        TEMPLATE_ARG(r->template),
        {"stop", 0, "TEXT", ARG_LIST | ARG_ANSWER, &r->stop, 0, 0, "stop before this text; may be repeated"},
        GRAMMAR_ARGS(r->ga),
        BEST_OF_ARGS(r->best),
        {"store", 0, "FILE", ARG_STR | ARG_MORE, &r->store, 0, 0,
         "keep the conversation in FILE and draft from those kept there (default: none)"},
        {"load-session", 0, "FILE", ARG_STR | ARG_MORE, &r->load, 0, 0,
         "start from a saved session, and evaluate only what differs"},
        {"save-session", 0, "FILE", ARG_STR | ARG_MORE, &r->save, 0, 0, "save the session at the end"},
        {"trace", 0, "FILE", ARG_STR | ARG_MORE, &r->trace, 0, 0,
         "packages: write the prefill's tasks as Chrome trace JSON (Perfetto)"},
        {"gantt", 0, NULL, ARG_FLAG | ARG_MORE, &r->gantt, 0, 0,
         "packages: draw the prefill's tasks on standard error"},
        {"json", 0, NULL, ARG_FLAG | ARG_ANSWER, &r->json, 0, 0, "print one JSON object instead of the text"},
        {"logprobs", 0, NULL, ARG_FLAG | ARG_MORE, &r->logprobs, 0, 0,
         "with --json: every token with its log-probability"},
        {"stats", 0, NULL, ARG_LEVEL | ARG_ANSWER, &r->stats, 0, 0,
         "print one line on standard error: tokens, speed, time to first token, memory (--stats=all: "
         "everything that was counted)"},
        {"explain", 0, NULL, ARG_FLAG | ARG_ANSWER, &r->explain, 0, 0,
         "print on standard error what each mechanism did and saved, or why it was off; with --json, as part "
         "of the object"},
        {0},
    };
    const command c = {
        "run", "MODEL [PICTURE...] [TEXT] [-] [OPTIONS]  or  -m MODEL (-p TEXT | -f FILE) [OPTIONS]",
        "Answer one prompt. The answer goes to standard output, everything else to standard "
        "error.\nPICTURE is a file (PNG, JPEG, WebP, a scanned PDF; FILE.pdf#2-4: these pages) "
        "that TEXT asks about; the model needs a picture encoder.\nTEXT goes through the model's chat "
        "template if it has one. - reads "
        "standard input: the prompt, or the document that TEXT asks about.",
        specs, LOOK_MOST + 3};
    int rc = cli_args_parse(&c, argc, argv, r->words);
    if (rc < 0) rc = sort_words(&c, r);
    if (rc >= 0) return rc;
    if (!r->ma.model) return cli_usage_error(&c, "MODEL is required");
    cli_args_model_path(&r->ma);
    if (!r->prompt && !r->file)
        return cli_usage_error(&c, "a prompt is required: TEXT, -p TEXT, -f FILE, or - for standard input; "
                                   "tern chat talks");
    if (r->raw && (r->chat || r->system || r->template))
        return cli_usage_error(&c, "--raw excludes --chat, --system and --chat-template");
    if (r->template && !r->chat && !r->by_words)
        return cli_usage_error(&c, "--chat-template goes with --chat");
    if (r->system && !r->chat && !r->by_words) return cli_usage_error(&c, "--system goes with --chat");
    rc = cli_best_of_check(&c, &r->best, r->ma.o.generate.sampling.temperature);
    if (rc >= 0) return rc;
    if (r->logprobs && (!r->json || r->best.n))
        return cli_usage_error(&c, "--logprobs goes with --json, and not with --best-of");
    r->ma.o.trace = r->trace || r->gantt;
    if ((r->load || r->save) && !r->ma.pack)
        r->ma.packs = false; /* a session goes with one form of the model */
    return -1;
}

static bool too_many(void) { return cli_failed_text("a question has up to %d pictures", LOOK_MOST), false; }

/* Pictures and documents in the order of their words, then what was piped in. What PDF files say goes before the question;
 * pages of those without text are pictures. */
static bool read_shown(request *r, outcome *o) {
    char *all = NULL, *text = NULL, *joined;
    for (int i = 0; i <= r->n_shown; i++) {
        const bool question = i == r->n_shown, picture = !question && !cli_is_pdf(r->shown[i]);
        if (picture && !cli_looking_add(&r->look, r->shown[i])) return free(all), too_many();
        if (picture) continue;
        if (question) text = o->text;
        else if (!cli_looking_add_pdf(&r->look, r->reader, r->shown[i], &text)) return free(all), false;
        for (char *p = question ? NULL : text; p && (p = strchr(p, '\f'));) *p = '\n'; /* between pages */
        if (!text || !r->pdf) continue;
        const int n = asprintf(&joined, "%s%s%s", all ? all : "", all ? "\n\n" : "", text);
        free(all);
        free(text);
        if (question) o->text = NULL;
        if (n < 0) return cli_failed_text("no memory for the prompt"), false;
        all = joined;
        o->n_text = (size_t)n;
    }
    if (all) o->text = all;
    if (r->piped && !cli_looking_add_bytes(&r->look, "-", r->piped, r->n_piped)) return too_many();
    r->piped = NULL; /* the looking's */
    return true;
}

/* Reads the file's text, then adds the prompt's. */
static bool read_prompt(request *r, outcome *o) {
    if (r->file && !(o->text = cli_read_text_file(r->file, &o->n_text))) return false;
    if (o->text && r->by_words && tn_is_pdf(o->text, o->n_text))
        return cli_failed_text("a PDF file came in by -: name the file instead"), false;
    if (o->text && r->by_words && !strcmp(r->file, "-") && cli_is_picture_bytes(o->text, o->n_text)) {
        if (!r->prompt) return cli_failed_text("a picture came in, and no question about it: TEXT"), false;
        r->piped = o->text;
        r->n_piped = o->n_text;
        o->text = NULL;
        o->n_text = 0;
    }
    if (!r->prompt) return true;
    if (r->by_words && r->file && !strcmp(r->file, "-") && !o->n_text && !r->piped)
        return cli_failed_text("nothing came in by standard input (-)"), false;
    const char *between = r->by_words && o->n_text ? "\n\n" : "";
    size_t n = o->n_text + strlen(between) + strlen(r->prompt);
    char *joined = realloc(o->text, n + 1);
    if (!joined) {
        cli_failed_text("no memory for the prompt");
        return false;
    }
    memcpy(joined + o->n_text, between, strlen(between));
    memcpy(joined + n - strlen(r->prompt), r->prompt, strlen(r->prompt) + 1);
    o->text = joined;
    o->n_text = n;
    return true;
}

/* A question about pictures. */
static bool tokenise_looking(request *r, outcome *o) {
    bool raw = r->raw || (!r->source && !r->chat && !r->system && !tern_has_chat_template(o->e));
    tern_error why;
    if (r->pdf && !tn_sight_can(o->e, &why))
        return cli_failed_text("%s: its pages are pictures, and %s", r->pdf, why.message), false;
    if (!cli_looking_at(&r->look, o->e, r->reader)) return false;
    if (cli_looking_prompt(&r->look, o->e, r->system, o->text, r->source, raw, &o->ids, &o->n_ids, &why) !=
        TERN_OK)
        return cli_failed(&why), false;
    if (o->ids && raw && !r->raw)
        fputs("tern: no chat template: the prompt is read as plain text (--raw)\n", stderr);
    return o->ids;
}

static bool tokenise_prompt(request *r, outcome *o) {
    if (r->look.n) return tokenise_looking(r, o);
    bool plain = !r->chat && (!r->by_words || r->raw);
    if (!plain) {
        tern_message msgs[2];
        size_t n_msgs = 0;
        if (r->system) msgs[n_msgs++] = (tern_message){"system", r->system};
        msgs[n_msgs++] = (tern_message){"user", o->text};
        plain = !r->chat && !r->system && !r->source && !tern_has_chat_template(o->e);
        if (!plain) o->ids = cli_prompt_chat(o->e, msgs, n_msgs, r->source, &o->n_ids);
        if (plain) fputs("tern: no chat template: the prompt is read as plain text (--raw)\n", stderr);
    }
    if (plain) o->ids = cli_prompt_ids(o->e, o->text, o->n_text, !(r->by_words && r->file), &o->n_ids);
    if (!o->ids) return false;
    if (!o->n_ids) cli_failed_text("the prompt is empty: it has no tokens");
    return o->n_ids > 0;
}

/* The best of several becomes the answer. */
static tern_status best_answer(const request *r, outcome *o, const tern_session_options *so,
                               const tern_generate_options *g, tern_error *err) {
    tern_status st = cli_best_of(&r->best, o->e, o->s, so, g, &o->best, err);
    if (st != TERN_OK) return st;
    const best_of_answer *b = &o->best.all[o->best.chosen];
    o->res = b->res;
    (void)cli_answer_on_token(&o->answer, -1, b->text.text ? b->text.text : "", b->text.n, 0);
    o->answer.first_s = b->text.first_s;
    return TERN_OK;
}

/* The encoder's weights are not needed after this. */
static tern_status see(request *r, outcome *o, tern_error *err) {
    tn_look *looks[LOOK_MOST];
    size_t n = cli_looking_all(&r->look, looks);
    tern_status st = cli_looking_encode(looks, n, o->s, err);
    tn_sight_rest(o->e);
    return st;
}

static tern_status compute(request *r, outcome *o, tern_error *err) {
    tern_session_options so = r->ma.o.session;
    so.store = r->store;
    tern_status st = tern_session_open(o->e, &so, &o->s, err);
    if (st != TERN_OK) return st;
    if (!cli_prompt_fits(o->e, o->s, o->n_ids)) {
        o->told = true;
        return TERN_E_LIMIT;
    }
    cli_interrupts_cancel(o->s);
    if (r->load) st = tern_session_load(o->s, r->load, err);
    double t0 = tn_now_s();
    if (st == TERN_OK && (r->stats || r->json || r->trace)) {
        tn_ctx_init(&o->ctx, NULL);
        st = tn_power_open(&o->ctx, tn_machine_root(), &o->power, err);
        if (st == TERN_OK) tn_power_start(o->power);
    }
    if (st == TERN_OK && r->look.n) st = see(r, o, err);
    if (st == TERN_OK) st = cli_prefill_shown(o->s, o->ids, o->n_ids, err);
    o->prefill_s = tn_now_s() - t0;
    tern_generate_options g = r->ma.o.generate;
    g.stop = r->stop.n ? r->stop.items : NULL;
    g.on_token = cli_answer_on_token;
    g.no_logprobs = !r->logprobs;
    g.user = &o->answer;
    if (st == TERN_OK && r->best.n) st = best_answer(r, o, &so, &g, err);
    else if (st == TERN_OK) st = tern_session_generate(o->s, &g, &o->res, err);
    cli_interrupts_cancel(NULL);
    if (o->power) tn_power_stop(o->power);
    if (st == TERN_OK && o->answer.no_memory) {
        snprintf(err->message, sizeof err->message, "no memory to keep the answer");
        st = TERN_E_MEMORY;
    }
    return st;
}

static int write_files(const request *r, outcome *o) {
    tern_error err;
    tn_session_stats(o->s, &o->stats);
    if (r->trace && o->power && cli_power_trace(o->power, o->s, &err) != TERN_OK) return cli_failed(&err);
    if (r->trace && tern_session_write_trace(o->s, r->trace, &err) != TERN_OK) return cli_failed(&err);
    if (r->gantt && tern_session_write_gantt(o->s, STDERR_FILENO, 0, &err) != TERN_OK)
        return cli_failed(&err);
    if (r->save && tern_session_save(o->s, r->save, &err) != TERN_OK) return cli_failed(&err);
    return EXIT_OK;
}

static double prompt_speed(const outcome *o) {
    return o->prefill_s > 0 ? (double)o->n_ids / o->prefill_s : 0;
}
static double answer_speed(const outcome *o) {
    return o->res.n_tokens > 1 && o->res.decode_s > 0 ? (o->res.n_tokens - 1) / o->res.decode_s : 0;
}

static int print_json(const request *r, outcome *o) {
    const answer *a = &o->answer;
    const tn_stats *ts = &o->stats;
    json_t *j = tn_json_pack("{s:s%, s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:I}", "text", a->text ? a->text : "",
                             a->n, "tokens", (int)o->res.n_tokens, "prompt_tokens", (int)o->n_ids, "stop",
                             cli_stop_reason_text(o->res.reason), "load_ms", o->loaded_s * 1e3, "ttft_ms",
                             (a->first_s > 0 ? a->first_s : o->loaded_s + o->prefill_s) * 1e3,
                             "prefill_tokens_per_second", prompt_speed(o), "decode_tokens_per_second",
                             answer_speed(o), "peak_rss_bytes", (json_int_t)tn_process_peak_bytes());
    if (r->logprobs) tn_json_set(&j, "token_logprobs", json_incref(a->tokens));
    tn_json_set(&j, "kv_bytes", json_integer((json_int_t)ts->kv_bytes));
    tn_json_set(&j, "draft", cli_draft_json(o->s, o->prefill_s, o->res.decode_s, o->res.n_tokens));
    if (ts->wall_s > 0) tn_json_set(&j, "prefill", cli_prefill_json(ts));
    if (ts->attn_rows) tn_json_set(&j, "attention", cli_attention_json(ts));
    if (ts->experts_bytes) tn_json_set(&j, "experts", cli_experts_json(ts));
    if (ts->n_switched) tn_json_set(&j, "switching", cli_switching_json(ts));
    if (o->power) {
        tn_power_total t = tn_power_total_of(o->power);
        tn_json_set(&j, "power", cli_power_json(&t));
    }
    if (r->explain) tn_json_set(&j, "explain", cli_explain_json(o->s, NULL));
    if (r->look.n) tn_json_set(&j, "pictures", cli_looking_json(&r->look));
    if (r->best.n) tn_json_set(&j, "best_of", cli_best_of_json(&r->best, &o->best));
    return cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
}

static void print_stats(const outcome *o, bool all) {
    if (!all) {
        cli_stats_line(o->res.n_tokens, answer_speed(o), o->answer.first_s);
        return;
    }
    if (o->stats.wall_s > 0) cli_prefill_print(&o->stats);
    cli_draft_print(o->s, o->prefill_s, o->res.decode_s, o->res.n_tokens);
    fprintf(stderr,
            "prompt %zu tokens at %.1f/s, answer %d tokens at %.1f/s (stop: %s), first token %.0f ms "
            "after start, loaded in %.0f ms, peak memory %.1f MiB\n",
            o->n_ids, prompt_speed(o), o->res.n_tokens, answer_speed(o), cli_stop_reason_text(o->res.reason),
            o->answer.first_s * 1e3, o->loaded_s * 1e3, (double)tn_process_peak_bytes() / 1048576);
    if (!o->power) return;
    tn_power_total t = tn_power_total_of(o->power);
    cli_power_print(&t);
}

static int run(request *r, outcome *o) {
    tern_error err;
    if (!cli_prompt_template(r->template, &r->source) || !cli_grammar_options(&r->ga, &r->ma.o.generate) ||
        !read_prompt(r, o))
        return EXIT_FAILED;
    tn_picture_provide();
    if ((r->n_shown || r->piped) && tn_reader_open(1, TN_READER_WAIT_S, &r->reader, &err) != TERN_OK)
        return cli_failed(&err); /* while there is one thread */
    if (!read_shown(r, o)) return EXIT_FAILED;
    cli_interrupts_cancel(NULL);
    int rc = cli_open_engine(NULL, &r->ma, &o->e);
    if (rc >= 0) return rc;
    o->loaded_s = tn_process_age_s();
    tern_model_info info;
    tern_engine_info(o->e, &info);
    if (r->ma.o.trace && !info.package)
        return cli_failed_text(
            "--trace and --gantt show the tasks of a package, and %s is none (tern pack makes one)",
            r->ma.model);
    cli_use_context(&r->ma, o->e);
    if (!tokenise_prompt(r, o)) return EXIT_FAILED;
    if (compute(r, o, &err) != TERN_OK) {
        if (o->answer.n && !r->json)
            putchar('\n'); /* what there is of the answer ends on a line of its own */
        fflush(stdout);
        return o->told ? EXIT_FAILED : cli_failed(&err);
    }
    const tern_generate_options *g = &r->ma.o.generate;
    if (!r->json) putchar('\n');
    fflush(stdout); /* before what goes to standard error: both may go to one terminal */
    rc = write_files(r, o);
    if (rc == EXIT_OK && r->json) rc = print_json(r, o);
    if (rc != EXIT_OK) return rc;
    fflush(stdout);
    cli_answer_tell_cut(o->e, o->s, o->res.reason, o->res.n_tokens, &o->answer, g);
    if (r->best.n && !r->json) cli_best_of_tell(&r->best, &o->best);
    if (r->stats) print_stats(o, r->stats > 1);
    if (r->explain && r->look.n) cli_looking_print(&r->look);
    if (r->explain) cli_explain_print(o->s, NULL);
    return EXIT_OK;
}

int cmd_run(int argc, char **argv) {
    request r = {0};
    outcome o = {0};
    int rc = parse(argc, argv, &r);
    if (rc >= 0) return rc;
    o.answer.quiet = r.json;
    o.answer.tokens = r.logprobs ? json_array() : NULL;
    if (r.logprobs && !o.answer.tokens) return cli_failed_text("no memory for the answer");
    rc = run(&r, &o);
    cli_answer_free(&o.answer);
    cli_best_of_free(&o.best);
    cli_grammar_args_free(&r.ga);
    cli_looking_free(&r.look);
    free(r.piped);
    tn_reader_close(&r.reader);
    free(r.source);
    free(o.ids);
    free(o.text);
    tn_power_close(&o.power);
    tern_session_close(&o.s);
    tern_engine_close(&o.e);
    return rc;
}
