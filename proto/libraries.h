/* The versions of the libraries that only this layer may call, for `bagserve version`. */
#pragma once

/* Return the version that the program runs with, which may be newer than the one it was built with.
 */
const char *bag_library_cjson(void);
const char *bag_library_zlib(void);
