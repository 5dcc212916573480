/* lab/sim_views.h - pictures in a simulated prompt: the encoder's views as tasks of the prefill's own graph.
 *
 * Of every layer of a view the products (Q, K and V together, out, up, down) are the device's, as the sites
 * of the language model are; norms, attention and the activation are the float lane's, since a launch of INT8
 * attention takes longer, by the papers' tables, than float attention there (shadowAttn 3.4). A chunk begins
 * when the views are there whose rows it has, so the text before a picture is read, and earlier views are,
 * while later ones are encoded. */
#ifndef TN_LAB_SIM_VIEWS_H
#define TN_LAB_SIM_VIEWS_H

#include "lab/sim.h"

/* The encoder of a name that tn_synth knows ("smolvlm-500m-mmproj"), at the size of its tile or table. false:
 * none. */
bool tn_sim_encoder_find(const char *name, tn_sim_encoder *out);

double tn_sim_encoder_bytes(const tn_sim_encoder *e); /* of its weights in INT8 */

/* Adds the views of r to the graph of its prefill, whose first tasks are n_chunks x n_steps steps. apart: all
 * of the prompt waits for all views. */
void tn_sim_add_views(const tn_sim_request *r, bool apart, int32_t n_chunks, int32_t n_steps, tn_graph *g);

#endif
