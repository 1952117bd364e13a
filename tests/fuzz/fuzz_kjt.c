/* libFuzzer: KeyedJaggedTensor's layout. The bytes say which tensors there are, how many features,
 * how many values, and what is in lengths or offsets, and before it in stride_per_key. An accepted
 * request must divide the values among the features, and pooling must not reject its offsets. */
#include "fuzz.h"

#include "proto/v2_request.h"

#include "kernels/pool.h"

enum {
    BY_OFFSETS = 1,
    WEIGHTED = 2,
    WIDE_VALUES = 4,
    WIDE_LAYOUT = 8,
    BOTH = 16,
    FLAT = 32,
    STRIDED = 64
};

#define HEAD_BYTES   4
#define MAX_FEATURES 8

static const char *name_of(const void *context, size_t feature)
{
    (void)context;
    require(feature < MAX_FEATURES);
    return "feature";
}

/* A tensor on memory of exactly its size: one byte beyond is found. */
static struct bag_tensor make_tensor(enum bag_dtype dtype, size_t count, const uint8_t *content)
{
    size_t bytes = count * bag_dtypes[dtype].bytes;
    char *data = malloc(bytes);
    if (content && bytes)
        memcpy(data, content, bytes);
    else if (bytes)
        memset(data, 0, bytes);
    return (struct bag_tensor){
        .dtype = dtype, .rank = 1, .shape = {(int64_t)count}, .count = count, .data = data};
}

static void check_parts(const struct bag_kjt *kjt, size_t num_features)
{
    const struct bag_tensor *values = kjt->tensors[BAG_KJT_VALUES];
    const char *next = values->data;
    for (size_t i = 0; i < num_features; i++) {
        struct bag_kjt_part part;
        bag_kjt_part(kjt, i, &part);
        require(part.indices.data == next &&
                part.offsets.count == kjt->first_bags[i + 1] - kjt->first_bags[i] + 1);
        /* Pool a feature's part from a table of three rows of two elements. */
        bool weighted = kjt->tensors[BAG_KJT_WEIGHTS];
        static const double rows[6] = {1, 2, 3, 4, 5, 6};
        struct bag_table table = {.rows = rows, .dtype = BAG_F64, .num_rows = 3, .row_elements = 2};
        struct bag_rules rules = {
            .output_dtype = BAG_F64, .default_index = -1, .include_last_offset = true};
        struct bag_inputs inputs = {{[BAG_INDICES] = &part.indices,
                                     [BAG_OFFSETS] = &part.offsets,
                                     [BAG_PER_SAMPLE_WEIGHTS] = weighted ? &part.weights : NULL}};
        struct bag_fault fault;
        struct bag_pool_args args;
        struct bag_pool_plan plan;
        bag_pool_prepare(&table, &rules, &plan);
        require(bag_pool_check(&plan, &inputs, 1 << 26, &args, &fault) == BAG_STATUS_OK);
        char *out = malloc(args.result_bytes + 1);
        bag_pool_run(&args, bag_range_all(&args), out);
        free(out);
        next += part.indices.count * bag_dtypes[values->dtype].bytes;
    }
    require(next == (const char *)values->data + values->count * bag_dtypes[values->dtype].bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < HEAD_BYTES)
        return 0;
    unsigned flags = bytes[0];
    struct bag_kjt_features features = {.count = 1 + bytes[1] % MAX_FEATURES, .name_of = name_of};
    size_t num_values = (size_t)bytes[2] | (size_t)bytes[3] << 8;
    enum bag_dtype type = flags & WIDE_LAYOUT ? BAG_I64 : BAG_I32;
    size_t num_elements = (count - HEAD_BYTES) / bag_dtypes[type].bytes;
    size_t num_strides = flags & STRIDED ? features.count : 0;
    num_strides = num_strides < num_elements ? num_strides : num_elements;
    num_elements -= num_strides;
    struct bag_tensor strides = make_tensor(type, num_strides, bytes + HEAD_BYTES);
    struct bag_tensor values =
        make_tensor(flags & WIDE_VALUES ? BAG_I64 : BAG_I32, num_values, NULL);
    struct bag_tensor layout =
        make_tensor(type, num_elements, bytes + HEAD_BYTES + num_strides * bag_dtypes[type].bytes);
    struct bag_tensor weights = make_tensor(BAG_F32, num_values, NULL);
    struct bag_problem problem = {.text = ""};
    struct bag_kjt kjt = {.firsts = NULL};
    struct bag_arena arena;
    if (flags & FLAT)
        layout.rank = 2;
    kjt.tensors[BAG_KJT_VALUES] = &values;
    kjt.tensors[flags & BY_OFFSETS ? BAG_KJT_OFFSETS : BAG_KJT_LENGTHS] = &layout;
    if (flags & BOTH)
        kjt.tensors[BAG_KJT_OFFSETS] = &layout;
    if (flags & WEIGHTED)
        kjt.tensors[BAG_KJT_WEIGHTS] = &weights;
    if (flags & STRIDED)
        kjt.tensors[BAG_KJT_STRIDES] = &strides;
    bag_arena_init(&arena, 1 << 20);
    if (bag_kjt_read(&kjt, &features, &arena, &problem))
        check_parts(&kjt, features.count);
    else
        require((problem.kind == BAG_ERROR_BAD_REQUEST || problem.kind == BAG_ERROR_NO_MEMORY) &&
                problem.text[0]);
    bag_arena_free(&arena);
    free((void *)(uintptr_t)values.data);
    free((void *)(uintptr_t)layout.data);
    free((void *)(uintptr_t)strides.data);
    free((void *)(uintptr_t)weights.data);
    return 0;
}
