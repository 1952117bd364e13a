/* The main loop: reads messages, merges them into batches and sends them. The server's replies
 * decide what is read next. */
#include "feed.h"

#include "server/system/log.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* IDLE_MS: wait for a first message. The others: waits for the server, which double. */
enum { IDLE_MS = 200, FIRST_WAIT_MS = 50, LONGEST_WAIT_MS = 2000 };

/* The state of the main loop. */
struct feed {
    const struct bag_feed_options *options;
    struct bag_feed_metrics *metrics;
    struct bag_feed_kafka kafka;
    struct bag_feed_server server;
    struct bag_feed_batch batch;
    rd_kafka_message_t *next; /* owned; was read and is not in the batch yet */
    rd_kafka_message_t *only; /* owned; the batch's message if it has only one */
    uint64_t flush_at_ms;     /* time at which a batch is sent even if it is not full */
    uint64_t singly_through;  /* messages up to this number are sent one by one, because a batch of
                                 them was rejected */
    int wait_ms;              /* wait before the next attempt; 0: the server is available */
};

/* ---- where it stands ------------------------------------------------------------------------- */

/* Frees a message if there is one. */
static void forget(rd_kafka_message_t **message)
{
    if (*message)
        rd_kafka_message_destroy(*message);
    *message = NULL;
}

/* Begins a batch after the server's last update. */
static void begin_batch(struct feed *feed, uint64_t sequence)
{
    int64_t lag = feed->kafka.end - (int64_t)sequence;
    bool knows_age = lag > 0 && feed->batch.last_ms > 0;
    forget(&feed->only);
    bag_feed_batch_begin(&feed->batch, sequence + 1);
    feed->metrics->sequence = (int64_t)sequence;
    feed->metrics->lag_messages = lag > 0 ? lag : 0;
    feed->metrics->lag_ms = knows_age ? (int64_t)bag_epoch_ms() - feed->batch.last_ms : 0;
}

/* Waits for the server, longer each time. Logs the first of several waits, and a table that became
 * full meanwhile. */
static void wait_for_server(struct feed *feed, enum bag_feed_outcome outcome,
                            const struct bag_problem *problem)
{
    bool was_full = feed->metrics->table_full, is_full = outcome == BAG_FEED_FULL;
    feed->metrics->table_full = is_full;
    if (is_full && !was_full)
        bag_log(BAG_LOG_LEVEL_WARNING, "table_full", BAG_LOG_TEXT("model", feed->options->model),
                BAG_LOG_TEXT("message", problem->text));
    else if (!feed->wait_ms)
        bag_log(BAG_LOG_LEVEL_WARNING, "waiting", BAG_LOG_TEXT("for", "server"),
                BAG_LOG_TEXT("message", problem->text));
    if (!feed->wait_ms)
        feed->metrics->waits_total++;
    feed->wait_ms = feed->wait_ms ? 2 * feed->wait_ms : FIRST_WAIT_MS;
    if (feed->wait_ms > LONGEST_WAIT_MS)
        feed->wait_ms = LONGEST_WAIT_MS;
    poll(NULL, 0, feed->wait_ms); /* a signal ends the wait */
}

/* Queries the server's last update and continues to read after it. Drops the message that was read
 * ahead. Logs the offset, unless it is that of a batch that the server rejects again and again.
 * Returns true if the feed is stopping, and false with *problem set if it cannot continue. */
static bool find_place(struct feed *feed, struct bag_problem *problem)
{
    uint64_t sequence = 0;
    bool is_waiting = feed->wait_ms > 0;
    enum bag_feed_outcome outcome;
    forget(&feed->next);
    while ((outcome = bag_feed_server_ask(&feed->server, &sequence, problem)) == BAG_FEED_AWAY) {
        if (bag_feed_stopping)
            return true;
        wait_for_server(feed, outcome, problem);
    }
    if (outcome != BAG_FEED_DONE)
        return false;
    if (!bag_feed_kafka_seek(&feed->kafka, (int64_t)sequence, problem))
        return bag_feed_stopping;
    if (!is_waiting || sequence + 1 != feed->batch.first_sequence)
        bag_log(BAG_LOG_LEVEL_INFO, "reading", BAG_LOG_TEXT("topic", feed->options->topic),
                BAG_LOG_NUMBER("partition", feed->kafka.partition),
                BAG_LOG_NUMBER("offset", sequence), BAG_LOG_NUMBER("end", feed->kafka.end));
    begin_batch(feed, sequence);
    return true;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends the batch until its outcome is known. The caller handles REJECTED. */
static enum bag_feed_outcome send_batch(struct feed *feed, struct bag_problem *problem)
{
    uint64_t sequence = 0;
    enum bag_feed_outcome outcome;
    for (;;) {
        outcome = bag_feed_server_send(&feed->server, &feed->batch, &sequence, problem);
        if (outcome != BAG_FEED_AWAY && outcome != BAG_FEED_FULL)
            break;
        if (bag_feed_stopping)
            return BAG_FEED_DONE;
        wait_for_server(feed, outcome, problem);
    }
    feed->metrics->table_full = 0;
    bool goes_on = true;
    if (outcome == BAG_FEED_DONE) {
        /* Handle an acknowledged batch. `sequence` is the server's last update. */
        uint64_t last = feed->batch.sequence;
        feed->metrics->messages_total += (int64_t)feed->batch.messages;
        feed->metrics->rows_total += (int64_t)feed->batch.count;
        feed->metrics->batches_total++;
        if (feed->wait_ms)
            bag_log(BAG_LOG_LEVEL_INFO, "going_on", BAG_LOG_TEXT("server", feed->options->server));
        feed->wait_ms = 0;
        begin_batch(feed, last);
        /* If the server has later updates, another feed sends them, or it has loaded a newer table.
         */
        goes_on = sequence <= last || find_place(feed, problem);
    }
    if (outcome == BAG_FEED_MISFIT) {
        if (!feed->wait_ms)
            bag_log(BAG_LOG_LEVEL_WARNING, "out_of_step", BAG_LOG_TEXT("message", problem->text));
        wait_for_server(feed, outcome, problem);
        goes_on = find_place(feed, problem);
    }
    if (outcome == BAG_FEED_REJECTED)
        return outcome;
    return goes_on && outcome != BAG_FEED_REFUSED ? BAG_FEED_DONE : BAG_FEED_REFUSED;
}

/* Handles a rejected message, for the reason in *problem. Returns false if that ends the feed:
 * without --on-error skip, or if the only reason is that memory is exhausted. Otherwise skips the
 * message, and reports its number to the server as used. Owns the message. */
static bool pass_over(struct feed *feed, rd_kafka_message_t *message, struct bag_problem *problem)
{
    struct bag_problem why = *problem;
    int64_t offset = message->offset;
    bool ok = feed->options->skips && problem->kind != BAG_ERROR_NO_MEMORY;
    if (!ok)
        bag_problem_prefix(problem, "topic %s [%" PRId32 "], offset %" PRId64, feed->options->topic,
                           feed->kafka.partition, offset);
    else if (feed->options->dead_letter)
        ok = bag_feed_kafka_pass_on(&feed->kafka, message, why.text, problem);
    rd_kafka_message_destroy(message);
    if (!ok)
        return false;
    bag_log(BAG_LOG_LEVEL_WARNING, "skipped", BAG_LOG_NUMBER("offset", offset),
            BAG_LOG_TEXT("message", why.text));
    feed->metrics->rejected_total++;
    bag_feed_batch_begin(&feed->batch, feed->batch.first_sequence);
    feed->batch.sequence = (uint64_t)offset + 1;
    return send_batch(feed, problem) == BAG_FEED_DONE;
}

/* Sends the batch. If a batch of several messages is rejected, they are read again and sent one by
 * one. */
static bool flush(struct feed *feed, struct bag_problem *problem)
{
    enum bag_feed_outcome outcome = send_batch(feed, problem);
    if (outcome != BAG_FEED_REJECTED)
        return outcome == BAG_FEED_DONE;
    if (feed->batch.messages > 1) {
        feed->singly_through = feed->batch.sequence;
        return find_place(feed, problem);
    }
    /* The only message is the wrong one. */
    rd_kafka_message_t *message = feed->only;
    feed->only = NULL;
    return pass_over(feed, message, problem);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Adds the next message to the batch. If it does not fit, sends the batch first and keeps the
 * message. Returns false and sets *problem if the feed must end. */
static bool take_next(struct feed *feed, struct bag_problem *problem)
{
    rd_kafka_message_t *message = feed->next;
    enum bag_feed_added added =
        bag_feed_batch_add(&feed->batch, message, (size_t)feed->options->max_rows, problem);
    if (added != BAG_FEED_ADDED && feed->batch.messages)
        return flush(feed, problem);
    feed->next = NULL;
    if (added != BAG_FEED_ADDED)
        return pass_over(feed, message, problem);
    if (feed->batch.messages > 1) {
        forget(&feed->only);
        rd_kafka_message_destroy(message);
    } else {
        feed->only = message;
        feed->flush_at_ms = bag_epoch_ms() + (uint64_t)feed->options->max_wait_ms;
    }
    bool is_full = feed->batch.count >= (size_t)feed->options->max_rows ||
                   feed->batch.sequence <= feed->singly_through;
    return !is_full || flush(feed, problem);
}

/* Returns how long to wait for the next message: until the batch must be sent. */
static int wait_for_more_ms(const struct feed *feed)
{
    uint64_t now = bag_epoch_ms();
    if (!feed->batch.messages)
        return IDLE_MS;
    return feed->flush_at_ms > now ? (int)(feed->flush_at_ms - now) : 0;
}

/* Runs the main loop until the feed is stopped. Returns false and sets *problem if it must end. */
static bool run(struct feed *feed, struct bag_problem *problem)
{
    if (!find_place(feed, problem))
        return false;
    while (!bag_feed_stopping) {
        if (!feed->next)
            feed->next = bag_feed_kafka_next(&feed->kafka, wait_for_more_ms(feed), problem);
        bool ok = true;
        if (feed->next)
            ok = take_next(feed, problem);
        else if (problem->text[0])
            ok = problem->kind == BAG_ERROR_CONFLICT && find_place(feed, problem);
        else if (feed->batch.messages)
            ok = flush(feed, problem);
        else /* the end of the partition may have moved */
            begin_batch(feed, feed->batch.first_sequence - 1);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- main ------------------------------------------------------------------------------------ */

int main(int argc, char *argv[])
{
    static struct bag_feed_metrics metrics; /* read by another thread until the process ends */
    struct bag_feed_options options;
    struct bag_problem problem = {.text = ""};
    struct feed feed = {.options = &options, .metrics = &metrics};
    int exit_code;
    if (!bag_feed_options_read(&options, argc, argv, &exit_code))
        return exit_code;
    bag_feed_handle_signals();
    curl_global_init(CURL_GLOBAL_DEFAULT);
    metrics.model = options.model;
    bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_INFO);
    bag_feed_batch_init(&feed.batch);
    bool ok = (!options.metrics_port ||
               bag_feed_metrics_serve(&metrics, options.metrics_port, &problem)) &&
              bag_feed_server_open(&feed.server, &options, &problem) &&
              bag_feed_kafka_open(&feed.kafka, &options, &problem) && run(&feed, &problem);
    if (bag_feed_stopping)
        bag_log(BAG_LOG_LEVEL_INFO, "stopped", BAG_LOG_NUMBER("sequence", metrics.sequence));
    else if (!ok)
        fprintf(stderr, "bagserve-feed: %s\n", problem.text);
    forget(&feed.next);
    forget(&feed.only);
    bag_feed_kafka_close(&feed.kafka);
    bag_feed_server_close(&feed.server);
    bag_feed_batch_free(&feed.batch);
    curl_global_cleanup();
    return ok || bag_feed_stopping ? 0 : problem.kind == BAG_ERROR_CONFIGURATION ? 2 : 1;
}
