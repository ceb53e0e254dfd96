#include <algorithm>
#include <array>

#include "core/base/crc32.hpp"
#include "core/formats/torch_zip/little_endian.hpp"
#include "core/formats/torch_zip/pickle_builder.hpp"
#include "core/formats/torch_zip/pickle_graph.hpp"
#include "core/formats/torch_zip/torch_file.hpp"
#include "core/formats/torch_zip/torch_limits.hpp"
#include "core/formats/torch_zip/torch_types.hpp"
#include "core/formats/torch_zip/zip_format.hpp"

namespace reshard {
namespace {

constexpr std::uint16_t version_needed = 20;
constexpr std::uint16_t version_needed_zip64 = 45;
constexpr std::uint16_t date_1980_01_01 = 1U << 5 | 1U;  // year 0 in bits 9-15, month in 5-8, day in 0-4

/// The records beside data.pkl and the storages. No ".format_version": from 1 on it promises torch that the storages lie where torch's own
/// writer, with its data descriptors, would have put them. No ".data/serialization_id": torch only logs it.
struct SmallRecord {
  std::string_view name;
  std::string_view content;
};
constexpr std::array before_storages = {SmallRecord{".storage_alignment", "64"}, SmallRecord{"byteorder", "little"}};
constexpr std::array after_storages = {SmallRecord{"version", "3\n"}};

bool is_far(std::uint64_t value) { return value >= zip::in_zip64; }

/// The ZIP64 extra field of a local header: both sizes or neither.
std::size_t local_zip64_bytes(std::uint64_t size_bytes) { return is_far(size_bytes) ? zip::extra_header_bytes + 16 : 0; }

/// Puts records one behind the other.
class Layout {
 public:
  ZipRecord place(std::string name, std::uint64_t size_bytes) {
    std::uint64_t const least = add(at_, zip::local_bytes + name.size() + local_zip64_bytes(size_bytes) + zip::extra_header_bytes);
    std::uint64_t const payload = add(least, (zip::payload_alignment - least % zip::payload_alignment) % zip::payload_alignment);
    ZipRecord record{.name = std::move(name), .header_offset_bytes = at_, .payload_offset_bytes = payload, .size_bytes = size_bytes};
    at_ = add(payload, size_bytes);
    directory_bytes_ = add(directory_bytes_, central_header(record, 0).size());
    ++records_;
    return record;
  }

  /// Of the whole file.
  std::uint64_t size_bytes() const { return add(add(at_, directory_bytes_), end_records(at_, directory_bytes_, records_).size()); }

  static std::string central_header(ZipRecord const& record, std::uint32_t crc);
  static std::string end_records(std::uint64_t directory, std::uint64_t directory_bytes, std::uint64_t records);

 private:
  static std::uint64_t add(std::uint64_t a, std::uint64_t b) { return checked_add(a, b, ErrorKind::source, "size of a torch file"); }

  std::uint64_t at_ = 0;
  std::uint64_t directory_bytes_ = 0;
  std::uint64_t records_ = 0;
};

/// What local and central headers have in common: from the version to the extra field's length.
void append_common(std::string& out, ZipRecord const& record, std::uint32_t crc, std::size_t extra_bytes, bool far) {
  auto const size = is_far(record.size_bytes) ? zip::in_zip64 : static_cast<std::uint32_t>(record.size_bytes);
  append_little_endian(out, far ? version_needed_zip64 : version_needed);
  append_little_endian(out, zip::flag_utf8);
  append_little_endian(out, std::uint16_t{0});  // stored
  append_little_endian(out, std::uint16_t{0});  // midnight
  append_little_endian(out, date_1980_01_01);
  append_little_endian(out, crc);
  append_little_endian(out, size);
  append_little_endian(out, size);
  append_little_endian(out, narrow<std::uint16_t>(record.name.size()));
  append_little_endian(out, narrow<std::uint16_t>(extra_bytes));
}

std::string local_header(ZipRecord const& record, std::uint32_t crc) {
  std::uint64_t const whole = record.payload_offset_bytes - record.header_offset_bytes;
  std::size_t const extra_bytes = whole - zip::local_bytes - record.name.size();
  bool const far = is_far(record.size_bytes);
  std::string out;
  append_little_endian(out, zip::local_signature);
  append_common(out, record, crc, extra_bytes, far);
  out += record.name;
  if (far) {
    append_little_endian(out, zip::extra_zip64);
    append_little_endian(out, std::uint16_t{16});
    append_little_endian(out, record.size_bytes);
    append_little_endian(out, record.size_bytes);
  }
  std::size_t const padding = whole - out.size() - zip::extra_header_bytes;
  append_little_endian(out, zip::extra_padding);
  append_little_endian(out, narrow<std::uint16_t>(padding));
  out.append(padding, 'Z');
  return out;
}

std::string Layout::central_header(ZipRecord const& record, std::uint32_t crc) {
  std::string extra;
  if (is_far(record.size_bytes)) {
    append_little_endian(extra, record.size_bytes);
    append_little_endian(extra, record.size_bytes);
  }
  if (is_far(record.header_offset_bytes)) append_little_endian(extra, record.header_offset_bytes);
  std::size_t const extra_bytes = extra.empty() ? 0 : zip::extra_header_bytes + extra.size();
  std::string out;
  append_little_endian(out, zip::central_signature);
  append_little_endian(out, version_needed_zip64);  // made by
  append_common(out, record, crc, extra_bytes, !extra.empty());
  append_little_endian(out, std::uint16_t{0});  // comment
  append_little_endian(out, std::uint16_t{0});  // disk
  append_little_endian(out, std::uint16_t{0});  // internal attributes
  append_little_endian(out, std::uint32_t{0});  // external attributes
  append_little_endian(out, is_far(record.header_offset_bytes) ? zip::in_zip64 : static_cast<std::uint32_t>(record.header_offset_bytes));
  out += record.name;
  if (!extra.empty()) {
    append_little_endian(out, zip::extra_zip64);
    append_little_endian(out, narrow<std::uint16_t>(extra.size()));
    out += extra;
  }
  return out;
}

std::string zip64_end_records(std::uint64_t directory, std::uint64_t directory_bytes, std::uint64_t records) {
  std::string out;
  append_little_endian(out, zip::end64_signature);
  append_little_endian(out, std::uint64_t{zip::end64_bytes - 12});
  append_little_endian(out, version_needed_zip64);
  append_little_endian(out, version_needed_zip64);
  append_little_endian(out, std::uint32_t{0});
  append_little_endian(out, std::uint32_t{0});
  append_little_endian(out, records);
  append_little_endian(out, records);
  append_little_endian(out, directory_bytes);
  append_little_endian(out, directory);
  append_little_endian(out, zip::locator_signature);
  append_little_endian(out, std::uint32_t{0});
  append_little_endian(out, directory + directory_bytes);
  append_little_endian(out, std::uint32_t{1});
  return out;
}

std::string Layout::end_records(std::uint64_t directory, std::uint64_t directory_bytes, std::uint64_t records) {
  bool const many = records >= zip::count_in_zip64;
  std::string out;
  if (many || is_far(directory) || is_far(directory_bytes)) out = zip64_end_records(directory, directory_bytes, records);
  auto const count = many ? zip::count_in_zip64 : static_cast<std::uint16_t>(records);
  append_little_endian(out, zip::end_signature);
  append_little_endian(out, std::uint32_t{0});
  append_little_endian(out, count);
  append_little_endian(out, count);
  append_little_endian(out, is_far(directory_bytes) ? zip::in_zip64 : static_cast<std::uint32_t>(directory_bytes));
  append_little_endian(out, is_far(directory) ? zip::in_zip64 : static_cast<std::uint32_t>(directory));
  append_little_endian(out, std::uint16_t{0});  // comment
  return out;
}

/// A storage that no tensor covers would be named by the pickle and missing from the file.
void expect_no_loose_storages(pickle::Document const& document) {
  std::vector<bool> const used = pickle::reachable(document, document.root);
  for (pickle::NodeId id = 0; id < used.size(); ++id)
    if (used[id] && document.at(id).kind == pickle::Kind::storage)
      fail(ErrorKind::source,
           "a value holds a storage of {} bytes outside a plain tensor (a tensor subclass, a quantised or conjugated tensor, or a bare storage), "
           "which "
           "cannot be rewritten. Save it as plain tensors.",
           document.storages[document.at(id).index].count);
}

/// Gives every tensor a storage of its own, numbered in order, in which it lies row-major.
void make_compact(pickle::Document& document) {
  for (std::size_t i = 0; i < document.tensors.size(); ++i) {
    pickle::TensorRef& tensor = document.tensors[i];
    pickle::Document scratch;
    scratch.add_tensor(tensor.dtype, tensor.shape);
    tensor.storage = pickle::own_storage(tensor.dtype, checked_volume(tensor.shape, ErrorKind::source, "tensor shape"), i);
    tensor.strides = scratch.tensors[0].strides;
    tensor.offset = 0;
  }
}

std::string_view small_content(TorchFilePlan const& plan, ZipRecord const& record) {
  std::string_view const name = std::string_view(record.name).substr(plan.archive.size() + 1);
  for (auto const& small : before_storages)
    if (small.name == name) return small.content;
  for (auto const& small : after_storages)
    if (small.name == name) return small.content;
  return plan.pickle_bytes;
}

void expect_archive_name(std::string_view archive) {
  if (archive.empty() || archive == "." || archive == ".." || archive.size() > 4096 ||
      archive.find_first_of(std::string_view("/\\\n\0", 4)) != archive.npos)
    fail(ErrorKind::usage, "'{}' cannot be the folder of a torch file: name it without slashes.", archive);
}

}  // namespace

TorchFilePlan plan_torch_file(pickle::Document& document, std::string_view archive) {
  expect_archive_name(archive);
  expect_no_loose_storages(document);
  make_compact(document);
  TorchFilePlan plan{.archive = std::string(archive), .pickle_bytes = pickle::dump(document), .storages = {}, .small_records = {}};
  auto const in_folder = [&](std::string_view name) { return fmt::format("{}/{}", archive, name); };
  Layout layout;
  plan.small_records.push_back(layout.place(in_folder("data.pkl"), plan.pickle_bytes.size()));
  for (auto const& small : before_storages) plan.small_records.push_back(layout.place(in_folder(small.name), small.content.size()));
  for (pickle::TensorRef const& tensor : document.tensors) {
    std::uint64_t const unit = static_cast<std::uint64_t>(bits(tensor.storage.dtype)) / 8;
    std::uint64_t const size = checked_mul(tensor.storage.count, unit, ErrorKind::source, "storage size");
    plan.storages.push_back(layout.place(in_folder("data/" + tensor.storage.key), size));
  }
  for (auto const& small : after_storages) plan.small_records.push_back(layout.place(in_folder(small.name), small.content.size()));
  plan.size_bytes = layout.size_bytes();
  return plan;
}

void finish_torch_file(File const& file, TorchFilePlan const& plan, std::span<std::uint32_t const> crc32s) {
  RESHARD_EXPECT(crc32s.size() == plan.storages.size());
  struct Written {
    ZipRecord const* record;
    std::uint32_t crc;
  };
  std::vector<Written> records;
  for (std::size_t i = 0; i < crc32s.size(); ++i) records.push_back({&plan.storages[i], crc32s[i]});
  auto const bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  for (ZipRecord const& record : plan.small_records) {
    std::string_view const content = small_content(plan, record);
    file.write_at(record.payload_offset_bytes, bytes(content));
    records.push_back({&record, crc32(bytes(content))});
  }
  std::ranges::sort(records, {}, [](Written const& written) { return written.record->header_offset_bytes; });
  std::string directory;
  for (Written const& written : records) {
    file.write_at(written.record->header_offset_bytes, bytes(local_header(*written.record, written.crc)));
    directory += Layout::central_header(*written.record, written.crc);
  }
  std::uint64_t const offset = records.back().record->payload_offset_bytes + records.back().record->size_bytes;
  std::string const end = Layout::end_records(offset, directory.size(), records.size());
  RESHARD_EXPECT(offset + directory.size() + end.size() == plan.size_bytes);
  file.write_at(offset, bytes(directory + end));
}

}  // namespace reshard
