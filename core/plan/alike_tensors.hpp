#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// Finds tensors that differ from one before in their name and in where they lie, and in nothing
/// else: they have the same axes, and on each side one piece of the same elements, places in its
/// blob and dtype. What was proved and planned of that one holds of them, too. A checkpoint of
/// tensors without layers in common has hundreds of thousands of them. Internal to this library.
class AlikeTensors {
 public:
  /// `sides` are one catalogue or two. Borrows both.
  AlikeTensors(Model const& model, std::array<Catalog const*, 2> sides)
      : model_(model), sides_(sides) {}

  /// The first of the tensors that were asked for which is like this one; nothing where it is new.
  std::optional<TensorId> like(TensorId tensor);

 private:
  using Traits = std::vector<std::uint64_t>;
  struct Hash {
    std::size_t operator()(Traits const& traits) const;
  };
  /// False where it has not one piece on each side.
  bool find_traits(TensorId tensor);

  Model const& model_;
  std::array<Catalog const*, 2> sides_;  ///< the second may be null
  Traits traits_;                        ///< of the tensor that is asked for
  Traits last_;
  TensorId first_like_last_{};
  std::unordered_map<Traits, TensorId, Hash> first_;
};

}  // namespace reshard
