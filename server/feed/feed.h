/* bagserve-feed: brings the messages of one partition of a Kafka topic to one model of a server.
 *
 * Each message's value is the body that POST /v2/models/M/rows takes; its offset + 1 is its number
 * (sequence). The server knows the last number that its rows have, so nothing is remembered here:
 * whatever is restarted, the feed asks and goes on behind it.
 *
 *   options.c  the command line          kafka.c    the partition, and the topic for rejected ones
 *   batch.c    messages become one batch server.c   the calls to the server
 *   feed.c     the loop over them        metrics.c  what Prometheus reads
 *
 * One thread runs all of it but librdkafka's own and that of the metrics, which reads atomics. */
#ifndef BAG_FEED_H
#define BAG_FEED_H

#include "proto/v2_request.h"
#include "proto/v2_writer.h"

#include <curl/curl.h>
#include <librdkafka/rdkafka.h>
#include <signal.h>
#include <stdatomic.h>

/* Set by SIGTERM and SIGINT; every wait ends then. */
extern volatile sig_atomic_t bag_feed_stopping;

/* ---- options --------------------------------------------------------------------------------- */

enum { BAG_FEED_MAX_SETTINGS = 64 };

struct bag_feed_options {
    const char *brokers, *topic, *model, *server, *token_file, *dead_letter;
    bool skips;                                  /* what the server rejects is passed over */
    int partition;                               /* -1: the topic has one alone */
    int max_rows;                                /* of one batch */
    int max_wait_ms;                             /* for more messages, once there is one */
    int metrics_port;                            /* 0: none */
    const char *settings[BAG_FEED_MAX_SETTINGS]; /* of librdkafka, KEY=VALUE */
    size_t num_settings;
};

/* Reads the command line; texts are borrowed from it. False with *exit_code where the program is to
 * end: help was asked for (0), or something is wrong (2) and was said. */
bool bag_feed_options_read(struct bag_feed_options *options, int argc, char *argv[],
                           int *exit_code);

/* ---- metrics --------------------------------------------------------------------------------- */

/* X(name, "type", "help") */
#define BAG_FEED_METRICS(X)                                                               \
    X(messages_total, "counter", "Messages that the server has, by this feed or before.") \
    X(rejected_total, "counter", "Messages that were rejected and passed over.")          \
    X(batches_total, "counter", "Batches that the server has acknowledged.")              \
    X(rows_total, "counter", "Rows in those batches.")                                    \
    X(waits_total, "counter", "Times that the server was unavailable, or had no room.")   \
    X(table_full, "gauge", "1 while the table has no spare row for a new key, else 0.")   \
    X(sequence, "gauge", "The last number that the server has acknowledged.")             \
    X(lag_messages, "gauge", "Offsets between that and the end of the partition.")        \
    X(lag_ms, "gauge", "Age of the last acknowledged message; 0 where the end has been reached.")

struct bag_feed_metrics {
    const char *model; /* borrowed; value of the label "model" */
#define BAG_X(name, type, help) _Atomic int64_t name;
    BAG_FEED_METRICS(BAG_X)
#undef BAG_X
};

/* Answers GET /metrics on this port of all addresses from a thread of its own, until the process
 * ends. Every metric has the label model="MODEL", which metrics->model gives. */
bool bag_feed_metrics_serve(const struct bag_feed_metrics *metrics, int port,
                            struct bag_problem *problem);

/* ---- messages -------------------------------------------------------------------------------- */

struct bag_feed_kafka {
    const struct bag_feed_options *options;
    rd_kafka_t *consumer, *producer; /* the producer only with a dead-letter topic */
    rd_kafka_topic_t *topic;         /* of the consumer */
    int32_t partition;
    bool is_started;
    int64_t end; /* of the partition, as last told */
};

/* Connects, and finds the partition: waits for brokers and for the topic, and says so. False with
 * *problem where that cannot be, or where bag_feed_stopping is set. */
bool bag_feed_kafka_open(struct bag_feed_kafka *kafka, const struct bag_feed_options *options,
                         struct bag_problem *problem);
void bag_feed_kafka_close(struct bag_feed_kafka *kafka);

/* Begins at an offset. False with *problem where the partition does not have it: messages that are
 * no longer kept, or a topic that ends before. */
bool bag_feed_kafka_seek(struct bag_feed_kafka *kafka, int64_t offset, struct bag_problem *problem);

/* The next message, for rd_kafka_message_destroy; NULL where none came within `timeout_ms`, or with
 * *problem where there will be none (its text is empty otherwise): CONFLICT where the partition
 * does not have what is read, any more or yet, which bag_feed_kafka_seek can explain. */
rd_kafka_message_t *bag_feed_kafka_next(struct bag_feed_kafka *kafka, int timeout_ms,
                                        struct bag_problem *problem);

/* Passes a message on to the dead-letter topic, with the sentence, and waits until the brokers have
 * it. */
bool bag_feed_kafka_pass_on(struct bag_feed_kafka *kafka, const rd_kafka_message_t *message,
                            const char *sentence, struct bag_problem *problem);

/* ---- batches --------------------------------------------------------------------------------- */

/* Messages of one kind that follow each other, as one batch of rows. */
struct bag_feed_batch {
    size_t messages;
    uint64_t first_sequence, sequence; /* what it stands for, gaps of the log included */
    int64_t last_ms;                   /* the last message's time; below 0: not known */
    bool has_keys, deletes;
    bool is_alone; /* one message whose tensors do not fit each other, for the server to reject */
    enum bag_dtype id_dtype, row_dtype;
    uint32_t row_rank; /* of rows [n, ...], with the first dimension */
    int64_t row_shape[BAG_MAX_RANK];
    size_t count;     /* of ids */
    char *ids, *rows; /* owned; side by side */
    size_t ids_bytes, rows_bytes, ids_room, rows_room;
    struct bag_feed_decoded {
        struct bag_arena arena;
        struct bag_v2_rows rows;
        size_t bytes, ids_at, rows_at; /* of the message; 0: the numbers are in its JSON */
        char head[1024];               /* its JSON, which most messages have in common */
        size_t head_bytes;             /* 0: none, or a longer one */
    } last;                            /* message that was decoded */
};

enum bag_feed_added { BAG_FEED_ADDED, BAG_FEED_IS_FULL, BAG_FEED_IS_WRONG };

void bag_feed_batch_init(struct bag_feed_batch *batch);
void bag_feed_batch_free(struct bag_feed_batch *batch);

/* Forgets the messages; what comes next begins with that number. */
void bag_feed_batch_begin(struct bag_feed_batch *batch, uint64_t first_sequence);

/* Adds a message. IS_FULL: it is of another kind, or beyond the bounds; send the batch and add it
 * again. IS_WRONG with *problem: it is no batch of rows. */
enum bag_feed_added bag_feed_batch_add(struct bag_feed_batch *batch,
                                       const rd_kafka_message_t *message, size_t max_rows,
                                       struct bag_problem *problem);

#define BAG_FEED_HEADER_BYTES \
    (BAG_V2_WRITER_HEADER_BYTES + 2 * BAG_V2_WRITER_INPUT_BYTES + 3 * BAG_V2_WRITER_PARAMETER_BYTES)

/* Writes the JSON header of the binary body, which `ids` and `rows` follow. The header of a batch
 * without messages says that its numbers are used up. Returns its bytes. */
size_t bag_feed_batch_header(const struct bag_feed_batch *batch, char text[BAG_FEED_HEADER_BYTES]);

/* ---- the server ------------------------------------------------------------------------------ */

struct bag_feed_server {
    CURL *curl;
    struct curl_slist *headers; /* owned; Authorization where there is a token */
    char *model_url;            /* owned; .../v2/models/M */
    char *answer;               /* owned; of the last call */
    size_t answer_bytes;
};

enum bag_feed_outcome {
    BAG_FEED_DONE,
    BAG_FEED_AWAY,     /* not reachable, or it says to come again */
    BAG_FEED_FULL,     /* the table has no spare row for a new key */
    BAG_FEED_MISFIT,   /* the batch does not follow what the server has */
    BAG_FEED_REJECTED, /* the batch is wrong, and will be wrong again */
    BAG_FEED_REFUSED,  /* nothing will be taken: token, updates switched off */
};

bool bag_feed_server_open(struct bag_feed_server *server, const struct bag_feed_options *options,
                          struct bag_problem *problem);
void bag_feed_server_close(struct bag_feed_server *server);

/* Asks for the last number that the model's rows have. *problem says what came where it is not
 * DONE. */
enum bag_feed_outcome bag_feed_server_ask(struct bag_feed_server *server, uint64_t *sequence,
                                          struct bag_problem *problem);

/* Sends a batch; *sequence is then the last number that the server has. */
enum bag_feed_outcome bag_feed_server_send(struct bag_feed_server *server,
                                           const struct bag_feed_batch *batch, uint64_t *sequence,
                                           struct bag_problem *problem);

#endif
