/* The program's commands. Each takes the arguments after its name and returns an exit code. */
#ifndef BAG_COMMANDS_H
#define BAG_COMMANDS_H

#include "config/config.h"

enum { BAG_EXIT_OK = 0, BAG_EXIT_FAILED = 1, BAG_EXIT_USAGE = 2 };

int bag_cmd_serve(int argc, char *argv[]);
int bag_cmd_health(int argc, char *argv[]);

/* What commands share: the configuration from file, environment and flags (but not the models
 * directory). False with *problem; in any case bag_config_free is due. */
bool bag_commands_configure(struct bag_config *config, int argc, char *argv[],
                            struct bag_problem *problem);

/* Whether one of the arguments is `flag`. */
bool bag_commands_have(int argc, char *argv[], const char *flag);

#endif
