#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/journal/job_identity.hpp"

namespace reshard {

/// A line for each of these files and folders below a staging folder, as the server of its file
/// system has it now, for JournalFolder::mark_complete(). Many at a time. An Error of kind io when
/// one cannot be looked at, or is a link.
std::vector<std::string> contents_lines(std::span<std::filesystem::path const> paths,
                                        std::filesystem::path const& root);

/// The journal folder of a target, `.NAME.resume-TOKEN`, which stages/write/publish.hpp makes and
/// renames:
///
///   owner        the run that writes here
///   job          identity of the job, inode and device of the staging folder, and the job, to say
///                what has changed; written when all files of the staging folder are there
///   job.lost     the same after a sync has failed: nobody goes on with what was written
///   source       path of the source, when a nightly job made the journal
///   complete     every file of the staging folder with size, times and inode: all was written and
///                verified, a name is all that is missing
///   0002.base    what the runs before run 2 did, in one entry; the files of those runs are then
///                removed
///   0002-00007   the journal of rank 7 in run 2
///   0002.claim-00031   a rank of run 2 does part 31 (PartFiles), until all ranks have written
///
/// A path and what its files say of the job; not collective.
class JournalFolder {
 public:
  explicit JournalFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path const& path() const { return path_; }

  /// Whether its records are of this staging folder, whatever its name is now.
  bool is_of(std::filesystem::path const& staging) const;
  /// Why the earlier run of a target cannot be resumed, for a sentence; nothing when it can.
  /// `staging` is its staging folder.
  std::optional<std::string> obstacle(std::filesystem::path const& staging,
                                      JobIdentity const& identity) const;

  /// Notes what the first run of a job is, in the folder that is there. `nightly_source`: the path
  /// of a nightly job's source, else empty.
  void create(std::filesystem::path const& staging, JobIdentity const& identity,
              std::string const& nightly_source) const;

  /// Makes the written bytes useless to a resumed run. For a write-back that failed: the system
  /// reports it once, so that a later sync would find nothing wrong.
  void distrust() const;

  /// Notes that the staging folder is complete and verified, as it is now. `lines`:
  /// contents_lines() of all that lies in it, in any order. `manifest`: the XXH3 of what was
  /// written as its manifest; nothing where it has none.
  void mark_complete(std::vector<std::string> lines, std::optional<std::uint64_t> manifest) const;
  /// Whether it was, and has not been touched since.
  bool is_complete(std::filesystem::path const& staging) const;

  std::filesystem::path rank_file(std::uint64_t run, int rank) const;
  std::filesystem::path base_file(std::uint64_t run) const;
  std::filesystem::path part_file(std::uint64_t run, std::size_t part) const;
  /// The part that a file of this name stands for: `part_file(run, part).filename()` gives `part`.
  /// Nothing for other files.
  static std::optional<std::size_t> part_of(std::string const& file_name, std::uint64_t run);

 private:
  std::filesystem::path path_;
};

}  // namespace reshard
