#include "stages/write/target_files.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/base/tables/integers.hpp"

namespace reshard {

void TouchedSums::note(std::size_t number) {
  if (!numbers_.empty() && numbers_.back() == number) return;
  if (numbers_.size() >= 2 * sorted_ + 1024)
    sort();  // never many more than there are sums, however often they change
  numbers_.push_back(number);
}

void TouchedSums::sort() {
  std::sort(numbers_.begin(), numbers_.end());
  numbers_.erase(std::unique(numbers_.begin(), numbers_.end()), numbers_.end());
  sorted_ = numbers_.size();
}

std::vector<std::size_t> TouchedSums::take() {
  sort();
  sorted_ = 0;
  return std::exchange(numbers_, {});
}

RecordChecksums::RecordChecksums(std::span<TargetLayout const> files,
                                 std::vector<std::optional<std::uint32_t>> known)
    : known_(std::move(known)) {
  for (TargetLayout const& file : files) {
    first_share_.push_back(shares_.size());
    records_.push_back(records_of(file));
    shares_.resize(shares_.size() + records_.back().size(), 0);
    std::sort(records_.back().begin(), records_.back().end(),
              [](Record const& a, Record const& b) { return a.begin < b.begin; });
  }
  first_share_.push_back(shares_.size());
  known_.resize(shares_.size());
}

std::vector<RecordChecksums::Record> RecordChecksums::records_of(TargetLayout const& file) {
  std::vector<Record> records;
  for (SummedRecord const& record : file.frame->records())
    records.push_back({record.offset_bytes, record.offset_bytes + record.size_bytes,
                       narrow<std::uint32_t>(records.size())});
  return records;
}

void RecordChecksums::add(std::uint32_t file, std::uint64_t offset_bytes,
                          std::span<std::byte const> bytes) {
  auto const& records = records_[file];
  std::uint64_t const end = offset_bytes + bytes.size();
  auto at = std::upper_bound(records.begin(), records.end(), offset_bytes,
                             [](std::uint64_t o, Record const& r) { return o < r.end; });
  for (; at != records.end() && at->begin < end; ++at) {
    std::uint64_t const first = std::max(at->begin, offset_bytes);
    std::uint64_t const last = std::min(at->end, end);
    if (first >= last || known_[first_share_[file] + at->number]) continue;
    std::uint32_t const share =
        crc32_share(bytes.subspan(first - offset_bytes, last - first), at->end - last);
    std::lock_guard const lock(*mutex_);
    touched_.note(first_share_[file] + at->number);
    shares_[first_share_[file] + at->number] ^= share;
  }
}

std::vector<std::uint32_t> RecordChecksums::of_file(std::uint32_t file) const {
  std::vector<std::uint32_t> result(
      shares_.begin() + static_cast<std::ptrdiff_t>(first_share_[file]),
      shares_.begin() + static_cast<std::ptrdiff_t>(first_share_[file + 1]));
  for (Record const& record : records_[file]) {
    auto const& known = known_[first_share_[file] + record.number];
    result[record.number] =
        known ? *known : result[record.number] ^ crc32_of_zeros(record.end - record.begin);
  }
  return result;
}

namespace {

void write_beginning(TargetLayout const& layout, File const& file) {
  std::string_view const header = layout.frame->header();
  if (!header.empty()) file.write_at(0, std::as_bytes(std::span(header)));
  for (FileSegment const& segment : layout.frame->skeleton())
    file.write_at(segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
}

}  // namespace

File create_target_file(TargetLayout const& layout) {
  File file = File::create(layout.path);
  file.resize(layout.size_bytes);
  write_beginning(layout, file);
  return file;
}

File reopen_target_file(TargetLayout const& layout) {
  File file = File::open_for_writing(layout.path);
  write_beginning(layout, file);
  return file;
}

std::vector<FileSegment> frame_of(TargetLayout const& layout, std::span<std::uint32_t const> crc32,
                                  std::span<std::uint64_t const> digests) {
  std::vector<FileSegment> segments = layout.frame->rest(crc32, digests);
  if (std::string_view const header = layout.frame->header(); !header.empty())
    segments.insert(segments.begin(), {0, std::string(header)});
  return segments;
}

void finish_target_file(FileSet& files, std::uint32_t number, TargetLayout const& layout,
                        std::span<FileSegment const> frame, std::span<FileSegment const> held) {
  {
    auto const file = files.open(number);
    for (FileSegment const& segment : layout.frame->skeleton())
      file->write_at(segment.offset_bytes, std::vector<std::byte>(segment.bytes.size()));
    if (layout.frame->header().empty())
      for (FileSegment const& segment : frame)
        file->write_at(segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
    for (FileSegment const& segment : held)
      file->write_at(segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
  }
  files.sync(number);  // no holder is left: it does not count as written any more
}

void sync_target_file(TargetLayout const& layout) {
  File file = File::open_for_writing(layout.path);
  file.sync();
  file.close();
}

std::uint64_t crc64_of_blocks(std::span<std::uint64_t const> blocks, std::uint64_t size_bytes,
                              std::uint64_t block_bytes) {
  std::uint64_t sum = 0;
  std::uint64_t at = 0;
  for (std::uint64_t const block : blocks) {
    std::uint64_t const bytes = std::min(block_bytes, size_bytes - at);
    sum = crc64_shifted(sum, bytes) ^ block;
    at += bytes;
  }
  return sum;
}

FileDigests::FileDigests(std::span<TargetLayout const> files, std::uint64_t block_bytes)
    : block_bytes_(block_bytes) {
  std::size_t blocks = 0;
  for (TargetLayout const& file : files) {
    size_bytes_.push_back(file.size_bytes);
    first_share_.push_back(blocks);
    blocks += block_bytes == 0 || file.size_bytes == 0
                  ? 1
                  : (file.size_bytes + block_bytes - 1) / block_bytes;
  }
  first_share_.push_back(blocks);
  shares_.resize(blocks, 0);
}

std::uint64_t FileDigests::block_bytes_of(std::uint32_t file) const {
  return block_bytes_ == 0 ? size_bytes_[file] : block_bytes_;
}

void FileDigests::add(std::uint32_t file, std::uint64_t offset_bytes,
                      std::span<std::byte const> bytes) {
  std::uint64_t const block_bytes = block_bytes_of(file);
  while (!bytes.empty()) {
    std::uint64_t const block = offset_bytes / block_bytes;
    std::uint64_t const end = std::min((block + 1) * block_bytes, size_bytes_[file]);
    std::span const part = bytes.first(std::min<std::uint64_t>(bytes.size(), end - offset_bytes));
    std::uint64_t const share = crc64_shifted(crc64(part), end - offset_bytes - part.size());
    {
      std::lock_guard const lock(*mutex_);
      touched_.note(first_share_[file] + block);
      shares_[first_share_[file] + block] ^= share;
    }
    offset_bytes += part.size();
    bytes = bytes.subspan(part.size());
  }
}

void FileDigests::add_block(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t crc64) {
  std::size_t const number = first_share_[file] + offset_bytes / block_bytes_of(file);
  std::lock_guard const lock(*mutex_);
  touched_.note(number);
  shares_[number] ^= crc64;
}

std::span<std::uint64_t const> FileDigests::blocks_of(std::uint32_t file) const {
  return std::span(shares_).subspan(first_share_[file],
                                    first_share_[file + 1] - first_share_[file]);
}

std::vector<std::uint64_t> FileDigests::of_files() const {
  std::vector<std::uint64_t> sums;
  for (std::uint32_t f = 0; f < size_bytes_.size(); ++f)
    sums.push_back(crc64_of_blocks(blocks_of(f), size_bytes_[f], block_bytes_of(f)));
  return sums;
}

}  // namespace reshard
