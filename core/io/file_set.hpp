#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/files/file_paths.hpp"
#include "core/io/file_io.hpp"

namespace reshard {

/// The files of one job, by number: opened on first use, about `open_limit` kept open, the least
/// recently used closed first. Every call may come from any thread. A file that is read stays open
/// for its holder after it has left the set. A file that is written leaves the set only when
/// no one holds it, and after a sync through the descriptor that wrote it: another one might not
/// learn of a failed write-back.
class FileSet {
 public:
  enum class Access { read, write };

  /// A quarter of the descriptors that this process may have, 64 to 2048: an engine may need two
  /// for a file, and a job has two sets.
  static std::size_t usual_open_limit();

  /// Pre: open_limit >= 1. Files of Access::write exist already, at their full size. `io` opens
  /// them; nullptr: the default engine.
  FileSet(FilePaths paths, Access access, std::size_t open_limit = usual_open_limit(),
          std::shared_ptr<FileIo> io = nullptr);

  /// Sets a function that is called with each file whenever it is opened, by several threads at the
  /// same time; open() throws its exceptions. Not to be called while a file is being opened.
  void look_at_each(std::function<void(std::uint32_t, File const&)> look) {
    look_ = std::move(look);
  }

  /// The open file; a number that is not in the set is an internal Error; other errors are those of
  /// File.
  std::shared_ptr<IoFile const> open(std::uint32_t file);
  /// Adds a file that the caller has just created and written; it is closed if the set is full.
  /// Pre: Access::write, and it is not open here.
  void adopt(std::uint32_t file, File made);
  /// Data that was written to the file before this call reaches the device. After a failure every
  /// further call fails too: the system reports it only once.
  void sync(std::uint32_t file);
  /// The numbers of the files that were perhaps written since their last sync, ascending.
  std::vector<std::uint32_t> unsynced() const;
  /// Closes all files, without a sync. Pre: no one holds them any more. Throws the first error of
  /// closing a written file.
  void close();

  std::filesystem::path path(std::uint32_t file) const;
  std::size_t size() const { return paths_.size(); }
  FileIo const& io() const { return *io_; }
  /// The number of files that the set keeps open.
  std::size_t open_count() const;

 private:
  struct Entry {
    std::shared_ptr<IoFile> file;  ///< null while it is being opened
    std::list<std::uint32_t>::iterator place;
    bool dirty = false;                        ///< perhaps written since its last sync was begun
    long syncs = 0;                            ///< under way
    std::optional<Error> lost = std::nullopt;  ///< the error of a failed sync
  };
  std::shared_ptr<IoFile> open_on_disk(std::uint32_t file) const;
  bool make_room();
  std::list<std::uint32_t>::iterator leaving();

  FilePaths paths_;
  Access access_;
  std::function<void(std::uint32_t, File const&)> look_;
  std::size_t open_limit_;
  std::shared_ptr<FileIo> io_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  ///< a file was opened, or a sync has ended
  std::list<std::uint32_t> recent_;  // most recently used first
  std::unordered_map<std::uint32_t, Entry> entries_;
};

}  // namespace reshard
