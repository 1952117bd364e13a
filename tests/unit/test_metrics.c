/* Counting: bounds of histograms, recorders of several loops, and the text that comes of it. */
#include "testing.h"

#include "server/metrics/metrics.h"
#include "server/metrics/prometheus.h"

static struct bag_model models[2], *both[2] = {&models[0], &models[1]};
static struct bag_metrics metrics;
static struct bag_recorder *first, *second;
static const struct bag_stopwatch unused; /* stopwatch of a request whose body was not read */

static int set_up(void **state)
{
    (void)state;
    models[0] = (struct bag_model){.name = (char *)(uintptr_t) "a",
                                   .version = (char *)(uintptr_t) "1",
                                   .state = BAG_MODEL_READY,
                                   .reason = (char *)(uintptr_t) "",
                                   .slot = 3};
    models[1] = (struct bag_model){.name = (char *)(uintptr_t) "b",
                                   .version = (char *)(uintptr_t) "7",
                                   .state = BAG_MODEL_UNAVAILABLE,
                                   .reason = (char *)(uintptr_t) "half copied",
                                   .slot = 130};
    bag_metrics_init(&metrics, true, 1000);
    assert_true(bag_metrics_begin_slot(&metrics, 3));
    assert_true(bag_metrics_add_loop(&metrics, &first));
    assert_true(bag_metrics_add_loop(&metrics, &second));
    assert_true(bag_metrics_begin_slot(&metrics, 130));
    assert_non_null(first);
    assert_non_null(second);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    bag_metrics_free(&metrics);
    return 0;
}

AROUND_EACH(set_up, tear_down)

/* An inference whose stages took 1, 2, 3 and 4 times `ns`. */
static void succeed(struct bag_recorder *recorder, const struct bag_model *model, uint64_t ns,
                    uint64_t now_ms)
{
    struct bag_stopwatch watch = {.stage_ns = {ns, 2 * ns, 3 * ns, 4 * ns}};
    struct bag_metrics_work work = {
        .bags = 3, .rows = 5, .bytes = 80, .defaults = 1, .watch = &watch, .now_ms = now_ms};
    bag_metrics_on_success(recorder, model, &work);
}

static uint64_t only(const bag_counter *counter)
{
    return bag_counter_get(counter);
}

/* The whole text holds the line. */
static void expect_line(const char *text, const char *line)
{
    char whole[256];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (!strstr(text, whole))
        fail_msg("no line '%s' in:\n%s", line, text);
}

/* ---- histograms ------------------------------------------------------------------------------ */

TEST(test_bounds_are_inclusive)
{
    for (size_t i = 0; i < BAG_SECONDS_BOUND_COUNT; i++) {
        uint64_t bound = bag_seconds_bounds[i];
        assert_int_equal(bag_seconds_bound_of(bound), i);
        assert_int_equal(bag_seconds_bound_of(bound + 1), i + 1);
        assert_true(i == 0 || bound > bag_seconds_bounds[i - 1]);
    }
    assert_int_equal(bag_seconds_bound_of(0), 0);
    assert_int_equal(bag_seconds_bound_of(UINT64_MAX), BAG_SECONDS_BOUND_COUNT);
}

TEST(test_histograms_keep_every_value)
{
    bag_counter seconds[BAG_SLOTS_SECONDS] = {0}, sizes[BAG_SLOTS_SIZES] = {0};
    uint64_t sum_ns = 0;
    for (size_t i = 0; i < BAG_SECONDS_BOUND_COUNT; i++) {
        for (uint64_t ns = bag_seconds_bounds[i] - 1; ns <= bag_seconds_bounds[i] + 1; ns++) {
            bag_observe_ns(seconds, ns);
            sum_ns += ns;
        }
    }
    assert_int_equal(bag_histogram_count(seconds), 3 * BAG_SECONDS_BOUND_COUNT);
    assert_int_equal(only(&seconds[0]), 2);
    for (size_t i = 1; i < BAG_SECONDS_BOUND_COUNT; i++)
        assert_int_equal(only(&seconds[i]), 3);
    assert_int_equal(only(&seconds[BAG_SECONDS_BOUND_COUNT]), 1);
    assert_int_equal(only(&seconds[BAG_SLOTS_SECONDS - 1]), sum_ns);
    bag_observe_size(sizes, 1);
    bag_observe_size(sizes, 3);
    bag_observe_size(sizes, 1025);
    assert_int_equal(only(&sizes[0]), 1);
    assert_int_equal(only(&sizes[2]), 1);
    assert_int_equal(only(&sizes[BAG_SIZES_BOUND_COUNT]), 1);
    assert_int_equal(only(&sizes[BAG_SLOTS_SIZES - 1]), 1029);
}

/* ---- stopwatches ----------------------------------------------------------------------------- */

TEST(test_stopwatch_adds_laps)
{
    struct bag_stopwatch watch;
    uint64_t before_ns = uv_hrtime();
    bag_stopwatch_start(&watch, true);
    bag_stopwatch_lap(&watch, BAG_STAGE_QUEUE);
    bag_stopwatch_lap(&watch, BAG_STAGE_INPUT);
    bag_stopwatch_lap(&watch, BAG_STAGE_QUEUE);
    uint64_t most_ns = uv_hrtime() - before_ns;
    assert_true(watch.mark >= before_ns);
    assert_in_range(watch.stage_ns[BAG_STAGE_QUEUE] + watch.stage_ns[BAG_STAGE_INPUT], 1, most_ns);
    assert_int_equal(watch.stage_ns[BAG_STAGE_INFER], 0);
    bag_stopwatch_start(&watch, false);
    bag_stopwatch_lap(&watch, BAG_STAGE_QUEUE);
    assert_int_equal(watch.stage_ns[BAG_STAGE_QUEUE], 0);
}

/* ---- adding up ------------------------------------------------------------------------------- */

TEST(test_loops_add_up)
{
    struct bag_model_counters sum;
    succeed(first, &models[0], 1000, 500);
    succeed(second, &models[0], 100, 400);
    succeed(second, &models[1], 7, 200);
    succeed(second, &models[1], 0, 300);
    bag_metrics_on_batch(first, &models[0], 2);
    bag_metrics_on_batch(second, &models[0], 9);
    bag_metrics_on_batch(second, &models[0], 0);
    bag_metrics_on_queued(first, &models[0]);
    bag_metrics_on_queued(first, &models[0]);
    bag_metrics_on_queued(second, &models[0]);
    bag_metrics_on_taken(first, &models[0]);
    bag_metrics_sum_model(&metrics, &models[0], &sum);
    assert_int_equal(only(sum.success[0]), 2);
    assert_int_equal(only(sum.bags[0]), 6);
    assert_int_equal(only(sum.rows[0]), 10);
    assert_int_equal(only(sum.bytes[0]), 160);
    assert_int_equal(only(sum.defaults[0]), 2);
    assert_int_equal(only(sum.pending[0]), 2);
    assert_int_equal(only(sum.executions[0]), 2);
    assert_int_equal(only(&sum.batch[0][BAG_SLOTS_SIZES - 1]), 11);
    assert_int_equal(only(&sum.duration[0][BAG_SLOTS_SECONDS - 1]), 11000);
    assert_int_equal(only(&sum.stage[BAG_STAGE_OUTPUT][BAG_SLOTS_SECONDS - 1]), 4400);
    assert_int_equal(only(&sum.stage[BAG_STAGE_QUEUE][0]), 2);
    assert_int_equal(only(sum.last[0]), 500);
    bag_metrics_sum_model(&metrics, &models[1], &sum);
    assert_int_equal(only(sum.success[0]), 2);
    assert_int_equal(only(&sum.stage[BAG_STAGE_OUTPUT][0]), 2);
    assert_int_equal(only(sum.last[0]), 300);
    assert_int_equal(only(sum.pending[0]), 0);
}

/* A slot that another model gets begins at 0; the others keep what they have. */
TEST(test_slots_begin_at_zero)
{
    struct bag_model_counters sum;
    succeed(first, &models[0], 1000, 500);
    succeed(second, &models[1], 1000, 500);
    assert_true(bag_metrics_begin_slot(&metrics, 130));
    bag_metrics_sum_model(&metrics, &models[1], &sum);
    assert_int_equal(only(sum.success[0]), 0);
    assert_int_equal(only(sum.last[0]), 0);
    bag_metrics_sum_model(&metrics, &models[0], &sum);
    assert_int_equal(only(sum.success[0]), 1);
    assert_true(bag_metrics_begin_slot(&metrics, BAG_METRICS_MAX_SLOTS - 1));
    assert_false(bag_metrics_begin_slot(&metrics, BAG_METRICS_MAX_SLOTS));
}

TEST(test_levels_of_loops_add_up)
{
    struct bag_metrics_levels levels = {1, 2, 3, 4, 5};
    struct bag_loop_counters sum;
    bag_metrics_on_levels(first, &levels);
    bag_metrics_on_levels(first, &levels);
    bag_metrics_on_levels(second, &levels);
    bag_metrics_on_end(second, false);
    bag_metrics_on_end(second, true);
    bag_metrics_sum_loops(&metrics, &sum);
    assert_int_equal(only(sum.in_flight[0]), 2);
    assert_int_equal(only(sum.connections[0]), 4);
    assert_int_equal(only(sum.queued[0]), 6);
    assert_int_equal(only(sum.queued_bytes[0]), 8);
    assert_int_equal(only(sum.refused_connections[0]), 10);
    assert_int_equal(only(sum.aborted[0]), 1);
}

TEST(test_rejections_have_reasons)
{
    static const struct {
        enum bag_rejection rejection;
        enum bag_failure failure;
    } cases[] = {{BAG_REJECTION_BAD_REQUEST, BAG_FAILURE_OTHER},
                 {BAG_REJECTION_NOT_FOUND, BAG_FAILURE_OTHER},
                 {BAG_REJECTION_TOO_LARGE, BAG_FAILURE_OTHER},
                 {BAG_REJECTION_NOT_SUPPORTED, BAG_FAILURE_OTHER},
                 {BAG_REJECTION_INTERNAL, BAG_FAILURE_BACKEND},
                 {BAG_REJECTION_NO_MEMORY, BAG_FAILURE_REJECTED},
                 {BAG_REJECTION_QUEUE_FULL, BAG_FAILURE_REJECTED},
                 {BAG_REJECTION_CANCELLED, BAG_FAILURE_CANCELED}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_loop_counters before, after;
        struct bag_model_counters model_before, model_after;
        bag_metrics_sum_loops(&metrics, &before);
        bag_metrics_sum_model(&metrics, &models[1], &model_before);
        bag_metrics_on_rejection(first, &models[1], cases[i].rejection, &unused);
        bag_metrics_on_rejection(second, NULL, cases[i].rejection, &unused);
        bag_metrics_sum_loops(&metrics, &after);
        bag_metrics_sum_model(&metrics, &models[1], &model_after);
        for (int j = 0; j < BAG_REJECTION_COUNT; j++)
            assert_int_equal(only(after.rejected[j]) - only(before.rejected[j]),
                             j == (int)cases[i].rejection ? 2 : 0);
        for (int j = 0; j < BAG_FAILURE_COUNT; j++)
            assert_int_equal(only(model_after.failure[j]) - only(model_before.failure[j]),
                             j == (int)cases[i].failure ? 1 : 0);
    }
}

TEST(test_statuses_are_counted)
{
    struct bag_loop_counters sum;
    bag_metrics_on_answer(first, 200, 10, 20);
    bag_metrics_on_answer(second, 507, 1, 2);
    bag_metrics_on_answer(second, 299, 0, 0);
    bag_metrics_sum_loops(&metrics, &sum);
    uint64_t all = 0;
    for (int i = 0; i < BAG_STATUS_LABEL_COUNT; i++)
        all += only(sum.responses[i]);
    assert_int_equal(all, 3);
    assert_int_equal(only(sum.responses[0]), 1);
    assert_int_equal(only(sum.responses[BAG_STATUS_LABEL_COUNT - 2]), 1);
    assert_int_equal(only(sum.responses[BAG_STATUS_LABEL_COUNT - 1]), 1);
    assert_int_equal(only(sum.received[0]), 11);
    assert_int_equal(only(sum.sent[0]), 22);
}

TEST(test_nothing_is_counted_when_off)
{
    struct bag_metrics off;
    struct bag_recorder *none = first;
    struct bag_metrics_levels levels = {0};
    bag_metrics_init(&off, false, 1000);
    assert_true(bag_metrics_begin_slot(&off, 0));
    assert_true(bag_metrics_add_loop(&off, &none));
    assert_null(none);
    succeed(none, &models[0], 1, 1);
    bag_metrics_on_batch(none, &models[0], 1);
    bag_metrics_on_queued(none, &models[0]);
    bag_metrics_on_taken(none, &models[0]);
    bag_metrics_on_rejection(none, NULL, BAG_REJECTION_BAD_REQUEST, &unused);
    bag_metrics_on_answer(none, 200, 1, 1);
    bag_metrics_on_end(none, false);
    bag_metrics_on_levels(none, &levels);
    bag_metrics_free(&off);
}

/* ---- what is shown --------------------------------------------------------------------------- */

TEST(test_writes_the_text_format)
{
    struct bag_prometheus out = {0};
    bag_prometheus_family(&out, "x_total", "counter", "One\nline \\ here.", "things");
    bag_prometheus_sample(&out, "x", "_total");
    bag_prometheus_label(&out, "path", "C:\\dir \"q\"\nend");
    bag_prometheus_label(&out, "empty", "");
    bag_prometheus_value(&out, UINT64_MAX, false);
    bag_prometheus_sample(&out, "y", "");
    bag_prometheus_bound(&out, 2500, true);
    bag_prometheus_value(&out, 0, false);
    bag_prometheus_sample(&out, "z", "");
    bag_prometheus_value(&out, UINT64_C(1234567890123), true);
    bag_prometheus_sample(&out, "z", "");
    bag_prometheus_value(&out, UINT64_C(7000000000), true);
    char *text = bag_prometheus_end(&out);
    assert_string_equal(text, "# HELP x_total One\\nline \\\\ here. Unit: things.\n"
                              "# TYPE x_total counter\n"
                              "x_total{path=\"C:\\\\dir \\\"q\\\"\\nend\",empty=\"\"} "
                              "18446744073709551615\n"
                              "y{le=\"0.0000025\"} 0\n"
                              "z 1234.567890123\n"
                              "z 7\n");
    free(text);
}

/* Longer than any first room. */
TEST(test_text_grows)
{
    struct bag_prometheus out = {0};
    for (unsigned i = 0; i < 20000; i++) {
        bag_prometheus_sample(&out, "n", "");
        bag_prometheus_value(&out, i, false);
    }
    char *text = bag_prometheus_end(&out), line[16];
    const char *at = text;
    for (unsigned i = 0; i < 20000; i++) {
        int bytes = snprintf(line, sizeof line, "n %u\n", i);
        assert_memory_equal(at, line, (size_t)bytes);
        at += bytes;
    }
    assert_string_equal(at, "");
    free(text);
}

TEST(test_exposes_every_loop_and_model)
{
    succeed(first, &models[0], 1000, 1);
    succeed(second, &models[1], 500, 1);
    succeed(second, &models[1], 2000, 1);
    struct bag_snapshot snapshot = {.models = both, .count = 2};
    char *text = bag_expose_prometheus(&metrics, &snapshot, "1.2.3");
    expect_line(text, "nv_inference_request_success{model=\"a\",version=\"1\"} 1");
    expect_line(text, "nv_inference_request_success{model=\"b\",version=\"7\"} 2");
    expect_line(text, "nv_inference_request_duration_us{model=\"b\",version=\"7\"} 25");
    expect_line(text, "nv_inference_compute_infer_duration_us{model=\"a\",version=\"1\"} 3");
    expect_line(text, "bagserve_stage_duration_seconds_bucket{model=\"b\",version=\"7\",stage="
                      "\"queue\",le=\"0.000001\"} 1");
    expect_line(text, "bagserve_stage_duration_seconds_bucket{model=\"b\",version=\"7\",stage="
                      "\"queue\",le=\"0.0000025\"} 2");
    expect_line(text, "bagserve_stage_duration_seconds_sum{model=\"b\",version=\"7\",stage="
                      "\"queue\"} 0.0000025");
    expect_line(text, "bagserve_request_duration_seconds_count{model=\"b\",version=\"7\"} 2");
    expect_line(text, "bagserve_build_info{version=\"1.2.3\"} 1");
    expect_line(text, "bagserve_model_state{model=\"a\",version=\"1\",state=\"READY\"} 1");
    expect_line(text, "bagserve_model_state{model=\"b\",version=\"7\",state=\"UNAVAILABLE\",reason="
                      "\"half copied\"} 1");
    free(text);
    snapshot.count = 0;
    text = bag_expose_prometheus(&metrics, &snapshot, "1.2.3");
    assert_null(strstr(text, "model="));
    free(text);
}

TEST(test_statistics)
{
    struct bag_json_writer json = {.is_pretty = false};
    succeed(first, &models[1], 10, 5);
    succeed(second, &models[1], 20, 6);
    bag_metrics_on_batch(first, &models[1], 2);
    bag_metrics_on_rejection(first, &models[1], BAG_REJECTION_BAD_REQUEST, &unused);
    /* A request that waited for 700 ns in its first stages, and since then for the duration of this
     * test. */
    struct bag_stopwatch watch;
    bag_stopwatch_start(&watch, true);
    watch.stage_ns[BAG_STAGE_QUEUE] = 600;
    watch.stage_ns[BAG_STAGE_INPUT] = 100;
    uint64_t begun_ns = uv_hrtime();
    bag_metrics_on_rejection(first, &models[1], BAG_REJECTION_TIMEOUT, &watch);
    bag_expose_statistics(&metrics, &models[1], true, &json);
    const uint64_t most_ns = 700 + 2 * (uv_hrtime() - begun_ns) + 100000;
    char *text = bag_json_end(&json);
    static const char fail[] = "\"fail\":{\"count\":2,\"ns\":";
    const char *failed = strstr(text, fail);
    assert_non_null(failed);
    unsigned long long failed_ns = strtoull(failed + strlen(fail), NULL, 10);
    assert_in_range(failed_ns, 700, most_ns);
    char want[1024];
    snprintf(
        want, sizeof want,
        "{\"name\":\"b\",\"version\":\"7\",\"last_inference\":%llu,"
        "\"inference_count\":6,\"execution_count\":1,\"inference_stats\":{"
        "\"success\":{\"count\":2,\"ns\":300},\"fail\":{\"count\":2,\"ns\":%llu},"
        "\"queue\":{\"count\":2,\"ns\":30},\"compute_input\":{\"count\":2,\"ns\":60},"
        "\"compute_infer\":{\"count\":2,\"ns\":90},\"compute_output\":{\"count\":2,\"ns\":120},"
        "\"cache_hit\":{\"count\":0,\"ns\":0},\"cache_miss\":{\"count\":0,\"ns\":0}},"
        "\"batch_stats\":[{\"batch_size\":1,\"compute_input\":{\"count\":1,\"ns\":60},"
        "\"compute_infer\":{\"count\":1,\"ns\":90},\"compute_output\":{\"count\":1,\"ns\":120}}],"
        "\"hot_rows\":[]}",
        (unsigned long long)metrics.epoch_ms + 6, failed_ns);
    assert_string_equal(text, want);
    free(text);
}
