/* libFuzzer: .npy headers. The first byte chooses the configured datatype, the rest is a file's
 * start. An accepted header must keep the promises of formats.h, and its data must be placed inside
 * the table. */
#include "fuzz.h"

#include "proto/formats.h"

/* Tables up to this size are placed. */
#define MAX_TABLE_BYTES ((size_t)1 << 16)

static void check_promises(const struct bag_npy *npy, size_t count)
{
    size_t bytes = bag_dtypes[npy->dtype].bytes, end;
    require(bytes > 0 && npy->rank <= BAG_MAX_RANK && npy->data_offset <= count);
    require(npy->data_bytes == npy->count * bytes);
    require(!__builtin_add_overflow(npy->data_bytes, npy->data_offset, &end));
    require(npy->num_columns * npy->column_elements == npy->count);
    for (uint32_t axis = 0; axis < npy->rank; axis++)
        require(npy->shape[axis] >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct bag_npy npy;
    struct bag_problem problem = {.text = ""};
    if (count == 0)
        return 0;
    enum bag_dtype override_dtype = (enum bag_dtype)(bytes[0] % (BAG_DTYPE_COUNT + 1));
    size_t header_bytes = bag_npy_header_bytes(bytes + 1, count - 1);
    if (!bag_npy_parse(bytes + 1, count - 1, override_dtype, &npy, &problem)) {
        require(problem.kind == BAG_ERROR_FILE && problem.text[0]);
        return 0;
    }
    require(header_bytes == npy.data_offset);
    check_promises(&npy, count - 1);
    if (npy.data_bytes <= MAX_TABLE_BYTES) {
        /* A bit that no element of the block has must be gone from all of the table. */
        unsigned char *block = calloc(1, npy.data_bytes + 1), *rows = malloc(npy.data_bytes + 1);
        memset(rows, 0xff, npy.data_bytes + 1);
        bag_npy_place(&npy, (struct bag_npy_tile){0, npy.num_columns, 0, npy.column_elements},
                      block, rows);
        for (size_t i = 0; i < npy.data_bytes; i++)
            require(rows[i] == 0);
        free(block);
        free(rows);
    }
    return 0;
}
