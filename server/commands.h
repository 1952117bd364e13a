/* The program's commands. Each takes the arguments after its name and returns an exit code. */
#ifndef BAG_COMMANDS_H
#define BAG_COMMANDS_H

#include "proto/problem.h"

enum { BAG_EXIT_OK = 0, BAG_EXIT_FAILED = 1, BAG_EXIT_USAGE = 2 };

/* What a command ends with after that error: BAG_EXIT_USAGE where the command line or the
 * configuration is wrong. `serve` ends with BAG_EXIT_FAILED after any. */
static inline int bag_commands_exit_code(enum bag_error kind)
{
    bool is_usage =
        kind == BAG_ERROR_USAGE || kind == BAG_ERROR_CONFIGURATION || kind == BAG_ERROR_FILE;
    return is_usage ? BAG_EXIT_USAGE : BAG_EXIT_FAILED;
}

int bag_cmd_serve(int argc, char *argv[]);
int bag_cmd_health(int argc, char *argv[]);

#endif
