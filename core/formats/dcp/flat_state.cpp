#include "core/formats/dcp/flat_state.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/ranges.h>

#include "core/base/text.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/dcp/flat_keys.hpp"
#include "core/formats/megatron/optimizer_groups.hpp"

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
    return checkpoint_.stored.tensors[tensor].name;
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
      auto const& shape = checkpoint_.stored.tensors[states[s]].shape;
      auto const& other = checkpoint_.stored.tensors[one].shape;
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

/// A group's object in the common state.
bool is_settings(StoredObject const& object) {
  auto const key = parse_group_key(object.name);
  return key && settings_name(*key) == "optimizer";
}

bool is_scaler(StoredObject const& object) {
  auto const key = parse_group_key(object.name);
  return key && settings_name(*key) == "grad_scaler";
}

/// Adds the value of an object to `common`.
NodeId add_object(Checkpoint const& checkpoint, StoredObject const& object, Document& common) {
  File const file = File::open_for_reading(checkpoint.files[object.item.file]);
  TorchFile const torch =
      read_torch_file(FileRange(file, object.item.offset_bytes, object.item.size_bytes));
  if (!torch.document.tensors.empty())
    fail(ErrorKind::source,
         "{}: '{}' has tensors among the settings of an optimizer (the loss scale of fp16), which "
         "this version cannot reshard in this form. Save the checkpoint with "
         "--dist-ckpt-optim-fully-reshardable, or set source.optimizer = \"drop\" to continue "
         "without it.",
         checkpoint.place, object.name);
  // Megatron keeps everything that shares a key in a list.
  NodeId root = torch.document.root;
  if (pickle::Node const& list = torch.document.at(root); list.kind == pickle::Kind::list) {
    if (list.items.size() != 1)
      fail(ErrorKind::source,
           "{}: '{}' is a list of {} values, expected one. The file is not from Megatron, or "
           "damaged: restore it.",
           checkpoint.place, object.name, list.items.size());
    root = list.items.front();
  }
  return common.add_copy(torch.document, root);
}

}  // namespace

void add_flat_buffers(Checkpoint const& checkpoint, std::vector<std::size_t> const& tensors,
                      StoredView& view) {
  Buffers buffers(checkpoint, view);
  for (std::size_t const tensor : tensors) buffers.add(tensor);
  buffers.finish();
}

bool has_group_settings(Checkpoint const& checkpoint) {
  return std::ranges::any_of(checkpoint.stored.objects, is_settings);
}

void gather_settings(Checkpoint const& checkpoint, Document& common) {
  std::vector<std::pair<GroupKey, StoredObject const*>> objects;
  for (StoredObject const& object : checkpoint.stored.objects)
    if (is_settings(object) || is_scaler(object))
      objects.emplace_back(*parse_group_key(object.name), &object);
  std::ranges::sort(objects, {}, [](auto const& one) {
    return std::tuple(one.first.chain, one.first.group, one.first.rest);
  });
  for (auto const& [key, object] : objects) {
    NodeId const settings = settings_of_chain(common, key.chain);
    if (settings == pickle::no_node)
      fail(ErrorKind::source,
           "{}: '{}' belongs to an optimizer that the common state does not have. The files are of "
           "two saves: restore those of one.",
           checkpoint.place, object->name);
    std::string_view const name = settings_name(key);
    NodeId const known = common.find(settings, name);
    if (known != pickle::no_node && name != "optimizer") continue;
    NodeId const value = add_object(checkpoint, *object, common);
    if (known == pickle::no_node)
      common.set(settings, name, value);
    else
      add_lacking_groups(common, known, value,
                         fmt::format("{}: '{}'", checkpoint.place, object->name));
  }
}

}  // namespace reshard::dcp
