#pragma once

#include <cstdint>

namespace reshard::quant {

/// Vectors that a processor can have: no more than x86-64 promises, AVX2, or AVX-512 with the
/// permutations of bytes (VBMI).
enum class Vectors : std::uint8_t { plain, avx2, avx512 };

#if defined(__x86_64__)
namespace detail {

inline Vectors vectors_of_processor() {
  if (__builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi") != 0)
    return Vectors::avx512;
  return __builtin_cpu_supports("avx2") != 0 ? Vectors::avx2 : Vectors::plain;
}

template <class Work>
[[gnu::target("avx2"), gnu::flatten, gnu::noinline]] void with_avx2(Work work) {
  work();
}

template <class Work>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vbmi,prefer-vector-width=512"), gnu::flatten,
  gnu::noinline]] void
with_avx512(Work work) {
  work();
}

}  // namespace detail

/// The widest vectors that are used. Tests lower it, to compare.
inline Vectors widest_vectors = detail::vectors_of_processor();
#else
inline Vectors widest_vectors = Vectors::plain;
#endif

/// Calls `work`, compiled for the widest vectors that the processor has, `most` at most; they
/// decide about no value. `work` and what it calls are inlined always. Sources that call it are
/// compiled without fused multiplications and additions, which round once where the processor has
/// them.
template <Vectors most = Vectors::avx512, class Work>
[[gnu::always_inline]] inline void with_wide_vectors(Work const& work) {
#if defined(__x86_64__)
  if (most == Vectors::avx512 && widest_vectors == most) return detail::with_avx512(work);
  if (widest_vectors != Vectors::plain) return detail::with_avx2(work);
#endif
  work();
}

}  // namespace reshard::quant
