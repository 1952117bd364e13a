/* libFuzzer: zip archives. The bytes are a file. An accepted archive must keep the promises of
 * formats.h. */
#include "fuzz.h"

#include "proto/formats.h"

static void check_member(const struct bag_npz *npz, const struct bag_npz_member *member,
                         const uint8_t *bytes, size_t count)
{
    struct bag_problem problem = {.text = ""};
    uint64_t offset;
    uint8_t header[BAG_NPZ_MEMBER_HEADER_BYTES] = {0};
    if (member->header_offset <= count && count - member->header_offset >= sizeof header)
        memcpy(header, bytes + member->header_offset, sizeof header);
    if (!bag_npz_locate(npz, member, header, &offset, &problem)) {
        require(problem.kind == BAG_ERROR_FILE && problem.text[0]);
        return;
    }
    require(offset <= count && member->bytes <= count - offset && member->method == 0);
}

static void read_members(struct bag_npz *npz, const uint8_t *bytes, size_t count)
{
    struct bag_problem problem = {.text = ""};
    struct bag_npz_member member, found;
    size_t cursor = 0;
    uint64_t members = 0;
    uint8_t *directory = malloc(npz->directory_bytes + 1);
    memcpy(directory, bytes + npz->directory_offset, npz->directory_bytes);
    if (bag_npz_read_directory(npz, directory, &problem)) {
        for (; bag_npz_next(npz, &cursor, &member); members++)
            check_member(npz, &member, bytes, count);
        require(members == npz->num_members && cursor == npz->directory_bytes);
        require(bag_npz_find(npz, "keys", &found) <= members);
    } else {
        require(problem.kind == BAG_ERROR_FILE && problem.text[0]);
    }
    free(directory);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct bag_npz npz;
    struct bag_problem problem = {.text = ""};
    size_t tail = count < BAG_NPZ_TAIL_BYTES ? count : BAG_NPZ_TAIL_BYTES;
    if (!bag_npz_find_directory(bytes + count - tail, tail, count, &npz, &problem)) {
        require(problem.kind == BAG_ERROR_FILE && problem.text[0]);
        return 0;
    }
    require(npz.directory_offset <= count && npz.directory_bytes <= count - npz.directory_offset);
    read_members(&npz, bytes, count);
    return 0;
}
