/* Files of row updates; see updates.h. */
#include "updates.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_DIGITS 20
#define SUFFIX      ".journal"
#define NEW_SUFFIX  ".new"

struct path {
    char text[BAG_JOURNAL_PATH_BYTES + NAME_DIGITS + sizeof SUFFIX + sizeof NEW_SUFFIX];
};

static struct path path_of(const char *folder, uint64_t first_sequence, const char *more)
{
    struct path path;
    snprintf(path.text, sizeof path.text, "%s/%0*" PRIu64 SUFFIX "%s", folder, NAME_DIGITS,
             first_sequence, more);
    return path;
}

static bool reject_file(const char *path, const char *what, int error, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE, "journal %s: %s: %s", path, what,
                           strerror(error));
}

static bool reject_storage(const struct bag_journal *journal, const char *what, int error,
                           struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_STORAGE, "the journal in %s: %s: %s", journal->folder,
                           what, strerror(error));
}

static struct bag_journal_file *last_of(const struct bag_journal *journal)
{
    return &journal->files[journal->num_files - 1];
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_bytes(const struct bag_disk *disk, const char *path, size_t bytes, void *out,
                       struct bag_problem *problem)
{
    int file, error = disk->open(disk->context, path, false, &file);
    if (error)
        return reject_file(path, "it cannot be opened", error, problem);
    error = disk->read(disk->context, file, out, bytes, 0);
    disk->close(disk->context, file);
    return !error || reject_file(path, "reading it failed", error, problem);
}

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
    struct path path = path_of(folder, file->first_sequence, "");
    char *bytes = realloc(reader->bytes, file->bytes + 1);
    size_t header_bytes;
    if (!bytes)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "journal %s: no memory for %" PRIu64 " bytes", path.text,
                               file->bytes);
    reader->bytes = bytes;
    if (!read_bytes(disk, path.text, file->bytes, bytes, problem))
        return false;
    if (!bag_journal_read_header(bytes, file->bytes, &reader->header, &header_bytes, problem)) {
        bag_problem_prefix(problem, "journal %s", path.text);
        return false;
    }
    if (file->first_sequence != reader->file.first_sequence) {
        reader->at = header_bytes;
        reader->last_sequence = file->first_sequence - 1;
    }
    reader->file = *file;
    return true;
}

bool bag_journal_next(struct bag_journal_reader *reader, const char *folder,
                      struct bag_journal_record *record, bool *damaged, struct bag_problem *problem)
{
    *damaged = false;
    if (reader->at >= reader->file.bytes || reader->last_sequence + 1 >= reader->file.end_sequence)
        return false;
    size_t bytes = bag_journal_read_record(reader->bytes, reader->file.bytes, reader->at,
                                           reader->header.row_bytes, record);
    if (!bytes) {
        *damaged = true;
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "journal %s is damaged at byte %zu, in front of updates that were "
                               "acknowledged; restore it, or move the folder away to serve without "
                               "them",
                               path_of(folder, reader->file.first_sequence, "").text, reader->at);
    }
    reader->at += bytes;
    reader->last_sequence = record->sequence;
    return record->sequence < reader->file.end_sequence;
}

void bag_journal_reader_free(struct bag_journal_reader *reader)
{
    free(reader->bytes);
    *reader = (struct bag_journal_reader){0};
}

/* ---- opening --------------------------------------------------------------------------------- */

/* What is in the folder, while it is listed. */
struct listing {
    struct bag_journal *journal;
    bool no_memory;
};

/* Takes the name of a journal's file; others are left alone. */
static void on_found(void *to, const char *name)
{
    struct listing *listing = to;
    struct bag_journal *journal = listing->journal;
    char *end;
    if (strlen(name) != NAME_DIGITS + strlen(SUFFIX) || strspn(name, "0123456789") != NAME_DIGITS ||
        strcmp(name + NAME_DIGITS, SUFFIX) != 0)
        return;
    struct bag_journal_file *files =
        realloc(journal->files, (journal->num_files + 1) * sizeof *files);
    listing->no_memory |= !files;
    if (!files)
        return;
    journal->files = files;
    files[journal->num_files++] =
        (struct bag_journal_file){.first_sequence = strtoull(name, &end, 10)};
}

static int compare_files(const void *a, const void *b)
{
    const struct bag_journal_file *x = a, *y = b;
    return (x->first_sequence > y->first_sequence) - (x->first_sequence < y->first_sequence);
}

static bool list_files(struct bag_journal *journal, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct listing listing = {.journal = journal};
    int error = disk->list(disk->context, journal->folder, on_found, &listing);
    if (error)
        return reject_file(journal->folder, "the folder cannot be read", error, problem);
    if (listing.no_memory)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "journal %s: not enough memory",
                               journal->folder);
    if (journal->num_files)
        qsort(journal->files, journal->num_files, sizeof *journal->files, compare_files);
    return true;
}

static bool check_rows(const struct bag_journal_header *found,
                       const struct bag_journal_header *wanted, struct bag_problem *problem)
{
    if (strcmp(found->name, wanted->name) == 0 && found->row_elements == wanted->row_elements &&
        found->keyed == wanted->keyed)
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "it is of model '%s', %s with rows of %" PRIu64 " elements; this is "
                           "model '%s', %s with rows of %" PRIu64 "; move it away",
                           found->name, found->keyed ? "keyed" : "dense", found->row_elements,
                           wanted->name, wanted->keyed ? "keyed" : "dense", wanted->row_elements);
}

/* Reads the header of a file whose first bytes are here. */
static bool check_header(const struct bag_journal *journal, const struct bag_journal_file *file,
                         const char *bytes, size_t count, struct bag_journal_header *header,
                         size_t *header_bytes, struct bag_problem *problem)
{
    struct path path = path_of(journal->folder, file->first_sequence, "");
    if (bag_journal_read_header(bytes, count, header, header_bytes, problem) &&
        check_rows(header, &journal->header, problem)) {
        if (header->first_sequence == file->first_sequence)
            return true;
        bag_problem_set(problem, BAG_ERROR_FILE, "by its header it begins with update %" PRIu64,
                        header->first_sequence);
    }
    bag_problem_prefix(problem, "journal %s", path.text);
    return false;
}

static bool same_rows(const struct bag_journal_header *a, const struct bag_journal_header *b)
{
    return a->dtype == b->dtype && a->row_format == b->row_format && a->row_bytes == b->row_bytes;
}

/* Finds where the records of the last file, whose bytes are here, end. */
static bool find_end(struct bag_journal *journal, const char *bytes, size_t count,
                     struct bag_problem *problem)
{
    struct bag_journal_file *file = last_of(journal);
    struct bag_journal_header header;
    struct bag_journal_record record;
    size_t at, taken;
    if (!check_header(journal, file, bytes, count, &header, &at, problem))
        return false;
    journal->other_rows = !same_rows(&header, &journal->header);
    journal->last_sequence = file->first_sequence - 1;
    while ((taken = bag_journal_read_record(bytes, count, at, header.row_bytes, &record)) > 0) {
        journal->last_sequence = record.sequence;
        at += taken;
    }
    file->bytes = at;
    journal->torn_bytes = count - at;
    return bag_journal_tail_is_torn(bytes, count, at, header.row_bytes) ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "journal %s is damaged at byte %zu, in front of updates that were "
                           "acknowledged; restore it, or move the folder away to serve without "
                           "them",
                           path_of(journal->folder, file->first_sequence, "").text, at);
}

/* Opens the last file for writing, without its torn tail; all of it is on the disk then. */
static bool open_last(struct bag_journal *journal, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct bag_journal_file *file = last_of(journal);
    struct path path = path_of(journal->folder, file->first_sequence, "");
    uint64_t size = 0;
    int error = disk->open(disk->context, path.text, false, &journal->file);
    if (error)
        return reject_file(path.text, "it cannot be opened", error, problem);
    error = disk->size(disk->context, journal->file, &size);
    char *bytes = error ? NULL : malloc(size + 1);
    if (!error && !bytes)
        error = ENOMEM;
    if (!error)
        error = disk->read(disk->context, journal->file, bytes, size, 0);
    bool ok = error ? reject_file(path.text, "reading it failed", error, problem)
                    : find_end(journal, bytes, size, problem);
    free(bytes);
    if (ok && journal->torn_bytes)
        error = disk->truncate(disk->context, journal->file, file->bytes);
    if (ok && !error)
        error = disk->sync(disk->context, journal->file);
    if (ok && error)
        ok = reject_file(path.text, "it cannot be written", error, problem);
    journal->synced_bytes = file->bytes;
    journal->synced_sequence = journal->last_sequence;
    return ok;
}

/* Of a file that is not the last one: its size, and that its header fits. */
static bool check_file(const struct bag_journal *journal, struct bag_journal_file *file,
                       bool *empty, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct path path = path_of(journal->folder, file->first_sequence, "");
    struct bag_journal_header header;
    char bytes[BAG_JOURNAL_MAX_HEADER_BYTES];
    size_t header_bytes;
    int opened, error = disk->open(disk->context, path.text, false, &opened);
    if (error)
        return reject_file(path.text, "it cannot be opened", error, problem);
    error = disk->size(disk->context, opened, &file->bytes);
    size_t count = file->bytes < sizeof bytes ? (size_t)file->bytes : sizeof bytes;
    if (!error)
        error = disk->read(disk->context, opened, bytes, count, 0);
    disk->close(disk->context, opened);
    if (error)
        return reject_file(path.text, "reading it failed", error, problem);
    bool ok = check_header(journal, file, bytes, count, &header, &header_bytes, problem);
    *empty = ok && file->bytes == header_bytes;
    return ok;
}

/* Checks all files but the last one. Those without records are of attempts to begin one: they do
 * not end the file before them. */
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

/* Opens the last file with a record, or else the first one. */
static bool open_files(struct bag_journal *journal, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    if (!check_files(journal, problem) || !open_last(journal, problem))
        return false;
    while (journal->num_files > 1 && journal->last_sequence < last_of(journal)->first_sequence) {
        struct path path = path_of(journal->folder, last_of(journal)->first_sequence, "");
        disk->close(disk->context, journal->file);
        journal->file = -1;
        int error = disk->remove(disk->context, path.text);
        if (!error)
            error = disk->sync_folder(disk->context, journal->folder);
        if (error)
            return reject_file(path.text, "it cannot be removed", error, problem);
        journal->num_files--;
        last_of(journal)->end_sequence = UINT64_MAX;
        if (!open_last(journal, problem))
            return false;
    }
    return true;
}

/* The folder that the name of `dir` is in. */
static struct path parent_of(const char *dir)
{
    struct path path;
    size_t bytes = strlen(dir);
    while (bytes > 1 && dir[bytes - 1] == '/')
        bytes--;
    while (bytes > 0 && dir[bytes - 1] != '/')
        bytes--;
    if (bytes == 0)
        return (struct path){"."};
    snprintf(path.text, sizeof path.text, "%.*s", (int)(bytes > 1 ? bytes - 1 : 1), dir);
    return path;
}

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
    return !error || reject_file(journal->folder, "the folder cannot be made", error, problem);
}

/* Two servers would write over each other's records. */
static bool lock_folder(struct bag_journal *journal, struct bag_problem *problem)
{
    int error = journal->disk->lock(journal->disk->context, journal->folder, &journal->lock);
    if (error != EWOULDBLOCK)
        return !error ||
               reject_file(journal->folder, "the folder cannot be locked", error, problem);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "journal %s: another server uses it; each needs a journal_dir of its "
                           "own, or the other one must end first",
                           journal->folder);
}

bool bag_journal_open(struct bag_journal *journal, const struct bag_disk *disk, const char *dir,
                      const struct bag_journal_header *header, struct bag_problem *problem)
{
    *journal = (struct bag_journal){.disk = disk,
                                    .header = *header,
                                    .file_bytes = BAG_JOURNAL_FILE_BYTES,
                                    .lock = -1,
                                    .file = -1};
    int length = snprintf(journal->folder, sizeof journal->folder, "%s/%s", dir, header->name);
    if (length < 0 || (size_t)length >= sizeof journal->folder)
        return bag_problem_set(problem, BAG_ERROR_FILE, "journal_dir: the path is too long");
    if (!make_folders(journal, dir, problem) || !lock_folder(journal, problem) ||
        !list_files(journal, problem))
        return false;
    return journal->num_files == 0 || open_files(journal, problem);
}

void bag_journal_close(struct bag_journal *journal)
{
    if (journal->folder[0] && journal->file >= 0)
        journal->disk->close(journal->disk->context, journal->file);
    if (journal->folder[0] && journal->lock >= 0)
        journal->disk->close(journal->disk->context, journal->lock);
    free(journal->files);
    free(journal->buffer);
    *journal = (struct bag_journal){.lock = -1, .file = -1};
}

uint64_t bag_journal_bytes(const struct bag_journal *journal)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < journal->num_files; i++)
        bytes += journal->files[i].bytes;
    return bytes;
}

/* ---- writing --------------------------------------------------------------------------------- */

bool bag_journal_sync(struct bag_journal *journal, bool takes_back, struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    if (!bag_journal_is_dirty(journal))
        return true;
    int error = journal->sync_failed ? EIO : disk->sync(disk->context, journal->file);
    if (!error) {
        journal->synced_bytes = last_of(journal)->bytes;
        journal->synced_sequence = journal->last_sequence;
        return true;
    }
    journal->failed = journal->sync_failed = true;
    if (takes_back) {
        last_of(journal)->bytes = journal->synced_bytes;
        journal->last_sequence = journal->synced_sequence;
    }
    return reject_storage(journal, "fsync failed", error, problem);
}

/* A file that is being begun: a header, and what the last file could not keep. */
struct new_file {
    uint64_t first_sequence, last_sequence;
    char *bytes;
    size_t count;
};

/* What the new file holds; 0 or an errno. new_file->bytes is to be freed. */
static int fill_new_file(struct bag_journal *journal, uint64_t sequence, struct new_file *new_file)
{
    const struct bag_disk *disk = journal->disk;
    size_t rest = bag_journal_is_dirty(journal)
                      ? (size_t)(last_of(journal)->bytes - journal->synced_bytes)
                      : 0;
    new_file->first_sequence = rest ? journal->synced_sequence + 1 : sequence;
    new_file->last_sequence = rest ? journal->last_sequence : sequence - 1;
    new_file->bytes = malloc(BAG_JOURNAL_MAX_HEADER_BYTES + rest);
    if (!new_file->bytes)
        return ENOMEM;
    if (rest && journal->other_rows)
        return EIO; /* rows of two kinds do not go into one file */
    journal->header.first_sequence = new_file->first_sequence;
    new_file->count = bag_journal_write_header(&journal->header, new_file->bytes);
    int error = rest ? disk->read(disk->context, journal->file, new_file->bytes + new_file->count,
                                  rest, journal->synced_bytes)
                     : 0;
    new_file->count += rest;
    return error;
}

/* Writes it under a name that is not read, and then gives it its own; 0 or an errno. */
static int write_new_file(struct bag_journal *journal, const struct new_file *new_file, int *file)
{
    const struct bag_disk *disk = journal->disk;
    struct path path = path_of(journal->folder, new_file->first_sequence, "");
    struct path new_path = path_of(journal->folder, new_file->first_sequence, NEW_SUFFIX);
    disk->remove(disk->context, new_path.text); /* of an attempt that was cut off */
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

/* The room for one more file is there. */
static void add_file(struct bag_journal *journal, const struct new_file *new_file, int file)
{
    const struct bag_disk *disk = journal->disk;
    uint64_t first_sequence = new_file->first_sequence;
    bool replaces = journal->num_files && last_of(journal)->first_sequence == first_sequence;
    if (journal->num_files && !replaces) {
        last_of(journal)->end_sequence = first_sequence;
        last_of(journal)->bytes = journal->synced_bytes;
        /* Where this is lost, nobody reads what is there. */
        if (journal->failed)
            disk->truncate(disk->context, journal->file, journal->synced_bytes);
    }
    journal->num_files += !replaces;
    *last_of(journal) = (struct bag_journal_file){
        .first_sequence = first_sequence, .end_sequence = UINT64_MAX, .bytes = new_file->count};
    if (journal->file >= 0)
        disk->close(disk->context, journal->file);
    journal->file = file;
    journal->begins = journal->other_rows = journal->failed = journal->sync_failed = false;
    journal->last_sequence = journal->synced_sequence = new_file->last_sequence;
    journal->synced_bytes = new_file->count;
}

static bool begin_file(struct bag_journal *journal, uint64_t sequence, struct bag_problem *problem)
{
    struct new_file new_file = {.count = 0};
    int file = -1;
    if (!journal->sync_failed && !bag_journal_sync(journal, false, problem))
        return false;
    struct bag_journal_file *files =
        realloc(journal->files, (journal->num_files + 1) * sizeof *files);
    if (!files)
        return reject_storage(journal, "a file cannot be begun", ENOMEM, problem);
    journal->files = files;
    int error = fill_new_file(journal, sequence, &new_file);
    if (!error)
        error = write_new_file(journal, &new_file, &file);
    if (!error)
        add_file(journal, &new_file, file);
    free(new_file.bytes);
    return !error || reject_storage(journal, "a file cannot be begun", error, problem);
}

static bool begins_file(const struct bag_journal *journal, uint64_t sequence)
{
    return journal->file < 0 || journal->begins || journal->other_rows || journal->failed ||
           last_of(journal)->bytes >= journal->file_bytes || sequence != journal->last_sequence + 1;
}

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
                        struct bag_problem *problem)
{
    const struct bag_disk *disk = journal->disk;
    struct bag_journal_record written = *record;
    size_t bytes = bag_journal_record_bytes(record, journal->header.row_bytes);
    if (!reserve(journal, bytes, problem))
        return false;
    if (begins_file(journal, record->sequence) && !begin_file(journal, record->sequence, problem))
        return false;
    struct bag_journal_file *file = last_of(journal);
    written.synced_bytes = journal->synced_bytes;
    bag_journal_write_record(&written, journal->header.row_bytes, journal->buffer);
    int error = disk->write(disk->context, journal->file, journal->buffer, bytes, file->bytes);
    if (error) {
        /* A part of it may be there: without it the next record can follow. */
        journal->failed |= disk->truncate(disk->context, journal->file, file->bytes) != 0;
        return reject_storage(journal, "the update cannot be written", error, problem);
    }
    file->bytes += bytes;
    journal->last_sequence = record->sequence;
    return true;
}

void bag_journal_remove(struct bag_journal *journal, uint64_t through)
{
    const struct bag_disk *disk = journal->disk;
    size_t removed = 0;
    while (removed + 1 < journal->num_files &&
           journal->files[removed].end_sequence <= through + 1) {
        struct path path = path_of(journal->folder, journal->files[removed].first_sequence, "");
        if (disk->remove(disk->context, path.text) != 0)
            break;
        removed++;
    }
    if (!removed)
        return;
    journal->num_files -= removed;
    memmove(journal->files, journal->files + removed, journal->num_files * sizeof *journal->files);
    /* Where this is lost they are there again, and harmless. */
    disk->sync_folder(disk->context, journal->folder);
}
