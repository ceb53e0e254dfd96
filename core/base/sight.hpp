#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.hpp"

namespace reshard {

/// How a thread looks at folders and small files. Where several ranks must see the same (a listing
/// served from a cache, a file of the same name on each node, a file that is replaced between two
/// looks would show them different things), one of them looks and the others get its answers. What
/// accesses the file system while a source is opened or a job is planned asks through seen() or
/// File, so that the ranks agree by construction.
class Sight {
 public:
  virtual ~Sight() = default;
  /// The answer to a question, an Error included. Every rank asks the same questions in the same
  /// order; `look` is called where this rank is the one that looks.
  virtual std::string see(std::string_view question, std::function<std::string()> const& look) = 0;
};

/// That of the calling thread; null: it looks for itself.
Sight* current_sight();

/// Lends a sight to this thread for as long as it lives; null: the thread accesses the file system
/// itself.
class SightScope {
 public:
  explicit SightScope(Sight* sight);
  ~SightScope();
  SightScope(SightScope const&) = delete;
  SightScope& operator=(SightScope const&) = delete;

 private:
  Sight* before_;
};

/// Which files this thread opens for reading while it is alive, each as it was when it was first
/// opened.
class OpenedFiles {
 public:
  OpenedFiles();
  ~OpenedFiles();
  OpenedFiles(OpenedFiles const&) = delete;
  OpenedFiles& operator=(OpenedFiles const&) = delete;

  std::map<std::filesystem::path, FileStamp> const& stamps() const { return stamps_; }
  /// For File: notes it for the calling thread, if it has such a list.
  static void note(std::filesystem::path const& path, std::function<FileStamp()> const& stamp);

 private:
  OpenedFiles* before_;
  std::map<std::filesystem::path, FileStamp> stamps_;
};

/// What `look` gives for a path, through the sight of this thread. `what` distinguishes the
/// questions that are asked of one path.
std::string seen(std::string_view what, std::filesystem::path const& path,
                 std::function<std::string()> const& look);
bool seen_flag(std::string_view what, std::filesystem::path const& path,
               std::function<bool()> const& look);
/// Texts without a zero byte, such as names.
std::vector<std::string> seen_names(std::string_view what, std::filesystem::path const& path,
                                    std::function<std::vector<std::string>()> const& look);

/// What is at a path, links followed; what cannot be accessed counts as missing.
bool sees_anything(std::filesystem::path const& path);
bool sees_file(std::filesystem::path const& path);
bool sees_folder(std::filesystem::path const& path);

}  // namespace reshard
