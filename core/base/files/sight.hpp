#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.hpp"

namespace reshard {

/// Answers a thread's questions about folders and small files. If several ranks need the same
/// answer (caches of listings, files of one name on each node and files that are replaced meanwhile
/// make answers differ), one rank accesses the file system and the others get its answers. All
/// accesses while a source is opened or a job is planned go through seen() or File, so that the
/// ranks agree by construction.
class Sight {
 public:
  virtual ~Sight() = default;
  /// The answer to a question, an Error included. Every rank asks the same questions in the same
  /// order; `look` is called on the rank that accesses the file system. Collective.
  virtual std::string see(std::string_view question, std::function<std::string()> const& look) = 0;
};

/// The Sight of the calling thread; nullptr: it accesses the file system itself.
Sight* current_sight();

/// Sets the Sight of this thread while the object lives; nullptr: the thread accesses the file
/// system itself.
class SightScope {
 public:
  explicit SightScope(Sight* sight);
  ~SightScope();
  SightScope(SightScope const&) = delete;
  SightScope& operator=(SightScope const&) = delete;

 private:
  Sight* before_;
};

/// Records the files that this thread opens for reading while the object lives, with their stamps
/// at the first opening.
class OpenedFiles {
 public:
  OpenedFiles();
  ~OpenedFiles();
  OpenedFiles(OpenedFiles const&) = delete;
  OpenedFiles& operator=(OpenedFiles const&) = delete;

  std::map<std::filesystem::path, FileStamp> const& stamps() const { return stamps_; }
  /// Called by File: records the file if the calling thread has an OpenedFiles.
  static void note(std::filesystem::path const& path, std::function<FileStamp()> const& stamp);

 private:
  OpenedFiles* before_;
  std::map<std::filesystem::path, FileStamp> stamps_;
};

/// The result of `look` for a path, through the Sight of this thread. `what` distinguishes the
/// questions about one path.
std::string seen(std::string_view what, std::filesystem::path const& path,
                 std::function<std::string()> const& look);
bool seen_flag(std::string_view what, std::filesystem::path const& path,
               std::function<bool()> const& look);
/// Texts without a zero byte, such as names.
std::vector<std::string> seen_names(std::string_view what, std::filesystem::path const& path,
                                    std::function<std::vector<std::string>()> const& look);

/// Whether a path exists, is a regular file, is a folder: links followed; a path that cannot be
/// accessed counts as missing.
bool sees_anything(std::filesystem::path const& path);
bool sees_file(std::filesystem::path const& path);
bool sees_folder(std::filesystem::path const& path);

}  // namespace reshard
