/* See format_bytes.h. */
#include "format_bytes.h"

#include <stdio.h>

struct bag_format_bytes bag_format_bytes(size_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct bag_format_bytes text;
    size_t unit = 0;
    double value = (double)bytes / 1024;
    if (bytes < 1024) {
        snprintf(text.text, sizeof text.text, "%zu %s", bytes, bytes == 1 ? "byte" : "bytes");
        return text;
    }
    /* The bound is where two decimals would print 1024.00. */
    for (; value >= 1023.995; value /= 1024)
        unit++;
    snprintf(text.text, sizeof text.text, "%.2f %s", value, units[unit]);
    return text;
}
