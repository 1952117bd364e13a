/* A digest of the table that a part was cut from; see source.h. */
#include "source.h"

#include "proto/text.h"

#include <stdlib.h>
#include <unistd.h>

/* Of a large file so many blocks are read, evenly spread: few enough for a slow disk, and together
 * of so many rows that two dumps of a trained table differ in some of them. */
#define SAMPLES      64
#define SAMPLE_BYTES 4096

/* Of a table that is made, the rows that are looked at. */
#define MADE_ROWS 16

static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    return bag_hash_bytes(hash, &word, sizeof word);
}

/* Hashes samples of `bytes` bytes that begin at `begin`: all of few. */
static bool hash_samples(const struct bag_table_file *file, uint64_t begin, uint64_t bytes,
                         uint64_t *hash, struct bag_problem *problem)
{
    char block[SAMPLE_BYTES];
    const bool is_small = bytes <= SAMPLES * SAMPLE_BYTES;
    const uint64_t step = is_small ? SAMPLE_BYTES : (bytes - SAMPLE_BYTES) / (SAMPLES - 1);
    int fd = bag_file_reopen(file, problem);
    bool ok = fd >= 0;
    *hash = hash_word(*hash, bytes);
    for (uint64_t i = 0, at = 0; ok && i < SAMPLES && at < bytes; i++, at += step) {
        size_t count = bytes - at < SAMPLE_BYTES ? (size_t)(bytes - at) : SAMPLE_BYTES;
        ok = bag_file_read_at(fd, block, count, begin + at, problem) ||
             bag_file_reject(file->path, problem);
        if (ok)
            *hash = bag_hash_bytes(*hash, block, count);
    }
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Hashes the elements of a file: of a part by rows those before its range was cut out, by
 * bag_npy_slice. */
static bool hash_file(const struct bag_source *source, const struct bag_table_file *file,
                      uint64_t *hash, struct bag_problem *problem)
{
    const struct bag_table_memory *own = &source->own;
    const uint64_t bytes = bag_dtypes[file->npy.dtype].bytes;
    const uint64_t row_bytes = file->npy.row_elements * bytes;
    const uint64_t row_step = file->npy.fortran_order ? bytes : row_bytes;
    *hash = hash_word(*hash, file->has_crc32 ? file->crc32 : 0);
    if (own->part.by != BAG_PART_ROWS)
        return hash_samples(file, file->npy.data_offset, file->npy.data_bytes, hash, problem);
    return hash_samples(file, file->npy.data_offset - own->first_row * row_step,
                        own->whole_rows * row_bytes, hash, problem);
}

static bool hash_made(const struct bag_source *source, uint64_t *hash, struct bag_problem *problem)
{
    const struct bag_table_memory *own = &source->own;
    float *row = malloc(own->whole_elements * sizeof *row + 1);
    if (!row)
        return bag_problem_no_memory(problem);
    for (uint64_t i = 0; i < MADE_ROWS && i < own->whole_rows; i++) {
        source->make(row, (size_t)(own->whole_rows * i / MADE_ROWS), 1, 0, own->whole_elements);
        *hash = bag_hash_bytes(*hash, row, own->whole_elements * sizeof *row);
    }
    free(row);
    return true;
}

bool bag_source_digest(const struct bag_source *source, uint64_t *digest,
                       struct bag_problem *problem)
{
    uint64_t hash = BAG_HASH_START;
    bool ok = !source->make || hash_made(source, &hash, problem);
    for (size_t i = 0; ok && i < source->num_files; i++)
        ok = hash_file(source, &source->files[i], &hash, problem);
    for (size_t i = 0; ok && i < source->num_key_files; i++)
        ok = hash_file(source, &source->key_files[i], &hash, problem);
    *digest = hash ? hash : 1;
    return ok;
}
