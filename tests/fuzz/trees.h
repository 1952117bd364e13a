/* Changes a JSON text as a tree: members and elements disappear, are there twice, get another name,
 * or another value of any type. libFuzzer changes its inputs with it (mutator.c), and
 * tests/requests what it sends to servers: Python loads the functions as a library. */
#ifndef BAG_TREES_H
#define BAG_TREES_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

enum bag_tree_change {
    BAG_TREE_ANY,
    BAG_TREE_HARMLESS /* unknown members, another order of members, blanks: the text means the same
                         to the protocol */
};

/* Changes the text once, at a place and in a way that follow from the seed, and returns its new
 * size. Leaves a text as it is that is no JSON, and leaves out what does not fit into `capacity`.
 */
size_t bag_tree_change(char *text, size_t bytes, size_t capacity, enum bag_tree_change kind,
                       uint64_t seed);

/* Returns the bytes of the JSON value that the text begins with, or 0 if there is none. */
size_t bag_tree_bytes(char *text, size_t bytes);

#pragma GCC visibility pop

#endif
