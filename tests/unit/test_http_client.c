/* URLs and heads of replies, as a client reads them. */
#include "testing.h"

#include "proto/http_client.h"

#include <inttypes.h>

TEST(reads_urls)
{
    static const struct {
        const char *text, *host, *authority, *path;
        int port;
    } cases[] = {{"http://a.example", "a.example", "a.example", "", 80},
                 {"http://a.example:8000/", "a.example", "a.example:8000", "", 8000},
                 {"HTTP://127.0.0.1:1/x/y//", "127.0.0.1", "127.0.0.1:1", "/x/y", 1},
                 {"localhost:65535", "localhost", "localhost:65535", "", 65535},
                 {"http://[::1]:8000/x", "::1", "[::1]:8000", "/x", 8000},
                 {"http://[::1]", "::1", "[::1]", "", 80}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_url url;
        struct bag_problem problem = {.text = ""};
        char *text = exact_copy(cases[i].text, strlen(cases[i].text) + 1);
        if (!bag_url_parse(text, &url, &problem))
            fail_msg("%s: %s", text, problem.text);
        assert_string_equal(url.host, cases[i].host);
        assert_string_equal(url.authority, cases[i].authority);
        assert_int_equal(url.port, cases[i].port);
        assert_true(bag_text_is(url.path, cases[i].path));
        free(text);
    }
}

TEST(rejects_urls)
{
    static const char *const cases[][2] = {
        {"", "URL '': write http://HOST:PORT"},
        {"http://", "URL 'http://': write http://HOST:PORT"},
        {"http:///x", "URL 'http:///x': write http://HOST:PORT"},
        {"https://a",
         "URL 'https://a': https is not spoken; ask a proxy on this machine that speaks "
         "it with the server, by http"},
        {"http://a:0", "URL 'http://a:0': write http://HOST:PORT, with a port from 1 to 65535"},
        {"http://a:65536",
         "URL 'http://a:65536': write http://HOST:PORT, with a port from 1 to 65535"},
        {"http://a:x", "URL 'http://a:x': write http://HOST:PORT, with a port from 1 to 65535"},
        {"http://[::1", "URL 'http://[::1': write http://HOST:PORT, with a port from 1 to 65535"},
        {"http://[::1]x:1",
         "URL 'http://[::1]x:1': write http://HOST:PORT, with a port from 1 to 65535"},
        {"http://u:secret@a", "the URL must not have a user"},
        {"https://u:secret@a", "the URL must not have a user"},
        {"http://a/?x", "URL 'http://a/?x': it must not have a query or a fragment"},
        {"http://a/#x", "URL 'http://a/#x': it must not have a query or a fragment"},
        {"http://a b", "URL 'http://a b': blanks and characters beyond ASCII are not part of one"},
        {"http://a/\r\nx",
         "URL 'http://a/\\x0d\\x0ax': blanks and characters beyond ASCII are not part of one"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_url url;
        struct bag_problem problem;
        char *text = exact_copy(cases[i][0], strlen(cases[i][0]) + 1);
        assert_false(bag_url_parse(text, &url, &problem));
        assert_string_equal(problem.text, cases[i][1]);
        assert_int_equal(problem.kind, BAG_ERROR_USAGE);
        free(text);
    }
}

static bool parse(const char *text, struct bag_reply_head *head, struct bag_problem *problem)
{
    char *copy = exact_copy(text, strlen(text));
    bool ok = bag_reply_head_parse(copy, strlen(text), head, problem);
    free(copy);
    return ok;
}

TEST(reads_heads)
{
    static const struct {
        const char *text;
        int status;
        uint64_t body_bytes, json_bytes;
        bool closes;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 5, 5, false},
        {"HTTP/1.1 200\r\ncontent-length:5\t\r\nConnection: Close\r\n\r\n", 200, 5, 5, true},
        {"HTTP/1.0 503 x\r\nContent-Length: 0\r\n\r\n", 503, 0, 0, true},
        {"HTTP/1.0 200 x\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", 200, 0, 0, false},
        {"HTTP/1.1 204 No Content\r\n\r\n", 204, 0, 0, false},
        {"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 3\r\nContent-Length: 9\r\n\r\n", 200,
         9, 3, false},
        {"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 10\r\nContent-Length: 9\r\n\r\n", 200,
         9, 9, false},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Length: 9\r\n\r\n", 200, 9, 9, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_reply_head head;
        struct bag_problem problem = {.text = ""};
        if (!parse(cases[i].text, &head, &problem))
            fail_msg("%s: %s", cases[i].text, problem.text);
        assert_int_equal(head.status, cases[i].status);
        assert_int_equal(head.body_bytes, cases[i].body_bytes);
        assert_int_equal(head.json_bytes, cases[i].json_bytes);
        assert_int_equal(head.closes, cases[i].closes);
    }
}

/* However many bytes arrive at a time, a head ends with its first blank line. */
TEST(finds_the_end_of_heads)
{
    static const char *const cases[] = {"HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "\r\n\r\n",
                                        "A: b\n\n\r\n\r\r\n\r\n"};
    static const char rest[] = "\r\n\r\n";
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t head_bytes = strlen(cases[i]), bytes = head_bytes + sizeof rest;
        char *text = malloc(bytes);
        assert_non_null(text);
        memcpy(text, cases[i], head_bytes);
        memcpy(text + head_bytes, rest, sizeof rest);
        for (size_t piece = 1; piece <= bytes; piece++) {
            size_t found = 0;
            for (size_t before = 0; found == 0 && before < bytes; before += piece) {
                size_t have = before + piece < bytes ? before + piece : bytes;
                found = bag_reply_head_end(text, have, before);
                assert_true(found == (have < head_bytes ? 0 : head_bytes));
            }
        }
        free(text);
    }
}

TEST(prints_digests_as_printf_does)
{
    static const uint64_t digests[] = {0, 1, 0x0123456789abcdef, 0xfedcba9876543210, UINT64_MAX};
    for (size_t i = 0; i < COUNT_OF(digests); i++) {
        char expected[BAG_DIGEST_BYTES], got[BAG_DIGEST_BYTES];
        snprintf(expected, sizeof expected, BAG_DIGEST_PRINT, digests[i]);
        bag_digest_put(got, digests[i]);
        assert_string_equal(got, expected);
    }
}

TEST(rejects_heads)
{
    static const char *const cases[][2] = {
        {"", "'' is no reply of HTTP/1.1"},
        {"HTTP/2 200 OK\r\n\r\n", "'HTTP/2 200 OK\\x0d\\x0a\\x0d\\x0a' is no reply of HTTP/1.1"},
        {"HTTP/1.1 2x0 OK\r\n\r\n",
         "'HTTP/1.1 2x0 OK\\x0d\\x0a\\x0d\\x0a' is no reply of HTTP/1.1"},
        {"HTTP/1.1 200 OK\r\n\r\n", "the reply (200) has no Content-Length; chunks are not read"},
        {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
         "the reply's Content-Length '-1' is no length"},
        {"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
         "the reply's Content-Length '' is no length"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
         "the reply's Content-Length '99999999999999999999' is no length"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
         "the reply's Content-Length '2' is no length"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_reply_head head;
        struct bag_problem problem;
        assert_false(parse(cases[i][0], &head, &problem));
        assert_string_equal(problem.text, cases[i][1]);
    }
}
