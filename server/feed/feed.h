/* bagserve-feed: copies the row updates in one partition of a Kafka topic to one model of a server.
 *
 * A training pipeline writes changed rows to a topic, and a feed beside each server sends them to
 * it. The value of each message is a body of POST /v2/models/M/rows. The number
 * (sequence) of the update is the message's offset + 1.
 *
 *   options.c  the command line          kafka.c    the partition and the dead-letter topic
 *   batch.c    merges messages           server.c   requests to the server
 *   feed.c     the main loop             metrics.c  metrics for Prometheus
 *
 * The feed stores nothing. The server knows the last number that its rows include, so after any
 * restart the feed asks the server for it and continues with the next message. Offsets that are
 * committed to Kafka, as consumer groups do, would be a second record of the same fact. It would be
 * wrong as soon as the server restarts from an older snapshot or loads another table.
 *
 * Life of a message. The main loop reads it and merges it with its neighbours into a batch, so
 * that a busy topic does not cost one request for each message. A batch holds messages of one
 * kind: the same types, row shape and operation. It is sent when it is full, when the next message
 * does not fit, or when its first message has waited for max_wait_ms. The request names the range
 * of numbers that the batch covers. The server ignores a range that it already has, so a request
 * whose reply was lost can be sent again.
 *
 * The reply of the server decides which message is read next:
 *
 *   DONE      the batch is applied; the next one begins after it
 *   AWAY      the server is unreachable or busy; the same batch is sent again, after a longer wait
 *   FULL      the same, but for a table without a spare row; an operator must act
 *   MISFIT    the batch does not follow the server's last update; the feed asks for it and seeks
 *   REJECTED  a message is wrong. A batch of several is read again and sent message by message. The
 *             wrong one ends the feed, or is skipped and copied to the dead-letter topic. Its
 * number is then reported to the server as used, so that the sequence has no hole. REFUSED   the
 * server takes no updates from this feed; the feed ends
 *
 * Threads. One thread runs all of it, except for librdkafka's own threads and the thread of the
 * metrics, which reads atomics. Waits are short or are interrupted by SIGTERM and SIGINT. */
#pragma once

#include "proto/v2_request.h"
#include "proto/v2_writer.h"

#include <curl/curl.h>
#include <librdkafka/rdkafka.h>
#include <signal.h>
#include <stdatomic.h>

/* Set by SIGTERM and SIGINT. All waits end then. */
extern volatile sig_atomic_t bag_feed_stopping;

/* Makes SIGTERM and SIGINT set it, and ignores SIGPIPE. */
void bag_feed_handle_signals(void);

/* ---- options --------------------------------------------------------------------------------- */

enum { BAG_FEED_MAX_SETTINGS = 64 };

struct bag_feed_options {
    const char *brokers, *topic, *model, *server, *token_file, *dead_letter;
    bool skips;       /* rejected messages are skipped; else the first one ends the feed */
    int partition;    /* -1: the topic has only one partition */
    int max_rows;     /* maximum number of rows in a batch */
    int max_wait_ms;  /* maximum wait for more messages after the first of a batch */
    int metrics_port; /* 0: no metrics */
    const char *settings[BAG_FEED_MAX_SETTINGS]; /* settings of librdkafka, KEY=VALUE */
    size_t num_settings;
};

/* Reads the command line, from which texts are borrowed. Returns false if the program must exit,
 * and sets *exit_code: 0 after printing the help, 2 after printing what is wrong. */
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

/* Answers GET /metrics on this port of all addresses, on a thread of its own, until the process
 * ends. Every metric has the label model="MODEL" with metrics->model. Returns false and sets
 * *problem if the port cannot be opened. */
bool bag_feed_metrics_serve(const struct bag_feed_metrics *metrics, int port,
                            struct bag_problem *problem);

/* ---- messages -------------------------------------------------------------------------------- */

struct bag_feed_kafka {
    const struct bag_feed_options *options;
    rd_kafka_t *consumer, *producer; /* `producer` is NULL without a dead-letter topic */
    rd_kafka_topic_t *topic;         /* topic of the consumer */
    int32_t partition;
    bool is_started; /* messages are being read */
    int64_t end;     /* end of the partition, as last reported by the broker */
};

/* Creates the clients and finds the partition. Waits for brokers and for the topic, and logs that.
 * Returns false if bag_feed_stopping is set. Returns false and sets *problem if a setting of
 * librdkafka is wrong or the partition cannot be found. The caller must call bag_feed_kafka_close
 * in either case. */
bool bag_feed_kafka_open(struct bag_feed_kafka *kafka, const struct bag_feed_options *options,
                         struct bag_problem *problem);
/* Stops reading and destroys the clients. */
void bag_feed_kafka_close(struct bag_feed_kafka *kafka);

/* Starts to read at an offset, and updates `end`. Waits for brokers. Returns false if
 * bag_feed_stopping is set. Returns false and sets *problem if the partition does not have the
 * offset, because older messages were deleted or the topic ends before it. */
bool bag_feed_kafka_seek(struct bag_feed_kafka *kafka, int64_t offset, struct bag_problem *problem);

/* Returns the next message, which the caller frees with rd_kafka_message_destroy. Returns NULL if
 * there was none within `timeout_ms`; the text of *problem is then empty. Returns NULL and sets
 * *problem if no more messages can be read. *problem is CONFLICT if the partition does not have the
 * next offset; bag_feed_kafka_seek can tell why. */
rd_kafka_message_t *bag_feed_kafka_next(struct bag_feed_kafka *kafka, int timeout_ms,
                                        struct bag_problem *problem);

/* Copies a message to the dead-letter topic with the sentence, and waits until the brokers have
 * stored it. Returns false and sets *problem if they have not, or bag_feed_stopping was set
 * meanwhile. */
bool bag_feed_kafka_pass_on(struct bag_feed_kafka *kafka, const rd_kafka_message_t *message,
                            const char *sentence, struct bag_problem *problem);

/* ---- batches --------------------------------------------------------------------------------- */

/* Consecutive messages of one kind, merged into one batch of rows. */
struct bag_feed_batch {
    size_t messages; /* number of merged messages; 0: the batch only marks its numbers as used */
    uint64_t first_sequence,
        sequence;    /* range of updates that the batch covers, with the gaps in the topic */
    int64_t last_ms; /* time of the last message in ms; negative: unknown */
    bool has_keys, deletes;
    bool is_alone; /* a single message whose tensors do not fit each other; the server rejects it */
    enum bag_dtype id_dtype, row_dtype;
    uint32_t row_rank; /* dimensions of the rows, with the first */
    int64_t row_shape[BAG_MAX_RANK];
    size_t count;     /* number of ids */
    char *ids, *rows; /* owned; stored in parallel */
    size_t ids_bytes, rows_bytes, ids_room, rows_room;
    struct bag_feed_decoded {
        struct bag_arena arena;
        struct bag_v2_rows rows;
        size_t bytes, ids_at, rows_at; /* length of the message; positions of its tensors; 0: its
                                          numbers are in the JSON */
        char head[1024];               /* JSON of the message, which most messages have in common */
        size_t head_bytes;             /* 0: none, or longer than `head` */
    } last;                            /* last message that was decoded */
};

enum bag_feed_added { BAG_FEED_ADDED, BAG_FEED_IS_FULL, BAG_FEED_IS_WRONG };

void bag_feed_batch_init(struct bag_feed_batch *batch);
void bag_feed_batch_free(struct bag_feed_batch *batch);

/* Removes the messages. The next message begins with this number; 1 is the lowest. */
void bag_feed_batch_begin(struct bag_feed_batch *batch, uint64_t first_sequence);

/* Adds a message. Returns IS_FULL if it is of another kind or exceeds the limits; the caller then
 * sends the batch and adds it again. Returns IS_WRONG and sets *problem if it is not a batch of
 * rows, or there is not enough memory. */
enum bag_feed_added bag_feed_batch_add(struct bag_feed_batch *batch,
                                       const rd_kafka_message_t *message, size_t max_rows,
                                       struct bag_problem *problem);

#define BAG_FEED_HEADER_BYTES \
    (BAG_V2_WRITER_HEADER_BYTES + 2 * BAG_V2_WRITER_INPUT_BYTES + 3 * BAG_V2_WRITER_PARAMETER_BYTES)

/* Writes the JSON header of the binary body, which is followed by `ids` and `rows`. The header of a
 * batch without messages only marks its numbers as used. Returns the header's length. */
size_t bag_feed_batch_header(const struct bag_feed_batch *batch, char text[BAG_FEED_HEADER_BYTES]);

/* ---- the server ------------------------------------------------------------------------------ */

struct bag_feed_server {
    CURL *curl;
    struct curl_slist *headers; /* owned; includes Authorization if there is a token */
    char *model_url;            /* owned; .../v2/models/M */
    char *answer;               /* owned; reply to the last request */
    size_t answer_bytes;
};

enum bag_feed_outcome {
    BAG_FEED_DONE,
    BAG_FEED_AWAY,     /* unreachable, or asks to try again later */
    BAG_FEED_FULL,     /* the table has no spare row for a new key */
    BAG_FEED_MISFIT,   /* the batch does not follow the server's last update */
    BAG_FEED_REJECTED, /* the batch is wrong and must not be sent again */
    BAG_FEED_REFUSED,  /* the server accepts no batches: wrong token, or updates are switched off */
};

/* Prepares the client. It connects with the first request. Returns false and sets *problem if the
 * token cannot be read, or without memory. The caller must call bag_feed_server_close in either
 * case. */
bool bag_feed_server_open(struct bag_feed_server *server, const struct bag_feed_options *options,
                          struct bag_problem *problem);
void bag_feed_server_close(struct bag_feed_server *server);

/* Queries the last number that the model's rows include. Returns DONE, or AWAY or REFUSED with
 * *problem set. */
enum bag_feed_outcome bag_feed_server_ask(struct bag_feed_server *server, uint64_t *sequence,
                                          struct bag_problem *problem);

/* Sends a batch. Returns DONE and sets *sequence to the last number that the server has, or returns
 * another outcome with *problem set. */
enum bag_feed_outcome bag_feed_server_send(struct bag_feed_server *server,
                                           const struct bag_feed_batch *batch, uint64_t *sequence,
                                           struct bag_problem *problem);
