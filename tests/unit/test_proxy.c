/* Headers of the PROXY protocol: whole, in pieces, wrong at every place. */
#include "testing.h"

#include "proto/proxy.h"

#define SIGNATURE BAG_PROXY_SIGNATURE

static const char four[] = SIGNATURE "\x21\x11\0\x0c"
                                     "\x0a\x01\x02\x03\x7f\0\0\x01\x12\x34\0\x50";
static const char six[] = SIGNATURE "\x21\x21\0\x27"
                                    "0123456789abcdefghijklmnopqrstuv\xff\xfe\0\x50"
                                    "\x04\0\0";
static const char local[] = SIGNATURE "\x20\0\0\0";
static const char local_of_four[] = SIGNATURE "\x20\x11\0\x01x";
static const char unspecified[] = SIGNATURE "\x21\0\0\x02xy";

/* Reads in pieces of so many bytes; what follows the header is left alone. */
static struct bag_proxy_header read_whole(const char *text, size_t bytes, size_t piece)
{
    struct bag_proxy_header header = {.bytes = 0};
    struct bag_problem problem;
    size_t used, at = 0;
    char behind[1024];
    memcpy(behind, text, bytes);
    memset(behind + bytes, 'G', 100);
    while (!header.is_complete) {
        assert_true(at < bytes);
        size_t given = piece < bytes + 100 - at ? piece : bytes + 100 - at;
        assert_true(bag_proxy_read(&header, behind + at, given, &used, &problem));
        assert_true(header.is_complete || used == given);
        at += used;
    }
    assert_int_equal(at, bytes);
    return header;
}

TEST(test_sources)
{
    static const uint8_t mapped[16] = {[10] = 0xFF, 0xFF, 10, 1, 2, 3};
    for (size_t piece = 1; piece <= 100; piece++) {
        struct bag_proxy_header header = read_whole(four, sizeof four - 1, piece);
        assert_true(header.has_source);
        assert_memory_equal(header.source, mapped, 16);
        assert_int_equal(header.source_port, 0x1234);
        header = read_whole(six, sizeof six - 1, piece);
        assert_true(header.has_source);
        assert_memory_equal(header.source, "0123456789abcdef", 16);
        assert_int_equal(header.source_port, 0xFFFE);
        assert_false(read_whole(local, sizeof local - 1, piece).has_source);
        assert_false(read_whole(local_of_four, sizeof local_of_four - 1, piece).has_source);
        assert_false(read_whole(unspecified, sizeof unspecified - 1, piece).has_source);
    }
}

TEST(test_a_unix_client_has_no_address)
{
    char text[16 + 216] = SIGNATURE "\x21\x31\0\xd8";
    assert_false(read_whole(text, sizeof text, 50).has_source);
}

/* Tests the longest possible header. */
TEST(test_what_follows_the_addresses_is_skipped)
{
    struct bag_proxy_header header = {.bytes = 0};
    struct bag_problem problem;
    size_t used, total = 16 + 65535;
    char *text = calloc(1, total + 1);
    memcpy(text, four, sizeof four - 1);
    text[14] = text[15] = '\xff';
    assert_true(bag_proxy_read(&header, text, total - 1, &used, &problem));
    assert_int_equal(used, total - 1);
    assert_false(header.is_complete);
    assert_true(bag_proxy_read(&header, text, 2, &used, &problem));
    assert_int_equal(used, 1);
    assert_true(header.is_complete);
    assert_int_equal(header.source_port, 0x1234);
    free(text);
}

/* The header with one byte changed is rejected with its last byte that matters. */
static void expect_rejected(const char *text, size_t at, char byte, size_t known_at,
                            const char *message)
{
    struct bag_proxy_header header = {.bytes = 0};
    struct bag_problem problem;
    size_t used;
    char changed[64];
    memcpy(changed, text, 28);
    changed[at] = byte;
    for (size_t i = 0; i < known_at; i++)
        assert_true(bag_proxy_read(&header, changed + i, 1, &used, &problem));
    assert_false(bag_proxy_read(&header, changed + known_at, 1, &used, &problem));
    assert_int_equal(problem.kind, BAG_ERROR_BAD_REQUEST);
    if (!strstr(problem.text, message))
        fail_msg("byte %zu: '%s' lacks '%s'", at, problem.text, message);
}

TEST(test_wrong_headers)
{
    for (size_t i = 0; i < 12; i++)
        expect_rejected(four, i, 'x', i, "must begin with a header of the PROXY protocol");
    expect_rejected(four, 12, '\x11', 15, "is of version 1; it must be 2");
    expect_rejected(four, 12, '\x22', 15, "has command 2; there are 0 (LOCAL) and 1 (PROXY)");
    expect_rejected(four, 13, '\x12', 15, "is of family 0x12; it must be 0x11");
    expect_rejected(four, 15, '\x0b', 15, "has 11 bytes of addresses; family 0x11 has 12");
    expect_rejected(four, 13, '\x21', 15, "has 12 bytes of addresses; family 0x21 has 36");
    expect_rejected(four, 13, '\x31', 15, "has 12 bytes of addresses; family 0x31 has 216");
}

TEST(test_version_1)
{
    struct bag_proxy_header header = {.bytes = 0};
    struct bag_problem problem;
    size_t used;
    assert_false(bag_proxy_read(&header, "PROXY TCP4 10.1.2.3 ", 20, &used, &problem));
    assert_non_null(strstr(problem.text, "this one looks like version 1"));
    header = (struct bag_proxy_header){.bytes = 0};
    assert_false(bag_proxy_read(&header, "POST / HTTP/1.1\r\n", 17, &used, &problem));
    assert_null(strstr(problem.text, "version 1"));
}
