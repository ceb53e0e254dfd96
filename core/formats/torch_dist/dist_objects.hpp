#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/dcp/item_layout.hpp"
#include "core/formats/headers/object_gate.hpp"
#include "core/formats/megatron/mcore/extra_state.hpp"
#include "core/mapping/sides/side.hpp"

namespace reshard {

/// Numbers joined by dots: "3.8". nullopt if the text has another form.
std::optional<std::vector<Index>> parse_numbers(std::string_view text);

/// A key of torch_dist for an object: "decoder.layers.mlp.linear_fc1._extra_state/shard_3_8" is
/// `key` with offset 3 on an axis of 8.
struct ShardedObjectKey {
  std::string key;
  std::vector<Index> offsets;
  std::vector<Index> shape;
};
/// nullopt if the text has another form.
std::optional<ShardedObjectKey> parse_object_key(std::string_view text);
std::string text_of(ShardedObjectKey const& key);

/// The key of a module's state with global layer and expert numbers, in the names of mp_rank_*
/// files ("decoder.layers.3.mlp.experts.local_experts.7.linear_fc1._extra_state"); nullopt for
/// other objects.
std::optional<std::string> module_state_key(std::string_view object_key);

/// The form of such a key in a torch_dist target: with numbers in the name, or as offsets of
/// leading axes.
struct ObjectForm {
  bool stacked = false;
  Index layers = 0;
  Index experts = 0;
  std::string root = {};       ///< of the language model's names: other modules keep their keys
  bool experts_named = false;  ///< the keys of experts have their numbers (`singleton`)
};
std::string object_key(std::string const& module_key, ObjectForm const& form);

/// The choice of the source's objects for the target.
struct ObjectChoice {
  bool module_states = true;
  bool drop_rng = false;
  bool drop_optimizer = false;
};

/// Adds the objects of a torch_dist source to a torch_dist target: states of modules under their
/// new keys, all others (random generators, …) unchanged.
void copy_objects(DcpTarget& target, Checkpoint const& source, ObjectForm const& form,
                  ObjectChoice const& choice, ObjectGate& gate);

/// Adds the states of the modules of a target's stored names, from a source that has them in
/// another form or not at all.
void make_objects(DcpTarget& target, ExtraStates& extras, std::vector<StoredName> const& names,
                  std::string const& root);

}  // namespace reshard
