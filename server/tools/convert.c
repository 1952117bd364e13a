/* Converting tables block by block, by several threads; see tools.h.
 *
 * Errors are summed for each block, and the sums are added in the order of the blocks, so that a
 * report does not depend on the threads. */
#include "tools.h"

#include "kernels/random.h"
#include "kernels/rowformat.h"
#include "proto/formats.h"
#include "server/system/thread_team.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* The size of a block, in bytes of the larger of the two rows. Each thread has one block as read
 * and one as converted. */
#define BLOCK_BYTES ((size_t)2 << 20)

/* The bags that are pooled for the report. */
#define SAMPLED_BAGS 1000
#define BAG_LENGTH   20

struct job {
    const struct bag_conversion *conversion;
    struct bag_rows_reader reader;
    bool copies;                             /* the rows are not changed */
    size_t to_bytes, block_rows, num_blocks; /* bytes of a new row; rows of a block but the last */
    struct bag_out_file out;
    uint64_t values_at, keys_at;  /* positions of rows and keys in the new file */
    struct bag_error_sum *blocks; /* the errors of each block; owned */

    struct bag_thread_team team; /* counts bytes; its lock guards the members below */
    size_t next_block;
    struct bag_worst_rows worst;
};

/* A thread's own memory. */
struct buffers {
    unsigned char *from, *to;    /* a block each */
    float *want, *got;           /* a row each: of the source, and of the new table */
    struct bag_worst_rows worst; /* the worst of the rows that it converted */
};

/* ---- the header ------------------------------------------------------------------------------ */

/* Reserves the file's bytes on the disk, and writes the header. */
static bool begin_file(struct job *job, struct bag_problem *problem)
{
    size_t header_bytes;
    char *header = bag_convert_header(job->conversion, &header_bytes, problem);
    if (!header)
        return false;
    job->values_at = header_bytes;
    job->keys_at = header_bytes + (uint64_t)job->reader.num_rows * job->to_bytes;
    uint64_t end = job->keys_at;
    if (bag_source_is_keyed(job->conversion->source))
        end += (uint64_t)job->reader.num_rows * sizeof(uint64_t);
    bool ok = bag_out_file_reserve(&job->out, end, problem) &&
              bag_out_file_write(&job->out, header, header_bytes, 0, problem);
    free(header);
    return ok;
}

/* ---- one block ------------------------------------------------------------------------------- */

/* Rejects a row that the new format cannot represent, and names its NaN or largest element. Returns
 * false. */
static bool reject_row(const struct job *job, size_t row, const float *values,
                       struct bag_problem *problem)
{
    const struct bag_table *to = &job->conversion->to;
    size_t at = 0;
    float least = 0;
    for (size_t i = 0; i < to->row_elements; i++) {
        if (isnan(values[i]) || fabsf(values[i]) > least) {
            at = i;
            least = fabsf(values[i]);
        }
        if (isnan(values[i]))
            break;
    }
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "row %zu, element %zu is %g, which %s rows cannot hold; choose another "
                           "format, or mend the table",
                           row, at, (double)values[at],
                           to->row_format == BAG_ROWS_PLAIN ? bag_dtypes[to->dtype].name
                                                            : bag_row_format_names[to->row_format]);
}

/* Encodes a row, decodes the result, and adds their difference to the sums. Returns false and sets
 * *problem if the new format cannot represent the row. */
static bool convert_row(const struct job *job, size_t row, const unsigned char *from,
                        unsigned char *to, struct buffers *buffers, struct bag_error_sum *sum,
                        struct bag_problem *problem)
{
    const struct bag_table *table = &job->conversion->to;
    struct bag_error_sum errors = {0};
    bag_row_to_floats(&job->conversion->source->table, from, buffers->want);
    if (!bag_row_encode(table, buffers->want, to))
        return reject_row(job, row, buffers->want, problem);
    bag_row_to_floats(table, to, buffers->got);
    bag_error_add_row(&errors, row, buffers->want, buffers->got, table->row_elements);
    bag_error_add(sum, &errors);
    if (errors.squared > 0) {
        double mean = errors.squared / (double)errors.elements;
        bag_worst_rows_add(&buffers->worst, &(struct bag_worst_row){row, 0, mean, errors.max});
    }
    return true;
}

/* Returns the number of rows in a block. The last one may have fewer. */
static size_t block_rows(const struct job *job, size_t index)
{
    size_t left = job->reader.num_rows - index * job->block_rows;
    return left < job->block_rows ? left : job->block_rows;
}

/* Returns the source's row for a row of the new table. */
static size_t source_row(const struct job *job, size_t row)
{
    return job->conversion->order ? job->conversion->order[row] : row;
}

/* Reads the source's rows for rows of the new table. */
static bool read_rows(const struct job *job, size_t first, size_t count,
                      const struct buffers *buffers, struct bag_problem *problem)
{
    bool ok = true;
    if (!job->conversion->order)
        return bag_rows_read(&job->reader, first, count, buffers->from, problem);
    for (size_t i = 0; ok && i < count; i++)
        ok = bag_rows_read(&job->reader, source_row(job, first + i), 1,
                           buffers->from + i * job->reader.row_bytes, problem);
    return ok;
}

/* Converts and writes a block. Rows that are copied count as exact. */
static bool convert_block(struct job *job, size_t index, struct buffers *buffers,
                          struct bag_problem *problem)
{
    size_t first = index * job->block_rows, from_bytes = job->reader.row_bytes;
    size_t count = block_rows(job, index);
    struct bag_error_sum *sum = &job->blocks[index];
    if (!read_rows(job, first, count, buffers, problem))
        return false;
    if (job->copies) {
        sum->rows = count;
        sum->elements = count * job->conversion->to.row_elements;
        sum->cosines = (double)count;
    }
    for (size_t i = 0; !job->copies && i < count; i++) {
        if (!convert_row(job, source_row(job, first + i), buffers->from + i * from_bytes,
                         buffers->to + i * job->to_bytes, buffers, sum, problem))
            return bag_file_reject(job->conversion->source->model->path, problem);
    }
    return bag_out_file_write(&job->out, job->copies ? buffers->from : buffers->to,
                              count * job->to_bytes, job->values_at + first * job->to_bytes,
                              problem);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Takes the next block. Returns false if there is none, another thread has failed, or a signal has
 * arrived. */
static bool next_block(struct job *job, size_t *index)
{
    pthread_mutex_lock(&job->team.lock);
    /* The first thread that sees a signal stops all threads. */
    bool more = !job->team.failed && job->next_block < job->num_blocks;
    if (more && job->conversion->find_signal()) {
        job->team.failed = true;
        bag_problem_set(&job->team.problem, BAG_ERROR_CANCELLED,
                        "interrupted; nothing was written");
        more = false;
    }
    if (more)
        *index = job->next_block++;
    pthread_mutex_unlock(&job->team.lock);
    return more;
}

/* Allocates the memory of a thread. Returns false without memory; free_buffers must be called in
 * either case. */
static bool allocate_buffers(const struct job *job, struct buffers *buffers)
{
    size_t row = job->conversion->to.row_elements * sizeof(float);
    buffers->worst.count = 0;
    buffers->from = malloc(job->block_rows * job->reader.row_bytes + 1);
    buffers->to = malloc(job->block_rows * job->to_bytes + 1);
    buffers->want = malloc(row + 1);
    buffers->got = malloc(row + 1);
    return buffers->from && buffers->to && buffers->want && buffers->got;
}

static void free_buffers(struct buffers *buffers)
{
    free(buffers->from);
    free(buffers->to);
    free(buffers->want);
    free(buffers->got);
}

/* Converts blocks until none is left. Runs on each thread of the team. */
static bool run_thread(void *context, struct bag_problem *problem)
{
    struct job *job = context;
    struct buffers buffers;
    size_t index;
    bool ok = allocate_buffers(job, &buffers) || bag_problem_no_memory(problem);
    while (ok && next_block(job, &index)) {
        ok = convert_block(job, index, &buffers, problem);
        if (ok)
            bag_thread_team_did(&job->team, block_rows(job, index) * job->reader.row_bytes);
    }
    free_buffers(&buffers);
    /* Merge the worst rows of a thread into those of the job. */
    const struct bag_worst_rows *worst = &buffers.worst;
    pthread_mutex_lock(&job->team.lock);
    for (size_t i = 0; i < worst->count; i++)
        bag_worst_rows_add(&job->worst, &worst->rows[i]);
    pthread_mutex_unlock(&job->team.lock);
    return ok;
}

/* Adds bytes to the progress. The team calls it on the thread that waits for the others. */
static void report_progress(void *context, size_t bytes)
{
    struct bag_progress *progress = ((const struct job *)context)->conversion->progress;
    bag_progress_update(progress, progress->done_bytes + bytes, uv_hrtime());
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Copies the keys block by block. */
static bool copy_keys(struct job *job, struct bag_problem *problem)
{
    size_t block = BLOCK_BYTES / sizeof(uint64_t);
    uint64_t *keys = malloc(BLOCK_BYTES);
    bool ok = keys || bag_problem_no_memory(problem);
    for (size_t first = 0; ok && first < job->reader.num_rows; first += block) {
        size_t count = job->reader.num_rows - first < block ? job->reader.num_rows - first : block;
        ok = bag_rows_read_keys(&job->reader, first, count, keys, problem) &&
             bag_out_file_write(&job->out, keys, count * sizeof *keys,
                                job->keys_at + first * sizeof *keys, problem);
    }
    free(keys);
    return ok;
}

/* Writes the keys in the order of the new table. This takes memory for all keys, twice. */
static bool order_keys(struct job *job, struct bag_problem *problem)
{
    size_t count = job->reader.num_rows;
    uint64_t *keys = calloc(2 * count + 1, sizeof *keys), *ordered = keys ? keys + count : NULL;
    bool ok = (keys || bag_problem_no_memory(problem)) &&
              bag_rows_read_keys(&job->reader, 0, count, keys, problem);
    for (size_t i = 0; ok && i < count; i++)
        ordered[i] = keys[source_row(job, i)];
    ok = ok && bag_out_file_write(&job->out, ordered, count * sizeof *keys, job->keys_at, problem);
    free(keys);
    return ok;
}

/* ---- bags ------------------------------------------------------------------------------------ */

/* Adds a random row of the source and of the new table to their sums, in f32 as the kernels. */
static bool add_random_row(const struct job *job, uint64_t *random, const struct buffers *buffers,
                           float *want, float *got, struct bag_problem *problem)
{
    size_t row = (size_t)(bag_random(random) % job->reader.num_rows);
    size_t elements = job->conversion->to.row_elements;
    if (!read_rows(job, row, 1, buffers, problem) ||
        !bag_file_read_at(job->out.fd, buffers->to, job->to_bytes,
                          job->values_at + row * job->to_bytes, problem))
        return false;
    bag_row_to_floats(&job->conversion->source->table, buffers->from, buffers->want);
    bag_row_to_floats(&job->conversion->to, buffers->to, buffers->got);
    for (size_t i = 0; i < elements; i++) {
        want[i] += buffers->want[i];
        got[i] += buffers->got[i];
    }
    return true;
}

/* Pools the same random bags from both files, and sums up the differences. Errors of rows partly
 * cancel in a bag, so these say more about replies. */
static bool sample_bags(const struct job *job, struct bag_convert_report *report,
                        struct bag_problem *problem)
{
    size_t elements = job->conversion->to.row_elements;
    /* Bags are pooled by mean if the model does so, and by sum for all other reductions. */
    bool mean = job->conversion->source->model->rules.reduction == BAG_MEAN;
    float *sums = malloc(2 * elements * sizeof *sums + 1), *got = sums ? sums + elements : NULL;
    struct buffers buffers;
    uint64_t random = 1; /* a constant seed, so that the same files give the same report */
    bool ok = (allocate_buffers(job, &buffers) && sums) || bag_problem_no_memory(problem);
    report->reduction = mean ? "mean" : "sum";
    report->ids_per_bag = BAG_LENGTH;
    for (size_t bag = 0; ok && bag < SAMPLED_BAGS && job->reader.num_rows > 0; bag++) {
        memset(sums, 0, 2 * elements * sizeof *sums);
        for (int i = 0; ok && i < BAG_LENGTH; i++)
            ok = add_random_row(job, &random, &buffers, sums, got, problem);
        for (size_t i = 0; mean && i < 2 * elements; i++)
            sums[i] /= BAG_LENGTH;
        if (ok)
            bag_error_add_row(&report->bags, bag, sums, got, elements);
    }
    free_buffers(&buffers);
    free(sums);
    return ok;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Adds up the errors in the order of the blocks. Copied rows have no errors, so no bags are pooled.
 */
static bool make_report(struct job *job, struct bag_convert_report *report,
                        struct bag_problem *problem)
{
    const struct bag_source *source = job->conversion->source;
    bool keyed = bag_source_is_keyed(source);
    *report = (struct bag_convert_report){.worst = job->worst,
                                          .keys_dtype = keyed ? source->key_files[0].npy.dtype
                                                              : BAG_DTYPE_COUNT,
                                          .row_elements = job->conversion->to.row_elements};
    for (size_t i = 0; i < job->num_blocks; i++)
        bag_error_add(&report->rows, &job->blocks[i]);
    if (job->copies) {
        report->reduction = "sum";
        return true;
    }
    /* The report names the keys of the worst rows. */
    bool ok = true;
    for (size_t i = 0; ok && keyed && i < report->worst.count; i++)
        ok = bag_rows_read_keys(&job->reader, report->worst.rows[i].row, 1,
                                &report->worst.rows[i].key, problem);
    return ok && sample_bags(job, report, problem);
}

/* Writes the file under its partial name, and fills in the report. Fails with CONFLICT if an
 * element differs by more than --max-error. */
static bool write_file(struct job *job, struct bag_convert_report *report,
                       struct bag_problem *problem)
{
    const struct bag_source *source = job->conversion->source;
    /* A file with a duplicated key could not be served. */
    return bag_tool_check_keys(source, job->conversion->threads, problem) &&
           begin_file(job, problem) &&
           bag_thread_team_run(&job->team, job->conversion->threads, run_thread, report_progress,
                               job, problem) &&
           (!bag_source_is_keyed(source) ||
            (job->conversion->order ? order_keys(job, problem) : copy_keys(job, problem))) &&
           bag_rows_reader_check(&job->reader, problem) && make_report(job, report, problem) &&
           (report->rows.max <= job->conversion->max_error ||
            bag_problem_set(
                problem, BAG_ERROR_CONFLICT,
                "the largest error of an element is %g, in row %zu; --max-error allows %g",
                report->rows.max, report->rows.max_row, job->conversion->max_error));
}

/* Converts a source whose files are open. */
static bool convert_opened(struct job *job, struct bag_convert_report *report,
                           struct bag_problem *problem)
{
    const struct bag_conversion *conversion = job->conversion;
    const struct bag_table *to = &conversion->to, *from = &conversion->source->table;
    const size_t from_bytes = job->reader.row_bytes, num_rows = job->reader.num_rows;
    if (!bag_out_file_open(&job->out, conversion->out, conversion->replace, problem))
        return false;
    bag_progress_start(conversion->progress, conversion->source->model->path, num_rows * from_bytes,
                       uv_hrtime());
    job->copies = from->dtype == to->dtype && from->row_format == to->row_format;
    job->to_bytes = bag_row_bytes(to);
    /* Divide the rows into blocks, of at least one row each. */
    size_t larger = job->to_bytes > from_bytes ? job->to_bytes : from_bytes;
    job->block_rows = larger < BLOCK_BYTES ? BLOCK_BYTES / (larger + (larger == 0)) : 1;
    job->num_blocks = (num_rows + job->block_rows - 1) / job->block_rows;
    job->blocks = calloc(job->num_blocks + 1, sizeof *job->blocks);
    bool ok = (job->blocks || bag_problem_no_memory(problem)) && write_file(job, report, problem) &&
              bag_out_file_publish(&job->out, problem);
    bag_out_file_close(&job->out, ok);
    free(job->blocks);
    return ok;
}

bool bag_convert(const struct bag_conversion *conversion, struct bag_convert_report *report,
                 struct bag_problem *problem)
{
    struct job job = {.conversion = conversion};
    if (!bag_rows_reader_open(&job.reader, conversion->source, problem))
        return false;
    bag_thread_team_init(&job.team);
    bool ok = convert_opened(&job, report, problem);
    bag_thread_team_free(&job.team);
    bag_rows_reader_close(&job.reader);
    return ok;
}
