#include "core/formats/megatron/writer.hpp"

#include <array>
#include <unordered_set>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

constexpr double written_version = 3.0;
constexpr std::array<std::string_view, 3> carried_keys = {"opt_param_scheduler", "lr_scheduler",
                                                          "num_floating_point_operations_so_far"};

/// A copied tensor would still name a storage of the file it came from.
NodeId copy_without_tensors(Document& document, Document const& from, NodeId node,
                            std::string_view key) {
  auto const before = document.tensors.size();
  NodeId const copy = document.add_copy(from, node);
  if (document.tensors.size() != before)
    fail(ErrorKind::source,
         "'{}' of the source holds a tensor, and what is copied unchanged may hold none. Save the "
         "checkpoint again, or remove the entry.",
         key);
  return copy;
}

/// Builds one document; remembers which entry each tensor belongs to.
class Builder {
 public:
  explicit Builder(ShardContent const& content) : content_(content) {}

  ShardDocument build() && {
    document_.root = document_.add_dict();
    set("args", add_args());
    set("checkpoint_version", document_.add_real(written_version));
    set("iteration", document_.add_int(content_.iteration));
    for (std::size_t chunk = 0; chunk < content_.chunks.size(); ++chunk)
      set(content_.chunks.size() == 1 ? std::string("model") : fmt::format("model{}", chunk),
          add_chunk(chunk));
    for (auto const& value : content_.carried)
      set(value.key, copy_without_tensors(document_, *value.from, value.node, value.key));
    return std::move(result_);
  }

 private:
  void set(std::string_view key, NodeId value) { document_.set(document_.root, key, value); }

  NodeId add_args() {
    NodeId const source = content_.source == nullptr ? no_node : find_args(*content_.source);
    if (source == no_node) return add_namespace(document_, content_.args);
    NodeId const args = copy_without_tensors(document_, *content_.source, source, "args");
    set_args(document_, args, content_.args);
    return args;
  }

  NodeId add_chunk(std::size_t chunk) {
    std::vector<NodeId> pairs;
    std::unordered_set<std::string_view> names;
    auto const& entries = content_.chunks[chunk];
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!names.insert(entries[i].name).second)
        fail(ErrorKind::internal, "model{}['{}'] is to be written twice", chunk, entries[i].name);
      pairs.push_back(document_.add_string(entries[i].name));
      pairs.push_back(add_entry(entries[i], {chunk, i}));
    }
    return add_ordered_dict(document_, std::move(pairs));
  }

  NodeId add_entry(ChunkEntry const& entry, EntryPlace place) {
    switch (entry.kind) {
      case ChunkEntry::Kind::none: return document_.add_none();
      case ChunkEntry::Kind::copy:
        return copy_without_tensors(document_, *entry.from, entry.node, entry.name);
      case ChunkEntry::Kind::empty_uint8:
        result_.tensors.push_back(place);
        return document_.add_tensor(DType::u8, {0});
      case ChunkEntry::Kind::tensor:
        result_.tensors.push_back(place);
        return document_.add_tensor(entry.dtype, entry.shape);
    }
    fail(ErrorKind::internal, "model['{}']: an entry of unknown kind", entry.name);
  }

  ShardContent const& content_;
  ShardDocument result_;
  Document& document_ = result_.document;
};

}  // namespace

std::vector<ShardPlace> target_places(MeshSizes const& sizes) {
  int const etp = sizes.etp == 0 ? sizes.tp : sizes.etp;
  if (sizes.tp % etp != 0)
    fail(
        ErrorKind::usage,
        "target expert_tensor_parallel_size is {}, which does not divide tensor_parallel_size {}: mp_rank_* names have no expert "
        "tensor rank, so several ranks would share a file. Choose a divisor of {}.",
        etp, sizes.tp, sizes.tp);
  return shard_places(sizes);
}

std::vector<Carried> carried_values(Document const& source) {
  std::vector<Carried> values;
  if (source.root == no_node) return values;
  for (std::string_view const key : carried_keys)
    if (NodeId const node = source.find(source.root, key); node != no_node)
      values.push_back({std::string(key), &source, node});
  return values;
}

NodeId find_args(Document const& source) {
  if (source.root == no_node) return no_node;
  NodeId const args = source.find(source.root, "args");
  return args == no_node || source.at(args).kind == Kind::none ? no_node : args;
}

ShardDocument build_shard(ShardContent const& content) { return Builder(content).build(); }

}  // namespace reshard::megatron
