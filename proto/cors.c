/* Checks and searches the list of allowed origins; see cors.h. */
#include "cors.h"

#include <string.h>

/* Sets *origin and *bytes to the next origin of the list without the blanks around it, and moves
 * *at to the origin after it. Returns false after the last one. */
static bool next_origin(const char **at, const char **origin, size_t *bytes)
{
    if (!*at)
        return false;
    const char *start = *at + strspn(*at, " ");
    const char *comma = strchr(start, ',');
    const char *end = comma ? comma : start + strlen(start);
    *at = comma ? comma + 1 : NULL;
    while (end > start && end[-1] == ' ')
        end--;
    *origin = start;
    *bytes = (size_t)(end - start);
    return true;
}

/* Returns whether the text is scheme://host or scheme://host:port as browsers write it: in lower
 * case, without a path or a slash at the end. The text is followed by a comma, a blank or a NUL,
 * which no origin contains. */
static bool is_origin(const char *origin, size_t bytes)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789.-_:[]";
    const char *host = strstr(origin, "://");
    if (!host || host == origin || host + 3 > origin + bytes)
        return false;
    host += 3;
    size_t host_bytes = bytes - (size_t)(host - origin);
    size_t scheme_bytes = (size_t)(host - origin) - 3;
    return host_bytes > 0 && strspn(host, allowed) >= host_bytes &&
           strspn(origin, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == scheme_bytes;
}

bool bag_cors_check(const char *origins, struct bag_problem *problem)
{
    const char *origin;
    size_t bytes;
    if (bag_cors_is_any(origins))
        return true;
    while (next_origin(&origins, &origin, &bytes)) {
        if (!is_origin(origin, bytes))
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "cors_origins: '%s' is not a valid origin; it must be like "
                                   "https://example.org or http://localhost:3000, in lower case "
                                   "and with nothing behind, or the whole list *",
                                   bag_quote(origin, bytes).text);
    }
    return true;
}

bool bag_cors_is_any(const char *origins)
{
    return strcmp(origins, "*") == 0;
}

bool bag_cors_allows(const char *origins, const char *origin)
{
    size_t origin_bytes = strlen(origin), bytes;
    const char *one;
    if (bag_cors_is_any(origins))
        return true;
    while (next_origin(&origins, &one, &bytes)) {
        if (bytes == origin_bytes && memcmp(one, origin, bytes) == 0)
            return true;
    }
    return false;
}
