/* An array of numbers while it is read. Private to proto/numbers*.c.
 *
 * numbers.c walks brackets and commas and hands over wherever an element must stand; a run then
 * reads elements for as long as they follow each other closely, in a loop of its dtype's own. */
#ifndef BAG_NUMBERS_READER_H
#define BAG_NUMBERS_READER_H

#include "numbers.h"

#include <string.h>

struct bag_number_reader {
    const char *at, *end; /* the text not yet read */
    enum bag_dtype dtype;
    char *first, *out, *limit; /* the elements' room: all, what is free, its end */
    size_t count;              /* of elements that there should be */
    size_t surplus;            /* elements found beyond that: read, checked and dropped */
    const char *surplus_at;    /* the first of them */
    char dropped[8];
    struct bag_problem *problem;
};

/* Where the next element goes. `at` is where it stands in the text. */
static inline char *bag_number_room(struct bag_number_reader *reader, const char *at, size_t bytes)
{
    if (__builtin_expect(reader->out == reader->limit, 0)) {
        if (reader->surplus++ == 0)
            reader->surplus_at = at;
        reader->out = reader->dropped;
        reader->limit = reader->dropped + bytes;
    }
    char *room = reader->out;
    reader->out += bytes;
    return room;
}

/* After an element: the next one where only a comma, or one and a space, stands between; NULL where
 * the walker must look. */
static inline const char *bag_number_next(const char *at, const char *end)
{
    if (end - at < 3 || *at != ',')
        return NULL;
    /* Branches, because arrays keep to one style and the next load need not wait for them. */
    if (at[1] > ' ' && at[1] != '[')
        return at + 1;
    return at[1] == ' ' && at[2] > ' ' && at[2] != '[' ? at + 2 : NULL;
}

/* What may follow an element. */
static inline bool bag_number_separator(char c)
{
    return c == ',' || c == ']' || c == '[' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Rejects the element that stands at `element`, for which room was taken; returns false. */
bool bag_number_reject(struct bag_number_reader *reader, const char *element);

/* Ends a run after the element that goes from `element` to `after`. */
static inline bool bag_number_pause(struct bag_number_reader *reader, const char *element,
                                    const char *after)
{
    if (after < reader->end && !bag_number_separator(*after))
        return bag_number_reject(reader, element);
    reader->at = after;
    return true;
}

/* Whether the text goes on with `word`. */
static inline bool bag_number_word(const char *at, const char *end, const char *word)
{
    size_t bytes = strlen(word);
    return (size_t)(end - at) >= bytes && memcmp(at, word, bytes) == 0;
}

/* Read a run of the elements of their dtypes; false where one was rejected. */
bool bag_number_run_integers(struct bag_number_reader *reader);
bool bag_number_run_f32(struct bag_number_reader *reader);
bool bag_number_run_f64(struct bag_number_reader *reader);

#endif
