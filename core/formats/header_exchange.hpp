#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.hpp"

namespace reshard {

/// How the ranks of a job share the work of reading headers, without a word of how they talk. All
/// calls but rank() and size() are collective.
class HeaderExchange {
 public:
  virtual ~HeaderExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Runs `work` on every rank. When it failed on some rank, every rank throws the same Error.
  virtual void together(std::function<void()> const& work) const = 0;
  /// The same; what `work` sees of the file system through Sight is what one rank sees.
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

/// Ends work whose items the ranks shared among them: when items failed, every rank throws the
/// Error of the lowest of all ranks, so that the number of ranks does not decide which one is
/// reported. `failure`: what the lowest of this rank's items that failed threw, and `item` its
/// number. Collective.
void end_with_first(HeaderExchange const& exchange, std::optional<Error> const& failure,
                    std::size_t item);

}  // namespace reshard
