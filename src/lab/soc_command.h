/* lab/soc_command.h - a SoC by its name, as commands take it. */
#ifndef TN_LAB_SOC_COMMAND_H
#define TN_LAB_SOC_COMMAND_H

#include "lab/sim.h"

/* Loads the data file of that name, or the one at that path if it has a slash. Prints what failed; returns the exit
 * status. */
int tn_load_soc_named(const char *name, tn_soc *soc);

#endif
