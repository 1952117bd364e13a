/* Merges messages into batches; see feed.h.
 *
 * Producers usually send the same JSON with each message, and only the data after it differ. The
 * last message that was decoded is therefore kept: a message with the same JSON and length needs no
 * parsing, only new pointers to its data. */
#include "feed.h"

#include "proto/json.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The memory for decoding a message: a base plus a multiple of the message's length. */
enum { ARENA_BASE_BYTES = 1 << 20, ARENA_FACTOR = 16 };

/* The maximum size of a batch of several messages, below the default max_body_bytes of servers. */
#define MAX_BYTES ((size_t)4 << 20)

void bag_feed_batch_init(struct bag_feed_batch *batch)
{
    *batch = (struct bag_feed_batch){.messages = 0};
    bag_arena_init(&batch->last.arena, ARENA_BASE_BYTES);
}

void bag_feed_batch_free(struct bag_feed_batch *batch)
{
    bag_arena_free(&batch->last.arena);
    free(batch->ids);
    free(batch->rows);
}

void bag_feed_batch_begin(struct bag_feed_batch *batch, uint64_t first_sequence)
{
    batch->messages = batch->count = batch->ids_bytes = batch->rows_bytes = 0;
    batch->first_sequence = first_sequence;
    batch->sequence = first_sequence - 1;
    batch->is_alone = false;
}

/* ---- a message ------------------------------------------------------------------------------- */

/* Copies the value of a message's header to `text` and appends a NUL. Returns `text`, which is ""
 * if there is no such header. */
static const char *header_of(const rd_kafka_message_t *message, const char *wanted, char *text,
                             size_t room)
{
    rd_kafka_headers_t *headers;
    const char *name;
    const void *value;
    size_t bytes;
    text[0] = 0;
    if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return text;
    for (size_t i = 0; !rd_kafka_header_get_all(headers, i, &name, &value, &bytes); i++) {
        if (strcasecmp(name, wanted) == 0 && value && bytes < room) {
            memcpy(text, value, bytes);
            text[bytes] = 0;
        }
    }
    return text;
}

/* Returns whether the message has the same JSON and length as the last one. Its tensors are then
 * the same except for the data after the JSON, to which they are pointed. */
static bool repeats(struct bag_feed_decoded *last, const rd_kafka_message_t *message,
                    size_t head_bytes)
{
    const char *payload = message->payload;
    if (!last->head_bytes || head_bytes != last->head_bytes || message->len != last->bytes ||
        memcmp(payload, last->head, head_bytes) != 0)
        return false;
    if (last->ids_at)
        last->rows.ids.data = payload + last->ids_at;
    if (last->rows_at)
        last->rows.rows.data = payload + last->rows_at;
    return true;
}

/* Returns the position of a tensor's data in the message, or 0 if its numbers are in the JSON. */
static size_t place_of(const struct bag_tensor *tensor, const rd_kafka_message_t *message)
{
    const char *payload = message->payload, *data = tensor->data;
    return data >= payload && data <= payload + message->len ? (size_t)(data - payload) : 0;
}

/* Decodes the message to batch->last.rows, whose tensors then point into the message or the arena.
 * Returns false and sets *problem if it is not a batch of rows. */
static bool decode(struct bag_feed_batch *batch, const rd_kafka_message_t *message,
                   struct bag_problem *problem)
{
    struct bag_feed_decoded *last = &batch->last;
    char json_length[32], coding[32];
    size_t header_bytes = message->len;
    if (!message->payload)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the message has no value");
    if (*header_of(message, "Content-Encoding", coding, sizeof coding))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the message has a Content-Encoding; batches of rows are not "
                               "compressed (Kafka's own compression is fine)");
    header_of(message, "Inference-Header-Content-Length", json_length, sizeof json_length);
    if (*json_length && !bag_v2_header_length(json_length, message->len, &header_bytes, problem))
        return false;
    if (repeats(last, message, header_bytes))
        return true;
    last->head_bytes = 0;
    bag_arena_reset(&last->arena, ARENA_BASE_BYTES + ARENA_FACTOR * message->len);
    if (!bag_v2_rows_decode(message->payload, message->len, header_bytes, &bag_json_default_limits,
                            &last->arena, &last->rows, problem))
        return false;
    if (last->rows.sequence)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the message has a sequence; its offset + 1 is its number");
    last->bytes = message->len;
    last->ids_at = place_of(&last->rows.ids, message);
    last->rows_at = place_of(&last->rows.rows, message);
    if (header_bytes <= sizeof last->head) {
        last->head_bytes = header_bytes;
        memcpy(last->head, message->payload, header_bytes);
    }
    return true;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Returns whether the rows can be appended to the batch: the same operation, types and shape of a
 * row. */
static bool is_of_kind(const struct bag_feed_batch *batch, const struct bag_v2_rows *rows)
{
    if (batch->has_keys != rows->has_keys || batch->deletes != rows->deletes ||
        batch->id_dtype != rows->ids.dtype)
        return false;
    if (rows->deletes)
        return true;
    if (batch->row_dtype != rows->rows.dtype || batch->row_rank != rows->rows.rank)
        return false;
    for (uint32_t i = 1; i < rows->rows.rank; i++) {
        if (batch->row_shape[i] != rows->rows.shape[i])
            return false;
    }
    return true;
}

/* Returns whether there is one row for each id, so that the next message can be appended. */
static bool is_whole(const struct bag_v2_rows *rows)
{
    return rows->ids.rank == 1 &&
           (rows->deletes || (rows->rows.rank > 0 && rows->rows.shape[0] == rows->ids.shape[0]));
}

/* Appends bytes and doubles the capacity as needed. Returns false without memory. */
static bool append(char **memory, size_t *used, size_t *room, const void *data, size_t bytes)
{
    if (bytes > *room - *used) {
        size_t wanted = *used + bytes > 2 * *room ? *used + bytes : 2 * *room;
        char *grown = realloc(*memory, wanted);
        if (!grown)
            return false;
        *memory = grown;
        *room = wanted;
    }
    if (bytes)
        memcpy(*memory + *used, data, bytes);
    *used += bytes;
    return true;
}

enum bag_feed_added bag_feed_batch_add(struct bag_feed_batch *batch,
                                       const rd_kafka_message_t *message, size_t max_rows,
                                       struct bag_problem *problem)
{
    const struct bag_v2_rows *rows = &batch->last.rows;
    if (!decode(batch, message, problem))
        return BAG_FEED_IS_WRONG;
    size_t ids_bytes = rows->ids.count * bag_dtypes[rows->ids.dtype].bytes;
    size_t rows_bytes = rows->deletes ? 0 : rows->rows.count * bag_dtypes[rows->rows.dtype].bytes;
    if (batch->messages &&
        (batch->is_alone || !is_whole(rows) || !is_of_kind(batch, rows) ||
         batch->count + rows->ids.count > max_rows ||
         batch->ids_bytes + batch->rows_bytes + ids_bytes + rows_bytes > MAX_BYTES))
        return BAG_FEED_IS_FULL;
    if (!batch->messages) {
        /* Set the kind of the batch to that of its first message. */
        batch->has_keys = rows->has_keys;
        batch->deletes = rows->deletes;
        batch->is_alone = !is_whole(rows);
        batch->id_dtype = rows->ids.dtype;
        batch->row_dtype = rows->rows.dtype;
        batch->row_rank = rows->deletes ? 0 : rows->rows.rank;
        memcpy(batch->row_shape, rows->rows.shape, sizeof batch->row_shape);
    }
    if (!append(&batch->ids, &batch->ids_bytes, &batch->ids_room, rows->ids.data, ids_bytes) ||
        !append(&batch->rows, &batch->rows_bytes, &batch->rows_room, rows->rows.data, rows_bytes)) {
        batch->ids_bytes = batch->count * bag_dtypes[batch->id_dtype].bytes; /* none without rows */
        bag_problem_no_memory(problem);
        return BAG_FEED_IS_WRONG;
    }
    batch->messages++;
    batch->count += rows->ids.count;
    batch->row_shape[0] = batch->is_alone ? rows->rows.shape[0] : (int64_t)batch->count;
    batch->sequence = (uint64_t)message->offset + 1;
    batch->last_ms = rd_kafka_message_timestamp(message, NULL);
    return BAG_FEED_ADDED;
}

/* ---- the body -------------------------------------------------------------------------------- */

size_t bag_feed_batch_header(const struct bag_feed_batch *batch, char text[BAG_FEED_HEADER_BYTES])
{
    const int64_t count = (int64_t)batch->count;
    struct bag_v2_writer writer;
    bag_v2_writer_begin(&writer, text);
    if (batch->messages)
        bag_v2_write_input(&writer, batch->has_keys ? "keys" : "indices", batch->id_dtype, 1,
                           &count);
    if (batch->messages && !batch->deletes)
        bag_v2_write_input(&writer, "rows", batch->row_dtype, batch->row_rank, batch->row_shape);
    bag_v2_write_number(&writer, "first_sequence", batch->first_sequence);
    bag_v2_write_number(&writer, "sequence", batch->sequence);
    if (batch->messages && batch->deletes)
        bag_v2_write_true(&writer, "delete");
    return bag_v2_writer_end(&writer);
}
