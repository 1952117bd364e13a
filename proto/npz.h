/* .npz files: zip archives of .npy files, as numpy.savez writes them, with stored members.
 *
 * A zip archive is read from its end: the last bytes say where its directory is, the directory says
 * where each member's own header is, and the member follows that. The large form (zip64)
 * is read, too. Members that are compressed are rejected when they are asked for only; checksums
 * are not verified.
 *
 * The caller reads the file and passes bytes. Nothing is allocated here. */
#ifndef BAG_NPZ_H
#define BAG_NPZ_H

#include "problem.h"
#include "text.h"

/* So many bytes from the file's end, or the whole file where it is shorter, say where the directory
 * is. */
#define BAG_NPZ_TAIL_BYTES (22 + 65535 + 20 + 56)

/* The longest directory that is read. */
#define BAG_NPZ_MAX_DIRECTORY_BYTES ((size_t)100 * 1000 * 1000)

/* Of a member's own header so many bytes must be seen. */
#define BAG_NPZ_MEMBER_HEADER_BYTES 30

struct bag_npz {
    uint64_t directory_offset; /* in the file */
    size_t directory_bytes;
    uint64_t num_members;
    const unsigned char *directory; /* borrowed; set by bag_npz_read_directory */
};

struct bag_npz_member {
    struct bag_text name;   /* without .npy; in the directory */
    uint64_t header_offset; /* of its own header in the file */
    uint64_t bytes;         /* as stored */
    unsigned method;        /* 0: stored */
    bool encrypted;
};

/* Finds the directory from the file's last `count` bytes: its offset, size and members. */
bool bag_npz_find_directory(const void *tail, size_t count, uint64_t file_bytes,
                            struct bag_npz *npz, struct bag_problem *problem);

/* Checks the directory, npz->directory_bytes at `directory`, which must outlive *npz. */
bool bag_npz_read_directory(struct bag_npz *npz, const void *directory,
                            struct bag_problem *problem);

/* The members in the directory's order, one with each call; false after the last. *cursor is 0
 * before the first. */
bool bag_npz_next(const struct bag_npz *npz, size_t *cursor, struct bag_npz_member *member);

/* How many members have that name, and the first of them. */
size_t bag_npz_find(const struct bag_npz *npz, const char *name, struct bag_npz_member *member);

/* Where the member's bytes begin in the file, by the BAG_NPZ_MEMBER_HEADER_BYTES of its own header.
 * Rejects members that are compressed, encrypted or not inside the file. */
bool bag_npz_locate(const struct bag_npz *npz, const struct bag_npz_member *member,
                    const void *header, uint64_t *offset, struct bag_problem *problem);

#endif
