#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.hpp"

namespace reshard {

/// The interface by which the ranks of a job share the reading of headers, independent of their
/// means of communication. All calls but rank() and size() are collective.
class HeaderExchange {
 public:
  virtual ~HeaderExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Runs `work` on every rank. If it fails on some rank, every rank throws the same Error.
  virtual void together(std::function<void()> const& work) const = 0;
  /// together(), where Sight has the answers of one rank for all.
  virtual void together_seeing(std::function<void()> const& work) const = 0;
  /// The bytes of every rank, in rank order, on every rank.
  virtual std::vector<std::string> all_gather(std::string const& bytes) const = 0;
};

/// One process that reads all headers itself.
class LoneReader final : public HeaderExchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void together(std::function<void()> const& work) const override { work(); }
  void together_seeing(std::function<void()> const& work) const override { work(); }
  std::vector<std::string> all_gather(std::string const& bytes) const override { return {bytes}; }
};

/// Ends work whose items were divided over the ranks: if items failed, every rank throws the Error
/// of the lowest item of all ranks, so that the reported one does not depend on the number of
/// ranks. `failure`: the Error of the lowest failed item of this rank, and `item` its number.
/// Collective.
void end_with_first(HeaderExchange const& exchange, std::optional<Error> const& failure,
                    std::size_t item);

}  // namespace reshard
