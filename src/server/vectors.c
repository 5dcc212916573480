/* The vector of a text: put into the queue, and waited for. */
#include "server/queue.h"

#include <stdlib.h>
#include <string.h>

tern_status tn_queue_embed(tn_queue *q, const json_t *text, const char *lora, tn_pooling pool,
                           uint64_t client, int priority, bool (*gone)(void *user), void *user, float **out,
                           size_t *n_tokens, tern_error *err) {
    tern_model_info info;
    *out = NULL;
    tern_engine_info(tn_queue_opts(q)->e, &info);
    float *v = malloc((size_t)info.n_embd * sizeof *v);
    /* A copy: the thread that computes may let go of it last, and counts of references order nothing between threads. */
    json_t *body = tn_json_pack("{s:o}", "prompt", tn_json_copy(text));
    if (lora) tn_json_set(&body, "lora", tn_json_string(lora, strlen(lora)));
    if (!v || !body) {
        free(v);
        json_decref(body);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the embeddings");
    }
    tn_request r = {.n = 1,
                    .body = body,
                    .per_prompt = 1,
                    .prompt = json_object_get(body, "prompt"),
                    .client = client,
                    .priority = priority,
                    .embeds = true};
    tn_job *j;
    tern_status st = tn_queue_put_for(q, &r, v, pool, &j, err); /* takes r and v */
    if (st != TERN_OK) return st;
    bool begun;
    while (!tn_job_done(j, &begun)) {
        if (gone(user)) tn_job_cancel(j);
        tn_job_wait(j, 100);
    }
    st = j->err.code;
    if (st != TERN_OK && err) *err = j->err;
    if (st == TERN_OK) *out = j->vector, j->vector = NULL;
    *n_tokens += j->a.said.n_ids;
    tn_job_leave(j);
    return st;
}
