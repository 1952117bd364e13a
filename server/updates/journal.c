/* Writes and removes the files of a journal; journal_open.c opens and reads them. This page is
 * about both. proto/formats.h has the bytes of headers and records, and journal.h the functions.
 *
 * Files. The journal of model NAME is the folder DIR/NAME. A file is called after its first update:
 * 00000000000000000001.journal begins with update 1. It has a header, which names the model, the
 * part of its table and the format of its rows, and then one record for each update. A record has
 * the update's number, its ids and its rows. Numbers follow each other without gaps, but one record
 * may stand for a range of them. A file that ends in .new is an attempt to begin one, and is
 * ignored.
 *
 * The next record begins a new file if
 *
 *   - the last file is large;
 *   - its rows have another format than those of the last file;
 *   - the number leaves out some, because a table that includes later updates was loaded;
 *   - a second version was loaded, so that the last file can be removed once no table needs it;
 *   - a write or a sync of the last file failed.
 *
 * Writing. A record is appended to the last file with one write. It is synced to the disk before
 * its update is acknowledged (journal_sync always), at intervals, or when the system does it. A
 * sync is for all records that were appended before it. A new file is written under a temporary
 * name, synced, renamed, and its folder is synced; the last file was synced before. At any time all
 * files but the last are therefore complete on the disk.
 *
 * Failures. A record whose write fails is taken back: the file is cut after the record before it.
 * The same happens after a sync that fails before the update is acknowledged. The client gets an
 * error, so that no restart may apply the update. If the cut fails, too, the error says that a
 * restart may apply it. After a failed fsync a second one may succeed without having written
 * anything, because the system has dropped the pages. The records that were not synced are
 * therefore written once more, into a new file. That file ends the records of the one before it:
 * bytes after its first update there were taken back, and are ignored.
 *
 * Valid records. A record is valid if its checksum is right, its size is that of its ids and rows,
 * and its number follows the record before it, which is valid. The first one has the number of the
 * header. The records of a file end before the first update of the next file. Each record says how
 * many bytes of its file were on the disk when it was written.
 *
 * Recovery (bag_journal_open). The files are sorted by name, and each header must be of the same
 * model, part and width of rows as the table. The last file is read whole:
 *
 *   1. Valid records are taken up to the first bytes that are none. A record with the right
 *      checksum and a wrong number is damage.
 *   2. If a valid record after that place says that the disk had these bytes, they were damaged
 *      later. The journal is not opened, because an acknowledged update must not be skipped. The
 *      problem names the file and the byte.
 *   3. Otherwise the bytes are the tail of a write that a crash cut off. They were not
 *      acknowledged, and are removed.
 *   4. Records that may be in memory only, after a failed fsync of a process that has ended, are
 *      written again. The file is synced, and goes on.
 *
 * Reading (struct bag_journal_reader). A table that is loaded gets the records after its own last
 * update, file by file, while updates go on. A reader only reads bytes that were complete when it
 * asked for the file. Damage in a file that is not the last one is found here.
 *
 * Removing. A file is removed if neither a loaded table nor a version that may be loaded later
 * needs its updates. If all files exceed their limit of bytes, those that only the latter need go
 * first. The last file stays. If the disk loses a removal, the file comes back and does no harm. */
#include "journal.h"
#include "proto/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bag_journal_path bag_journal_path_of(const char *folder, uint64_t first_sequence,
                                            const char *more)
{
    struct bag_journal_path path;
    snprintf(path.text, sizeof path.text, "%s/%0*" PRIu64 BAG_JOURNAL_SUFFIX "%s", folder,
             BAG_JOURNAL_DIGITS, first_sequence, more);
    return path;
}

bool bag_journal_reject(const char *path, const char *what, int error, struct bag_problem *problem)
{
    return bag_problem_set(problem, error == ENOMEM ? BAG_ERROR_NO_MEMORY : BAG_ERROR_FILE,
                           "journal %s: %s: %s", path, what, strerror(error));
}

/* Sets *problem to the failed action and the errno, as a problem of the disk. Returns false. */
static bool reject_storage(const struct bag_journal *journal, const char *what, int error,
                           struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_STORAGE, "the journal in %s: %s: %s", journal->folder,
                           what, strerror(error));
}

void bag_journal_close(struct bag_journal *journal)
{
    if (journal->state != BAG_JOURNAL_CLOSED && journal->file >= 0)
        journal->disk->close(journal->disk->context, journal->file);
    if (journal->state != BAG_JOURNAL_CLOSED && journal->lock >= 0)
        journal->disk->close(journal->disk->context, journal->lock);
    free(journal->files);
    free(journal->buffer);
    *journal = (struct bag_journal){.lock = -1, .file = -1};
}

bool bag_journal_same_rows(const struct bag_journal_header *a, const struct bag_journal_header *b)
{
    return a->dtype == b->dtype && a->row_format == b->row_format && a->row_bytes == b->row_bytes;
}

uint64_t bag_journal_bytes(const struct bag_journal *journal)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < journal->num_files; i++)
        bytes += journal->files[i].bytes;
    return bytes;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A file that is being created. It holds a header and the records that the last file could not
 * keep. */
struct new_file {
    struct bag_journal_header header;
    uint64_t first_sequence, last_sequence;
    char *bytes;
    size_t count;
};

/* Fills in the bytes of the new file: a header and the last `rest` bytes of the last file. Returns
 * 0 or an errno. The caller must free new_file->bytes in either case. */
static int fill_new_file(struct bag_journal *journal, size_t rest, struct new_file *new_file)
{
    const struct bag_disk *disk = journal->disk;
    new_file->bytes = malloc(BAG_JOURNAL_MAX_HEADER_BYTES + rest);
    if (!new_file->bytes)
        return ENOMEM;
    new_file->header.first_sequence = new_file->first_sequence;
    new_file->count = bag_journal_write_header(&new_file->header, new_file->bytes);
    int error = rest ? disk->read(disk->context, journal->file, new_file->bytes + new_file->count,
                                  rest, journal->synced_bytes)
                     : 0;
    new_file->count += rest;
    return error;
}

/* Writes the file under a temporary name, syncs it and renames it. Returns 0 or an errno. */
static int write_new_file(struct bag_journal *journal, const struct new_file *new_file, int *file)
{
    const struct bag_disk *disk = journal->disk;
    struct bag_journal_path path =
        bag_journal_path_of(journal->folder, new_file->first_sequence, "");
    struct bag_journal_path new_path =
        bag_journal_path_of(journal->folder, new_file->first_sequence, BAG_JOURNAL_NEW_SUFFIX);
    disk->remove(disk->context, new_path.text); /* an interrupted attempt may have left one */
    int error = disk->open(disk->context, new_path.text, true, file);
    if (error)
        return error;
    error = disk->write(disk->context, *file, new_file->bytes, new_file->count, 0);
    if (!error)
        error = disk->sync(disk->context, *file);
    if (!error)
        error = disk->rename(disk->context, new_path.text, path.text);
    if (!error)
        error = disk->sync_folder(disk->context, journal->folder);
    if (error)
        disk->close(disk->context, *file);
    return error;
}

/* Creates the next file of the journal. Its first records are the last `rest` bytes of the last
 * file, because a sync of that file failed. Returns false and sets *problem (STORAGE) if the file
 * cannot be created; the last file then stays the last one. */
static bool add_new_file(struct bag_journal *journal, struct new_file *new_file, size_t rest,
                         struct bag_problem *problem)
{
    int file = -1;
    if (!BAG_GROW(journal->files, journal->num_files))
        return reject_storage(journal, "a file cannot be begun", ENOMEM, problem);
    int error = fill_new_file(journal, rest, new_file);
    if (!error)
        error = write_new_file(journal, new_file, &file);
    if (!error) {
        /* Make the new file the last one. `files` must have capacity for it. */
        const struct bag_disk *disk = journal->disk;
        uint64_t first_sequence = new_file->first_sequence;
        bool replaces =
            journal->num_files && bag_journal_last(journal)->first_sequence == first_sequence;
        if (journal->num_files && !replaces) {
            bag_journal_last(journal)->end_sequence = first_sequence;
            bag_journal_last(journal)->bytes = journal->synced_bytes;
            /* If the disk loses the truncation, the bytes return and are ignored. */
            if (journal->state != BAG_JOURNAL_APPENDING)
                disk->truncate(disk->context, journal->file, journal->synced_bytes);
        }
        journal->num_files += !replaces;
        *bag_journal_last(journal) = (struct bag_journal_file){
            .first_sequence = first_sequence, .end_sequence = UINT64_MAX, .bytes = new_file->count};
        if (journal->file >= 0)
            disk->close(disk->context, journal->file);
        journal->file = file;
        journal->file_header = new_file->header;
        journal->state = BAG_JOURNAL_APPENDING;
        journal->last_bytes = 0;
        journal->last_sequence = journal->synced_sequence = new_file->last_sequence;
        journal->synced_bytes = new_file->count;
    }
    free(new_file->bytes);
    return !error || reject_storage(journal, "a file cannot be begun", error, problem);
}

/* Syncs the last file. After a failed fsync, a second one may succeed without having written
 * anything. The remaining records are therefore written to a new file. */
static bool sync_last(struct bag_journal *journal, struct bag_problem *problem)
{
    if (journal->state == BAG_JOURNAL_SYNC_FAILED) {
        struct new_file new_file = {.header = journal->file_header,
                                    .first_sequence = journal->synced_sequence + 1,
                                    .last_sequence = journal->last_sequence};
        size_t rest = (size_t)(bag_journal_last(journal)->bytes - journal->synced_bytes);
        return add_new_file(journal, &new_file, rest, problem);
    }
    int error = journal->disk->sync(journal->disk->context, journal->file);
    if (error) {
        journal->state = BAG_JOURNAL_SYNC_FAILED;
        return reject_storage(journal, "fsync failed", error, problem);
    }
    journal->synced_bytes = bag_journal_last(journal)->bytes;
    journal->synced_sequence = journal->last_sequence;
    return true;
}

/* Truncates the last file after its last record and syncs it. Returns false if the removed bytes
 * may return after a restart. */
static bool cut_last(struct bag_journal *journal)
{
    const struct bag_disk *disk = journal->disk;
    if (disk->truncate(disk->context, journal->file, bag_journal_last(journal)->bytes) != 0) {
        bag_journal_begin_file(journal);
        return false;
    }
    if (disk->sync(disk->context, journal->file) == 0)
        return true;
    journal->state = BAG_JOURNAL_SYNC_FAILED;
    return false;
}

/* Adds to the problem that the failed update may still be applied at the next start. */
static void say_may_be_applied(struct bag_problem *problem)
{
    bag_problem_prefix(problem, "this update may be applied at the next start, as its record could "
                                "not be removed");
}

bool bag_journal_sync(struct bag_journal *journal, bool takes_back, struct bag_problem *problem)
{
    if (!bag_journal_is_dirty(journal))
        return true;
    /* If beginning a new file failed late, that file may also hold these records. */
    bool are_elsewhere = journal->state == BAG_JOURNAL_SYNC_FAILED;
    bool ok = sync_last(journal, problem);
    if (!ok && takes_back) {
        bag_journal_last(journal)->bytes = journal->synced_bytes;
        journal->last_sequence = journal->synced_sequence;
        journal->last_bytes = 0;
        if (!cut_last(journal) || are_elsewhere)
            say_may_be_applied(problem);
    }
    return ok;
}

void bag_journal_begin_file(struct bag_journal *journal)
{
    if (journal->state == BAG_JOURNAL_APPENDING)
        journal->state = BAG_JOURNAL_BEGINNING;
}

/* Returns whether an update with this first number begins a new file: after a failure, for rows of
 * another format, if the last file is large, or after a gap in the numbers. */
static bool begins_file(const struct bag_journal *journal, uint64_t sequence)
{
    return journal->state != BAG_JOURNAL_APPENDING ||
           !bag_journal_same_rows(&journal->file_header, &journal->header) ||
           bag_journal_last(journal)->bytes >= journal->file_bytes ||
           sequence != journal->last_sequence + 1;
}

/* Grows the buffer for a record. `bytes` is 0 if the size of the record overflowed. */
static bool reserve(struct bag_journal *journal, size_t bytes, struct bag_problem *problem)
{
    if (bytes && bytes <= journal->buffer_bytes)
        return true;
    char *buffer = bytes ? realloc(journal->buffer, bytes) : NULL;
    if (!buffer)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "no memory to write the update to the journal");
    journal->buffer = buffer;
    journal->buffer_bytes = bytes;
    return true;
}

bool bag_journal_append(struct bag_journal *journal, const struct bag_journal_record *record,
                        uint64_t first_sequence, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct bag_journal_record written = *record;
    size_t bytes = bag_journal_record_bytes(record, journal->header.row_bytes);
    assert(journal->state >= BAG_JOURNAL_APPENDING);
    if (!reserve(journal, bytes, problem))
        return false;
    if (begins_file(journal, first_sequence) && !bag_journal_sync(journal, false, problem))
        return false;
    /* bag_journal_sync may have begun a file already. */
    if (begins_file(journal, first_sequence)) {
        struct new_file new_file = {.header = journal->header,
                                    .first_sequence = first_sequence,
                                    .last_sequence = first_sequence - 1};
        if (!add_new_file(journal, &new_file, 0, problem))
            return false;
    }
    struct bag_journal_file *file = bag_journal_last(journal);
    written.synced_bytes = journal->synced_bytes;
    written.is_range = record->sequence != first_sequence;
    bag_journal_write_record(&written, journal->header.row_bytes, journal->buffer);
    int error = disk->write(disk->context, journal->file, journal->buffer, bytes, file->bytes);
    if (error) {
        reject_storage(journal, "the update cannot be written", error, problem);
        if (!cut_last(journal))
            say_may_be_applied(problem);
        return false;
    }
    file->bytes += bytes;
    journal->last_sequence = record->sequence;
    journal->last_first = first_sequence;
    journal->last_bytes = bytes;
    return true;
}

bool bag_journal_take_back(struct bag_journal *journal, uint64_t sequence)
{
    assert(journal->state >= BAG_JOURNAL_APPENDING);
    if (journal->last_sequence != sequence || !journal->last_bytes)
        return false;
    struct bag_journal_file *file = bag_journal_last(journal);
    bool synced = file->bytes == journal->synced_bytes;
    file->bytes -= journal->last_bytes;
    journal->last_bytes = 0;
    journal->last_sequence = journal->last_first - 1;
    if (synced) {
        journal->synced_bytes = file->bytes;
        journal->synced_sequence = journal->last_sequence;
    }
    return cut_last(journal);
}

void bag_journal_remove(struct bag_journal *journal, uint64_t through, uint64_t wanted,
                        uint64_t kept_bytes)
{
    const struct bag_disk *disk = journal->disk;
    uint64_t bytes = bag_journal_bytes(journal);
    size_t removed = 0;
    while (removed + 1 < journal->num_files &&
           journal->files[removed].end_sequence <= through + 1 &&
           (journal->files[removed].end_sequence <= wanted + 1 || bytes > kept_bytes)) {
        struct bag_journal_path path =
            bag_journal_path_of(journal->folder, journal->files[removed].first_sequence, "");
        if (disk->remove(disk->context, path.text) != 0)
            break;
        bytes -= journal->files[removed].bytes;
        removed++;
    }
    if (!removed)
        return;
    journal->num_files -= removed;
    memmove(journal->files, journal->files + removed, journal->num_files * sizeof *journal->files);
    /* If the disk loses the removals, the files return and do no harm. */
    disk->sync_folder(disk->context, journal->folder);
}
