/* The parts of `bagserve bench` that need no server: what is drawn, counted and reported. */
#include "testing.h"

#include "config/synthetic.h"
#include "server/bench/connection.h"
#include "server/bench/count.h"
#include "server/bench/draw.h"
#include "server/bench/judge.h"

#include <math.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- lengths of bags ------------------------------------------------------------------------- */

TEST(reads_lengths)
{
    struct bag_bench_lengths lengths;
    assert_true(bag_bench_lengths_parse("10", &lengths));
    assert_int_equal(lengths.kind, BAG_BENCH_RANGE);
    assert_int_equal(lengths.low, 10);
    assert_int_equal(lengths.high, 10);
    assert_true(bag_bench_lengths_parse("0-7", &lengths));
    assert_int_equal(lengths.low, 0);
    assert_int_equal(lengths.high, 7);
    assert_true(bag_bench_lengths_parse("lognormal:20,0.5", &lengths));
    assert_int_equal(lengths.kind, BAG_BENCH_LOGNORMAL);
    assert_true(lengths.median == 20 && lengths.sigma == 0.5);
    assert_true(bag_bench_lengths_parse("3,0,100", &lengths));
    assert_int_equal(lengths.kind, BAG_BENCH_EACH);
    assert_int_equal(lengths.count, 3);
    assert_int_equal(lengths.list[2], 100);
    uint64_t seed = 1;
    assert_int_equal(bag_bench_length(&lengths, 0, 0, &seed), 3);
    assert_int_equal(bag_bench_length(&lengths, 4, 0, &seed), 0);
    free(lengths.list);
    static const char *const wrong[] = {"",
                                        "-",
                                        "7-3",
                                        "-3",
                                        "3-",
                                        "x",
                                        "10000001",
                                        "1,",
                                        ",1",
                                        "1,x",
                                        "1.5",
                                        "lognormal:",
                                        "lognormal:0.5,1",
                                        "lognormal:5",
                                        "1 - 2",
                                        "lognormal:5,-1",
                                        "lengths.npy"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        if (bag_bench_lengths_parse(wrong[i], &lengths))
            fail_msg("'%s' was taken", wrong[i]);
    }
}

TEST(draws_lengths)
{
    struct bag_bench_lengths range, lognormal;
    uint64_t seed = 7;
    size_t seen[4] = {0}, below = 0;
    assert_true(bag_bench_lengths_parse("2-5", &range));
    assert_true(bag_bench_lengths_parse("lognormal:20,1", &lognormal));
    for (size_t i = 0; i < 40000; i++) {
        size_t length = bag_bench_length(&range, 0, 0, &seed);
        assert_in_range(length, 2, 5);
        seen[length - 2]++;
        length = bag_bench_length(&lognormal, 0, 0, &seed);
        assert_in_range(length, 1, BAG_BENCH_MAX_IDS);
        below += length < 20;
    }
    for (size_t i = 0; i < 4; i++)
        assert_in_range(seen[i], 9700, 10300);
    assert_in_range(below, 19000, 20200); /* the median, but for those that are rounded to it */
}

/* A request's histories have one length, 7,000 at the mean; the other bags have those of the list.
 */
TEST(draws_histories)
{
    uint64_t list[] = {BAG_MLPERF_HISTORY, 2048}, seed = 7;
    const struct bag_bench_lengths lengths = {.kind = BAG_BENCH_HISTORY,
                                              .median = 5865.5,
                                              .sigma = 0.7,
                                              .high = 16384,
                                              .list = list,
                                              .count = 2};
    size_t sum = 0, longest = 0;
    for (size_t i = 0; i < 20000; i++) {
        size_t shared = bag_bench_shared_length(&lengths, &seed);
        assert_int_equal(bag_bench_length(&lengths, 0, shared, &seed), shared);
        assert_int_equal(bag_bench_length(&lengths, 2, shared, &seed), shared);
        assert_int_equal(bag_bench_length(&lengths, 1, shared, &seed), 2048);
        sum += shared;
        longest = shared > longest ? shared : longest;
    }
    assert_in_range(sum / 20000, 6900, 7100);
    assert_int_equal(longest, 16384);
}

/* ---- ids ------------------------------------------------------------------------------------- */

TEST(draws_ids)
{
    const struct bag_bench_ids even = bag_bench_ids_of(10, 0);
    uint64_t seed = 3;
    size_t seen[10] = {0};
    for (size_t i = 0; i < 100000; i++)
        seen[bag_bench_id(&even, &seed)]++;
    for (size_t i = 0; i < 10; i++)
        assert_in_range(seen[i], 9600, 10400);
}

/* The frequent ranks go to rows that lie apart, each rank to another row. */
TEST(scatters_hot_ids)
{
    enum { ROWS = 1000 };
    const struct bag_bench_ids ids = bag_bench_ids_of(ROWS, 1.2);
    static size_t seen[ROWS];
    uint64_t seed = 3;
    size_t first = 0, second = 0, rows = 0;
    for (size_t i = 0; i < 1000000; i++)
        seen[bag_bench_id(&ids, &seed)]++;
    for (size_t row = 0; row < ROWS; row++) {
        rows += seen[row] > 0;
        if (seen[row] > seen[first])
            first = row;
    }
    for (size_t row = 0; row < ROWS; row++) {
        if (row != first && (second == first || seen[row] > seen[second]))
            second = row;
    }
    assert_int_equal(rows, ROWS);
    assert_int_equal(first, 0);
    assert_int_equal(second, ids.stride);
    assert_in_range(second, 300, 700);
    assert_in_range(seen[first] * 100 / seen[second], 170, 230);
}

/* An id is always less than the number of rows. */
TEST(keeps_ids_in_range)
{
    static const uint64_t rows[] = {1, 2, 3, 26, 65536, UINT64_C(1) << 40};
    uint64_t seed = 9;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (double zipf = 0; zipf <= 20; zipf = zipf * 4 + 0.5) {
            const struct bag_bench_ids ids = bag_bench_ids_of(rows[i], zipf);
            for (size_t k = 0; k < 1000; k++)
                assert_true(bag_bench_id(&ids, &seed) < rows[i]);
        }
    }
}

/* ---- times ----------------------------------------------------------------------------------- */

TEST(counts_times)
{
    static struct bag_bench_latency times;
    assert_true(bag_bench_latency_ms(&times, 0.5) == 0);
    for (uint64_t us = 1; us <= 1000; us++)
        bag_bench_latency_add(&times, us * 1000);
    for (double share = 0.1; share < 1; share += 0.1) {
        double got = bag_bench_latency_ms(&times, share);
        if (fabs(got - share) > 0.016 * share)
            fail_msg("the time of %g is %g ms", share, got);
    }
    assert_true(bag_bench_latency_ms(&times, 1) == 1);
    bag_bench_latency_add(&times, UINT64_MAX);
    assert_true(bag_bench_latency_ms(&times, 1) == (double)UINT64_MAX / 1e6);
}

TEST(counts_a_step)
{
    static struct bag_bench_count count;
    static struct bag_bench_run figures;
    const uint64_t start = 5000000000, ms = 1000000;
    bag_bench_count_begin(&count, 100, 2, start);
    assert_int_equal(count.end_ns, start + 2000 * ms);
    bag_bench_count_answer(&count, start, 3 * ms);
    bag_bench_count_answer(&count, start + 1999 * ms, 4 * ms);
    count.arrived = 2;
    count.rows = 30;
    bag_bench_count_error(&count, start + 40 * ms, 503, "{\"error\": \"full\"}", 17);
    bag_bench_count_error(&count, start + 41 * ms, 503, "later", 5);
    bag_bench_count_error(&count, start + 80 * ms, 0, "refused", 7);
    bag_bench_count_finish(&count, 0.5, &figures);
    const struct bag_bench_run *run = &figures;
    assert_int_equal(run->sent, 5);
    assert_int_equal(run->answered, 2);
    assert_true(run->requests_per_s == 1 && run->rows_per_s == 15);
    assert_int_equal(run->num_errors, 2);
    assert_string_equal(run->errors[0].kind, "503");
    assert_int_equal(run->errors[0].count, 2);
    assert_string_equal(run->errors[0].first, "full");
    assert_string_equal(run->errors[1].kind, "lost");
    assert_string_equal(run->errors[1].first, "refused");
    assert_true(run->latency_ms.max == 4 && run->curve_ms[BAG_BENCH_CURVE - 1] == 4);
    assert_true(run->window_s == 0.04 && run->generator_cpu == 0.5);
    assert_int_equal(run->windows[0].answered, 1);
    assert_int_equal(run->windows[1].errors, 2);
    assert_int_equal(run->windows[2].errors, 1);
    assert_int_equal(run->windows[BAG_BENCH_WINDOWS - 1].answered, 1);
}

/* More kinds of errors than are kept are counted with the last. */
TEST(bounds_errors)
{
    static struct bag_bench_count count;
    bag_bench_count_begin(&count, 0, 1, 0);
    for (int status = 400; status < 420; status++)
        bag_bench_count_error(&count, 0, status, "", 0);
    assert_int_equal(count.num_errors, BAG_BENCH_MAX_ERRORS);
    assert_int_equal(count.errors[BAG_BENCH_MAX_ERRORS - 1].count, 20 - BAG_BENCH_MAX_ERRORS + 1);
}

/* ---- outcomes of runs ------------------------------------------------------------------------ */

/* A run that holds an objective of 10 ms, with as few requests as decide. */
static const struct bag_bench_run holding = {.rate = 500,
                                             .seconds = 2,
                                             .answered = 1000,
                                             .latency_ms = {.p99 = 10},
                                             .late_p99_ms = 0.99,
                                             .generator_cpu = 0.5};

#define assert_outcome(run, outcome)                                       \
    assert_string_equal(bag_bench_judgements[bag_bench_judge(&(run), 10)], \
                        bag_bench_judgements[BAG_BENCH_##outcome])

/* 99 % of all requests must be answered, and p99 may reach the objective. */
TEST(judges_runs)
{
    struct bag_bench_run run = holding;
    assert_outcome(run, HOLDS);
    run.latency_ms.p99 = 10.01;
    assert_outcome(run, FAILS);
    run = holding;
    run.num_errors = 2;
    run.errors[0].count = 4;
    run.errors[1].count = 6;
    run.answered = 990;
    assert_outcome(run, HOLDS);
    run.answered = 989;
    run.errors[0].count = 5;
    assert_outcome(run, FAILS);
    run.answered = 0;
    run.errors[0].count = 1000;
    assert_outcome(run, FAILS);
    run = (struct bag_bench_run){.seconds = 10};
    assert_outcome(run, FAILS); /* nothing was due */
}

TEST(short_runs_decide_nothing)
{
    struct bag_bench_run run = holding;
    run.answered = 999;
    assert_outcome(run, TOO_FEW);
    run.latency_ms.p99 = 300;
    assert_outcome(run, TOO_FEW);
    run.seconds = 10;
    assert_outcome(run, FAILS);
    run.latency_ms.p99 = 3;
    assert_outcome(run, HOLDS);
    assert_true(bag_bench_deciding_seconds(20000, 10, 1.5) == 1.5);
    assert_true(bag_bench_deciding_seconds(600, 10, 1.5) == 2);
    assert_true(bag_bench_deciding_seconds(100, 10, 1.5) == 10);
    assert_true(bag_bench_deciding_seconds(0.5, 10, 60) == 60);
    assert_true(bag_bench_deciding_seconds(20000, 300, 1.5) == 3);
}

/* A generator that was late decides nothing, and one without a free processor only that a rate
 * holds. */
TEST(disturbed_runs_decide_nothing)
{
    struct bag_bench_run run = holding;
    run.late_p99_ms = 1;
    assert_outcome(run, GENERATOR);
    run.latency_ms.p99 = 300;
    assert_outcome(run, GENERATOR);
    run.late_p99_ms = 0.99;
    assert_outcome(run, FAILS);
    run.generator_cpu = 0.96;
    assert_outcome(run, GENERATOR);
    run.latency_ms.p99 = 3;
    assert_outcome(run, HOLDS);
}

/* If each reply takes longer, no lower rate can hold, however late the generator is. */
TEST(judges_hopeless_runs)
{
    struct bag_bench_run run = holding;
    run.curve_ms[0] = 10.5;
    run.latency_ms.p99 = 300;
    assert_outcome(run, FAILS); /* the generator may have been late by more than 0.5 ms */
    run.curve_ms[0] = 11;
    assert_outcome(run, HOPELESS);
    run.late_p99_ms = 40;
    assert_outcome(run, GENERATOR);
    run.curve_ms[0] = 50.1;
    assert_outcome(run, HOPELESS);
    run.answered = 999;
    assert_outcome(run, GENERATOR);
}

TEST(explains_what_hinders)
{
    static struct bag_bench_report report = {.slo_ms = 10};
    struct bag_bench_run run = holding;
    run.late_p99_ms = 27.25;
    bag_bench_explain_run(&report, &run, BAG_BENCH_GENERATOR);
    assert_true(report.generator_limited);
    bag_bench_explain_held(&report, 250);
    assert_string_equal(report.hindered_by,
                        "At 500 requests/s, the generator itself was late by 27.2 ms (p99) and "
                        "used 50 % of a processor. A verdict needs less than 1 ms, a tenth of the "
                        "objective, and a generator with a processor of its own. Measure from "
                        "another machine, keep other programs from its processor (taskset), or "
                        "choose a lower rate with --rate. The highest rate that was seen to hold "
                        "is 250 requests/s.");
    bag_bench_explain_run(&report, &run, BAG_BENCH_TOO_FEW);
    assert_false(report.generator_limited);
    assert_string_equal(report.hindered_by,
                        "At 500 requests/s, 1000 requests were due in 2 s. A run decides with 1000 "
                        "requests or 10 s: set --duration 10.");
    run.curve_ms[0] = 300.5;
    bag_bench_explain_bounds(&report, &run, false);
    assert_string_equal(report.hindered_by,
                        "No rate holds. At 500 requests/s, 1000 of 1000 requests were answered, "
                        "the fastest in 300 ms, p99 in 10 ms. Set an objective that the server can "
                        "meet (--slo-ms), or smaller requests.");
    bag_bench_explain_bounds(&report, &run, true);
    assert_string_equal(report.hindered_by, "No rate up to 500 requests/s failed. Measure higher "
                                            "rates with --rate.");
}

/* ---- the report ------------------------------------------------------------------------------ */

#define WORKLOAD_TEXT                                                                        \
    "{\"bags\":2,\"ids\":\"0-7\",\"zipf\":1.1,\"weights\":true,\"reduction\":null,\"body\":" \
    "\"json\","                                                                              \
    "\"connections\":8,\"tables\":1,\"table_bytes\":800,\"get\":null}"

static const char report_text[] =
    "{\"url\":\"http://h:1\",\"model\":\"m\",\"workload\":" WORKLOAD_TEXT
    ",\"date\":\"2026-11-27T00:00:00Z\","
    "\"host\":\"h\",\"processor\":\"p\",\"seed\":18446744073709551615,\"mode\":\"sweep\","
    "\"highest_rate\":null,\"hindered_by\":\"noise\",\"slo_ms\":10,\"limited_by\":\"generator\","
    "\"deciding_run\":null,"
    "\"notes\":[\"a note\"],"
    "\"runs\":[{\"rate\":null,\"seconds\":1.5,\"sent\":3,\"answered\":2,"
    "\"errors\":{\"503\":{\"count\":1,\"first\":\"full\"}},"
    "\"requests_per_s\":1.33333,\"bags_per_s\":2,\"rows_per_s\":20,\"bytes_gathered_per_s\":"
    "12345678,\"latency_ms\":{\"p50\":0.1,\"p90\":0.2,\"p99\":0.3,\"p99.9\":0.4,\"max\":0.5},"
    "\"generator_late_ms\":{\"p50\":0,\"p99\":0.01},\"generator_cpu\":0.25}]}";

static const struct bag_bench_workload workload = {.bags = 2,
                                                   .ids = "0-7",
                                                   .zipf = 1.1,
                                                   .weights = true,
                                                   .body = "json",
                                                   .connections = 8,
                                                   .tables = 1,
                                                   .table_bytes = 800};

/* Makes a report with one run, which borrows its texts and *run. */
static struct bag_bench_report make_report(struct bag_bench_run *run)
{
    static char url[] = "http://h:1", model[] = "m";
    struct bag_bench_report report = {.url = url,
                                      .model = model,
                                      .workload = workload,
                                      .date = "2026-11-27T00:00:00Z",
                                      .host = "h",
                                      .processor = "p",
                                      .seed = UINT64_MAX,
                                      .mode = BAG_BENCH_SWEEP,
                                      .highest_rate = -1,
                                      .hindered_by = "noise",
                                      .slo_ms = 10,
                                      .generator_limited = true,
                                      .deciding_run = SIZE_MAX,
                                      .runs = run,
                                      .num_runs = 1};
    bag_bench_report_note(&report, "a %s", "note");
    *run = (struct bag_bench_run){.seconds = 1.5,
                                  .sent = 3,
                                  .answered = 2,
                                  .errors = {{"503", 1, "full"}},
                                  .num_errors = 1,
                                  .requests_per_s = 4.0 / 3,
                                  .bags_per_s = 2,
                                  .rows_per_s = 20,
                                  .bytes_gathered_per_s = 12345678,
                                  .latency_ms = {0.1, 0.2, 0.3, 0.4, 0.5},
                                  .late_p99_ms = 0.01,
                                  .generator_cpu = 0.25};
    return report;
}

TEST(prints_the_report)
{
    static struct bag_bench_run run;
    struct bag_bench_report report = make_report(&run);
    char *text = bag_bench_report_print(&report);
    assert_string_equal(text, report_text);
    free(text);
    run.window_s = 0.03;
    run.windows[49] = (struct bag_bench_window){7, 1, 0.5, INFINITY};
    run.curve_ms[0] = 0.125;
    report.deciding_run = 0;
    text = bag_bench_report_print(&report);
    assert_non_null(strstr(text, "\"percentiles_ms\":[0.125,0,"));
    assert_non_null(strstr(text, "\"over_time\":{\"window_s\":0.03,\"answered\":[0,"));
    assert_non_null(strstr(text, ",0,7],\"errors\":[0,"));
    assert_non_null(strstr(text, ",0,0.5],\"p99_ms\":[0,"));
    assert_non_null(strstr(text, "\"deciding_run\":0,"));
    free(text);
}

/* Further notes than there is room for are dropped. */
TEST(bounds_notes)
{
    static struct bag_bench_report report;
    for (int i = 0; i < BAG_BENCH_MAX_NOTES + 3; i++)
        bag_bench_report_note(&report, "%d %0*d", i, 2 * BAG_BENCH_NOTE_BYTES, 0);
    assert_int_equal(report.num_notes, BAG_BENCH_MAX_NOTES);
    assert_int_equal(strlen(report.notes[BAG_BENCH_MAX_NOTES - 1]), BAG_BENCH_NOTE_BYTES - 1);
}

TEST(compares_workloads)
{
    struct bag_bench_workload other = workload;
    char text[200];
    assert_true(bag_bench_workload_compare(&workload, &other, text, sizeof text));
    assert_string_equal(text, "");
    other.bags = 64;
    other.weights = false;
    strcpy(other.reduction, "max");
    assert_true(bag_bench_workload_compare(&workload, &other, text, sizeof text));
    assert_string_equal(text, "bags 2 and 64, weights true and false, reduction null and \"max\"");
    assert_true(bag_bench_workload_compare(&workload, &other, text, 12));
    assert_string_equal(text, "bags 2 and ");
}

TEST(reads_the_report)
{
    struct bag_bench_report report;
    struct bag_problem problem;
    char *copy = exact_copy(report_text, sizeof report_text - 1), text[200];
    assert_true(bag_bench_report_parse(copy, sizeof report_text - 1, &report, &problem));
    free(copy);
    assert_string_equal(report.url, "http://h:1");
    assert_int_equal(report.mode, BAG_BENCH_SWEEP);
    assert_true(report.highest_rate == -1);
    assert_string_equal(report.hindered_by, "noise");
    assert_true(report.generator_limited);
    assert_true(bag_bench_workload_compare(&workload, &report.workload, text, sizeof text));
    assert_string_equal(text, "");
    assert_string_equal(report.date, "2026-11-27T00:00:00Z");
    assert_string_equal(report.host, "h");
    assert_string_equal(report.processor, "p");
    assert_int_equal(report.deciding_run, SIZE_MAX);
    assert_int_equal(report.num_runs, 1);
    assert_true(report.runs[0].rate == 0);
    assert_int_equal(report.runs[0].answered, 2);
    assert_string_equal(report.runs[0].errors[0].first, "full");
    assert_true(report.runs[0].latency_ms.p999 == 0.4);
    bag_bench_report_free(&report);
    static const char *const wrong[] = {"{}", "[]",
                                        "{\"url\":\"\",\"model\":\"\",\"mode\":\"\",\"runs\":[]}"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_false(bag_bench_report_parse(wrong[i], strlen(wrong[i]), &report, &problem));
        assert_string_equal(problem.text, "it is no report of 'bagserve bench --report'");
        assert_int_equal(problem.kind, BAG_ERROR_FILE);
    }
    assert_false(bag_bench_report_parse("{", 1, &report, &problem));
    assert_int_equal(problem.kind, BAG_ERROR_FILE);
}

/* Numbers that are negative, too large or none, and texts with control characters, do no harm. */
TEST(reads_wrong_members)
{
    static const char text[] =
        "{\"url\":\"\\u001b[31m\",\"model\":\"m\",\"mode\":\"open\",\"seed\":-1,\"deciding_run\":-"
        "1,"
        "\"workload\":{\"bags\":-5,\"zipf\":-1,\"tables\":1e300,\"ids\":7},"
        "\"runs\":[{\"rate\":-3,\"sent\":-1,\"answered\":1e300,\"latency_ms\":{\"p50\":\"x\"}}]}";
    struct bag_bench_report report;
    struct bag_problem problem;
    assert_true(bag_bench_report_parse(text, sizeof text - 1, &report, &problem));
    assert_string_equal(report.url, "?[31m");
    assert_true(report.seed == 0 && report.deciding_run == SIZE_MAX);
    assert_true(report.workload.bags == 0 && report.workload.zipf == 0);
    assert_true(report.workload.tables == 0 && !*report.workload.ids);
    const struct bag_bench_run *run = report.runs;
    assert_true(run->rate == 0 && run->sent == 0 && run->answered == 0 && run->latency_ms.p50 == 0);
    bag_bench_report_free(&report);
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Without memory or within its limit of watches, epoll rejects one more socket. */
TEST(reports_a_socket_that_cannot_be_watched)
{
    static struct bag_bench_connection connection = {.fd = -1};
    struct bag_address to = {.bytes = sizeof to.address};
    const struct sockaddr_un any = {.sun_family = AF_UNIX};
    int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_return_code(bind(listening, (const struct sockaddr *)&any, sizeof any.sun_family), 0);
    assert_return_code(listen(listening, 1), 0);
    assert_return_code(getsockname(listening, (struct sockaddr *)&to.address, &to.bytes), 0);
    assert_false(bag_bench_connection_open(&connection, -1, &to));
    assert_string_equal(connection.error,
                        "the connection cannot be watched by epoll: Bad file descriptor");
    assert_int_equal(connection.fd, -1);
    close(listening);
}
