/* Updates of rows: numbered batches that change loaded tables, kept in a journal.
 *
 * All updates of a model's name are one stream, numbered from 1 without gaps. A loaded table has
 * the updates up to some number; when it is attached, those after what its snapshot includes are
 * applied to it, from delta folders and the journal, and from then on every new one. So an older
 * version that is still held has them, too.
 *
 * A few threads take updates, those of a stream one thread at a time and in the order in which they
 * came: it numbers and checks them, writes all that wait to the journal, syncs once, applies them,
 * and calls `done`. What cannot be written is rejected and applied nowhere. A journal that is slow
 * to sync holds up its own model alone.
 *
 * Tables are attached and detached by the thread that changes tables. */
#ifndef BAG_UPDATES_H
#define BAG_UPDATES_H

#include "config/options.h"
#include "journal.h"
#include "server/system/monitor.h"
#include "server/tables/live_rows.h"

#include <stdatomic.h>
#include <sys/queue.h>

struct bag_updates_settings {
    const char *journal_dir; /* NULL: there are no journals */
    enum bag_journal_sync sync;
    uint64_t sync_interval_ms;
    const struct bag_disk *disk;
    uint64_t journal_file_bytes; /* a larger file is followed by a new one */
    uint64_t journal_kept_bytes; /* most files for versions that are not loaded */
    size_t kept_bytes;           /* most memory for updates where there is no journal */
    const char *ready_file;      /* that a delta folder has when it is whole; NULL: none */
};

/* An update in memory, where there is no journal: for versions that are loaded later. */
struct bag_kept_update;

/* A delta folder as the last poll saw it. */
struct bag_delta_sighting {
    uint64_t number, fingerprint;
};

/* What may be done with a stream. */
enum bag_stream_state {
    BAG_STREAM_NEW,    /* no table was attached: if it is to have a journal, that is not open */
    BAG_STREAM_SHUT,   /* the same, as another process has the journal's folder */
    BAG_STREAM_OPEN,   /* updates are taken, and applied to the tables that are attached */
    BAG_STREAM_STOPPED /* updates are rejected with `problem`, as one in the journal could not be
                          applied */
};

/* Whose turn it is. */
enum bag_stream_turn {
    BAG_STREAM_IDLE,   /* nothing waits */
    BAG_STREAM_READY,  /* it is in the list of those that wait for a thread */
    BAG_STREAM_RUNNING /* a thread has it, and sees afterwards what came meanwhile */
};

/* Of one model's name. What is atomic may be read at any time by whoever has a snapshot with a
 * model of that name. */
struct bag_updates_stream {
    char name[BAG_JOURNAL_NAME_BYTES]; /* the first member: streams are found by it */
    _Atomic uint64_t sequence;         /* of the last update that was applied */
    _Atomic uint64_t applied, ignored, rejected, rows;
    _Atomic uint64_t left_out;       /* rows of other parts of the table */
    _Atomic uint64_t lag;            /* by how much a number that was sent is ahead of it */
    _Atomic uint64_t last_update_ms; /* since 1970; 0: none since the start */
    _Atomic uint64_t journal_bytes, syncs, sync_ns, journal_errors;
    _Atomic uint64_t kept_bytes;             /* of updates that are kept in memory */
    _Atomic uint64_t deltas, deltas_waiting; /* folders that were applied, and that were not */

    /* Of the thread that changes the tables. */
    struct bag_delta_sighting *sightings; /* owned; ascending */
    size_t num_sightings;
    uint64_t awaited;         /* the delta that was said to be missing; 0: none */
    struct bag_problem delta; /* what was said of a delta; "": nothing */

    /* Set before others know it. */
    struct bag_updates *updates;
    struct bag_updates_stream *next;

    /* Guarded by updates->queue. */
    struct bag_update *first, **last; /* that wait */
    bool waits_for_sync;
    enum bag_stream_turn turn;
    STAILQ_ENTRY(bag_updates_stream) next_ready;

    /* Guarded by the lock of all streams, which is taken after the stream's own. */
    struct bag_kept_update *first_kept, *last_kept; /* owned; ascending */
    uint64_t forgotten; /* the last update that was taken and is kept no more; 0: none */

    pthread_mutex_t lock; /* guards what follows */
    enum bag_stream_state state;
    struct bag_live_rows *tables; /* that are attached */
    struct bag_journal journal;
    uint64_t oldest_through;    /* updates after it are kept for versions that are not loaded */
    uint64_t taken;             /* the last update that was numbered; it may wait to be applied */
    bool waits_for_keys;        /* one that waits adds or removes keys */
    struct bag_problem problem; /* that stopped it, or of the last sync that failed */
};

/* So many journals may be slow before others wait for them. */
#define BAG_UPDATES_THREADS 4

struct bag_updates {
    struct bag_updates_settings settings;
    pthread_t threads[BAG_UPDATES_THREADS];
    size_t num_threads;

    pthread_mutex_t lock;               /* of what follows */
    struct bag_updates_stream *streams; /* owned; the newest first, and none leaves */
    size_t kept_bytes;                  /* of all streams */

    void *by_name; /* the streams as a tree of tsearch(3); of the thread that changes tables */

    struct bag_monitor queue;                /* guards what follows */
    STAILQ_HEAD(, bag_updates_stream) ready; /* streams whose turn is READY */
    uint64_t next_sync_ns;                   /* of all journals; UINT64_MAX: never */
    bool stop;
};

/* One batch for a model. All that is borrowed, and the update itself, lives until `done`. */
struct bag_update {
    struct bag_live_rows *live;  /* the table that it is for, of the model that was asked */
    struct bag_rows_batch batch; /* rows as that table stores them */
    uint64_t first_sequence;     /* of a range that it stands for; 0: it stands for one. A range may
                                    begin with what was applied before: its batch says what all of it
                                    left behind */
    void (*done)(struct bag_update *update); /* on a thread of updates */

    /* In, and out; 0: the next number is taken. */
    uint64_t sequence;
    uint64_t first; /* out: its first number that was not used before */

    /* The outcome. */
    /* `problem` says why: CONFLICT if the number does not follow, or the version takes no updates;
     * BAD_REQUEST if an id is wrong; STORAGE if the journal or the table has no room, or the disk
     * fails; NO_MEMORY. */
    bool failed;
    bool applied; /* or it had been before */
    struct bag_problem problem;

    struct bag_update *next;
};

bool bag_updates_init(struct bag_updates *updates, const struct bag_updates_settings *settings);

/* Closes all journals, when all tables are detached. */
void bag_updates_free(struct bag_updates *updates);

/* The threads that take updates. Stopping applies all that wait, and syncs all journals. */
bool bag_updates_start(struct bag_updates *updates, struct bag_problem *problem);
void bag_updates_stop(struct bag_updates *updates);

/* Any thread. */
void bag_updates_submit(struct bag_update *update);

/* What a thread does with a list of updates of one stream, linked by `next`. */
void bag_updates_run(struct bag_update *first);

/* Syncs the journals that have records which are not on the disk. */
void bag_updates_sync(struct bag_updates *updates);

/* Returns whether no table of the model can be attached, as another process had the folder of its
 * journal when that was last tried. */
bool bag_updates_is_shut(struct bag_updates *updates, const char *name);

/* A table that was loaded and is not served yet. */
struct bag_updates_table {
    const char *name;                /* of its model */
    uint64_t version;                /* of its model */
    struct bag_table_memory *memory; /* stays where it is */
    struct bag_live_reader *reader;  /* of its model; NULL: nobody pools it */
    int64_t kept_rows;               /* of all who are to read it, see bag_live_rows_make */
    uint64_t through;                /* the last update that its file includes */
    uint64_t oldest_through;         /* and the least that other versions do, which may be loaded */
    const char *deltas; /* folder of delta folders, which need not be there; NULL: none */
};

/* Makes the table's rows live and brings it up to date, with what is in the journal, or in memory
 * where there is none; deltas that follow are for bag_updates_take_deltas. One that is mapped from
 * a file stays as it is, and takes no updates: it must not lack any. Returns false, and
 * memory->live is NULL, with *problem: FILE if the journal cannot be read, is of other rows,
 * damaged, or of another process, or if an update is missing or cannot be applied; else NO_MEMORY,
 * after which the same call may succeed. Each file of the journal that was read is said in the log.
 */
bool bag_updates_attach(struct bag_updates *updates, const struct bag_updates_table *table,
                        struct bag_problem *problem);

/* Enters a reader of a table that is attached, and one that is not in any place; the second does
 * nothing where it is not entered. False with *problem (CONFLICT) where a row that would stand in
 * for missing keys was given to another key. Whether the table has its default key is to be seen
 * afterwards: from then on it stays. */
bool bag_updates_enter(struct bag_live_rows *live, struct bag_live_reader *reader,
                       struct bag_problem *problem);
void bag_updates_leave(struct bag_live_reader *reader);

/* The table, where its rows are live, takes no updates that are asked of it, only those of other
 * versions; or takes them again. What was asked before is taken or refused then. */
void bag_updates_close(struct bag_live_rows *live, bool is_closed);

/* Whether the table has what was taken and no more: otherwise what follows it is for later, when it
 * is served. NULL, one that is mapped, has. */
bool bag_updates_is_next(const struct bag_live_rows *live);

/* Whether the table, which is in memory, lacks an update that others took: it answers with old
 * rows. By the thread that changes tables. */
bool bag_updates_lacks(struct bag_updates *updates, const struct bag_updates_table *table);

/* Applies the updates in folders table->deltas/NUMBER that follow the last one of the table's
 * model, to all its versions. `polls`: those alone that were the same in the last call, unless a
 * ready_file says that they are whole. One that is missing, or cannot be applied, is waited for,
 * and said in the log and the metrics. Returns false if the next one is there and cannot be
 * applied, with *problem: FILE if its files are wrong, else what an update of rows is answered with
 * (see struct bag_update). By the thread that changes tables, for a table that is attached. */
bool bag_updates_take_deltas(struct bag_updates *updates, const struct bag_updates_table *table,
                             bool polls, struct bag_problem *problem);

/* The table is given up; called by bag_table_unload. */
void bag_updates_detach(struct bag_live_rows *live);

/* ---- for the files of this folder
 * -------------------------------------------------------------------------- */

/* Applies update `sequence`, with rows as `from` stores them, to one table. Returns false and sets
 * *problem: FILE if the table cannot store the rows or does not have them, else NO_MEMORY, or
 * STORAGE if there is no spare row for a new key. */
bool bag_updates_apply(struct bag_live_rows *live, uint64_t sequence, const struct bag_table *from,
                       const struct bag_rows_batch *batch, struct bag_problem *problem);

/* The next update is that after `through`; none waits to be applied. */
void bag_updates_go_on(struct bag_updates_stream *stream, uint64_t through);

/* Removes files of the journal that no attached table needs if it is loaded again. */
void bag_updates_remove_files(struct bag_updates_stream *stream);

/* Keeps an update that was applied in memory, where there is no journal; the oldest ones make room.
 * With the lock. */
void bag_updates_keep(struct bag_updates_stream *stream, const struct bag_update *update);

/* Frees all that are kept. */
void bag_updates_free_kept(struct bag_updates_stream *stream);

/* The last update that was taken, in the journal or in memory; 0: none was. */
uint64_t bag_updates_last_taken(const struct bag_updates_stream *stream);

/* Returns false and sets *problem (FILE) if updates with keys, or with row numbers, are not for the
 * table. */
bool bag_updates_check_ids(const struct bag_live_rows *live, bool has_keys,
                           struct bag_problem *problem);

/* Applies the kept updates that the table lacks, and those in `deltas` between them; counts them in
 * *applied. Returns false and sets *problem (FILE) if some that were taken are not there, or as
 * bag_updates_apply does. The caller holds the
 * lock of the stream; that of all streams is taken between two updates only. */
bool bag_updates_apply_kept(struct bag_live_rows *live, const char *deltas, uint64_t *applied,
                            struct bag_problem *problem);

/* Applies the updates that follow the table's last one and are before `end`, as far as there is a
 * folder FOLDER/NUMBER of each; counts them in *applied. FOLDER may be NULL or absent. Returns
 * false and sets *problem (FILE or NO_MEMORY), which names the folder. */
bool bag_updates_apply_deltas(struct bag_live_rows *live, const char *folder, uint64_t end,
                              uint64_t *applied, struct bag_problem *problem);

/* Whether there is a folder FOLDER/NUMBER; FOLDER may be NULL. */
bool bag_updates_has_delta(const char *folder, uint64_t number);

/* An update with that number is there, and cannot be applied yet. With the lock. */
void bag_updates_raise_lag(struct bag_updates_stream *stream, uint64_t sequence);

/* Returns the stream of a model's name, or NULL if there is none. Only the thread that changes
 * tables may call it, and the next function. */
struct bag_updates_stream *bag_updates_find(const struct bag_updates *updates, const char *name);

/* Makes one; returns NULL without memory. */
struct bag_updates_stream *bag_updates_make_stream(struct bag_updates *updates, const char *name);

/* Syncs its journal where it has records which are not on the disk. */
void bag_updates_sync_stream(struct bag_updates_stream *stream);

#endif
