/* The command line of commands other than serve: flags from one table each, and operands. */
#ifndef BAG_ARGUMENTS_H
#define BAG_ARGUMENTS_H

#include "proto/problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct bag_tool_flag {
    const char *name;  /* "--force" */
    const char *value; /* what stands for its value in the help; "": it has none */
    const char *sentence;
};

/* The places of a command's flags in such a list, and the list, from BAG_CONVERT_FLAGS or its like
 * in config/config.h. */
#define BAG_TOOL_ID(command, id, ...)                       FLAG_##id,
#define BAG_TOOL_FLAG(command, id, name, follows, sentence) {name, follows, sentence},

/* What a command takes. */
struct bag_tool {
    const char *usage, *about; /* of the help; about: one paragraph, which is wrapped */
    const struct bag_tool_flag *flags;
    size_t num_flags;
    size_t min_operands, max_operands;
};

/* Sets values[i] to what flag i was given, "" where it takes none, NULL where it is not there; and
 * operands[]. All are borrowed from argv. */
bool bag_tool_parse(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                    const char **operands, struct bag_problem *problem);

/* The values of a flag that may be repeated, one with each call; NULL after the last. *at is 0
 * before the first. The arguments are such as bag_tool_parse accepts. */
const char *bag_tool_next(const struct bag_tool *tool, size_t flag, int argc, char *argv[],
                          int *at);

/* Prints the help in lines of at most 80 columns. */
void bag_tool_print_help(FILE *stream, const struct bag_tool *tool);

/* Sets the problem to a value that is none of the choices in flag->value, "a|b|c", with the nearest
 * choice. Returns false. */
bool bag_tool_reject_choice(const struct bag_tool_flag *flag, const char *written,
                            struct bag_problem *problem);

/* A whole number from `minimum` to `maximum` in the text of that flag. */
bool bag_tool_number(const char *flag, const char *text, size_t minimum, size_t maximum,
                     size_t *number, struct bag_problem *problem);

#endif
