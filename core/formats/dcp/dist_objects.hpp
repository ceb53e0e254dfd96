#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/dcp/item_layout.hpp"
#include "core/formats/megatron/extra_state.hpp"
#include "core/formats/object_gate.hpp"
#include "core/mapping/side.hpp"

namespace reshard {

/// Numbers joined by dots: "3.8". Nothing when the text has another form.
std::optional<std::vector<Index>> parse_numbers(std::string_view text);

/// A key of torch_dist for an object: "decoder.layers.mlp.linear_fc1._extra_state/shard_3_8" is
/// `key` with offset 3 on an axis of 8.
struct ShardedObjectKey {
  std::string key;
  std::vector<Index> offsets;
  std::vector<Index> shape;
};
/// Nothing when the text has another form.
std::optional<ShardedObjectKey> parse_object_key(std::string_view text);
std::string text_of(ShardedObjectKey const& key);

/// The key that a module's state has with global layer and expert numbers in the names of mp_rank_*
/// files
/// ("decoder.layers.3.mlp.experts.local_experts.7.linear_fc1._extra_state"); nothing for objects
/// that are no such state.
std::optional<std::string> module_state_key(std::string_view object_key);

/// How a torch_dist target spells such a key: with numbers in the name, or in front.
struct ObjectForm {
  bool stacked = false;
  Index layers = 0;
  Index experts = 0;
  std::string root = {};       ///< of the language model's names: other modules keep their keys
  bool experts_named = false;  ///< the keys of experts have their numbers (`singleton`)
};
std::string object_key(std::string const& module_key, ObjectForm const& form);

/// Which objects of a source go into the target.
struct ObjectChoice {
  bool module_states = true;
  bool drop_rng = false;
  bool drop_optimizer = false;
};

/// Adds the objects of a torch_dist source to a torch_dist target: states of modules under their
/// new keys, all others (random generators, …) as they are.
void copy_objects(DcpTarget& target, Checkpoint const& source, ObjectForm const& form,
                  ObjectChoice const& choice, ObjectGate& gate);

/// Adds the states that the modules behind the stored names of a target keep, from a source that
/// has them otherwise or not at all.
void make_objects(DcpTarget& target, ExtraStates& extras, std::vector<StoredName> const& names,
                  std::string const& root);

}  // namespace reshard
