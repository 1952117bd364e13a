/* Finds, checks, opens and reads the files of a journal; see journal.h. */
#include "journal.h"
#include "proto/arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

bool bag_journal_next_file(const struct bag_journal *journal,
                           const struct bag_journal_reader *reader, uint64_t through,
                           struct bag_journal_file *file)
{
    for (size_t i = 0; i < journal->num_files; i++) {
        *file = journal->files[i];
        bool is_read = file->first_sequence < reader->file.first_sequence ||
                       (file->first_sequence == reader->file.first_sequence &&
                        file->bytes <= reader->file.bytes);
        if (!is_read && file->end_sequence > through + 1)
            return true;
    }
    return false;
}

bool bag_journal_read_file(struct bag_journal_reader *reader, const struct bag_disk *disk,
                           const char *folder, const struct bag_journal_file *file,
                           struct bag_problem *problem)
{
    struct bag_journal_path path = bag_journal_path_of(folder, file->first_sequence, "");
    char *bytes = realloc(reader->bytes, file->bytes + 1);
    size_t header_bytes;
    if (!bytes)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "journal %s: no memory for %" PRIu64 " bytes", path.text,
                               file->bytes);
    reader->bytes = bytes;
    int opened, error = disk->open(disk->context, path.text, false, &opened);
    if (error)
        return bag_journal_reject(path.text, "it cannot be opened", error, problem);
    error = disk->read(disk->context, opened, bytes, file->bytes, 0);
    disk->close(disk->context, opened);
    if (error)
        return bag_journal_reject(path.text, "reading it failed", error, problem);
    if (!bag_journal_read_header(bytes, file->bytes, &reader->header, &header_bytes, problem))
        return bag_problem_prefix(problem, "journal %s", path.text);
    if (file->first_sequence != reader->file.first_sequence) {
        reader->at = header_bytes;
        reader->last_sequence = file->first_sequence - 1;
    }
    reader->file = *file;
    return true;
}

/* Sets *problem: the file is damaged at this byte. Returns false. */
static bool reject_damage(const char *folder, uint64_t first_sequence, size_t at,
                          struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "journal %s is damaged at byte %zu, in front of updates that were "
                           "acknowledged; restore it, or move the folder away to serve without "
                           "them",
                           bag_journal_path_of(folder, first_sequence, "").text, at);
}

bool bag_journal_next(struct bag_journal_reader *reader, const char *folder,
                      struct bag_journal_record *record, bool *damaged, struct bag_problem *problem)
{
    *damaged = false;
    if (reader->at >= reader->file.bytes || reader->last_sequence + 1 >= reader->file.end_sequence)
        return false;
    size_t bytes = bag_journal_read_record(reader->bytes, reader->file.bytes, reader->at,
                                           &reader->header, record);
    if (!bytes || !bag_journal_follows(record, reader->last_sequence)) {
        *damaged = true;
        return reject_damage(folder, reader->file.first_sequence, reader->at, problem);
    }
    reader->at += bytes;
    reader->first_sequence = reader->last_sequence + 1;
    reader->last_sequence = record->sequence;
    return record->sequence < reader->file.end_sequence;
}

void bag_journal_reader_free(struct bag_journal_reader *reader)
{
    free(reader->bytes);
    *reader = (struct bag_journal_reader){0};
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The state of listing the folder. */
struct listing {
    struct bag_journal *journal;
    bool no_memory;
};

/* Adds a file if its name is that of a journal file. Ignores other files. */
static void on_found(void *to, const char *name)
{
    struct listing *listing = to;
    struct bag_journal *journal = listing->journal;
    char *end;
    if (strlen(name) != BAG_JOURNAL_DIGITS + strlen(BAG_JOURNAL_SUFFIX) ||
        strspn(name, "0123456789") != BAG_JOURNAL_DIGITS ||
        strcmp(name + BAG_JOURNAL_DIGITS, BAG_JOURNAL_SUFFIX) != 0)
        return;
    if (!BAG_GROW(journal->files, journal->num_files)) {
        listing->no_memory = true;
        return;
    }
    journal->files[journal->num_files++] =
        (struct bag_journal_file){.first_sequence = strtoull(name, &end, 10)};
}

/* Orders files by their first updates. */
static int compare_files(const void *a, const void *b)
{
    const struct bag_journal_file *x = a, *y = b;
    return (x->first_sequence > y->first_sequence) - (x->first_sequence < y->first_sequence);
}

/* Lists the files in the journal's folder, oldest first. Only their first updates are known then.
 */
static bool list_files(struct bag_journal *journal, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct listing listing = {.journal = journal};
    int error = disk->list(disk->context, journal->folder, on_found, &listing);
    if (error)
        return bag_journal_reject(journal->folder, "the folder cannot be read", error, problem);
    if (listing.no_memory)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "journal %s: not enough memory",
                               journal->folder);
    if (journal->num_files)
        qsort(journal->files, journal->num_files, sizeof *journal->files, compare_files);
    return true;
}

bool bag_journal_check_part(const struct bag_journal_header *found,
                            const struct bag_journal_header *wanted, struct bag_problem *problem)
{
    static const char whole[] = "the whole table";
    const char *has = *found->part ? found->part : whole;
    const char *wants = *wanted->part ? wanted->part : whole;
    return strcmp(has, wants) == 0 ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "its updates are those of %s, and this is %s: what other parts got is "
                           "not in it; move it away, and load a table that includes all updates",
                           has, wants);
}

/* Checks that a file is of the model, the part and the rows of the journal. The type of the rows
 * may differ, because updates are converted. Returns false and sets *problem (FILE) if it does not
 * fit. */
static bool check_rows(const struct bag_journal_header *found,
                       const struct bag_journal_header *wanted, struct bag_problem *problem)
{
    if (!bag_journal_check_part(found, wanted, problem))
        return false;
    if (strcmp(found->name, wanted->name) == 0 && found->row_elements == wanted->row_elements &&
        found->keyed == wanted->keyed)
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "it is of model '%s', %s with rows of %" PRIu64 " elements; this is "
                           "model '%s', %s with rows of %" PRIu64 "; move it away",
                           found->name, found->keyed ? "keyed" : "dense", found->row_elements,
                           wanted->name, wanted->keyed ? "keyed" : "dense", wanted->row_elements);
}

/* Reads and checks the header in the first bytes of a file. */
static bool check_header(const struct bag_journal *journal, const struct bag_journal_file *file,
                         const char *bytes, size_t count, struct bag_journal_header *header,
                         size_t *header_bytes, struct bag_problem *problem)
{
    struct bag_journal_path path = bag_journal_path_of(journal->folder, file->first_sequence, "");
    if (bag_journal_read_header(bytes, count, header, header_bytes, problem) &&
        check_rows(header, &journal->header, problem)) {
        if (header->first_sequence == file->first_sequence)
            return true;
        bag_problem_set(problem, BAG_ERROR_FILE, "by its header it begins with update %" PRIu64,
                        header->first_sequence);
    }
    return bag_problem_prefix(problem, "journal %s", path.text);
}

/* Finds the end of the last file's records. `bytes` is the content of the file. */
static bool find_end(struct bag_journal *journal, const char *bytes, size_t count,
                     struct bag_problem *problem)
{
    struct bag_journal_file *file = bag_journal_last(journal);
    struct bag_journal_header header;
    struct bag_journal_record record;
    size_t at, taken;
    if (!check_header(journal, file, bytes, count, &header, &at, problem))
        return false;
    journal->file_header = header;
    journal->last_sequence = file->first_sequence - 1;
    journal->synced_bytes = at;
    while ((taken = bag_journal_read_record(bytes, count, at, &header, &record)) > 0) {
        if (!bag_journal_follows(&record, journal->last_sequence))
            return reject_damage(journal->folder, file->first_sequence, at, problem);
        journal->last_sequence = record.sequence;
        journal->synced_bytes = record.synced_bytes;
        at += taken;
    }
    file->bytes = at;
    journal->torn_bytes = count - at;
    return bag_journal_tail_is_torn(bytes, count, at, &header) ||
           reject_damage(journal->folder, file->first_sequence, at, problem);
}

/* Makes the records of the last file durable. `bytes` is the content of the file. If an fsync
 * failed and the process ended, records may be in the page cache only, so the unsynced ones are
 * written again. Returns 0 or an errno. */
static int save_last(struct bag_journal *journal, const char *bytes)
{
    const struct bag_disk *disk = journal->disk;
    const struct bag_journal_file *file = bag_journal_last(journal);
    uint64_t synced = journal->synced_bytes;
    int error = 0;
    if (journal->torn_bytes)
        error = disk->truncate(disk->context, journal->file, file->bytes);
    if (!error && synced < file->bytes)
        error =
            disk->write(disk->context, journal->file, bytes + synced, file->bytes - synced, synced);
    if (!error)
        error = disk->sync(disk->context, journal->file);
    journal->synced_bytes = file->bytes;
    journal->synced_sequence = journal->last_sequence;
    return error;
}

/* Opens the last file for writing, cuts off its incomplete record and makes it durable. */
static bool open_last(struct bag_journal *journal, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct bag_journal_file *file = bag_journal_last(journal);
    struct bag_journal_path path = bag_journal_path_of(journal->folder, file->first_sequence, "");
    uint64_t size = 0;
    int error = disk->open(disk->context, path.text, false, &journal->file);
    if (error)
        return bag_journal_reject(path.text, "it cannot be opened", error, problem);
    error = disk->size(disk->context, journal->file, &size);
    char *bytes = error ? NULL : malloc(size + 1);
    if (!error && !bytes)
        error = ENOMEM;
    if (!error)
        error = disk->read(disk->context, journal->file, bytes, size, 0);
    bool ok = error ? bag_journal_reject(path.text, "reading it failed", error, problem)
                    : find_end(journal, bytes, size, problem);
    if (ok)
        error = save_last(journal, bytes);
    free(bytes);
    return ok && (!error || bag_journal_reject(path.text, "it cannot be written", error, problem));
}

/* Checks the size and the header of a file that is not the last one. */
static bool check_file(const struct bag_journal *journal, struct bag_journal_file *file,
                       bool *empty, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct bag_journal_path path = bag_journal_path_of(journal->folder, file->first_sequence, "");
    struct bag_journal_header header;
    char bytes[BAG_JOURNAL_MAX_HEADER_BYTES];
    size_t header_bytes;
    int opened, error = disk->open(disk->context, path.text, false, &opened);
    if (error)
        return bag_journal_reject(path.text, "it cannot be opened", error, problem);
    error = disk->size(disk->context, opened, &file->bytes);
    size_t count = file->bytes < sizeof bytes ? (size_t)file->bytes : sizeof bytes;
    if (!error)
        error = disk->read(disk->context, opened, bytes, count, 0);
    disk->close(disk->context, opened);
    if (error)
        return bag_journal_reject(path.text, "reading it failed", error, problem);
    bool ok = check_header(journal, file, bytes, count, &header, &header_bytes, problem);
    *empty = ok && file->bytes == header_bytes;
    return ok;
}

/* Checks all files but the last one. Files without records are left over from failed attempts to
 * begin them, and do not end the file before them. */
static bool check_files(struct bag_journal *journal, struct bag_problem *problem)
{
    size_t kept = 0;
    for (size_t i = 0; i < journal->num_files; i++) {
        struct bag_journal_file file = journal->files[i];
        bool empty = false;
        if (i + 1 < journal->num_files && !check_file(journal, &file, &empty, problem))
            return false;
        if (!empty)
            journal->files[kept++] = file;
    }
    journal->num_files = kept;
    for (size_t i = 0; i < kept; i++)
        journal->files[i].end_sequence =
            i + 1 < kept ? journal->files[i + 1].first_sequence : UINT64_MAX;
    return true;
}

/* Opens the last file that has a record, or the first one if none has. The previous process may
 * have ended before it synced the folder, so the folder is synced first. */
static bool open_files(struct bag_journal *journal, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    int error = disk->sync_folder(disk->context, journal->folder);
    if (error)
        return bag_journal_reject(journal->folder, "the folder cannot be synced", error, problem);
    if (!check_files(journal, problem) || !open_last(journal, problem))
        return false;
    while (journal->num_files > 1 &&
           journal->last_sequence < bag_journal_last(journal)->first_sequence) {
        struct bag_journal_path path =
            bag_journal_path_of(journal->folder, bag_journal_last(journal)->first_sequence, "");
        disk->close(disk->context, journal->file);
        journal->file = -1;
        error = disk->remove(disk->context, path.text);
        if (!error)
            error = disk->sync_folder(disk->context, journal->folder);
        if (error)
            return bag_journal_reject(path.text, "it cannot be removed", error, problem);
        journal->num_files--;
        bag_journal_last(journal)->end_sequence = UINT64_MAX;
        if (!open_last(journal, problem))
            return false;
    }
    return true;
}

/* Returns the folder that contains `dir`. */
static struct bag_journal_path parent_of(const char *dir)
{
    struct bag_journal_path path;
    size_t bytes = strlen(dir);
    while (bytes > 1 && dir[bytes - 1] == '/')
        bytes--;
    while (bytes > 0 && dir[bytes - 1] != '/')
        bytes--;
    if (bytes == 0)
        return (struct bag_journal_path){"."};
    snprintf(path.text, sizeof path.text, "%.*s", (int)(bytes > 1 ? bytes - 1 : 1), dir);
    return path;
}

/* Makes the folder of all journals and that of this one, and syncs the folders that contain them,
 * so that both survive a crash. */
static bool make_folders(struct bag_journal *journal, const char *dir, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    int error = disk->make_folder(disk->context, dir);
    if (!error)
        error = disk->make_folder(disk->context, journal->folder);
    if (!error)
        error = disk->sync_folder(disk->context, dir);
    if (!error)
        error = disk->sync_folder(disk->context, parent_of(dir).text);
    return !error ||
           bag_journal_reject(journal->folder, "the folder cannot be made", error, problem);
}

/* Locks the folder. Two servers would overwrite each other's records. */
static bool lock_folder(struct bag_journal *journal, struct bag_problem *problem)
{
    int error = journal->disk->lock(journal->disk->context, journal->folder, &journal->lock);
    if (error != EWOULDBLOCK)
        return !error ||
               bag_journal_reject(journal->folder, "the folder cannot be locked", error, problem);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "journal %s: another server uses it; each needs a journal_dir of its "
                           "own, or the other one must end first",
                           journal->folder);
}

bool bag_journal_open(struct bag_journal *journal, const struct bag_disk *disk, const char *dir,
                      const struct bag_journal_header *header, struct bag_problem *problem)
{
    *journal = (struct bag_journal){.state = BAG_JOURNAL_OPENING,
                                    .disk = disk,
                                    .header = *header,
                                    .file_bytes = BAG_JOURNAL_FILE_BYTES,
                                    .lock = -1,
                                    .file = -1};
    int length = snprintf(journal->folder, sizeof journal->folder, "%s/%s", dir, header->name);
    if (length < 0 || (size_t)length >= sizeof journal->folder)
        return bag_problem_set(problem, BAG_ERROR_FILE, "journal_dir: the path is too long");
    if (!make_folders(journal, dir, problem) || !lock_folder(journal, problem) ||
        !list_files(journal, problem) || (journal->num_files && !open_files(journal, problem)))
        return false;
    journal->state = journal->num_files ? BAG_JOURNAL_APPENDING : BAG_JOURNAL_BEGINNING;
    return true;
}
