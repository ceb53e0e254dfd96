#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/file_tensor.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard::megatron {

/// The kind of value of a "…_extra_state" key.
enum class ExtraKind : std::uint8_t {
  none,          ///< None: Megatron's own linears
  bytes_io,      ///< io.BytesIO: Transformer Engine 1
  uint8_tensor,  ///< a uint8 tensor, often empty: Transformer Engine 2
  other,
};

/// Opaque state of a module.
struct ExtraEntry {
  SharedText key;
  ExtraKind kind = ExtraKind::none;
  std::uint32_t tensors_before =
      0;              ///< position in the chunk: after this number of ChunkTable::tensors
  FileTensor tensor;  ///< place of the bytes, for uint8_tensor
  std::uint64_t size_bytes = 0;  ///< payload of uint8_tensor and bytes_io; 0: no state
};

/// The entries of one model chunk ('model', or one of 'model0', 'model1', …), in file order.
struct ChunkTable {
  std::vector<FileTensor> tensors;
  std::vector<ExtraEntry> extras;
};

/// The header of model_optim_rng.pt; no payload was read.
struct ShardHeader {
  Json args;  ///< args_as_json(); null if the file has none
  double checkpoint_version = 0;
  std::int64_t iteration = 0;
  std::vector<ChunkTable> chunks;  ///< one, or one per virtual pipeline stage
  bool has_optimizer = false;
  bool has_rng = false;
  std::vector<std::string> other_keys;  ///< remaining top-level keys
  std::vector<std::string>
      unplaced;  ///< model keys with None, a number or text where a tensor belongs
  std::vector<StorageRecord> records;  ///< those with model tensors and a CRC-32, by offset
};

/// Reads the header of a shard file. Errors of kind source, with the path: damage, a
/// checkpoint_version below 3.0 (other QKV row order), the nested model of the time before Megatron
/// Core, model keys whose value is an object, chunk numbers with gaps.
ShardHeader read_shard_header(File const& file);
/// read_shard_header() of a parsed file (its pickle is needed again when a target is built from
/// it).
ShardHeader shard_header(File const& file, TorchFile const& torch);

/// The storages of these tensors that have a CRC-32, each once, by offset.
std::vector<StorageRecord> records_with(TorchFile const& torch,
                                        std::span<FileTensor const* const> tensors);

/// The entry for the node that is the value of an "…_extra_state" key.
ExtraEntry extra_entry(TorchFile const& torch, pickle::NodeId node, std::string const& key);

/// A header as bytes, for messages between ranks.
struct PackedHeader {
  std::string args;
  std::string common;  ///< common to files of the same part of the model: all but args and the
                       ///< CRC-32 of records
};
PackedHeader pack(ShardHeader const& header);

// The inverse; bytes that pack() does not produce are an internal Error.
Json unpack_args(std::string_view bytes);
ShardHeader unpack_common(std::string_view bytes);

}  // namespace reshard::megatron
