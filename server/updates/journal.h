/* The journal of one model's row updates: the files in a folder of its own.
 *
 * The page at the head of journal.c describes the files, which records are valid, and the recovery.
 *
 * Only one process opens a journal at a time, and one thread at a time calls its functions. A
 * reader may read the file that bag_journal_next_file() returned while another thread appends
 * records. */
#pragma once

#include "proto/formats.h"
#include "server/system/files.h"

#include <assert.h>

#define BAG_JOURNAL_PATH_BYTES 1024

/* The default size from which a file is followed by a new one. */
#define BAG_JOURNAL_FILE_BYTES ((uint64_t)64 << 20)

/* One file of a journal. */
struct bag_journal_file {
    uint64_t first_sequence;
    uint64_t end_sequence; /* first update of the next file; UINT64_MAX: this is the last file */
    uint64_t bytes;        /* bytes of the header and all complete records */
};

/* The state of a journal, which decides where its next record is written. */
enum bag_journal_state {
    BAG_JOURNAL_CLOSED,     /* zeroed, or closed */
    BAG_JOURNAL_OPENING,    /* bag_journal_open has not succeeded; the journal can only be closed */
    BAG_JOURNAL_APPENDING,  /* the next record is appended to the last file */
    BAG_JOURNAL_BEGINNING,  /* the next record begins a file; the last file may hold ignored bytes
                               after its records */
    BAG_JOURNAL_SYNC_FAILED /* as BEGINNING, and another fsync of the last file would prove nothing;
                               the records that may not be on the disk must be written to a new file
                               first */
};

/* An open journal. Used by one thread at a time: the caller holds the lock of its stream. */
struct bag_journal {
    enum bag_journal_state state;
    const struct bag_disk *disk;         /* borrowed */
    char folder[BAG_JOURNAL_PATH_BYTES]; /* path of the journal's folder; "": the journal is closed
                                          */
    struct bag_journal_header header;    /* header of new files */
    uint64_t file_bytes; /* size from which a file is followed by a new one; BAG_JOURNAL_FILE_BYTES
                            unless the owner sets it */
    struct bag_journal_file *files; /* owned; oldest first */
    size_t num_files;
    int lock; /* lock that keeps other servers out of the folder; -1: not held */
    int file; /* last file, open; -1: none */
    struct bag_journal_header
        file_header; /* header of the last file, whose rows may differ from those of `header` */
    uint64_t last_sequence; /* last update in the journal, or the one before its first; 0: none */
    uint64_t last_first;    /* first update of the range in the last record */
    size_t last_bytes;      /* bytes of the last record; 0: it cannot be taken back */
    uint64_t synced_bytes,
        synced_sequence; /* length and last update of the synced part of the last file */
    char *buffer;        /* owned; holds the record to write */
    size_t buffer_bytes;

    uint64_t torn_bytes; /* bytes that were cut off the last file when it was opened */
};

/* Opens or creates the journal of header->name in `dir`, for rows as the header describes them.
 * Ignores header->first_sequence. Returns false and sets *problem if the journal cannot be opened.
 * *problem is FILE and names the file if it is of another part, damaged, unreadable or used by
 * another process; otherwise it is NO_MEMORY. The caller must call bag_journal_close in either
 * case. */
bool bag_journal_open(struct bag_journal *journal, const struct bag_disk *disk, const char *dir,
                      const struct bag_journal_header *header, struct bag_problem *problem);

/* Returns whether the journal is open, and not closed. */
static inline bool bag_journal_is_open(const struct bag_journal *journal)
{
    assert(journal->state != BAG_JOURNAL_OPENING);
    return journal->state != BAG_JOURNAL_CLOSED;
}

/* Closes the journal without syncing it. */
void bag_journal_close(struct bag_journal *journal);

/* Returns the bytes of all files. */
uint64_t bag_journal_bytes(const struct bag_journal *journal);

/* Makes the next record begin a new file, so that the last file can be removed once no table needs
 * its updates. */
void bag_journal_begin_file(struct bag_journal *journal);

/* Appends a record of the updates from first_sequence to record->sequence. Ignores the record's
 * synced_bytes and is_range. Begins a new file if the last one is large, or if the record does not
 * follow the last record. Returns false and sets *problem (STORAGE or NO_MEMORY) if the record
 * cannot be written. The journal is then unchanged, also after a restart, unless *problem says that
 * the update may be applied then. */
bool bag_journal_append(struct bag_journal *journal, const struct bag_journal_record *record,
                        uint64_t first_sequence, struct bag_problem *problem);

/* Takes back the last record if it ends with update `sequence`. Returns false if it does not, or if
 * the record may still be on the disk. */
bool bag_journal_take_back(struct bag_journal *journal, uint64_t sequence);

/* Returns whether a record may not be on the disk yet. */
static inline bool bag_journal_is_dirty(const struct bag_journal *journal)
{
    assert(journal->state != BAG_JOURNAL_OPENING);
    return journal->num_files &&
           journal->files[journal->num_files - 1].bytes > journal->synced_bytes;
}

/* Syncs all records to the disk. Returns false and sets *problem (STORAGE) if they may not be on
 * the disk. With `takes_back`, the unsynced records are then taken back, also on the disk, unless
 * *problem says that they may be applied at the next start. */
bool bag_journal_sync(struct bag_journal *journal, bool takes_back, struct bag_problem *problem);

/* Removes files whose updates are all `through` or older. Keeps files with updates after `wanted`,
 * but removes the oldest of them while all files exceed `kept_bytes`. Never removes the last
 * file. */
void bag_journal_remove(struct bag_journal *journal, uint64_t through, uint64_t wanted,
                        uint64_t kept_bytes);

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads the records of all files in order. Must be zeroed before its first use. */
struct bag_journal_reader {
    struct bag_journal_file file;     /* last file read; its `bytes` is how much of it was read */
    struct bag_journal_header header; /* header of that file */
    char *bytes;                      /* owned */
    size_t at;                        /* position of the next record */
    uint64_t first_sequence;          /* first update of the last record, */
    uint64_t last_sequence;           /* and its last update */
};

/* Sets *file to the file to read next, the first one with an update after `through`. Returns false
 * if there is none, or the reader has read all of it. */
bool bag_journal_next_file(const struct bag_journal *journal,
                           const struct bag_journal_reader *reader, uint64_t through,
                           struct bag_journal_file *file);

/* Reads the file, or the part of it that was appended since the last call. Returns false and sets
 * *problem (FILE or NO_MEMORY), which names the file, if that fails. */
bool bag_journal_read_file(struct bag_journal_reader *reader, const struct bag_disk *disk,
                           const char *folder, const struct bag_journal_file *file,
                           struct bag_problem *problem);

/* Sets *record to the next record, which is valid until the next file is read. Returns false if
 * there is none, or if the file is damaged; *damaged tells which, and *problem (FILE) is set if it
 * is damaged. */
bool bag_journal_next(struct bag_journal_reader *reader, const char *folder,
                      struct bag_journal_record *record, bool *damaged,
                      struct bag_problem *problem);

void bag_journal_reader_free(struct bag_journal_reader *reader);

/* ---- for journal*.c -------------------------------------------------------------------------- */

#define BAG_JOURNAL_DIGITS     20
#define BAG_JOURNAL_SUFFIX     ".journal"
#define BAG_JOURNAL_NEW_SUFFIX ".new"

struct bag_journal_path {
    char text[BAG_JOURNAL_PATH_BYTES + BAG_JOURNAL_DIGITS + sizeof BAG_JOURNAL_SUFFIX +
              sizeof BAG_JOURNAL_NEW_SUFFIX];
};

/* Returns the path of the file that begins with this update, with the suffix `more`. */
struct bag_journal_path bag_journal_path_of(const char *folder, uint64_t first_sequence,
                                            const char *more);

/* Returns whether both headers describe rows of the same format. */
bool bag_journal_same_rows(const struct bag_journal_header *a, const struct bag_journal_header *b);

/* Checks that both headers are for the same part of a table. Returns false and sets *problem, which
 * names both parts, if they are not. */
bool bag_journal_check_part(const struct bag_journal_header *found,
                            const struct bag_journal_header *wanted, struct bag_problem *problem);

/* Sets *problem to the failed action, the file and the errno. Returns false. */
bool bag_journal_reject(const char *path, const char *what, int error, struct bag_problem *problem);

static inline struct bag_journal_file *bag_journal_last(const struct bag_journal *journal)
{
    return &journal->files[journal->num_files - 1];
}
