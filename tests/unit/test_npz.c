/* Zip archives made by hand: what is read, and how the rest is rejected. */
#include "proto/formats.h"
#include "testing.h"

/* ---- archives -------------------------------------------------------------------------------- */

struct archive {
    unsigned char bytes[70000 + 1024];
    size_t count;
    unsigned char directory[1024];
    size_t directory_bytes, members;
};

static void put(struct archive *archive, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        archive->bytes[archive->count++] = i < 8 ? (unsigned char)(value >> 8 * i) : 0;
}

static void put_text(struct archive *archive, const char *text, size_t bytes)
{
    memcpy(archive->bytes + archive->count, text, bytes);
    archive->count += bytes;
}

static void put_entry(struct archive *archive, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        archive->directory[archive->directory_bytes++] =
            i < 8 ? (unsigned char)(value >> 8 * i) : 0;
}

struct kind {
    unsigned flags, method;
    bool wide;            /* sizes in extra fields */
    unsigned other_extra; /* bytes of an extra field before them */
};

static void add(struct archive *archive, const char *name, const char *data, struct kind kind)
{
    size_t offset = archive->count;
    put(archive, 0x04034b50, 4);
    put(archive, 0, 22);
    put(archive, strlen(name), 2);
    put(archive, 5, 2);
    put_text(archive, name, strlen(name));
    put_text(archive, "extra", 5);
    put_text(archive, data, strlen(data));
    /* An entry of the directory for a member whose header is at `offset`. */
    size_t bytes = strlen(data);
    size_t other = kind.other_extra ? kind.other_extra + 4 : 0;
    put_entry(archive, 0x02014b50, 4);
    put_entry(archive, 0, 4);
    put_entry(archive, kind.flags, 2);
    put_entry(archive, kind.method, 2);
    put_entry(archive, 0, 8);
    put_entry(archive, kind.wide ? UINT32_MAX : bytes, 4);
    put_entry(archive, kind.wide ? UINT32_MAX : bytes, 4);
    put_entry(archive, strlen(name), 2);
    put_entry(archive, other + (kind.wide ? 28 : 0), 2);
    put_entry(archive, 0, 10);
    put_entry(archive, kind.wide ? UINT32_MAX : offset, 4);
    for (const char *at = name; *at; at++)
        put_entry(archive, (unsigned char)*at, 1);
    if (other) {
        put_entry(archive, 9, 2);
        put_entry(archive, kind.other_extra, 2);
        for (unsigned i = 0; i < kind.other_extra; i++)
            put_entry(archive, 7, 1);
    }
    if (kind.wide) {
        put_entry(archive, 1, 2);
        put_entry(archive, 24, 2);
        put_entry(archive, bytes, 8);
        put_entry(archive, bytes, 8);
        put_entry(archive, offset, 8);
    }
    archive->members++;
}

static void end64(struct archive *archive, size_t offset)
{
    put(archive, 0x06064b50, 4);
    put(archive, 44, 8);
    put(archive, 0, 12);
    put(archive, archive->members, 8);
    put(archive, archive->members, 8);
    put(archive, archive->directory_bytes, 8);
    put(archive, offset, 8);
    put(archive, 0x07064b50, 4);
    put(archive, 0, 4);
    put(archive, archive->count - 60, 8);
    put(archive, 1, 4);
}

static void end(struct archive *archive, bool wide, size_t comment_bytes)
{
    size_t offset = archive->count;
    put_text(archive, (const char *)archive->directory, archive->directory_bytes);
    if (wide)
        end64(archive, offset);
    put(archive, 0x06054b50, 4);
    put(archive, 0, 4);
    put(archive, wide ? UINT16_MAX : archive->members, 2);
    put(archive, wide ? UINT16_MAX : archive->members, 2);
    put(archive, wide ? UINT32_MAX : archive->directory_bytes, 4);
    put(archive, wide ? UINT32_MAX : offset, 4);
    put(archive, comment_bytes, 2);
    memset(archive->bytes + archive->count, '!', comment_bytes);
    archive->count += comment_bytes;
}

static const struct kind stored = {0};

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads an archive whose bytes have blocks of exactly their size; *directory is the caller's. */
static bool read_copy(const struct archive *archive, struct bag_npz *npz, char **directory,
                      struct bag_problem *problem)
{
    size_t count = archive->count < BAG_NPZ_TAIL_BYTES ? archive->count : BAG_NPZ_TAIL_BYTES;
    char *tail = exact_copy(archive->bytes + archive->count - count, count);
    bool ok = bag_npz_find_directory(tail, count, archive->count, npz, problem);
    free(tail);
    *directory = NULL;
    if (!ok)
        return false;
    *directory = exact_copy(archive->bytes + npz->directory_offset, npz->directory_bytes);
    return bag_npz_read_directory(npz, *directory, problem);
}

static void check_member(const struct archive *archive, const struct bag_npz *npz, const char *name,
                         const char *data)
{
    struct bag_npz_member member;
    struct bag_problem problem;
    uint64_t offset;
    assert_int_equal(bag_npz_find(npz, name, &member), 1);
    char *header = exact_copy(archive->bytes + member.header_offset, BAG_NPZ_MEMBER_HEADER_BYTES);
    if (!bag_npz_locate(npz, &member, header, &offset, &problem))
        fail_msg("%s", problem.text);
    free(header);
    assert_int_equal(member.bytes, strlen(data));
    assert_memory_equal(archive->bytes + offset, data, strlen(data));
}

TEST(reads_stored_members)
{
    static const struct kind kinds[] = {{0}, {.wide = true}, {.wide = true, .other_extra = 3}};
    for (size_t i = 0; i < 2 * COUNT_OF(kinds); i++) {
        static struct archive archive;
        struct bag_npz npz;
        struct bag_npz_member member;
        struct bag_problem problem;
        char *directory;
        size_t cursor = 0;
        memset(&archive, 0, sizeof archive);
        add(&archive, "keys.npy", "KEYS", kinds[i / 2]);
        add(&archive, "values.npy", "the values", kinds[i / 2]);
        add(&archive, "odd", "", stored);
        end(&archive, i % 2, 0);
        if (!read_copy(&archive, &npz, &directory, &problem))
            fail_msg("%s", problem.text);
        assert_int_equal(npz.num_members, 3);
        check_member(&archive, &npz, "keys", "KEYS");
        check_member(&archive, &npz, "values", "the values");
        check_member(&archive, &npz, "odd", "");
        assert_int_equal(bag_npz_find(&npz, "keys.npy", &member), 0);
        for (int members = 0; members < 3; members++)
            assert_true(bag_npz_next(&npz, &cursor, &member));
        assert_true(bag_text_is(member.name, "odd"));
        assert_false(bag_npz_next(&npz, &cursor, &member));
        free(directory);
    }
}

TEST(finds_the_end_before_a_comment)
{
    static struct archive archive;
    struct bag_npz npz;
    struct bag_problem problem;
    char *directory;
    for (size_t comment = 0; comment <= 65535; comment += comment < 3 ? 1 : 65532) {
        memset(&archive, 0, sizeof archive);
        add(&archive, "a.npy", "A", stored);
        end(&archive, true, comment);
        assert_true(read_copy(&archive, &npz, &directory, &problem));
        check_member(&archive, &npz, "a", "A");
        free(directory);
    }
}

TEST(counts_members_of_one_name)
{
    static struct archive archive;
    struct bag_npz npz;
    struct bag_npz_member member;
    struct bag_problem problem;
    char *directory;
    add(&archive, "a.npy", "first", stored);
    add(&archive, "a.npy", "second one", stored);
    end(&archive, false, 0);
    assert_true(read_copy(&archive, &npz, &directory, &problem));
    assert_int_equal(bag_npz_find(&npz, "a", &member), 2);
    assert_int_equal(member.bytes, 5);
    free(directory);
}

TEST(reads_empty_archives)
{
    static struct archive archive;
    struct bag_npz npz;
    struct bag_npz_member member;
    struct bag_problem problem;
    char *directory;
    size_t cursor = 0;
    end(&archive, false, 0);
    assert_true(read_copy(&archive, &npz, &directory, &problem));
    assert_false(bag_npz_next(&npz, &cursor, &member));
    free(directory);
}

/* ---- rejections ------------------------------------------------------------------------------ */

static void reject(const struct archive *archive, const char *sentence)
{
    struct bag_npz npz;
    struct bag_problem problem;
    char *directory;
    assert_false(read_copy(archive, &npz, &directory, &problem));
    assert_string_equal(problem.text, sentence);
    assert_int_equal(problem.kind, BAG_ERROR_FILE);
    free(directory);
}

static void reject_member(const struct archive *archive, const char *sentence)
{
    struct bag_npz npz;
    struct bag_npz_member member;
    struct bag_problem problem;
    char *directory;
    uint64_t offset;
    if (!read_copy(archive, &npz, &directory, &problem))
        fail_msg("%s", problem.text);
    assert_int_equal(bag_npz_find(&npz, "a", &member), 1);
    const unsigned char *header = archive->bytes;
    assert_false(bag_npz_locate(&npz, &member, header, &offset, &problem));
    assert_string_equal(problem.text, sentence);
    free(directory);
}

TEST(rejects_files_without_an_end)
{
    static const char sentence[] =
        "the file is no complete zip archive: the record that ends one is missing";
    static struct archive archive;
    reject(&archive, sentence);
    add(&archive, "a.npy", "A", stored);
    end(&archive, false, 0);
    archive.count--;
    reject(&archive, sentence);
    archive.count += 2;
    reject(&archive, sentence);
}

TEST(rejects_directories_in_other_places)
{
    static struct archive archive;
    add(&archive, "a.npy", "A", stored);
    end(&archive, false, 0);
    archive.bytes[archive.count - 6]++;
    reject(&archive, "the zip archive is damaged: its directory should be 51 bytes from byte 42 "
                     "on, and end at byte 92");
    archive.bytes[archive.count - 6] -= 2;
    reject(&archive, "the zip archive is damaged: its directory should be 51 bytes from byte 40 "
                     "on, and end at byte 92");
    archive.bytes[archive.count - 3] = 1;
    reject(&archive, "the zip archive is damaged: its directory should be 51 bytes from byte "
                     "16777256 on, and end at byte 92");
}

TEST(rejects_directories_that_are_too_long)
{
    static struct archive archive;
    struct bag_npz npz;
    struct bag_problem problem;
    archive.directory_bytes = 200 * 1000 * 1000;
    put(&archive, 0, 4);
    archive.count = 4;
    put(&archive, 0x06054b50, 4);
    put(&archive, 0, 8);
    put(&archive, archive.directory_bytes, 4);
    put(&archive, 0, 6);
    assert_false(bag_npz_find_directory(archive.bytes + 4, archive.count - 4,
                                        archive.directory_bytes + 22, &npz, &problem));
    assert_string_equal(problem.text, "the zip archive's directory has 200000000 bytes; at most "
                                      "100000000 are read");
}

/* An archive of one member, before its end. */
static struct archive *one_member(struct kind kind)
{
    static struct archive archive;
    memset(&archive, 0, sizeof archive);
    add(&archive, "a.npy", "A", kind);
    return &archive;
}

static void end_and_reject(struct archive *archive, const char *sentence)
{
    end(archive, false, 0);
    reject(archive, sentence);
}

TEST(rejects_damaged_entries)
{
    static const char first[] =
        "the zip archive is damaged: its directory is wrong at member 0 of 1";
    static const struct {
        size_t at, count; /* in the directory */
        unsigned char byte;
    } damages[] = {{0, 1, 0},                    /* the signature */
                   {28, 1, 6},    {29, 1, 1},    /* a name beyond the end */
                   {24, 1, 9},                   /* stored, but of two sizes */
                   {20, 1, 9},    {20, 4, 0xff}, /* 64-bit numbers that are not there */
                   {24, 4, 0xff}, {42, 4, 0xff}};
    for (size_t i = 0; i < COUNT_OF(damages); i++) {
        struct archive *archive = one_member(stored);
        memset(archive->directory + damages[i].at, damages[i].byte, damages[i].count);
        end_and_reject(archive, first);
    }
    /* An extra field that goes on behind the entry. */
    struct archive *archive = one_member((struct kind){.wide = true});
    archive->directory[51 + 2]++;
    end_and_reject(archive, first);
    archive = one_member(stored);
    archive->members++;
    end_and_reject(archive, "the zip archive is damaged: its directory is wrong at member 1 of 2");
    archive = one_member(stored);
    archive->members--;
    end_and_reject(archive,
                   "the zip archive is damaged: its directory goes on behind its 0 members");
}

static void end_and_reject_member(struct archive *archive, const char *sentence)
{
    end(archive, false, 0);
    reject_member(archive, sentence);
}

TEST(rejects_members_that_cannot_be_read)
{
    static const char no_end[] =
        "member 'a': the zip archive is damaged: it does not end before the directory";
    end_and_reject_member(one_member((struct kind){.method = 8}),
                          "member 'a': it is compressed; write it with numpy.savez, not "
                          "savez_compressed");
    end_and_reject_member(one_member((struct kind){.flags = 1}),
                          "member 'a': it is encrypted; write it with numpy.savez");
    struct archive *archive = one_member(stored);
    archive->bytes[2] = 0;
    end_and_reject_member(archive,
                          "member 'a': the zip archive is damaged: its own header is missing");
    archive = one_member(stored);
    archive->bytes[28]++;
    end_and_reject_member(archive, no_end);
    for (size_t count = 16; count <= 24; count += 8) { /* without and with the offset */
        archive = one_member((struct kind){.wide = true});
        memset(archive->directory + 51 + 4, 0xff, count);
        end_and_reject_member(archive, no_end);
    }
}
