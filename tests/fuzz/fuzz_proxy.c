/* libFuzzer: headers of the PROXY protocol. In pieces of any size the outcome is that of the whole;
 * the first byte is the size of pieces. */
#include "fuzz.h"

#include "proto/proxy.h"

/* Reads until the header is complete, wrong or at its end; false: wrong. */
static bool read_pieces(struct bag_proxy_header *header, const uint8_t *bytes, size_t count,
                        size_t piece)
{
    memset(header, 0, sizeof *header);
    for (size_t at = 0, used = 0; at < count && !header->is_complete; at += used) {
        struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
        size_t given = piece < count - at ? piece : count - at;
        char *part = malloc(given); /* exact: one byte beyond is found */
        memcpy(part, bytes + at, given);
        bool ok = bag_proxy_read(header, part, given, &used, &problem);
        free(part);
        require(ok ? used <= given && (header->is_complete || used == given)
                   : problem.kind == BAG_ERROR_BAD_REQUEST && problem.text[0]);
        if (!ok)
            return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct bag_proxy_header whole, pieces;
    if (count < 2)
        return 0;
    bool ok = read_pieces(&whole, bytes + 1, count - 1, count);
    require(read_pieces(&pieces, bytes + 1, count - 1, 1 + bytes[0]) == ok);
    if (!ok)
        return 0;
    require(memcmp(&whole, &pieces, sizeof whole) == 0);
    require(!whole.has_source || whole.is_complete);
    require(whole.bytes < count && (!whole.is_complete || whole.bytes == whole.total_bytes));
    return 0;
}
