/* Requests of a coordinator to a shard, a server that has a part of a table, and the shard's
 * replies. They are inference requests and replies of the V2 protocol with binary tensors only. A
 * reply may come from any process, so all of it is checked. */
#pragma once

#include "kernels/part.h"
#include "kernels/table.h"
#include "v2_documents.h"

/* ---- requests -------------------------------------------------------------------------------- */

/* A request. The tensors follow the header: ids, offsets with the end of the last bag,
 * default_index (INT64) if there is one, and weights. */
struct bag_shard_request {
    uint64_t number; /* unique number of the request, which the reply repeats */
    struct bag_part part;
    uint64_t digest; /* digest of the files from which the part was cut; 0: not sent */
    bool is_partial;
    bool takes_kept; /* the shard treats its copy of the row of its default_index as its own */
    enum bag_reduction reduction;
    enum bag_dtype output_dtype;    /* used if the request is not partial */
    enum bag_row_format row_format; /* format in which the shard has the rows; PLAIN: sums */
    enum bag_dtype ids_dtype; /* I32 or I64; also the type of the offsets and the default, because a
                                 model may require one type */
    size_t num_ids, num_bags;
    bool has_default, has_weights;
    enum bag_dtype weights_dtype;
    bool rejects_missing; /* keys that the table does not have are an error, regardless of the
                             shard's rules */
    bool rejects_outside; /* row numbers that the table does not have are an error */
    bool explains;        /* the reply lists the missing keys */
};

/* The maximum length of the header of any request. */
#define BAG_SHARD_HEADER_BYTES 1024

/* Writes the JSON header. Returns its length, which is less than BAG_SHARD_HEADER_BYTES. */
size_t bag_shard_request_header(const struct bag_shard_request *request,
                                char header[BAG_SHARD_HEADER_BYTES]);

/* The maximum length of a header with a timeout. */
#define BAG_SHARD_TIMED_BYTES (BAG_SHARD_HEADER_BYTES + 32)

/* Copies a header and adds the remaining time, which must be at least 1. Returns its length. */
size_t bag_shard_request_timed(const char *header, size_t bytes, uint64_t timeout_us,
                               char timed[BAG_SHARD_TIMED_BYTES]);

/* Returns the number of bytes of the tensors after the header, or SIZE_MAX if it overflows. */
size_t bag_shard_request_tensor_bytes(const struct bag_shard_request *request);

/* ---- replies --------------------------------------------------------------------------------- */

/* The maximum length of a reply's JSON header without an explanation. */
#define BAG_SHARD_MAX_REPLY_HEADER 65536

/* Parses the reply to the request with this number. The reply must be of this model and version.
 * Its outputs must be these, in this order and all binary, and there must be no others. The
 * dimensions after the first may differ if their product is the same. Sets the outputs' data to
 * positions in the reply, at any alignment. Returns false and sets *problem (BAD_GATEWAY) if the
 * reply is wrong. The sentence says what the shard "answered". */
bool bag_shard_reply_read(const char *reply, size_t bytes, size_t header_bytes, uint64_t number,
                          const char *model, const char *version,
                          struct bag_v2_reply_output *outputs, size_t num_outputs,
                          struct bag_problem *problem);

/* Reads from a reply's explanation the positions of ids whose keys the table does not have. */
struct bag_shard_missing {
    const char *at, *end;
    bool is_in_list, is_wrong;
    size_t next; /* smallest position that may follow */
};

/* Begins to read an explanation. Returns false if the reply has none. */
bool bag_shard_missing_begin(struct bag_shard_missing *missing, const char *reply,
                             size_t header_bytes);

/* Returns the next position; positions ascend. Returns SIZE_MAX after the last one, or with
 * is_wrong set if the text is not an explanation. */
size_t bag_shard_missing_next(struct bag_shard_missing *missing);

/* The subject of an error reply. */
enum bag_shard_error { BAG_SHARD_ERROR_OTHER, BAG_SHARD_ERROR_INDEX, BAG_SHARD_ERROR_DEFAULT };

/* Returns what an error reply is about: `default_index`, an index, whose position it stores in
 * *position, or something else. */
enum bag_shard_error bag_shard_error_read(const char *body, size_t bytes, size_t *position);
