#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "pipeline/publication/target_task.hpp"

namespace reshard {

/// The files of a target, by their paths in it, and the folders that lead to them.
struct TargetTree {
  std::set<std::string> files;
  std::set<std::string> folders;
};

/// The folders of a target whose files are all there, shared by the ranks. All calls are
/// collective.
class TargetFolders {
 public:
  /// `small_files` are rank 0's. What `task` refers to outlives it.
  TargetFolders(TargetTask const& task, std::filesystem::path staging,
                std::span<FileRecord const> small_files);

  /// Files that another program has put there, and would be published with the target, are an Error
  /// of kind self_check. Returns contents_lines() of all that is there, on every rank.
  std::vector<std::string> check() const;
  /// The names in the folders reach the device.
  void sync() const;

 private:
  std::vector<std::string> mine() const;

  Comm const& comm_;
  std::filesystem::path staging_;
  TargetTree tree_;
};

}  // namespace reshard
