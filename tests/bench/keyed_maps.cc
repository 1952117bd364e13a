// Hash maps from keys to rows that the index of keys is compared with, as tests/bench/keyed maps builds them: what
// is installed of boost::unordered_flat_map, as it is, and absl::flat_hash_map, prefetched.
#include <cstddef>
#include <cstdint>

#if __has_include(<boost/unordered/unordered_flat_map.hpp>)
#include <boost/unordered/unordered_flat_map.hpp>
#define HAS_BOOST
#endif
#if __has_include(<absl/container/flat_hash_map.h>)
#include <absl/container/flat_hash_map.h>
#define HAS_ABSL
#endif

namespace {

// How many keys ahead are prefetched.
constexpr size_t kAhead = 16;

template <typename Map> void *make(const uint64_t *keys, size_t count)
{
    auto *map = new Map;
    map->reserve(count);
    for (size_t i = 0; i < count; i++)
        map->emplace(keys[i], static_cast<int64_t>(i));
    return map;
}

// The rows of keys, -1 for missing ones, and how many are missing; as bag_keys_find.
template <typename Map, typename Prefetch>
size_t find(const Map &map, const uint64_t *keys, size_t count, int64_t *rows, Prefetch prefetch)
{
    size_t missing = 0;
    for (size_t i = 0; i < count && i < kAhead; i++)
        prefetch(map, keys[i]);
    for (size_t i = 0; i < count; i++) {
        if (i + kAhead < count)
            prefetch(map, keys[i + kAhead]);
        auto found = map.find(keys[i]);
        rows[i] = found == map.end() ? -1 : found->second;
        missing += found == map.end();
    }
    return missing;
}

}  // namespace

#ifdef HAS_BOOST
using BoostMap = boost::unordered_flat_map<uint64_t, int64_t>;

extern "C" void *boost_make(const uint64_t *keys, size_t count)
{
    return make<BoostMap>(keys, count);
}

extern "C" size_t boost_find(const void *map, const uint64_t *keys, size_t count, int64_t *rows)
{
    return find(*static_cast<const BoostMap *>(map), keys, count, rows,
                [](const BoostMap &, uint64_t) {});
}
#endif

#ifdef HAS_ABSL
using SwissMap = absl::flat_hash_map<uint64_t, int64_t>;

extern "C" void *swiss_make(const uint64_t *keys, size_t count)
{
    return make<SwissMap>(keys, count);
}

extern "C" size_t swiss_find(const void *map, const uint64_t *keys, size_t count, int64_t *rows)
{
    return find(*static_cast<const SwissMap *>(map), keys, count, rows,
                [](const SwissMap &swiss, uint64_t key) { swiss.prefetch(key); });
}
#endif
