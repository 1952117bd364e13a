/* Files: the calls that those of row updates are written and read with, and reading one whole. */
#ifndef BAG_FILES_H
#define BAG_FILES_H

#include "proto/tokens.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* A table of calls, so that a test can put a disk in their place that tears, reorders and loses
 * what was not synced. Every call returns 0 or an errno value. */
struct bag_disk {
    void *context; /* the first argument of all */

    /* Makes a folder; one that is there already is no error. */
    int (*make_folder)(void *context, const char *path);
    /* Tells the names in a folder, but for those that begin with a dot, in any order. */
    int (*list)(void *context, const char *folder, void (*found)(void *to, const char *name),
                void *to);
    /* What was made, renamed and removed in a folder is on the disk. */
    int (*sync_folder)(void *context, const char *path);
    int (*rename)(void *context, const char *from, const char *to);
    int (*remove)(void *context, const char *path);

    /* Keeps the folder from other processes until *file is closed: EWOULDBLOCK where one has it. */
    int (*lock)(void *context, const char *folder, int *file);

    /* *file is set; `create` makes a file that must not be there yet. */
    int (*open)(void *context, const char *path, bool create, int *file);
    int (*size)(void *context, int file, uint64_t *bytes);
    /* Reads or writes all of it; a file that ends before is EIO. */
    int (*read)(void *context, int file, void *out, size_t bytes, uint64_t at);
    int (*write)(void *context, int file, const void *data, size_t bytes, uint64_t at);
    int (*truncate)(void *context, int file, uint64_t bytes);
    /* What was written to the file is on the disk. */
    int (*sync)(void *context, int file);
    void (*close)(void *context, int file);
};

/* The system's. */
extern const struct bag_disk bag_system_disk;

/* ---- reading files --------------------------------------------------------------------------- */

/* On any thread. */

/* Whether there is a file, or a folder, of that path. */
bool bag_file_exists(const char *path);

/* Opens a regular file and no other for reading, and fills *state; -1 with *problem, which does not
 * name the path. */
int bag_file_open(const char *path, struct stat *state, struct bag_problem *problem);

/* ---- files that are read whole: configuration, tokens ---------------------------------------- */

/* Reads a file of at most `max_bytes`. Returns its text, owned by the caller and ended with a NUL,
 * and sets *bytes; or NULL with *problem naming the path. */
char *bag_file_read(const char *path, size_t max_bytes, size_t *bytes, struct bag_problem *problem);

/* The same for a file of secrets; rejected where others than its owner may read or write it. The
 * group may read another user's file if it is one of the process's own, and a file of root's that
 * nobody may write to: Kubernetes (root and the pod's group) and systemd (root, and an entry for
 * the service's user) mount secrets with mode 0440. */
char *bag_file_read_private(const char *path, size_t max_bytes, size_t *bytes,
                            struct bag_problem *problem);

/* The token that bag_token_choose finds in such a file; for the caller to clear and free. */
char *bag_file_read_token(const char *path, enum bag_scope scope, struct bag_problem *problem);

#endif
