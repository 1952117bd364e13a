/* dump_table FILE [DATATYPE|- [THREADS]]: loads a table as the server does and writes its elements,
 * row-major and little-endian, to standard output. Rejections go to standard error; the exit code
 * is then 1. */
#include "server/tables/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int reject(const char *text)
{
    fprintf(stderr, "%s\n", text);
    return 1;
}

static int dump(const struct bag_table_file *file, unsigned threads)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    size_t bytes = file->npy.data_bytes;
    if (!bag_table_load(file, 1, &(struct bag_load_options){.threads = threads}, &memory, &problem))
        return reject(problem.text);
    bool ok = fwrite(memory.table.rows, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
    bag_table_unload(&memory);
    return ok ? 0 : reject("standard output cannot be written");
}

int main(int argc, char *argv[])
{
    struct bag_table_file file;
    struct bag_problem problem;
    enum bag_dtype dtype = BAG_DTYPE_COUNT;
    if (argc < 2 || argc > 4)
        return reject("dump_table FILE [DATATYPE|- [THREADS]]");
    if (argc > 2 && strcmp(argv[2], "-") != 0) {
        dtype = bag_dtype_find(argv[2], strlen(argv[2]));
        if (dtype == BAG_DTYPE_COUNT)
            return reject("there is no such datatype");
    }
    if (!bag_table_file_open(argv[1], dtype, &file, &problem))
        return reject(problem.text);
    return dump(&file, argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 2);
}
