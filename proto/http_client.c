/* URLs and heads of replies; see http_client.h. */
#include "http_client.h"

#include <stdio.h>
#include <strings.h>

/* ---- URLs ------------------------------------------------------------------------------------ */

static bool reject_url(const char *text, const char *why, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_USAGE, "URL '%s': %s",
                           bag_quote(text, strlen(text)).text, why);
}

/* Splits HOST[:PORT]. Returns false if the text is anything else. */
static bool split_authority(struct bag_url *url)
{
    /* The brackets of an IPv6 address belong to the authority but not to the host. */
    const char *host = url->authority, *end = host + strcspn(host, ":");
    int64_t port = 80;
    if (*host == '[') {
        end = strchr(++host, ']');
        if (!end)
            return false;
    }
    size_t bytes = (size_t)(end - host);
    const char *rest = host == url->authority ? end : end + 1;
    if (bytes == 0 || bytes >= sizeof url->host || (*rest && *rest != ':') ||
        (*rest && !bag_integer_parse(rest + 1, &port)) || port < 1 || port > 65535)
        return false;
    memcpy(url->host, host, bytes);
    url->host[bytes] = 0;
    url->port = (int)port;
    return true;
}

bool bag_url_parse(const char *text, struct bag_url *url, struct bag_problem *problem)
{
    static const char scheme[] = "http://";
    const char *at = text;
    if (strchr(text, '@')) /* never log what may be a password */
        return bag_problem_set(problem, BAG_ERROR_USAGE, "the URL must not have a user");
    if (strncasecmp(at, "https://", 8) == 0)
        return reject_url(text,
                          "https is not spoken; ask a proxy on this machine that speaks it with "
                          "the server, by http",
                          problem);
    if (strncasecmp(at, scheme, sizeof scheme - 1) == 0)
        at += sizeof scheme - 1;
    for (const char *byte = at; *byte; byte++) {
        if ((unsigned char)*byte <= ' ' || (unsigned char)*byte >= 127)
            return reject_url(text, "blanks and characters beyond ASCII are not part of one",
                              problem);
    }
    size_t bytes = strcspn(at, "/");
    if (at[strcspn(at, "?#")])
        return reject_url(text, "it must not have a query or a fragment", problem);
    if (bytes == 0 || bytes >= sizeof url->authority)
        return reject_url(text, "write http://HOST:PORT", problem);
    memcpy(url->authority, at, bytes);
    url->authority[bytes] = 0;
    if (!split_authority(url))
        return reject_url(text, "write http://HOST:PORT, with a port from 1 to 65535", problem);
    url->path = (struct bag_text){at + bytes, strlen(at + bytes)};
    while (url->path.bytes && url->path.data[url->path.bytes - 1] == '/')
        url->path.bytes--;
    return true;
}

/* ---- heads of replies ------------------------------------------------------------------------ */

/* Returns the value between `at`, which is after the colon, and `end`, without blanks around it. */
static struct bag_text value_behind(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        end--;
    return (struct bag_text){at, (size_t)(end - at)};
}

/* Returns the value of a line that is the header `name`, or data NULL if it is another header. It
 * is always inline: with a constant length of the name, most lines take one comparison. */
static inline __attribute__((always_inline)) struct bag_text
value_of(const char *line, const char *end, const char *name)
{
    const size_t bytes = strlen(name);
    if ((size_t)(end - line) <= bytes || line[bytes] != ':' || strncasecmp(line, name, bytes) != 0)
        return (struct bag_text){NULL, 0};
    return value_behind(line + bytes + 1, end);
}

/* Returns whether a header's value is this word, in any case. */
static bool has_word(struct bag_text text, const char *word)
{
    return text.data && text.bytes == strlen(word) && strncasecmp(text.data, word, text.bytes) == 0;
}

/* Parses "HTTP/1.1 200 OK": sets the status, and whether the version closes the connection after a
 * reply. */
static bool parse_status(const char *head, size_t bytes, struct bag_reply_head *reply)
{
    if (bytes < 12 || memcmp(head, "HTTP/1.", 7) != 0 || (head[7] != '0' && head[7] != '1') ||
        head[8] != ' ')
        return false;
    reply->closes = head[7] == '0';
    reply->status = 0;
    for (size_t i = 9; i < 12; i++) {
        if (head[i] < '0' || head[i] > '9')
            return false;
        reply->status = reply->status * 10 + (head[i] - '0');
    }
    return reply->status >= 100;
}

size_t bag_reply_head_end(const char *text, size_t bytes, size_t searched)
{
    const char *at = text + searched, *end = text + bytes;
    for (; (at = memchr(at, '\n', (size_t)(end - at))); at++) {
        if (at - text >= 3 && memcmp(at - 3, "\r\n\r", 3) == 0)
            return (size_t)(at + 1 - text);
    }
    return 0;
}

bool bag_reply_head_parse(const char *head, size_t bytes, struct bag_reply_head *reply,
                          struct bag_problem *problem)
{
    const char *end = head + bytes, *line = head, *next;
    bool has_length = false, has_json = false;
    *reply = (struct bag_reply_head){0};
    if (!parse_status(head, bytes, reply))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "'%s' is no reply of HTTP/1.1",
                               bag_quote(head, bytes < 32 ? bytes : 32).text);
    /* The first line is the status line. It matches none of the names, because it has no colon
     * after them. */
    for (; (next = memchr(line, '\n', (size_t)(end - line))); line = next + 1) {
        struct bag_text value;
        if ((value = value_of(line, next, "content-length")).data) {
            uint64_t before = reply->body_bytes;
            if (!bag_length_parse(value, &reply->body_bytes) ||
                (has_length && before != reply->body_bytes))
                return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                       "the reply's Content-Length '%s' is no length",
                                       bag_quote(value.data, value.bytes).text);
            has_length = true;
        } else if ((value = value_of(line, next, "inference-header-content-length")).data) {
            has_json = bag_length_parse(value, &reply->json_bytes);
        } else if ((value = value_of(line, next, "connection")).data) {
            reply->closes =
                has_word(value, "close") || (reply->closes && !has_word(value, "keep-alive"));
        }
    }
    if (!has_length && reply->status != 204 && reply->status != 304)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the reply (%d) has no Content-Length; chunks are not read",
                               reply->status);
    if (!has_json || reply->json_bytes > reply->body_bytes)
        reply->json_bytes = reply->body_bytes;
    return true;
}
