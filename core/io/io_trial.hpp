#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace reshard {

/// How fast an engine was in a trial.
struct EngineRate {
  std::string_view engine;
  double bytes_per_second = 0;  ///< 0: it could not do it
};

/// Result of a short trial of all engines (io_engines). Each is tried three times, in turn with the
/// others; of the first engine the best time counts, of the others the worst.
struct IoTrial {
  /// The fastest; the first of the engines unless another is faster by more than trials differ.
  std::string_view chosen;
  std::vector<EngineRate> rates;  ///< in the order of the engines; none: untried
  double cached_share = 0;        ///< of what is read, see share_in_page_cache()
};

/// Bytes that each engine moves each time in a trial for a job of so many bytes: about a hundredth
/// of the job, all engines and times together, in a job of 16 to 64 GiB, and less in a larger one.
std::uint64_t trial_bytes_for(std::uint64_t job_bytes);

/// How much of the files' bytes lies in the page cache of this host, from 0 to 1, by a sample. What
/// the system does not tell counts as cached: it tells only who owns a file or may write it.
/// Pre: a size for each file.
double share_in_page_cache(std::span<std::filesystem::path const> files,
                           std::span<std::uint64_t const> sizes);

/// Reads a part of the files with each engine, each time another part, which is dropped from the
/// page cache first. The default engine is chosen untried where they hold too little for that, or
/// where more than half of their bytes lie in the page cache.
IoTrial try_reading(std::span<std::filesystem::path const> files,
                    std::span<std::uint64_t const> sizes, std::size_t threads,
                    std::uint64_t trial_bytes);

/// Writes files that have no name with each engine in a folder, until they are on the device.
IoTrial try_writing(std::filesystem::path const& folder, std::size_t threads,
                    std::uint64_t trial_bytes);

/// The choice that these rates lead to where the first engine reads `cached_share` of the bytes
/// from the page cache. Pre: one for each engine, in their order.
std::string_view fastest_engine(std::span<EngineRate const> rates, double cached_share);

}  // namespace reshard
