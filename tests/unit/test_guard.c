/* Heads that are rejected for their form, laid out in memory as the library leaves them. */
#include "testing.h"

#include "server/http/guard.h"

/* A head as it came, taken apart as the library does it: NULs where a part ends. */
struct taken {
    char *memory; /* owned; exactly the head */
    const char *end;
    struct bag_problem problem;
};

/* Ends a part at the first of `stops`; returns what is behind it. */
static char *cut(char *at, const char *stops)
{
    at += strcspn(at, stops);
    *at = 0;
    return at + 1;
}

static char *cut_line(char *line)
{
    char *behind = cut(line, "\n");
    if (behind - line >= 2 && behind[-2] == '\r')
        behind[-2] = 0;
    return behind;
}

static bool take_line(struct bag_guard *guard, char *line, struct bag_problem *problem)
{
    char *value = cut(line, ":");
    value += strspn(value, " \t");
    if (strcmp(line, "Host") == 0) {
        guard->hosts++;
        guard->host = value;
    } else if (strcmp(line, "Content-Length") == 0) {
        guard->lengths++;
    } else if (strcmp(line, "Transfer-Encoding") == 0) {
        guard->codings++;
        guard->coding = value;
    }
    return bag_guard_line(guard, line, strlen(line), value, strlen(value), problem);
}

/* What the guard says to a head; its memory is still there for messages. */
static bool guard_head(const char *head, struct taken *taken)
{
    size_t bytes = strlen(head);
    struct bag_guard guard;
    taken->memory = exact_copy(head, bytes);
    taken->end = taken->memory + bytes;
    char *method = taken->memory, *lines = cut_line(method), *target = cut(method, " ");
    char *version = cut(target, " ");
    bool ok = bag_guard_first_line(&guard, method, target, version - 1, version, &taken->problem);
    while (ok && *lines != '\r' && *lines != '\n') {
        char *line = lines;
        lines = cut_line(line);
        ok = take_line(&guard, line, &taken->problem);
    }
    return ok && bag_guard_end(&guard, taken->end, &taken->problem);
}

static void accept_head(const char *head)
{
    struct taken taken;
    if (!guard_head(head, &taken))
        fail_msg("%s%s", head, taken.problem.text);
    free(taken.memory);
}

static void reject_head(const char *head, enum bag_error kind, const char *words)
{
    struct taken taken;
    if (guard_head(head, &taken))
        fail_msg("%swas accepted", head);
    assert_int_equal(taken.problem.kind, (int)kind);
    if (!strstr(taken.problem.text, words))
        fail_msg("'%s' does not say '%s'", taken.problem.text, words);
    free(taken.memory);
}

#define GET "GET / HTTP/1.1\r\n"
#define OLD "GET / HTTP/1.0\r\n"

static void test_accepts(void **state)
{
    static const char *const heads[] = {
        GET "Host: a\r\n\r\n",
        GET "Host:\r\n\r\n",
        GET "Host: [::1]:80\r\nContent-Length: 5\r\n\r\n",
        GET "X:y\r\nHost: \t a\r\n!#$%&'*+-.^_`|~09azAZ:\r\n\r\n",
        GET "Host: a\r\nX: \t\x80\xff !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\r\n\r\n",
        GET "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET "Host: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n",
        OLD "\r\n",
        OLD "Host: a\r\nContent-Length: 0\r\n\r\n",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(heads); i++)
        accept_head(heads[i]);
}

static void test_rejects(void **state)
{
    static const struct {
        const char *head;
        enum bag_error kind;
        const char *words;
    } cases[] = {
        {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", BAG_ERROR_VERSION_NOT_SUPPORTED, "HTTP/1.2"},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", BAG_ERROR_VERSION_NOT_SUPPORTED, "use HTTP/1.1"},
        {"G:T / HTTP/1.1\r\nHost: a\r\n\r\n", BAG_ERROR_BAD_REQUEST, "method 'G:T'"},
        {"G\x7fT / HTTP/1.1\r\nHost: a\r\n\r\n", BAG_ERROR_BAD_REQUEST, "method"},
        {GET "\r\n", BAG_ERROR_BAD_REQUEST, "0 Host headers"},
        {GET "Host: a\r\nHost: a\r\n\r\n", BAG_ERROR_BAD_REQUEST, "2 Host headers"},
        {OLD "Host: a\r\nHost: b\r\n\r\n", BAG_ERROR_BAD_REQUEST, "2 Host headers"},
        {GET "Host: a b\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'a b' is not a valid host"},
        {GET "Host: a/b\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'a/b' is not a valid host"},
        {GET "Host: u@a\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'u@a' is not a valid host"},
        {GET "Host: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", BAG_ERROR_BAD_REQUEST,
         "2 Content-Length"},
        {GET "Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         BAG_ERROR_BAD_REQUEST, "both"},
        {GET "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
         BAG_ERROR_BAD_REQUEST, "both"},
        {GET "Host: a\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n",
         BAG_ERROR_BAD_REQUEST, "2 Transfer-Encoding"},
        {GET "Host: a\r\nTransfer-Encoding: gzip\r\n\r\n", BAG_ERROR_NOT_IMPLEMENTED, "'gzip'"},
        {GET "Host: a\r\nTransfer-Encoding: chunked \r\n\r\n", BAG_ERROR_NOT_IMPLEMENTED,
         "'chunked '"},
        {GET "Host: a\r\nTransfer-Encoding:\r\n\r\n", BAG_ERROR_NOT_IMPLEMENTED, "''"},
        {OLD "Transfer-Encoding: chunked\r\n\r\n", BAG_ERROR_BAD_REQUEST, "HTTP/1.0"},
        {GET "Host: a\r\nX : y\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'X ': the name"},
        {GET "Host: a\r\nX\x01: y\r\n\r\n", BAG_ERROR_BAD_REQUEST, "the name"},
        {GET "Host: a\r\nX\xc3\xa4: y\r\n\r\n", BAG_ERROR_BAD_REQUEST, "the name"},
        {GET "Host: a\r\nX: a\x01\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'X': the value"},
        {GET "Host: a\r\nX: a\rb\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'X': the value"},
        {GET "Host: a\r\nX: a\x7f\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'X': the value"},
        {GET "Host: a\nX: a\r\n\r\n", BAG_ERROR_BAD_REQUEST, "'X', or what is in front"},
        {GET "Host: a\n\r\n", BAG_ERROR_BAD_REQUEST, "the last header"},
        {GET "Host: a\r\n\n", BAG_ERROR_BAD_REQUEST, "the last header"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        reject_head(cases[i].head, cases[i].kind, cases[i].words);
}

/* A name or a value that the library put together elsewhere, or cut short. */
static void test_finds_gaps(void **state)
{
    static const char name[] = "Name\0 value\0\0next";
    static const char joined[] = "Name";
    struct bag_guard guard;
    struct bag_problem problem;
    (void)state;
    guard.next = name;
    assert_true(bag_guard_line(&guard, name, 4, name + 6, 5, &problem));
    assert_ptr_equal(guard.next, name + 13);
    guard.next = name;
    assert_false(bag_guard_line(&guard, joined, 4, name + 6, 5, &problem));
    guard.next = name;
    assert_false(bag_guard_line(&guard, name, 4, name + 7, 4, &problem));
    guard.next = name + 1;
    assert_false(bag_guard_line(&guard, name, 4, name + 6, 5, &problem));
    guard.next = name;
    assert_true(bag_guard_line(&guard, name, 4, name + 6, 2, &problem));
    assert_ptr_not_equal(guard.next, name + 13);
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
        const char *fault = bag_guard_target(cases[i].target);
        if ((fault == NULL) != (cases[i].path != NULL))
            fail_msg("%s: %s", cases[i].target, fault ? fault : "accepted");
        if (!fault)
            assert_string_equal(bag_guard_path(cases[i].target), cases[i].path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_rejects),
        cmocka_unit_test(test_finds_gaps),
        cmocka_unit_test(test_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
