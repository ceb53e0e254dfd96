#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.hpp"
#include "core/layout/axis.hpp"
#include "core/layout/join.hpp"
#include "core/mapping/map_file.hpp"

namespace reshard {

/// One axis of a logical tensor: counted in blocks when div > 1 (`hidden/32`), limited to a set when `set` is not empty ("layer.moe").
struct LogicalAxis {
  AxisId axis = 0;
  Index div = 1;
  std::string set;
};

/// A weight as the model means it: its dotted name and its axes in canonical order.
struct LogicalTensor {
  std::string name;
  std::vector<LogicalAxis> axes;
};

/// What a map's expressions are evaluated with.
struct ModelFacts {
  Json facts;                 ///< config.json, or the `args` of a Megatron checkpoint
  std::string origin;         ///< "config.json", "args": for messages
  Index true_vocab_size = 0;  ///< 0: from the facts
};

/// A tensor that is known by name and shape only.
struct PlainTensor {
  std::string name;
  std::vector<Index> shape;
};

/// One model: the sizes of its axes, its sets and its logical tensors. Pure data, from map files and facts.
class Model {
 public:
  /// `definitions` gives [let], [axes], [sets]; [tensors] of both files unite. They may be the same file.
  /// Axes whose facts are absent do not exist, nor do tensors over them.
  Model(MapFile const& definitions, MapFile const& tensors, ModelFacts const& facts);

  /// A model about which nothing is known: every tensor has one axis per dimension. Tensors are numbered as given; names that repeat are an Error
  /// of kind source.
  Model(std::span<PlainTensor const> tensors, std::string origin);

  /// Adds a copy of every tensor for each name, none of which exists yet: optimizer state, which is as its weights are. The copy of tensor t under
  /// names[k] is tensor t + (k + 1) * T of T tensors before, and is called "name of tensor (names[k])".
  void add_states(std::span<std::string const> names);

  AxisTable const& axes() const { return axes_; }
  std::vector<LogicalTensor> const& tensors() const { return tensors_; }
  /// The number of a logical tensor, -1 when the model cannot have it.
  int find_tensor(std::string_view name) const;
  bool exists(int tensor) const { return exists_[static_cast<std::size_t>(tensor)]; }
  void set_exists(int tensor, bool exists) { exists_[static_cast<std::size_t>(tensor)] = exists; }

  /// Whether index i of an axis is in a set ("layer.moe"); "" is the whole axis.
  bool in_set(std::string_view set, Index i) const;
  /// The domain of a tensor, one entry per axis.
  std::vector<DomainAxis> domain(LogicalTensor const& tensor) const;
  /// Every element of the tensor, in its logical dtype.
  Index volume(LogicalTensor const& tensor) const;

  /// A let, an axis size, a fact; null when absent. `origin()` names where facts come from.
  Json value(std::string_view key) const;
  std::string const& origin() const { return origin_; }
  /// Evaluates expressions over facts, lets, axes and sets (a set's name is a list of 0 and 1); absent results stay null.
  std::vector<std::pair<std::string, Json>> evaluate(std::vector<NamedExpression> const& table) const;

 private:
  friend class ModelBuilder;
  AxisTable axes_;
  std::map<std::string, std::vector<bool>, std::less<>> sets_;
  std::map<std::string, Json, std::less<>> lets_;
  std::vector<LogicalTensor> tensors_;
  std::map<std::string, int, std::less<>> tensor_ids_;
  std::vector<bool> exists_;
  Json facts_;
  std::string origin_;
};

/// The fact under a dotted key ("text_config.hidden_size"); null when absent.
Json fact(Json const& facts, std::string_view key);

}  // namespace reshard
