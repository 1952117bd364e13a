/* The headers of a reply, and for each kind of error the status and the reason over HTTP and the
 * exit code of a command. */
#include "testing.h"

#include "server/commands.h"
#include "server/http/message.h"

#include <time.h>

/* ---- errors ---------------------------------------------------------------------------------- */

TEST(test_statuses_and_reasons)
{
    static const struct {
        enum bag_error kind;
        int status;
        enum bag_rejection reason;
    } cases[] = {{BAG_ERROR_BAD_REQUEST, 400, BAG_REJECTION_BAD_REQUEST},
                 {BAG_ERROR_UNAUTHORIZED, 401, BAG_REJECTION_UNAUTHORIZED},
                 {BAG_ERROR_FORBIDDEN, 403, BAG_REJECTION_FORBIDDEN},
                 {BAG_ERROR_WRONG_PORT, 403, BAG_REJECTION_WRONG_PORT},
                 {BAG_ERROR_NOT_FOUND, 404, BAG_REJECTION_NOT_FOUND},
                 {BAG_ERROR_METHOD_NOT_ALLOWED, 405, BAG_REJECTION_METHOD},
                 {BAG_ERROR_TIMEOUT, 408, BAG_REJECTION_SLOW},
                 {BAG_ERROR_CONFLICT, 409, BAG_REJECTION_CONFLICT},
                 {BAG_ERROR_TOO_LARGE, 413, BAG_REJECTION_TOO_LARGE},
                 {BAG_ERROR_UNSUPPORTED_ENCODING, 415, BAG_REJECTION_ENCODING},
                 {BAG_ERROR_HEADERS_TOO_LARGE, 431, BAG_REJECTION_HEADERS},
                 {BAG_ERROR_INTERNAL, 500, BAG_REJECTION_INTERNAL},
                 {BAG_ERROR_FILE, 500, BAG_REJECTION_INTERNAL},
                 {BAG_ERROR_NOT_IMPLEMENTED, 501, BAG_REJECTION_NOT_SUPPORTED},
                 {BAG_ERROR_NO_MEMORY, 503, BAG_REJECTION_NO_MEMORY},
                 {BAG_ERROR_TOO_MANY_CONNECTIONS, 503, BAG_REJECTION_NO_MEMORY},
                 {BAG_ERROR_QUEUE_FULL, 503, BAG_REJECTION_QUEUE_FULL},
                 {BAG_ERROR_TIMED_OUT_IN_QUEUE, 503, BAG_REJECTION_TIMEOUT},
                 {BAG_ERROR_CANCELLED, 503, BAG_REJECTION_CANCELLED},
                 {BAG_ERROR_NOT_READY, 503, BAG_REJECTION_NOT_READY},
                 {BAG_ERROR_DRAINING, 503, BAG_REJECTION_NOT_READY},
                 {BAG_ERROR_VERSION_NOT_SUPPORTED, 505, BAG_REJECTION_NOT_SUPPORTED}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(bag_http_error_status(cases[i].kind), cases[i].status);
        assert_int_equal(bag_http_error_reason(cases[i].kind), (int)cases[i].reason);
    }
}

TEST(test_exit_codes)
{
    assert_int_equal(bag_commands_exit_code(BAG_ERROR_USAGE), 2);
    assert_int_equal(bag_commands_exit_code(BAG_ERROR_CONFIGURATION), 2);
    assert_int_equal(bag_commands_exit_code(BAG_ERROR_FILE), 2);
    assert_int_equal(bag_commands_exit_code(BAG_ERROR_SYSTEM), 1);
    assert_int_equal(bag_commands_exit_code(BAG_ERROR_NOT_READY), 1);
}

/* ---- headers --------------------------------------------------------------------------------- */

struct written {
    char text[1024];
    unsigned left; /* headers for which there is memory */
};

/* The date is checked, and written as NOW. */
static bool write_header(void *context, const char *name, const char *value)
{
    struct written *written = context;
    size_t used = strlen(written->text);
    struct tm date = {0};
    if (strcmp(name, "Date") == 0) {
        const char *end = strptime(value, "%a, %d %b %Y %H:%M:%S GMT", &date);
        assert_true(end && !*end);
        assert_in_range(timegm(&date), time(NULL) - 5, time(NULL));
        value = "NOW";
    }
    snprintf(written->text + used, sizeof written->text - used, "%s: %s\n", name, value);
    return written->left-- > 0;
}

TEST(test_headers)
{
    struct bag_http_head head = {.request_id = "r1", .traceparent = "t1", .origin = "http://a"};
    struct bag_http_reply reply = {.status = 200,
                                   .body_bytes = 10,
                                   .coding = "gzip",
                                   .varies_by_coding = true,
                                   .header_bytes = 7,
                                   .no_store = true,
                                   .close = true};
    static const char want[] = "Date: NOW\n"
                               "Content-Type: application/octet-stream\n"
                               "X-Content-Type-Options: nosniff\n"
                               "Inference-Header-Content-Length: 7\n"
                               "Content-Encoding: gzip\n"
                               "Cache-Control: no-store\n"
                               "Vary: Accept-Encoding\n"
                               "Vary: Origin\n"
                               "Access-Control-Allow-Origin: http://a\n"
                               "Access-Control-Expose-Headers: Inference-Header-Content-Length, "
                               "Retry-After\n"
                               "X-Request-Id: r1\n"
                               "traceparent: t1\n"
                               "Connection: close\n";
    struct written all = {.left = 100};
    bag_http_reply_to(&reply, &head, "http://a");
    assert_true(bag_http_reply_headers(&reply, write_header, &all));
    assert_string_equal(all.text, want);
    for (unsigned left = 0; left < 12; left++) {
        struct written some = {.left = left};
        assert_false(bag_http_reply_headers(&reply, write_header, &some));
        assert_memory_equal(some.text, want, strlen(some.text)); /* and none behind the failure */
    }
}
