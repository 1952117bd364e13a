/* Tests request heads, which the library passes on line by line. */
#include "testing.h"

#include "server/http/message.h"

/* Keeps the lines of a text, as "Name:value" with line feeds between them, and checks the whole. */
static bool check_lines(const char *method, const char *version, const char *lines,
                        struct bag_http_head *head, struct bag_problem *problem)
{
    static char text[1024]; /* the head points into it */
    char *rest = text;
    struct bag_http_first_line line = {.method = method, .target = "/", .version = version};
    *head = (struct bag_http_head){.has_length = false};
    assert_true(strlen(lines) < sizeof text);
    strcpy(text, lines);
    while (rest && *rest) {
        char *name = strsep(&rest, "\n");
        char *value = strchr(name, ':');
        assert_non_null(value);
        *value++ = 0;
        if (!bag_http_head_line(head, name, strlen(name), value, strlen(value), problem))
            return false;
    }
    return bag_http_head_check(head, &line, problem);
}

static void check(const char *lines, int status, const char *words)
{
    struct bag_problem problem = {.text = ""};
    struct bag_http_head head;
    bool ok = check_lines("POST", "HTTP/1.1", lines, &head, &problem);
    if (ok != (status == 200))
        fail_msg("%s: %s", lines, ok ? "was accepted" : problem.text);
    if (ok)
        return;
    assert_int_equal(bag_http_error_status(problem.kind), status);
    if (!strstr(problem.text, words))
        fail_msg("%s: '%s' does not say '%s'", lines, problem.text, words);
}

TEST(test_accepts)
{
    static const char *const heads[] = {"Host:a",
                                        "Host:",
                                        "HOST:[::1]:8000",
                                        "Host:a\nX:",
                                        "Host:a\n!#$%&'*+-.^_`|~09azAZ:y",
                                        "Host:a\nX:a\tb \"\\ \xc3\xa4\xff",
                                        "Host:a\nContent-Length:0",
                                        "Host:a\ncontent-length:00005",
                                        "Host:a\nContent-Length:9223372036854775807",
                                        "Host:a\nTransfer-Encoding:Chunked",
                                        "Host:a\nContent-Type:x\nTransfer:y"};
    for (size_t i = 0; i < COUNT_OF(heads); i++)
        check(heads[i], 200, "");
}

TEST(test_rejects)
{
    static const struct {
        const char *lines;
        int status;
        const char *words;
    } cases[] = {
        {"X:y", 400, "0 Host headers"},
        {"Host:a\nHost:a", 400, "2 Host headers"},
        {"Host:a b", 400, "'a b' is not a valid host"},
        {"Host:a/b", 400, "valid host"},
        {"Host:u@a", 400, "valid host"},
        {"Host:\xe4", 400, "valid host"},
        {"Host:[::1].evil", 400, "'[::1].evil' is not a valid host"},
        {"Host:[::1", 400, "valid host"},
        {"Host:[a.example]", 400, "valid host"},
        {"Host:a[b]", 400, "valid host"},
        {"Host:localhost:80:90", 400, "'localhost:80:90' is not a valid host"},
        {"Host:localhost:8x", 400, "valid host"},
        {"Host:a\n:y", 400, "header ''"},
        {"Host:a\nX :y", 400, "header 'X '"},
        {"Host:a\nX\t:y", 400, "must be a token"},
        {"Host:a\nX/Y:z", 400, "must be a token"},
        {"Host:a\nX\xe4:z", 400, "must be a token"},
        {"Host:a\nX:a\rb", 400, "header 'X': the value"},
        {"Host:a\nX:\x01", 400, "control characters"},
        {"Host:a\nX:\x7f", 400, "control characters"},
        {"Host:a\nContent-Length:5\nContent-Length:5", 400, "2 Content-Length headers"},
        {"Host:a\nContent-Length:", 400, "decimal digits"},
        {"Host:a\nContent-Length:+5", 400, "'+5'"},
        {"Host:a\nContent-Length:5 ", 400, "decimal digits"},
        {"Host:a\nContent-Length:9223372036854775808", 413, "larger than any limit"},
        {"Host:a\nContent-Length:99999999999999999999", 413, "larger than any limit"},
        {"Host:a\nTransfer-Encoding:gzip", 501, "'gzip' is not supported"},
        {"Host:a\nTransfer-Encoding:", 501, "must be chunked"},
        {"Host:a\nTransfer-Encoding:chunked ", 501, "must be chunked"},
        {"Host:a\nTransfer-Encoding:chunked\nTransfer-Encoding:chunked", 400,
         "2 Transfer-Encoding headers"},
        {"Host:a\nTransfer-Encoding:chunked\nTransfer-Encoding:x", 400, "2 Transfer-Encoding"},
        {"Host:a\nContent-Length:5\nTransfer-Encoding:chunked", 400, "both"},
        {"Host:a\nTransfer-Encoding:chunked\nContent-Length:0", 400, "both"},
        {"Host:a\nTransfer-Encodingchunked:", 400, "'Transfer-Encodingchunked' is not accepted"},
        {"Host:a\nContent-Length5:", 400, "'Content-Length5' is not accepted"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check(cases[i].lines, cases[i].status, cases[i].words);
}

TEST(test_versions_and_methods)
{
    static const struct {
        const char *method, *version, *lines;
        int status;
    } cases[] = {{"GET", "HTTP/1.0", "", 200},
                 {"GET", "HTTP/1.0", "Host:a", 200},
                 {"GET", "HTTP/1.0", "Host:a\nHost:b", 400},
                 {"POST", "HTTP/1.0", "Transfer-Encoding:chunked", 400},
                 {"GET", "HTTP/1.2", "Host:a", 505},
                 {"GET", "HTTP/2.0", "Host:a", 505},
                 {"", "HTTP/1.1", "Host:a", 400},
                 {"G(T", "HTTP/1.1", "Host:a", 400},
                 {"G\xe4T", "HTTP/1.1", "Host:a", 400},
                 {"GE\x01T", "HTTP/1.1", "Host:a", 400}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_problem problem;
        struct bag_http_head head;
        bool ok = check_lines(cases[i].method, cases[i].version, cases[i].lines, &head, &problem);
        assert_int_equal(ok ? 200 : bag_http_error_status(problem.kind), cases[i].status);
    }
}

TEST(test_what_is_kept)
{
    struct bag_problem problem;
    struct bag_http_head head;
    assert_true(check_lines("POST", "HTTP/1.1",
                            "Host:h\ncontent-length:00123\nX-Request-Id:\ntraceparent:t\n"
                            "Authorization:a\nEXPECT:100-continue\n"
                            "Inference-Header-Content-Length:7",
                            &head, &problem));
    assert_string_equal(head.host, "h");
    assert_true(head.has_length && head.length == 123 && !head.chunked && head.expects_continue);
    assert_null(head.request_id); /* an empty header cannot be passed on */
    assert_string_equal(head.traceparent, "t");
    assert_string_equal(head.authorization, "a");
    assert_string_equal(head.json_length, "7");
    assert_null(head.encoding);
    assert_true(check_lines("POST", "HTTP/1.1",
                            "Host:h\nAuthorization:a\nAuthorization:a\n"
                            "Inference-Header-Content-Length:7\n"
                            "Inference-Header-Content-Length:7",
                            &head, &problem));
    assert_string_equal(head.authorization, "");
    assert_string_equal(head.json_length, "several headers");
}

TEST(test_targets)
{
    static const struct {
        const char *target, *path; /* NULL: not valid */
    } cases[] = {{"/", "/"},
                 {"/a/b", "/a/b"},
                 {"/a?b=c&d/?%zz[]", "/a?b=c&d/?%zz[]"},
                 {"*", "*"},
                 {"http://a", "/"},
                 {"http://a/b", "/b"},
                 {"HTTPS://a:1/b?c", "/b?c"},
                 {"", NULL},
                 {"a", NULL},
                 {"?a", NULL},
                 {"ftp://a/", NULL},
                 {"http://", NULL},
                 {"http:///a", NULL},
                 {"http://?a", NULL},
                 {"/a b", NULL},
                 {"/?a b", NULL},
                 {"/\t", NULL},
                 {"/\x7f", NULL},
                 {"/\x80", NULL},
                 {"/#", NULL},
                 {"/\"", NULL},
                 {"/<", NULL},
                 {"/\\", NULL},
                 {"/{}", NULL}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(!bag_http_target_fault(cases[i].target), cases[i].path != NULL);
        if (cases[i].path)
            assert_string_equal(bag_http_head_path(cases[i].target), cases[i].path);
    }
}

TEST(test_room_for_arguments)
{
    char target[2 * BAG_HTTP_MAX_ARGUMENTS + 8] = "/a";
    assert_true(bag_http_target_has_room(target));
    strcat(target, "?b");
    for (int i = 1; i < BAG_HTTP_MAX_ARGUMENTS; i++)
        strcat(target, "&b");
    assert_true(bag_http_target_has_room(target));
    strcat(target, "&");
    assert_false(bag_http_target_has_room(target));
}

TEST(test_hosts)
{
    static const struct {
        const char *host, *names;
        bool ours;
    } cases[] = {{NULL, NULL, true},
                 {"", NULL, true},
                 {"localhost", NULL, true},
                 {"LocalHost:8000", NULL, true},
                 {"127.0.0.1", NULL, true},
                 {"127.0.0.1:8000", NULL, true},
                 {"own.example.org:8000", NULL, true},
                 {"own.example.org:8001", NULL, false},
                 {"10.1.2.3:80", NULL, true},
                 {"[::1]", NULL, true},
                 {"[fe80::1]:8000", NULL, true},
                 {"[a]", NULL, false},
                 {"example.org", NULL, false},
                 {"localhost.example.org", NULL, false},
                 {"127.0.0.1.example.org", NULL, false},
                 {"example.org", "a, Example.Org:", false},
                 {"example.org:80", "a, Example.Org", true},
                 {"a", "a, Example.Org", true},
                 {"org", "a, Example.Org", false},
                 {"example.org", "*", true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (bag_http_host_is_ours(cases[i].host, "own.example.org:8000", cases[i].names) !=
            cases[i].ours)
            fail_msg("%s, %s", cases[i].host, cases[i].names);
    }
}
