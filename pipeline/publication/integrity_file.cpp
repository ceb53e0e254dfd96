#include "pipeline/publication/integrity_file.hpp"

#include <algorithm>

#include "core/base/files/file.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "core/transport/gathered_texts.hpp"
#include "core/transport/in_turn.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t digest_digits = 64;

std::vector<fs::path> files_in(fs::path const& folder) {
  std::vector<fs::path> paths;
  for (auto const& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

bool wants_integrity(TargetTask const& task) {
  std::error_code ignored;
  bool const seen = task.source.storage == Storage::chunks &&
                    fs::exists(task.source.folder / integrity_name, ignored);
  bool const has_one = task.comm.max(seen ? 1 : 0) != 0;
  dcp::IntegrityChoice const choice = task.spec.target.options.dist.integrity;
  return format_of(task.spec.target.format).target().checksums &&
         choice != dcp::IntegrityChoice::never &&
         (has_one || choice == dcp::IntegrityChoice::always);
}

std::vector<FileRecord> write_integrity(fs::path const& folder, fs::path const& staging,
                                        Comm const& comm) {
  std::vector<std::string> mine;
  together(comm, [&] {
    std::vector<fs::path> const paths = files_in(folder);
    for_each_in_turn(comm, paths.size(), [&](std::size_t i) {
      mine.push_back(sha256_of(paths[i]) + paths[i].filename().string());
    });
  });
  std::vector<FileSum> known;
  for (std::string const& one : gathered_texts(mine, comm))
    known.push_back(
        {(folder / one.substr(digest_digits)).lexically_relative(staging).generic_string(),
         one.substr(0, digest_digits)});
  std::vector<FileRecord> written;
  together(comm, [&] {
    if (comm.rank() == 0) written.push_back(write_integrity(folder, staging, known));
  });
  return written;
}

FileRecord write_integrity(fs::path const& folder, fs::path const& staging,
                           std::span<FileSum const> known) {
  Integrity integrity;
  for (FileSum const& one : known)
    if (fs::path const path = staging / one.path; path.parent_path() == folder)
      integrity.files.push_back({path.filename().string(), one.sha256});
  std::ranges::sort(integrity.files, {}, &Integrity::Entry::path);
  fs::path const path = folder / integrity_name;
  std::string const text = integrity_text(integrity);
  write_text_file(path, text);
  return record_of_text(path.lexically_relative(staging).generic_string(), text);
}

}  // namespace reshard
