/* An index of names: a hash table with open addressing; see names.h. */
#include "names.h"

#include <stdlib.h>
#include <string.h>

/* The minimum number of slots, which is always a power of two. */
#define FEWEST_SLOTS 16

struct bag_name {
    const char *name, *version; /* borrowed; name NULL: a free slot */
    size_t place;               /* index that the map stores for the name */
};

/* Returns whether a used slot has this name, and this version or none if `version` is NULL. */
static bool is_same(const struct bag_name *slot, const char *name, const char *version)
{
    return !slot->version == !version && strcmp(slot->name, name) == 0 &&
           (!version || strcmp(slot->version, version) == 0);
}

/* Returns the slot of a name, or the free slot for it. At least one slot is always free. */
static struct bag_name *slot_of(const struct bag_names *names, const char *name,
                                const char *version)
{
    uint64_t hash = bag_hash_bytes(BAG_HASH_START, name, strlen(name) + 1);
    if (version)
        hash = bag_hash_bytes(hash, version, strlen(version));
    /* The number of slots is a power of two, so that a mask replaces a division. */
    size_t at = (size_t)(hash ^ hash >> 32) & (names->num_slots - 1);
    while (names->slots[at].name && !is_same(&names->slots[at], name, version))
        at = (at + 1) & (names->num_slots - 1);
    return &names->slots[at];
}

size_t *bag_names_find(const struct bag_names *names, const char *name, const char *version)
{
    struct bag_name *slot = names->num_slots ? slot_of(names, name, version) : NULL;
    return slot && slot->name ? &slot->place : NULL;
}

bool bag_names_reserve(struct bag_names *names, size_t count)
{
    struct bag_names larger = {.num_slots = names->num_slots ? names->num_slots : FEWEST_SLOTS};
    /* At most half of the slots are used, so probing always meets a free one. */
    while (larger.num_slots / 2 < names->count + count)
        larger.num_slots *= 2;
    if (larger.num_slots == names->num_slots)
        return true;
    larger.slots = calloc(larger.num_slots, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t i = 0; i < names->num_slots; i++) {
        const struct bag_name *slot = &names->slots[i];
        if (slot->name)
            bag_names_put(&larger, slot->name, slot->version, slot->place);
    }
    bag_names_free(names);
    *names = larger;
    return true;
}

void bag_names_put(struct bag_names *names, const char *name, const char *version, size_t place)
{
    *slot_of(names, name, version) = (struct bag_name){name, version, place};
    names->count++;
}

void bag_names_free(struct bag_names *names)
{
    free(names->slots);
    *names = (struct bag_names){0};
}
