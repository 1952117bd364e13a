/* Content codings: names and weights, every prefix of a compressed body, limits at their edge, and
 * that memory is given back. */
#include "testing.h"

#include "proto/coding.h"

/* "bagserve bagserve bagserve\n" by gzip and by zlib, made once with Python's zlib. */
#define PLAIN "bagserve bagserve bagserve\n"
static const char gzip_bytes[] =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x4b\x4a\x4c\x2f\x4e\x2d\x2a\x4b\x55\x48"
    "\x42\x67\x70\x01\x00\x58\x6f\x94\xcd\x1b\x00\x00\x00";
static const char zlib_bytes[] =
    "\x78\x9c\x4b\x4a\x4c\x2f\x4e\x2d\x2a\x4b\x55\x48\x42\x67\x70\x01\x00\x92\xd8\x0a"
    "\x38";

static size_t outstanding;

/* More than any body of zlib's has. */
static size_t max_ratio = 2000;

static void *get(void *context, size_t bytes)
{
    size_t *most = context;
    if (bytes > *most)
        return NULL;
    outstanding++;
    return malloc(bytes);
}

static void put(void *memory)
{
    outstanding -= memory != NULL;
    free(memory);
}

/* The text of `bytes` bytes, or NULL with *problem; `most` is all that one buffer may have. */
static char *inflate_bytes(enum bag_coding coding, const char *packed, size_t packed_bytes,
                           size_t max_bytes, size_t most, size_t *bytes,
                           struct bag_problem *problem)
{
    struct bag_memory_source memory = {get, put, &most};
    struct bag_inflate_limits limits = {max_bytes, max_ratio};
    char *copy = exact_copy(packed, packed_bytes);
    char *out = bag_inflate(coding, copy, packed_bytes, &limits, &memory, bytes, problem);
    assert_int_equal(outstanding, out != NULL);
    free(copy);
    return out;
}

static void expect_rejected(enum bag_coding coding, const char *packed, size_t packed_bytes,
                            size_t max_bytes, enum bag_error kind, const char *words)
{
    struct bag_problem problem;
    size_t bytes;
    char *out = inflate_bytes(coding, packed, packed_bytes, max_bytes, SIZE_MAX, &bytes, &problem);
    if (out)
        fail_msg("%zu bytes of %s accepted", packed_bytes, bag_coding_names[coding]);
    assert_int_equal(problem.kind, (int)kind);
    if (!strstr(problem.text, words))
        fail_msg("'%s' lacks '%s'", problem.text, words);
}

static void expect_plain(enum bag_coding coding, const char *packed, size_t packed_bytes,
                         size_t max_bytes, const char *want, size_t want_bytes)
{
    struct bag_problem problem;
    size_t bytes;
    char *out = inflate_bytes(coding, packed, packed_bytes, max_bytes, SIZE_MAX, &bytes, &problem);
    if (!out)
        fail_msg("%s: %s", bag_coding_names[coding], problem.text);
    assert_int_equal(bytes, want_bytes);
    assert_memory_equal(out, want, want_bytes);
    put(out);
}

TEST(test_known_bytes)
{
    size_t plain = strlen(PLAIN);
    expect_plain(BAG_CODING_GZIP, gzip_bytes, sizeof gzip_bytes - 1, 1000, PLAIN, plain);
    expect_plain(BAG_CODING_DEFLATE, zlib_bytes, sizeof zlib_bytes - 1, 1000, PLAIN, plain);
}

TEST(test_limit)
{
    size_t plain = strlen(PLAIN);
    expect_plain(BAG_CODING_GZIP, gzip_bytes, sizeof gzip_bytes - 1, plain, PLAIN, plain);
    expect_rejected(BAG_CODING_GZIP, gzip_bytes, sizeof gzip_bytes - 1, plain - 1,
                    BAG_ERROR_TOO_LARGE, "26 bytes");
    expect_rejected(BAG_CODING_GZIP, gzip_bytes, sizeof gzip_bytes - 1, 0, BAG_ERROR_TOO_LARGE,
                    "max_body_bytes");
}

/* Zeros shrink to less than a hundredth. Up to 1 MiB that is fine, beyond it the ratio counts, to
 * the byte that one ratio allows and the next smaller one does not. */
TEST(test_limit_of_the_ratio)
{
    size_t room = 4 << 20, free_bytes = 1 << 20;
    char *zeros = calloc(room, 1), *packed = malloc(room), words[256];
    for (enum bag_coding coding = BAG_CODING_GZIP; coding < BAG_CODING_COUNT; coding++) {
        size_t bytes = bag_deflate(coding, zeros, free_bytes, packed, room);
        assert_in_range(bytes, 1, free_bytes / 100);
        max_ratio = 1;
        expect_plain(coding, packed, bytes, room, zeros, free_bytes);
        bytes = bag_deflate(coding, zeros, free_bytes + 1, packed, room);
        snprintf(words, sizeof words,
                 "larger than 1048576 bytes; from the %zu bytes that were sent it may become 1 "
                 "times as many",
                 bytes);
        expect_rejected(coding, packed, bytes, room, BAG_ERROR_TOO_LARGE, words);
        expect_rejected(coding, packed, bytes, free_bytes, BAG_ERROR_TOO_LARGE, "max_body_bytes");
        max_ratio = free_bytes / bytes + 1;
        expect_plain(coding, packed, bytes, room, zeros, free_bytes + 1);
        max_ratio--;
        expect_rejected(coding, packed, bytes, room, BAG_ERROR_TOO_LARGE, "larger than 1048576");
        bytes = bag_deflate(coding, zeros, room, packed, room);
        max_ratio = room / bytes;
        snprintf(words, sizeof words, "larger than %zu bytes;", max_ratio * bytes);
        expect_rejected(coding, packed, bytes, SIZE_MAX - 1, BAG_ERROR_TOO_LARGE, words);
        max_ratio = SIZE_MAX;
        expect_plain(coding, packed, bytes, SIZE_MAX - 1, zeros, room);
        max_ratio = 2000;
    }
    free(packed);
    free(zeros);
}

TEST(test_every_prefix_is_rejected)
{
    for (size_t bytes = 0; bytes < sizeof gzip_bytes - 1; bytes++)
        expect_rejected(BAG_CODING_GZIP, gzip_bytes, bytes, 1000, BAG_ERROR_BAD_REQUEST,
                        "ends too early");
    for (size_t bytes = 0; bytes < sizeof zlib_bytes - 1; bytes++)
        expect_rejected(BAG_CODING_DEFLATE, zlib_bytes, bytes, 1000, BAG_ERROR_BAD_REQUEST,
                        "ends too early");
}

TEST(test_members)
{
    size_t bytes = sizeof gzip_bytes - 1;
    char twice[2 * sizeof gzip_bytes], zeros[sizeof zlib_bytes + 1];
    memcpy(twice, gzip_bytes, bytes);
    memcpy(twice + bytes, gzip_bytes, bytes);
    expect_plain(BAG_CODING_GZIP, twice, 2 * bytes, 1000, PLAIN PLAIN, 2 * strlen(PLAIN));
    expect_rejected(BAG_CODING_GZIP, twice, 2 * bytes, 2 * strlen(PLAIN) - 1, BAG_ERROR_TOO_LARGE,
                    "limit");
    expect_rejected(BAG_CODING_GZIP, twice, bytes + 1, 1000, BAG_ERROR_BAD_REQUEST,
                    "ends too early");
    twice[bytes + 1] ^= 1;
    expect_rejected(BAG_CODING_GZIP, twice, 2 * bytes, 1000, BAG_ERROR_BAD_REQUEST, "gzip");
    twice[bytes] = 0;
    expect_rejected(BAG_CODING_GZIP, twice, bytes + 1, 1000, BAG_ERROR_BAD_REQUEST, "follow");
    memset(zeros, 0, sizeof zeros);
    memcpy(zeros, zlib_bytes, sizeof zlib_bytes - 1);
    expect_rejected(BAG_CODING_DEFLATE, zeros, sizeof zlib_bytes, 1000, BAG_ERROR_BAD_REQUEST,
                    "follow");
}

TEST(test_bad_bytes)
{
    char bytes[sizeof gzip_bytes];
    expect_rejected(BAG_CODING_GZIP, zlib_bytes, sizeof zlib_bytes - 1, 1000, BAG_ERROR_BAD_REQUEST,
                    "gzip");
    expect_rejected(BAG_CODING_DEFLATE, gzip_bytes, sizeof gzip_bytes - 1, 1000,
                    BAG_ERROR_BAD_REQUEST, "deflate");
    /* The bare stream, without zlib's two bytes in front. */
    expect_rejected(BAG_CODING_DEFLATE, zlib_bytes + 2, sizeof zlib_bytes - 3, 1000,
                    BAG_ERROR_BAD_REQUEST, "deflate");
    /* The data needs a preset dictionary, which the server does not have. */
    expect_rejected(BAG_CODING_DEFLATE, "\x78\xbb\x01\x02\x03\x04zzzz", 10, 1000,
                    BAG_ERROR_BAD_REQUEST, "dictionary");
    memcpy(bytes, gzip_bytes, sizeof bytes);
    bytes[sizeof gzip_bytes - 9] ^= 1; /* the checksum of the gzip data */
    expect_rejected(BAG_CODING_GZIP, bytes, sizeof bytes - 1, 1000, BAG_ERROR_BAD_REQUEST, "gzip");
}

TEST(test_bombs_stop_at_the_limit)
{
    size_t plain_bytes = 10000000, bytes;
    char *plain = calloc(1, plain_bytes), *packed = malloc(plain_bytes);
    struct bag_problem problem;
    for (enum bag_coding coding = BAG_CODING_GZIP; coding <= BAG_CODING_DEFLATE; coding++) {
        size_t packed_bytes = bag_deflate(coding, plain, plain_bytes, packed, plain_bytes);
        assert_in_range(packed_bytes, 1, 100000);
        expect_plain(coding, packed, packed_bytes, plain_bytes, plain, plain_bytes);
        expect_rejected(coding, packed, packed_bytes, plain_bytes - 1, BAG_ERROR_TOO_LARGE,
                        "limit");
        /* No buffer is larger than the limit and the byte that tells. */
        assert_null(inflate_bytes(coding, packed, packed_bytes, 100000, 100001, &bytes, &problem));
        assert_int_equal(problem.kind, BAG_ERROR_TOO_LARGE);
        assert_null(inflate_bytes(coding, packed, packed_bytes, 100000, 1000, &bytes, &problem));
        assert_int_equal(problem.kind, BAG_ERROR_NO_MEMORY);
    }
    free(plain);
    free(packed);
}

TEST(test_round_trip)
{
    static const size_t sizes[] = {0, 1, 255, 1023, 1024, 1025, 65535, 65536, 300000};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        char *plain = malloc(sizes[i] + 1), *packed = malloc(sizes[i] + 100);
        for (size_t k = 0; k < sizes[i]; k++)
            plain[k] = (char)(k * k >> 5);
        for (enum bag_coding coding = BAG_CODING_GZIP; coding <= BAG_CODING_DEFLATE; coding++) {
            size_t bytes = bag_deflate(coding, plain, sizes[i], packed, sizes[i] + 100);
            assert_true(bytes > 0);
            expect_plain(coding, packed, bytes, sizes[i], plain, sizes[i]);
            /* One byte too little room. */
            assert_int_equal(bag_deflate(coding, plain, sizes[i], packed, bytes - 1), 0);
        }
        free(plain);
        free(packed);
    }
}

TEST(test_reads_names)
{
    static const struct {
        const char *value;
        enum bag_coding coding;
    } cases[] = {{"gzip", BAG_CODING_GZIP},         {"GZip", BAG_CODING_GZIP},
                 {"x-gzip", BAG_CODING_GZIP},       {"deflate", BAG_CODING_DEFLATE},
                 {"identity", BAG_CODING_IDENTITY}, {"gzip \t", BAG_CODING_GZIP}};
    static const char *const rejected[] = {"",   "br",  "gzip, gzip", "gzip,",
                                           "gz", "zip", "gzip;q=1",   "identity, gzip"};
    struct bag_problem problem;
    enum bag_coding coding;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_true(bag_coding_read(cases[i].value, &coding, &problem));
        assert_int_equal(coding, cases[i].coding);
    }
    for (size_t i = 0; i < COUNT_OF(rejected); i++) {
        assert_false(bag_coding_read(rejected[i], &coding, &problem));
        assert_int_equal(problem.kind, BAG_ERROR_UNSUPPORTED_ENCODING);
        assert_non_null(strstr(problem.text, "Content-Encoding"));
    }
}

TEST(test_chooses)
{
    static const struct {
        const char *accept;
        enum bag_coding coding;
    } cases[] = {{"", BAG_CODING_IDENTITY},
                 {"gzip", BAG_CODING_GZIP},
                 {"deflate", BAG_CODING_DEFLATE},
                 {"gzip, deflate", BAG_CODING_GZIP},
                 {"deflate, gzip", BAG_CODING_GZIP},
                 {"br;q=1.0, GZIP;q=0.5", BAG_CODING_GZIP},
                 {"gzip;q=0.5, deflate;q=0.501", BAG_CODING_DEFLATE},
                 {"gzip;q=0", BAG_CODING_IDENTITY},
                 {"gzip;q=0.000", BAG_CODING_IDENTITY},
                 {"gzip;q=0.001", BAG_CODING_GZIP},
                 {"gzip ; q=0 , deflate", BAG_CODING_DEFLATE},
                 {"*", BAG_CODING_GZIP},
                 {"*;q=0.5, gzip;q=0", BAG_CODING_DEFLATE},
                 {"identity, gzip;q=0.5", BAG_CODING_IDENTITY},
                 {"identity, gzip", BAG_CODING_GZIP},
                 {"identity;q=0.5, gzip;q=0.4", BAG_CODING_IDENTITY},
                 {"br, zstd", BAG_CODING_IDENTITY},
                 {"gzipx, xgzip", BAG_CODING_IDENTITY},
                 {"gzip;level=9", BAG_CODING_IDENTITY},
                 {",,gzip,,", BAG_CODING_GZIP},
                 {"gzip;", BAG_CODING_IDENTITY},
                 {"gzip;q", BAG_CODING_IDENTITY},
                 {"gzip;q=", BAG_CODING_IDENTITY}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *copy = exact_copy(cases[i].accept, strlen(cases[i].accept) + 1);
        if (bag_coding_choose(copy) != cases[i].coding)
            fail_msg("'%s' is %s", copy, bag_coding_names[bag_coding_choose(copy)]);
        free(copy);
    }
}
