/* Files: a table of system calls for the files of row updates, and functions that read whole
 * files. */
#pragma once

#include "proto/tokens.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* The system calls for the files of row updates. A test replaces them by a simulated disk that
 * tears, reorders and loses unsynced writes. Every call returns 0 or an errno value. */
struct bag_disk {
    void *context; /* first argument of all calls */

    /* Makes a folder. An existing folder is no error. */
    int (*make_folder)(void *context, const char *path);
    /* Calls `found` for each name in a folder that does not begin with a dot, in any order. */
    int (*list)(void *context, const char *folder, void (*found)(void *to, const char *name),
                void *to);
    /* Makes the files that were created, renamed and removed in a folder durable. */
    int (*sync_folder)(void *context, const char *path);
    int (*rename)(void *context, const char *from, const char *to);
    int (*remove)(void *context, const char *path);

    /* Locks the folder against other processes until *file is closed. Returns EWOULDBLOCK if
     * another process has locked it. */
    int (*lock)(void *context, const char *folder, int *file);

    /* Opens a file and sets *file. `create` makes a new file, which must not exist. */
    int (*open)(void *context, const char *path, bool create, int *file);
    int (*size)(void *context, int file, uint64_t *bytes);
    /* Read or write all bytes. Reading past the end of the file is EIO. */
    int (*read)(void *context, int file, void *out, size_t bytes, uint64_t at);
    int (*write)(void *context, int file, const void *data, size_t bytes, uint64_t at);
    int (*truncate)(void *context, int file, uint64_t bytes);
    /* Makes the data of the file durable. */
    int (*sync)(void *context, int file);
    void (*close)(void *context, int file);
};

/* The calls of the operating system. */
extern const struct bag_disk bag_system_disk;

/* ---- reading files --------------------------------------------------------------------------- */

/* May be called on any thread. */

/* Returns whether a file or folder with this path exists. */
bool bag_file_exists(const char *path);

/* Opens a regular file for reading and fills *state. Returns -1 and sets *problem, which does not
 * name the path, if that fails or it is another kind of file. */
int bag_file_open(const char *path, struct stat *state, struct bag_problem *problem);

/* Reads the bytes at a position, or fewer if the file ends before. Returns their number, or -1 with
 * errno. */
ssize_t bag_file_read_bytes(int fd, void *out, size_t bytes, uint64_t at);

/* ---- files that are read whole: configuration, tokens ---------------------------------------- */

/* Reads a file of at most `max_bytes`. Returns its text with a NUL at the end, owned by the caller,
 * and sets *bytes. Returns NULL and sets *problem, which names the path, if that fails. */
char *bag_file_read(const char *path, size_t max_bytes, size_t *bytes, struct bag_problem *problem);

/* Reads a file of secrets as bag_file_read does. Rejects a file that users other than its owner may
 * read or write. There are two exceptions: a group of this process may read another user's file,
 * and the group may read a file of root's that nobody may write to. Kubernetes (root and the pod's
 * group) and systemd (root, and an ACL entry for the service's user) mount secrets with mode
 * 0440. */
char *bag_file_read_private(const char *path, size_t max_bytes, size_t *bytes,
                            struct bag_problem *problem);

/* Reads a file of tokens and returns the one that bag_token_choose selects. The caller clears and
 * frees it. */
char *bag_file_read_token(const char *path, enum bag_scope scope, struct bag_problem *problem);
