#include "server/slots.h"

#include "session/session.h"

#include <assert.h>
#include <stdlib.h>

enum { WORTH_TOK = 16 }; /* fewer tokens in common are not worth a copy */

static tern_status open_session(const tn_slots *s, tn_slot *k, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = s->o->n_ctx;
    so.draft = s->o->draft;
    return tern_session_open(s->o->e, &so, &k->s, err);
}

size_t tn_shared_tokens(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t k = 0;
    while (k < n_a && k < n_b && a[k] == b[k]) k++;
    return k;
}

/* What of the prompt a slot holds and its state can go back to. */
static size_t held(const tn_slot *k, tn_prompt p, const tn_slot *paused) {
    if (!k->s || k == paused || tn_lora_mix_id(&k->s->mix) != tn_lora_mix_id(p.mix)) return 0;
    size_t same = tn_shared_tokens(k->s->tokens, (size_t)k->s->n_tok, p.ids, p.n);
    return (size_t)tn_state_left(&k->s->state, (int32_t)same);
}

static size_t on_disk(const tn_slots *s, tn_prompt p, size_t *which) {
    bool in_places = !tn_state_truncates(&s->at[0].s->state);
    if (!s->kept || tn_lora_mix_id(p.mix) != s->own_mix) return 0;
    return tn_checkpoints_match(s->kept, p.ids, p.n, in_places, which);
}

/* Empties the slots when what was kept is to be forgotten: none of what they hold may reach the disk again. */
static void heed_forgetting(tn_slots *s) {
    if (!s->kept || !tn_checkpoints_forgotten(s->kept)) return;
    for (int32_t i = 0; i < s->o->n_sessions; i++) {
        tn_slot *k = &s->at[i];
        if (k->s && k->busy) k->forgotten = true;
        else if (k->s) tn_session_truncate(k->s, 0);
    }
}

static void to_disk(const tn_slots *s, const tn_slot *k) {
    if (s->kept && tn_lora_mix_id(&k->s->mix) == s->own_mix) tn_checkpoints_save(s->kept, k->s);
}

bool tn_slot_ready(const tn_slot *k, tn_prompt p) {
    return k->s->has_logits && (size_t)k->s->n_tok == p.n &&
           tn_shared_tokens(k->s->tokens, p.n, p.ids, p.n) == p.n;
}

/* The slot that holds most, NULL where none holds anything; one that is ready, then idle ones first. */
static tn_slot *best_slot(const tn_slots *s, tn_prompt p, size_t *most) {
    tn_slot *best = NULL;
    *most = 0;
    for (int32_t i = 0; i < s->o->n_sessions; i++) {
        tn_slot *k = &s->at[i];
        size_t same = held(k, p, s->paused);
        if (!same || same < *most) continue;
        if (same == *most && best && (tn_slot_ready(best, p) || (!best->busy && !tn_slot_ready(k, p))))
            continue;
        *most = same;
        best = k;
    }
    return best;
}

size_t tn_slots_known(const tn_slots *s, tn_prompt p) {
    size_t most, which, disk = on_disk(s, p, &which);
    (void)best_slot(s, p, &most);
    return disk > most ? disk : most;
}

static bool may_open(tn_slots *s, tn_slot *k) {
    if (!k->allowed) k->allowed = !s->o->room || s->o->room(s->o->room_user, s->session_bytes);
    return k->allowed;
}

bool tn_slots_any(tn_slots *s) {
    for (int32_t i = 0; i < s->o->n_sessions; i++)
        if (s->at[i].s && !s->at[i].busy) return true;
    for (int32_t i = 0; i < s->o->n_sessions; i++)
        if (!s->at[i].s) return may_open(s, &s->at[i]);
    return false;
}

/* An unused slot, else the idle one used longest ago, whose conversation goes to disk. Not `but`, unless
 * it is the only one. */
static tern_status free_slot(tn_slots *s, tn_slot *but, tn_slot **out, tern_error *err) {
    tn_slot *oldest = NULL;
    for (int32_t i = 0; i < s->o->n_sessions; i++) {
        tn_slot *k = &s->at[i];
        if (k == but || k->busy) continue;
        if (!k->s && !may_open(s, k)) continue;
        if (!k->s) {
            *out = k;
            return open_session(s, k, err);
        }
        if (!oldest || k->used < oldest->used) oldest = k;
    }
    *out = oldest ? oldest : but;
    assert(*out && !(*out)->busy);
    to_disk(s, *out);
    return TERN_OK;
}

/* An idle one that holds as much of the prompt, and little more; NULL: there is none. */
static tn_slot *idle_with(tn_slots *s, tn_prompt p, size_t most) {
    for (int32_t i = 0; i < s->o->n_sessions; i++) {
        tn_slot *k = &s->at[i];
        if (!k->busy && held(k, p, s->paused) == most && (size_t)k->s->n_tok <= most + WORTH_TOK) return k;
    }
    return NULL;
}

/* The one in memory that shares most with the prompt, unless the disk knows more. One whose conversation
 * went on otherwise keeps it, and so does one that is busy: the common part is copied. */
static tern_status find(tn_slots *s, tn_prompt p, tn_slot **out, tern_error *err) {
    size_t most, which = 0, disk = on_disk(s, p, &which);
    tn_slot *best = best_slot(s, p, &most), *k = best;
    if (disk >= most + TN_CHECKPOINT_LEAST) {
        TN_TRY(free_slot(s, NULL, &k, err));
        *out = k;
        tn_session_mix(k->s, p.mix);
        /* what was saved just now may have moved the entries */
        if (on_disk(s, p, &which) >= disk) (void)tn_checkpoints_load(s->kept, which, k->s);
        return TERN_OK;
    }
    bool worth = best && (most >= WORTH_TOK || most + 1 >= p.n || most == (size_t)best->s->n_tok);
    tn_slot *idle = worth && best->busy ? idle_with(s, p, most) : NULL;
    if (idle) k = idle; /* it loses no more than what it went on with */
    else if (!worth || best->busy || (size_t)best->s->n_tok > most + WORTH_TOK)
        TN_TRY(free_slot(s, best && !best->busy ? best : NULL, &k, err));
    *out = k;
    tn_session_mix(k->s, p.mix);
    return worth && k != best ? tn_session_copy(k->s, best->s, (int32_t)most, err) : TERN_OK;
}

tern_status tn_slots_take(tn_slots *s, tn_prompt p, tn_slot **out, tern_error *err) {
    heed_forgetting(s);
    TN_TRY(find(s, p, out, err));
    tn_slot *k = *out;
    k->used = ++s->clock;
    k->busy = true;
    return TERN_OK;
}

bool tn_slots_idle(const tn_slots *s, int32_t i) { return !atomic_load(&s->at[i].busy); }

tern_status tn_slots_take_at(tn_slots *s, int32_t i, const tn_lora_mix *mix, tn_slot **out, tern_error *err) {
    tn_slot *k = *out = &s->at[i];
    assert(!k->busy);
    heed_forgetting(s);
    TN_FAIL_IF(!k->s && !may_open(s, k), err, TERN_E_MEMORY,
               "the session of slot %d would take %.0f MiB, which max-memory does not leave", (int)i,
               (double)s->session_bytes / 1048576);
    if (!k->s) TN_TRY(open_session(s, k, err));
    tn_session_mix(k->s, mix);
    k->used = ++s->clock;
    k->busy = true;
    return TERN_OK;
}

void tn_slots_give_back(tn_slots *s, tn_slot *k) {
    heed_forgetting(s);
    k->used = ++s->clock;
    k->busy = false;
    if (k->forgotten) tn_session_truncate(k->s, 0);
    k->forgotten = false;
}

static uint64_t memory_of(const tern_engine *e) {
    uint64_t n = 0;
    for (int i = 0; i < TN_MEM_N_CATS; i++) n += atomic_load(&e->ctx.live_bytes[i]);
    return n;
}

tern_status tn_slots_open(const tn_queue_options *o, tn_slots *out, tern_error *err) {
    tern_error why;
    *out = (tn_slots){.o = o, .at = calloc((size_t)o->n_sessions, sizeof *out->at)};
    TN_FAIL_IF(!out->at, err, TERN_E_MEMORY, "no memory for %d sessions", o->n_sessions);
    uint64_t before = memory_of(o->e);
    tern_status st = open_session(out, &out->at[0], err);
    out->session_bytes = memory_of(o->e) - before;
    out->at[0].allowed = true;
    if (st == TERN_OK) out->own_mix = tn_lora_mix_id(&out->at[0].s->mix);
    if (st != TERN_OK) tn_slots_close(out);
    else if (o->cache_bytes && tn_checkpoints_open(out->at[0].s, o->cache_bytes, &out->kept, &why) != TERN_OK)
        tn_log((tn_ctx *)&o->e->ctx, TERN_LOG_WARN, "conversations are kept in memory only: %s", why.message);
    return st;
}

void tn_slots_close(tn_slots *s) {
    if (s->at) heed_forgetting(s);
    for (int32_t i = 0; s->at && i < s->o->n_sessions; i++) {
        if (s->at[i].s) to_disk(s, &s->at[i]);
        tern_session_close(&s->at[i].s);
    }
    tn_checkpoints_close(&s->kept);
    free(s->at);
    s->at = NULL;
}
