#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "core/base/text/json.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/verify/reading_terms.hpp"
#include "stages/verify/extent_comparer.hpp"

namespace reshard {

/// Two checkpoints of any formats and layouts, and how they are compared.
struct CompareRequest {
  std::filesystem::path a;
  std::filesystem::path b;
  Comparison comparison = Comparison::bytes;
  /// How each is read; both maps "none": by stored names. A config of one side serves the other,
  /// too, and rows of a vocabulary count for both.
  ReadingTerms terms_a = {};
  ReadingTerms terms_b = {};
  /// Jobs whose [source] and [model] say how a side is read, beside its terms; null for none.
  std::shared_ptr<JobSpec const> job_a = {};
  std::shared_ptr<JobSpec const> job_b = {};
  bool by_records = true;         ///< what these leave open is as the records of a and b say
  std::filesystem::path adapter;  ///< that is merged into a's weights while they are read; empty
                                  ///< for none
  bool by_maps = false;           ///< stored names alone decide only where no map reads both
  bool weights_only = false;      ///< optimizer state and quantisers' values are left out
  bool histogram = false;         ///< of values: the text has the differences by powers of ten
  std::size_t row_limit = 50;     ///< of the text
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;
  MapLibrary library;
};

struct CompareReport {
  Json json;         ///< on rank 0
  std::string text;  ///< on rank 0
  bool same = true;
};

/// Reads both checkpoints once (without replicas of a) and compares every element of b, replicas
/// included, with that of a. Collective. Errors: usage (no map fits, Megatron shards without one),
/// source (damage), io.
CompareReport compare_checkpoints(CompareRequest const& request, Comm const& comm);

}  // namespace reshard
