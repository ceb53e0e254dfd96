#pragma once

#include <filesystem>
#include <span>

#include "core/base/files/file_segment.hpp"
#include "core/transport/comm.hpp"
#include "stages/write/target_files.hpp"
#include "stages/write/target_place.hpp"

namespace reshard {

/// One file that all ranks write, and that has its name only when it is complete: until then it is
/// `.NAME.part-TOKEN` beside its place. Every call but staging() is collective.
class SingleFile {
 public:
  /// Makes the file at full size with what the layout has at its beginning; its path is the place.
  /// Error of kind target when the place is taken and may not be replaced, or is a folder.
  SingleFile(TargetLayout layout, ExistingTarget existing, Comm const& comm);
  /// Removes what is not complete.
  ~SingleFile();
  SingleFile(SingleFile const&) = delete;
  SingleFile& operator=(SingleFile const&) = delete;

  std::filesystem::path const& staging() const { return layout_.path; }
  /// Writes what ranks have kept back, syncs the file and gives it its name. Pre: what the ranks
  /// have written is synced and closed.
  void publish(std::span<FileSegment const> held);

 private:
  void check_place() const;
  void rename() const;

  std::filesystem::path place_;
  ExistingTarget existing_;
  Comm const& comm_;
  TargetLayout layout_;  ///< of the staging file
  bool made_ = false;    ///< by this rank
};

}  // namespace reshard
