/* What a server asks another one that has a part of a table, and what that one answers: inference
 * requests and replies of the V2 protocol, all in binary. A reply may be anybody's: all of it is
 * checked. */
#ifndef BAG_SHARD_H
#define BAG_SHARD_H

#include "kernels/part.h"
#include "kernels/table.h"
#include "v2_documents.h"

/* ---- requests -------------------------------------------------------------------------------- */

/* The tensors follow the header: ids, offsets, with the end of the last bag, default_index, INT64,
 * where there is one, and weights. */
struct bag_shard_request {
    uint64_t number; /* that no other request has: the reply repeats it */
    struct bag_part part;
    uint64_t digest; /* of what the part was cut from; 0: not said */
    bool is_partial;
    bool takes_kept; /* the shard's copy of the row of its default_index counts as its own */
    enum bag_reduction reduction;
    enum bag_dtype output_dtype; /* where it is not partial */
    enum bag_dtype ids_dtype;    /* I32 or I64; of the offsets and the default, too: a model may
                                    take no other than one type */
    size_t num_ids, num_bags;
    bool has_default, has_weights;
    enum bag_dtype weights_dtype;
    bool rejects_missing; /* keys that the table does not have are an error, whatever it says */
    bool rejects_outside; /* likewise row numbers that it does not have */
    bool explains;        /* which keys those are is asked */
};

/* Room for the header of any request. */
#define BAG_SHARD_HEADER_BYTES 1024

/* Writes the JSON header; returns its bytes, less than that. */
size_t bag_shard_request_header(const struct bag_shard_request *request,
                                char header[BAG_SHARD_HEADER_BYTES]);

/* Room for one that says how much time is left. */
#define BAG_SHARD_TIMED_BYTES (BAG_SHARD_HEADER_BYTES + 32)

/* Copies a header, and has it say how much time is left: at least 1. Returns its bytes. */
size_t bag_shard_request_timed(const char *header, size_t bytes, uint64_t timeout_us,
                               char timed[BAG_SHARD_TIMED_BYTES]);

/* Bytes of the tensors behind it; SIZE_MAX where they cannot be counted. */
size_t bag_shard_request_tensor_bytes(const struct bag_shard_request *request);

/* ---- replies --------------------------------------------------------------------------------- */

/* So many bytes the JSON header of a reply may have, without an explanation. */
#define BAG_SHARD_MAX_REPLY_HEADER 65536

/* Reads the reply to the request of that number, of a model in that version, whose outputs must be
 * these in this order, all binary, and nothing else. The dimensions behind the first may be others
 * of the same product. Sets where the outputs' data is in the reply, at any alignment. False with
 * BAD_GATEWAY and what the shard "answered". */
bool bag_shard_reply_read(const char *reply, size_t bytes, size_t header_bytes, uint64_t number,
                          const char *model, const char *version,
                          struct bag_v2_reply_output *outputs, size_t num_outputs,
                          struct bag_problem *problem);

/* The ids of a request whose keys the table does not have, as the reply explains: a reader of their
 * positions. */
struct bag_shard_missing {
    const char *at, *end;
    bool is_in_list, is_wrong;
    size_t next; /* the least position that may come */
};

/* Begins at an explanation; false where the reply has none. */
bool bag_shard_missing_begin(struct bag_shard_missing *missing, const char *reply,
                             size_t header_bytes);

/* The next position; SIZE_MAX: there is none, or with is_wrong another text than an explanation.
 * They ascend. */
size_t bag_shard_missing_next(struct bag_shard_missing *missing);

/* What an error's body is about. */
enum bag_shard_error { BAG_SHARD_ERROR_OTHER, BAG_SHARD_ERROR_INDEX, BAG_SHARD_ERROR_DEFAULT };

/* Of `default_index`, or of the index at *position; or of anything else. */
enum bag_shard_error bag_shard_error_read(const char *body, size_t bytes, size_t *position);

#endif
