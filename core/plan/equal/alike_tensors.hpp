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

/// Finds tensors that differ from an earlier one only in name and location: they have the same
/// axes, and on each side one piece with the same elements, offsets in its blob and dtype. The
/// proof and the plan of the earlier tensor hold for them, too. A checkpoint whose layers are
/// separate tensors has hundreds of thousands of them. Internal to this library.
class AlikeTensors {
 public:
  /// `sides` are one catalogue or two. Borrows both.
  AlikeTensors(Model const& model, std::array<Catalog const*, 2> sides)
      : model_(model), sides_(sides) {}

  /// The first of the tensors asked for that is like this one; nullopt if there is none before.
  std::optional<TensorId> like(TensorId tensor);

 private:
  using Traits = std::vector<std::uint64_t>;
  struct Hash {
    std::size_t operator()(Traits const& traits) const;
  };
  /// False unless the tensor has one piece on each side.
  bool find_traits(TensorId tensor);

  Model const& model_;
  std::array<Catalog const*, 2> sides_;  ///< the second may be nullptr
  Traits traits_;                        ///< of the tensor asked for
  Traits last_;
  TensorId first_like_last_{};
  std::unordered_map<Traits, TensorId, Hash> first_;
};

}  // namespace reshard
