/* Log lines on standard error: one per event, as text or JSON.
 *
 * Configured once before threads start; bag_log may then be called from any of them. Until
 * bag_log_start every line is written at once. From then on a thread writes them, so that no
 * caller waits for a reader that does not read: lines wait in a buffer of BAG_LOG_BUFFER_BYTES, and
 * those that do not fit are dropped, which is counted and said in the log once there is room again.
 */
#ifndef BAG_LOG_H
#define BAG_LOG_H

#include "config/options.h"
#include "proto/problem.h"

#include <stddef.h>

/* A fact of the event; its key is a word. The last of a list has no key. */
struct bag_log_field {
    const char *key; /* as JSON has it: ,"name": */
    size_t key_bytes;
    const char *text; /* NULL: the number */
    int64_t number;
};

#define BAG_LOG_KEY(name) .key = ",\"" name "\":", .key_bytes = sizeof ",\"" name "\":" - 1

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

/* The same for events that come by the thousand: their lines may wait some milliseconds for others,
 * to be written together. */
#define bag_log_often(level, ...) bag_log_often_fields(level, BAG_LOG_ARGUMENTS(__VA_ARGS__, {0}))
#define BAG_LOG_ARGUMENTS(event, ...)     \
    event, (const struct bag_log_field[]) \
    {                                     \
        __VA_ARGS__                       \
    }

/* Writes to a terminal what is drawn over again and again, as a bar is, without an end of line. A
 * line that comes meanwhile takes its place: the next text draws it anew. */
void bag_log_draw(const char *text);

#define BAG_LOG_BUFFER_BYTES ((size_t)256 << 10)

void bag_log_configure(enum bag_log_format format, enum bag_log_level level);

/* Starts the thread that writes. */
bool bag_log_start(struct bag_problem *problem);

/* Writes what waits, for a second at most, and ends the thread where that is done. Nobody else logs
 * any more. Does nothing where the thread was not started. */
void bag_log_stop(void);

/* Lines that have been dropped so far. Any thread. */
uint64_t bag_log_dropped(void);

/* Time of day, in ms since 1970. */
uint64_t bag_epoch_ms(void);

void bag_log_fields(enum bag_log_level level, const char *event,
                    const struct bag_log_field *fields);
void bag_log_often_fields(enum bag_log_level level, const char *event,
                          const struct bag_log_field *fields);

#endif
