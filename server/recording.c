/* Samples the server once a second; see recording.h. */
#include "recording.h"

#include "server/memory/memory.h"

static void on_second(uv_timer_t *timer)
{
    struct bag_recording *recording = timer->data;
    struct bag_service *service = recording->service;
    struct bag_loop_counters sum;
    struct bag_process_load load;
    bag_process_sample_load(&load);
    bag_metrics_sum_loops(&service->metrics, &sum);
    const struct bag_history_levels levels = {
        .waiting = (uint32_t)bag_counter_get(sum.queued[0]),
        .in_flight = (uint32_t)bag_counter_get(sum.in_flight[0]),
        .connections = (uint32_t)bag_counter_get(sum.connections[0]),
        .busy_workers = service->workers->count - bag_workers_idle(service->workers),
        .request_bytes = atomic_load(&service->budget.used_bytes),
        .table_bytes = bag_pages_used(),
        .resident_bytes = load.resident_bytes};
    bag_history_sample(&service->history, uv_hrtime(), &levels, load.cpu_ns);
}

bool bag_recording_start(struct bag_recording *recording, uv_loop_t *loop,
                         struct bag_service *service, struct bag_problem *problem)
{
    struct bag_process_load load;
    recording->service = service;
    recording->timer.data = recording;
    uv_timer_init(loop, &recording->timer);
    if (!service->metrics.on || service->config->options.console == BAG_SWITCH_OFF)
        return true;
    bag_process_sample_load(&load);
    if (!bag_history_init(&service->history, &service->metrics, uv_hrtime(), load.cpu_ns))
        return bag_problem_no_memory(problem);
    uv_timer_start(&recording->timer, on_second, 1000, 1000);
    return true;
}

void bag_recording_stop(struct bag_recording *recording)
{
    uv_close((uv_handle_t *)&recording->timer, NULL);
}
