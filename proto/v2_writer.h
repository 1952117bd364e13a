/* Writes requests of the V2 protocol: the JSON header and, if a client wants that, tensors in it.
 *
 *     struct bag_v2_writer writer;
 *     bag_v2_writer_begin(&writer, text);
 *     bag_v2_write_id(&writer, 12);
 *     bag_v2_write_input(&writer, "indices", BAG_I64, 1, &count);
 *     bag_v2_write_text(&writer, "reduction", "sum");
 *     bytes = bag_v2_writer_end(&writer);
 *
 * The id comes first, then inputs, then parameters. The bytes of inputs that bag_v2_write_input
 * announces follow the header in the same order. The caller provides the memory: the sum of the
 * constants below for what it writes. Names and texts are ASCII that JSON need not escape. Writers
 * allocate nothing and may be used on any thread. */
#pragma once

#include "kernels/part.h"
#include "problem.h"

#include <stddef.h>
#include <stdint.h>

/* Maximum bytes of names and texts. */
#define BAG_V2_WRITER_NAME_BYTES 32

/* Maximum bytes of a header without inputs and parameters; of an input and of a parameter. */
#define BAG_V2_WRITER_HEADER_BYTES    64
#define BAG_V2_WRITER_INPUT_BYTES     (160 + BAG_V2_WRITER_NAME_BYTES + BAG_MAX_RANK * 21)
#define BAG_V2_WRITER_PARAMETER_BYTES 160

/* The last thing written, which decides what may follow. */
enum bag_v2_writer_state {
    BAG_V2_WRITER_BEGUN,
    BAG_V2_WRITER_HAS_ID,
    BAG_V2_WRITER_HAS_INPUTS,
    BAG_V2_WRITER_HAS_PARAMETERS,
    BAG_V2_WRITER_ENDED,
};

struct bag_v2_writer {
    char *text, *out; /* borrowed; the header and its end so far */
    enum bag_v2_writer_state state;
};

/* Begins a header in `text`, which the caller owns. */
void bag_v2_writer_begin(struct bag_v2_writer *writer, char *text);

/* Writes the id, as a string. */
void bag_v2_write_id(struct bag_v2_writer *writer, uint64_t id);

/* Writes an input whose elements follow the header in binary. */
void bag_v2_write_input(struct bag_v2_writer *writer, const char *name, enum bag_dtype dtype,
                        uint32_t rank, const int64_t *shape);

/* Writes an input of one dimension with its elements, which may be at any alignment. Takes
 * count * bag_numbers_max_text(dtype) bytes more than an input. */
void bag_v2_write_json_input(struct bag_v2_writer *writer, const char *name, enum bag_dtype dtype,
                             size_t count, const void *data);

/* Write a parameter. */
void bag_v2_write_text(struct bag_v2_writer *writer, const char *name, const char *text);
void bag_v2_write_number(struct bag_v2_writer *writer, const char *name, uint64_t number);
void bag_v2_write_true(struct bag_v2_writer *writer, const char *name);

/* Writes the parameter "part", with the digest unless that is 0. */
void bag_v2_write_part(struct bag_v2_writer *writer, const struct bag_part *part, uint64_t digest);

/* Completes the header. Returns its bytes. No NUL is added. */
size_t bag_v2_writer_end(struct bag_v2_writer *writer);
