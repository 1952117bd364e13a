/* Where the configuration comes from (files, environment, flags, the demo), and what computes: the
 * instruction set of the kernels, and OpenBLAS for projections; see commands.h. */
#include "commands.h"
#include "kernels/pool.h"
#include "server/system/files.h"
#include "server/tables/source.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Configuration files are read up to this. */
#define CONFIG_FILE_BYTES (16u << 20)

/* ---- files and flags ------------------------------------------------------------------------- */

static bool apply_file(struct bag_config *config, const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read(path, CONFIG_FILE_BYTES, &bytes, problem);
    bool ok = text && bag_config_apply_file(config, path, text, bytes, problem);
    if (!text)
        bag_problem_prefix(problem, "configuration file");
    free(text);
    return ok;
}

bool bag_configure(struct bag_config *config, int argc, char *argv[], struct bag_problem *problem)
{
    const char *path = bag_config_find_path(argc, argv, environ);
    if (!bag_config_init(config))
        return bag_problem_no_memory(problem);
    return (!path || apply_file(config, path, problem)) &&
           bag_config_apply_environment(config, environ, problem) &&
           bag_config_apply_flags(config, argc, argv, problem);
}

bool bag_arguments_have(int argc, char *argv[], const char *flag)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0)
            return true;
    }
    return false;
}

bool bag_arguments_ask_help(int argc, char *argv[])
{
    return bag_arguments_have(argc, argv, "--help") || bag_arguments_have(argc, argv, "-h");
}

/* ---- the demo ----------------------------------------------------------------------------------
 */

bool bag_configure_demo(struct bag_config *config, struct bag_problem *problem)
{
#define BAG_X(name, ...)                                                         \
    if (!bag_config_add_model(config, name, BAG_DEMO_PREFIX name, "1", problem)) \
        return false;
    BAG_DEMO_TABLES(BAG_X)
#undef BAG_X
    return bag_config_add_model(config, BAG_DEMO_COLLECTION, NULL, "1", problem) &&
           bag_config_apply_model_file(config, config->num_models - 1, "--demo", BAG_DEMO_FEATURES,
                                       strlen(BAG_DEMO_FEATURES), false, problem);
}

/* ---- instruction sets ------------------------------------------------------------------------ */

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
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "isa '%s' is not known; this processor can run: %s",
                               bag_quote(name, name_bytes).text, usable_names().text);
    if (!bag_isa_usable(isa))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "isa '%s': this processor cannot run it; it can: %s",
                               bag_isa_names[isa], usable_names().text);
    bag_isa_use(isa);
    return true;
}

/* ---- OpenBLAS -------------------------------------------------------------------------------- */

#define LIBRARY "libopenblas.so.0"

/* The constants of its interface. */
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111 };

/* Rows that are multiplied at once; it counts in int. */
#define MAX_ROWS ((size_t)1 << 20)

typedef void sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                   const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

/* Written before the first model that projects is published. */
static sgemm *found;

_Static_assert(sizeof found == sizeof(void *), "a symbol's address is a function's");

static void multiply(size_t m, size_t n, size_t k, const float *a, const float *b, float *c)
{
    for (size_t done = 0; done < m; done += MAX_ROWS) {
        size_t rows = m - done < MAX_ROWS ? m - done : MAX_ROWS;
        found(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, (int)rows, (int)n, (int)k, 1, a + done * k,
              (int)k, b, (int)n, 1, c + done * n, (int)n);
    }
}

/* What it calls the best of the instruction sets that its version here may not know how to find;
 * NULL: it may choose. */
static const char *core_type(void)
{
    if (bag_isa_usable(BAG_ISA_AVX512))
        return "SkylakeX";
    return bag_isa_usable(BAG_ISA_AVX2) ? "Haswell" : NULL;
}

void bag_blas_prepare(void)
{
    const char *core = core_type();
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    if (core)
        setenv("OPENBLAS_CORETYPE", core, 0);
}

bag_gemm_fn *bag_blas_load(struct bag_problem *problem)
{
    if (found)
        return multiply;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "cblas_sgemm") : NULL;
    if (!symbol) {
        bag_problem_set(problem, BAG_ERROR_SYSTEM,
                        "a projection needs OpenBLAS (libopenblas0-pthread): %s", dlerror());
        return NULL;
    }
    /* ISO C has no conversion from one to the other; POSIX says that they are alike. */
    *(void **)(void *)&found = symbol;
    return multiply;
}
