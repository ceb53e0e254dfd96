#include "core/containers/stored_records.hpp"

namespace reshard {

void StoredRecords::reserve(std::size_t count) {
  entries_.reserve(count);
  crc32_.reserve(count);
}

void StoredRecords::push_back(StoredRecord const& record) {
  Form form{record.size_bytes, 0, 0, record.crc32.has_value()};
  if (!is_the_file(record)) {
    form.archive_bytes = record.archive_bytes;
    form.before_bytes = record.offset_bytes - record.archive_offset_bytes;
  }
  if (record.crc32 && crc32_.empty()) crc32_.resize(entries_.size());
  if (record.crc32 || !crc32_.empty()) crc32_.push_back(record.crc32.value_or(0));
  entries_.push_back({record.offset_bytes, record.file, forms_.number_of(form)});
}

StoredRecord StoredRecords::operator[](std::size_t at) const {
  FileEntry const one = entries_[at];
  Form const& form = forms_[one.form];
  StoredRecord record{one.file, one.offset_bytes,   form.size_bytes,
                      0,        form.archive_bytes, std::nullopt};
  if (form.archive_bytes == 0)
    record.archive_bytes = file_bytes_[one.file];
  else
    record.archive_offset_bytes = one.offset_bytes - form.before_bytes;
  if (form.has_crc32) record.crc32 = crc32_[at];
  return record;
}

/// An archive at the start of a file counts as the file as long as there is one such for the file.
bool StoredRecords::is_the_file(StoredRecord const& record) {
  if (record.archive_offset_bytes != 0) return false;
  if (record.file >= file_bytes_.size()) file_bytes_.resize(std::size_t{record.file} + 1);
  std::uint64_t& bytes = file_bytes_[record.file];
  if (bytes == 0) bytes = record.archive_bytes;
  return bytes == record.archive_bytes;
}

}  // namespace reshard
