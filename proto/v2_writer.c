/* Requests of the V2 protocol; see v2_writer.h. */
#include "v2_writer.h"

#include "numbers.h"
#include "text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

static void put(struct bag_v2_writer *writer, const char *text)
{
    writer->out = bag_text_put(writer->out, text);
}

static void put_number(struct bag_v2_writer *writer, uint64_t number)
{
    writer->out = bag_digits_put(writer->out, number);
}

void bag_v2_writer_begin(struct bag_v2_writer *writer, char *text)
{
    *writer = (struct bag_v2_writer){.text = text, .out = text, .state = BAG_V2_WRITER_BEGUN};
    put(writer, "{");
}

void bag_v2_write_id(struct bag_v2_writer *writer, uint64_t id)
{
    assert(writer->state == BAG_V2_WRITER_BEGUN);
    put(writer, "\"id\":\"");
    put_number(writer, id);
    put(writer, "\",");
    writer->state = BAG_V2_WRITER_HAS_ID;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Writes the list's beginning if there is none yet. */
static void enter_inputs(struct bag_v2_writer *writer)
{
    assert(writer->state <= BAG_V2_WRITER_HAS_INPUTS);
    if (writer->state < BAG_V2_WRITER_HAS_INPUTS)
        put(writer, "\"inputs\":[");
    writer->state = BAG_V2_WRITER_HAS_INPUTS;
}

/* Writes an input up to its elements. */
static void begin_input(struct bag_v2_writer *writer, const char *name, enum bag_dtype dtype,
                        uint32_t rank, const int64_t *shape)
{
    bool is_first = writer->state < BAG_V2_WRITER_HAS_INPUTS;
    enter_inputs(writer);
    put(writer, is_first ? "{\"name\":\"" : ",{\"name\":\"");
    put(writer, name);
    put(writer, "\",\"shape\":[");
    for (uint32_t axis = 0; axis < rank; axis++) {
        put(writer, axis ? "," : "");
        put_number(writer, (uint64_t)shape[axis]);
    }
    put(writer, "],\"datatype\":\"");
    put(writer, bag_dtypes[dtype].name);
}

void bag_v2_write_input(struct bag_v2_writer *writer, const char *name, enum bag_dtype dtype,
                        uint32_t rank, const int64_t *shape)
{
    uint64_t bytes = bag_dtypes[dtype].bytes;
    begin_input(writer, name, dtype, rank, shape);
    for (uint32_t axis = 0; axis < rank; axis++)
        bytes *= (uint64_t)shape[axis];
    put(writer, "\",\"parameters\":{\"binary_data_size\":");
    put_number(writer, bytes);
    put(writer, "}}");
}

void bag_v2_write_json_input(struct bag_v2_writer *writer, const char *name, enum bag_dtype dtype,
                             size_t count, const void *data)
{
    const int64_t shape = (int64_t)count;
    begin_input(writer, name, dtype, 1, &shape);
    put(writer, "\",\"data\":");
    writer->out = bag_numbers_print(data, count, dtype, writer->out);
    put(writer, "}");
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Closes the list of inputs before the first parameter, and writes the key. */
static void begin_parameter(struct bag_v2_writer *writer, const char *name)
{
    bool is_first = writer->state < BAG_V2_WRITER_HAS_PARAMETERS;
    if (is_first)
        enter_inputs(writer);
    assert(writer->state <= BAG_V2_WRITER_HAS_PARAMETERS);
    put(writer, is_first ? "],\"parameters\":{\"" : ",\"");
    put(writer, name);
    put(writer, "\":");
    writer->state = BAG_V2_WRITER_HAS_PARAMETERS;
}

void bag_v2_write_text(struct bag_v2_writer *writer, const char *name, const char *text)
{
    begin_parameter(writer, name);
    put(writer, "\"");
    put(writer, text);
    put(writer, "\"");
}

void bag_v2_write_number(struct bag_v2_writer *writer, const char *name, uint64_t number)
{
    begin_parameter(writer, name);
    put_number(writer, number);
}

void bag_v2_write_true(struct bag_v2_writer *writer, const char *name)
{
    begin_parameter(writer, name);
    put(writer, "true");
}

void bag_v2_write_part(struct bag_v2_writer *writer, const struct bag_part *part, uint64_t digest)
{
    char text[BAG_DIGEST_BYTES];
    begin_parameter(writer, "part");
    put(writer, "{\"by\":\"");
    put(writer, bag_part_way_names[part->by]);
    put(writer, "\",\"index\":");
    put_number(writer, part->index);
    put(writer, ",\"of\":");
    put_number(writer, part->of);
    if (digest) {
        bag_digest_put(text, digest);
        put(writer, ",\"digest\":\"");
        put(writer, text);
        put(writer, "\"");
    }
    put(writer, "}");
}

size_t bag_v2_writer_end(struct bag_v2_writer *writer)
{
    assert(writer->state <= BAG_V2_WRITER_HAS_PARAMETERS);
    if (writer->state < BAG_V2_WRITER_HAS_PARAMETERS)
        enter_inputs(writer);
    put(writer, writer->state == BAG_V2_WRITER_HAS_PARAMETERS ? "}}" : "]}");
    writer->state = BAG_V2_WRITER_ENDED;
    return (size_t)(writer->out - writer->text);
}
