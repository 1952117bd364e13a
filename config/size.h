/* Integers and sizes as people write them: 8000, 64MiB, 500KB.
 *
 * Must not know: what the number is for. */
#ifndef BAG_SIZE_H
#define BAG_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* A decimal integer without superfluous zeros and nothing around it; false for other texts. One
 * beyond 64 bits becomes the nearest int64_t, which is outside every bound of ours. */
bool bag_integer_parse(const char *text, int64_t *value);

/* The same, and after at most one space a unit may follow: KiB, MiB, GiB (of 1024), KB, MB, GB (of
 * 1000). */
bool bag_size_parse(const char *text, int64_t *bytes);

/* "64 MiB", "1 byte", "1000 bytes": exact, in the largest unit of 1024 that divides it. By value,
 * so that it can stand in an argument list: bag_size_text(n).text */
struct bag_size_text {
    char text[32];
};
struct bag_size_text bag_size_text(int64_t bytes);

#endif
