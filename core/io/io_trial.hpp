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

/// What a short trial of all engines (io_engines) says.
struct IoTrial {
  /// The fastest; the first of the engines unless another is faster by more than trials differ.
  std::string_view chosen;
  std::vector<EngineRate> rates;  ///< in the order of the engines
};

/// What each engine is to move in a trial for a job of so many bytes: more than caches of devices
/// hide, and little of what the job takes.
std::uint64_t trial_bytes_for(std::uint64_t job_bytes);

/// Reads a part of the files with each engine, each another part, which is dropped from the page
/// cache first. Where they hold too little for that, the default engine is chosen untried.
IoTrial try_reading(std::span<std::filesystem::path const> files, std::size_t threads,
                    std::uint64_t trial_bytes);

/// Writes files that have no name with each engine in a folder, until they are on the device.
IoTrial try_writing(std::filesystem::path const& folder, std::size_t threads,
                    std::uint64_t trial_bytes);

/// The choice that these rates lead to. Pre: one for each engine, in their order.
std::string_view fastest_engine(std::span<EngineRate const> rates);

}  // namespace reshard
