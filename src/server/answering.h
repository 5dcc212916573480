/* server/answering.h - one job: its prompt, and its answer as it comes, in the form of its API. */
#ifndef TN_SERVER_ANSWERING_H
#define TN_SERVER_ANSWERING_H

#include "server/queue.h"

/* The prompt's tokens into the job, and what reads its answer. */
tern_status tn_answering_open(tn_job *j, const tern_engine *e, tern_error *err);
/* What is asked of the engine. */
void tn_answering_options(tn_job *j, tern_generate_options *o);
/* The end, good or bad, into the job's output. false: no memory. */
bool tn_answering_finish(tn_job *j, tern_status st, const tern_error *err);
void tn_answering_free(tn_job *j);

#endif
