/* OpenBLAS, which multiplies matrices for projections. It is loaded when a model has a projection;
 * see commands.h. */
#include "commands.h"
#include "kernels/project.h"

#include <dlfcn.h>
#include <stdlib.h>

#define LIBRARY "libopenblas.so.0"

/* Constants of the CBLAS interface. */
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111 };

/* The maximum number of rows in one call, because CBLAS counts in int. */
#define MAX_ROWS ((size_t)1 << 20)

typedef void sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                   const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

/* Set before the first model with a projection is published. */
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

void bag_blas_prepare(void)
{
    /* OpenBLAS's name for the best instruction set, which this version may not detect itself. */
    const char *core = bag_isa_usable(BAG_ISA_AVX512) ? "SkylakeX"
                       : bag_isa_usable(BAG_ISA_AVX2) ? "Haswell"
                                                      : NULL;
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
    /* ISO C cannot convert a data pointer to a function pointer; POSIX guarantees that it works. */
    *(void **)(void *)&found = symbol;
    return multiply;
}
