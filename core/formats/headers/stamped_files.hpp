#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/headers/header_exchange.hpp"
#include "core/io/file_set.hpp"

namespace reshard {

/// Serialises stamps for messages between ranks.
constexpr auto wire_fields(FileStamp const&) {
  using T = FileStamp;
  return std::tuple(&T::bytes, &T::mtime_ns, &T::ctime_ns, &T::inode, &T::device);
}

/// The files of a source while their headers are read: records the stamp of each when this rank
/// opened it.
class StampedFiles {
 public:
  explicit StampedFiles(FilePaths files);

  /// As FileSet::open(), through the page cache. Any thread.
  std::shared_ptr<File const> open(std::uint32_t file);

  /// Fills source.stamps and stamped_by, the same on every rank; files that no rank has opened are
  /// opened now. Two ranks that saw different files under one name are an Error of kind source.
  /// Collective.
  void give_stamps(Checkpoint& source, HeaderExchange const& exchange);

 private:
  void add_stamps(Checkpoint& source, int rank, std::string const& stamps) const;

  FilePaths paths_;
  FileSet set_;
  std::mutex mutex_;  ///< of stamps_
  std::vector<std::optional<FileStamp>> stamps_;
};

/// The difference of two stamps that shows a changed or different file, for a sentence: "size 12
/// against 14"; "" if there is none. Device numbers are not compared, as they differ between hosts.
std::string difference(FileStamp const& one, FileStamp const& other);

/// Throws the Error about two ranks that see different files.
[[noreturn]] void refuse_two_worlds(std::filesystem::path const& file, int rank,
                                    FileStamp const& seen, int other_rank, FileStamp const& other);

}  // namespace reshard
