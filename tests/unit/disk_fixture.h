/* A disk in memory. It keeps all synced writes, and a random part of the others.
 *
 * Contents of files count as written in sectors: after a crash each sector of a write that was not
 * synced is there or not, whatever the order. Names, made, renamed and removed, are there when
 * their folder was synced, and otherwise perhaps. A call may fail, and from some call on all of
 * them, as if the machine had stopped there. The same seed gives the same disk. */
#pragma once

#include "kernels/random.h"
#include "server/system/files.h"
#include "testing.h"

#include <errno.h>
#include <limits.h>

#define SECTOR     64
#define MAX_FILES  512
#define MAX_OPS    2048
#define FILE_ROOM  (64 << 10)
#define PATH_BYTES 160

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *rng)
{
    return bag_random(&rng->state);
}

static inline unsigned rng_below(struct rng *rng, unsigned count)
{
    return (unsigned)(rng_next(rng) % count);
}

/* A sector that was written, or a size that was set, and not synced. */
struct disk_write {
    bool truncates;
    uint64_t at; /* or the size */
    size_t bytes;
    unsigned char data[SECTOR];
};

struct disk_file {
    bool is_folder;
    unsigned char *now, *safe; /* contents: as read, and as on the disk */
    uint64_t now_bytes, safe_bytes;
    struct disk_write *writes;
    size_t num_writes;
};

/* A name in a folder. */
struct disk_name {
    char path[PATH_BYTES];
    int file; /* -1: it is not there */
};

struct fake_disk {
    struct bag_disk calls;
    struct rng rng;
    struct disk_file files[MAX_FILES];
    int num_files;
    struct disk_name now[MAX_FILES], safe[MAX_FILES];
    size_t num_now, num_safe;
    /* Names that changed and were not synced: the last change of each wins. */
    struct disk_name changes[MAX_OPS];
    size_t num_changes;

    unsigned fails;  /* one of so many writes and syncs fails; 0: none */
    long calls_left; /* until the machine stops; negative: it does not */
    bool full;       /* every write fails for want of space */
    bool truncates_fail;
    unsigned failing_syncs; /* number of syncs of files that fail from now on; UINT_MAX: all */
    size_t open_files;
    size_t lost_syncs; /* number of syncs that failed */
};

/* ---- names ----------------------------------------------------------------------------------- */

static inline struct disk_name *find_name(struct disk_name *names, size_t *count, const char *path,
                                          bool add)
{
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(names[i].path, path) == 0)
            return &names[i];
    }
    if (!add)
        return NULL;
    assert_true(*count < MAX_FILES);
    struct disk_name *name = &names[(*count)++];
    snprintf(name->path, sizeof name->path, "%s", path);
    name->file = -1;
    return name;
}

static inline int file_at(struct fake_disk *disk, const char *path)
{
    const struct disk_name *name = find_name(disk->now, &disk->num_now, path, false);
    return name ? name->file : -1;
}

static inline void set_name(struct fake_disk *disk, const char *path, int file)
{
    find_name(disk->now, &disk->num_now, path, true)->file = file;
    assert_true(disk->num_changes < MAX_OPS);
    struct disk_name *change = &disk->changes[disk->num_changes++];
    snprintf(change->path, sizeof change->path, "%s", path);
    change->file = file;
}

static inline bool is_in(const char *path, const char *folder)
{
    size_t bytes = strlen(folder);
    return strncmp(path, folder, bytes) == 0 && path[bytes] == '/' &&
           !strchr(path + bytes + 1, '/');
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Returns an errno if the machine has stopped or the call fails. */
static inline int fails(struct fake_disk *disk, bool may_fail)
{
    if (disk->calls_left == 0)
        return EIO;
    if (disk->calls_left > 0)
        disk->calls_left--;
    if (may_fail && disk->fails && rng_below(&disk->rng, disk->fails) == 0)
        return EIO;
    return 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static inline int new_file(struct fake_disk *disk, bool is_folder)
{
    assert_true(disk->num_files < MAX_FILES);
    struct disk_file *file = &disk->files[disk->num_files];
    *file = (struct disk_file){.is_folder = is_folder};
    if (!is_folder) {
        file->now = calloc(1, FILE_ROOM);
        file->safe = calloc(1, FILE_ROOM);
        file->writes = calloc(MAX_OPS, sizeof *file->writes);
        assert_true(file->now && file->safe && file->writes);
    }
    return disk->num_files++;
}

static inline int disk_make_folder(void *context, const char *path)
{
    struct fake_disk *disk = context;
    int error = fails(disk, false);
    if (!error && file_at(disk, path) < 0)
        set_name(disk, path, new_file(disk, true));
    return error;
}

static inline int disk_list(void *context, const char *folder,
                            void (*found)(void *to, const char *name), void *to)
{
    struct fake_disk *disk = context;
    int error = fails(disk, false);
    for (size_t i = 0; !error && i < disk->num_now; i++) {
        if (disk->now[i].file >= 0 && is_in(disk->now[i].path, folder))
            found(to, disk->now[i].path + strlen(folder) + 1);
    }
    return error;
}

static inline int disk_sync_folder(void *context, const char *path)
{
    struct fake_disk *disk = context;
    int error = fails(disk, true);
    size_t kept = 0;
    for (size_t i = 0; !error && i < disk->num_changes; i++) {
        struct disk_name *change = &disk->changes[i];
        if (is_in(change->path, path))
            find_name(disk->safe, &disk->num_safe, change->path, true)->file = change->file;
        else
            disk->changes[kept++] = *change;
    }
    if (!error)
        disk->num_changes = kept;
    return error;
}

static inline int disk_rename(void *context, const char *from, const char *to)
{
    struct fake_disk *disk = context;
    int error = fails(disk, true), file = file_at(disk, from);
    if (!error && file < 0)
        error = ENOENT;
    if (!error) {
        set_name(disk, to, file);
        set_name(disk, from, -1);
    }
    return error;
}

static inline int disk_remove(void *context, const char *path)
{
    struct fake_disk *disk = context;
    int error = fails(disk, false);
    if (!error && file_at(disk, path) < 0)
        error = ENOENT;
    if (!error)
        set_name(disk, path, -1);
    return error;
}

static inline int disk_open(void *context, const char *path, bool create, int *file)
{
    struct fake_disk *disk = context;
    int error = fails(disk, create), found = file_at(disk, path);
    if (!error && create == (found >= 0))
        error = create ? EEXIST : ENOENT;
    if (!error && create)
        set_name(disk, path, found = new_file(disk, false));
    *file = found;
    disk->open_files += !error;
    return error;
}

static inline int disk_size(void *context, int file, uint64_t *bytes)
{
    struct fake_disk *disk = context;
    *bytes = disk->files[file].now_bytes;
    return fails(disk, false);
}

static inline int disk_read(void *context, int file, void *out, size_t bytes, uint64_t at)
{
    struct fake_disk *disk = context;
    const struct disk_file *from = &disk->files[file];
    int error = fails(disk, false);
    if (!error && (at > from->now_bytes || bytes > from->now_bytes - at))
        error = EIO;
    if (!error)
        memcpy(out, from->now + at, bytes);
    return error;
}

/* A file takes a sector after the other. */
static inline void put(unsigned char *contents, uint64_t *size, uint64_t at, const void *data,
                       size_t bytes)
{
    assert_true(at + bytes <= FILE_ROOM);
    memcpy(contents + at, data, bytes);
    if (*size < at + bytes)
        *size = at + bytes;
}

static inline void cut(unsigned char *contents, uint64_t *size, uint64_t bytes)
{
    if (bytes < *size)
        memset(contents + bytes, 0, *size - bytes);
    *size = bytes;
}

static inline struct disk_write *add_write(struct disk_file *file)
{
    assert_true(file->num_writes < MAX_OPS);
    return &file->writes[file->num_writes++];
}

static inline int disk_write(void *context, int file, const void *data, size_t bytes, uint64_t at)
{
    struct fake_disk *disk = context;
    struct disk_file *to = &disk->files[file];
    const unsigned char *from = data;
    bool stopped = disk->calls_left == 0;
    int error = disk->full ? ENOSPC : fails(disk, true);
    /* A write that fails may have written a part. */
    size_t end = error ? rng_below(&disk->rng, (unsigned)bytes + 1) : bytes;
    for (size_t done = 0; done < end && !stopped;) {
        size_t part = SECTOR - (at + done) % SECTOR;
        part = part < end - done ? part : end - done;
        struct disk_write *write = add_write(to);
        *write = (struct disk_write){.at = at + done, .bytes = part};
        memcpy(write->data, from + done, part);
        put(to->now, &to->now_bytes, at + done, from + done, part);
        done += part;
    }
    return error;
}

static inline int disk_truncate(void *context, int file, uint64_t bytes)
{
    struct fake_disk *disk = context;
    struct disk_file *to = &disk->files[file];
    int error = disk->truncates_fail ? EIO : fails(disk, true);
    if (error)
        return error;
    *add_write(to) = (struct disk_write){.truncates = true, .at = bytes};
    cut(to->now, &to->now_bytes, bytes);
    return 0;
}

static inline void keep_write(struct disk_file *file, const struct disk_write *write)
{
    if (write->truncates)
        cut(file->safe, &file->safe_bytes, write->at);
    else
        put(file->safe, &file->safe_bytes, write->at, write->data, write->bytes);
}

/* A sync that fails leaves some of it, and forgets the rest. */
static inline int disk_sync(void *context, int file)
{
    struct fake_disk *disk = context;
    struct disk_file *to = &disk->files[file];
    bool stopped = disk->calls_left == 0;
    int error = fails(disk, true);
    if (disk->failing_syncs) {
        error = EIO;
        disk->failing_syncs -= disk->failing_syncs != UINT_MAX;
    }
    for (size_t i = 0; !stopped && i < to->num_writes; i++) {
        if (!error || rng_below(&disk->rng, 2))
            keep_write(to, &to->writes[i]);
    }
    if (!stopped)
        to->num_writes = 0;
    disk->lost_syncs += error != 0;
    return error;
}

/* Always succeeds, as no other process uses the folder. */
static inline int disk_lock(void *context, const char *folder, int *file)
{
    struct fake_disk *disk = context;
    int error = fails(disk, false);
    *file = error ? -1 : file_at(disk, folder);
    disk->open_files += !error;
    return error;
}

static inline void disk_close(void *context, int file)
{
    struct fake_disk *disk = context;
    (void)file;
    disk->open_files--;
}

/* ---- the disk as a whole --------------------------------------------------------------------- */

static inline struct fake_disk *make_disk(uint64_t seed)
{
    struct fake_disk *disk = calloc(1, sizeof *disk);
    assert_non_null(disk);
    disk->rng.state = seed;
    disk->calls_left = -1;
    disk->calls = (struct bag_disk){.context = disk,
                                    .make_folder = disk_make_folder,
                                    .list = disk_list,
                                    .sync_folder = disk_sync_folder,
                                    .lock = disk_lock,
                                    .rename = disk_rename,
                                    .remove = disk_remove,
                                    .open = disk_open,
                                    .size = disk_size,
                                    .read = disk_read,
                                    .write = disk_write,
                                    .truncate = disk_truncate,
                                    .sync = disk_sync,
                                    .close = disk_close};
    return disk;
}

/* Returns whether the folders around a name exist. */
static inline bool has_folders(struct fake_disk *disk, const char *path)
{
    char folder[PATH_BYTES];
    assert_in_range(snprintf(folder, sizeof folder, "%s", path), 1, sizeof folder - 1);
    char *slash = strrchr(folder, '/');
    *slash = 0;
    return slash == folder || (file_at(disk, folder) >= 0 && has_folders(disk, folder));
}

static inline void lose_writes(struct fake_disk *disk)
{
    for (int i = 0; i < disk->num_files; i++) {
        struct disk_file *file = &disk->files[i];
        for (size_t j = 0; j < file->num_writes; j++) {
            if (rng_below(&disk->rng, 2))
                keep_write(file, &file->writes[j]);
        }
        file->num_writes = 0;
        if (!file->is_folder) {
            memcpy(file->now, file->safe, FILE_ROOM);
            file->now_bytes = file->safe_bytes;
        }
    }
}

static inline void lose_names(struct fake_disk *disk)
{
    for (size_t i = 0; i < disk->num_changes; i++) {
        const struct disk_name *change = &disk->changes[i];
        if (rng_below(&disk->rng, 2))
            find_name(disk->safe, &disk->num_safe, change->path, true)->file = change->file;
    }
    disk->num_changes = 0;
    memcpy(disk->now, disk->safe, sizeof disk->now);
    disk->num_now = disk->num_safe;
    for (size_t i = 0; i < disk->num_now; i++) {
        if (!has_folders(disk, disk->now[i].path))
            disk->now[i].file = disk->safe[i].file = -1;
    }
}

/* The process ends, and what it wrote is there, though not on the disk yet; or the machine loses
 * its power. */
static inline void crash(struct fake_disk *disk, bool loses_power)
{
    if (loses_power) {
        lose_writes(disk);
        lose_names(disk);
    }
    disk->calls_left = -1;
    disk->full = false;
    disk->failing_syncs = 0;
    disk->open_files = 0;
}

static inline void free_disk(struct fake_disk *disk)
{
    for (int i = 0; i < disk->num_files; i++) {
        free(disk->files[i].now);
        free(disk->files[i].safe);
        free(disk->files[i].writes);
    }
    free(disk);
}
