#include "pipeline/publication/small_files.hpp"

#include <set>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "stages/write/copy_beside.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The record of a file below `root` that is copied to the folder `to`.
FileRecord record_of_copy(fs::path const& from, fs::path const& root, fs::path const& to) {
  FileRecord record = record_of(from, root);
  record.path = (to / record.path).generic_string();
  return record;
}

/// Folders below one, each made once.
class FoldersBelow {
 public:
  explicit FoldersBelow(fs::path root) : root_(std::move(root)) {}
  void make(fs::path const& folder) {
    if (!folder.empty() && made_.insert(folder).second) make_folders(root_ / folder);
  }

 private:
  fs::path root_;
  std::set<fs::path> made_;
};

void copy_sidecars(huggingface::Folder const& from, fs::path const& to, fs::path const& staging,
                   FoldersBelow& folders, std::vector<FileRecord>& records) {
  folders.make(to);
  for (std::string const& name : from.sidecars) {
    huggingface::copy_sidecar(from, name, staging / to);
    records.push_back(record_of_copy(from.path / name, from.path, to));
  }
}

/// A file, or every file of a folder.
void add_copied(SideCopy const& side, std::vector<FileRecord>& records) {
  if (!fs::is_directory(side.from)) {
    FileRecord record = record_of(side.from, side.from.parent_path());
    record.path = side.to.generic_string();
    records.push_back(std::move(record));
    return;
  }
  for (auto const& entry : fs::recursive_directory_iterator(side.from))
    if (entry.is_regular_file())
      records.push_back(record_of_copy(entry.path(), side.from, side.to));
}

void write_text(TextFile const& text, fs::path const& staging, FoldersBelow& folders,
                std::vector<FileRecord>& records) {
  std::string const bytes = text.make ? text.make() : text.text;
  folders.make(text.path.parent_path());
  write_text_file(staging / text.path, bytes);
  records.push_back(record_of_text(text.path.generic_string(), bytes));
}

/// reshard.json could not name it.
void check_names(std::vector<FileRecord> const& records) {
  for (FileRecord const& record : records)
    if (valid_utf8(record.path) != record.path)
      fail(ErrorKind::source,
           "{}: the name of this file beside the weights is not UTF-8, and no record can name it. "
           "Rename it in the source, or remove it.",
           valid_utf8(record.path));
}

}  // namespace

std::vector<FileRecord> write_small_files(TargetDraft const& draft, fs::path const& staging) {
  std::vector<FileRecord> records;
  FoldersBelow folders(staging);
  if (draft.reference)
    copy_sidecars(*draft.reference, draft.reference_to, staging, folders, records);
  for (SideCopy const& side : draft.side_copies) {
    copy_beside(side.from, staging / side.to);
    add_copied(side, records);
  }
  for (bool const mark : {false, true})
    for (TextFile const& text : draft.texts)
      if (text.mark == mark) write_text(text, staging, folders, records);
  check_names(records);
  return records;
}

std::vector<FileSum> check_small_files(std::span<FileRecord const> written,
                                       fs::path const& staging) {
  std::vector<FileSum> sums;
  for (FileRecord const& expected : written) {
    auto const [found, sha256] = found_file(staging / expected.path, staging);
    sums.push_back({expected.path, sha256});
    if (found == expected) continue;
    fail(
        ErrorKind::self_check,
        "{}: has {} bytes with XXH3 {}, {} bytes with {} were written. Nothing was published: look for hardware errors, then "
        "run again.",
        (staging / expected.path).string(), found.size_bytes, hex64(found.xxh3),
        expected.size_bytes, hex64(expected.xxh3));
  }
  return sums;
}

}  // namespace reshard
