/* The page of a measurement: one file, with its plots inside, that can be mailed and printed; see
 * session.h. */
#include "plot.h"
#include "session.h"

#include <math.h>
#include <stdlib.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static const char style[] =
    ":root{color-scheme:light dark;--page:#fff;--text:#1c2430;--soft:#5b6675;--rule:#d9dfe6;"
    "--card:#f5f7fa;--a:#0b6bcb;--b:#c2410c;--c:#6d28d9;--old:#8a94a3;--bad:#b42318}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#12161c;--text:#e6eaf0;--soft:#9aa6b5;"
    "--rule:#2c3542;--card:#1a212a;--a:#58a6ff;--b:#ffa657;--c:#bc8cff;--old:#6e7b8b;"
    "--bad:#ff7b72}}\n"
    "@media print{:root{--page:#fff;--text:#000;--soft:#444;--rule:#ccc;--card:#fff;--a:#0b6bcb;"
    "--b:#c2410c;--c:#6d28d9;--old:#777;--bad:#b42318}figure,table{break-inside:avoid}}\n"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:24px 16px 48px;"
    "background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.5rem;margin:0 0 4px}h2{font-size:1.1rem;margin:32px 0 8px}"
    "p.about,figcaption,.legend{color:var(--soft)}p.about{margin:0 0 16px;overflow-wrap:anywhere}\n"
    ".facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}"
    ".facts div{background:var(--card);border:1px solid var(--rule);border-radius:8px;"
    "padding:12px}.facts b{display:block;font-size:1.5rem;font-weight:600}\n"
    ".facts span,.scroll caption{color:var(--soft);font-size:.85rem}"
    ".note{border-left:4px solid var(--bad);background:var(--card);padding:8px 12px}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:"
    "16px}"
    ".plots,.facts,.note{margin:0 0 16px}figure{min-width:0;margin:0;padding:12px;"
    "border:1px solid var(--rule);border-radius:8px}figcaption{font-weight:600;color:var(--text)}"
    "svg{display:block;width:100%;height:auto}.legend{margin:0;font-size:.85rem}"
    ".legend span{margin-right:16px;white-space:nowrap}.legend i{display:inline-block;width:18px;"
    "border-top:3px solid;margin-right:6px;vertical-align:middle}\n"
    ".tick,.name{font-size:15px;fill:var(--soft)}"
    ".halo{paint-order:stroke;stroke:var(--page);stroke-width:4px}"
    ".grid{stroke:var(--rule)}.mark{stroke:var(--bad);stroke-dasharray:6 4}"
    ".line{fill:none;stroke-width:2}.line.a{stroke:var(--a)}.line.b{stroke:var(--b)}"
    ".line.c{stroke:var(--c)}.line.old{stroke:var(--old);stroke-dasharray:3 3}"
    ".dot.a{fill:var(--a)}.dot.b{fill:var(--b)}.dot.c{fill:var(--c)}.dot.old{fill:var(--old)}"
    "i.a{color:var(--a)}i.b{color:var(--b)}i.c{color:var(--c)}i.old{color:var(--old)}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.85rem;"
    "font-variant-numeric:tabular-nums}th,td{padding:4px 8px;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--rule)}th{color:var(--soft);font-weight:600}"
    ".text{text-align:left;white-space:normal}tr.best{background:var(--card);font-weight:600}\n"
    "@media(max-width:640px){.tick,.name{font-size:21px}}\n";

/* ---- which runs ------------------------------------------------------------------------------ */

/* The run that is shown in detail: that of the highest rate that holds, or the last one. */
static const struct bag_bench_measured *find_best(const struct bag_bench_session *session)
{
    const struct bag_bench_report *report = &session->report;
    for (size_t i = report->num_runs; i-- > 0;) {
        if (report->highest_rate > 0 &&
            fabs(report->runs[i].rate - report->highest_rate) < 1e-6 * report->highest_rate &&
            bag_bench_holds(&report->runs[i], report->slo_ms))
            return &session->measured[i];
    }
    return &session->measured[report->num_runs - 1];
}

static int compare_points(const void *a, const void *b)
{
    const struct bag_bench_point *left = a, *right = b;
    if (left->x != right->x)
        return left->x < right->x ? -1 : 1;
    return left->y < right->y ? -1 : left->y > right->y;
}

/* Of the points at each place the median: a rate may have been measured again. */
static size_t take_medians(struct bag_bench_point *points, size_t count)
{
    size_t kept = 0;
    qsort(points, count, sizeof *points, compare_points);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && points[end].x == points[first].x;)
            end++;
        points[kept++] = points[first + (end - first) / 2];
    }
    return kept;
}

/* One number of the runs that had a rate, by rate. The caller frees *points. */
static size_t take_points(const struct bag_bench_report *report, size_t offset,
                          struct bag_bench_point **points)
{
    size_t count = 0;
    *points = calloc(report->num_runs + 1, sizeof **points);
    for (size_t i = 0; *points && i < report->num_runs; i++) {
        const struct bag_bench_run *run = &report->runs[i];
        if (run->rate > 0 && run->answered)
            (*points)[count++] = (struct bag_bench_point){
                run->rate, *(const double *)((const char *)&run->latency_ms + offset)};
    }
    return count > 0 ? take_medians(*points, count) : 0;
}

/* ---- plots ----------------------------------------------------------------------------------- */

static bool write_rates(const struct bag_bench_session *session, FILE *stream)
{
    static const struct {
        const char *name, *style;
        size_t offset;
        bool before;
    } kinds[] = {{"p50", "a", offsetof(struct bag_bench_times, p50), false},
                 {"p99", "b", offsetof(struct bag_bench_times, p99), false},
                 {"p99 before", "old", offsetof(struct bag_bench_times, p99), true}};
    struct bag_bench_point *points[COUNT_OF(kinds)] = {NULL};
    struct bag_bench_line lines[COUNT_OF(kinds)];
    size_t count = 0;
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(kinds) && (!kinds[i].before || session->has_before); i++) {
        size_t num_points = take_points(kinds[i].before ? &session->before : &session->report,
                                        kinds[i].offset, &points[i]);
        ok = ok && points[i];
        if (num_points > 0)
            lines[count++] =
                (struct bag_bench_line){kinds[i].name, kinds[i].style, points[i], num_points, true};
    }
    const struct bag_bench_plot plot = {.title = "Latency against rate",
                                        .x_name = "requests wanted a second",
                                        .y_name = "ms",
                                        .log_y = true,
                                        .lines = lines,
                                        .count = count,
                                        .mark = session->report.slo_ms,
                                        .mark_name = "objective for p99"};
    if (count > 0 && lines[0].count > 1)
        bag_bench_write_plot(stream, &plot);
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        free(points[i]);
    return ok;
}

static void write_percentiles(const struct bag_bench_measured *best, FILE *stream)
{
    static const struct bag_bench_tick ticks[] = {
        {0.30103, "50 %"}, {1, "90 %"}, {2, "99 %"}, {3, "99.9 %"}, {4, "99.99 %"}, {4.875, "max"}};
    struct bag_bench_point points[BAG_BENCH_CURVE];
    const struct bag_bench_line line = {"latency", "a", points, BAG_BENCH_CURVE, false};
    for (size_t i = 0; i < BAG_BENCH_CURVE; i++)
        points[i] = (struct bag_bench_point){(double)i / 8, best->curve_ms[i]};
    bag_bench_write_plot(stream, &(struct bag_bench_plot){.title = "Percentiles",
                                                          .x_name = "of all requests within",
                                                          .y_name = "ms",
                                                          .log_y = true,
                                                          .lines = &line,
                                                          .count = 1,
                                                          .ticks = ticks,
                                                          .num_ticks = COUNT_OF(ticks)});
}

static void write_over_time(const struct bag_bench_measured *best, FILE *stream)
{
    struct bag_bench_point points[4][BAG_BENCH_WINDOWS];
    for (size_t i = 0; i < BAG_BENCH_WINDOWS; i++) {
        const struct bag_bench_window *window = &best->windows[i];
        double at = ((double)i + 0.5) * best->window_s;
        points[0][i] = (struct bag_bench_point){at, window->p50_ms};
        points[1][i] = (struct bag_bench_point){at, window->p99_ms};
        points[2][i] = (struct bag_bench_point){at, (double)window->answered / best->window_s};
        points[3][i] = (struct bag_bench_point){at, (double)window->errors / best->window_s};
    }
    const struct bag_bench_line times[] = {{"p50", "a", points[0], BAG_BENCH_WINDOWS, false},
                                           {"p99", "b", points[1], BAG_BENCH_WINDOWS, false}};
    const struct bag_bench_line rates[] = {
        {"answered with 200", "a", points[2], BAG_BENCH_WINDOWS, false},
        {"errors", "b", points[3], BAG_BENCH_WINDOWS, false}};
    bag_bench_write_plot(stream, &(struct bag_bench_plot){.title = "Latency over time",
                                                          .x_name = "seconds",
                                                          .y_name = "ms",
                                                          .log_y = true,
                                                          .lines = times,
                                                          .count = 2});
    bag_bench_write_plot(stream,
                         &(struct bag_bench_plot){.title = "Requests over time, by when due",
                                                  .x_name = "seconds",
                                                  .y_name = "a second",
                                                  .lines = rates,
                                                  .count = 2});
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void write_row(const struct bag_bench_run *run, bool is_best, FILE *stream)
{
    uint64_t errors = 0;
    for (size_t i = 0; i < run->num_errors; i++)
        errors += run->errors[i].count;
    fprintf(stream, "<tr%s><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td>",
            is_best ? " class=\"best\"" : "",
            run->rate > 0 ? bag_bench_digits(run->rate).text : "-",
            bag_bench_digits(run->requests_per_s).text, bag_bench_digits(run->bags_per_s).text,
            bag_bench_digits(run->rows_per_s).text,
            bag_bench_digits(run->bytes_gathered_per_s / 1e9).text);
#define BAG_X(member, key, share) \
    fprintf(stream, "<td>%s</td>", bag_bench_digits(run->latency_ms.member).text);
    BAG_BENCH_PERCENTILES(BAG_X)
#undef BAG_X
    fprintf(stream, "<td>%llu</td><td>%s</td></tr>\n", (unsigned long long)errors,
            bag_bench_digits(run->late_p99_ms).text);
}

static void write_runs(const struct bag_bench_report *report, const struct bag_bench_run *best,
                       const char *title, FILE *stream)
{
    fprintf(stream,
            "<h2>%s</h2>\n<div class=\"scroll\"><table><tr><th>wanted/s</th><th>requests/s</th>"
            "<th>bags/s</th><th>rows/s</th><th>GB/s</th>",
            title);
#define BAG_X(member, key, share) fputs("<th>" key " ms</th>", stream);
    BAG_BENCH_PERCENTILES(BAG_X)
#undef BAG_X
    fputs("<th>errors</th><th>generator late p99 ms</th></tr>\n", stream);
    for (size_t i = 0; i < report->num_runs; i++)
        write_row(&report->runs[i], &report->runs[i] == best, stream);
    fputs("</table></div>\n", stream);
}

static void write_errors(const struct bag_bench_report *report, FILE *stream)
{
    size_t count = 0;
    for (size_t i = 0; i < report->num_runs; i++)
        count += report->runs[i].num_errors;
    if (count == 0)
        return;
    fputs("<h2>Errors</h2>\n<div class=\"scroll\"><table><tr><th>wanted/s</th><th>status</th>"
          "<th>count</th><th class=\"text\">the first</th></tr>\n",
          stream);
    for (size_t i = 0; i < report->num_runs; i++) {
        const struct bag_bench_run *run = &report->runs[i];
        for (size_t k = 0; k < run->num_errors; k++) {
            fprintf(stream, "<tr><td>%s</td><td>",
                    run->rate > 0 ? bag_bench_digits(run->rate).text : "-");
            bag_bench_write_text(stream, run->errors[k].kind);
            fprintf(stream, "</td><td>%llu</td><td class=\"text\">",
                    (unsigned long long)run->errors[k].count);
            bag_bench_write_text(stream, run->errors[k].first);
            fputs("</td></tr>\n", stream);
        }
    }
    fputs("</table></div>\n", stream);
}

/* ---- the page -------------------------------------------------------------------------------- */

static void write_fact(FILE *stream, double value, const char *unit, const char *what)
{
    fprintf(stream, "<div><b>%s%s</b><span>%s</span></div>\n", bag_bench_digits(value).text, unit,
            what);
}

static void write_head(const struct bag_bench_session *session, FILE *stream)
{
    const struct bag_bench_report *report = &session->report;
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width\">"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\"><title>bagserve bench: ",
          stream);
    bag_bench_write_text(stream, report->model);
    fprintf(stream, "</title>\n<style>%s</style></head><body>\n<h1>bagserve bench: ", style);
    bag_bench_write_text(stream, *report->model ? report->model : session->options->get_path);
    fputs("</h1>\n<p class=\"about\">", stream);
    bag_bench_write_text(stream, report->url);
    fprintf(stream, ", %s, seed %llu, measured by bagserve " BAG_VERSION "</p>\n",
            bag_bench_modes[report->mode], (unsigned long long)report->seed);
}

static void write_facts(const struct bag_bench_session *session,
                        const struct bag_bench_measured *best, FILE *stream)
{
    const struct bag_bench_report *report = &session->report;
    const struct bag_bench_run *run = &best->run;
    fputs("<div class=\"facts\">\n", stream);
    if (report->highest_rate > 0)
        write_fact(stream, report->highest_rate, "/s", "the highest rate that holds");
    write_fact(stream, run->requests_per_s, "/s", "requests answered");
    write_fact(stream, run->rows_per_s, "/s", "rows gathered");
    write_fact(stream, run->latency_ms.p50, " ms", "p50: half are faster");
    write_fact(stream, run->latency_ms.p99, " ms", "p99: 99 of 100 are faster");
    fputs("</div>\n", stream);
    if (report->mode == BAG_BENCH_SWEEP && report->highest_rate < 0)
        fprintf(stream,
                "<p class=\"note\">No rate was found that holds, with p99 within %g ms.</p>\n",
                report->slo_ms);
    if (report->generator_limited)
        fputs("<p class=\"note\">The generator was the limit, not the server.</p>\n", stream);
    if (session->changed)
        fputs("<p class=\"note\">The model's metadata changed while it was asked.</p>\n", stream);
}

bool bag_bench_write_page(const struct bag_bench_session *session, FILE *stream)
{
    const struct bag_bench_report *report = &session->report;
    const struct bag_bench_measured *best = find_best(session);
    const struct bag_bench_run *run = &report->runs[best - session->measured];
    write_head(session, stream);
    write_facts(session, best, stream);
    if (report->num_runs > 1)
        fprintf(stream,
                "<p class=\"about\">These, percentiles and times are of the run at %s requests a "
                "second.</p>\n",
                bag_bench_digits(run->rate > 0 ? run->rate : run->requests_per_s).text);
    fputs("<div class=\"plots\">\n", stream);
    bool ok = write_rates(session, stream);
    write_percentiles(best, stream);
    write_over_time(best, stream);
    fputs("</div>\n", stream);
    write_runs(report, run, "All runs", stream);
    if (session->has_before)
        write_runs(&session->before, NULL, "Before", stream);
    write_errors(report, stream);
    fputs("</body></html>\n", stream);
    return ok;
}
