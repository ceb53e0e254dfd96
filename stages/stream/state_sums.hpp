#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// Checks optimizer state while it streams.
class StateSums {
 public:
  /// Takes the plan's checks; `model` and `files` (of the source) are for messages. All must
  /// outlive this object.
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
  std::vector<StateCheck const*> by_digest_;  ///< of the state; nullptr for none
};

}  // namespace reshard
