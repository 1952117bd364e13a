/* Choosing the instruction set; see isa.h. */
#include "isa.h"

#include <stdio.h>
#include <string.h>

struct names {
    char text[96];
};

/* "generic, avx2": those that this processor can run. */
static struct names usable_names(void)
{
    struct names names = {""};
    size_t used = 0;
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (bag_isa_usable((enum bag_isa)isa))
            used += (size_t)snprintf(names.text + used, sizeof names.text - used, "%s%s",
                                     used ? ", " : "", bag_isa_names[isa]);
    }
    return names;
}

bool bag_isa_choose(const char *name, struct bag_problem *problem)
{
    size_t name_bytes = strlen(name);
    enum bag_isa isa = name_bytes ? bag_isa_find(name, name_bytes) : bag_isa_best();
    if (isa == BAG_ISA_COUNT)
        return bag_problem_set(problem, 500, "isa '%s' is not known; this processor can run: %s",
                               bag_quote(name, name_bytes).text, usable_names().text);
    if (!bag_isa_usable(isa))
        return bag_problem_set(problem, 500, "isa '%s': this processor cannot run it; it can: %s",
                               bag_isa_names[isa], usable_names().text);
    bag_isa_use(isa);
    return true;
}
