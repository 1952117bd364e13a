/* The command lines of all commands except serve: a table of flags for each command, and
 * operands. */
#pragma once

#include "proto/problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct bag_tool_flag {
    const char *name;  /* "--force" */
    const char *value; /* placeholder for its value in the help; "": it takes none */
    const char *sentence;
};

/* Make the ids of a command's flags, and their table, from BAG_CONVERT_FLAGS and similar lists in
 * config/config.h. */
#define BAG_TOOL_ID(command, id, ...)                       FLAG_##id,
#define BAG_TOOL_FLAG(command, id, name, follows, sentence) {name, follows, sentence},

/* The arguments of a command. */
struct bag_tool {
    const char *usage, *about; /* texts of the help; `about` is one paragraph, which is wrapped */
    const struct bag_tool_flag *flags;
    size_t num_flags;
    size_t min_operands, max_operands;
};

/* Parses the arguments. Sets values[i] to the value of flag i, "" if it takes none, or NULL if it
 * is absent, and sets operands[]. All are borrowed from argv. Returns false and sets *problem if
 * the arguments are wrong. */
bool bag_tool_parse(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                    const char **operands, struct bag_problem *problem);

/* Returns the next value of a flag that may be repeated, or NULL after the last. *at must be 0
 * before the first call. The arguments must be ones that bag_tool_parse accepted. */
const char *bag_tool_next(const struct bag_tool *tool, size_t flag, int argc, char *argv[],
                          int *at);

/* Prints the help in lines of at most 80 columns. */
void bag_tool_print_help(FILE *stream, const struct bag_tool *tool);

/* Sets *problem because a value is none of the choices in flag->value, "a|b|c". *problem names the
 * nearest choice. Returns false. */
bool bag_tool_reject_choice(const struct bag_tool_flag *flag, const char *written,
                            struct bag_problem *problem);

/* Reads an integer from `minimum` to `maximum`. Returns false and sets *problem, which names the
 * flag, if the text is anything else. */
bool bag_tool_number(const char *flag, const char *text, size_t minimum, size_t maximum,
                     size_t *number, struct bag_problem *problem);
