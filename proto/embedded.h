/* Files that the build puts into the program (bag_embed in CMakeLists.txt). */
#pragma once

#include <stddef.h>

struct bag_embedded {
    const char *name; /* without folders; NULL: the list ends here */
    const char *text; /* ends with a NUL that `bytes` does not count */
    size_t bytes;
};
