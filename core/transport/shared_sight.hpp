#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/files/sight.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Rank 0 accesses the file system, the others get its answers. Each question is one broadcast, so
/// a folder of n files should be one question.
class SharedSight : public Sight {
 public:
  explicit SharedSight(Comm const& comm) : comm_(comm) {}

  std::string see(std::string_view question, std::function<std::string()> const& look) override;
  /// Ends the questions. Ranks that have failed on their own answer the others' questions until
  /// here. Collective.
  void end();
  /// The Error for which this rank cannot follow the others, even if it was caught; nullopt if
  /// there is none.
  std::optional<Error> const& lost() const { return lost_; }

 private:
  std::string look_for_all(std::string_view question,
                           std::function<std::string()> const& look) const;
  std::string hear(std::string_view question);
  [[noreturn]] void lose(std::string_view question, std::string_view other);

  Comm const& comm_;
  bool over_ = false;  ///< rank 0 has called end()
  std::optional<Error> lost_;
};

/// As together(), for work that reads folders and small files: on every rank, Sight has the answers
/// of rank 0.
void together_seeing(Comm const& comm, std::function<void()> const& work);

}  // namespace reshard
