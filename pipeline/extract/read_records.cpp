#include "pipeline/extract/read_records.hpp"

#include <algorithm>
#include <utility>

#include "core/base/hash/crc32.hpp"
#include "core/io/file_set.hpp"
#include "pipeline/records/record_comparer.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t most_block_bytes = std::uint64_t{4} << 20;

std::uint32_t crc32_of(StoredRecord const& record, FileSet& files) {
  auto const file = files.open(record.file);
  std::vector<std::byte> block(std::min(record.size_bytes, most_block_bytes));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < record.size_bytes;) {
    std::span<std::byte> const part =
        std::span(block).first(std::min<std::uint64_t>(block.size(), record.size_bytes - done));
    file->read_at(record.offset_bytes + done, part);
    crc = crc32(part, crc);
    done += part.size();
  }
  return crc;
}

class SummedFile final : public IoFile {
 public:
  SummedFile(File file, std::uint32_t number, ReadRecords& records)
      : IoFile(std::move(file)), number_(number), records_(records) {}

  void read_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const override {
    file().read_parts_at(offset_bytes, parts);
    for (iovec const& part : parts) {
      records_.add(number_, offset_bytes,
                   {static_cast<std::byte const*>(part.iov_base), part.iov_len});
      offset_bytes += part.iov_len;
    }
  }
  std::size_t read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
    std::size_t const bytes = file().read_some_at(offset_bytes, into);
    records_.add(number_, offset_bytes, into.first(bytes));
    return bytes;
  }
  void write_parts_at(std::uint64_t /*offset_bytes*/,
                      std::span<iovec const> /*parts*/) const override {
    throw Error(ErrorKind::internal, "a file of a source was to be written");
  }

 private:
  std::uint32_t number_;
  ReadRecords& records_;
};

class SummingIo final : public FileIo {
 public:
  SummingIo(std::map<std::string, std::uint32_t> const& numbers, ReadRecords& records)
      : numbers_(numbers), records_(records) {}

  std::string_view name() const override { return "posix"; }
  IoAlignment alignment() const override { return {}; }
  std::unique_ptr<IoFile> open_for_reading(std::filesystem::path const& path,
                                           ErrorKind missing) override {
    return std::make_unique<SummedFile>(File::open_for_reading(path, missing),
                                        numbers_.at(path.string()), records_);
  }
  std::unique_ptr<IoFile> open_for_writing(std::filesystem::path const& path) override {
    return adopt(File::open_for_writing(path));
  }
  std::unique_ptr<IoFile> adopt(File file) override {
    std::uint32_t const number = numbers_.at(file.path().string());
    return std::make_unique<SummedFile>(std::move(file), number, records_);
  }
  std::string_view write_mode() const override { return "none"; }

 private:
  std::map<std::string, std::uint32_t> const& numbers_;
  ReadRecords& records_;
};

}  // namespace

ReadRecords::ReadRecords(Checkpoint const& checkpoint)
    : checkpoint_(checkpoint), sums_(checkpoint.records) {
  if (sums_.empty()) return;
  for (std::size_t file = 0; file < checkpoint.files.size(); ++file)
    numbers_.emplace(checkpoint.files[file].string(), static_cast<std::uint32_t>(file));
}

std::shared_ptr<FileIo> ReadRecords::io() {
  read_.clear();  // of a reading that has failed
  return sums_.empty() ? nullptr : std::make_shared<SummingIo>(numbers_, *this);
}

void ReadRecords::add(std::uint32_t file, std::uint64_t offset_bytes,
                      std::span<std::byte const> bytes) {
  std::vector<RecordShare> shares;
  sums_.add(file, offset_bytes, bytes, shares);
  std::lock_guard const lock(mutex_);
  for (RecordShare const& share : shares) {
    RecordShare& sum = read_.try_emplace(share.record, RecordShare{share.record}).first->second;
    sum.crc32 ^= share.crc32;
    sum.covered += share.covered;
  }
}

std::vector<std::string> ReadRecords::take_faults(Catalog const& catalog, RecordReading reading) {
  std::map<std::uint32_t, RecordShare> const read = std::exchange(read_, {});
  RecordComparer comparer(checkpoint_, catalog);
  FileSet files(checkpoint_.files, FileSet::Access::read);
  for (auto const& [number, share] : read) {
    if (right_.contains(number)) continue;
    StoredRecord const& record = checkpoint_.records[number];
    bool const is_complete = share.covered == covered_by(0, record.size_bytes);
    if (!is_complete && reading == RecordReading::as_is) continue;
    std::size_t const faults = comparer.faults().size();
    comparer.compare(record, is_complete ? crc32_of_zeros(record.size_bytes) ^ share.crc32
                                         : crc32_of(record, files));
    if (comparer.faults().size() == faults) right_.insert(number);
  }
  return comparer.faults();
}

}  // namespace reshard
