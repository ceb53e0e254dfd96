#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/plan/cells/hand_out.hpp"
#include "pipeline/journal/journal_folder.hpp"

namespace reshard {

/// Claims of parts as files of a journal: whoever creates the file of a part does it. That is one
/// request to a file system, and no rank waits for another. What a run has done is in its journal
/// alone; the files of an earlier run, which has another number, mean nothing.
class PartFiles : public PartClaims {
 public:
  PartFiles(JournalFolder folder, std::uint64_t run) : folder_(std::move(folder)), run_(run) {}

  /// An Error of kind io or resources when the file can neither be created nor is there.
  bool claim(std::size_t part) override;
  std::vector<std::size_t> claimed() override;
  /// Removes those that this rank has created, as far as that is possible; once no rank claims any
  /// more.
  void remove();

 private:
  JournalFolder folder_;
  std::uint64_t run_;
  std::vector<std::filesystem::path> own_;
};

}  // namespace reshard
