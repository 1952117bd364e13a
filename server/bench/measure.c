/* The runs that make up a measurement: one closed loop, rates one after the other, or a sweep; see
 * session.h. */
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DRAIN_S 5.0

/* ---- runs ------------------------------------------------------------------------------------ */

bool bag_bench_generator_limits(const struct bag_bench_measured *measured)
{
    const struct bag_bench_run *run = &measured->run;
    bool is_late = run->late_p99_ms > 1 && run->late_p99_ms > run->latency_ms.p99 / 2;
    return is_late || measured->cpu_share > 0.95;
}

bool bag_bench_holds(const struct bag_bench_run *run, double slo_ms)
{
    uint64_t due = run->answered; /* also those that never left */
    for (size_t i = 0; i < run->num_errors; i++)
        due += run->errors[i].count;
    return run->answered > 0 && (double)run->answered >= 0.99 * (double)due &&
           run->latency_ms.p99 <= slo_ms;
}

/* Runs the plan, and adds its runs to the report. */
static bool run_plan(struct bag_bench_session *session, const struct bag_bench_plan *plan,
                     struct bag_problem *problem)
{
    struct bag_bench_report *report = &session->report;
    size_t count = report->num_runs, room = count + plan->num_steps, ran;
    void *runs = reallocarray(report->runs, room, sizeof *report->runs);
    if (runs)
        report->runs = runs;
    void *measured = reallocarray(session->measured, room, sizeof *session->measured);
    if (measured)
        session->measured = measured;
    if (!runs || !measured)
        return bag_problem_no_memory(problem);
    bool ok = bag_bench_load_run(session->load, plan, session->measured + count, &ran, problem);
    for (size_t i = 0; i < ran; i++)
        report->runs[count + i] = session->measured[count + i].run;
    report->num_runs += ran;
    return ok;
}

static struct bag_bench_measured *last(struct bag_bench_session *session)
{
    return &session->measured[session->report.num_runs - 1];
}

/* ---- a sweep --------------------------------------------------------------------------------- */

/* A step that holds by far is enough; else two of three decide, as one pause of the machine may be
 * what a step failed by. */
#define TRIES       3
#define BY_FAR      2.0
#define WANTED_STEP 1.05
#define MAX_RISES   16
#define MAX_HALVES  12

/* What a step beyond the limit left in the server's queue must not count for the next. */
static void let_settle(void)
{
    const struct timespec pause = {.tv_nsec = 200000000};
    nanosleep(&pause, NULL);
}

static bool try_once(struct bag_bench_session *session, double rate, bool *holds,
                     struct bag_problem *problem)
{
    const struct bag_bench_step step = {rate, session->options->steps[0].seconds};
    const struct bag_bench_plan plan = {.open = true,
                                        .steps = &step,
                                        .num_steps = 1,
                                        .warmup_s = fmin(0.25, step.seconds / 4),
                                        .drain_s = 1};
    if (!run_plan(session, &plan, problem))
        return false;
    *holds = bag_bench_holds(&last(session)->run, session->options->slo_ms);
    bag_bench_tell_run(&last(session)->run, *holds ? "holds" : "does not hold");
    if (!*holds) {
        session->report.generator_limited = bag_bench_generator_limits(last(session));
        let_settle();
    }
    return true;
}

static bool try_rate(struct bag_bench_session *session, double rate, bool *holds,
                     struct bag_problem *problem)
{
    int held = 0, broke = 0;
    for (int i = 0; i < TRIES && held < 2 && broke < 2; i++) {
        if (!try_once(session, rate, holds, problem))
            return false;
        if (*holds && last(session)->run.latency_ms.p99 * BY_FAR < session->options->slo_ms)
            return true;
        *(*holds ? &held : &broke) += 1;
    }
    *holds = held > broke;
    return true;
}

/* Raises or lowers the rate until one holds (*low) and the next does not (*high). */
static bool find_bounds(struct bag_bench_session *session, double peak, double *low, double *high,
                        struct bag_problem *problem)
{
    bool holds;
    double rate = peak / 4;
    *low = *high = 0;
    for (int i = 0; i < MAX_RISES && (*low == 0 || *high == 0) && rate >= 0.1; i++) {
        if (!try_rate(session, rate, &holds, problem))
            return false;
        *(holds ? low : high) = rate;
        rate = holds ? rate * (rate < 0.7 * peak ? 1.5 : 1.15) : rate / 2;
    }
    return true;
}

static bool halve(struct bag_bench_session *session, double *low, double *high,
                  struct bag_problem *problem)
{
    bool holds;
    for (int i = 0; i<MAX_HALVES && * low> 0 && *high > *low * WANTED_STEP; i++) {
        double rate = sqrt(*low * *high);
        if (!try_rate(session, rate, &holds, problem))
            return false;
        *(holds ? low : high) = rate;
    }
    return true;
}

/* How fast answers come without a rate says where to begin. */
static bool sweep(struct bag_bench_session *session, struct bag_problem *problem)
{
    const struct bag_bench_options *options = session->options;
    const struct bag_bench_plan probe = {.steps = options->steps,
                                         .num_steps = 1,
                                         .warmup_s = options->warmup_s,
                                         .requests = UINT64_MAX};
    double low, high;
    if (!run_plan(session, &probe, problem))
        return false;
    bag_bench_tell_run(&last(session)->run, "as fast as answers come");
    double peak = last(session)->run.requests_per_s;
    if (peak <= 0)
        return true;
    bool ok =
        find_bounds(session, peak, &low, &high, problem) && halve(session, &low, &high, problem);
    if (ok && low > 0)
        session->report.highest_rate = low;
    return ok;
}

/* ---- one measurement ------------------------------------------------------------------------- */

static bool run_once(struct bag_bench_session *session, struct bag_problem *problem)
{
    const struct bag_bench_options *options = session->options;
    const struct bag_bench_plan plan = {.open = options->mode == BAG_BENCH_OPEN,
                                        .steps = options->steps,
                                        .num_steps = options->num_steps,
                                        .warmup_s = options->warmup_s,
                                        .drain_s = DRAIN_S,
                                        .requests = options->requests,
                                        .tell = bag_bench_tell_progress};
    bool ok = run_plan(session, &plan, problem);
    for (size_t i = 0; i < session->report.num_runs; i++)
        session->report.generator_limited |= bag_bench_generator_limits(&session->measured[i]);
    return ok;
}

/* Nothing but errors: what the first of them says. */
static bool check_answered(const struct bag_bench_report *report, struct bag_problem *problem)
{
    for (size_t i = 0; i < report->num_runs; i++) {
        if (report->runs[i].answered)
            return true;
    }
    for (size_t i = 0; i < report->num_runs; i++) {
        const struct bag_bench_error *error = report->runs[i].errors;
        if (report->runs[i].num_errors)
            return bag_problem_set(problem, BAG_ERROR_SYSTEM, "nothing was answered: %s: %s",
                                   error->kind, error->first);
    }
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "nothing was answered");
}

bool bag_bench_measure(struct bag_bench_session *session, struct bag_problem *problem)
{
    bool ok = session->options->mode == BAG_BENCH_SWEEP ? sweep(session, problem)
                                                        : run_once(session, problem);
    return ok && check_answered(&session->report, problem);
}
