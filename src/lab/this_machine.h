/* lab/this_machine.h - a machine that was measured (measure/tune.h) as the simulator sees it. */
#ifndef TN_LAB_THIS_MACHINE_H
#define TN_LAB_THIS_MACHINE_H

#include "lab/sim.h"

/* Gives the profile's times, the shapes of the engine's waves and of its model, for tn_sim_run. It fails with
 * TERN_E_INVALID when this is no package, or one that was never measured. */
tern_status tn_this_machine(tern_engine *e, tn_measured_steps *out, tn_sim_model *shape, tern_error *err);

#endif
