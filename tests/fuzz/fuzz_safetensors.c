/* libFuzzer: safetensors headers, and the index of parts. The first byte chooses which of them, and
 * whether the data has the size that the tensors need; the rest is a file's start, or the header
 * alone. An accepted file must keep the promises of formats.h. */
#include "fuzz.h"

#include "proto/formats.h"

/* Every tensor is found under its name, inside the file. */
static void check_promises(const struct bag_safetensors *file, uint64_t file_bytes)
{
    const struct cJSON *cursor = NULL;
    struct bag_problem problem;
    uint64_t together = 0;
    bool all = true;
    for (const char *name; (name = bag_safetensors_next(file, &cursor));) {
        struct bag_safetensors_tensor tensor;
        require(bag_safetensors_find(file, name));
        if (!bag_safetensors_describe(file, bag_safetensors_find(file, name), &tensor, &problem)) {
            require(problem.kind == BAG_ERROR_FILE && problem.text[0]);
            all = false;
            continue;
        }
        size_t bytes = bag_dtypes[tensor.layout.dtype].bytes;
        require(tensor.layout.rank <= BAG_MAX_RANK && bag_npy_is_plain(&tensor.layout));
        require(tensor.layout.data_bytes == tensor.layout.count * bytes);
        require(tensor.layout.data_offset >= file->data_offset);
        require(tensor.layout.data_offset <= file_bytes);
        require(tensor.layout.data_bytes <= file_bytes - tensor.layout.data_offset);
        require(tensor.row_format == BAG_ROWS_PLAIN || tensor.layout.dtype == BAG_U8);
        together += tensor.layout.data_bytes;
    }
    require(!all || together == file_bytes - file->data_offset);
}

static void parse_file(const uint8_t *bytes, size_t count, uint64_t file_bytes)
{
    struct bag_safetensors file;
    struct bag_problem problem = {.text = ""};
    size_t header_bytes = bag_safetensors_header_bytes(bytes, count);
    if (!bag_safetensors_parse(bytes, count, file_bytes, &file, &problem)) {
        require(problem.kind == BAG_ERROR_FILE && problem.text[0] && !file.tree);
        return;
    }
    require(header_bytes == file.data_offset && header_bytes <= count);
    check_promises(&file, file_bytes);
    bag_safetensors_free(&file);
}

/* Puts the length in front of a header. */
static void parse_header(const uint8_t *header, size_t length, uint64_t data_bytes)
{
    uint8_t *bytes = malloc(8 + length);
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    parse_file(bytes, 8 + length, 8 + length + data_bytes);
    free(bytes);
}

static void parse_index(const uint8_t *bytes, size_t count)
{
    struct bag_safetensors_index index;
    struct bag_problem problem = {.text = ""};
    const struct cJSON *cursor = NULL;
    if (!bag_safetensors_index_parse((const char *)bytes, count, &index, &problem)) {
        require(problem.kind == BAG_ERROR_FILE && problem.text[0] && !index.tree);
        return;
    }
    for (const char *name; (name = bag_safetensors_index_next(&index, &cursor));) {
        const char *part = bag_safetensors_index_file(&index, name);
        require(part && *part && !strchr(part, '/'));
    }
    bag_safetensors_index_free(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    if (bytes[0] == 'i')
        parse_index(bytes + 1, count - 1);
    else if (bytes[0] == 'f')
        parse_file(bytes + 1, count - 1, count - 1);
    else
        parse_header(bytes + 1, count - 1, bytes[0]);
    return 0;
}
