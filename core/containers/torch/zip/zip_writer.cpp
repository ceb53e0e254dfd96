#include <algorithm>

#include "core/base/hash/crc32.hpp"
#include "core/containers/torch/pickle/pickle_builder.hpp"
#include "core/containers/torch/pickle/pickle_graph.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/containers/torch/torch_types.hpp"

namespace reshard {
namespace {

/// A storage that no tensor covers would be named by the pickle and missing from the file.
void expect_no_loose_storages(pickle::Document const& document) {
  std::vector<bool> const used = pickle::reachable(document, document.root);
  for (pickle::NodeId id = 0; id < used.size(); ++id)
    if (used[id] && document.at(id).kind == pickle::Kind::storage)
      fail(
          ErrorKind::source,
          "a value holds a storage of {} bytes outside a plain tensor (a tensor subclass, a quantised or conjugated tensor, or a bare storage), "
          "which "
          "cannot be rewritten. Save it as plain tensors.",
          document.storages[document.at(id).index].count);
}

/// Gives every tensor a storage of its own in which it lies row-major; one element to repeated
/// ones.
void make_compact(pickle::Document& document) {
  for (std::size_t i = 0; i < document.tensors.size(); ++i) {
    pickle::TensorRef& tensor = document.tensors[i];
    Index const volume = checked_volume(tensor.shape, ErrorKind::source, "tensor shape");
    tensor.storage = pickle::own_storage(tensor.dtype, tensor.repeated ? 1 : volume, i);
    tensor.strides = tensor.repeated ? std::vector<Index>(tensor.shape.size(), 0)
                                     : pickle::row_major_strides(tensor.shape);
    tensor.offset = 0;
  }
}

struct NumberedPickle {
  std::string bytes;
  std::vector<std::uint32_t> tensors;  ///< tensor whose storage has key i
};

/// The pickle, with the storages' keys in the order in which it names them: torch computes the
/// offset of a storage from the storages before it. Tensors that are not reachable from the root
/// come last.
NumberedPickle number_and_dump(pickle::Document& document) {
  NumberedPickle result;
  result.bytes = pickle::dump(document, &result.tensors);
  bool const in_order = [&] {
    for (std::uint32_t i = 0; i < result.tensors.size(); ++i)
      if (result.tensors[i] != i) return false;
    return true;
  }();
  std::vector<bool> named(document.tensors.size());
  for (std::uint32_t const tensor : result.tensors) named[tensor] = true;
  for (std::uint32_t i = 0; i < named.size(); ++i)
    if (!named[i]) result.tensors.push_back(i);
  if (in_order) return result;
  for (std::size_t key = 0; key < result.tensors.size(); ++key)
    document.tensors[result.tensors[key]].storage.key = std::to_string(key);
  result.bytes = pickle::dump(document);
  return result;
}

std::string_view content_of(zip::SmallRecord const& small, TorchFilePlan const& plan) {
  return small.name == zip::alignment_name ? std::string_view(plan.alignment_text) : small.content;
}

std::string_view small_content(TorchFilePlan const& plan, ZipRecord const& record) {
  std::string_view const name = std::string_view(record.name).substr(plan.archive.size() + 1);
  for (auto const& small : zip::before_storages)
    if (small.name == name) return content_of(small, plan);
  for (auto const& small : zip::after_storages)
    if (small.name == name) return small.content;
  return plan.pickle_bytes;
}

std::uint64_t bytes_of(pickle::StorageRef const& storage) {
  std::uint64_t const unit = static_cast<std::uint64_t>(bits(storage.dtype)) / 8;
  return checked_mul(storage.count, unit, ErrorKind::source, "storage size");
}

/// torch aligns all records of a file by one number, so alignment for clones costs up to a block
/// for each: it may add a sixteenth to the bytes that it makes clonable.
bool is_worth_blocks(pickle::Document const& document) {
  std::uint64_t clonable = 0;
  for (pickle::TensorRef const& tensor : document.tensors)
    if (std::uint64_t const bytes = bytes_of(tensor.storage); bytes >= least_clone_bytes)
      clonable = checked_add(clonable, bytes, ErrorKind::source, "size of a torch file");
  std::uint64_t const records = document.tensors.size() + 1 + std::size(zip::before_storages) +
                                std::size(zip::after_storages);
  return clonable / 16 >= records * clone_block_bytes;
}

void expect_archive_name(std::string_view archive) {
  if (archive.empty() || archive == "." || archive == ".." || archive.size() > 4096 ||
      archive.find_first_of(std::string_view("/\\\n\0", 4)) != archive.npos)
    fail(ErrorKind::usage, "'{}' cannot be the folder of a torch file: name it without slashes.",
         archive);
}

/// A record on its way into the file; the content of a storage is written elsewhere.
struct Rendered {
  ZipRecord const* record = nullptr;
  bool storage = false;
  std::string_view content{};
  std::uint32_t crc32 = 0;
};

std::vector<Rendered> records_in_order(TorchFilePlan const& plan,
                                       std::span<std::uint32_t const> crc32s) {
  std::vector<Rendered> records;
  records.reserve(plan.storages.size() + plan.small_records.size());
  for (std::size_t i = 0; i < crc32s.size(); ++i)
    records.push_back({.record = &plan.storages[i], .storage = true, .crc32 = crc32s[i]});
  for (ZipRecord const& record : plan.small_records) {
    std::string_view const content = small_content(plan, record);
    records.push_back(
        {.record = &record, .content = content, .crc32 = crc32(std::as_bytes(std::span(content)))});
  }
  std::ranges::sort(records, {},
                    [](Rendered const& rendered) { return rendered.record->header_offset_bytes; });
  return records;
}

}  // namespace

TorchFilePlan plan_torch_file(pickle::Document& document, std::string_view archive,
                              DataLayout data_layout) {
  expect_archive_name(archive);
  expect_no_loose_storages(document);
  make_compact(document);
  NumberedPickle numbered = number_and_dump(document);
  TorchFilePlan plan{.archive = std::string(archive),
                     .pickle_bytes = std::move(numbered.bytes),
                     .storages = {},
                     .small_records = {}};
  if (data_layout == DataLayout::for_clones && is_worth_blocks(document)) {
    plan.alignment_bytes = clone_block_bytes;
    plan.alignment_text = std::to_string(clone_block_bytes);
  }
  auto const in_folder = [&](std::string_view name) { return fmt::format("{}/{}", archive, name); };
  zip::Layout layout(plan.alignment_bytes);
  plan.small_records.push_back(layout.place(in_folder("data.pkl"), plan.pickle_bytes.size()));
  for (auto const& small : zip::before_storages)
    plan.small_records.push_back(
        layout.place(in_folder(small.name), content_of(small, plan).size()));
  plan.storages.resize(document.tensors.size());
  for (std::uint32_t const i : numbered.tensors) {
    pickle::StorageRef const& storage = document.tensors[i].storage;
    plan.storages[i] = layout.place(in_folder("data/" + storage.key), bytes_of(storage));
  }
  for (auto const& small : zip::after_storages)
    plan.small_records.push_back(layout.place(in_folder(small.name), small.content.size()));
  plan.size_bytes = layout.size_bytes();
  return plan;
}

std::vector<FileSegment> render_torch_file(TorchFilePlan const& plan,
                                           std::span<std::uint32_t const> crc32s) {
  RESHARD_EXPECT(crc32s.size() == plan.storages.size());
  std::vector<FileSegment> segments(1);
  zip::Layout layout(plan.alignment_bytes);
  std::string directory;
  for (Rendered const& rendered : records_in_order(plan, crc32s)) {
    ZipRecord const& record = *rendered.record;
    RESHARD_EXPECT(layout.place_unnamed(record.name.size(), record.size_bytes) ==
                   record.payload_offset_bytes);
    zip::append_local_header(segments.back().bytes, record);
    if (rendered.storage && record.size_bytes != 0)
      segments.push_back(
          {.offset_bytes = record.payload_offset_bytes + record.size_bytes, .bytes = {}});
    segments.back().bytes += rendered.content;
    zip::append_descriptor(segments.back().bytes, record, rendered.crc32);
    zip::append_central_header(directory, record, rendered.crc32);
  }
  segments.back().bytes += directory;
  zip::append_end_records(segments.back().bytes, layout);
  RESHARD_EXPECT(segments.back().offset_bytes + segments.back().bytes.size() == plan.size_bytes);
  return segments;
}

void finish_torch_file(File const& file, TorchFilePlan const& plan,
                       std::span<std::uint32_t const> crc32s, std::uint64_t base_offset_bytes) {
  for (FileSegment const& segment : render_torch_file(plan, crc32s))
    file.write_at(base_offset_bytes + segment.offset_bytes,
                  std::as_bytes(std::span(segment.bytes)));
}

}  // namespace reshard
