/* What every unit test includes: cmocka and the headers it wants first. */
#ifndef BAG_TESTING_H
#define BAG_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A heap copy of exactly `bytes` bytes, so that a sanitizer sees one byte read too far. */
static inline char *exact_copy(const void *data, size_t bytes)
{
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    return copy;
}

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
