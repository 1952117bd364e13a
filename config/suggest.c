/* Edit distance by Damerau and Levenshtein, between neighbours only; see suggest.h. */
#include "suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* No key of ours is longer; what is written beyond it does not count. */
#define LONGEST 48

static size_t shorter_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Case counts for nothing: PORT is nearest to port. */
static bool same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* One row of the table of distances: rows[0] becomes that of i + 1 characters of `a`, from rows[1]
 * (of i) and rows[2] (of i - 1). */
static void next_row(size_t *const rows[3], const char *a, size_t i, const char *b, size_t b_bytes)
{
    rows[0][0] = i + 1;
    for (size_t j = 0; j < b_bytes; j++) {
        size_t best = shorter_of(rows[0][j], rows[1][j + 1]) + 1;
        best = shorter_of(best, rows[1][j] + !same(a[i], b[j]));
        if (i > 0 && j > 0 && same(a[i], b[j - 1]) && same(a[i - 1], b[j]))
            best = shorter_of(best, rows[2][j - 1] + 1);
        rows[0][j + 1] = best;
    }
}

static size_t distance_of(const char *a, const char *b)
{
    size_t storage[3][LONGEST + 1];
    size_t *rows[3] = {storage[0], storage[1], storage[2]};
    size_t a_bytes = strnlen(a, LONGEST), b_bytes = strnlen(b, LONGEST);
    for (size_t j = 0; j <= b_bytes; j++)
        rows[0][j] = j;
    for (size_t i = 0; i < a_bytes; i++) {
        size_t *oldest = rows[2];
        rows[2] = rows[1];
        rows[1] = rows[0];
        rows[0] = oldest;
        next_row(rows, a, i, b, b_bytes);
    }
    return rows[0][b_bytes];
}

void bag_suggest_offer(struct bag_suggestion *suggestion, const char *candidate)
{
    size_t distance = distance_of(suggestion->written, candidate);
    size_t written_bytes = strlen(suggestion->written);
    if (distance > 1 && written_bytes &&
        strncmp(candidate, suggestion->written, written_bytes) == 0)
        distance = 1; /* the beginning of a name is as good as one letter amiss */
    if (suggestion->nearest[0] && distance >= suggestion->distance)
        return;
    snprintf(suggestion->nearest, sizeof suggestion->nearest, "%s", candidate);
    suggestion->distance = distance;
}
