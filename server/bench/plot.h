/* Plots as SVG inside a page, in the page's own colours, which its style sheet sets by class. */
#ifndef BAG_BENCH_PLOT_H
#define BAG_BENCH_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct bag_bench_point {
    double x, y;
};

/* A line; what is 0 or below on a logarithmic axis is left out. */
struct bag_bench_line {
    const char *name, *style; /* the style: a class of the page's */
    const struct bag_bench_point *points;
    size_t count;
    bool dots; /* each point is marked, and named where the pointer is */
};

/* A place on the x axis with a name of its own. */
struct bag_bench_tick {
    double x;
    const char *name;
};

struct bag_bench_plot {
    const char *title, *x_name, *y_name;
    bool log_y;
    const struct bag_bench_line *lines;
    size_t count;
    double mark; /* a level, such as an objective; 0: none */
    const char *mark_name;
    const struct bag_bench_tick *ticks; /* of x; NULL: round numbers */
    size_t num_ticks;
};

/* Writes the text, with what HTML would take for itself escaped. */
void bag_bench_write_text(FILE *stream, const char *text);

void bag_bench_write_plot(FILE *stream, const struct bag_bench_plot *plot);

#endif
