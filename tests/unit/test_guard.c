/* What is HTTP: whole requests, requests that come byte by byte, and the place where one goes
 * wrong. */
#include "testing.h"

#include "server/http/guard.h"
#include "server/http/message.h"

#define GET     "GET / HTTP/1.1\r\n"
#define OLD     "GET / HTTP/1.0\r\n"
#define POST    "POST / HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

/* Passes a text in steps of `step` bytes, each in memory of its own. On a fault *valid_bytes counts
 * from the step that it is in. */
static bool check_in_steps(struct bag_guard *guard, const char *text, size_t bytes, size_t step,
                           size_t *valid_bytes, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t at = 0; ok && at < bytes; at += step) {
        size_t count = step < bytes - at ? step : bytes - at;
        char *copy = exact_copy(text + at, count);
        ok = bag_guard_check(guard, copy, count, valid_bytes, problem);
        free(copy);
    }
    return ok;
}

static void expect_verdict(const char *text, size_t bytes, int status, const char *words)
{
    static const size_t steps[] = {1, 2, 7, SIZE_MAX / 2};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct bag_guard guard = {0};
        struct bag_problem problem;
        size_t valid_bytes;
        bool ok = check_in_steps(&guard, text, bytes, steps[i], &valid_bytes, &problem);
        if (ok != (status == 200))
            fail_msg("%s%s", text, ok ? "was accepted" : problem.text);
        if (!ok) {
            assert_int_equal(bag_http_error_status(problem.kind), status);
            if (!strstr(problem.text, words))
                fail_msg("%s: '%s' does not say '%s'", text, problem.text, words);
        } else {
            assert_int_equal(guard.stage, BAG_GUARD_FIRST_LINE);
            assert_null(guard.piece);
        }
        bag_guard_free(&guard);
    }
}

static void check(const char *text, int status, const char *words)
{
    expect_verdict(text, strlen(text), status, words);
}

static void test_accepts(void **state)
{
    static const char *const requests[] = {
        GET "Host: a\r\n\r\n",
        "\r\n" GET "Host: a\r\n\r\n",
        GET "Host:\r\n\r\n",
        GET "Host: [::1]:80\r\nContent-Length: 5\r\n\r\nhello",
        GET "X:y\r\nHost: \t a\r\n!#$%&'*+-.^_`|~09azAZ:\r\n\r\n",
        GET "Host: a\r\nX: \t\x80\xff !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\r\n\r\n",
        OLD "\r\n",
        OLD "Host: a\r\nContent-Length: 0\r\n\r\n",
        CHUNKED "0\r\n\r\n",
        CHUNKED "5\r\nhello\r\n0000a;x=\"y\"\r\n0123456789\r\n0;z\r\nX: y\r\nZ:\r\n\r\n",
        POST "TRANSFER-ENCODING: CHUNKED\r\n\r\n0\r\n\r\n",
        POST "content-length: 3\r\n\r\n\n\n\n" GET "Host: a\r\n\r\n" GET "Host: a\r\n\r\n",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(requests); i++)
        check(requests[i], 200, "");
}

struct rejected {
    const char *text;
    int status;
    const char *words;
};

static void check_all(const struct rejected *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check(cases[i].text, cases[i].status, cases[i].words);
}

static void test_rejects_heads(void **state)
{
    static const struct rejected cases[] = {
        {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505, "HTTP/1.2"},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "use HTTP/1.1"},
        {"GET / HTTP/1\r\n", 400, "first line"},
        {"GET / HTTP/1.1 \r\n", 400, "first line"},
        {"GET /\r\n", 400, "first line"},
        {"GET\r\n", 400, "first line"},
        {"GET / HTTP/1.1\n", 400, "first line"},
        {"\r\n\r\n" GET, 400, "first line"},
        {"\n" GET, 400, "first line"},
        {"\x16\x03\x01", 400, "first line"},
        {"G:T / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method 'G:T'"},
        {"G\x7fT / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method"},
        {GET "\r\n", 400, "0 Host headers"},
        {GET "Host: a\r\nHost: a\r\n\r\n", 400, "2 Host headers"},
        {OLD "Host: a\r\nHost: b\r\n\r\n", 400, "2 Host headers"},
        {GET "Host: a b\r\n\r\n", 400, "'a b' is not a valid host"},
        {GET "Host: a/b\r\n\r\n", 400, "'a/b' is not a valid host"},
        {GET "Host: u@a\r\n\r\n", 400, "'u@a' is not a valid host"},
        {POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400, "2 Content-Length"},
        {POST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "both"},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", 400, "both"},
        {POST "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
         "2 Transfer-Encoding"},
        {POST "Transfer-Encoding: gzip\r\n\r\n", 501, "'gzip'"},
        {POST "Transfer-Encoding: chunked \r\n\r\n", 501, "'chunked '"},
        {POST "Transfer-Encoding:\r\n\r\n", 501, "''"},
        {OLD "Transfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0"},
        {POST "Content-Length: 9223372036854775808\r\n\r\n", 413, "any limit"},
        {POST "Content-Length: 99999999999999999999\r\n\r\n", 413, "any limit"},
        {POST "Content-Length: -1\r\n\r\n", 400, "'-1' must be a number"},
        {POST "Content-Length: 1 \r\n\r\n", 400, "'1 ' must be a number"},
        {POST "Content-Length:\r\n\r\n", 400, "'' must be a number"},
        {GET "Host: a\r\nX : y\r\n\r\n", 400, "'X ': the name"},
        {GET "Host: a\r\n: y\r\n\r\n", 400, "'': the name"},
        {GET "Host: a\r\nX\r\n\r\n", 400, "'X': the name"},
        {GET "Host: a\r\nX\x01: y\r\n\r\n", 400, "the name"},
        {GET "Host: a\r\nX\xc3\xa4: y\r\n\r\n", 400, "the name"},
        {GET "Host: a\r\nX: a\x01\r\n\r\n", 400, "'X': the value"},
        {GET "Host: a\r\nX: a\rb\r\n\r\n", 400, "'X': the value"},
        {GET "Host: a\r\nX: a\x7f\r\n\r\n", 400, "'X': the value"},
        {GET "Host: a\r\nX: a\r\n b\r\n\r\n", 400, "folded"},
        {GET " Host: a\r\n\r\n", 400, "folded"},
        {GET "Host: a\nX: a\r\n\r\n", 400, "LF alone"},
        {GET "Host: a\r\n\n", 400, "LF alone"},
    };
    (void)state;
    check_all(cases, COUNT_OF(cases));
    expect_verdict(GET "Host: a\r\nX: a\0b\r\n\r\n", sizeof GET "Host: a\r\nX: a\0b\r\n\r\n" - 1,
                   400, "'X': the value");
}

static void test_rejects_chunks(void **state)
{
    static const struct rejected cases[] = {
        {CHUNKED "5\nhello\r\n0\r\n\r\n", 400, "LF alone"},
        {CHUNKED "5;a\nhello\r\n0\r\n\r\n", 400, "LF alone"},
        {CHUNKED "5\r\nhello\n0\r\n\r\n", 400, "must end with CR LF"},
        {CHUNKED "5\r\nhello0\r\n\r\n", 400, "a chunk must end"},
        {CHUNKED "3\r\nhello\r\n0\r\n\r\n", 400, "a chunk must end"},
        {CHUNKED "0\n\r\n", 400, "LF alone"},
        {CHUNKED "0\r\n\n", 400, "LF alone"},
        {CHUNKED "0\r\nX: y\n\r\n", 400, "LF alone"},
        {CHUNKED "0\r\nX\r\n\r\n", 400, "'X': the name"},
        {CHUNKED "\r\n", 400, "chunk size ''"},
        {CHUNKED ";a\r\n", 400, "chunk size ';a'"},
        {CHUNKED "g\r\n", 400, "chunk size 'g'"},
        {CHUNKED "-5\r\n", 400, "chunk size '-5'"},
        {CHUNKED "5 \r\n", 400, "chunk size '5 '"},
        {CHUNKED "5;\x01\r\n", 400, "chunk size"},
        {CHUNKED "8000000000000000\r\n", 413, "any limit"},
        {CHUNKED "10000000000000005\r\n", 413, "any limit"},
    };
    (void)state;
    check_all(cases, COUNT_OF(cases));
}

/* A text with so many bytes in its midst. */
static void check_filled(const char *before, size_t bytes, const char *after, int status)
{
    size_t head = strlen(before), total = head + bytes + strlen(after);
    char *text = malloc(total + 1);
    strcpy(text, before);
    memset(text + head, 'x', bytes);
    strcpy(text + head + bytes, after);
    expect_verdict(text, total, status, "limit");
    free(text);
}

static void test_limits(void **state)
{
    const size_t lines = 2 * BAG_GUARD_LINE_BYTES;
    (void)state;
    for (int over = -1; over <= 1; over++) {
        size_t target = (size_t)(BAG_GUARD_MAX_TARGET_BYTES + over);
        check_filled("GET /", target - 1, " HTTP/1.1\r\nHost: a\r\n\r\n", over > 0 ? 414 : 200);
        size_t head = (size_t)(BAG_GUARD_MAX_HEAD_BYTES + over) - lines;
        size_t fixed = sizeof GET "Host: a\r\nX: \r\n\r\n" - 1;
        check_filled(GET "Host: a\r\nX: ", head - fixed, "\r\n\r\n", over > 0 ? 431 : 200);
        size_t line = (size_t)(BAG_GUARD_MAX_CHUNK_LINE_BYTES + over);
        check_filled(CHUNKED "1;", line - 4, "\r\nx\r\n0\r\n\r\n", over > 0 ? 400 : 200);
        size_t trailer = (size_t)(BAG_GUARD_MAX_TRAILER_BYTES + over) - BAG_GUARD_LINE_BYTES;
        check_filled(CHUNKED "0\r\nX:", trailer - 6, "\r\n\r\n", over > 0 ? 431 : 200);
    }
}

/* How much is good in front of what is wrong. */
static void test_valid_bytes(void **state)
{
    static const char good[] = GET "Host: a\r\n\r\n" POST "Content-Length: 2\r\n\r\nab";
    static const char bad[] = POST "Content-Length: x\r\n\r\n";
    char text[sizeof good + sizeof bad];
    struct bag_guard guard = {0};
    struct bag_problem problem;
    size_t valid_bytes;
    (void)state;
    snprintf(text, sizeof text, "%s%s", good, bad);
    assert_false(bag_guard_check(&guard, text, strlen(text), &valid_bytes, &problem));
    assert_int_equal(valid_bytes, sizeof good - 1);
    assert_int_equal(guard.heads, 2);
    assert_string_equal(guard.first_line, "POST / HTTP/1.1");
    /* The same where the good requests' end came with an earlier read. */
    guard = (struct bag_guard){0};
    assert_true(bag_guard_check(&guard, text, sizeof good + 9, &valid_bytes, &problem));
    assert_false(bag_guard_check(&guard, text + sizeof good + 9, strlen(text) - sizeof good - 9,
                                 &valid_bytes, &problem));
    assert_int_equal(valid_bytes, 0);
    bag_guard_free(&guard);
}

/* What the library gets of a text, in steps of any size. */
static void check_passed(const char *text, const char *want)
{
    size_t length = strlen(text);
    for (size_t step = 1; step <= length; step++) {
        struct bag_guard guard = {0};
        struct bag_problem problem;
        char got[512] = "";
        size_t bytes = 0, passed_bytes;
        for (size_t at = 0; at < length; at += step) {
            size_t count = step < length - at ? step : length - at;
            char *copy = exact_copy(text + at, count);
            assert_true(bag_guard_check(&guard, copy, count, &passed_bytes, &problem));
            memcpy(got + bytes, copy, passed_bytes);
            bytes += passed_bytes;
            free(copy);
        }
        assert_string_equal(got, want);
        bag_guard_free(&guard);
    }
}

/* No extension, and all else. */
static void test_extensions_are_taken_out(void **state)
{
    (void)state;
    check_passed(CHUNKED "2;a=\"b;c\"\r\n;\r\r\n1\r\n;\r\n0;x\r\nT: ;y\r\n\r\n" GET
                         "Host: a;b\r\n\r\n",
                 CHUNKED "2\r\n;\r\r\n1\r\n;\r\n0\r\nT: ;y\r\n\r\n" GET "Host: a;b\r\n\r\n");
}

/* No cookies, and one argument at most; other headers, paths, bodies and trailers as they came. */
static void test_cookies_and_arguments_are_hidden(void **state)
{
    (void)state;
    check_passed("GET /a&b?c&d=e&&f?&g HTTP/1.1\r\nHost: a\r\ncOOKIE: a&b\r\nCooki: c\r\n"
                 "Cookie2: d\r\nX-Cookie: e?f&g\r\n\r\n",
                 "GET /a&b?c_d=e__f?_g HTTP/1.1\r\nHost: a\r\ncOOKI~: a&b\r\nCooki: c\r\n"
                 "Cooki~2: d\r\nX-Cookie: e?f&g\r\n\r\n");
    check_passed(CHUNKED "7\r\ncookie:\r\n0\r\nCookie: ?&\r\n\r\n",
                 CHUNKED "7\r\ncookie:\r\n0\r\nCookie: ?&\r\n\r\n");
    check_passed("GET /?& HTTP/1.1\r\nHost: a\r\nCookie: b\r\nContent-Length: 1\r\n\r\n&"
                 "GET /?& HTTP/1.1\r\nHost: a\r\nCookie: b\r\nContent-Length: 2\r\n\r\n?&",
                 "GET /?_ HTTP/1.1\r\nHost: a\r\nCooki~: b\r\nContent-Length: 1\r\n\r\n&"
                 "GET /?_ HTTP/1.1\r\nHost: a\r\nCooki~: b\r\nContent-Length: 2\r\n\r\n?&");
}

static void test_targets(void **state)
{
    static const struct {
        const char *target, *path; /* NULL: rejected */
    } cases[] = {
        {"/", "/"},
        {"/v2?a=b&[c]=%41%zz", "/v2?a=b&[c]=%41%zz"},
        {"*", "*"},
        {"http://a", "/"},
        {"http://a/", "/"},
        {"HTTP://a:80/v2", "/v2"},
        {"https://[::1]/v2?x", "/v2?x"},
        {"//a", "//a"},
        {"/v2?http://a/b", "/v2?http://a/b"},
        {"", NULL},
        {"v2", NULL},
        {"**", NULL},
        {"a:80", NULL},
        {"ftp://a/", NULL},
        {"http:/a", NULL},
        {"http://", NULL},
        {"http:///v2", NULL},
        {"http://?", NULL},
        {"/a b", NULL},
        {"/\t", NULL},
        {"/\x7f", NULL},
        {"/\x80", NULL},
        {"/#", NULL},
        {"/\"", NULL},
        {"/<", NULL},
        {"/\\", NULL},
        {"/{}", NULL},
        {"http://a/ ", NULL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[100];
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", cases[i].target);
        check(text, cases[i].path ? 200 : 400, "target");
        if (cases[i].path)
            assert_string_equal(bag_http_head_path(cases[i].target), cases[i].path);
    }
}

/* What a connection makes of a second request does not depend on the first. */
static void check_second(const char *first, const char *second, size_t bytes)
{
    struct bag_guard used = {0}, fresh = {0};
    struct bag_problem problems[2] = {{.text = ""}, {.text = ""}};
    size_t passed[2];
    char *copy = exact_copy(first, strlen(first)), *own = exact_copy(second, bytes);
    assert_true(bag_guard_check(&used, copy, strlen(first), &passed[0], &problems[0]));
    assert_int_equal(used.stage, BAG_GUARD_FIRST_LINE);
    unsigned heads = used.heads;
    bool ok = bag_guard_check(&used, own, bytes, &passed[0], &problems[0]);
    free(own);
    own = exact_copy(second, bytes);
    bool expected = bag_guard_check(&fresh, own, bytes, &passed[1], &problems[1]);
    if (ok != expected || passed[0] != passed[1] || used.stage != fresh.stage ||
        (used.stage == BAG_GUARD_BODY && used.left != fresh.left) ||
        used.heads - heads != fresh.heads || strcmp(used.first_line, fresh.first_line) != 0 ||
        strcmp(problems[0].text, problems[1].text) != 0)
        fail_msg("'%.*s' after '%s': %d and not %d, '%s' and not '%s'", (int)bytes, second, first,
                 ok, expected, problems[0].text, problems[1].text);
    free(copy);
    free(own);
    bag_guard_free(&used);
    bag_guard_free(&fresh);
}

/* Each byte replaced by each other, taken out, or with each other in front of it. */
static void test_heads_like_the_last_one(void **state)
{
    static const char *const firsts[] = {
        "POST /1 HTTP/1.1\r\nHost: a1\r\nContent-Length: 12\r\nX-9: b2\r\n\r\n0123456789ab",
        "POST / HTTP/1.1\r\nContent-Length:7\r\nHost:a\r\n\r\n0123456",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        OLD "Content-Length: 1\r\n\r\na",
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(firsts); i++) {
        size_t bytes = strlen(firsts[i]);
        for (size_t at = 0; at < bytes; at++) {
            size_t rest = bytes - at - 1;
            memcpy(text, firsts[i], at);
            memcpy(text + at, firsts[i] + at + 1, rest);
            check_second(firsts[i], text, bytes - 1);
            for (int byte = 0; byte < 256; byte++) {
                text[at] = (char)byte;
                memcpy(text + at + 1, firsts[i] + at + 1, rest);
                check_second(firsts[i], text, bytes);
                memcpy(text + at + 1, firsts[i] + at, rest + 1);
                check_second(firsts[i], text, bytes + 1);
            }
        }
    }
}

/* Numbers of other lengths are still read, and limits hold. */
static void test_numbers_of_the_last_head(void **state)
{
    static const char first[] = POST "A: 1\r\nContent-Length: 5\r\nB: 2\r\n\r\nhello";
    static const char *const seconds[] = {
        POST "A: 123\r\nContent-Length: 17\r\nB: 45678\r\n\r\nhello",
        POST "A: 1\r\nContent-Length: 0\r\nB: 2\r\n\r\nPOST",
        POST "A: 1\r\nContent-Length: 9223372036854775807\r\nB: 2\r\n\r\n",
        POST "A: 1\r\nContent-Length: 9223372036854775808\r\nB: 2\r\n\r\n",
        POST "A: 1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        POST "A: 1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        POST "A: 1\r\nContent-Length: 5\r\nB: 2\r\n\r\nhelloPOST / HTTP/1.1\r\nA\r\n",
        POST "A: 1\r\nContent-Length: 5\r\nB: 2\r\n\r",
    };
    static char digits[BAG_GUARD_MAX_HEAD_BYTES];
    static char text[sizeof digits + 256];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(seconds); i++)
        check_second(first, seconds[i], strlen(seconds[i]));
    memset(digits, '7', sizeof digits - 1);
    snprintf(text, sizeof text, POST "A: %s\r\nContent-Length: 5\r\nB: 2\r\n\r\nhello", digits);
    check_second(first, text, strlen(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_rejects_heads),
        cmocka_unit_test(test_rejects_chunks),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_valid_bytes),
        cmocka_unit_test(test_extensions_are_taken_out),
        cmocka_unit_test(test_cookies_and_arguments_are_hidden),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_heads_like_the_last_one),
        cmocka_unit_test(test_numbers_of_the_last_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
