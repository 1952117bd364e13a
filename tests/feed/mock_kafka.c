/* A Kafka cluster for tests: librdkafka's own mock cluster, which reads commands from standard
 * input.
 *
 *     mock_kafka BROKERS LINGER_MS
 *
 * LINGER_MS is how long the producer waits for more messages before it sends some. The program
 * prints the bootstrap servers in its first line, and "ok" or "error: why" after each command:
 *
 *     topic NAME PARTITIONS
 *     produce TOPIC PARTITION HEADER_LENGTH BYTES
 *         The value follows the line. A HEADER_LENGTH other than 0 becomes the header
 *         Inference-Header-Content-Length.
 *     flush
 *         waits until all messages are on the brokers.
 *     down BROKER
 *     up BROKER
 *         Brokers are numbered from 1.
 *     leader TOPIC PARTITION BROKER
 *     read TOPIC PARTITION OFFSET
 *         answers "ok OFFSET BYTES ERROR" and the value; ERROR is the header bagserve-error, with
 *         blanks as "_".
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 30000 };

static rd_kafka_t *holder, *producer;
static rd_kafka_mock_cluster_t *cluster;
static const char *linger_ms;
static int undelivered;

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *context)
{
    (void)client, (void)context;
    if (message->err)
        undelivered++;
}

static rd_kafka_t *make_client(rd_kafka_type_t type)
{
    char text[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_conf_set(conf, "log_level", "0", NULL, 0);
    if (cluster)
        rd_kafka_conf_set(conf, "bootstrap.servers", rd_kafka_mock_cluster_bootstraps(cluster),
                          NULL, 0);
    if (type == RD_KAFKA_PRODUCER) {
        rd_kafka_conf_set(conf, "linger.ms", linger_ms, NULL, 0);
        /* The mock keeps 5 MiB of a partition, as it is sent. */
        rd_kafka_conf_set(conf, "compression.codec", "zstd", NULL, 0);
        rd_kafka_conf_set(conf, "batch.num.messages", "100", NULL, 0);
        rd_kafka_conf_set(conf, "enable.idempotence", "false", NULL, 0);
        rd_kafka_conf_set(conf, "max.in.flight", "1", NULL, 0);
    }
    rd_kafka_t *client = rd_kafka_new(type, conf, text, sizeof text);
    if (!client) {
        fprintf(stderr, "mock_kafka: %s\n", text);
        exit(1);
    }
    return client;
}

static void answer(rd_kafka_resp_err_t error)
{
    if (error)
        printf("error: %s\n", rd_kafka_err2str(error));
    else
        puts("ok");
}

static rd_kafka_resp_err_t produce(const char *topic, int partition, size_t header_bytes,
                                   size_t bytes)
{
    char length[32];
    char *value = malloc(bytes + 1);
    if (!value || fread(value, 1, bytes, stdin) != bytes)
        exit(1);
    rd_kafka_headers_t *headers = rd_kafka_headers_new(2);
    rd_kafka_header_add(headers, "Content-Type", -1,
                        header_bytes ? "application/octet-stream" : "application/json", -1);
    snprintf(length, sizeof length, "%zu", header_bytes);
    if (header_bytes)
        rd_kafka_header_add(headers, "Inference-Header-Content-Length", -1, length, -1);
    rd_kafka_resp_err_t error;
    while ((error = rd_kafka_producev(
                producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(partition),
                RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_VALUE(value, bytes),
                RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END)) == RD_KAFKA_RESP_ERR__QUEUE_FULL)
        rd_kafka_poll(producer, 10);
    if (error)
        rd_kafka_headers_destroy(headers);
    free(value);
    return error;
}

static rd_kafka_resp_err_t flush(void)
{
    rd_kafka_resp_err_t error = rd_kafka_flush(producer, WAIT_MS);
    if (!error && undelivered)
        error = RD_KAFKA_RESP_ERR__FAIL;
    undelivered = 0;
    return error;
}

static void print_message(const rd_kafka_message_t *message)
{
    rd_kafka_headers_t *headers;
    const void *value = "-";
    size_t bytes = 1;
    if (rd_kafka_message_headers(message, &headers) == 0)
        rd_kafka_header_get_last(headers, "bagserve-error", &value, &bytes);
    printf("ok %lld %zu ", (long long)message->offset, message->len);
    for (size_t i = 0; i < bytes; i++)
        putchar(((const char *)value)[i] == ' ' ? '_' : ((const char *)value)[i]);
    putchar('\n');
    fwrite(message->payload, 1, message->len, stdout);
}

static void read_one(const char *name, int partition, long offset)
{
    rd_kafka_t *consumer = make_client(RD_KAFKA_CONSUMER);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(consumer, name, NULL);
    rd_kafka_message_t *message = NULL;
    rd_kafka_consume_start(topic, partition, offset);
    for (int waited = 0; !message && waited < WAIT_MS; waited += 100) {
        message = rd_kafka_consume(topic, partition, 100);
        if (message && message->err) {
            rd_kafka_message_destroy(message);
            message = NULL;
        }
    }
    if (message)
        print_message(message);
    else
        answer(RD_KAFKA_RESP_ERR__TIMED_OUT);
    if (message)
        rd_kafka_message_destroy(message);
    rd_kafka_consume_stop(topic, partition);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(consumer);
}

static void run(const char *line)
{
    char word[64];
    int number, broker;
    long offset;
    size_t header_bytes, bytes;
    if (sscanf(line, "topic %63s %d", word, &number) == 2)
        answer(rd_kafka_mock_topic_create(cluster, word, number, 1));
    else if (sscanf(line, "produce %63s %d %zu %zu", word, &number, &header_bytes, &bytes) == 4)
        answer(produce(word, number, header_bytes, bytes));
    else if (strcmp(line, "flush\n") == 0)
        answer(flush());
    else if (sscanf(line, "down %d", &broker) == 1)
        answer(rd_kafka_mock_broker_set_down(cluster, broker));
    else if (sscanf(line, "up %d", &broker) == 1)
        answer(rd_kafka_mock_broker_set_up(cluster, broker));
    else if (sscanf(line, "leader %63s %d %d", word, &number, &broker) == 3)
        answer(rd_kafka_mock_partition_set_leader(cluster, word, number, broker));
    else if (sscanf(line, "read %63s %d %ld", word, &number, &offset) == 3)
        read_one(word, number, offset);
    else
        puts("error: unknown command");
    fflush(stdout);
}

int main(int argc, char *argv[])
{
    char line[256];
    if (argc != 3)
        return 2;
    linger_ms = argv[2];
    holder = make_client(RD_KAFKA_PRODUCER);
    cluster = rd_kafka_mock_cluster_new(holder, atoi(argv[1]));
    if (!cluster)
        return 1;
    producer = make_client(RD_KAFKA_PRODUCER);
    printf("%s\n", rd_kafka_mock_cluster_bootstraps(cluster));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        run(line);
    rd_kafka_destroy(producer);
    rd_kafka_mock_cluster_destroy(cluster);
    rd_kafka_destroy(holder);
    return 0;
}
