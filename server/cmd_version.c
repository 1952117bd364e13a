/* `bagserve version` prints the facts about the program that a bug report needs. */
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

/* Prints the version on the first line, which scripts read. Then prints the commit, the compiler
 * and the libraries. */
int bag_cmd_version(int argc, char *argv[])
{
    (void)argc, (void)argv;
    printf("bagserve %s\n"
           "commit: %s\n"
           "compiler: %s\n"
           "libraries: libmicrohttpd %s, libuv %s, cJSON %s,\n"
           "    zlib %s, nettle %d.%d\n",
           BAG_VERSION, BAG_COMMIT, COMPILER, MHD_get_version(), uv_version_string(),
           bag_library_cjson(), bag_library_zlib(), nettle_version_major(), nettle_version_minor());
    return BAG_EXIT_OK;
}
