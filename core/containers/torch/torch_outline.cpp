#include "core/containers/torch/torch_outline.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/base/tables/integers.hpp"
#include "core/containers/torch/little_endian.hpp"
#include "core/containers/torch/zip/zip_directory.hpp"
#include "core/containers/torch/zip/zip_format.hpp"

namespace reshard {
namespace {

/// The largest gap between two ranges that is read along.
constexpr std::uint64_t small_gap_bytes = 4096;

/// Whether read_torch_file() reads this small record.
bool is_read(std::string_view name) {
  return name.ends_with("/version") || name.ends_with("/byteorder");
}

}  // namespace

TorchOutline::TorchOutline(FileRange const& file, std::span<pickle::Outline::Path const> free)
    : file_bytes_(file.size_bytes()) {
  std::vector<zip::Entry> const entries = zip::read_directory(file);
  std::uint64_t const directory = zip::find_directory(file).offset_bytes;
  RESHARD_EXPECT(!entries.empty());
  std::string const& first = entries.front().name;
  std::string const pickle_name = first.substr(0, first.find('/') + 1) + "data.pkl";
  // The bytes around the payloads are compared, and finally the directory.
  std::vector<Part> around;
  std::vector<Part> needed;
  std::uint64_t end = 0;
  for (std::size_t e = 0; e < entries.size(); ++e) {
    zip::Entry const& entry = entries[e];
    around.push_back({end, entry.payload_offset_bytes});
    end = entry.payload_offset_bytes + entry.size_bytes;
    bool const compared = is_read(entry.name);
    records_.push_back({entry.payload_offset_bytes, 0, {}, entry.crc32, compared});
    if (entry.name == pickle_name) pickle_record_ = e;
    if (compared) around.push_back({entry.payload_offset_bytes, end});
  }
  around.push_back({end, file_bytes_});
  needed = around;
  zip::Entry const& pickled = entries[pickle_record_];
  RESHARD_EXPECT(pickled.name == pickle_name);
  needed.push_back(
      {pickled.payload_offset_bytes, pickled.payload_offset_bytes + pickled.size_bytes});
  std::uint64_t const tail_bytes =
      std::min<std::uint64_t>(file_bytes_, zip::end_bytes + zip::longest_comment_bytes);
  needed.push_back({file_bytes_ - tail_bytes, file_bytes_});
  choose_stretches(std::move(needed));
  RESHARD_EXPECT(read(file, std::as_writable_bytes(std::span(image_))));
  auto const at = [&](std::uint64_t offset) { return place(offset); };
  pickle_part_ = {at(pickled.payload_offset_bytes),
                  at(pickled.payload_offset_bytes) + pickled.size_bytes};
  pickle_.emplace(image_.substr(pickle_part_.begin, pickled.size_bytes), free);
  // Checksums stand in the directory, in a record's own header and behind its payload.
  std::vector<std::size_t> checksums;
  auto const word = [&](std::size_t place) {
    return load_little_endian<std::uint32_t>(std::as_bytes(std::span(image_)).subspan(place));
  };
  for (std::size_t e = 0; e < entries.size(); ++e) {
    zip::Entry const& entry = entries[e];
    Record& record = records_[e];
    record.listed_crc_at = at(entry.listed_offset_bytes + 16);
    checksums.push_back(record.listed_crc_at);
    // torch leaves zeros in the header of a record that a descriptor follows.
    std::size_t const local = at(entry.header_offset_bytes + 14);
    if ((entry.flags & zip::flag_descriptor) == 0 || word(local) != 0)
      record.crc_at.push_back(local);
    std::uint64_t const payload_end = entry.payload_offset_bytes + entry.size_bytes;
    std::uint64_t const next =
        e + 1 < entries.size() ? entries[e + 1].header_offset_bytes : directory;
    std::uint64_t const descriptor = next - payload_end;
    if (descriptor > 0)
      record.crc_at.push_back(at(payload_end + (descriptor == 16 || descriptor == 24 ? 4 : 0)));
    checksums.insert(checksums.end(), record.crc_at.begin(), record.crc_at.end());
  }
  std::ranges::sort(checksums);
  auto checksum = checksums.begin();
  for (Part const& part : around) {
    if (part.begin == part.end) continue;
    std::size_t begin = at(part.begin);
    std::size_t const part_end = begin + (part.end - part.begin);
    for (; checksum != checksums.end() && *checksum < part_end; ++checksum) {
      equal_.push_back({begin, *checksum});
      begin = *checksum + sizeof(std::uint32_t);
    }
    equal_.push_back({begin, part_end});
  }
}

/// The parts are of the file.
void TorchOutline::choose_stretches(std::vector<Part> needed) {
  std::ranges::sort(needed, {}, &Part::begin);
  std::size_t bytes = 0;
  for (Part const& part : needed) {
    if (part.begin == part.end) continue;
    Stretch* const last = stretches_.empty() ? nullptr : &stretches_.back();
    std::uint64_t const last_end = last == nullptr ? 0 : last->offset_bytes + last->size_bytes;
    if (last != nullptr && part.begin <= last_end + small_gap_bytes) {
      std::size_t const more = part.end > last_end ? part.end - last_end : 0;
      last->size_bytes += more;
      bytes += more;
      continue;
    }
    stretches_.push_back({part.begin, part.end - part.begin, bytes});
    bytes += part.end - part.begin;
  }
  image_.resize(bytes);
}

std::size_t TorchOutline::place(std::uint64_t offset_bytes) const {
  auto const after = std::ranges::upper_bound(stretches_, offset_bytes, {}, &Stretch::offset_bytes);
  RESHARD_EXPECT(after != stretches_.begin());
  Stretch const& stretch = *std::prev(after);
  return stretch.at + (offset_bytes - stretch.offset_bytes);
}

std::size_t TorchOutline::record_at(std::uint64_t offset_bytes) const {
  auto const found =
      std::ranges::lower_bound(records_, offset_bytes, {}, &Record::payload_offset_bytes);
  RESHARD_EXPECT(found != records_.end() && found->payload_offset_bytes == offset_bytes);
  return static_cast<std::size_t>(found - records_.begin());
}

bool TorchOutline::read(FileRange const& file, std::span<std::byte> image) const {
  return std::ranges::all_of(stretches_, [&](Stretch const& stretch) {
    return file.read_some_at(stretch.offset_bytes, image.subspan(stretch.at, stretch.size_bytes)) ==
           stretch.size_bytes;
  });
}

/// The last bytes of the file, as many as may have end records.
std::span<std::byte const> TorchOutline::tail(std::span<std::byte const> image) const {
  return image.last(
      std::min<std::uint64_t>(file_bytes_, zip::end_bytes + zip::longest_comment_bytes));
}

std::optional<TorchOutline::Own> TorchOutline::compare(FileRange const& file) const {
  if (file.size_bytes() != file_bytes_) return std::nullopt;
  auto const memory = std::make_unique_for_overwrite<std::byte[]>(image_.size());
  std::span<std::byte> const image(memory.get(), image_.size());
  if (!read(file, image)) return std::nullopt;
  for (Part const& part : equal_)
    if (std::memcmp(image.data() + part.begin, image_.data() + part.begin, part.end - part.begin) !=
        0)
      return std::nullopt;
  Own own;
  own.crc32.reserve(records_.size());
  auto const word = [&](std::size_t place) {
    return load_little_endian<std::uint32_t>(image.subspan(place));
  };
  for (Record const& record : records_) {
    std::uint32_t const crc = word(record.listed_crc_at);
    if ((crc == 0) != (record.crc32 == 0) || (record.compared && crc != record.crc32))
      return std::nullopt;
    for (std::size_t const place : record.crc_at)
      if (word(place) != crc) return std::nullopt;
    own.crc32.push_back(crc);
  }
  if (zip::end_records(tail(image)).size() != 1) return std::nullopt;
  auto const pickled = image.subspan(pickle_part_.begin, pickle_part_.end - pickle_part_.begin);
  std::uint32_t const crc = own.crc32[pickle_record_];
  if (crc != 0 && crc32(pickled) != crc) return std::nullopt;
  auto values = pickle_->compare({reinterpret_cast<char const*>(pickled.data()), pickled.size()});
  if (!values) return std::nullopt;
  own.values = std::move(*values);
  return own;
}

}  // namespace reshard
