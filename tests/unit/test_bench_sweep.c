/* Sweeps of `bagserve bench`, with the test as the generator: which rates are measured, and the
 * verdict. */
#include "testing.h"

#include "server/bench/judge.h"
#include "server/bench/session.h"

#include <math.h>
#include <time.h>

#define SLO_MS 10.0

/* The server that is measured, and the rates that it was asked at, 0 for the closed loop. */
static struct {
    double peak, limit; /* requests per second of the closed loop; the highest rate that holds */
    double p99_ms;      /* p99 at rates that hold */
    void (*spoil)(struct bag_bench_run *run, size_t number); /* changes a run; NULL: nothing does */
    double rates[64];
    size_t count;
} server;

/* Takes the place of the generator. */
bool bag_bench_load_run(struct bag_bench_load *load, const struct bag_bench_plan *plan,
                        struct bag_bench_run *runs, size_t *ran, struct bag_problem *problem)
{
    const double rate = plan->steps->rate;
    (void)load;
    (void)problem;
    assert_int_equal(plan->num_steps, 1);
    assert_int_equal(plan->open, rate > 0);
    if (plan->open)
        assert_true(plan->steps->seconds == bag_bench_deciding_seconds(rate, SLO_MS, 1.5));
    *runs = (struct bag_bench_run){
        .rate = rate,
        .seconds = plan->steps->seconds,
        .answered = BAG_BENCH_DECIDING_REQUESTS,
        .requests_per_s = plan->open ? rate : server.peak,
        .latency_ms = {.p99 = rate <= server.limit ? server.p99_ms : 30 * SLO_MS}};
    if (plan->open && server.spoil)
        server.spoil(runs, server.count);
    assert_in_range(server.count, 0, COUNT_OF(server.rates) - 1);
    server.rates[server.count++] = rate;
    *ran = 1;
    return true;
}

/* A sweep sleeps after a run that does not hold. */
int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)wanted;
    (void)left;
    return 0;
}

/* Sweeps a server whose closed loop has 1,000 requests per second. The caller frees the report. */
static struct bag_bench_report sweep(double limit, double p99_ms,
                                     void (*spoil)(struct bag_bench_run *run, size_t number))
{
    static struct bag_bench_options options;
    static struct bag_bench_session session;
    struct bag_problem problem;
    server.peak = 1000;
    server.limit = limit;
    server.p99_ms = p99_ms;
    server.spoil = spoil;
    server.count = 0;
    options = (struct bag_bench_options){
        .mode = BAG_BENCH_SWEEP, .steps = {{0, 1.5}}, .num_steps = 1, .slo_ms = SLO_MS};
    session = (struct bag_bench_session){
        .options = &options,
        .report = {.highest_rate = -1, .slo_ms = SLO_MS, .deciding_run = SIZE_MAX}};
    assert_true(bag_bench_measure(&session, &problem));
    assert_int_equal(session.report.num_runs, server.count);
    return session.report;
}

/* The server was asked at exactly these rates, in this order. */
static void expect_rates(const double *rates, size_t count)
{
    assert_int_equal(server.count, count);
    for (size_t i = 0; i < count; i++) {
        if (server.rates[i] != rates[i])
            fail_msg("rate %zu is %g, not %g", i, server.rates[i], rates[i]);
    }
}

#define EXPECT_RATES(...) \
    expect_rates((const double[]){__VA_ARGS__}, COUNT_OF(((const double[]){__VA_ARGS__})))

/* There is no rate, and the reason begins with these words. Frees the report. */
static void expect_no_verdict(struct bag_bench_report *report, const char *words)
{
    assert_true(report->highest_rate == -1);
    assert_true(report->deciding_run == SIZE_MAX);
    if (strncmp(report->hindered_by, words, strlen(words)) != 0)
        fail_msg("'%s', not '%s'", report->hindered_by, words);
    bag_bench_report_free(report);
}

/* Bounds are found upwards from a quarter of the peak, and then halved until they are near. A rate
 * that fails is measured twice. */
TEST(finds_the_highest_rate_that_holds)
{
    struct bag_bench_report report = sweep(700, 1, NULL);
    const double low = sqrt(562.5 * 843.75), high = sqrt(low * 843.75), middle = sqrt(low * high),
                 last = sqrt(low * middle);
    EXPECT_RATES(0, 250, 375, 562.5, 843.75, 843.75, low, high, high, middle, middle, last, last);
    assert_true(report.highest_rate == low);
    assert_string_equal(report.hindered_by, "");
    for (size_t i = 1; i < report.num_runs; i++)
        assert_true(report.runs[i - 1].rate <= report.runs[i].rate);
    assert_int_equal(report.deciding_run, 4);
    assert_true(report.runs[4].rate == low);
    bag_bench_report_free(&report);
}

/* If a quarter of the peak does not hold, lower rates are measured. */
TEST(looks_downwards_for_a_rate_that_holds)
{
    struct bag_bench_report report = sweep(65, 1, NULL);
    const double first = sqrt(62.5 * 125), second = sqrt(62.5 * first), third = sqrt(62.5 * second),
                 last = sqrt(62.5 * third);
    EXPECT_RATES(0, 250, 250, 125, 125, 62.5, first, first, second, second, third, third, last,
                 last);
    assert_true(report.highest_rate == 62.5);
    bag_bench_report_free(&report);
}

static void spoil_the_first(struct bag_bench_run *run, size_t number)
{
    if (number == 1)
        run->latency_ms.p99 = 30 * SLO_MS;
}

/* One pause does not decide: a rate that fails is tried again before a lower one is. */
TEST(tries_again)
{
    struct bag_bench_report report = sweep(700, 1, spoil_the_first);
    assert_true(server.rates[1] == 250 && server.rates[2] == 250 && server.rates[3] == 375);
    assert_true(report.highest_rate == sqrt(562.5 * 843.75));
    bag_bench_report_free(&report);
}

static void vary_the_p99(struct bag_bench_run *run, size_t number)
{
    if (run->rate <= server.limit)
        run->latency_ms.p99 = number % 3 == 0 ? 30 * SLO_MS : 6 + (double)(number % 3);
}

/* Near the objective two of three runs decide, and of these the one with the median p99. */
TEST(majority_decides_near_the_objective)
{
    struct bag_bench_report report = sweep(270, 1, vary_the_p99);
    const double first = sqrt(250.0 * 375), high = sqrt(250 * first), low = sqrt(250 * high),
                 last = sqrt(low * high);
    EXPECT_RATES(0, 250, 250, 375, 375, first, first, high, high, low, low, low, last, last, last);
    assert_true(report.highest_rate == last);
    assert_true(report.runs[report.deciding_run].rate == last);
    assert_true(report.runs[report.deciding_run].latency_ms.p99 == 8);
    bag_bench_report_free(&report);
}

static void delay_the_generator(struct bag_bench_run *run, size_t number)
{
    (void)number;
    if (run->rate > server.limit)
        run->late_p99_ms = SLO_MS / 2;
}

/* Three runs at a rate that decide nothing end the sweep, whatever held before. */
TEST(late_generator_hinders_a_verdict)
{
    struct bag_bench_report report = sweep(100, 1, delay_the_generator);
    EXPECT_RATES(0, 250, 250, 250);
    assert_true(report.generator_limited);
    expect_no_verdict(&report, "At 250 requests/s, the generator itself was late by 5 ms (p99)");
    report = sweep(300, 1, delay_the_generator);
    EXPECT_RATES(0, 250, 375, 375, 375);
    assert_non_null(
        strstr(report.hindered_by, " The highest rate that was seen to hold is 250 requests/s."));
    expect_no_verdict(&report, "At 375 requests/s, the generator itself was late by 5 ms (p99)");
}

static void slow_down(struct bag_bench_run *run, size_t number)
{
    (void)number;
    run->curve_ms[0] = run->latency_ms.p99;
}

/* A thirty-second of the peak is the lowest rate. If each reply takes longer than the objective,
 * no lower rate is measured. */
TEST(says_that_no_rate_holds)
{
    struct bag_bench_report report = sweep(0, 1, NULL);
    EXPECT_RATES(0, 250, 250, 125, 125, 62.5, 62.5, 31.25, 31.25);
    expect_no_verdict(&report, "No rate holds. At 31.25 requests/s, 1000 of 1000");
    report = sweep(0, 1, slow_down);
    EXPECT_RATES(0, 250);
    expect_no_verdict(&report, "No rate holds. At 250 requests/s, 1000 of 1000");
}

TEST(says_that_no_rate_fails)
{
    struct bag_bench_report report = sweep(INFINITY, 1, NULL);
    assert_int_equal(server.count, 17);
    assert_true(server.rates[4] == 843.75 && server.rates[5] == 843.75 * 1.15);
    expect_no_verdict(&report, "No rate up to ");
}
