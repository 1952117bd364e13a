/* The outcome of a run of a sweep; see judge.h. */
#include "judge.h"

#include "proto/text.h"

#include <math.h>
#include <stdio.h>

#define MAX_LATE_PART  10   /* the generator may be late by this part of the objective */
#define MAX_CPU        0.95 /* a generator that uses more of a processor may be the limit */
#define HELD_PART      0.99 /* the part of requests that must be answered */
#define OBJECTIVES     10   /* a run lasts as long as this number of objectives */
#define SPARE_REQUESTS 1.2  /* arrivals are random, and some runs get fewer than the mean */

const char *const bag_bench_judgements[BAG_BENCH_JUDGEMENT_COUNT] = {
#define BAG_X(id, text) text,
    BAG_BENCH_JUDGEMENTS(BAG_X)
#undef BAG_X
};

/* Returns the number of requests that were due, including those that never left. */
static double num_due(const struct bag_bench_run *run)
{
    double due = (double)run->answered;
    for (size_t i = 0; i < run->num_errors; i++)
        due += (double)run->errors[i].count;
    return due;
}

/* Returns the latency of the fastest reply. */
static double fastest_ms(const struct bag_bench_run *run)
{
    return run->curve_ms[0];
}

enum bag_bench_judgement bag_bench_judge(const struct bag_bench_run *run, double slo_ms)
{
    const double due = num_due(run);
    bool is_long = due >= BAG_BENCH_DECIDING_REQUESTS || run->seconds >= BAG_BENCH_DECIDING_S;
    if (is_long && run->answered > 0 && fastest_ms(run) > slo_ms + run->late_p99_ms)
        return BAG_BENCH_HOPELESS;
    if (run->late_p99_ms >= slo_ms / MAX_LATE_PART)
        return BAG_BENCH_GENERATOR;
    if (!is_long)
        return BAG_BENCH_TOO_FEW;
    if (run->answered > 0 && (double)run->answered >= HELD_PART * due &&
        run->latency_ms.p99 <= slo_ms)
        return BAG_BENCH_HOLDS;
    return run->generator_cpu > MAX_CPU ? BAG_BENCH_GENERATOR : BAG_BENCH_FAILS;
}

double bag_bench_deciding_seconds(double rate, double slo_ms, double least_s)
{
    least_s = fmax(least_s, OBJECTIVES * slo_ms / 1e3);
    return fmax(least_s,
                fmin(SPARE_REQUESTS * BAG_BENCH_DECIDING_REQUESTS / rate, BAG_BENCH_DECIDING_S));
}

bool bag_bench_is_generator_limit(const struct bag_bench_run *run)
{
    /* The generator was late if its own delay makes up half of p99 and exceeds 1 ms. */
    bool is_late = run->late_p99_ms > 1 && run->late_p99_ms > run->latency_ms.p99 / 2;
    return is_late || run->generator_cpu > MAX_CPU;
}

void bag_bench_explain_run(struct bag_bench_report *report, const struct bag_bench_run *run,
                           enum bag_bench_judgement outcome)
{
    report->generator_limited = outcome == BAG_BENCH_GENERATOR;
    if (outcome == BAG_BENCH_TOO_FEW)
        snprintf(report->hindered_by, sizeof report->hindered_by,
                 "At %.4g requests/s, %.0f requests were due in %.3g s. A run decides with %d "
                 "requests or %g s: set --duration %g.",
                 run->rate, num_due(run), run->seconds, BAG_BENCH_DECIDING_REQUESTS,
                 BAG_BENCH_DECIDING_S, BAG_BENCH_DECIDING_S);
    else
        snprintf(report->hindered_by, sizeof report->hindered_by,
                 "At %.4g requests/s, the generator itself was late by %.3g ms (p99) and used %.0f "
                 "%% of a processor. A verdict needs less than %.3g ms, a tenth of the objective, "
                 "and a generator with a processor of its own. Measure from another machine, keep "
                 "other programs from "
                 "its processor (taskset), or choose a lower rate with --rate.",
                 run->rate, run->late_p99_ms, 100 * run->generator_cpu,
                 report->slo_ms / MAX_LATE_PART);
}

void bag_bench_explain_bounds(struct bag_bench_report *report, const struct bag_bench_run *run,
                              bool held)
{
    if (held)
        snprintf(report->hindered_by, sizeof report->hindered_by,
                 "No rate up to %.4g requests/s failed. Measure higher rates with --rate.",
                 run->rate);
    else
        snprintf(
            report->hindered_by, sizeof report->hindered_by,
            "No rate holds. At %.4g requests/s, %.0f of %.0f requests were answered, the fastest "
            "in %.3g ms, p99 in %.3g ms. Set an objective that the server can meet "
            "(--slo-ms), or smaller requests.",
            run->rate, (double)run->answered, num_due(run), fastest_ms(run), run->latency_ms.p99);
}

void bag_bench_explain_held(struct bag_bench_report *report, double rate)
{
    bag_text_add(report->hindered_by, sizeof report->hindered_by,
                 " The highest rate that was seen to hold is %.4g requests/s.", rate);
}
