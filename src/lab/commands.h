/* lab/commands.h - the commands of tern-lab; each returns the exit status. argv[0] is the command's name. */
#ifndef TN_LAB_COMMANDS_H
#define TN_LAB_COMMANDS_H

int cmd_synth(int argc, char **argv);
int cmd_sim(int argc, char **argv);

#endif
