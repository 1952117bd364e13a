/* In place of libFuzzer in builds without it: gives the target every file of a corpus, once.
 *
 *   fuzz_NAME DIRECTORY */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>

#define MAX_FILE_BYTES ((size_t)1 << 20)

/* Runs the target on the file, in a block of exactly its size. Returns 0 if the file cannot be
 * read. */
static int replay(const char *path)
{
    uint8_t *all = malloc(MAX_FILE_BYTES);
    FILE *file = fopen(path, "rb");
    if (!all || !file) {
        fprintf(stderr, "cannot read %s\n", path);
        free(all);
        return 0;
    }
    size_t count = fread(all, 1, MAX_FILE_BYTES, file);
    uint8_t *bytes = realloc(all, count ? count : 1);
    fclose(file);
    printf("%s\n", path);
    fflush(stdout); /* before it may crash */
    LLVMFuzzerTestOneInput(bytes, count);
    free(bytes);
    return 1;
}

int main(int argc, char *argv[])
{
    DIR *directory = argc == 2 ? opendir(argv[1]) : NULL;
    int played = 0, ok = 1;
    if (!directory) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    for (struct dirent *entry; ok && (entry = readdir(directory));) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        ok = replay(path);
        played++;
    }
    closedir(directory);
    printf("%d files\n", played);
    return ok && played ? 0 : 1;
}
