/* The program's commands. Each takes the arguments after its name and returns an exit code. */
#ifndef BAG_COMMANDS_H
#define BAG_COMMANDS_H

enum { BAG_EXIT_OK = 0, BAG_EXIT_FAILED = 1, BAG_EXIT_USAGE = 2 };

int bag_cmd_serve(int argc, char *argv[]);
int bag_cmd_health(int argc, char *argv[]);

#endif
