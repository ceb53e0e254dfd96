#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/range.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/plan/plan.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/extract/chosen_tensors.hpp"
#include "pipeline/extract/read_records.hpp"
#include "pipeline/verify/checkpoint_query.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/write/extent_sink.hpp"

namespace reshard {

/// Which arrays of a checkpoint are read.
struct ArrayChoice {
  std::vector<std::string> patterns = {};  ///< of names, at least one (choose_tensors)
  std::string at = {};                     ///< "layer=3,expert=5": one index of these axes
  std::vector<HalfOpen<Index>> cuts = {};  ///< of the first dimensions of each array
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;  ///< of staging
};

/// Chosen tensors, laid out as one safetensors file.
struct ArrayFile {
  std::vector<ChosenTensor> tensors;
  safetensors::FilePlan file;      ///< its `__metadata__` describes the axes
  Plan plan;                       ///< its target is that file
  std::uint64_t memory_bytes = 0;  ///< of staging
};

/// A checkpoint by its headers.
struct HeadedCheckpoint {
  std::filesystem::path path;
  Checkpoint checkpoint;
};
/// Collective. Errors: source, io.
HeadedCheckpoint open_headers(CheckpointQuery const& query, Comm const& comm);
/// The query whose tensors have the names in the files.
CheckpointQuery by_stored_names(CheckpointQuery query);

/// Reads logical tensors of an opened checkpoint as row-major arrays, values as they are stored.
class ArrayReader {
 public:
  /// Finds the map. `headed` outlives the reader. `again`: what to do after a change of the source,
  /// for an Error. Collective. Errors: usage (no map), source.
  ArrayReader(HeadedCheckpoint const& headed, CheckpointQuery const& query, std::string again,
              Comm const& comm);

  JobPlan const& catalogue() const { return catalogue_; }
  Checkpoint const& checkpoint() const { return headed_.checkpoint; }
  /// Why the checkpoint's own manifest is not followed.
  std::vector<std::string> const& ignored() const { return ignored_; }
  std::string const& axis_name(DomainAxis const& axis) const;
  /// Summand of the stored values beside logical ones.
  int add_of(ChosenTensor const& tensor) const;

  /// Not collective. Errors: usage (nothing that matches), source (a dtype without whole bytes).
  ArrayFile lay_out(ArrayChoice const& choice, std::filesystem::path const& output,
                    std::size_t threads);
  /// Hands this rank's bytes of the file to a sink, each element once; not its header. For the
  /// inside of together(). Errors: source (also where a zip record has not the CRC-32 that its
  /// archive has recorded), io (a file that has changed since its header was read).
  void read(ArrayFile const& arrays, ExtentSink& sink, std::size_t threads, RecordReading records,
            Comm const& comm);
  /// Whether complete tensors can be compared with digests of the checkpoint's manifest.
  bool has_digests() const {
    return manifest_ && (manifest_->map == "none") == catalogue_.stored_names;
  }
  /// An Error of kind source where a complete tensor in the file has another digest than the
  /// manifest. `bytes` are those of the file. Pre: has_digests().
  void compare_digests(ArrayFile const& arrays, std::span<std::byte const> bytes) const;

 private:
  Json description(std::vector<ChosenTensor> const& tensors, std::string const& at) const;
  void look(std::size_t number, FileStamp const& now) const;

  HeadedCheckpoint const& headed_;
  std::string again_;
  ReadRecords records_;
  std::vector<std::string> ignored_;
  std::optional<Manifest> manifest_;
  JobPlan catalogue_;
};

}  // namespace reshard
