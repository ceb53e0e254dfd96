#include "pipeline/run/checks/source_records.hpp"

#include <string>
#include <vector>

#include "core/base/crc32.hpp"
#include "core/base/shown_name.hpp"
#include "core/base/text.hpp"
#include "core/containers/torch/stored_crc.hpp"
#include "core/io/file_set.hpp"
#include "core/transport/gathered_texts.hpp"

namespace reshard {
namespace {

class Comparer {
 public:
  Comparer(Checkpoint const& source, Catalog const& catalog)
      : source_(source), catalog_(catalog), files_(source.files, FileSet::Access::read) {}

  /// `crc32` is that of the bytes that were read.
  void compare(StoredRecord const& record, std::uint32_t crc32) {
    std::optional<std::uint32_t> const recorded = record.crc32 ? record.crc32 : stored(record);
    if (!recorded) return;
    ++compared_;
    if (*recorded != crc32) faults_.push_back(fault(record, crc32, *recorded));
  }

  std::size_t compared() const { return compared_; }
  std::vector<std::string> const& faults() const { return faults_; }

 private:
  std::optional<std::uint32_t> stored(StoredRecord const& record) {
    auto const file = files_.open(record.file);
    FileRange const archive(file->file(), record.archive_offset_bytes, record.archive_bytes);
    return zip::stored_crc32(archive, record.offset_bytes - record.archive_offset_bytes,
                             record.size_bytes);
  }

  std::string fault(StoredRecord const& record, std::uint32_t crc32, std::uint32_t recorded) {
    auto const file = files_.open(record.file);
    FileRange const archive(file->file(), record.archive_offset_bytes, record.archive_bytes);
    return fmt::format(
        "{}: record '{}' at byte {} ({}) has the CRC-32 {:08x}, {:08x} is recorded",
        source_.files[record.file].string(),
        shown_name(zip::record_name(archive, record.offset_bytes - record.archive_offset_bytes)),
        record.offset_bytes, tensors_in(record), crc32, recorded);
  }

  std::string tensors_in(StoredRecord const& record) const {
    std::vector<std::string> names;
    for (Blob const& blob : catalog_.blobs)
      if (blob.file == record.file && blob.offset_bytes >= record.offset_bytes &&
          blob.offset_bytes < record.offset_bytes + record.size_bytes)
        names.push_back("'" + shown_name(blob.name) + "'");
    return names.empty() ? "no tensor by itself" : listed(names, 3);
  }

  Checkpoint const& source_;
  Catalog const& catalog_;
  FileSet files_;
  std::size_t compared_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace

std::size_t check_source_records(Checkpoint const& source, Catalog const& catalog,
                                 WorkAccount const& account, Comm const& comm) {
  std::size_t const count = source.records.size();
  if (count == 0) return 0;
  auto const first_of = [&](int rank) {
    return count * static_cast<std::size_t>(rank) / static_cast<std::size_t>(comm.size());
  };
  Comparer comparer(source, catalog);
  together(comm, [&] {
    for (std::size_t r = first_of(comm.rank()); r < first_of(comm.rank() + 1); ++r) {
      StoredRecord const& record = source.records[r];
      if (account.record_covered()[r] != covered_by(0, record.size_bytes)) continue;
      comparer.compare(record, crc32_of_zeros(record.size_bytes) ^ account.record_crc32()[r]);
    }
  });
  std::vector<std::string> const faults = gathered_texts(comparer.faults(), comm);
  together(comm, [&] {
    if (faults.empty()) return;
    fail(ErrorKind::source,
         "the source's bytes are not those that were saved: {}. Nothing was published. Restore "
         "these files from a copy; or, if the bytes are correct anyway, set source.verify = "
         "\"off\".",
         listed(faults, 8));
  });
  return static_cast<std::size_t>(comm.sum(static_cast<std::int64_t>(comparer.compared())));
}

}  // namespace reshard
