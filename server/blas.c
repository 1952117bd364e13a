/* OpenBLAS, which multiplies for projections and is loaded where there are some; see commands.h. */
#include "commands.h"
#include "kernels/project.h"

#include <dlfcn.h>
#include <stdlib.h>

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
