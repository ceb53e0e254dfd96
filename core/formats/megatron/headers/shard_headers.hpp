#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/containers/torch/torch_outline.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/megatron/headers/shard.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/state/rank_states.hpp"

namespace reshard::megatron {

/// The own values of a model file's header.
struct OwnHeader {
  std::vector<std::uint32_t> crc32;  ///< by ShardHeader::records
  std::int64_t rank = -1;            ///< args.rank; -1: not stated
};

constexpr auto wire_fields(OwnHeader const&) {
  using T = OwnHeader;
  return std::tuple(&T::crc32, &T::rank);
}

/// The headers of all files of a checkpoint as messages have them. Common parts are stored once.
struct Headers {
  std::vector<ShardHeader> commons;             ///< without args, and records without CRC-32
  std::vector<std::optional<ArgsSizes>> sizes;  ///< by common header; nullopt: it has no args
  std::vector<std::size_t> common_of;           ///< by model file
  std::vector<OwnHeader> own;                   ///< by model file
  Json args;                                    ///< of the first file
  FileStates states;  ///< of all files, those of distributed optimizers last

  ShardHeader const& operator[](std::size_t file) const { return commons[common_of[file]]; }
};

/// The first `shards` are of model files.
Headers unpacked_headers(SharedHeaders const& packed, std::size_t shards);

/// Reads the headers of the files of a checkpoint: model files, and with `with_states` those of
/// distributed optimizers. A file that equals an earlier one except for checksums, args.rank,
/// args.local_rank and random state is compared with it and not parsed. Any thread.
class ShardHeaderReader {
 public:
  /// `first`: the only file whose args are returned. Of the others, only the sizes in them.
  ShardHeaderReader(std::filesystem::path first, bool with_states)
      : first_(std::move(first)), with_states_(with_states) {}

  /// For unpacked_headers(). Errors of kind source, with the path: those of read_torch_file(),
  /// shard_header(), args_sizes(), refuse_weight_sharding(), distributed_state(), shard_state() and
  /// read_steps().
  HeaderBytes read(File const& file);

 private:
  /// A header without its file's own numbers.
  struct Found {
    std::shared_ptr<std::string const> common;
    std::string args;
    bool is_model = true;
    OwnHeader own;
    OwnFileState own_state;
    std::vector<FileTensor> steps;             ///< of FileState
    std::vector<std::uint64_t> records;        ///< offsets of the records of OwnHeader::crc32
    std::vector<std::uint64_t> state_records;  ///< offsets of the records of OwnFileState::crc32
  };
  /// A reference file for comparison.
  struct Known {
    TorchOutline outline;
    Found found;
    std::vector<std::size_t> records;  ///< numbers of those in the outline
    std::vector<std::size_t> state_records;
  };

  Found parsed(File const& file, TorchFile const& torch) const;
  std::optional<Found> compared(File const& file) const;
  void remember(File const& file, Found const& found);
  static HeaderBytes packed(Found const& found);

  std::filesystem::path first_;
  bool with_states_;
  mutable std::mutex mutex_;
  std::set<std::uint64_t> sizes_;                                     ///< of files that were parsed
  std::multimap<std::uint64_t, std::shared_ptr<Known const>> known_;  ///< by size of the file
};

}  // namespace reshard::megatron
