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

template <typename In, typename Out>
double time_rows(const cell *cell, bool from_bf16 = false, bool to_bf16 = false)
{
    auto kernel = fbgemm::GenerateEmbeddingSpMDMWithStrides<In, int64_t, int64_t, Out>(
        cell->row_elements, cell->weights != nullptr, cell->reduction == BAG_MEAN, 16, false, true,
        -1, -1, true, false, to_bf16, from_bf16);
    return time_calls<In, Out>(cell, kernel);
}

template <typename Out> double time_int4(const cell *cell)
{
    auto kernel = fbgemm::GenerateEmbeddingSpMDMNBit<int64_t, int64_t, Out>(
        4, cell->row_elements, cell->weights != nullptr, cell->reduction == BAG_MEAN);
    return time_calls<uint8_t, Out>(cell, kernel);
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
    using fbgemm::float16;
    const bool to_f16 = cell->result == BAG_F16, to_f32 = cell->result == BAG_F32;
    if (cell->reduction > BAG_MEAN)
        return -1;
    if (cell->dtype == BAG_BF16 && cell->row_format == 0 && cell->result == BAG_BF16)
        return time_rows<uint16_t, uint16_t>(cell, true, true);
    if (!to_f16 && !to_f32)
        return -1;
    if (cell->dtype == BAG_F32 && cell->row_format == 1)
        return to_f16 ? time_rows<uint8_t, uint16_t>(cell) : time_rows<uint8_t, float>(cell);
    if (cell->dtype == BAG_F32 && cell->row_format == 2)
        return to_f16 ? time_int4<float16>(cell) : time_int4<float>(cell);
    if (cell->row_format != 0)
        return -1;
    if (cell->dtype == BAG_F32)
        return to_f16 ? time_rows<float, uint16_t>(cell) : time_rows<float, float>(cell);
    if (cell->dtype == BAG_F16)
        return to_f16 ? time_rows<float16, uint16_t>(cell) : time_rows<float16, float>(cell);
    return -1;
}
