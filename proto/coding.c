/* The names of content codings; see coding.h. */
#include "coding.h"

#include <string.h>
#include <strings.h>

const char *const bag_coding_names[BAG_CODING_COUNT] = {
#define BAG_X(id, name) name,
    BAG_CODINGS(BAG_X)
#undef BAG_X
};

#define BLANKS " \t"

/* What a token names; BAG_CODING_COUNT: something else. */
static enum bag_coding find(const char *token, size_t bytes)
{
    enum bag_coding coding = 0;
    if (bytes == 6 && strncasecmp(token, "x-gzip", 6) == 0)
        return BAG_CODING_GZIP; /* its name before it was registered */
    while (coding < BAG_CODING_COUNT && (strlen(bag_coding_names[coding]) != bytes ||
                                         strncasecmp(token, bag_coding_names[coding], bytes) != 0))
        coding++;
    return coding;
}

bool bag_coding_read(const char *value, enum bag_coding *coding, struct bag_problem *problem)
{
    *coding = find(value, strlen(value));
    return *coding != BAG_CODING_COUNT ||
           bag_problem_set(problem, 415,
                           "Content-Encoding is '%s'; it must be one of gzip, deflate (with zlib's "
                           "header) and identity",
                           bag_quote(value, strlen(value)).text);
}

/* ---- Accept-Encoding ------------------------------------------------------------------------- */

/* The weight behind a token, in thousandths: ";q=0.5" is 500, none is 1000, nonsense is 0. */
static int weight_of(const char *at, const char *end)
{
    at += strspn(at, BLANKS);
    if (at >= end || *at != ';')
        return 1000;
    at += 1 + strspn(at + 1, BLANKS);
    if (end - at < 3 || (*at != 'q' && *at != 'Q') || at[1] != '=')
        return 0;
    if (at[2] == '1')
        return 1000;
    int weight = 0, unit = 100;
    if (at[2] != '0' || end - at < 4 || at[3] != '.')
        return 0;
    for (at += 4; at < end && *at >= '0' && *at <= '9'; at++, unit /= 10)
        weight += (*at - '0') * unit;
    return weight;
}

enum bag_coding bag_coding_choose(const char *accept)
{
    int weights[BAG_CODING_COUNT + 1]; /* the last one is of "*" */
    for (size_t i = 0; i <= BAG_CODING_COUNT; i++)
        weights[i] = -1;
    while (*accept) {
        accept += strspn(accept, BLANKS ",");
        const char *end = accept + strcspn(accept, ",");
        size_t bytes = strcspn(accept, BLANKS ",;");
        enum bag_coding coding = find(accept, bytes);
        if (coding != BAG_CODING_COUNT || (bytes == 1 && *accept == '*'))
            weights[coding] = weight_of(accept + bytes, end);
        accept = end;
    }
    enum bag_coding best = BAG_CODING_IDENTITY;
    int most = weights[best] > 0 ? weights[best] - 1 : 0; /* as good as identity is good enough */
    for (enum bag_coding i = BAG_CODING_GZIP; i < BAG_CODING_COUNT; i++) {
        int weight = weights[i] >= 0 ? weights[i] : weights[BAG_CODING_COUNT];
        if (weight > most) {
            best = i;
            most = weight;
        }
    }
    return best;
}
