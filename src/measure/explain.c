#include "measure/explain.h"

#include "session/session.h"
#include "measure/tune.h"
#include "model/streamed.h"
#include "package/loader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct facts {
    const tern_session *s;
    const tern_engine *e;
    tn_stats stats;
    tn_draft_stats drafts;
    uint64_t n_tasks, n_ahead, n_beside; /* of waves, as tn_sched_counts has them */
    bool was_loaded;                     /* before the request */
} facts;

__attribute__((format(printf, 3, 4))) static void say(tn_explained *x, bool on, const char *format, ...) {
    va_list args;
    va_start(args, format);
    x->on = on;
    (void)vsnprintf(x->text, sizeof x->text, format, args);
    va_end(args);
}

static void counted(tn_explained *x, uint64_t saved, uint64_t of, const char *unit) {
    x->saved = saved;
    x->of = of;
    x->unit = unit;
}

/* EdgeFlow, on a file as it is. */
static void explain_file(const facts *f, tn_explained *x) {
    const tn_stats *t = &f->stats;
    const tern_engine *e = f->e;
    if (!e->model->streamed) {
        if (e->model->file_experts)
            say(x, false,
                "all but the experts was read before the first token; they are read when they are chosen");
        else if (e->not_streamed)
            say(x, false, "the file was read before the first token: %s", e->not_streamed);
        else say(x, false, "a file of floats is read before the first token; a package streams (tern pack)");
        return;
    }
    if (f->was_loaded) {
        say(x, false, "the weights were in memory");
        return;
    }
    tn_streamed_stats l;
    tn_streamed_stats_get(f->e->model->streamed, &l);
    say(x, true, "%.0f MB came by %s in %.0f ms, layer by layer; turning their blocks took %.0f ms",
        (double)t->read_bytes * 1e-6, t->read_method, t->read_s * 1e3, t->unpack_s * 1e3);
    counted(x, l.n_read_bytes - l.n_first_bytes, l.n_read_bytes, "bytes read beside the first prompt's work");
}

/* EdgeFlow: what is read after the first product could begin hides beside the work. */
static void explain_start(const facts *f, tn_explained *x) {
    const tn_stats *t = &f->stats;
    x->mechanism = "cold start";
    if (!f->e->npu) {
        explain_file(f, x);
        return;
    }
    if (f->was_loaded) {
        say(x, false, "the weights were in memory");
        return;
    }
    double mb = (double)t->read_bytes * 1e-6;
    if (t->loaded_s <= 0 || !t->read_method) {
        say(x, false, "%.0f MB were loaded before the prompt (set load=stream to hide that)", mb);
        return;
    }
    tn_loader_stats l;
    tn_loader_stats_get(f->e->npu->loader, &l);
    say(x, true, "%.0f MB came by %s in %.0f ms; weights %s", mb, t->read_method, t->loaded_s * 1e3,
        f->e->npu->packed ? "stay packed" : "are tiles of 8 bits");
    counted(x, l.n_read_bytes - l.n_first_bytes, l.n_read_bytes, "bytes read beside the first prompt's work");
}

/* llm.npu: static INT8 graphs, and the outliers in float beside them. */
static void explain_prefill(const facts *f, tn_explained *x) {
    x->mechanism = "INT8 prefill";
    if (!f->e->npu && f->e->model->scheme == TN_FLOAT_BLOCKS) {
        say(x, true,
            "on the file's own blocks, which stay what they are: rows in INT8 with a scale for %d values, as "
            "they come; "
            "static scales, and graphs, are a package's (tern pack)",
            TN_BLOCKS_ACT);
        return;
    }
    if (!f->e->npu) {
        say(x, false,
            "a model in floats runs as it is; a package has static INT8 graphs (tern pack, or --pack)");
        return;
    }
    int32_t n_paths = 0;
    for (int32_t i = 0; i < f->e->npu->n_sites; i++) n_paths += f->e->npu->sites[i].has_outliers;
    say(x, true, "scheme %s on %s, chunks of %d; %d of %d sites have a float path, which took %llu outliers",
        f->e->npu->scheme, tn_npu_device_caps(f->e->npu->dev)->name, f->e->npu->chunk, n_paths,
        f->e->npu->n_sites, (unsigned long long)f->stats.n_outliers);
}

/* llm.npu 3.4: subgraphs out of order. */
static void explain_order(const facts *f, tn_explained *x) {
    x->mechanism = "out of order";
    if (!f->e->npu) {
        say(x, false, "only packages are graphs of tasks: here all threads share each product");
    } else if (f->e->policy.kind == TN_POLICY_IN_ORDER) {
        say(x, false, "the policy is in-order");
    } else if (f->stats.wall_s <= 0) {
        say(x, false, "nothing of the prompt was long enough for a chunk");
    } else if (!f->n_ahead) {
        say(x, false, "%s; %llu of %llu tasks ran beside one of the other lane",
            f->e->policy.kind == TN_POLICY_OVERLAP
                ? "the policy is overlap: each lane keeps the chunks' order"
                : "no task could begin before an earlier one of its lane",
            (unsigned long long)f->n_beside, (unsigned long long)f->n_tasks);
    } else {
        say(x, true,
            "policy %s; %llu tasks ran beside one of the other lane; the CPU lane idled %.0f %%, the "
            "device's "
            "%.0f %%",
            tn_policy_name(f->e->policy.kind), (unsigned long long)f->n_beside, f->stats.cpu_bubble * 100,
            f->stats.npu_bubble * 100);
        counted(x, f->n_ahead, f->n_tasks, "tasks begun before an earlier one of their lane");
    }
}

/* shadowAttn */
static void explain_attention(const facts *f, tn_explained *x) {
    x->mechanism = "sparse attention";
    const tn_attn_options *a = &f->e->attention;
    const tn_npu_model *m =
        tn_engine_heads(f->e); /* NULL: a file whose attention is full whatever the text */
    if (f->stats.attn_rows) {
        const int32_t decode_from = tn_sparse_decode_from(m, &f->e->model->h, a, f->s->n_ctx);
        char decoding[64] = "";
        if (decode_from) snprintf(decoding, sizeof decoding, ", and from %d on in decoding", decode_from);
        say(x, true, "%.0f %% of the positions were attended to, in %llu rows of heads, from token %d on%s%s",
            100 * (double)f->stats.attn_selected / (double)f->stats.attn_seen,
            (unsigned long long)f->stats.attn_rows, tn_sparse_attn_from(m, a),
            a->threshold || m->tuned.attn_threshold ? "" : " (this machine is not measured yet)", decoding);
        counted(x, f->stats.attn_seen - f->stats.attn_selected, f->stats.attn_seen,
                "positions not attended to");
    } else if (a->mode == TN_ATTN_FULL) {
        say(x, false,
            f->e->npu || f->e->model->scheme == TN_FLOAT_BLOCKS
                ? "attention is full (--exact or set attention=full)"
                : "files of floats, the reference, attend in full, unless asked for (set attention=shadow)");
    } else if (tn_sparse_attn_why_not(&f->e->model->h)) {
        say(x, false, "%s", tn_sparse_attn_why_not(&f->e->model->h));
    } else if (!m->attn_scale_q && !m->attn_follows) {
        say(x, false, "this package does not know the scales of its heads: pack the model again");
    } else if (tn_sparse_attn_from(m, a) > TN_TUNE_FARTHEST && !a->threshold) {
        say(x, false, "as measured on this machine it pays for no prompt of up to %d tokens",
            TN_TUNE_FARTHEST);
    } else {
        say(x, false, "it begins at %d tokens, this prompt has %zu", tn_sparse_attn_from(m, a),
            f->s->n_prompt);
    }
}

/* sd.npu */
static void explain_drafts(const facts *f, tn_explained *x) {
    const tn_draft_stats *t = &f->drafts;
    x->mechanism = "drafts";
    if (!f->s->drafting.drafters) {
        say(x, false, "they are switched off (set draft=auto)");
    } else if (!t->n_steps) {
        say(x, false, "no token was generated");
    } else if (t->n_rows == t->n_steps && tn_draft_refused(f->s->drafting.draft)) {
        say(x, false, "%llu steps had drafts, which cost more than they save as this machine was measured",
            (unsigned long long)tn_draft_refused(f->s->drafting.draft));
    } else if (t->n_rows == t->n_steps && f->s->drafting.head) {
        say(x, false,
            "nothing known went on here, and %llu drafts of the head were tried: more would cost more than "
            "they save",
            (unsigned long long)tn_mtp_n_guesses(f->s->drafting.head));
    } else if (t->n_rows == t->n_steps) {
        say(x, false, "the text never continued as something known, so nothing was proposed");
    } else if (!t->n_accepted) {
        say(x, t->n_rows > t->n_steps,
            "%llu were verified and none was right: the answer repeats nothing known",
            (unsigned long long)(t->n_rows - t->n_steps));
    } else {
        char by_mtp[80] = "", by_head[80] = "";
        if (f->e->model->next)
            (void)snprintf(by_mtp, sizeof by_mtp, ", by the MTP layer %llu of %llu",
                           (unsigned long long)t->by_mtp_right, (unsigned long long)t->by_mtp);
        if (f->e->head)
            (void)snprintf(by_head, sizeof by_head, ", by the head %llu of %llu",
                           (unsigned long long)t->by_head_right, (unsigned long long)t->by_head);
        say(x, true,
            "%llu tokens took %llu forwards: %llu of %llu drafts were right (copied %llu of %llu, recalled "
            "%llu of %llu%s%s)",
            (unsigned long long)(t->n_steps + t->n_accepted), (unsigned long long)t->n_steps,
            (unsigned long long)t->n_accepted, (unsigned long long)(t->n_rows - t->n_steps),
            (unsigned long long)t->copied_right, (unsigned long long)t->copied,
            (unsigned long long)t->recalled_right, (unsigned long long)t->recalled, by_mtp, by_head);
        counted(x, t->n_accepted, t->n_steps + t->n_accepted, "forwards not run");
    }
}

static void explain_reuse(const facts *f, tn_explained *x) {
    x->mechanism = "prompt reuse";
    if (f->s->n_known) {
        say(x, true, "%zu of %zu tokens of the prompt were known from before", f->s->n_known, f->s->n_prompt);
        counted(x, f->s->n_known, f->s->n_prompt, "tokens not computed");
    } else say(x, false, "the prompt shares no beginning with what this session had read");
}

/* What reading them cost is the time in which threads waited for them; reads beside the work cost less. */
static void explain_experts(const facts *f, tn_explained *x) {
    const tn_stats *t = &f->stats;
    x->mechanism = "experts on demand";
    double taken = t->experts_taken ? (double)t->experts_taken : 1;
    char foreseen[96] = "";
    if (t->experts_chosen)
        snprintf(foreseen, sizeof foreseen, "; %.0f %% of those that decoding chose were foreseen",
                 100 * (double)t->experts_foreseen / (double)t->experts_chosen);
    say(x, true,
        "room for %.0f of %.0f MB of experts within max-memory; of %llu taken %.0f %% were in memory, %.0f "
        "%% read "
        "ahead, %.0f MB were read%s",
        (double)t->experts_room_bytes * 1e-6, (double)t->experts_bytes * 1e-6,
        (unsigned long long)t->experts_taken, 100 * (double)t->experts_hits / taken,
        100 * (double)t->experts_ahead / taken, (double)t->experts_read_bytes * 1e-6, foreseen);
    counted(x, t->experts_hits + t->experts_ahead, t->experts_taken, "experts not waited for");
}

static size_t explain(const facts *f, tn_explained out[TN_EXPLAIN_MAX]) {
    static void (*const parts[])(const facts *, tn_explained *) = {
        explain_start,     explain_reuse,  explain_prefill, explain_order,
        explain_attention, explain_drafts, explain_experts};
    enum { N = sizeof parts / sizeof parts[0] };
    _Static_assert((int)N <= (int)TN_EXPLAIN_MAX, "there is room for all");
    size_t n = f->stats.experts_bytes ? N : N - 1; /* most models have nothing that could be on demand */
    for (size_t i = 0; i < n; i++) {
        out[i] = (tn_explained){.on = false};
        parts[i](f, &out[i]);
    }
    return n;
}

static facts facts_of(const tern_session *s) {
    facts f = {.s = s, .e = s->e};
    tn_session_stats(s, &f.stats);
    tn_session_draft_stats(s, &f.drafts);
    if (tn_session_pipeline(s)) {
        const tn_pipeline_stats *p = tn_pipeline_stats_get(tn_session_pipeline(s));
        f.n_tasks = p->n_tasks, f.n_ahead = p->n_ahead, f.n_beside = p->n_beside;
    }
    return f;
}

size_t tn_explain(const tern_session *s, tn_explained out[TN_EXPLAIN_MAX]) {
    const facts f = facts_of(s);
    return explain(&f, out);
}

void tn_explain_mark_set(const tern_session *s, tn_explain_mark *m) {
    const facts f = facts_of(s);
    *m = (tn_explain_mark){.stats = f.stats,
                           .drafts = f.drafts,
                           .n_tasks = f.n_tasks,
                           .n_ahead = f.n_ahead,
                           .n_beside = f.n_beside};
}

size_t tn_explain_since(const tern_session *s, const tn_explain_mark *m, tn_explained out[TN_EXPLAIN_MAX]) {
    facts f = facts_of(s);
    tn_stats *t = &f.stats;
    const tn_stats *t0 = &m->stats;
    tn_draft_stats *d = &f.drafts;
    const tn_draft_stats *d0 = &m->drafts;
    f.was_loaded = t0->loaded_s > 0;
    double lanes = t->wall_s - t0->wall_s;
    int32_t n_cpu = f.e->n_lane_workers[TN_LANE_CPU], n_npu = f.e->n_lane_workers[TN_LANE_NPU];
    t->wall_s = lanes;
    if (f.e->npu && t->loaded_s > lanes)
        t->loaded_s = lanes; /* the server was open for a while before it was asked */
    t->cpu_busy_s -= t0->cpu_busy_s;
    t->npu_busy_s -= t0->npu_busy_s;
    t->cpu_bubble = lanes > 0 && n_cpu ? 1 - t->cpu_busy_s / (lanes * n_cpu) : 0;
    t->npu_bubble = lanes > 0 && n_npu ? 1 - t->npu_busy_s / (lanes * n_npu) : 0;
    t->n_outliers -= t0->n_outliers;
    t->attn_rows -= t0->attn_rows;
    t->attn_seen -= t0->attn_seen;
    t->attn_selected -= t0->attn_selected;
    t->experts_taken -= t0->experts_taken;
    t->experts_hits -= t0->experts_hits;
    t->experts_ahead -= t0->experts_ahead;
    t->experts_read_bytes -= t0->experts_read_bytes;
    t->experts_wait_s -= t0->experts_wait_s;
    t->experts_chosen -= t0->experts_chosen;
    t->experts_foreseen -= t0->experts_foreseen;
    d->n_steps -= d0->n_steps;
    d->n_rows -= d0->n_rows;
    d->n_accepted -= d0->n_accepted;
    d->draft_s -= d0->draft_s;
    d->verify_s -= d0->verify_s;
    d->copied -= d0->copied;
    d->copied_right -= d0->copied_right;
    d->recalled -= d0->recalled;
    d->recalled_right -= d0->recalled_right;
    d->by_mtp -= d0->by_mtp;
    d->by_mtp_right -= d0->by_mtp_right;
    d->by_head -= d0->by_head;
    d->by_head_right -= d0->by_head_right;
    f.n_tasks -= m->n_tasks;
    f.n_ahead -= m->n_ahead;
    f.n_beside -= m->n_beside;
    return explain(&f, out);
}
