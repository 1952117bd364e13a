/* Versions of cJSON and zlib; see libraries.h. */
#include "proto/libraries.h"

#include <cjson/cJSON.h>
#include <zlib.h>

const char *bag_library_cjson(void)
{
    return cJSON_Version();
}

const char *bag_library_zlib(void)
{
    return zlibVersion();
}
