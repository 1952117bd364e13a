/* Log lines on standard error, one for each event, as text or JSON.
 *
 * The log is configured once, before threads start. bag_log may then be called on any thread. Lines
 * are written immediately until bag_log_start. Afterwards a thread writes them, so that a slow
 * reader cannot delay the callers. Waiting lines are stored in a buffer of BAG_LOG_BUFFER_BYTES.
 * Lines that do not fit are dropped and counted, and the log reports their number when it has
 * capacity again. */
#pragma once

#include "config/options.h"
#include "proto/problem.h"

#include <stddef.h>

/* A field of an event. Its key is a word. The last field of a list has no key. */
struct bag_log_field {
    const char *key; /* in JSON's form: ,"name": followed by BAG_LOG_PADDING */
    size_t key_bytes;
    const char *text; /* NULL: `number` is the value */
    int64_t number;
};

/* The padding lets short keys be copied in one constant length, without a call. A line of the
 * access log has thirteen. */
#define BAG_LOG_PADDING "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define BAG_LOG_KEY(name) \
    .key = ",\"" name "\":" BAG_LOG_PADDING, .key_bytes = sizeof ",\"" name "\":" - 1

#define BAG_LOG_TEXT(name, value)          \
    {                                      \
        BAG_LOG_KEY(name), .text = (value) \
    }
#define BAG_LOG_NUMBER(name, value)                   \
    {                                                 \
        BAG_LOG_KEY(name), .number = (int64_t)(value) \
    }

/* bag_log(BAG_LOG_LEVEL_INFO, "listening", BAG_LOG_TEXT("host", host), ...) */
#define bag_log(level, ...) bag_log_fields(level, BAG_LOG_ARGUMENTS(__VA_ARGS__, {0}))

/* Logs an event that may occur thousands of times. The line may wait 20 ms, so that several
 * lines are written together. */
#define bag_log_often(level, ...) bag_log_often_fields(level, BAG_LOG_ARGUMENTS(__VA_ARGS__, {0}))
#define BAG_LOG_ARGUMENTS(event, ...)     \
    event, (const struct bag_log_field[]) \
    {                                     \
        __VA_ARGS__                       \
    }

/* Draws text on a terminal that is replaced repeatedly, such as a progress bar, without an end of
 * line. A log line overwrites it; the next text draws it again. */
void bag_log_draw(const char *text);

#define BAG_LOG_BUFFER_BYTES ((size_t)256 << 10)

void bag_log_configure(enum bag_log_format format, enum bag_log_level level);

/* Starts the thread that writes. Returns false and sets *problem if it cannot be started. */
bool bag_log_start(struct bag_problem *problem);

/* Writes the waiting lines for at most one second, and ends the thread if all were written. No
 * other thread may log any more. Does nothing if the thread was not started. */
void bag_log_stop(void);

/* Returns the number of dropped lines. May be called on any thread. */
uint64_t bag_log_dropped(void);

/* Returns the time of day in ms since 1970. */
uint64_t bag_epoch_ms(void);

void bag_log_fields(enum bag_log_level level, const char *event,
                    const struct bag_log_field *fields);
void bag_log_often_fields(enum bag_log_level level, const char *event,
                          const struct bag_log_field *fields);
