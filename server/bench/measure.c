/* The runs of a measurement: one closed loop, several rates, or a sweep; see session.h. */
#include "judge.h"
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The maximum wait for the last replies of an open loop. */
#define DRAIN_S 5.0

/* ---- runs ------------------------------------------------------------------------------------ */

/* Executes the plan and adds its runs to the report. */
static bool run_plan(struct bag_bench_session *session, const struct bag_bench_plan *plan,
                     struct bag_problem *problem)
{
    struct bag_bench_report *report = &session->report;
    size_t count = report->num_runs, ran;
    void *runs = reallocarray(report->runs, count + plan->num_steps, sizeof *report->runs);
    if (!runs)
        return bag_problem_no_memory(problem);
    report->runs = runs;
    bool ok = bag_bench_load_run(session->load, plan, report->runs + count, &ran, problem);
    report->num_runs += ran;
    return ok;
}

/* Returns the last run of the report. */
static const struct bag_bench_run *last(const struct bag_bench_session *session)
{
    return &session->report.runs[session->report.num_runs - 1];
}

/* ---- a sweep --------------------------------------------------------------------------------- */

/* A sweep. A run that holds by a wide margin (BY_FAR) is enough. Otherwise two of three runs
 * decide, because one pause of the machine can make a run fail. If MAX_UNMEASURED runs at a rate
 * decide nothing, the sweep ends without a verdict. Halving ends when the two bounds differ by less
 * than the factor WANTED_STEP. */
#define DECIDING_RUNS  2
#define MAX_UNMEASURED 3
#define BY_FAR         2.0
#define WANTED_STEP    1.05
#define MAX_RISES      16
#define MAX_HALVES     12
/* The lowest rate of a sweep, as a part of the closed loop's throughput. */
#define LOWEST_PART 32

/* Measures one run at a rate. Sets *outcome. Returns false and sets *problem if the run ended
 * early. */
static bool try_once(struct bag_bench_session *session, double rate,
                     enum bag_bench_judgement *outcome, struct bag_problem *problem)
{
    const double slo_ms = session->options->slo_ms;
    const struct bag_bench_step step = {
        rate, bag_bench_deciding_seconds(rate, slo_ms, session->options->steps[0].seconds)};
    const struct bag_bench_plan plan = {.open = true,
                                        .steps = &step,
                                        .num_steps = 1,
                                        .warmup_s = fmin(0.25, step.seconds / 4),
                                        .drain_s = 1};
    if (!run_plan(session, &plan, problem))
        return false;
    *outcome = bag_bench_judge(last(session), slo_ms);
    bag_bench_print_run(last(session), bag_bench_judgements[*outcome]);
    /* Wait until the server has emptied the queue that a rate above its limit has left. */
    if (*outcome != BAG_BENCH_HOLDS)
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    return true;
}

/* Measures a rate until its outcome is clear. Sets *outcome, and what hindered a verdict if that is
 * neither HOLDS nor FAILS. */
static bool try_rate(struct bag_bench_session *session, double rate,
                     enum bag_bench_judgement *outcome, struct bag_problem *problem)
{
    int counts[BAG_BENCH_JUDGEMENT_COUNT] = {0};
    for (;;) {
        if (!try_once(session, rate, outcome, problem))
            return false;
        /* A wide margin decides at once, and otherwise the majority. */
        if (*outcome == BAG_BENCH_HOLDS &&
            last(session)->latency_ms.p99 * BY_FAR < session->options->slo_ms)
            return true;
        int count = ++counts[*outcome];
        if (*outcome == BAG_BENCH_HOPELESS ||
            (*outcome == BAG_BENCH_HOLDS && count == DECIDING_RUNS) ||
            (*outcome == BAG_BENCH_FAILS && count == DECIDING_RUNS))
            return true;
        if (counts[BAG_BENCH_TOO_FEW] + counts[BAG_BENCH_GENERATOR] == MAX_UNMEASURED) {
            bag_bench_explain_run(&session->report, last(session), *outcome);
            return true;
        }
    }
}

/* Raises or lowers the rate until a rate holds (*low) and the next one does not (*high). Sets what
 * hindered a verdict if there are no such rates. */
static bool find_bounds(struct bag_bench_session *session, double peak, double *low, double *high,
                        struct bag_problem *problem)
{
    struct bag_bench_report *report = &session->report;
    enum bag_bench_judgement outcome;
    /* Far below the peak of the closed loop, larger steps are enough. */
    double rate = peak / 4;
    *low = *high = 0;
    for (int i = 0; i < MAX_RISES && (*low == 0 || *high == 0) && rate >= peak / LOWEST_PART; i++) {
        if (!try_rate(session, rate, &outcome, problem))
            return false;
        if (*report->hindered_by)
            return true;
        bool holds = outcome == BAG_BENCH_HOLDS;
        *(holds ? low : high) = rate;
        /* At a quarter of the peak or less, some requests find an idle server. */
        if (*low == 0 && outcome == BAG_BENCH_HOPELESS)
            break;
        rate = holds ? rate * (rate < 0.7 * peak ? 1.5 : 1.15) : rate / 2;
    }
    if (*low == 0 || *high == 0)
        bag_bench_explain_bounds(report, last(session), *low > 0);
    return true;
}

/* Narrows the bounds. The middle is the geometric one, because the precision that is wanted is a
 * factor. */
static bool halve(struct bag_bench_session *session, double *low, double *high,
                  struct bag_problem *problem)
{
    enum bag_bench_judgement outcome;
    for (int i = 0; i<MAX_HALVES && * high> * low * WANTED_STEP; i++) {
        double rate = sqrt(*low * *high);
        if (!try_rate(session, rate, &outcome, problem))
            return false;
        if (*session->report.hindered_by)
            return true;
        *(outcome == BAG_BENCH_HOLDS ? low : high) = rate;
    }
    return true;
}

/* Orders runs by rate, and runs of one rate by p99. */
static int compare_runs(const void *a, const void *b)
{
    const struct bag_bench_run *left = a, *right = b;
    if (left->rate != right->rate)
        return left->rate < right->rate ? -1 : 1;
    return left->latency_ms.p99 < right->latency_ms.p99   ? -1
           : left->latency_ms.p99 > right->latency_ms.p99 ? 1
                                                          : 0;
}

/* Measures a sweep: a closed loop whose throughput is where the search starts, then the bounds,
 * then the rates between them. */
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
    bag_bench_print_run(last(session), "as fast as answers come");
    double peak = last(session)->requests_per_s;
    if (peak <= 0)
        return true;
    if (!find_bounds(session, peak, &low, &high, problem))
        return false;
    if (!*session->report.hindered_by && !halve(session, &low, &high, problem))
        return false;
    if (!*session->report.hindered_by)
        session->report.highest_rate = low;
    else if (low > 0)
        bag_bench_explain_held(&session->report, low);
    return true;
}

/* ---- one measurement ------------------------------------------------------------------------- */

/* Measures a closed loop or the given rates, as one plan. */
static bool run_once(struct bag_bench_session *session, struct bag_problem *problem)
{
    const struct bag_bench_options *options = session->options;
    const struct bag_bench_plan plan = {.open = options->mode == BAG_BENCH_OPEN,
                                        .steps = options->steps,
                                        .num_steps = options->num_steps,
                                        .warmup_s = options->warmup_s,
                                        .drain_s = DRAIN_S,
                                        .requests = options->requests,
                                        .on_progress = bag_bench_print_progress};
    bool ok = run_plan(session, &plan, problem);
    for (size_t i = 0; i < session->report.num_runs; i++)
        session->report.generator_limited |= bag_bench_is_generator_limit(&session->report.runs[i]);
    return ok;
}

/* Returns false and sets *problem, to the first error, if no request was answered with 200. */
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
    return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "nothing was answered in time; set a longer --duration");
}

bool bag_bench_measure(struct bag_bench_session *session, struct bag_problem *problem)
{
    bool is_sweep = session->options->mode == BAG_BENCH_SWEEP;
    bool ok = is_sweep ? sweep(session, problem) : run_once(session, problem);
    if (is_sweep) {
        /* Sort the runs, and find the one that decides: of the runs at the highest rate that holds
         * the one with the median p99. */
        struct bag_bench_report *report = &session->report;
        qsort(report->runs, report->num_runs, sizeof *report->runs, compare_runs);
        /* The runs at the highest rate that holds are from `first` to `end`, ordered by p99. */
        size_t first = 0, end;
        while (first < report->num_runs && report->runs[first].rate < report->highest_rate)
            first++;
        for (end = first; end < report->num_runs && report->runs[end].rate <= report->highest_rate;)
            end++;
        if (report->highest_rate > 0 && end > first)
            report->deciding_run = first + (end - first - 1) / 2;
    }
    return ok && check_answered(&session->report, problem);
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Notes how the workload and the machine of the earlier report differ from those of this one. */
static void note_comparison(struct bag_bench_session *session)
{
    const struct bag_bench_report *before = &session->before;
    struct bag_bench_report *report = &session->report;
    char text[BAG_BENCH_NOTE_BYTES - 100];
    if (!*before->date)
        bag_bench_report_note(report, "The report before does not say its workload.");
    else if (bag_bench_workload_compare(&before->workload, &report->workload, text, sizeof text) &&
             *text)
        bag_bench_report_note(report, "The workload before was another one (before and now): %s.",
                              text);
    if (*before->date && (strcmp(before->host, report->host) != 0 ||
                          strcmp(before->processor, report->processor) != 0))
        bag_bench_report_note(report, "The report before is of another machine: %s, %s.",
                              before->host, before->processor);
}

void bag_bench_note_limits(struct bag_bench_session *session)
{
    struct bag_bench_report *report = &session->report;
    if (report->generator_limited && !*report->hindered_by)
        bag_bench_report_note(report,
                              "The generator was the limit, not the server: it was late itself, or "
                              "used all of its processor. Ask from another machine, or give it a "
                              "processor of its own (taskset).");
    if (!bag_bench_target_is_same(session->target))
        bag_bench_report_note(report, "The model's metadata changed while it was asked: the "
                                      "figures are of two tables.");
    if (session->has_before)
        note_comparison(session);
}
