/* Determines the part of a row, a column or a key, and cuts rows; see part.h. */
#include "part.h"

#include "rowformat.h"

/* ---- who has what ---------------------------------------------------------------------------- */

uint64_t bag_part_begin(uint64_t size, uint32_t index, uint32_t of)
{
    return size / of * index + size % of * index / of;
}

/* Returns the last part that begins at the row or before it: size * part < (row + 1) * of. */
uint32_t bag_part_of_row(uint64_t row, uint64_t num_rows, uint32_t of)
{
    uint64_t scaled; /* used if it fits into 64 bits, because a 128-bit division takes several times
                        as long */
    if (!__builtin_mul_overflow(row + 1, (uint64_t)of, &scaled))
        return (uint32_t)((scaled - 1) / num_rows);
    return (uint32_t)(((unsigned __int128)(row + 1) * of - 1) / num_rows);
}

uint32_t bag_part_of_key(uint64_t key, uint32_t of)
{
    uint64_t h = key;
    h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
    h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    h ^= h >> 33;
    return (uint32_t)(((unsigned __int128)h * of) >> 64);
}

/* ---- cutting rows ---------------------------------------------------------------------------- */

/* Copies `count` codes from code number `first` on to number `to` on, which may be any. A byte has
 * `per_byte` codes, the first in its lowest bits. Bits of `out` before the copied codes stay, the
 * bits behind them in their last byte are cleared. */
static void copy_packed(size_t per_byte, const unsigned char *codes, size_t first, size_t count,
                        unsigned char *out, size_t to)
{
    const size_t bits = 8 / per_byte;
    for (size_t i = 0; i < count; i++, to++) {
        unsigned code = codes[(first + i) / per_byte] >> (first + i) % per_byte * bits;
        unsigned placed = (code & ((1u << bits) - 1)) << to % per_byte * bits;
        unsigned before = out[to / per_byte] & ((1u << to % per_byte * bits) - 1);
        out[to / per_byte] = (unsigned char)(before | placed);
    }
}

void bag_part_cut_rows(const struct bag_table *whole, const void *rows, size_t num_rows,
                       size_t first_column, size_t num_columns, void *out)
{
    struct bag_table cut = *whole;
    cut.row_elements = num_columns;
    const struct bag_row_places from = bag_row_places(whole), to = bag_row_places(&cut);
    const size_t per_byte = bag_codes_per_byte(bag_row_kind(whole));
    const bool plain = whole->row_format == BAG_ROWS_PLAIN;
    const size_t column_bytes = plain ? bag_dtypes[whole->dtype].bytes : 1;
    const size_t params_bytes = bag_row_params_bytes(whole->row_format);
    for (size_t i = 0; i < num_rows; i++) {
        const unsigned char *row = (const unsigned char *)rows + i * from.bytes;
        unsigned char *own = (unsigned char *)out + i * to.bytes;
        memcpy(own + to.params_at, row + from.params_at, params_bytes);
        if (per_byte > 1)
            copy_packed(per_byte, row + from.codes_at, first_column, num_columns, own + to.codes_at,
                        0);
        else
            memcpy(own + to.codes_at, row + from.codes_at + first_column * column_bytes,
                   num_columns * column_bytes);
    }
}

void bag_part_join_row(enum bag_row_format format, size_t row_elements, const void *part,
                       size_t first_column, size_t num_columns, void *row)
{
    const struct bag_table whole = {.row_format = format, .row_elements = row_elements};
    const struct bag_table cut = {.row_format = format, .row_elements = num_columns};
    const struct bag_row_places from = bag_row_places(&cut), to = bag_row_places(&whole);
    const size_t per_byte = bag_codes_per_byte(bag_row_kind(&whole));
    const unsigned char *own = part;
    unsigned char *out = row;
    memcpy(out + to.params_at, own + from.params_at, bag_row_params_bytes(format));
    if (per_byte > 1)
        copy_packed(per_byte, own + from.codes_at, 0, num_columns, out + to.codes_at, first_column);
    else
        memcpy(out + to.codes_at + first_column, own + from.codes_at, num_columns);
}
