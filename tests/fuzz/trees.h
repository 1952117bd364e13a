/* Changes a JSON text as a tree: removes or doubles members and elements, renames members, and
 * replaces values by others of any type. In mutator.c, libFuzzer changes its inputs with these
 * functions. From Python, tests/features loads them as a library and changes the requests that it
 * sends. */
#pragma once

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
