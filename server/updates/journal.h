/* The journal of one model's row updates: files in a folder of its own.
 *
 * DIR/NAME/00000000000000000001.journal begins with update 1. A file that has become large is
 * followed by the next one, whose name is the first update in it; files are removed when every
 * loaded table had their updates from the beginning, and every version that is there to be loaded
 * has, or there are too many bytes of them. A file is synced before the next one is begun;
 * where that fails the next one begins with what was not. Bytes behind the record that is followed
 * by the next file's first one were taken back, and do not count.
 *
 * A tail of the last file that the disk did not get is cut off when the journal is opened. Anything
 * else that is wrong is an error that names the file: nothing that was acknowledged is passed over.
 *
 * One process has it at a time. Used by one thread at a time; a reader may read what
 * bag_journal_next_file told it while records are appended. */
#ifndef BAG_UPDATES_JOURNAL_H
#define BAG_UPDATES_JOURNAL_H

#include "proto/formats.h"
#include "server/system/files.h"

#include <assert.h>

#define BAG_JOURNAL_PATH_BYTES 1024

/* A larger file is followed by a new one. */
#define BAG_JOURNAL_FILE_BYTES ((uint64_t)64 << 20)

struct bag_journal_file {
    uint64_t first_sequence;
    uint64_t end_sequence; /* where the next file begins; UINT64_MAX: it is the last one */
    uint64_t bytes;        /* of whole records, with the header */
};

/* What may be done with a journal, and what its next record does. */
enum bag_journal_state {
    BAG_JOURNAL_CLOSED,     /* zeroed, or closed: there is no journal */
    BAG_JOURNAL_OPENING,    /* bag_journal_open has not succeeded: it can only be closed */
    BAG_JOURNAL_APPENDING,  /* the next record follows the last one, in the last file */
    BAG_JOURNAL_BEGINNING,  /* the next record begins a file; the last one may hold bytes after its
                               records, which do not count */
    BAG_JOURNAL_SYNC_FAILED /* the same, but syncing the last file again proves nothing: records
                               that are not known to be on the disk are written to a new file first
                             */
};

struct bag_journal {
    enum bag_journal_state state;
    const struct bag_disk *disk;         /* borrowed */
    char folder[BAG_JOURNAL_PATH_BYTES]; /* "": it is closed */
    struct bag_journal_header header;    /* of files that are begun */
    uint64_t file_bytes; /* a larger file is followed by a new one; BAG_JOURNAL_FILE_BYTES unless
                            the owner sets it */
    struct bag_journal_file *files; /* owned; oldest first */
    size_t num_files;
    int lock; /* keeps other servers out of the folder; -1: it is not held */
    int file; /* the last one, open; -1: there is none yet */
    struct bag_journal_header file_header; /* of the last file, which may have other rows */
    uint64_t last_sequence; /* of the last record, or before the first one; 0: none */
    uint64_t last_first;    /* the first of the updates that the last record stands for */
    size_t last_bytes;      /* of the last record; 0: it cannot be taken back */
    uint64_t synced_bytes, synced_sequence; /* of the last file; its last record that is safe */
    char *buffer;                           /* owned; of the record that is written */
    size_t buffer_bytes;

    uint64_t torn_bytes; /* that opening cut off the last file */
};

/* Opens or makes the journal of header->name in `dir`, for rows as the header says; its
 * first_sequence is not used. Returns false and sets *problem: FILE, which names the file, if it is
 * of another part, damaged, cannot be read, or is another process's; else NO_MEMORY. The caller
 * must call bag_journal_close in either case. */
bool bag_journal_open(struct bag_journal *journal, const struct bag_disk *disk, const char *dir,
                      const struct bag_journal_header *header, struct bag_problem *problem);

/* Returns whether there is a journal, which then is open. */
static inline bool bag_journal_is_open(const struct bag_journal *journal)
{
    assert(journal->state != BAG_JOURNAL_OPENING);
    return journal->state != BAG_JOURNAL_CLOSED;
}

/* Syncs nothing. */
void bag_journal_close(struct bag_journal *journal);

/* Returns the bytes of all files. */
uint64_t bag_journal_bytes(const struct bag_journal *journal);

/* Makes the next record begin a file. */
void bag_journal_begin_file(struct bag_journal *journal);

/* Appends a record for the updates from first_sequence to its own, whose synced_bytes and is_range
 * are not used, and begins a new file if the last one is large or the record does not follow its
 * last one. Returns false and sets *problem (STORAGE, or NO_MEMORY) if the record cannot be
 * written: the journal is then as before, also after a restart, unless *problem says that the
 * update may be applied then. */
bool bag_journal_append(struct bag_journal *journal, const struct bag_journal_record *record,
                        uint64_t first_sequence, struct bag_problem *problem);

/* Takes back the record that was appended last, if that is `sequence`. Returns false if it is
 * another one, or may still be on the disk. */
bool bag_journal_take_back(struct bag_journal *journal, uint64_t sequence);

/* Returns whether some record is not known to be on the disk. */
static inline bool bag_journal_is_dirty(const struct bag_journal *journal)
{
    assert(journal->state != BAG_JOURNAL_OPENING);
    return journal->num_files &&
           journal->files[journal->num_files - 1].bytes > journal->synced_bytes;
}

/* Brings all records to the disk. Returns false and sets *problem (STORAGE) if it is not known that
 * they are there. `takes_back`: those that were not there before are then taken back, on the disk,
 * too, unless *problem says that they may be applied at the next start. */
bool bag_journal_sync(struct bag_journal *journal, bool takes_back, struct bag_problem *problem);

/* Removes files all of whose updates are `through` or older; of those with updates after `wanted`
 * only as many, from the oldest on, as all files are more than `kept_bytes`. The last file stays.
 */
void bag_journal_remove(struct bag_journal *journal, uint64_t through, uint64_t wanted,
                        uint64_t kept_bytes);

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads records, file after file. Zeros before the first. */
struct bag_journal_reader {
    struct bag_journal_file file;     /* of which `bytes` were read */
    struct bag_journal_header header; /* of that file */
    char *bytes;                      /* owned */
    size_t at;                        /* of the next record */
    uint64_t first_sequence;          /* of the updates that the last one taken stands for, */
    uint64_t last_sequence;           /* and the last of these */
};

/* The file to read next, the first one with an update after `through`; false where there is none,
 * or the reader has read all of it. */
bool bag_journal_next_file(const struct bag_journal *journal,
                           const struct bag_journal_reader *reader, uint64_t through,
                           struct bag_journal_file *file);

/* Reads that file of a journal's folder, or what has come since. Returns false and sets *problem
 * (FILE or NO_MEMORY), which names the file. */
bool bag_journal_read_file(struct bag_journal_reader *reader, const struct bag_disk *disk,
                           const char *folder, const struct bag_journal_file *file,
                           struct bag_problem *problem);

/* Takes the next record of what was read, which lives until the next file is read. Returns false if
 * there is none, or, with *damaged and *problem (FILE) set, if the file is damaged. */
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

/* Of the file that begins with an update, with `more` behind it. */
struct bag_journal_path bag_journal_path_of(const char *folder, uint64_t first_sequence,
                                            const char *more);

/* Whether rows are stored alike. */
bool bag_journal_same_rows(const struct bag_journal_header *a, const struct bag_journal_header *b);

/* Whether updates are of the same part of a table; says which they are where they are not. */
bool bag_journal_check_part(const struct bag_journal_header *found,
                            const struct bag_journal_header *wanted, struct bag_problem *problem);

/* Says what failed, and the file; returns false. */
bool bag_journal_reject(const char *path, const char *what, int error, struct bag_problem *problem);

static inline struct bag_journal_file *bag_journal_last(const struct bag_journal *journal)
{
    return &journal->files[journal->num_files - 1];
}

#endif
