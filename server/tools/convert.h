/* A table of any kind of file -> a safetensors file, in bounded memory. */
#ifndef BAG_TOOLS_CONVERT_H
#define BAG_TOOLS_CONVERT_H

#include "proto/formats.h"
#include "rows_reader.h"
#include "server/table/change.h"

#define BAG_CONVERT_MAX_THREADS 16

struct bag_conversion {
    const struct bag_source *source; /* borrowed */
    const char *out;                 /* path; borrowed */
    struct bag_table to;             /* how rows are to be stored; `rows` is not used */
    bool replace;                    /* `out` where it exists */
    unsigned threads;                /* 1 to BAG_CONVERT_MAX_THREADS */
    double max_error;                /* of an element; larger ones make it fail. INFINITY: any */
    const volatile int *stopping;    /* not 0: end without a file */
    struct bag_progress *progress;   /* of bytes of the source */
};

/* Writes the file: first under the name `out`.partial, which is removed where this fails and taken
 * over from a run that was killed. It is renamed when its data is on the disk. *report is complete
 * where this succeeds, and where max_error is what made it fail (BAG_ERROR_CONFLICT). */
bool bag_convert(const struct bag_conversion *conversion, struct bag_convert_report *report,
                 struct bag_problem *problem);

#endif
