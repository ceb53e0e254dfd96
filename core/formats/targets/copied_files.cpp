#include "core/formats/targets/copied_files.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/wire.hpp"
#include "core/containers/id_table.hpp"
#include "core/containers/torch/little_endian.hpp"

namespace reshard {
namespace {

/// Payloads that must be equal before two files are called copies.
constexpr std::uint64_t least_bytes = 4096;

/// A part of a payload that is read to check for repetition.
constexpr std::uint64_t sample_bytes = 16384;

/// Whether a payload is distinctive: at the start and at the end an eighth of its 8-byte words are
/// distinct. Matrices of ones, or of one number in each row, are not.
bool tells(File const& file, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  std::vector<std::byte> bytes(std::min(size_bytes, 2 * sample_bytes));
  std::size_t const half = bytes.size() / 2;
  file.read_at(offset_bytes, std::span(bytes).first(half));
  file.read_at(offset_bytes + size_bytes - (bytes.size() - half), std::span(bytes).subspan(half));
  std::unordered_set<std::uint64_t> words;
  std::size_t const count = bytes.size() / 8;
  for (std::size_t w = 0; w < count; ++w)
    words.insert(load_little_endian<std::uint64_t>(std::span(bytes).subspan(8 * w, 8)));
  return words.size() >= count / 8;
}

/// A record: the number of its tensor, and its place in its file.
struct BoxRecord {
  std::size_t tensor = 0;
  std::size_t chunk = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

[[noreturn]] void fail_copied(Checkpoint const& checkpoint, std::uint32_t one, std::uint32_t other,
                              std::size_t records) {
  fail(ErrorKind::source,
       "{}: holds the same bytes as {} ({} with equal CRC-32s), and the two must hold different "
       "parts of the same tensors. One is a copy of the other: restore it from the original. Where "
       "the model repeats itself there, set source.verify = \"off\".",
       checkpoint.files[other].string(), checkpoint.files[one].string(),
       counted(records, "record"));
}

/// CRC-32s of zeros, by length.
class Zeros {
 public:
  bool are(std::uint32_t crc32, std::uint64_t bytes) {
    auto const [known, is_new] = crc32s_.try_emplace(bytes, 0);
    if (is_new) known->second = crc32_of_zeros(bytes);
    return known->second == crc32;
  }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> crc32s_;
};

/// Finds two files of boxes that are copies.
class CopiedBoxes {
 public:
  CopiedBoxes(Checkpoint const& checkpoint, StampedFiles& files, HeaderExchange const& exchange)
      : checkpoint_(checkpoint), files_(files), exchange_(exchange) {}

  void run() {
    note_records();
    std::vector<std::uint32_t> const asked = laid_out_alike();
    if (asked.empty()) return;
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> seen;
    for (auto const& [file, crc32] : read_crc32s(asked)) {
      auto const [known, is_new] = seen.try_emplace({layouts_[file], crc32}, file);
      if (!is_new) exchange_.together([&, one = known->second] { compare(one, file); });
    }
  }

 private:
  /// Items are ordered by tensor, so files with the same layout have their records in the same
  /// order.
  void note_records() {
    records_.resize(checkpoint_.files.size());
    StoredTable const& stored = checkpoint_.stored;
    std::size_t r = 0;
    for (std::size_t t = 0; t < stored.tensors.size(); ++t) {
      StoredTensor const& tensor = stored.tensors[t];
      for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
        if (r == checkpoint_.records.size()) return;
        StoredRecord const record = checkpoint_.records[r];
        ItemPlace const item = stored.chunks[c].item;
        if (record.file != item.file || record.archive_offset_bytes != item.offset_bytes) continue;
        records_[record.file].push_back({t, c, record.offset_bytes, record.size_bytes});
        ++r;
      }
    }
  }

  /// The largest record that can prove a copy; nullopt if the file has none.
  std::optional<BoxRecord> largest(std::uint32_t file) const {
    std::optional<BoxRecord> found;
    for (BoxRecord const& record : records_[file])
      if (record.size_bytes >= least_bytes && !of_experts(record) &&
          (!found || record.size_bytes > found->size_bytes))
        found = record;
    return found;
  }

  bool of_experts(BoxRecord const& record) const {
    return checkpoint_.stored.tensors.name(record.tensor).text().find("expert") !=
           std::string::npos;
  }

  std::vector<std::uint32_t> laid_out_alike() {
    std::unordered_map<std::uint64_t, std::uint32_t> count;
    layouts_.resize(records_.size());
    for (std::size_t f = 0; f < records_.size(); ++f) {
      std::uint64_t hash = hash_seed;
      for (BoxRecord const& record : records_[f])
        hash = hash_step(hash_step(hash_step(hash, record.tensor), record.offset_bytes),
                         record.size_bytes);
      layouts_[f] = hash;
      ++count[hash];
    }
    std::vector<std::uint32_t> files;
    for (std::uint32_t f = 0; f < records_.size(); ++f)
      if (count[layouts_[f]] > 1 && largest(f)) files.push_back(f);
    return files;
  }

  /// The CRC-32 that torch.save writes after a payload; nullopt if it computed none.
  std::optional<std::uint32_t> crc32_of(std::uint32_t file, BoxRecord const& record) {
    constexpr std::uint32_t signature = 0x08074b50;
    std::array<std::byte, 8> bytes{};
    auto const opened = files_.open(file);
    if (opened->read_some_at(record.offset_bytes + record.size_bytes, bytes) < bytes.size() ||
        load_little_endian<std::uint32_t>(std::span(bytes).first(4)) != signature)
      return std::nullopt;
    auto const crc32 = load_little_endian<std::uint32_t>(std::span(bytes).subspan(4));
    return crc32 == 0 || zeros_.are(crc32, record.size_bytes) ? std::nullopt : std::optional(crc32);
  }

  /// The CRC-32 of the largest record of each file, with the file.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> read_crc32s(
      std::vector<std::uint32_t> const& asked) {
    WireWriter mine;
    exchange_.together([&] {
      for (std::size_t i = static_cast<std::size_t>(exchange_.rank()); i < asked.size();
           i += static_cast<std::size_t>(exchange_.size()))
        if (auto const crc32 = crc32_of(asked[i], *largest(asked[i])))
          mine.number(asked[i]).number(*crc32);
    });
    std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
    for (std::string const& bytes : exchange_.all_gather(mine.bytes()))
      for (WireReader in(bytes, "checksums of a rank"); !in.empty(); in.check()) {
        auto const file = narrow<std::uint32_t>(in.number());
        found.emplace_back(file, narrow<std::uint32_t>(in.number()));
      }
    std::ranges::sort(found);
    return found;
  }

  void compare(std::uint32_t one, std::uint32_t other) {
    std::uint64_t telling = 0;
    for (std::size_t i = 0; i < records_[one].size(); ++i) {
      BoxRecord const& a = records_[one][i];
      BoxRecord const& b = records_[other][i];
      auto const crc32 = crc32_of(one, a);
      if (crc32 != crc32_of(other, b)) return;
      if (crc32 && !of_experts(a) && differ_in_place(a, b) && telling < least_bytes &&
          tells(*files_.open(one), a.offset_bytes, a.size_bytes))
        telling += a.size_bytes;
    }
    if (telling >= least_bytes) fail_copied(checkpoint_, one, other, records_[one].size());
  }

  bool differ_in_place(BoxRecord const& a, BoxRecord const& b) const {
    StoredTable const& stored = checkpoint_.stored;
    return !std::ranges::equal(stored.offsets(stored.chunks[a.chunk]),
                               stored.offsets(stored.chunks[b.chunk]));
  }

  Checkpoint const& checkpoint_;
  StampedFiles& files_;
  HeaderExchange const& exchange_;
  std::vector<std::vector<BoxRecord>> records_;  ///< by file
  std::vector<std::uint64_t> layouts_;           ///< by file: a hash
  Zeros zeros_;
};

}  // namespace

/// The size of a file's distinctive records, up to the needed size.
static std::uint64_t telling_bytes(Checkpoint const& checkpoint, std::uint32_t number) {
  File const file = File::open_for_reading(checkpoint.files[number]);
  std::uint64_t found = 0;
  for (StoredRecord const& record : checkpoint.records)
    if (record.file == number && found < least_bytes &&
        tells(file, record.offset_bytes, record.size_bytes))
      found += record.size_bytes;
  return found;
}

void refuse_copied_files(Checkpoint const& checkpoint, std::span<DifferentFiles const> lists) {
  struct Content {
    std::uint64_t hash = hash_seed;
    std::uint64_t telling_bytes = 0;
    std::size_t records = 0;
    bool known = true;
  };
  if (std::ranges::all_of(lists, [](DifferentFiles const& list) { return list.size() < 2; }))
    return;
  std::vector<Content> contents(checkpoint.files.size());
  Zeros zeros;
  for (StoredRecord const record : checkpoint.records) {
    Content& content = contents[record.file];
    content.known = content.known && record.crc32.has_value();
    if (!content.known) continue;
    content.hash = hash_step(hash_step(content.hash, record.size_bytes), *record.crc32);
    ++content.records;
    if (!zeros.are(*record.crc32, record.size_bytes)) content.telling_bytes += record.size_bytes;
  }
  for (DifferentFiles const& list : lists) {
    std::unordered_map<std::uint64_t, std::uint32_t> seen;
    for (std::uint32_t const file : list) {
      Content const& content = contents[file];
      if (!content.known || content.telling_bytes < least_bytes) continue;
      auto const [known, is_new] = seen.try_emplace(content.hash, file);
      if (!is_new && telling_bytes(checkpoint, file) >= least_bytes)
        fail_copied(checkpoint, known->second, file, content.records);
    }
  }
}

void refuse_copied_boxes(Checkpoint const& checkpoint, StampedFiles& files,
                         HeaderExchange const& exchange) {
  CopiedBoxes(checkpoint, files, exchange).run();
}

}  // namespace reshard
