#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// Looks at optimizer state while it streams.
class StateSums {
 public:
  /// The plan's checks; `model` names tensors in messages. Both outlive this.
  StateSums(Plan const& plan, Model const& model);

  bool empty() const { return by_digest_.empty(); }
  /// Adds the shares of rounded master weights to `shares`. A second moment that is negative, NaN
  /// or infinite is an Error of kind source. From any thread.
  void add(DigestPart const& part, std::byte const* staging,
           std::vector<DigestShare>& shares) const;

 private:
  void add_rounded(StateCheck const& check, DigestPart const& part, std::byte const* from,
                   std::vector<DigestShare>& shares) const;
  void check_moment(StateCheck const& check, DigestPart const& part, std::byte const* from) const;

  Plan const& plan_;
  Model const& model_;
  std::vector<StateCheck const*> by_digest_;  ///< of the state; null for none
};

}  // namespace reshard
