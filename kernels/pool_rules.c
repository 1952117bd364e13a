/* Whether a table and its rules go together, before any request.
 *
 * Must not know: requests. */
#include "pool.h"

/* The types that convert among each other when a result is written. */
static bool converts(enum bag_dtype dtype)
{
    return dtype == BAG_F16 || dtype == BAG_BF16 || dtype == BAG_F32;
}

static enum bag_status out_of_range(enum bag_status status, int64_t value, int64_t low,
                                    int64_t high, struct bag_fault *fault)
{
    *fault = (struct bag_fault){.status = status, .value = value, .low = low, .high = high};
    return status;
}

enum bag_status bag_rules_check(const struct bag_table *table, const struct bag_rules *rules,
                                struct bag_fault *fault)
{
    *fault = (struct bag_fault){.got = table->dtype, .want = table->dtype};
    if (rules->reduction == BAG_SQRTN && bag_dtypes[table->dtype].kind != BAG_KIND_FLOAT)
        return fault->status = BAG_STATUS_UNSUPPORTED_REDUCTION;
    if (rules->output_dtype != table->dtype &&
        !(converts(rules->output_dtype) && converts(table->dtype))) {
        fault->got = rules->output_dtype;
        return fault->status = BAG_STATUS_OUTPUT_DTYPE;
    }
    int64_t last_row = table->num_rows - 1;
    if (rules->default_index < -1 || rules->default_index > last_row)
        return out_of_range(BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE, rules->default_index, 0,
                            last_row, fault);
    if (rules->has_padding_idx &&
        (rules->padding_idx < -table->num_rows || rules->padding_idx > last_row))
        return out_of_range(BAG_STATUS_PADDING_IDX_OUT_OF_RANGE, rules->padding_idx,
                            -table->num_rows, last_row, fault);
    return BAG_STATUS_OK;
}
