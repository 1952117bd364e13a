/* Progress of loading a table: a bar on a terminal, or a few lines in a log.
 *
 * The caller passes times of a monotonic clock and prints the texts. An object is used by one
 * thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prints a text. For a terminal it contains its own carriage returns and newlines. Otherwise it is
 * one line of a log, without a newline. */
typedef void bag_progress_print(void *context, const char *text);

/* The progress of one table after the other. */
struct bag_progress {
    bag_progress_print *print;
    void *context;
    bool terminal;
    const char *doing, *done; /* "loading", "loaded", unless set after bag_progress_init */
    uint64_t quiet_ns;        /* a table that takes less time gets no line; 0 unless set likewise */
    /* The table that is being loaded. */
    const char *name; /* borrowed */
    size_t total_bytes, done_bytes;
    uint64_t start_ns;
    uint64_t shown_ns; /* time of the last print */
    bool is_announced; /* the first line of a log was printed */
};

void bag_progress_init(struct bag_progress *progress, bag_progress_print *print, void *context,
                       bool terminal);

/* Starts a table. Any number of updates follow, then finish or abandon. An update prints nothing
 * within 0.1 s (in a log: 5 s) after the last print. The first line of a log is printed after
 * quiet_ns. */
void bag_progress_start(struct bag_progress *progress, const char *name, size_t total_bytes,
                        uint64_t now_ns);
void bag_progress_update(struct bag_progress *progress, size_t done_bytes, uint64_t now_ns);

/* Replaces the bar with a line that says how long the table took, if that was at least quiet_ns. */
void bag_progress_finish(struct bag_progress *progress, uint64_t now_ns);

/* Clears the bar, before a message about a failure. */
void bag_progress_abandon(struct bag_progress *progress);
