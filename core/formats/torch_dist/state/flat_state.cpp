#include "core/formats/torch_dist/state/flat_state.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/ranges.h>

#include "core/base/text/text.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/megatron/mcore/optimizer_groups.hpp"
#include "core/formats/torch_dist/state/flat_keys.hpp"

namespace reshard::dcp {
namespace {

using pickle::Document;
using pickle::NodeId;

/// Collects buckets in the order of their numbers.
class Buffers {
 public:
  Buffers(Checkpoint const& checkpoint, StoredView& view) : checkpoint_(checkpoint), view_(view) {}

  void add(std::size_t tensor) {
    auto const key = parse_bucket_key(name(tensor));
    RESHARD_EXPECT(key.has_value());
    auto& [joined, buckets] =
        found_[{key->group.chain, key->group.group, key->buffer, key->weights}];
    joined = key->joined;
    auto& states = buckets[key->bucket];
    std::size_t const state = state_number(key->slot);
    states.resize(std::max(states.size(), state + 1), no_tensor);
    states[state] = tensor;
  }

  void finish() {
    for (auto& [place, found] : found_) {
      auto const& [chain, group, number, weights] = place;
      FlatBuffer buffer{chain, group, number, weights, {}, found.joined, {}};
      for (auto& [bucket, states] : found.buckets) {
        states.resize(view_.states.size(), no_tensor);
        check(states, bucket, std::ssize(buffer.buckets));
        buffer.buckets.push_back(std::move(states));
      }
      view_.buffers.push_back(std::move(buffer));
    }
  }

 private:
  std::string const& name(std::size_t tensor) const {
    return checkpoint_.stored.tensors.name(tensor);
  }

  std::size_t state_number(std::string_view slot) {
    auto const at = std::ranges::find(view_.states, slot) - view_.states.begin();
    if (at == std::ssize(view_.states)) view_.states.emplace_back(slot);
    return static_cast<std::size_t>(at);
  }

  void check(std::vector<std::size_t> const& states, Index bucket, Index expected) const {
    std::size_t const one =
        *std::ranges::find_if(states, [](std::size_t tensor) { return tensor != no_tensor; });
    if (bucket != expected)
      fail(ErrorKind::source,
           "{}: '{}' belongs to bucket {}, and bucket {} is missing. The checkpoint is "
           "incomplete: choose another save.",
           checkpoint_.place, name(one), bucket, expected);
    for (std::size_t s = 0; s < states.size(); ++s) {
      if (states[s] == no_tensor)
        fail(ErrorKind::source,
             "{}: '{}' is stored, but '{}' of the same bucket is missing. The checkpoint is "
             "incomplete: choose another save.",
             checkpoint_.place, name(one), view_.states[s]);
      SharedShape const shape = checkpoint_.stored.tensors.shape(states[s]);
      SharedShape const other = checkpoint_.stored.tensors.shape(one);
      if (shape.size() != 1 || shape != other)
        fail(
            ErrorKind::source,
            "{}: '{}' has the shape ({}), and '{}' of the same bucket ({}). Both must be vectors of "
            "one length: choose another save.",
            checkpoint_.place, name(states[s]), fmt::join(shape, ", "), name(one),
            fmt::join(other, ", "));
    }
  }

  Checkpoint const& checkpoint_;
  StoredView& view_;
  using Place = std::tuple<Index, Index, Index, std::string>;
  struct Found {
    bool joined = false;
    std::map<Index, std::vector<std::size_t>> buckets;
  };
  std::map<Place, Found> found_;
};

constexpr std::string_view scaler_name = "grad_scaler";

/// A group's object in the common state.
bool is_settings(StoredObject const& object) {
  auto const key = parse_group_key(object.name);
  return key && settings_name(*key) == "optimizer";
}

bool is_scaler(StoredObject const& object) {
  auto const key = parse_group_key(object.name);
  return key && settings_name(*key) == scaler_name;
}

using GroupObjects = std::vector<std::pair<GroupKey, StoredObject const*>>;

/// Each group of ranks that has state in buffers has settings of its optimizer.
void check_settings(Checkpoint const& checkpoint, GroupObjects const& objects) {
  std::set<std::pair<Index, Index>> with_settings;
  for (auto const& [key, object] : objects)
    if (is_settings(*object)) with_settings.emplace(key.chain, key.group);
  for (StoredTensor const& tensor : checkpoint.stored.tensors)
    if (auto const key = parse_bucket_key(tensor.name.text());
        key && !with_settings.contains({key->group.chain, key->group.group}))
      fail(
          ErrorKind::source,
          "{}: '{}' is stored, and no settings of the optimizer of its group of ranks (number {}). "
          "The checkpoint is incomplete: choose another save, or set source.optimizer = \"drop\".",
          checkpoint.place, tensor.name.text(), key->group.group);
}

/// The common state of a record, with the added settings.
class Gathered {
 public:
  Gathered(Checkpoint const& checkpoint, RunRecord& record)
      : checkpoint_(checkpoint),
        record_(record),
        torch_(std::make_shared<TorchFile>(*record.torch)),
        common_(torch_->document) {
    record_.torch = torch_;
    record_.edited = true;
  }

  void add(GroupKey const& key, StoredObject const& object) {
    NodeId const settings = settings_of_chain(common_, key.chain);
    if (settings == pickle::no_node)
      fail(ErrorKind::source,
           "{}: '{}' belongs to an optimizer that the common state does not have. The files are of "
           "two saves: restore those of one.",
           checkpoint_.place, object.name);
    std::string_view const name = settings_name(key);
    NodeId const known = common_.find(settings, name);
    NodeId const value = copy(object);
    if (known == pickle::no_node)
      common_.set(settings, name, value);
    else if (name == scaler_name)
      check_scale(known, value, object);
    else
      add_lacking_groups(common_, known, value, place_of(object));
  }

 private:
  std::string place_of(StoredObject const& object) const {
    return fmt::format("{}: '{}'", checkpoint_.place, object.name);
  }

  NodeId copy(StoredObject const& object) {
    std::filesystem::path const& path = checkpoint_.files[object.item.file];
    File const file = File::open_for_reading(path);
    TorchFile torch =
        read_torch_file(FileRange(file, object.item.offset_bytes, object.item.size_bytes));
    for (pickle::TensorRef& tensor : torch.document.tensors) {
      StorageRecord const storage = torch.storages.at(tensor.storage.key);
      tensor.storage.key = fmt::format("{}/{}", object.name, tensor.storage.key);
      torch_->storages.emplace(tensor.storage.key, storage);
      record_.elsewhere.emplace(tensor.storage.key, path);
    }
    // Megatron stores the objects of one key as a list.
    NodeId root = torch.document.root;
    if (pickle::Node const& list = torch.document.at(root); list.kind == pickle::Kind::list) {
      if (list.items.size() != 1)
        fail(ErrorKind::source,
             "{}: '{}' is a list of {} values, expected one. The file is not from Megatron, or "
             "damaged: restore it.",
             checkpoint_.place, object.name, list.items.size());
      root = list.items.front();
    }
    return common_.add_copy(torch.document, root);
  }

  /// Checks that all ranks have the same loss scale.
  void check_scale(NodeId known, NodeId value, StoredObject const& object) {
    for (auto const& [field, node] : common_.members(value)) {
      NodeId const other = common_.find(known, field);
      if (other != pickle::no_node && value_text(other) == value_text(node)) continue;
      fail(ErrorKind::source,
           "{}: '{}' of the loss scale is another in the group of ranks before. The files are of "
           "two saves: restore those of one, or set source.optimizer = \"drop\".",
           place_of(object), field);
    }
  }

  std::string value_text(NodeId id) const {
    pickle::Node const& node = common_.at(id);
    if (node.kind == pickle::Kind::tensor)
      return tensor_bytes(record_, common_.tensors[node.index]);
    return fmt::format("{} {} {}", node.boolean, node.integer, node.real);
  }

  Checkpoint const& checkpoint_;
  RunRecord& record_;
  std::shared_ptr<TorchFile> torch_;
  Document& common_;
};

}  // namespace

void add_flat_buffers(Checkpoint const& checkpoint, std::vector<std::size_t> const& tensors,
                      StoredView& view) {
  Buffers buffers(checkpoint, view);
  for (std::size_t const tensor : tensors) buffers.add(tensor);
  buffers.finish();
}

void gather_settings(Checkpoint const& checkpoint, RunRecord& record) {
  GroupObjects objects;
  for (StoredObject const& object : checkpoint.stored.objects)
    if (is_settings(object) || is_scaler(object))
      objects.emplace_back(*parse_group_key(object.name), &object);
  std::ranges::sort(objects, {}, [](auto const& one) {
    return std::tuple(one.first.chain, one.first.group, one.first.rest);
  });
  check_settings(checkpoint, objects);
  if (objects.empty()) return;
  Gathered gathered(checkpoint, record);
  for (auto const& [key, object] : objects) gathered.add(key, *object);
}

}  // namespace reshard::dcp
