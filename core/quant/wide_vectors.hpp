#pragma once

namespace reshard::quant {

#if defined(__x86_64__)
namespace detail {
inline bool const has_avx2 = __builtin_cpu_supports("avx2") != 0;

template <class Work>
[[gnu::target("avx2"), gnu::flatten, gnu::noinline]] void with_avx2(Work work) {
  work();
}
}  // namespace detail
#endif

/// Calls `work`, compiled for the widest vectors that the processor has; they decide about no
/// value. `work` and what it calls are inlined always.
template <class Work>
[[gnu::always_inline]] inline void with_wide_vectors(Work const& work) {
#if defined(__x86_64__)
  if (detail::has_avx2) return detail::with_avx2(work);
#endif
  work();
}

}  // namespace reshard::quant
