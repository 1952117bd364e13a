/* Row updates: numbered batches of changed rows, which are applied to loaded tables and kept in a
 * journal.
 *
 * All updates of one model name form a stream. They are numbered from 1 without gaps. The file of a
 * table includes the updates up to some number. When the table is loaded and attached to the
 * stream, the later updates are applied to it, first from delta folders and the journal. From then
 * on the table gets every new update. An older version that is still loaded gets them too, so that
 * it can be served again.
 *
 * The files of this folder:
 *
 *   threads.c                  the streams, and the threads that process them
 *   updates.c                  numbers, writes, syncs and applies the updates of a stream
 *   attach.c                   brings a loaded table up to date and adds it to its stream
 *   deltas.c                   updates that a trainer puts into folders beside the table
 *   journal.h, journal*.c      the files of a stream's journal
 *   kept.c                     updates that are kept in memory if there is no journal
 *
 * The life of an update. A request, the consumer of a feed or a delta folder makes a batch of rows
 * in the format of one loaded table (server/tables/rows_batch.h). bag_updates_submit() adds the
 * update to the waiting ones of its stream and queues the stream for a thread. The thread takes all
 * waiting updates of the stream as a group. It numbers and checks each and writes it to the
 * journal, syncs the journal once for all of them (with journal_sync always), and applies them to
 * every attached table. At last it calls `done` for each, and the update is acknowledged. A delta
 * takes the same steps at once, on the thread that found it. The journal keeps an update until no
 * loaded table, and no version that may be loaded later, needs it.
 *
 * An update that cannot be written to the journal is rejected and never applied: a restart would
 * lose what clients have seen. An update that adds or removes keys ends its group, because the
 * checks of the next one depend on the keys.
 *
 * A stream is processed by one of BAG_UPDATES_THREADS threads at a time, in the order in which its
 * updates arrived. A slow journal therefore delays only its own model. The thread that changes
 * tables (the reconciler of server/models) creates streams and attaches and detaches tables. It
 * reads most of the journal without the stream's lock, so that updates go on while a table is
 * loaded. The lock of a stream is taken before that of all streams and before that of a table. */
#pragma once

#include "config/options.h"
#include "journal.h"
#include "server/system/monitor.h"
#include "server/tables/live_rows.h"

#include <stdatomic.h>
#include <sys/queue.h>

/* The settings of all streams, from the configuration. Pointers are borrowed. */
struct bag_updates_settings {
    const char *journal_dir; /* NULL: updates have no journals */
    enum bag_journal_sync sync;
    uint64_t sync_interval_ms;
    const struct bag_disk *disk;
    uint64_t journal_file_bytes; /* size from which a file is followed by a new one */
    uint64_t journal_kept_bytes; /* maximum size of the files that are kept for versions that are
                                    not loaded */
    size_t kept_bytes;           /* maximum memory of updates that are kept without a journal */
    const char *ready_file; /* name of the file that marks a complete delta folder; NULL: none */
};

/* The state of a stream. */
enum bag_stream_state {
    BAG_STREAM_NEW, /* no table was attached yet; the journal, if there is to be one, is not open */
    BAG_STREAM_SHUT,   /* as NEW, because the journal's folder could not be made or locked; usually
                          another process uses it */
    BAG_STREAM_OPEN,   /* updates are taken and applied to the attached tables */
    BAG_STREAM_STOPPED /* updates are rejected with `problem`, because an update in the journal
                          could not be applied */
};

/* Where a stream is in the queue of the update threads. */
enum bag_stream_turn {
    BAG_STREAM_IDLE,   /* no updates wait */
    BAG_STREAM_READY,  /* in the list of streams that wait for a thread */
    BAG_STREAM_RUNNING /* a thread works on the stream, and looks for new updates afterwards */
};

/* The updates of one model name. Any thread that holds a snapshot with a model of this name may
 * read the atomic members at any time. */
struct bag_updates_stream {
    char name[BAG_JOURNAL_NAME_BYTES]; /* must be the first member: streams are found by name */
    _Atomic uint64_t sequence;         /* last update that was applied */
    _Atomic uint64_t applied, ignored, rejected, rows;
    _Atomic uint64_t left_out; /* rows of other parts of the table, which were ignored */
    _Atomic uint64_t lag; /* how far the largest update number received is ahead of `sequence` */
    _Atomic uint64_t
        last_update_ms; /* time of the last update in ms since 1970; 0: none since the start */
    _Atomic uint64_t journal_bytes, syncs, sync_ns, journal_errors;
    _Atomic uint64_t kept_bytes;             /* bytes of the updates that are kept in memory */
    _Atomic uint64_t deltas, deltas_waiting; /* delta folders that were applied, and that wait */

    /* Constant after the stream was created: */
    struct bag_updates *updates;
    struct bag_updates_stream *next;

    /* Guarded by updates->queue: */
    STAILQ_HEAD(, bag_update) waiting;
    bool waits_for_sync;
    enum bag_stream_turn turn;
    STAILQ_ENTRY(bag_updates_stream) next_ready;

    /* Guarded by the lock of all streams, which is taken after the stream's own: */
    struct bag_kept_update *first_kept, *last_kept; /* owned; ascending */
    uint64_t forgotten; /* last update that was taken and is no longer kept; 0: none */

    pthread_mutex_t lock; /* guards the members below */
    enum bag_stream_state state;
    SLIST_HEAD(, bag_live_rows) tables; /* attached tables */
    struct bag_journal journal;
    uint64_t oldest_through; /* updates after this one are kept for versions that are not loaded */
    uint64_t taken;          /* last update that was numbered; it may not be applied yet */
    bool waits_for_keys;     /* a numbered update that is not applied yet adds or removes keys */
    struct bag_problem problem; /* reason why the stream stopped, or of the last failed sync */
};

/* The number of update threads: this many slow journals may delay the others. */
#define BAG_UPDATES_THREADS 4

/* All streams of a server and the threads that process them. */
struct bag_updates {
    struct bag_updates_settings settings;
    pthread_t threads[BAG_UPDATES_THREADS];
    size_t num_threads;

    pthread_mutex_t lock;               /* guards the members below */
    struct bag_updates_stream *streams; /* owned; newest first; streams are never removed */
    size_t kept_bytes;                  /* bytes kept by all streams */

    void *by_name; /* tree of the streams for tsearch(3); used only by the thread that changes
                      tables */

    struct bag_monitor queue;                /* guards the members below */
    STAILQ_HEAD(, bag_updates_stream) ready; /* streams whose turn is READY */
    uint64_t next_sync_ns; /* time of the next sync of all journals; UINT64_MAX: never */
    bool stop;
};

/* One update: a batch of rows for a model. The update and its borrowed data must live until `done`
 * is called. */
struct bag_update {
    struct bag_live_rows *live;  /* table that the update was sent to */
    struct bag_rows_batch batch; /* rows in the format of that table */
    uint64_t first_sequence; /* first update of a range that this one replaces; 0: it is a single
                                update. A range may begin with updates that were applied before; its
                                batch holds the state after the whole range */
    void (*done)(struct bag_update *update); /* called by bag_updates_run(), on its thread */

    /* In and out: the update's number; 0: use the next one. */
    uint64_t sequence;
    uint64_t first; /* out: first number of the range that was not used before */

    /* The outcome: */
    /* `problem` is set if `failed`:
     *
     *   CONFLICT     the number does not follow the last one, or the version takes no updates
     *   BAD_REQUEST  an id is wrong
     *   STORAGE      the journal or the table is full, or the disk fails
     *   NO_MEMORY    there is not enough memory */
    bool failed;
    bool applied; /* the update was applied now, not by an earlier attempt */
    struct bag_problem problem;

    STAILQ_ENTRY(bag_update) next;
};

/* Initialises a set without streams. Returns false if there is not enough memory. */
bool bag_updates_init(struct bag_updates *updates, const struct bag_updates_settings *settings);

/* Closes all journals. All tables must be detached. */
void bag_updates_free(struct bag_updates *updates);

/* Start and stop the threads that process updates. Stopping first applies all waiting updates and
 * syncs all journals. */
bool bag_updates_start(struct bag_updates *updates, struct bag_problem *problem);
void bag_updates_stop(struct bag_updates *updates);

/* Submits an update, whose `live` must be attached until `done` is called. May be called on any
 * thread; returns without waiting. */
void bag_updates_submit(struct bag_update *update);

/* Processes an update of a stream and those that follow it in a list, and calls their `done`.
 * Called on an update thread or, for deltas, on the thread that changes tables. */
void bag_updates_run(struct bag_update *first);

/* Syncs all journals that have unsynced records. */
void bag_updates_sync(struct bag_updates *updates);

/* Returns whether no table of the model can be attached, because the folder of its journal could
 * not be made or locked at the last attempt. Usually another process uses it. Only the thread that
 * changes tables may call it. */
bool bag_updates_is_shut(struct bag_updates *updates, const char *name);

/* A table that was loaded and is not served yet. */
struct bag_updates_table {
    const char *name;                /* name of its model */
    uint64_t version;                /* version of its model */
    struct bag_table_memory *memory; /* rows of the table; must not move */
    struct bag_live_reader *reader;  /* reader of its model, which pools the table; NULL: none */
    int64_t kept_rows;               /* rows that readers need, see bag_live_rows_make */
    uint64_t through;                /* last update that its file includes */
    uint64_t oldest_through;         /* smallest such number of all versions that may be loaded */
    const char *deltas;              /* folder of delta folders, which may be absent; NULL: none */
};

/* Makes the table's rows live and applies the updates of the journal, or those in memory if there
 * is no journal. bag_updates_take_deltas applies the deltas that follow. A table that is mapped
 * from its file is left unchanged and takes no updates, so it must not lack any. Logs each file of
 * the journal that was read.
 *
 * Returns false, leaves memory->live NULL and sets *problem if the table cannot be attached.
 * *problem is FILE if the journal is unreadable, damaged, for other rows or used by another
 * process, or if an update is missing or cannot be applied. Otherwise it is NO_MEMORY, and the same
 * call may succeed later. */
bool bag_updates_attach(struct bag_updates *updates, const struct bag_updates_table *table,
                        struct bag_problem *problem);

/* Registers a reader of an attached table. Returns false and sets *problem (CONFLICT) if a row that
 * replaces missing keys for the reader was given to another key. After success, updates cannot
 * remove the reader's default key any more, and the caller must check whether the table has it.
 *
 * bag_updates_leave() removes a reader and does nothing if it is not registered. */
bool bag_updates_enter(struct bag_live_rows *live, struct bag_live_reader *reader,
                       struct bag_problem *problem);
void bag_updates_leave(struct bag_live_reader *reader);

/* Makes an attached table reject updates that are sent to it; `closed_by` (static) is what has
 * taken its place, and NULL makes it take updates again. It still gets the updates of other
 * versions. Updates that are being processed finish before. Does nothing if the rows are not live.
 */
void bag_updates_close(struct bag_live_rows *live, const char *closed_by);

/* Returns false if the table's file includes later updates than the stream has applied. Deltas
 * after them must wait until the table is served. Returns true for NULL, a mapped table. */
bool bag_updates_is_next(const struct bag_live_rows *live);

/* Returns whether the table lacks an update that other tables took. Serving such a table would
 * return old rows. Only the thread that changes tables may call it. */
bool bag_updates_lacks(struct bag_updates *updates, const struct bag_updates_table *table);

/* Applies the updates in folders table->deltas/NUMBER that follow the last update of the table's
 * model, to all its versions. With `polls`, a folder is only used if it is unchanged since the last
 * call or its ready_file exists. A missing or wrong delta is logged, shown in the metrics and tried
 * again in the next call.
 *
 * Returns false and sets *problem if the next delta exists and cannot be applied. *problem is FILE
 * if its files are wrong, or otherwise as for an update (see struct bag_update). Only the thread
 * that changes tables may call it, for an attached table. */
bool bag_updates_take_deltas(struct bag_updates *updates, const struct bag_updates_table *table,
                             bool polls, struct bag_problem *problem);

/* Detaches a table from its stream. Called by bag_table_unload. */
void bag_updates_detach(struct bag_live_rows *live);

/* ---- for the files of this folder ------------------------------------------------------------ */

/* Applies update `sequence`, whose rows are in the format of `from`, to one table. Returns false
 * and sets *problem if that fails. *problem is FILE if the table cannot store the rows or does not
 * have them, STORAGE if there is no spare row for a new key, or NO_MEMORY. */
bool bag_updates_apply(struct bag_live_rows *live, uint64_t sequence, const struct bag_table *from,
                       const struct bag_rows_batch *batch, struct bag_problem *problem);

/* Sets the last update to `through`, and lets a stopped stream take updates again. No update may be
 * waiting to be applied. The caller holds the stream's lock. */
void bag_updates_go_on(struct bag_updates_stream *stream, uint64_t through);

/* Returns the number that the table's next update follows. This is the table's own last update if
 * the table has all updates that were taken, and otherwise the stream's. They differ if the file of
 * this version, or of the one that was served before, includes updates that were never taken here.
 * The caller holds the stream's lock. */
uint64_t bag_updates_last_before(const struct bag_live_rows *live);

/* Removes the journal files that neither the attached tables, if they were loaded again, nor the
 * versions that may be loaded later need. Files that only the latter need are removed, too, if all
 * files exceed journal_kept_bytes. Does nothing if no table is attached. The caller holds the
 * stream's lock. */
void bag_updates_remove_files(struct bag_updates_stream *stream);

/* An update that is kept in memory because there is no journal. Versions that are loaded later need
 * it. */
struct bag_kept_update {
    struct bag_kept_update *next;
    size_t holders; /* number of references: the stream's, and one for each table that is being
                       brought up to date */
    uint64_t first, sequence;
    size_t bytes;                /* size of the whole allocation */
    bool has_keys;               /* the ids are keys */
    struct bag_table from;       /* format of the rows */
    struct bag_rows_batch batch; /* ids, positions and rows; stored after this struct */
};

/* Keeps an applied update in memory if there is no journal. Evicts the oldest updates if there are
 * too many. The caller holds the stream's lock. */
void bag_updates_keep(struct bag_updates_stream *stream, const struct bag_update *update);

/* Releases `kept`, unless it is NULL, and returns the next kept update after `through`, with a
 * reference for the caller. Sets *first to its first number. Returns NULL if there is none, and
 * sets *first to the number after the last update that was evicted: a table that lacks an earlier
 * one needs deltas. Takes the lock of all streams only for the search. */
struct bag_kept_update *bag_updates_next_kept(struct bag_updates_stream *stream,
                                              struct bag_kept_update *kept, uint64_t through,
                                              uint64_t *first);

/* Releases a reference. */
void bag_updates_release_kept(struct bag_updates_stream *stream, struct bag_kept_update *kept);

/* Frees all kept updates. */
void bag_updates_free_kept(struct bag_updates_stream *stream);

/* Returns the last update that was taken, in the journal or in memory, or 0 if there is none. The
 * caller holds the stream's lock. */
uint64_t bag_updates_last_taken(const struct bag_updates_stream *stream);

/* Checks that updates by key, or by row number, fit the table. Returns false and sets *problem
 * (FILE) if they do not. */
bool bag_updates_check_ids(const struct bag_live_rows *live, bool has_keys,
                           struct bag_problem *problem);

/* Applies the updates that follow the table's last one and are before `end`, as far as they exist
 * as folders FOLDER/NUMBER. Adds their number to *applied. FOLDER may be NULL or absent. Returns
 * false and sets *problem (FILE or NO_MEMORY), which names the folder, if one cannot be applied. */
bool bag_updates_apply_deltas(struct bag_live_rows *live, const char *folder, uint64_t end,
                              uint64_t *applied, struct bag_problem *problem);

/* Returns whether there is a folder FOLDER/NUMBER. FOLDER may be NULL. */
bool bag_updates_has_delta(const char *folder, uint64_t number);

/* Raises the stream's lag because an update with this number exists and cannot be applied yet. The
 * caller holds the stream's lock. */
void bag_updates_raise_lag(struct bag_updates_stream *stream, uint64_t sequence);

/* Returns the stream of a model's name, or NULL if there is none. Only the thread that changes
 * tables may call it, and the next function. */
struct bag_updates_stream *bag_updates_find(const struct bag_updates *updates, const char *name);

/* Creates a stream. Returns NULL if there is not enough memory. */
struct bag_updates_stream *bag_updates_make_stream(struct bag_updates *updates, const char *name);

/* Syncs the stream's journal if it has unsynced records. */
void bag_updates_sync_stream(struct bag_updates_stream *stream);
