/* libFuzzer: the replies and errors that a coordinator reads from a shard, which it does not trust.
 * The first byte chooses where the JSON of a reply ends. */
#include "fuzz.h"

#include "proto/shard.h"

static void read_reply(const char *reply, size_t bytes, size_t header_bytes)
{
    struct bag_v2_reply_output outputs[] = {
        {.name = "embeddings",
         .dtype = BAG_F32,
         .binary = true,
         .rank = 2,
         .shape = {2, 3},
         .count = 6},
        {.name = "counts", .dtype = BAG_I64, .binary = true, .rank = 1, .shape = {2}, .count = 2}};
    struct bag_problem problem;
    for (size_t count = 1; count <= 2; count++) {
        if (!bag_shard_reply_read(reply, bytes, header_bytes, 7, "m", "1", outputs, count,
                                  &problem)) {
            require(problem.kind == BAG_ERROR_BAD_GATEWAY || problem.kind == BAG_ERROR_NO_MEMORY);
            continue;
        }
        require(outputs[0].data == reply + header_bytes);
        require(header_bytes + 2 * 3 * 4 + (count - 1) * 2 * 8 == bytes);
    }
}

static void read_explanation(const char *reply, size_t header_bytes)
{
    struct bag_shard_missing missing;
    if (!bag_shard_missing_begin(&missing, reply, header_bytes))
        return;
    for (size_t position, least = 0; (position = bag_shard_missing_next(&missing)) != SIZE_MAX;
         least = position + 1)
        require(position >= least);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    size_t position = 0;
    if (count == 0)
        return 0;
    char *text = malloc(count > 1 ? count - 1 : 1); /* exact: one byte beyond is found */
    memcpy(text, bytes + 1, count - 1);
    read_reply(text, count - 1, count - 1 > bytes[0] ? count - 1 - bytes[0] : bytes[0]);
    read_explanation(text, count - 1);
    if (bag_shard_error_read(text, count - 1, &position) != BAG_SHARD_ERROR_INDEX)
        require(position == 0);
    free(text);
    return 0;
}
