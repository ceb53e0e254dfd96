#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.hpp"
#include "core/base/tables/id_table.hpp"
#include "core/base/tables/shared_shape.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/layout/axis.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/mapping/logical_axes.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/quant.hpp"

namespace reshard {

/// A parameter as the model means it, or one of its optimizer states: a dotted name, that of a
/// state with its slot behind ("attn.q (exp_avg)"), and the axes in canonical order.
struct LogicalTensor {
  SharedText name;
  LogicalAxes axes;
  SlotId slot = SlotId::weight;
};

/// Facts and options with which a map's expressions are evaluated.
struct ModelFacts {
  Json facts;                 ///< config.json, or the `args` of a Megatron checkpoint
  std::string origin;         ///< "config.json", "args": for messages
  Index true_vocab_size = 0;  ///< 0: from the facts
  std::optional<Index> prediction_layers = std::nullopt;  ///< what `M` is, whatever the facts say
};

/// A tensor that is known by name and shape only.
struct PlainTensor {
  SharedText name;
  SharedShape shape;
};

/// Of a model about which nothing else is known: that a tensor is the state of another.
struct PlainState {
  TensorId parameter{};
  std::string slot;  ///< "exp_avg"
  TensorId state{};
};

/// The name of what a parameter has in a slot: "embed (exp_avg)".
std::string slot_name(std::string_view parameter, std::string_view slot);

/// First words of the name of a tensor's part: "layer.3." in "layer.3.attn.q".
std::string part_prefix(std::string_view axis, Index index);

/// One model: the sizes of its axes, its sets and its logical tensors. Pure data, from map files
/// and facts.
class Model {
 public:
  /// `definitions` gives [let], [axes], [sets]; [tensors] of both files unite. They may be the same
  /// file. Axes whose facts are absent do not exist, nor do tensors over them.
  Model(MapFile const& definitions, MapFile const& tensors, ModelFacts const& facts);

  /// A model about which nothing is known: every tensor has one axis per dimension. Tensors are
  /// numbered as given; names that repeat are an Error of kind source.
  Model(std::span<PlainTensor const> tensors, std::string origin);

  /// Gives every parameter a further slot for each name ("exp_avg"; slot_name()): optimizer state,
  /// whose axes are those of its parameter. None exists yet. Once, after all parameters and their
  /// parts.
  void add_slots(std::span<std::string const> names);
  /// Says which tensors of a model of plain tensors are states of others, which have no axes in
  /// common with them. Once.
  void note_states(std::span<PlainState const> states);
  /// Slots of parameters, by SlotId: "weight", then those added.
  std::vector<std::string> const& slots() const { return slots_; }
  /// The tensor in a slot of a parameter. Pre: `parameter` is no state.
  TensorId in_slot(TensorId parameter, SlotId slot) const;
  /// The same; nothing where the parameter has none. `slot` is none of weights.
  std::optional<TensorId> state_of(TensorId parameter, SlotId slot) const;

  /// The ways in which weights of this model may be quantised.
  void set_schemes(std::vector<QuantScheme> schemes);
  std::vector<QuantScheme> const& schemes() const { return schemes_; }
  /// The axis whose indices can be quantised or not, one by one: the first, when it counts layers
  /// or depths.
  std::optional<AxisId> layer_axis(TensorId tensor) const;
  /// Adds a part of a quantised weight as a logical tensor with these axes; of the weight's layers
  /// it has `members`. `instead`: the weight itself is held by such parts there.
  TensorId add_part(TensorId weight, std::string name, std::vector<LogicalAxis> axes,
                    std::vector<bool> const& members, bool instead = true);
  /// Whether some of the tensor, or all, is held by its parts.
  bool quantised(TensorId tensor) const { return quantised_.contains(tensor); }
  /// How adapters of this model may be named.
  void set_adapter_forms(std::vector<MapAdapter> forms) { adapter_forms_ = std::move(forms); }
  std::vector<MapAdapter> const& adapter_forms() const { return adapter_forms_; }
  /// Adds a matrix of a low-rank adapter of this rank as a logical tensor; of the weight's layers
  /// it has `members`. Pre: rank_axis() of the rank was called.
  TensorId add_adapter(TensorId weight, std::string name, std::vector<LogicalAxis> axes,
                       std::vector<bool> const& members);
  /// The axis of the ranks of adapters of this rank, which is added where it is new: "rank8".
  AxisId rank_axis(Index rank);
  /// The ranks of the adapters of this model, ascending; empty for one without adapters.
  std::vector<Index> const& adapter_ranks() const { return adapter_ranks_; }

  /// Takes all layers but `members` away from a tensor; one without layers exists when any member
  /// is true.
  void limit(TensorId tensor, std::vector<bool> const& members);

  /// Whether an axis is no axis of any tensor that the maps declare: a fact that both sides of a
  /// job must agree on.
  bool fact_alone(std::string_view axis) const { return facts_alone_.contains(axis); }

  /// Keeps `kept` of the indices of an axis, ascending, in its sets too; tensors without any of
  /// them do not exist.
  void select(AxisId axis, std::vector<Index> const& kept);
  /// Gives an axis without sets another size.
  void resize(AxisId axis, Index size) { axes_.resize(axis, size); }
  /// Takes the facts of `other`, which describe this model as it is now, and returns the name of
  /// the first axis or set that `other` has otherwise ("" for none). An axis that `other` lacks
  /// must be one without tensors.
  std::string restate(Model const& other);

  AxisTable const& axes() const { return axes_; }
  std::vector<LogicalTensor> const& tensors() const { return tensors_; }
  LogicalTensor const& tensor(TensorId id) const { return tensors_[index(id)]; }
  /// Nothing when the model cannot have a tensor of this name.
  std::optional<TensorId> find_tensor(std::string_view name) const;
  bool exists(TensorId tensor) const { return exists_[index(tensor)]; }
  void set_exists(TensorId tensor, bool exists) { exists_[index(tensor)] = exists; }

  /// Whether index i of an axis is in a set ("layer.moe"); "" is the whole axis.
  bool in_set(std::string_view set, Index i) const;
  /// The domain of a tensor, one entry per axis.
  std::vector<DomainAxis> domain(LogicalTensor const& tensor) const;
  /// Indices of an axis from `count` on are padding that cannot be distinguished from data, so it
  /// is copied along; it is not part of the logical array.
  void mean_only(AxisId axis, Index count) { meant_[axis] = count; }
  /// The domain without such padding.
  std::vector<DomainAxis> meant_domain(LogicalTensor const& tensor) const;
  /// Every element of the tensor, in its logical dtype.
  Index volume(LogicalTensor const& tensor) const;

  /// A let, an axis size, a fact; null when absent. `origin()` names where facts come from.
  Json value(std::string_view key) const;
  /// The same, where a set's name ("layer.moe") is a list of 0 and 1.
  Json value_or_set(std::string_view key) const;
  std::string const& origin() const { return origin_; }
  /// The parallel axes that its maps know.
  std::vector<std::string> const& mesh_axes() const { return mesh_axes_; }
  /// Evaluates expressions over facts, lets, axes and sets (a set's name is a list of 0 and 1);
  /// absent results stay null.
  std::vector<std::pair<std::string, Json>> evaluate(
      std::vector<NamedExpression> const& table) const;

 private:
  friend class ModelBuilder;
  /// Notes the name of the next tensor; false, and nothing, where one before has it.
  bool add_name(SharedText const& name);
  std::uint32_t number_of(SharedText const& name) const;
  LogicalAxes plain_axes(SharedShape shape);

  AxisTable axes_;
  IdTable by_name_;  ///< of tensors_
  std::map<std::string, std::vector<bool>, std::less<>> sets_;
  std::map<std::string, Json, std::less<>> lets_;
  std::vector<LogicalTensor> tensors_;
  std::vector<std::string> slots_{"weight"};
  std::map<std::pair<TensorId, SlotId>, TensorId> plain_states_;  ///< of note_states()
  std::size_t parameters_ = 0;  ///< tensors that are no states, once there are slots
  std::vector<bool> exists_;
  std::vector<QuantScheme> schemes_;
  std::vector<MapAdapter> adapter_forms_;
  std::vector<Index> adapter_ranks_;
  std::set<TensorId> quantised_;
  std::map<AxisId, Index> meant_;
  std::set<std::string, std::less<>> facts_alone_;
  Json facts_;
  std::string origin_;
  std::vector<std::string> mesh_axes_;
};

/// The axes of a part of a quantised weight: those of the weight, in blocks as the digits of the
/// part's layout have them; axes that the part has one value for are left out, and an axis that
/// only the part has comes last.
std::vector<LogicalAxis> part_axes(LogicalTensor const& weight, AxisTable const& axes,
                                   LayoutExpr const& weight_layout, LayoutExpr const& part_layout,
                                   std::string const& part_name);

}  // namespace reshard
