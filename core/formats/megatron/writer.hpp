#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/containers/torch/pickle/pickle.hpp"
#include "core/formats/megatron/headers/shard_name.hpp"
#include "core/formats/megatron/mcore/args.hpp"

namespace reshard::megatron {

/// The shards of a checkpoint of these sizes, in order of pp, tp, ep. An expert tensor size that
/// does not divide the tensor size is an Error of kind usage: its files cannot be named
/// (docs/formats/megatron.md, 1.2).
std::vector<ShardPlace> target_places(MeshSizes const& sizes);

/// One key of a model chunk to be written.
struct ChunkEntry {
  enum class Kind {
    tensor,       ///< dtype and shape; also a uint8 extra state whose bytes the caller writes
    none,         ///< None
    empty_uint8,  ///< torch.empty(0, dtype=torch.uint8)
    copy,         ///< a value of another document without tensors (io.BytesIO)
  };
  std::string name;
  Kind kind = Kind::tensor;
  DType dtype = DType::u8;
  std::vector<Index> shape;
  pickle::Document const* from = nullptr;  ///< copy; must outlive build_shard
  pickle::NodeId node = pickle::no_node;
  friend bool operator==(ChunkEntry const&, ChunkEntry const&) = default;
};

/// A top-level value taken over from a source file.
struct Carried {
  std::string key;
  pickle::Document const* from = nullptr;  ///< must outlive build_shard
  pickle::NodeId node = pickle::no_node;
};

/// The top-level values of a shard file that do not depend on the layout and are worth keeping:
/// scheduler and counters.
std::vector<Carried> carried_values(pickle::Document const& source);

/// The args of a Namespace of a source file, or no_node.
pickle::NodeId find_args(pickle::Document const& source);

/// The content of one model_optim_rng.pt.
struct ShardContent {
  pickle::Document const* source =
      nullptr;  ///< whose args are copied and then edited; nullptr: args are made only from `args`
  ArgValues
      args;  ///< attributes to set, in order (target_args, or everything when there is no source)
  std::int64_t iteration = 0;
  std::vector<std::vector<ChunkEntry>> chunks;  ///< one: 'model'; more: 'model0', 'model1', …
  std::vector<Carried> carried;
};

/// The entry of a storage.
struct EntryPlace {
  std::size_t chunk = 0;
  std::size_t entry = 0;
  friend bool operator==(EntryPlace const&, EntryPlace const&) = default;
};

/// A document for plan_torch_file. Tensor and storage i belong to
/// chunks[tensors[i].chunk][tensors[i].entry]; the order is that of the entries, chunk after chunk.
/// Empty uint8 extra states are tensors too, of zero bytes.
struct ShardDocument {
  pickle::Document document;
  std::vector<EntryPlace> tensors;
};

/// Builds the top-level dict: args, checkpoint_version 3.0, iteration, the chunks, then the carried
/// values. No optimizer, no rng_state. A carried value or a copy with tensors, and a duplicate name
/// in a chunk, are internal Errors.
ShardDocument build_shard(ShardContent const& content);

}  // namespace reshard::megatron
