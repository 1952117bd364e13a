/* Log lines on standard error: one per event, as text or JSON.
 *
 * A line is one write(2), so lines of several threads never mix. Configured once before threads
 * start; bag_log may then be called from any of them. */
#ifndef BAG_LOG_H
#define BAG_LOG_H

#include "config/options.h"

#include <stddef.h>

/* A fact of the event; its key is a word. The last of a list has no key. */
struct bag_log_field {
    const char *key;
    const char *text; /* NULL: the number */
    int64_t number;
};

#define BAG_LOG_TEXT(name, value)      \
    {                                  \
        .key = (name), .text = (value) \
    }
#define BAG_LOG_NUMBER(name, value)               \
    {                                             \
        .key = (name), .number = (int64_t)(value) \
    }

/* bag_log(BAG_LOG_LEVEL_INFO, "listening", BAG_LOG_TEXT("host", host), ...) */
#define bag_log(level, ...) bag_log_fields(level, BAG_LOG_ARGUMENTS(__VA_ARGS__, {0}))
#define BAG_LOG_ARGUMENTS(event, ...)     \
    event, (const struct bag_log_field[]) \
    {                                     \
        __VA_ARGS__                       \
    }

void bag_log_configure(enum bag_log_format format, enum bag_log_level level);

void bag_log_fields(enum bag_log_level level, const char *event,
                    const struct bag_log_field *fields);

#endif
