/* Updates of rows: numbered batches that change loaded tables, kept in a journal.
 *
 * All updates of a model's name are one stream, numbered from 1 without gaps. A loaded table has
 * the updates up to some number; when it is attached, those after what its snapshot includes are
 * applied to it, from delta folders and the journal, and from then on every new one. So an older
 * version that is still held has them, too.
 *
 * One thread takes updates, in the order in which they came: it numbers and checks them, writes all
 * that wait to the journal, syncs once, applies them, and calls `done`. What cannot be written is
 * refused and applied nowhere.
 *
 * Tables are attached and detached by the thread that changes tables. */
#ifndef BAG_UPDATES_H
#define BAG_UPDATES_H

#include "config/options.h"
#include "journal.h"
#include "snapshot.h"

#include <stdatomic.h>

struct bag_updates_settings {
    const char *journal_dir; /* NULL: there are no journals */
    enum bag_journal_sync sync;
    uint64_t sync_interval_ms;
    const struct bag_disk *disk;
    uint64_t journal_file_bytes; /* a larger file is followed by a new one */
};

/* Of one model's name. What is atomic may be read at any time by whoever has a snapshot with a
 * model of that name. */
struct bag_updates_stream {
    char name[BAG_JOURNAL_NAME_BYTES];
    _Atomic uint64_t sequence; /* of the last update that was applied */
    _Atomic uint64_t applied, ignored, rejected, rows;
    _Atomic uint64_t lag;            /* by how much a number that was sent is ahead of it */
    _Atomic uint64_t last_update_ms; /* since 1970; 0: none since the start */
    _Atomic uint64_t journal_bytes, syncs, sync_ns;

    /* Guarded by the lock. */
    struct bag_updates *updates;
    struct bag_updates_stream *next;
    struct bag_live_rows *tables; /* that are attached */
    struct bag_journal journal;
    uint64_t taken;      /* the last update that was numbered; it may wait to be applied */
    bool waits_for_keys; /* one that waits adds or removes keys */
    bool stopped;        /* by `problem`: an update in the journal could not be applied */
    bool unsynced;       /* by `problem`: the last sync failed */
    struct bag_problem problem;
};

struct bag_updates {
    struct bag_updates_settings settings;
    pthread_mutex_t lock;               /* of the streams */
    struct bag_updates_stream *streams; /* owned */

    pthread_mutex_t queue_lock; /* of what follows */
    pthread_cond_t changed;
    struct bag_update *first, **last;
    bool stop;
    pthread_t thread;
};

/* One batch for a model. All that is borrowed, and the update itself, lives until `done`. */
struct bag_update {
    struct bag_live_rows *live;  /* the table that it is for, of the model that was asked */
    struct bag_rows_batch batch; /* rows as that table stores them */
    bool has_sequence;           /* otherwise the next number is taken */
    void (*done)(struct bag_update *update); /* on the updates' thread */

    /* In, where there is one, and out. */
    uint64_t sequence;

    /* The outcome. */
    bool failed;  /* `problem` says why: CONFLICT where the number does not follow */
    bool applied; /* or it had been before */
    struct bag_problem problem;

    struct bag_update *next;
};

bool bag_updates_init(struct bag_updates *updates, const struct bag_updates_settings *settings);

/* Closes all journals, when all tables are detached. */
void bag_updates_free(struct bag_updates *updates);

/* The thread that takes updates. Stopping applies all that wait, and syncs all journals. */
bool bag_updates_start(struct bag_updates *updates, struct bag_problem *problem);
void bag_updates_stop(struct bag_updates *updates);

/* Any thread. */
void bag_updates_submit(struct bag_updates *updates, struct bag_update *update);

/* What the thread does with a list of updates, linked by `next`. */
void bag_updates_run(struct bag_updates *updates, struct bag_update *first);

/* Syncs the journals that have records which are not on the disk. */
void bag_updates_sync(struct bag_updates *updates);

/* A table that was loaded and is not served yet. */
struct bag_updates_table {
    const char *name;                /* of its model */
    struct bag_table_memory *memory; /* stays where it is */
    const struct bag_rules *rules;   /* of its model */
    uint64_t through;                /* the last update that its file includes */
    const char *deltas; /* folder of delta folders, which need not be there; NULL: none */
};

/* Makes the table's rows live and brings it up to date; one that is mapped from a file stays as it
 * is, and takes no updates. False with *problem where its journal or a
 * delta cannot be read, is of other rows, damaged, or lacks an update that the table does not have;
 * then memory->live is NULL. `progress` (may be NULL) is told of bytes of the journal. */
bool bag_updates_attach(struct bag_updates *updates, const struct bag_updates_table *table,
                        bag_load_progress *progress, void *context, struct bag_problem *problem);

/* The table is given up; called by bag_table_unload. */
void bag_updates_detach(struct bag_live_rows *live);

/* ---- for updates*.c -------------------------------------------------------------------------- */

/* Applies update `sequence`, with rows as `from` stores them, to one table. */
bool bag_updates_apply(struct bag_live_rows *live, uint64_t sequence, const struct bag_table *from,
                       const struct bag_rows_batch *batch, struct bag_problem *problem);

/* Removes files of the journal that no attached table needs if it is loaded again. */
void bag_updates_remove_files(struct bag_updates_stream *stream);

/* Applies the updates that follow the table's last one and are before `end`, as far as there is a
 * folder FOLDER/NUMBER of each; counts them in *applied. FOLDER may be NULL or absent. False with
 * *problem, which names the folder. */
bool bag_updates_apply_deltas(struct bag_live_rows *live, const char *folder, uint64_t end,
                              uint64_t *applied, struct bag_problem *problem);

#endif
