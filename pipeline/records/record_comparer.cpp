#include "pipeline/records/record_comparer.hpp"

#include "core/base/text/shown_name.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/torch/zip/stored_crc.hpp"

namespace reshard {

void RecordComparer::compare(StoredRecord const& record, std::uint32_t crc32) {
  std::optional<std::uint32_t> const recorded = record.crc32 ? record.crc32 : stored(record);
  if (!recorded) return;
  ++compared_;
  if (*recorded != crc32) faults_.push_back(fault(record, crc32, *recorded));
}

std::optional<std::uint32_t> RecordComparer::stored(StoredRecord const& record) {
  auto const file = files_.open(record.file);
  FileRange const archive(file->file(), record.archive_offset_bytes, record.archive_bytes);
  return zip::stored_crc32(archive, record.offset_bytes - record.archive_offset_bytes,
                           record.size_bytes);
}

std::string RecordComparer::fault(StoredRecord const& record, std::uint32_t crc32,
                                  std::uint32_t recorded) {
  auto const file = files_.open(record.file);
  FileRange const archive(file->file(), record.archive_offset_bytes, record.archive_bytes);
  return fmt::format(
      "{}: record '{}' at byte {} ({}) has the CRC-32 {:08x}, {:08x} is recorded",
      source_.files[record.file].string(),
      shown_name(zip::record_name(archive, record.offset_bytes - record.archive_offset_bytes)),
      record.offset_bytes, tensors_in(record), crc32, recorded);
}

std::string RecordComparer::tensors_in(StoredRecord const& record) const {
  std::vector<std::string> names;
  for (Blob const& blob : catalog_.blobs)
    if (blob.file == record.file && blob.offset_bytes >= record.offset_bytes &&
        blob.offset_bytes < record.offset_bytes + record.size_bytes)
      names.push_back("'" + shown_name(blob.name) + "'");
  return names.empty() ? "no tensor by itself" : listed(names, 3);
}

}  // namespace reshard
