#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/base/error.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/journal/journal_folder.hpp"
#include "stages/write/publish.hpp"

namespace reshard {

/// Whether a journal says what rounds have done: where the ranks write together nothing can be gone
/// on with.
enum class Journaled { yes, no };

/// The staging folder of a target and its journal, taken by this run until the target gets its
/// name. Every rank knows the names; rank 0 has the lock. What is not published at the end is
/// removed, unless it is to be kept.
class StagedTarget {
 public:
  /// `publication` is rank 0's, which has given the others its token, and null on theirs.
  StagedTarget(std::filesystem::path target, std::string const& token,
               std::unique_ptr<Publication> publication, Journaled journaled);

  std::filesystem::path const& folder() const { return folder_; }
  JournalFolder const& journal() const { return journal_; }
  bool is_journaled() const { return journaled_ == Journaled::yes; }

  /// Whether what is there shall stay for the next run when this one ends without publishing. What
  /// is sealed stays in any case.
  void keep(bool kept);
  /// Everything is there and verified: whatever its publication meets, it is worth keeping.
  void seal();
  /// The names in the folders of what is there have reached the device.
  void note_durable_names() { names_ = Names::durable; }
  /// After a failed write-back what is there is not resumed. For any thread.
  void distrust_lost_writes() const;
  /// The reason of an error of this run: when the staging folder is not there any more, that is the
  /// reason.
  Error explained(Error const& error) const;

  /// Gives the target its name. Returns what could not be removed, as a sentence on rank 0; "" when
  /// nothing is left. Collective.
  std::string publish(Comm const& comm);

 private:
  std::filesystem::path target_;
  std::filesystem::path folder_;
  JournalFolder journal_;
  std::unique_ptr<Publication> publication_;
  Journaled journaled_;
  bool sealed_ = false;
  Names names_ = Names::perhaps_lost;
};

}  // namespace reshard
