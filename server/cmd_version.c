/* bagserve version: what a report of a problem has to say about the program. */
#include <microhttpd.h>
#include <nettle/version.h>
#include <stdio.h>
#include <uv.h>

#include "proto/libraries.h"
#include "server/commands.h"

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* Prints the version alone on the first line, which scripts read, then what the program was built
 * from, and the libraries that it runs with. */
int bag_cmd_version(int argc, char *argv[])
{
    (void)argc, (void)argv;
    printf("bagserve %s\n"
           "commit: %s\n"
           "compiler: %s\n"
           "libraries: libmicrohttpd %s, libuv %s, cJSON %s, zlib %s, nettle %d.%d\n",
           BAG_VERSION, BAG_COMMIT, COMPILER, MHD_get_version(), uv_version_string(),
           bag_library_cjson(), bag_library_zlib(), nettle_version_major(), nettle_version_minor());
    return BAG_EXIT_OK;
}
