/* A bar on a terminal, a few lines in a log; see progress.h. */
#include "progress.h"
#include "server/memory/memory.h"

#include <stdio.h>
#include <string.h>

/* The minimum times between two prints: on a terminal, and in a log. */
#define TERMINAL_INTERVAL_NS UINT64_C(100000000)
#define LOG_INTERVAL_NS      UINT64_C(5000000000)
#define BAR_CELLS            20

/* A shorter time is not printed: it would round to 0, and its rate means nothing. */
#define SHOWN_S 0.005

#define CLEAR_LINE "\r\x1b[K"
/* Around a bar: a narrow terminal cuts it off, because a wrapped one could not be drawn over. */
#define NO_WRAP "\x1b[?7l"
#define WRAP    "\x1b[?7h"

struct seconds_text {
    char text[32];
};

/* Prints a time, as "47 s", "3 min 05 s" or "2 h 10 min". */
static struct seconds_text seconds_text(double seconds)
{
    struct seconds_text text;
    unsigned long long whole = seconds < 1e9 ? (unsigned long long)(seconds + 0.5) : 1000000000;
    if (whole < 60)
        snprintf(text.text, sizeof text.text, "%llu s", whole);
    else if (whole < 3600)
        snprintf(text.text, sizeof text.text, "%llu min %02llu s", whole / 60, whole % 60);
    else
        snprintf(text.text, sizeof text.text, "%llu h %02llu min", whole / 3600, whole / 60 % 60);
    return text;
}

static double elapsed_s(const struct bag_progress *progress, uint64_t now_ns)
{
    return now_ns > progress->start_ns ? (double)(now_ns - progress->start_ns) * 1e-9 : 0;
}

static double fraction_done(const struct bag_progress *progress)
{
    return progress->total_bytes ? (double)progress->done_bytes / (double)progress->total_bytes : 1;
}

/* Prints the progress, as "1.00 GiB of 2.00 GiB (50 %), 1.50 GiB/s, 1 s left". The rate and the
 * rest are left out until they can be known. */
static void describe(const struct bag_progress *progress, uint64_t now_ns, char *out, size_t bytes)
{
    double seconds = elapsed_s(progress, now_ns), fraction = fraction_done(progress);
    int written =
        snprintf(out, bytes, "%s of %s (%d %%)", bag_format_bytes(progress->done_bytes).text,
                 bag_format_bytes(progress->total_bytes).text, (int)(fraction * 100));
    if (seconds <= 0 || progress->done_bytes == 0)
        return;
    double rate = (double)progress->done_bytes / seconds;
    double left = (double)(progress->total_bytes - progress->done_bytes) / rate;
    snprintf(out + written, bytes - (size_t)written, ", %s/s, %s left",
             bag_format_bytes((size_t)rate).text, seconds_text(left).text);
}

static void draw_bar(struct bag_progress *progress, uint64_t now_ns)
{
    char bar[BAR_CELLS + 1], numbers[160], line[512];
    int filled = (int)(fraction_done(progress) * BAR_CELLS);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(BAR_CELLS - filled));
    bar[BAR_CELLS] = '\0';
    describe(progress, now_ns, numbers, sizeof numbers);
    snprintf(line, sizeof line, CLEAR_LINE NO_WRAP "%.128s [%s] %s" WRAP, progress->name, bar,
             numbers);
    progress->print(progress->context, line);
}

/* Says that the table is being loaded. */
static void announce(struct bag_progress *progress)
{
    char line[256];
    snprintf(line, sizeof line, "table %.128s: %s %s", progress->name, progress->doing,
             bag_format_bytes(progress->total_bytes).text);
    progress->print(progress->context, line);
    progress->is_announced = true;
}

/* ---- one table ------------------------------------------------------------------------------- */

void bag_progress_init(struct bag_progress *progress, bag_progress_print *print, void *context,
                       bool terminal)
{
    *progress = (struct bag_progress){.print = print,
                                      .context = context,
                                      .terminal = terminal,
                                      .doing = "loading",
                                      .done = "loaded"};
}

void bag_progress_start(struct bag_progress *progress, const char *name, size_t total_bytes,
                        uint64_t now_ns)
{
    progress->name = name;
    progress->total_bytes = total_bytes;
    progress->done_bytes = 0;
    progress->start_ns = progress->shown_ns = now_ns;
    progress->is_announced = false;
    if (progress->terminal)
        draw_bar(progress, now_ns);
    else if (!progress->quiet_ns)
        announce(progress);
}

void bag_progress_update(struct bag_progress *progress, size_t done_bytes, uint64_t now_ns)
{
    char numbers[160], line[512];
    uint64_t interval_ns = progress->terminal       ? TERMINAL_INTERVAL_NS
                           : progress->is_announced ? LOG_INTERVAL_NS
                                                    : progress->quiet_ns;
    progress->done_bytes = done_bytes < progress->total_bytes ? done_bytes : progress->total_bytes;
    if (now_ns - progress->shown_ns < interval_ns)
        return;
    progress->shown_ns = now_ns;
    if (progress->terminal) {
        draw_bar(progress, now_ns);
    } else if (progress->is_announced) {
        describe(progress, now_ns, numbers, sizeof numbers);
        snprintf(line, sizeof line, "table %.128s: %s %s", progress->name, progress->done, numbers);
        progress->print(progress->context, line);
    } else {
        announce(progress);
    }
}

void bag_progress_finish(struct bag_progress *progress, uint64_t now_ns)
{
    char line[512], time[96] = "";
    double seconds = elapsed_s(progress, now_ns);
    if (now_ns - progress->start_ns < progress->quiet_ns) {
        bag_progress_abandon(progress);
        return;
    }
    if (seconds >= SHOWN_S)
        snprintf(time, sizeof time, " in %.2f s, %s/s", seconds,
                 bag_format_bytes((size_t)((double)progress->total_bytes / seconds)).text);
    snprintf(line, sizeof line, "%stable %.128s: %s %s%s%s", progress->terminal ? CLEAR_LINE : "",
             progress->name, progress->done, bag_format_bytes(progress->total_bytes).text, time,
             progress->terminal ? "\n" : "");
    progress->print(progress->context, line);
}

void bag_progress_abandon(struct bag_progress *progress)
{
    if (progress->terminal)
        progress->print(progress->context, CLEAR_LINE);
}
