/* Parses flags and operands; see arguments.h. */
#include "arguments.h"

#include "config/config.h"
#include "proto/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDENT 6

/* Returns the index of the flag in an argument, with or without "=value", or num_flags if there is
 * none. */
static size_t find_flag(const struct bag_tool *tool, const char *argument)
{
    size_t bytes = strcspn(argument, "=");
    for (size_t i = 0; i < tool->num_flags; i++) {
        if (strlen(tool->flags[i].name) == bytes &&
            strncmp(tool->flags[i].name, argument, bytes) == 0)
            return i;
    }
    return tool->num_flags;
}

/* Returns the value of a flag, which is after its "=" or in the next argument. Returns NULL and
 * sets *problem if it is missing or not allowed. */
static const char *take_value(const struct bag_tool_flag *flag, int argc, char *argv[], int *at,
                              struct bag_problem *problem)
{
    const char *equals = strchr(argv[*at], '=');
    if (!*flag->value && equals)
        bag_problem_set(problem, BAG_ERROR_USAGE, "%s takes no value", flag->name);
    else if (!*flag->value)
        return "";
    else if (equals)
        return equals + 1;
    else if (*at + 1 < argc)
        return argv[++*at];
    else
        bag_problem_set(problem, BAG_ERROR_USAGE, "%s needs a value: %s", flag->name, flag->value);
    return NULL;
}

static bool reject_flag(const struct bag_tool *tool, const char *argument,
                        struct bag_problem *problem)
{
    const struct bag_quoted written = bag_quote(argument, strcspn(argument, "="));
    struct bag_suggestion suggestion = {.written = written.text};
    for (size_t i = 0; i < tool->num_flags; i++)
        bag_suggest_offer(&suggestion, tool->flags[i].name);
    /* Offer each operand of the usage, such as MODEL, as if it were a flag, "--model". Somebody who
     * knows other commands may write it like that. */
    for (const char *at = tool->usage; *at; at++) {
        char name[32] = "--";
        size_t bytes = 2;
        for (; *at >= 'A' && *at <= 'Z' && bytes + 1 < sizeof name; at++)
            name[bytes++] = (char)(*at - 'A' + 'a');
        if (bytes > 2)
            bag_suggest_offer(&suggestion, name);
        if (!*at)
            break;
    }
    if (!bag_suggestion_is_near(&suggestion))
        return bag_problem_set(problem, BAG_ERROR_USAGE, "unknown flag %s; --help lists all",
                               written.text);
    if (find_flag(tool, suggestion.nearest) == tool->num_flags)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "unknown flag %s; did you mean the argument without a flag? "
                               "usage: %s",
                               written.text, tool->usage);
    return bag_problem_set(problem, BAG_ERROR_USAGE,
                           "unknown flag %s; did you mean %s? --help lists all", written.text,
                           suggestion.nearest);
}

bool bag_tool_parse(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                    const char **operands, struct bag_problem *problem)
{
    size_t count = 0;
    memset(values, 0, tool->num_flags * sizeof *values);
    memset(operands, 0, tool->max_operands * sizeof *operands);
    for (int i = 0; i < argc; i++) {
        size_t flag = find_flag(tool, argv[i]);
        if (flag < tool->num_flags) {
            if (!(values[flag] = take_value(&tool->flags[flag], argc, argv, &i, problem)))
                return false;
        } else if (argv[i][0] == '-' && argv[i][1]) {
            return reject_flag(tool, argv[i], problem);
        } else if (count == tool->max_operands) {
            return bag_problem_set(problem, BAG_ERROR_USAGE,
                                   "%s is one argument too many; usage: %s",
                                   bag_quote(argv[i], strlen(argv[i])).text, tool->usage);
        } else {
            operands[count++] = argv[i];
        }
    }
    return count >= tool->min_operands ||
           bag_problem_set(problem, BAG_ERROR_USAGE, "an argument is missing; usage: %s",
                           tool->usage);
}

const char *bag_tool_next(const struct bag_tool *tool, size_t flag, int argc, char *argv[], int *at)
{
    struct bag_problem ignored;
    for (; *at < argc; ++*at) {
        size_t found = find_flag(tool, argv[*at]);
        const char *value = found < tool->num_flags
                                ? take_value(&tool->flags[found], argc, argv, at, &ignored)
                                : NULL;
        if (value && found == flag) {
            ++*at;
            return value;
        }
    }
    return NULL;
}

void bag_tool_print_help(FILE *stream, const struct bag_tool *tool)
{
    fprintf(stream, "Usage: %s\n\n", tool->usage);
    bag_help_print_wrapped(stream, tool->about, 0);
    fputc('\n', stream);
    for (size_t i = 0; i < tool->num_flags; i++) {
        /* Print a flag and its value, in several lines if it has many choices. */
        const struct bag_tool_flag *flag = &tool->flags[i];
        int column = fprintf(stream, "  %s%s", flag->name, *flag->value ? " " : "");
        for (const char *at = flag->value; *at;) {
            int bytes = (int)strcspn(at, "|") + 1;
            bytes -= !at[bytes - 1];
            if (column + bytes > 80)
                column = fprintf(stream, "\n%*s", INDENT, "") - 1;
            column += fprintf(stream, "%.*s", bytes, at);
            at += bytes;
        }
        fputc('\n', stream);
        bag_help_print_wrapped(stream, tool->flags[i].sentence, INDENT);
    }
}

bool bag_tool_reject_choice(const struct bag_tool_flag *flag, const char *written,
                            struct bag_problem *problem)
{
    struct bag_suggestion suggestion = {.written = written};
    for (const char *at = flag->value; *at; at += *at == '|') {
        char choice[64];
        size_t bytes = strcspn(at, "|");
        snprintf(choice, sizeof choice, "%.*s", (int)bytes, at);
        bag_suggest_offer(&suggestion, choice);
        at += bytes;
    }
    return bag_problem_set(problem, BAG_ERROR_USAGE, "%s is '%s'; it must be %s%s", flag->name,
                           bag_quote(written, strlen(written)).text, flag->value,
                           bag_suggestion_question(&suggestion, "").text);
}

bool bag_tool_number(const char *flag, const char *text, size_t minimum, size_t maximum,
                     size_t *number, struct bag_problem *problem)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < minimum || value > maximum)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "%s is '%s'; it must be from %zu to %zu",
                               flag, bag_quote(text, strlen(text)).text, minimum, maximum);
    *number = (size_t)value;
    return true;
}
