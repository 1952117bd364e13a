/* libFuzzer: compressed bodies, and the headers around them. The first byte chooses the coding, or
 * that the rest is a header's value. Bytes that were decompressed must be the same after they were
 * compressed and decompressed again. */
#include "fuzz.h"

#include "proto/coding.h"
#include "proto/cors.h"
#include "proto/text.h"

#define MAX_BODY_BYTES ((size_t)1 << 16)

/* No buffer may be larger than the limit and the byte that tells of too much. */
static void *get(void *context, size_t bytes)
{
    (void)context;
    require(bytes <= MAX_BODY_BYTES + 1);
    return malloc(bytes);
}

static const struct bag_memory_source memory = {get, free, NULL};
static const struct bag_inflate_limits limits = {MAX_BODY_BYTES, 100};

static void check_body(enum bag_coding coding, const char *packed, size_t packed_bytes)
{
    struct bag_problem problem = {.text = ""};
    size_t bytes, again;
    char *plain = bag_inflate(coding, packed, packed_bytes, &limits, &memory, &bytes, &problem);
    if (!plain) {
        require((problem.kind == BAG_ERROR_BAD_REQUEST || problem.kind == BAG_ERROR_TOO_LARGE) &&
                problem.text[0]);
        return;
    }
    size_t room = bytes + bytes / 8 + 64;
    char *out = malloc(room);
    size_t out_bytes = bag_deflate(coding, plain, bytes, out, room);
    require(out_bytes > 0);
    char *back = bag_inflate(coding, out, out_bytes, &limits, &memory, &again, &problem);
    require(back && again == bytes && memcmp(back, plain, bytes) == 0);
    free(back);
    free(out);
    free(plain);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    char *rest = malloc(count); /* with a NUL that only headers have */
    memcpy(rest, bytes + 1, count - 1);
    rest[count - 1] = 0;
    if (bytes[0] % 3 == BAG_CODING_IDENTITY) {
        struct bag_problem problem = {.text = ""};
        enum bag_coding coding;
        require(bag_coding_choose(rest) < BAG_CODING_COUNT);
        if (!bag_coding_read(rest, &coding, &problem))
            require(problem.kind == BAG_ERROR_UNSUPPORTED_ENCODING && problem.text[0]);
        if (bag_cors_check(rest, &problem))
            require(bag_cors_is_any(rest) || !bag_cors_allows(rest, ""));
    } else {
        check_body(bytes[0] % 3, rest, count - 1);
    }
    free(rest);
    return 0;
}
