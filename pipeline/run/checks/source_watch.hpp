#pragma once

#include <atomic>
#include <filesystem>
#include <map>

#include "core/formats/checkpoint.hpp"
#include "core/io/file_set.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Notices when somebody changes the source while it is read: every look at a file that is not as
/// it was when its header was read is an Error of kind io. For any thread.
class SourceWatch {
 public:
  /// `described_by`: the small files that describe the source and the model, as they were read.
  /// Both outlive it.
  SourceWatch(Checkpoint const& source,
              std::map<std::filesystem::path, FileStamp> const& described_by)
      : source_(source), described_by_(described_by) {}

  /// A file of the source, by its number, as it is now.
  void look(std::size_t file, FileStamp const& now) const;
  /// Looks at each file that a set opens from now on.
  void look_at(FileSet& files) const;
  /// Asks the file system's server for each file again, on one rank. Not collective.
  void look_again(Comm const& comm) const;
  /// Whether a look has found a change.
  bool has_changed() const { return changed_; }

 private:
  void compare(std::filesystem::path const& path, FileStamp const& before,
               FileStamp const& now) const;

  Checkpoint const& source_;
  std::map<std::filesystem::path, FileStamp> const& described_by_;
  mutable std::atomic<bool> changed_ = false;
};

}  // namespace reshard
