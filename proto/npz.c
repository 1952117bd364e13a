/* Parses the structures of a zip archive; see formats.h.
 *
 *   end         the last record, and the two records of zip64 before it
 *   directory   a record for each member
 *   members     looks up a member by name and reads its own header */
#include "formats.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

/* Returns whether a record with this signature, which has four bytes, begins here. */
static bool is_record(const unsigned char *at, const char *signature)
{
    return memcmp(at, signature, 4) == 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Sizes in bytes of the last record without its comment, and of the two records of zip64 before it:
 * the locator, and the end record with 64-bit numbers. */
#define END_BYTES     22
#define LOCATOR_BYTES 20
#define END64_BYTES   56

/* Returns the last record, which may be followed by a comment of up to 65,535 bytes, or NULL if
 * there is none. */
static const unsigned char *find_end(const unsigned char *tail, size_t count)
{
    for (size_t at = count; at >= END_BYTES; at--) {
        const unsigned char *end = tail + at - END_BYTES;
        if (is_record(end, "PK\5\6") && bag_read_little(end + 20, 2) == count - at)
            return end;
    }
    return NULL;
}

/* Returns the record of zip64, which numpy.savez writes directly before the last one, so that the
 * tail contains it. Returns NULL if the archive has none. */
static const unsigned char *find_end64(const unsigned char *tail, const unsigned char *end)
{
    if (end - tail < LOCATOR_BYTES + END64_BYTES || !is_record(end - LOCATOR_BYTES, "PK\6\7"))
        return NULL;
    const unsigned char *end64 = end - LOCATOR_BYTES - END64_BYTES;
    return is_record(end64, "PK\6\6") ? end64 : NULL;
}

bool bag_npz_find_directory(const void *bytes, size_t count, uint64_t file_bytes,
                            struct bag_npz *npz, struct bag_problem *problem)
{
    const unsigned char *tail = bytes, *end = find_end(tail, count);
    memset(npz, 0, sizeof *npz);
    if (!end)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is no complete zip archive: the record that ends one is "
                               "missing");
    const unsigned char *end64 = find_end64(tail, end);
    uint64_t directory_bytes =
        end64 ? bag_read_little(end64 + 40, 8) : bag_read_little(end + 12, 4);
    npz->directory_offset = end64 ? bag_read_little(end64 + 48, 8) : bag_read_little(end + 16, 4);
    npz->num_members = end64 ? bag_read_little(end64 + 32, 8) : bag_read_little(end + 10, 2);
    uint64_t before_end = file_bytes - count + (uint64_t)((end64 ? end64 : end) - tail);
    if (npz->directory_offset > before_end || before_end - npz->directory_offset != directory_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the zip archive is damaged: its directory should be %" PRIu64
                               " bytes from byte %" PRIu64 " on, and end at byte %" PRIu64,
                               directory_bytes, npz->directory_offset, before_end);
    if (directory_bytes > BAG_NPZ_MAX_DIRECTORY_BYTES)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the zip archive's directory has %" PRIu64
                               " bytes; at most %zu are read",
                               directory_bytes, BAG_NPZ_MAX_DIRECTORY_BYTES);
    npz->directory_bytes = (size_t)directory_bytes;
    return true;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* The size in bytes of a directory entry without its name, extra fields and comment; and the value
 * that a number has if zip64's extra field contains the real one. */
#define ENTRY_BYTES 46
#define ALL_ONES    UINT32_MAX

/* The 64-bit numbers of zip64 in an entry's extra fields, in their order. */
struct wide_numbers {
    const unsigned char *at;
    size_t left;
};

/* Returns the content of the extra field with tag 1, or none if the entry does not have one. */
static struct wide_numbers find_wide_numbers(const unsigned char *extra, size_t bytes)
{
    while (bytes >= 4) {
        size_t field_bytes = (size_t)bag_read_little(extra + 2, 2);
        if (field_bytes > bytes - 4)
            break;
        if (bag_read_little(extra, 2) == 1)
            return (struct wide_numbers){extra + 4, field_bytes};
        extra += 4 + field_bytes;
        bytes -= 4 + field_bytes;
    }
    return (struct wide_numbers){NULL, 0};
}

/* Replaces a number of 32 ones by the next 64-bit number. Returns false if there is none. */
static bool widen(uint64_t *value, struct wide_numbers *wide)
{
    if (*value != ALL_ONES)
        return true;
    if (wide->left < 8)
        return false;
    *value = bag_read_little(wide->at, 8);
    wide->at += 8;
    wide->left -= 8;
    return true;
}

/* Reads the entry at *cursor and moves the cursor to its end. Returns false if it is damaged. */
static bool read_entry(const struct bag_npz *npz, size_t *cursor, struct bag_npz_member *member)
{
    const unsigned char *entry = npz->directory + *cursor;
    size_t left = npz->directory_bytes - *cursor;
    if (left < ENTRY_BYTES || !is_record(entry, "PK\1\2"))
        return false;
    size_t name_bytes = (size_t)bag_read_little(entry + 28, 2),
           extra_bytes = (size_t)bag_read_little(entry + 30, 2);
    size_t bytes = ENTRY_BYTES + name_bytes + extra_bytes + (size_t)bag_read_little(entry + 32, 2);
    if (left < bytes)
        return false;
    struct wide_numbers wide = find_wide_numbers(entry + ENTRY_BYTES + name_bytes, extra_bytes);
    uint64_t unpacked_bytes = bag_read_little(entry + 24, 4);
    struct bag_text name = {(const char *)entry + ENTRY_BYTES, name_bytes};
    name.bytes -= bag_text_ends_with(name, ".npy") ? strlen(".npy") : 0;
    *member = (struct bag_npz_member){.name = name,
                                      .header_offset = bag_read_little(entry + 42, 4),
                                      .bytes = bag_read_little(entry + 20, 4),
                                      .crc32 = (uint32_t)bag_read_little(entry + 16, 4),
                                      .method = (unsigned)bag_read_little(entry + 10, 2),
                                      .encrypted = bag_read_little(entry + 8, 2) & 1};
    *cursor += bytes;
    return widen(&unpacked_bytes, &wide) && widen(&member->bytes, &wide) &&
           widen(&member->header_offset, &wide) &&
           (member->method != 0 || member->encrypted || unpacked_bytes == member->bytes);
}

bool bag_npz_read_directory(struct bag_npz *npz, const void *directory, struct bag_problem *problem)
{
    struct bag_npz_member member;
    size_t cursor = 0;
    npz->directory = directory;
    for (uint64_t i = 0; i < npz->num_members; i++) {
        if (!read_entry(npz, &cursor, &member))
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "the zip archive is damaged: its directory is wrong at member "
                                   "%" PRIu64 " of %" PRIu64,
                                   i, npz->num_members);
    }
    if (cursor != npz->directory_bytes)
        return bag_problem_set(
            problem, BAG_ERROR_FILE,
            "the zip archive is damaged: its directory goes on behind its %" PRIu64 " members",
            npz->num_members);
    return true;
}

/* ---- members --------------------------------------------------------------------------------- */

bool bag_npz_next(const struct bag_npz *npz, size_t *cursor, struct bag_npz_member *member)
{
    return *cursor < npz->directory_bytes && read_entry(npz, cursor, member);
}

size_t bag_npz_find(const struct bag_npz *npz, const char *name, struct bag_npz_member *member)
{
    struct bag_npz_member next;
    size_t cursor = 0, count = 0;
    while (bag_npz_next(npz, &cursor, &next)) {
        if (!bag_text_is(next.name, name))
            continue;
        if (count++ == 0)
            *member = next;
    }
    return count;
}

static bool reject(const struct bag_npz_member *member, const char *why,
                   struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE, "member '%s': %s",
                           bag_quote(member->name.data, member->name.bytes).text, why);
}

uint32_t bag_npz_crc32_part(const void *bytes, size_t count, uint64_t bytes_behind)
{
    return (uint32_t)crc32_combine(crc32_z(0, bytes, count), 0, (z_off_t)bytes_behind);
}

bool bag_npz_locate(const struct bag_npz *npz, const struct bag_npz_member *member,
                    const void *header, uint64_t *offset, struct bag_problem *problem)
{
    const unsigned char *own = header;
    if (member->encrypted)
        return reject(member, "it is encrypted; write it with numpy.savez", problem);
    if (member->method != 0)
        return reject(member, "it is compressed; write it with numpy.savez, not savez_compressed",
                      problem);
    if (!is_record(own, "PK\3\4"))
        return reject(member, "the zip archive is damaged: its own header is missing", problem);
    uint64_t end;
    bool overflow = __builtin_add_overflow(
        member->header_offset,
        BAG_NPZ_MEMBER_HEADER_BYTES + bag_read_little(own + 26, 2) + bag_read_little(own + 28, 2),
        offset);
    overflow |= __builtin_add_overflow(*offset, member->bytes, &end);
    if (overflow || end > npz->directory_offset)
        return reject(member, "the zip archive is damaged: it does not end before the directory",
                      problem);
    return true;
}
