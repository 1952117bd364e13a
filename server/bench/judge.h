/* Decides whether a run of a sweep held its rate, and says what hindered a decision.
 *
 * A run decides nothing if it is too short or the generator disturbed it. It needs
 * BAG_BENCH_DECIDING_REQUESTS requests or BAG_BENCH_DECIDING_S seconds, and the p99 of the
 * generator's own delay must be at most a tenth of the objective. Otherwise the figures would be
 * those of chance, or of the generator's machine. The functions are pure. */
#pragma once

#include "proto/bench_report.h"

#define BAG_BENCH_DECIDING_REQUESTS 1000
#define BAG_BENCH_DECIDING_S        10.0

/* X(ID, "text") */
#define BAG_BENCH_JUDGEMENTS(X)                                             \
    X(HOLDS, "holds")                                                       \
    X(FAILS, "does not hold")                                               \
    X(HOPELESS, "does not hold: each reply took longer than the objective") \
    X(TOO_FEW, "decides nothing: too few requests")                         \
    X(GENERATOR, "decides nothing: the generator was late or busy")

enum bag_bench_judgement {
#define BAG_X(id, text) BAG_BENCH_##id,
    BAG_BENCH_JUDGEMENTS(BAG_X)
#undef BAG_X
        BAG_BENCH_JUDGEMENT_COUNT
};

extern const char *const bag_bench_judgements[BAG_BENCH_JUDGEMENT_COUNT];

/* Returns the outcome of a run. It holds if 99 % of all requests that were due were answered with
 * 200, and p99 is within the objective. HOPELESS, a kind of FAILS, means at a low rate that no rate
 * holds: even without the generator's delay the fastest reply exceeded the objective. */
enum bag_bench_judgement bag_bench_judge(const struct bag_bench_run *run, double slo_ms);

/* Returns the duration of a run at a rate that has enough requests to decide, at least
 * `least_s`. In a run of ten times the objective, the queue of a server that is 10 % too slow grows
 * beyond it. */
double bag_bench_deciding_seconds(double rate, double slo_ms, double least_s);

/* Returns whether the generator, not the server, kept a run from its rate. */
bool bag_bench_is_generator_limit(const struct bag_bench_run *run);

/* Set report->hindered_by, to what hindered a verdict and what to do about it.
 * bag_bench_explain_run: `run` decides nothing. bag_bench_explain_bounds: no rate fails although
 * lower ones hold (`held`), or no rate holds down to that of `run`. */
void bag_bench_explain_run(struct bag_bench_report *report, const struct bag_bench_run *run,
                           enum bag_bench_judgement outcome);
void bag_bench_explain_bounds(struct bag_bench_report *report, const struct bag_bench_run *run,
                              bool held);

/* Adds the highest rate that held to what hindered a verdict about higher ones. */
void bag_bench_explain_held(struct bag_bench_report *report, double rate);
