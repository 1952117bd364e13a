/* What a loading table shows: a bar on a terminal, a few lines in a log.
 *
 * Reads no clock and writes nowhere: the caller passes times of a monotonic clock, and gets texts.
 * Not for use by two threads at once. */
#ifndef BAG_TABLES_PROGRESS_H
#define BAG_TABLES_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Told what to show. On a terminal `text` is written as it is: it holds its own carriage returns
 * and, where a line is finished, its newline. Otherwise it is one line for a log, without one. */
typedef void bag_progress_print(void *context, const char *text);

struct bag_progress {
    bag_progress_print *print;
    void *context;
    bool terminal;
    const char *doing, *done; /* "loading", "loaded", unless set after bag_progress_init */
    uint64_t quiet_ns;        /* no line tells of a table that takes less; 0, unless set likewise */
    /* Of the table that is being loaded. */
    const char *name; /* borrowed */
    size_t total_bytes, done_bytes;
    uint64_t start_ns;
    uint64_t shown_ns; /* when something was last printed */
    bool is_announced; /* the first line of a log was printed */
};

void bag_progress_init(struct bag_progress *progress, bag_progress_print *print, void *context,
                       bool terminal);

/* One table: start, any number of updates, then finish or abandon. An update prints nothing that
 * would follow the last print too soon: 0.1 s on a terminal, 5 s in a log. */
void bag_progress_start(struct bag_progress *progress, const char *name, size_t total_bytes,
                        uint64_t now_ns);
void bag_progress_update(struct bag_progress *progress, size_t done_bytes, uint64_t now_ns);

/* Replaces the bar by a line that says how long the table took, unless that was less than quiet_ns.
 */
void bag_progress_finish(struct bag_progress *progress, uint64_t now_ns);

/* Clears the bar, so that a message about the failure stands alone. */
void bag_progress_abandon(struct bag_progress *progress);

#endif
