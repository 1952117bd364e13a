/* See loadgen_report.h. */
#include "loadgen_report.h"

#include <stdio.h>

/* So many windows in a row must be normal, and this share of the requests in each. */
#define SETTLED_WINDOWS 5
#define SETTLED_SHARE   0.99

static bool window_is_normal(const struct bench_window *window)
{
    return window->normal >= SETTLED_SHARE * window->due;
}

/* Milliseconds from the start of the phase until answers were normal for half a second; -1: never.
 */
static double settled_ms(const struct bench_phase *phase)
{
    size_t needed = phase->num_windows < SETTLED_WINDOWS ? phase->num_windows : SETTLED_WINDOWS,
           run = 0;
    for (size_t i = 0; i < phase->num_windows; i++) {
        run = window_is_normal(&phase->windows[i]) ? run + 1 : 0;
        if (run == needed)
            return (double)((i + 1 - needed) * BENCH_WINDOW_NS) / 1e6;
    }
    return -1;
}

static uint64_t unanswered(const struct bench_phase *phase)
{
    return phase->due - phase->unsent - phase->lost - phase->other - phase->ok.total -
           phase->rejected.total;
}

static void print_phase_row(const struct bench_phase *phase)
{
    fprintf(stderr,
            "%9.0f %9.0f %9.0f %8.0f %8.0f %8.0f %8.0f %7llu %9.0f %7.0f %7llu %6llu %6llu %7llu",
            phase->rate, (double)phase->answered / phase->seconds,
            (double)phase->normal / phase->seconds, bench_latency_us(&phase->ok, 0.5),
            bench_latency_us(&phase->ok, 0.99), bench_latency_us(&phase->ok, 0.999),
            bench_latency_us(&phase->ok, 1), (unsigned long long)phase->rejected.total,
            bench_latency_us(&phase->rejected, 0.99),
            bench_latency_us(&phase->rejected_once_sent, 0.99), (unsigned long long)phase->unsent,
            (unsigned long long)phase->lost, (unsigned long long)phase->other,
            (unsigned long long)unanswered(phase));
    if (phase->windows)
        fprintf(stderr, " %8.0f %8.0f", bench_latency_us(&phase->late, 0.99), settled_ms(phase));
    fputc('\n', stderr);
}

static void print_table(const struct bench_report *report)
{
    fprintf(stderr, "%9s %9s %9s %8s %8s %8s %8s %7s %9s %7s %7s %6s %6s %7s", "rate/s", "200s/s",
            "in time/s", "p50 us", "p99 us", "p99.9", "max", "503s", "their p99", "sent", "unsent",
            "lost", "other", "no reply");
    if (report->open)
        fprintf(stderr, " %8s %8s", "late p99", "normal");
    fputc('\n', stderr);
    for (size_t i = 0; i < report->num_phases; i++)
        print_phase_row(&report->phases[i]);
    fprintf(stderr, "in time: 200s within %g ms (--normal-ms) of when they were due\n",
            report->normal_ms);
    if (report->open)
        fprintf(stderr,
                "late p99: how late the generator itself was, in us; normal: ms until 99 %% "
                "of answers were in time, for half a second (-1: never)\n");
}

static void print_phase_json(const struct bench_phase *phase)
{
    printf("{\"rate\":%.1f,\"seconds\":%.3f,\"due\":%llu,\"answered_per_s\":%.1f,"
           "\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f,",
           phase->rate, phase->seconds, (unsigned long long)phase->due,
           (double)phase->answered / phase->seconds, bench_latency_us(&phase->ok, 0.5),
           bench_latency_us(&phase->ok, 0.9), bench_latency_us(&phase->ok, 0.99),
           bench_latency_us(&phase->ok, 0.999), bench_latency_us(&phase->ok, 1));
    printf("\"ok\":%llu,\"rejected\":%llu,\"rejected_p50_us\":%.1f,\"rejected_p99_us\":%.1f,"
           "\"rejected_once_sent_p99_us\":%.1f,",
           (unsigned long long)phase->ok.total, (unsigned long long)phase->rejected.total,
           bench_latency_us(&phase->rejected, 0.5), bench_latency_us(&phase->rejected, 0.99),
           bench_latency_us(&phase->rejected_once_sent, 0.99));
    printf("\"unsent\":%llu,\"lost\":%llu,\"other\":%llu,\"unanswered\":%llu,"
           "\"in_time_per_s\":%.1f,\"late_p99_us\":%.1f,\"normal_after_ms\":%.0f}",
           (unsigned long long)phase->unsent, (unsigned long long)phase->lost,
           (unsigned long long)phase->other, (unsigned long long)unanswered(phase),
           (double)phase->normal / phase->seconds, bench_latency_us(&phase->late, 0.99),
           settled_ms(phase));
}

void bench_report_print(const struct bench_report *report)
{
    print_table(report);
    printf("{\"loop\":\"%s\",\"connections\":%u,\"cpu_s\":%.3f,\"phases\":[",
           report->open ? "open" : "closed", report->connections, report->cpu_seconds);
    for (size_t i = 0; i < report->num_phases; i++) {
        if (i)
            putchar(',');
        print_phase_json(&report->phases[i]);
    }
    printf("]}\n");
}
