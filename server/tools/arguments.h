/* The command line of the commands that work on files: flags from one table each, and operands. */
#ifndef BAG_TOOLS_ARGUMENTS_H
#define BAG_TOOLS_ARGUMENTS_H

#include "server/table/source.h"

#include <stdio.h>

struct bag_tool_flag {
    const char *name;  /* "--force" */
    const char *value; /* what stands for its value in the help; NULL: it has none */
    const char *sentence;
};

/* What a command takes. */
struct bag_tool {
    const char *usage, *about; /* of the help */
    const struct bag_tool_flag *flags;
    size_t num_flags;
    size_t min_operands, max_operands;
};

/* Sets values[i] to what flag i was given, "" where it takes none, NULL where it is not there; and
 * operands[]. All are borrowed from argv. */
bool bag_tool_parse(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                    const char **operands, struct bag_problem *problem);

void bag_tool_print_help(FILE *stream, const struct bag_tool *tool);

/* A whole number from `least` to `most` in the text of that flag. */
bool bag_tool_number(const char *flag, const char *text, size_t least, size_t most, size_t *number,
                     struct bag_problem *problem);

/* Finds and opens the table that `--table NAME=IN` would serve; NULL with the problem set. The
 * caller frees it. */
struct bag_source *bag_tool_open(const char *in, struct bag_problem *problem);

#endif
