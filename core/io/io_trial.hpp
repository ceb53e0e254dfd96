#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace reshard {

/// The rate of an engine in a trial.
struct EngineRate {
  std::string_view engine;
  double bytes_per_second = 0;  ///< 0: the engine failed
};

/// Result of a short trial of all engines (io_engines). Each is tried three times, in turn with the
/// others; of the first engine the best time counts, of the others the worst.
struct IoTrial {
  /// The fastest; the first of the engines unless another is faster by more than trials differ.
  std::string_view chosen;
  std::vector<EngineRate> rates;  ///< in the order of the engines; none: untried
  double cached_share = 0;        ///< of the read bytes, see share_in_page_cache()
};

/// Bytes that each engine moves in each pass of a trial for a job of `job_bytes`: over all engines
/// and passes about a hundredth of a job of 16 to 64 GiB, and less of a larger one.
std::uint64_t trial_bytes_for(std::uint64_t job_bytes);

/// The share of the files' bytes in the page cache of this host, from 0 to 1, by a sample. Pages of
/// files that this user neither owns nor may write count as cached: the system does not report
/// them. Pre: a size for each file.
double share_in_page_cache(std::span<std::filesystem::path const> files,
                           std::span<std::uint64_t const> sizes);

/// Reads a part of the files with each engine, each time another part, which is dropped from the
/// page cache first. The default engine is chosen without a trial if the files are too small for
/// one, or if more than half of their bytes lie in the page cache.
IoTrial try_reading(std::span<std::filesystem::path const> files,
                    std::span<std::uint64_t const> sizes, std::size_t threads,
                    std::uint64_t trial_bytes);

/// Writes files that have no name with each engine in a folder, until they are on the device.
IoTrial try_writing(std::filesystem::path const& folder, std::size_t threads,
                    std::uint64_t trial_bytes);

/// The engine to choose by these rates if the first engine reads `cached_share` of the bytes from
/// the page cache. Pre: one rate for each engine, in their order.
std::string_view fastest_engine(std::span<EngineRate const> rates, double cached_share);

}  // namespace reshard
