/* The text of an .npy header: a Python dictionary of three keys. Private to proto/npy*.c. */
#ifndef BAG_NPY_HEADER_H
#define BAG_NPY_HEADER_H

#include "problem.h"

struct bag_npy_header {
    const char *descr; /* between its quotes, in the text that was read; not NUL-terminated */
    size_t descr_bytes;
    bool fortran_order;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
};

/* Reads the whole text: each key exactly once, no other key, nothing after the dictionary but
 * white space. Knows the grammar alone: which element types there are is the caller's matter. */
bool bag_npy_header_read(const char *text, size_t text_bytes, struct bag_npy_header *header,
                         struct bag_problem *problem);

#endif
