// FBGEMM's kernels behind C functions, timed as bench_kernels.h times ours. `tests/bench/kernels
// --fbgemm PREFIX` compiles it; no build of the project does.
#include "kernels/bag.h"

extern "C" {
#include "bench_kernels.h"
}

#include <cpuinfo.h>
#include <fbgemm/FbgemmEmbedding.h>
#include <fbgemm/Types.h>
#include <fbgemm/Utils.h>

#include <ctime>
#include <type_traits>
#include <vector>

namespace
{

double cpu_ns()
{
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// Calls a generated kernel over all the ids of a cell, as many at once as the cell says.
template <typename In, typename Out, typename Kernel>
double time_calls(const cell *cell, const Kernel &kernel)
{
    const int64_t count = cell->batch * cell->bag;
    std::vector<int64_t> offsets(cell->offsets, cell->offsets + cell->batch);
    offsets.push_back(count);
    auto rows = static_cast<const In *>(cell->rows);
    auto out = static_cast<Out *>(static_cast<void *>(cell->out));
    double start = cpu_ns();
    for (int64_t at = 0; at < cell->count; at += count)
        if (!kernel(cell->batch, count, cell->num_rows, rows, cell->ids + at, offsets.data(),
                    cell->weights, out))
            return -1;
    return cpu_ns() - start;
}

// Results have the type of plain rows, and are f32 for quantised ones, as ours.
template <typename In, typename Out = In> double time_rows(const cell *cell, bool is_bf16 = false)
{
    auto kernel = fbgemm::GenerateEmbeddingSpMDMWithStrides<In, int64_t, int64_t, Out>(
        cell->row_elements, cell->weights != nullptr, cell->reduction == BAG_MEAN, 16, false, true,
        -1, -1, true, false, is_bf16, is_bf16);
    return time_calls<In, Out>(cell, kernel);
}

double time_int4(const cell *cell)
{
    auto kernel = fbgemm::GenerateEmbeddingSpMDMNBit<int64_t, int64_t>(
        4, cell->row_elements, cell->weights != nullptr, cell->reduction == BAG_MEAN);
    return time_calls<uint8_t, float>(cell, kernel);
}

} // namespace

// Kernels of four-bit rows ask the processor, not what is forced.
extern "C" __attribute__((visibility("default"))) void fbgemm_use_avx2()
{
    if (cpuinfo_initialize())
        cpuinfo_isa.avx512f = false;
    fbgemm::fbgemmForceIsa(fbgemm::inst_set_t::avx2);
}

// ns for all the ids; -1 where FBGEMM has no such kernel. The row formats are those of pool.h.
extern "C" __attribute__((visibility("default"))) double fbgemm_pool(const cell *cell)
{
    bool f32_weights = cell->dtype == BAG_F32 || !cell->weights;
    if (cell->reduction > BAG_MEAN || !f32_weights)
        return -1;
    if (cell->dtype == BAG_F32 && cell->row_format == 1)
        return time_rows<uint8_t, float>(cell);
    if (cell->dtype == BAG_F32 && cell->row_format == 2)
        return time_int4(cell);
    if (cell->row_format != 0)
        return -1;
    switch (cell->dtype) {
    case BAG_F32:
        return time_rows<float>(cell);
    case BAG_F16:
        return time_rows<fbgemm::float16, uint16_t>(cell);
    case BAG_BF16:
        return time_rows<uint16_t>(cell, true);
    default:
        return -1;
    }
}
