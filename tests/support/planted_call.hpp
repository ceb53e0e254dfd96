#pragma once

#include <functional>
#include <string>

namespace reshard::test {

/// For the length of a scope, a call to the system whose path holds `part` has another answer:
/// "flock", "fsync", "getrandom" (without a path), "rename" or "renameat2" (by their old name).
/// `answer` gives an errno, `succeeds` for a call that does nothing, or `is_made` for the call
/// itself. For programs that planted_call.cpp is linked into.
class PlantedCall {
 public:
  static constexpr int succeeds = 0;
  static constexpr int is_made = -1;

  PlantedCall(std::string call, std::string part, std::function<int(std::string const&)> answer);
  PlantedCall(std::string call, std::string part, int errno_value)
      : PlantedCall(std::move(call), std::move(part),
                    [errno_value](std::string const&) { return errno_value; }) {}
  ~PlantedCall();
  PlantedCall(PlantedCall const&) = delete;
  PlantedCall& operator=(PlantedCall const&) = delete;

 private:
  std::size_t number_;
};

}  // namespace reshard::test
