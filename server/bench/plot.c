/* Plots as SVG; see plot.h. */
#include "plot.h"

#include "session.h"

#include <math.h>
#include <string.h>

/* In units of the drawing. */
#define WIDTH  720.0
#define HEIGHT 300.0
#define LEFT   72.0
#define RIGHT  28.0
#define TOP    16.0
#define BOTTOM 52.0

void bag_bench_write_text(FILE *stream, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", stream);
            break;
        case '>':
            fputs("&gt;", stream);
            break;
        case '&':
            fputs("&amp;", stream);
            break;
        case '"':
            fputs("&quot;", stream);
            break;
        default:
            fputc(*text, stream);
        }
    }
}

/* ---- where numbers are ----------------------------------------------------------------------- */

struct axes {
    double x_low, x_high, y_low, y_high; /* y in decades where it is logarithmic */
    bool log_y;
};

static bool is_shown(const struct axes *axes, double y)
{
    return isfinite(y) && (!axes->log_y || y > 0);
}

static double level(const struct axes *axes, double y)
{
    return axes->log_y ? log10(y) : y;
}

static double place_x(const struct axes *axes, double x)
{
    return LEFT + (x - axes->x_low) / (axes->x_high - axes->x_low) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct axes *axes, double y)
{
    double share = (level(axes, y) - axes->y_low) / (axes->y_high - axes->y_low);
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

static void widen(struct axes *axes, double y)
{
    if (!is_shown(axes, y))
        return;
    axes->y_low = fmin(axes->y_low, level(axes, y));
    axes->y_high = fmax(axes->y_high, level(axes, y));
}

static struct axes find_axes(const struct bag_bench_plot *plot)
{
    struct axes axes = {INFINITY, -INFINITY, INFINITY, -INFINITY, plot->log_y};
    for (size_t i = 0; i < plot->count; i++) {
        const struct bag_bench_line *line = &plot->lines[i];
        for (size_t k = 0; k < line->count; k++) {
            axes.x_low = fmin(axes.x_low, line->points[k].x);
            axes.x_high = fmax(axes.x_high, line->points[k].x);
            widen(&axes, line->points[k].y);
        }
    }
    if (plot->mark > 0)
        widen(&axes, plot->mark);
    if (axes.log_y) {
        axes.y_low = floor(axes.y_low);
        axes.y_high = ceil(axes.y_high);
    } else {
        axes.y_low = 0;
        axes.y_high *= 1.05;
    }
    if (!(axes.y_high > axes.y_low))
        axes.y_high = (isfinite(axes.y_low) ? axes.y_low : (axes.y_low = 0)) + 1;
    if (!(axes.x_high > axes.x_low)) {
        axes.x_low = isfinite(axes.x_low) ? axes.x_low - 0.5 : 0;
        axes.x_high = axes.x_low + 1;
    }
    return axes;
}

/* ---- axes ------------------------------------------------------------------------------------ */

/* A round number, without the zeros that bag_bench_digits fills up with. */
static struct bag_bench_text tick_text(double value)
{
    struct bag_bench_text text;
    if (value < 999.5)
        snprintf(text.text, sizeof text.text, "%.6g", fabs(value) < 1e-9 ? 0 : value);
    else
        snprintf(text.text, sizeof text.text, "%.6g%s", value >= 1e6 ? value / 1e6 : value / 1e3,
                 value >= 1e6 ? "M" : "k");
    return text;
}

/* 1, 2 or 5 times a power of ten, of which about `count` fit. */
static double round_step(double range, double count)
{
    double step = range / count, power = pow(10, floor(log10(step)));
    double head = step / power;
    return (head <= 1 ? 1 : head <= 2 ? 2 : head <= 5 ? 5 : 10) * power;
}

static void write_y_tick(FILE *stream, const struct axes *axes, double y)
{
    double at = place_y(axes, y);
    fprintf(stream,
            "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
            LEFT, WIDTH - RIGHT, at, at, LEFT - 6, at + 4, tick_text(y).text);
}

static void write_x_tick(FILE *stream, const struct axes *axes, double x, const char *name)
{
    fprintf(stream, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
            place_x(axes, x), HEIGHT - BOTTOM + 20, name);
}

static void write_axes(FILE *stream, const struct bag_bench_plot *plot, const struct axes *axes)
{
    double step = axes->log_y ? 1 : round_step(axes->y_high, 5);
    for (double at = axes->y_low; at <= axes->y_high * (1 + 1e-9) + 1e-12; at += step)
        write_y_tick(stream, axes, axes->log_y ? pow(10, at) : at);
    for (size_t i = 0; i < plot->num_ticks; i++) {
        if (plot->ticks[i].x >= axes->x_low && plot->ticks[i].x <= axes->x_high)
            write_x_tick(stream, axes, plot->ticks[i].x, plot->ticks[i].name);
    }
    step = round_step(axes->x_high - axes->x_low, 6);
    for (double at = ceil(axes->x_low / step) * step;
         !plot->ticks && at <= axes->x_high * (1 + 1e-9); at += step)
        write_x_tick(stream, axes, at, tick_text(at).text);
    fprintf(stream, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
    bag_bench_write_text(stream, plot->x_name);
    fprintf(stream,
            "</text><text class=\"name\" transform=\"translate(14 %.1f) rotate(-90)\" "
            "text-anchor=\"middle\">",
            (TOP + HEIGHT - BOTTOM) / 2);
    bag_bench_write_text(stream, plot->y_name);
    fputs("</text>\n", stream);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void write_line(FILE *stream, const struct axes *axes, const struct bag_bench_line *line)
{
    fprintf(stream, "<polyline class=\"line %s\" points=\"", line->style);
    for (size_t i = 0; i < line->count; i++) {
        if (is_shown(axes, line->points[i].y))
            fprintf(stream, "%.1f,%.1f ", place_x(axes, line->points[i].x),
                    place_y(axes, line->points[i].y));
    }
    fputs("\"/>\n", stream);
    for (size_t i = 0; line->dots && i < line->count; i++) {
        if (!is_shown(axes, line->points[i].y))
            continue;
        fprintf(stream, "<circle class=\"dot %s\" r=\"3\" cx=\"%.1f\" cy=\"%.1f\"><title>",
                line->style, place_x(axes, line->points[i].x), place_y(axes, line->points[i].y));
        bag_bench_write_text(stream, line->name);
        fprintf(stream, ": %s at %s</title></circle>\n", bag_bench_digits(line->points[i].y).text,
                bag_bench_digits(line->points[i].x).text);
    }
}

static void write_mark(FILE *stream, const struct axes *axes, const struct bag_bench_plot *plot)
{
    double at = place_y(axes, plot->mark);
    fprintf(stream,
            "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"tick halo\" x=\"%.1f\" y=\"%.1f\">",
            LEFT, WIDTH - RIGHT, at, at, LEFT + 4, at - 6);
    bag_bench_write_text(stream, plot->mark_name);
    fputs("</text>\n", stream);
}

static void write_legend(FILE *stream, const struct bag_bench_plot *plot)
{
    fputs("<p class=\"legend\">", stream);
    for (size_t i = 0; i < plot->count; i++) {
        fprintf(stream, "<span><i class=\"%s\"></i>", plot->lines[i].style);
        bag_bench_write_text(stream, plot->lines[i].name);
        fputs("</span> ", stream);
    }
    fputs("</p>\n", stream);
}

void bag_bench_write_plot(FILE *stream, const struct bag_bench_plot *plot)
{
    const struct axes axes = find_axes(plot);
    fputs("<figure>\n<figcaption>", stream);
    bag_bench_write_text(stream, plot->title);
    fprintf(stream, "</figcaption>\n<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"", WIDTH,
            HEIGHT);
    bag_bench_write_text(stream, plot->title);
    fputs("\">\n", stream);
    write_axes(stream, plot, &axes);
    for (size_t i = 0; i < plot->count; i++)
        write_line(stream, &axes, &plot->lines[i]);
    if (plot->mark > 0)
        write_mark(stream, &axes, plot);
    fputs("</svg>\n", stream);
    write_legend(stream, plot);
    fputs("</figure>\n", stream);
}
