/* The partition, read by librdkafka, and the dead-letter topic; see feed.h.
 *
 * The consumer reads one partition from an offset that the server decides. It joins no consumer
 * group and commits no offsets. */
#include "feed.h"

#include "server/system/log.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Time limit of a query to the brokers, wait before the next attempt, and interval in which
 * deliveries are polled. */
enum { ASK_MS = 5000, AGAIN_MS = 1000, DELIVERY_MS = 100 };

/* ---- clients --------------------------------------------------------------------------------- */

/* Sets a property of librdkafka. Returns false and sets *problem if it is unknown or its value is
 * wrong. */
static bool set(rd_kafka_conf_t *conf, const char *key, const char *value,
                struct bag_problem *problem)
{
    char text[512];
    return rd_kafka_conf_set(conf, key, value, text, sizeof text) == RD_KAFKA_CONF_OK ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "librdkafka: %s", text);
}

/* Applies a setting KEY=VALUE of the command line. */
static bool set_own(rd_kafka_conf_t *conf, const char *setting, struct bag_problem *problem)
{
    char key[256];
    const char *equals = strchr(setting, '=');
    snprintf(key, sizeof key, "%.*s", (int)(equals - setting), setting);
    return set(conf, key, equals + 1, problem);
}

/* Logs librdkafka's messages, on any of its threads. librdkafka reconnects to unavailable brokers
 * itself. */
static void on_log(const rd_kafka_t *client, int level, const char *facility, const char *text)
{
    (void)client;
    bag_log(level <= 4 ? BAG_LOG_LEVEL_WARNING : BAG_LOG_LEVEL_INFO, "kafka",
            BAG_LOG_TEXT("facility", facility), BAG_LOG_TEXT("message", text));
}

/* Stores the result of a delivery for bag_feed_kafka_pass_on, which waits for it. */
static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *context)
{
    rd_kafka_resp_err_t *delivered = message->_private;
    (void)client, (void)context;
    *delivered = message->err;
}

/* Creates a consumer or a producer. The settings of the command line come before those that the
 * feed needs, which therefore win. Returns NULL and sets *problem on failure. */
static rd_kafka_t *make_client(rd_kafka_type_t type, const struct bag_feed_options *options,
                               struct bag_problem *problem)
{
    static const char *const consumer[][2] = {{"enable.partition.eof", "true"},
                                              {"auto.offset.reset", "error"}};
    char text[512] = "";
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    bool ok = set(conf, "bootstrap.servers", options->brokers, problem) &&
              set(conf, "client.id", "bagserve-feed", problem);
    for (size_t i = 0; ok && i < options->num_settings; i++)
        ok = set_own(conf, options->settings[i], problem);
    for (size_t i = 0; ok && type == RD_KAFKA_CONSUMER && i < sizeof consumer / sizeof *consumer;
         i++)
        ok = set(conf, consumer[i][0], consumer[i][1], problem);
    if (ok && type == RD_KAFKA_PRODUCER)
        ok = set(conf, "acks", "all", problem);
    rd_kafka_conf_set_log_cb(conf, on_log);
    if (type == RD_KAFKA_PRODUCER)
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *client = ok ? rd_kafka_new(type, conf, text, sizeof text) : NULL;
    if (!client) {
        rd_kafka_conf_destroy(conf);
        if (ok)
            bag_problem_set(problem, BAG_ERROR_SYSTEM, "librdkafka: %s", text);
    }
    return client;
}

/* Waits for brokers and logs the reason once. */
static void wait_for_brokers(bool *is_said, const char *why)
{
    if (!*is_said)
        bag_log(BAG_LOG_LEVEL_WARNING, "waiting", BAG_LOG_TEXT("for", "brokers"),
                BAG_LOG_TEXT("message", why));
    *is_said = true;
    poll(NULL, 0, AGAIN_MS); /* a signal ends the wait */
}

/* ---- finding the partition ------------------------------------------------------------------- */

/* Sets the partition from the options. Returns false and sets *problem if the topic does not have
 * it, or has several and none is chosen. */
static bool choose_partition(struct bag_feed_kafka *kafka, int count, struct bag_problem *problem)
{
    int32_t wanted = kafka->options->partition;
    kafka->partition = wanted < 0 ? 0 : wanted;
    if (wanted < 0 && count != 1)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "topic %s has %d partitions; say by --partition which one has the "
                               "updates of this model",
                               kafka->options->topic, count);
    return wanted < count || bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                             "topic %s has %d partitions; there is no partition "
                                             "%" PRId32,
                                             kafka->options->topic, count, wanted);
}

bool bag_feed_kafka_open(struct bag_feed_kafka *kafka, const struct bag_feed_options *options,
                         struct bag_problem *problem)
{
    *kafka = (struct bag_feed_kafka){.options = options};
    kafka->consumer = make_client(RD_KAFKA_CONSUMER, options, problem);
    if (!kafka->consumer)
        return false;
    kafka->topic = rd_kafka_topic_new(kafka->consumer, options->topic, NULL);
    if (!kafka->topic)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "topic %s: %s", options->topic,
                               rd_kafka_err2str(rd_kafka_last_error()));
    if (options->dead_letter &&
        !(kafka->producer = make_client(RD_KAFKA_PRODUCER, options, problem)))
        return false;
    bool is_said = false;
    while (!bag_feed_stopping) {
        const struct rd_kafka_metadata *metadata = NULL;
        rd_kafka_resp_err_t error =
            rd_kafka_metadata(kafka->consumer, 0, kafka->topic, &metadata, ASK_MS);
        if (!error)
            error = metadata->topics[0].err;
        int count = error ? -1 : metadata->topics[0].partition_cnt;
        if (metadata)
            rd_kafka_metadata_destroy(metadata);
        if (error)
            bag_problem_set(problem, BAG_ERROR_SYSTEM, "topic %s: %s", kafka->options->topic,
                            rd_kafka_err2str(error));
        if (count >= 0)
            return choose_partition(kafka, count, problem);
        wait_for_brokers(&is_said, problem->text);
    }
    return false;
}

/* Stops reading if it was started. */
static void stop(struct bag_feed_kafka *kafka)
{
    if (kafka->is_started)
        rd_kafka_consume_stop(kafka->topic, kafka->partition);
    kafka->is_started = false;
}

void bag_feed_kafka_close(struct bag_feed_kafka *kafka)
{
    if (kafka->producer)
        rd_kafka_destroy(kafka->producer);
    stop(kafka);
    if (kafka->topic)
        rd_kafka_topic_destroy(kafka->topic);
    if (kafka->consumer)
        rd_kafka_destroy(kafka->consumer);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Checks that the partition has the message at `offset`. Returns false and sets *problem if it does
 * not. */
static bool check_offset(const struct bag_feed_kafka *kafka, int64_t offset, int64_t begin,
                         struct bag_problem *problem)
{
    const char *topic = kafka->options->topic;
    if (offset < begin)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the server's rows have the updates through %" PRId64
                               ", but topic %s [%" PRId32 "] keeps offsets from %" PRId64
                               " only: load a snapshot of the table whose "
                               "updates_through is %" PRId64 " or more",
                               offset, topic, kafka->partition, begin, begin);
    return offset <= kafka->end ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "the server's rows have the updates through %" PRId64
                           ", but topic %s [%" PRId32 "] ends at offset %" PRId64
                           ": it was made anew, or is another table's; load a table that belongs "
                           "to it",
                           offset, topic, kafka->partition, kafka->end);
}

/* Starts to read at an offset that is in the partition. */
static bool start(struct bag_feed_kafka *kafka, int64_t offset, struct bag_problem *problem)
{
    stop(kafka);
    kafka->is_started = rd_kafka_consume_start(kafka->topic, kafka->partition, offset) == 0;
    return kafka->is_started ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM, "topic %s: %s", kafka->options->topic,
                           rd_kafka_err2str(rd_kafka_last_error()));
}

bool bag_feed_kafka_seek(struct bag_feed_kafka *kafka, int64_t offset, struct bag_problem *problem)
{
    bool is_said = false;
    while (!bag_feed_stopping) {
        int64_t begin;
        rd_kafka_resp_err_t error = rd_kafka_query_watermark_offsets(
            kafka->consumer, kafka->options->topic, kafka->partition, &begin, &kafka->end, ASK_MS);
        if (!error)
            return check_offset(kafka, offset, begin, problem) && start(kafka, offset, problem);
        wait_for_brokers(&is_said, rd_kafka_err2str(error));
    }
    return false;
}

rd_kafka_message_t *bag_feed_kafka_next(struct bag_feed_kafka *kafka, int timeout_ms,
                                        struct bag_problem *problem)
{
    int64_t begin, end;
    problem->text[0] = 0;
    rd_kafka_message_t *message = rd_kafka_consume(kafka->topic, kafka->partition, timeout_ms);
    if (!message)
        return NULL;
    if (message->err) {
        /* Handle an event that is not a message. Set *problem if no messages can follow. */
        switch (message->err) {
        case RD_KAFKA_RESP_ERR__PARTITION_EOF:
            kafka->end = message->offset;
            break;
        case RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET:
        case RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE:
            bag_problem_set(problem, BAG_ERROR_CONFLICT, "%s", rd_kafka_message_errstr(message));
            break;
        case RD_KAFKA_RESP_ERR__FATAL:
        case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
            bag_problem_set(problem, BAG_ERROR_FILE, "topic %s [%" PRId32 "]: %s",
                            kafka->options->topic, kafka->partition,
                            rd_kafka_message_errstr(message));
            break;
        default: /* unavailable brokers, a new leader: librdkafka recovers by itself */
            bag_log(BAG_LOG_LEVEL_WARNING, "kafka",
                    BAG_LOG_TEXT("message", rd_kafka_message_errstr(message)));
        }
        rd_kafka_message_destroy(message);
        return NULL;
    }
    if (!rd_kafka_get_watermark_offsets(kafka->consumer, kafka->options->topic, kafka->partition,
                                        &begin, &end) &&
        end > kafka->end)
        kafka->end = end;
    return message;
}

/* ---- passing on ------------------------------------------------------------------------------ */

/* Returns the message's own headers with the message's position and the reason for its
 * rejection. */
static rd_kafka_headers_t *make_headers(const rd_kafka_message_t *message, const char *topic,
                                        const char *sentence)
{
    char offset[32], partition[16];
    rd_kafka_headers_t *own;
    rd_kafka_headers_t *headers = rd_kafka_message_headers(message, &own) == 0
                                      ? rd_kafka_headers_copy(own)
                                      : rd_kafka_headers_new(4);
    snprintf(offset, sizeof offset, "%" PRId64, message->offset);
    snprintf(partition, sizeof partition, "%" PRId32, message->partition);
    rd_kafka_header_add(headers, "bagserve-topic", -1, topic, -1);
    rd_kafka_header_add(headers, "bagserve-partition", -1, partition, -1);
    rd_kafka_header_add(headers, "bagserve-offset", -1, offset, -1);
    rd_kafka_header_add(headers, "bagserve-error", -1, sentence, -1);
    return headers;
}

bool bag_feed_kafka_pass_on(struct bag_feed_kafka *kafka, const rd_kafka_message_t *message,
                            const char *sentence, struct bag_problem *problem)
{
    const char *topic = kafka->options->dead_letter;
    rd_kafka_resp_err_t delivered = RD_KAFKA_RESP_ERR__IN_PROGRESS;
    rd_kafka_headers_t *headers = make_headers(message, kafka->options->topic, sentence);
    rd_kafka_resp_err_t error = rd_kafka_producev(
        kafka->producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
        RD_KAFKA_V_KEY(message->key, message->key_len),
        RD_KAFKA_V_VALUE(message->payload, message->len), RD_KAFKA_V_HEADERS(headers),
        RD_KAFKA_V_OPAQUE(&delivered), RD_KAFKA_V_END);
    if (error)
        rd_kafka_headers_destroy(headers);
    /* The client gives up after message.timeout.ms. When the feed is stopping, the message is
     * purged, but its delivery must still be reported before `delivered` goes out of scope. */
    while (!error && delivered == RD_KAFKA_RESP_ERR__IN_PROGRESS && !bag_feed_stopping)
        rd_kafka_poll(kafka->producer, DELIVERY_MS);
    if (!error && delivered == RD_KAFKA_RESP_ERR__IN_PROGRESS)
        rd_kafka_purge(kafka->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    while (!error && delivered == RD_KAFKA_RESP_ERR__IN_PROGRESS)
        rd_kafka_poll(kafka->producer, DELIVERY_MS);
    error = error ? error : delivered;
    return !error || bag_problem_set(problem, BAG_ERROR_SYSTEM, "topic %s (--dead-letter): %s",
                                     topic, rd_kafka_err2str(error));
}
