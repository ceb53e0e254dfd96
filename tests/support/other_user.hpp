#pragma once

#include <unistd.h>

namespace reshard::test {

/// For the length of a scope the process has another user's rights, where it has root's, whom
/// permissions do not hold back.
class AsOtherUser {
 public:
  AsOtherUser() : is_root_(::geteuid() == 0) {
    if (is_root_ && ::seteuid(65534) != 0) is_root_ = false;
  }
  ~AsOtherUser() {
    if (is_root_ && ::seteuid(0) != 0) ::_exit(1);
  }
  AsOtherUser(AsOtherUser const&) = delete;
  AsOtherUser& operator=(AsOtherUser const&) = delete;

  /// Tests of what only another user is refused are skipped without.
  bool is_other() const { return is_root_; }

 private:
  bool is_root_;
};

}  // namespace reshard::test
