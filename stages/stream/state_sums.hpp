#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// Looks at optimizer state while it streams.
class StateSums {
 public:
  /// The plan's checks; `model` names tensors in messages, `files` the source's. All outlive this.
  StateSums(Plan const& plan, Model const& model, std::span<std::string const> files);

  bool empty() const { return by_digest_.empty(); }
  /// Adds the shares of rounded master weights to `shares`. A second moment that is negative, NaN
  /// or infinite is an Error of kind source. From any thread.
  void add(DigestPart const& part, std::byte const* staging,
           std::vector<DigestShare>& shares) const;

 private:
  void add_rounded(StateCheck const& check, DigestPart const& part, std::byte const* from,
                   std::vector<DigestShare>& shares) const;
  void check_moment(StateCheck const& check, DigestPart const& part, std::byte const* from) const;

  Model const& model_;
  std::span<std::string const> files_;
  std::vector<StateCheck const*> by_digest_;  ///< of the state; null for none
};

}  // namespace reshard
