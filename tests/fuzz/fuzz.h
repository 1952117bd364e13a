/* Every fuzz target includes this file. */
#pragma once

#include "kernels/bag.h"

#include <stdlib.h>
#include <string.h>

/* Called with each input, by libFuzzer or replay.c. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Aborts if a promise is broken, which no input may achieve. */
static inline void require(bool promise)
{
    if (!promise)
        abort();
}

/* Every byte of a tensor must be there to be read. */
static inline void read_tensor(const struct bag_tensor *tensor)
{
    const unsigned char *data = tensor->data;
    volatile unsigned char last = 0; /* so that no compiler leaves the reading out */
    for (size_t i = 0; i < tensor->count * bag_dtypes[tensor->dtype].bytes; i++)
        last = data[i];
    (void)last;
}
