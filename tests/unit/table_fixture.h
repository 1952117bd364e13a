/* A table file in a directory of its own, and what is left of a process's resources. */
#pragma once

#include "server/tables/memory.h"
#include "testing.h"

#include <fcntl.h>
#include <unistd.h>

static char directory[64], path[96];

/* ---- files ----------------------------------------------------------------------------------- */

static inline void write_at(const void *bytes, size_t count, off_t at)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, at), count);
    close(fd);
}

/* Writes the header of an array; returns its size. */
static inline size_t write_header(const char *descr, const char *order, const char *shape)
{
    char file[256];
    int length =
        snprintf(file + 10, sizeof file - 10,
                 "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n", descr, order, shape);
    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = (char)length;
    file[9] = 0;
    unlink(path);
    write_at(file, 10 + (size_t)length, 0);
    return 10 + (size_t)length;
}

static inline size_t write_table(const char *descr, const char *order, const char *shape,
                                 const void *data, size_t data_bytes)
{
    size_t header_bytes = write_header(descr, order, shape);
    write_at(data, data_bytes, (off_t)header_bytes);
    return header_bytes;
}

static const float four_rows[4][2] = {{0, 0.5f}, {1, 1.5f}, {2, 2.5f}, {3, 3.5f}};

static inline void write_four_rows(void)
{
    write_table("<f4", "False", "(4, 2)", four_rows, sizeof four_rows);
}

static inline int set_up(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/test_table_load.XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/table.npy", directory);
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory);
}

/* ---- expectations ---------------------------------------------------------------------------- */

static inline struct bag_table_file open_file(void)
{
    struct bag_table_file file;
    struct bag_problem problem;
    if (!bag_table_file_open(path, BAG_DTYPE_COUNT, &file, &problem))
        fail_msg("%s", problem.text);
    return file;
}

/* Bytes of anonymous and file memory that the process maps. */
static inline size_t mapped_bytes(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- several tiles --------------------------------------------------------------------------- */

/* Not a multiple of any block. */
#define MANY_BYTES ((size_t)(20 << 20) + 4)

static inline size_t write_many(void)
{
    uint32_t *data = malloc(MANY_BYTES);
    for (size_t i = 0; i < MANY_BYTES / 4; i++)
        data[i] = (uint32_t)(i * 2654435761u);
    size_t header_bytes = write_table("<u4", "False", "(5242881,)", data, MANY_BYTES);
    free(data);
    return header_bytes;
}

static inline void check_many(const struct bag_table_memory *memory)
{
    const uint32_t *rows = memory->table.rows;
    for (size_t i = 0; i < MANY_BYTES / 4; i++)
        if (rows[i] != (uint32_t)(i * 2654435761u))
            fail_msg("element %zu is %u", i, rows[i]);
}
