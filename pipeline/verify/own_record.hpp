#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "core/formats/checkpoint.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/sha256_sums.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// A checkpoint's record of its own files, and the folder that their paths count from.
struct OwnRecord {
  std::filesystem::path root;
  std::optional<Manifest> manifest;
  std::optional<std::vector<FileSum>> sums = {};  ///< of SHA256SUMS, or of integrity.json
  std::vector<std::string> names = {};            ///< of the files that say so

  /// Whether it says what is in any file.
  bool lists_files() const { return sums || (manifest && !manifest->files.empty()); }
  std::string file() const { return (root / names.front()).string(); }
  std::string name() const { return fmt::format("{}", fmt::join(names, " and ")); }
};

/// The record of one file, by either or both.
struct ExpectedFile {
  FileRecord const* record = nullptr;
  FileSum const* sum = nullptr;

  std::string const& path() const { return record != nullptr ? record->path : sum->path; }
};

/// The record of a checkpoint with these files: in its folder, or beside them. Nothing to compare
/// with is an Error of kind usage. Looks through Sight.
OwnRecord find_record(std::filesystem::path const& path,
                      std::span<std::filesystem::path const> files, bool in_shares);

/// By path.
std::vector<ExpectedFile> expected_files(OwnRecord const& own);

/// The difference between a file and its record; "" for none. Reads it completely.
std::string fault_of(std::filesystem::path const& root, ExpectedFile const& expected);
/// Whether it is there with the recorded size; reads nothing.
std::string fault_without_reading(std::filesystem::path const& root, ExpectedFile const& expected);

/// Files with tensors that the record does not list, and lines that SHA256SUMS lacks of files that
/// the manifest lists.
void add_unlisted(OwnRecord const& own, Checkpoint const& checkpoint,
                  std::vector<std::string>& faults);

/// Of all files, each read by one rank. Collective.
std::vector<std::string> faults_of_files(OwnRecord const& own, Comm const& comm);

}  // namespace reshard
