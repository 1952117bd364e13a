/* Which part of a table a row, a column or a key is of; see part.h. */
#include "part.h"

uint64_t bag_part_begin(uint64_t size, uint32_t index, uint32_t of)
{
    return size / of * index + size % of * index / of;
}

/* The last part that begins at the row or before it: size * part < (row + 1) * of. */
uint32_t bag_part_of_row(uint64_t row, uint64_t num_rows, uint32_t of)
{
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
