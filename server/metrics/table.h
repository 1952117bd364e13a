/* The table of all metrics and of the values of their labels. Each line defines a counter in every
 * loop, a family of GET /metrics, and the family's help.
 *
 * X(member, TYPE, LABEL, "name", "unit", "sentence"). TYPE is one of
 *
 *   COUNTER  a number that only grows
 *   TIME     a sum of durations, stored in ns
 *   GAUGE    a current level; the levels of all loops are added
 *   SECONDS  a histogram of durations, stored in ns
 *   SIZES    a histogram of small numbers
 *   MOMENT   the last time of an event, stored in ms of uv_now; the latest of all loops is exposed
 *
 * LABEL is ONE for a single counter, or names a list below with a counter for each value.
 *
 * Names that begin with nv_ are Triton's, so that dashboards for Triton work. */
#pragma once

/* clang-format off */

/* Metrics of each version of a model, labelled with both. */
#define BAG_MODEL_METRICS(X)                                                                       \
    X(success, COUNTER, ONE, "nv_inference_request_success", "requests",                           \
      "Inference requests that were answered with their result.")                                  \
    X(failure, COUNTER, FAILURE, "nv_inference_request_failure", "requests",                       \
      "Inference requests that were answered with an error.")                                      \
    X(failure_ns, TIME, ONE, "bagserve_failed_request_duration_seconds_total", "seconds",          \
      "From the last byte of a request's body to its reply, where that is an error.")              \
    X(bags, COUNTER, ONE, "nv_inference_count", "bags", "Bags that were pooled.")                  \
    X(executions, COUNTER, ONE, "nv_inference_exec_count", "batches",                              \
      "Batches that were pooled; a request that is answered at once is one.")                      \
    X(pending, GAUGE, ONE, "nv_inference_pending_request_count", "requests",                       \
      "Inference requests that wait for a worker.")                                                \
    X(duration, SECONDS, ONE, "bagserve_request_duration_seconds", "seconds",                      \
      "From the last byte of a request's body to its reply, where that is a result.")              \
    X(stage, SECONDS, STAGE, "bagserve_stage_duration_seconds", "seconds",                         \
      "The same in its parts: waiting, decoding and checking, pooling, printing numbers.")         \
    X(batch, SIZES, ONE, "bagserve_batch_requests", "requests", "Requests in a batch.")            \
    X(rows, COUNTER, ONE, "bagserve_gathered_rows_total", "rows",                                  \
      "Rows that the indices of answered requests named.")                                         \
    X(bytes, COUNTER, ONE, "bagserve_gathered_bytes_total", "bytes", "Bytes of these rows.")       \
    X(defaults, COUNTER, ONE, "bagserve_default_rows_total", "bags",                               \
      "Bags that came without an index and got the row default_index.")                            \
    X(missing, COUNTER, ONE, "bagserve_missing_keys_total", "keys",                                \
      "Keys in answered requests that their table does not have.")                                 \
    X(others, COUNTER, ONE, "bagserve_other_part_ids_total", "ids",                                \
      "Ids in answered partial requests that are of other parts of their table.")                  \
    X(last, MOMENT, ONE, "bagserve_last_inference_timestamp_seconds", "seconds since 1970",        \
      "When a request was last answered with its result; 0 means never.")

/* Metrics of each model whose rows may change, labelled with its name. They are members of struct
 * bag_updates_stream. The columns are as in BAG_PROCESS_METRICS. */
#define BAG_UPDATE_METRICS(X)                                                                      \
    X(applied, "counter", WHOLE, "bagserve_updates_applied_total", "batches",                      \
      "Batches of rows that were applied.")                                                        \
    X(ignored, "counter", WHOLE, "bagserve_updates_ignored_total", "batches",                      \
      "Batches that had been applied before.")                                                     \
    X(rejected, "counter", WHOLE, "bagserve_updates_rejected_total", "batches",                    \
      "Batches that were rejected once they were decoded.")                                         \
    X(rows, "counter", WHOLE, "bagserve_updated_rows_total", "rows",                               \
      "Rows that were put in or removed.")                                                         \
    X(left_out, "counter", WHOLE, "bagserve_updated_rows_left_out_total", "rows",                  \
      "Rows in updates that are of other parts of the table.")                                     \
    X(sequence, "gauge", WHOLE, "bagserve_update_sequence", "batches",                             \
      "The number of the last batch that the model has.")                                          \
    X(lag, "gauge", WHOLE, "bagserve_update_lag", "batches",                                       \
      "By how much a number that was sent is ahead of it.")                                        \
    X(last_update_ms, "gauge", MS, "bagserve_last_update_timestamp_seconds", "seconds since 1970", \
      "When a batch was last applied; 0 means never since the start.")                             \
    X(deltas, "counter", WHOLE, "bagserve_deltas_applied_total", "batches",                        \
      "Batches in delta folders that were applied.")                                               \
    X(deltas_waiting, "gauge", WHOLE, "bagserve_deltas_waiting", "batches",                        \
      "Delta folders that are newer than the last batch and not applied yet.")                     \
    X(kept_bytes, "gauge", WHOLE, "bagserve_updates_kept_bytes", "bytes",                          \
      "Batches in memory for versions that are loaded later, without a journal.")                  \
    X(journal_bytes, "gauge", WHOLE, "bagserve_journal_bytes", "bytes", "Files of the journal.")   \
    X(syncs, "counter", WHOLE, "bagserve_journal_syncs_total", "syncs",                            \
      "How often the journal was synced to the disk.")                                             \
    X(sync_ns, "counter", NS, "bagserve_journal_sync_seconds_total", "seconds",                    \
      "How long that took.")                                                                       \
    X(journal_errors, "counter", WHOLE, "bagserve_journal_errors_total", "errors",                 \
      "Writes and syncs of the journal that failed.")

/* Metrics of the whole server. */
#define BAG_LOOP_METRICS(X)                                                                        \
    X(responses, COUNTER, STATUS, "bagserve_http_responses_total", "responses",                    \
      "Answers to requests of any kind, by HTTP status.")                                          \
    X(rejected, COUNTER, REJECTION, "bagserve_refused_requests_total", "requests",                    \
      "Requests of any kind that were answered with an error, by its reason.")                     \
    X(aborted, COUNTER, ONE, "bagserve_aborted_requests_total", "requests",                        \
      "Requests whose connection ended before their reply had left.")                              \
    X(received, COUNTER, ONE, "bagserve_http_request_body_bytes_total", "bytes",                   \
      "Bodies of requests that were answered, as far as they were read.")                          \
    X(sent, COUNTER, ONE, "bagserve_http_response_body_bytes_total", "bytes",                      \
      "Bodies of answers.")                                                                        \
    X(in_flight, GAUGE, ONE, "bagserve_http_requests_in_flight", "requests",                       \
      "Requests whose head has come and whose reply has not left.")                                \
    X(connections, GAUGE, ONE, "bagserve_http_connections", "connections", "Open connections.")    \
    X(refused_connections, COUNTER, ONE, "bagserve_refused_connections_total", "connections",      \
      "Connections that were closed at once, because their client had its share.")                 \
    X(queued, GAUGE, ONE, "bagserve_queue_requests", "requests", "Requests that wait for a worker.") \
    X(queued_bytes, GAUGE, ONE, "bagserve_queue_bytes", "bytes",                                   \
      "Bodies and planned replies of requests that wait for a worker.")

/* Metrics of the process, read when they are exposed. X(member, "type", SCALE, "name", "unit",
 * "sentence"). SCALE is NS or MS if the member is in ns or ms and is exposed in seconds, otherwise
 * WHOLE. */
#define BAG_PROCESS_METRICS(X)                                                                     \
    X(busy_workers, "gauge", WHOLE, "bagserve_busy_workers", "workers",                            \
      "Workers that have something to do.")                                                        \
    X(cpu_ns, "counter", NS, "process_cpu_seconds_total", "seconds", "User and system time.")      \
    X(start_ns, "gauge", NS, "process_start_time_seconds", "seconds since 1970",                   \
      "When the process started.")                                                                 \
    X(resident_bytes, "gauge", WHOLE, "process_resident_memory_bytes", "bytes",                    \
      "Resident memory.")                                                                          \
    X(virtual_bytes, "gauge", WHOLE, "process_virtual_memory_bytes", "bytes", "Virtual memory.")   \
    X(request_bytes, "gauge", WHOLE, "bagserve_memory_bytes", "bytes",                     \
      "Memory that requests hold, or that is kept for the next ones.")                             \
    X(max_request_bytes, "gauge", WHOLE, "bagserve_memory_limit_bytes", "bytes",           \
      "Most of it (max_memory).")                                                                  \
    X(load_bytes, "gauge", WHOLE, "bagserve_load_bytes", "bytes",                                  \
      "Bytes of tables that were read for the change of models that is being made.")               \
    X(load_total_bytes, "gauge", WHOLE, "bagserve_load_total_bytes", "bytes",                      \
      "All bytes of these; 0: nothing is being loaded.")                                           \
    X(load_left_ns, "gauge", NS, "bagserve_load_left_seconds", "seconds",                          \
      "How long reading the rest of them may take; 0: not known.")                                 \
    X(changes, "counter", WHOLE, "bagserve_model_changes_total", "changes",                        \
      "Changes of the models that are served, the first one included.")                            \
    X(failed_changes, "counter", WHOLE, "bagserve_failed_model_changes_total", "changes",          \
      "Those that failed, and versions that cannot be loaded: what served went on.")               \
    X(last_change_ms, "gauge", MS, "bagserve_last_model_change_timestamp_seconds",                 \
      "seconds since 1970", "When the models that are served last changed.")                       \
    X(retained_versions, "gauge", WHOLE, "bagserve_retained_versions", "versions",                         \
      "Versions that stay in memory without being served (keep_versions).")                          \
    X(retained_bytes, "gauge", WHOLE, "bagserve_retained_bytes", "bytes", "Bytes of their tables.")        \
    X(table_bytes, "gauge", WHOLE, "bagserve_tables_bytes", "bytes",                       \
      "Memory of all tables, with their keys' indexes and projections.")                           \
    X(max_table_bytes, "gauge", WHOLE, "bagserve_tables_limit_bytes", "bytes",             \
      "Most of it (max_table_bytes); 0: any.")                                                     \
    X(huge_refusals, "counter", WHOLE, "bagserve_huge_page_refusals_total", "blocks",              \
      "Blocks of tables that could not be had in huge pages (hugepages).")                         \
    X(node_refusals, "counter", WHOLE, "bagserve_numa_refusals_total", "blocks",                   \
      "Blocks of tables that could not be spread over memory nodes (numa).")                       \
    X(spans_dropped, "counter", WHOLE, "bagserve_trace_spans_dropped_total", "spans",              \
      "Spans of traced requests that were not delivered (otlp_endpoint).")                         \
    X(latency_target_ms, "gauge", MS, "bagserve_latency_target_seconds", "seconds",                \
      "In which requests should be answered (latency_target_ms); 0: there is no target.")          \
    X(open_fds, "gauge", WHOLE, "process_open_fds", "descriptors", "Open file descriptors.")       \
    X(max_fds, "gauge", WHOLE, "process_max_fds", "descriptors", "Most that may be open.")         \
    X(dropped_lines, "counter", WHOLE, "bagserve_dropped_log_lines_total", "lines",                \
      "Lines of the log that were dropped because their reader did not keep up.")

/* ---- the values of labels -------------------------------------------------------------------- */

/* The stages of an inference. X(ID, "value", "name of Triton's sum", "sentence"). The sum is
 * exposed in microseconds. */
#define BAG_STAGES(X)                                                                              \
    X(QUEUE, "queue", "nv_inference_queue_duration_us", "Time that answered requests waited for a worker.")                    \
    X(INPUT, "compute_input", "nv_inference_compute_input_duration_us", "Time spent decoding and checking them.")   \
    X(INFER, "compute_infer", "nv_inference_compute_infer_duration_us", "Time spent pooling.")                 \
    X(OUTPUT, "compute_output", "nv_inference_compute_output_duration_us", "Time spent printing numbers.")

/* The reasons of error replies. X(ID, "value", FAILURE). server/http/message.h assigns errors to
 * reasons. */
#define BAG_REJECTIONS(X)                                                                          \
    X(INTERNAL, "internal", BACKEND)                                                               \
    X(BAD_REQUEST, "bad_request", OTHER)                                                           \
    X(UNAUTHORIZED, "unauthorized", OTHER)                                                         \
    X(FORBIDDEN, "forbidden", OTHER)                                                               \
    X(WRONG_PORT, "wrong_port", OTHER)                                                             \
    X(NOT_FOUND, "not_found", OTHER)                                                               \
    X(METHOD, "method_not_allowed", OTHER)                                                         \
    X(SLOW, "request_timeout", OTHER)                                                              \
    X(CONFLICT, "conflict", OTHER)                                                                 \
    X(MISDIRECTED, "misdirected", OTHER)                                                           \
    X(TOO_LARGE, "body_too_large", OTHER)                                                          \
    X(ENCODING, "content_encoding", OTHER)                                                         \
    X(HEADERS, "headers_too_large", OTHER)                                                         \
    X(NOT_SUPPORTED, "not_supported", OTHER)                                                       \
    X(NO_MEMORY, "out_of_memory", REJECTED)                                                        \
    X(STORAGE, "storage_full", OTHER)                                                              \
    X(QUEUE_FULL, "queue_full", REJECTED)                                                          \
    X(TIMEOUT, "timeout", REJECTED)                                                                \
    X(CANCELLED, "cancelled", CANCELED)                                                            \
    X(NOT_READY, "not_ready", REJECTED)                                                            \
    X(SHARD, "shard", BACKEND)

/* Triton's reasons of failures. */
#define BAG_FAILURES(X)                                                                            \
    X(REJECTED, "REJECTED")                                                                        \
    X(CANCELED, "CANCELED")                                                                        \
    X(BACKEND, "BACKEND")                                                                          \
    X(OTHER, "OTHER")

/* X(status). Any other status counts as the last. */
#define BAG_HTTP_STATUSES(X)                                                                            \
    X(200) X(204) X(400) X(401) X(403) X(404) X(405) X(408) X(409) X(411) X(413) X(414) X(415) X(421) X(431) X(500)      \
    X(501) X(502) X(503) X(504) X(505) X(507)

/* ---- the bounds of histograms ---------------------------------------------------------------- */

/* Upper bounds, inclusive, in ns. */
#define BAG_SECONDS_BOUNDS(X)                                                                     \
    X(1000) X(2500) X(5000) X(10000) X(25000) X(50000) X(100000) X(250000) X(500000)               \
    X(1000000) X(2500000) X(5000000) X(10000000) X(25000000) X(50000000) X(100000000)              \
    X(250000000) X(500000000) X(1000000000) X(2500000000) X(5000000000) X(10000000000)

#define BAG_SIZES_BOUNDS(X)                                                                       \
    X(1) X(2) X(4) X(8) X(16) X(32) X(64) X(128) X(256) X(512) X(1024)

/* clang-format on */
