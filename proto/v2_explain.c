/* What became of every bag of a pool; see v2_explain.h. */
#include "v2_explain.h"

#include "digits.h"
#include "kernels/pool_fate.h"

#include <string.h>

/* The braces and keys of a bag with all its numbers but positions, and of the whole. */
#define BAG_BYTES   128
#define WHOLE_BYTES 64

size_t bag_v2_explain_bound(const struct bag_pool_args *args, const char *name)
{
    size_t bags, positions, sum;
    if (__builtin_mul_overflow(args->num_bags, (size_t)BAG_BYTES, &bags) ||
        __builtin_mul_overflow(args->indices.count, (size_t)BAG_DIGITS_BYTES + 1, &positions) ||
        __builtin_add_overflow(bags, positions, &sum) ||
        __builtin_add_overflow(sum, strlen(name) + WHOLE_BYTES, &sum))
        return SIZE_MAX;
    return sum;
}

static char *put(char *out, const char *text)
{
    size_t bytes = strlen(text);
    memcpy(out, text, bytes);
    return out + bytes;
}

/* The positions of a bag's entries with that fate, as a key with an array; nothing where there are
 * none. */
static char *put_positions(const struct bag_pool_args *args, size_t first, size_t end,
                           enum bag_entry_status fate, char *out)
{
    bool any = false;
    for (size_t entry = first; entry < end; entry++) {
        if (bag_pool_entry_status(args, entry) != fate)
            continue;
        if (!any) {
            out = put(out, ",\"");
            out = put(out, bag_entry_status_names[fate]);
            out = put(out, "\":[");
        } else {
            *out++ = ',';
        }
        out = bag_digits_put(out, entry);
        any = true;
    }
    if (any)
        *out++ = ']';
    return out;
}

static char *put_bag(const struct bag_pool_args *args, size_t first, size_t end, char *out)
{
    size_t kept = 0;
    for (size_t entry = first; entry < end; entry++)
        kept += bag_pool_entry_status(args, entry) == BAG_ENTRY_KEPT;
    out = put(out, "{\"rows\":");
    out = bag_digits_put(out, kept);
    out = put(out, ",\"default\":");
    out = put(out, kept == 0 && args->default_row >= 0 ? "true" : "false");
    for (int fate = BAG_ENTRY_KEPT + 1; kept < end - first && fate < BAG_ENTRY_COUNT; fate++)
        out = put_positions(args, first, end, (enum bag_entry_status)fate, out);
    *out++ = '}';
    return out;
}

char *bag_v2_explain(const struct bag_pool_args *args, const char *name, char *out)
{
    out = put(out, "{\"name\":\"");
    out = put(out, name);
    out = put(out, "\",\"bags\":[");
    for (size_t bag = 0; bag < args->num_bags; bag++) {
        size_t first = bag_pool_first_entry(args, bag), end = bag_pool_first_entry(args, bag + 1);
        if (bag)
            *out++ = ',';
        out = put_bag(args, first, end, out);
    }
    return put(out, "]}");
}
