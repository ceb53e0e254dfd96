#include "core/formats/dcp/item_layout.hpp"

#include <algorithm>

namespace reshard {
namespace {

/// Objects are copied in parts of at most this, so that no object needs much memory.
constexpr std::uint64_t largest_part_bytes = std::uint64_t{8} << 20;
constexpr std::uint32_t unused = 0xffffffffU;

}  // namespace

DcpTarget::DcpTarget(TargetDraft& job, std::filesystem::path folder)
    : job_(job), folder_(std::move(folder)) {
  RESHARD_EXPECT(job_.target.files.empty());
}

DcpTarget::OpenFile& DcpTarget::file_at(std::uint32_t file) {
  while (files_.size() <= file) {
    files_.emplace_back();
    files_.back().number = unused;
  }
  OpenFile& open = files_[file];
  if (open.number == unused) {
    open.number = narrow<std::uint32_t>(job_.target.files.size());
    std::string const name = fmt::format("__{}_0.distcp", file);
    metadata_.files.push_back(name);
    job_.target.files.push_back((folder_ / name).string());
  }
  return open;
}

/// The offset of the next item of `file`, which takes `bytes`.
std::uint64_t DcpTarget::place(std::uint32_t file, std::uint64_t bytes) {
  OpenFile& open = file_at(file);
  std::uint64_t const at = open.size_bytes;
  open.size_bytes = checked_add(at, bytes, ErrorKind::usage, "the bytes of a .distcp file");
  return at;
}

/// place() of a tensor. Items need not be contiguous: `.metadata` contains their offsets.
std::uint64_t DcpTarget::place(std::uint32_t file, dcp::ItemLayout const& item) {
  if (job_.data_layout == DataLayout::for_clones && item.payload_bytes >= least_clone_bytes) {
    std::uint64_t const payload = file_at(file).size_bytes + item.payload_offset_bytes;
    place(file, (clone_block_bytes - payload % clone_block_bytes) % clone_block_bytes);
  }
  return place(file, item.size_bytes);
}

/// The place of the copy of an item of the source.
ItemPlace DcpTarget::copy(std::uint32_t file, ItemPlace const& item) {
  std::uint64_t const at = place(file, item.size_bytes);
  std::uint32_t const number = file_at(file).number;
  for (std::uint64_t done = 0; done < item.size_bytes; done += largest_part_bytes)
    opaque_.push_back({item.file, number, item.offset_bytes + done, at + done,
                       std::min(largest_part_bytes, item.size_bytes - done)});
  return {number, at, item.size_bytes};
}

void DcpTarget::add_object(std::string const& key, std::uint32_t file, ItemPlace const& item) {
  metadata_.objects.push_back({key, copy(file, item)});
}

void DcpTarget::add_object(std::string const& key, ObjectTensor const& tensor, std::uint32_t file,
                           ItemPlace const& item) {
  std::size_t const last = metadata_.tensors.size();
  if (last == 0 || metadata_.tensors.name(last - 1) != key)
    metadata_.tensors.push_back(
        {key, tensor.dtype, tensor.shape, narrow<std::uint32_t>(metadata_.chunks.size()), 0});
  metadata_.tensors.change(metadata_.tensors.size() - 1,
                           [](StoredTensor& added) { ++added.chunk_count; });
  metadata_.chunks.push_back(
      {metadata_.lists.add(tensor.offsets), metadata_.lists.add(tensor.sizes), copy(file, item)});
}

void DcpTarget::add_object(std::string const& key, std::uint32_t file, SharedText bytes) {
  std::uint64_t const at = place(file, bytes.size());
  OpenFile& open = file_at(file);
  metadata_.objects.push_back({key, {open.number, at, bytes.size()}});
  open.items.objects.emplace_back(at, std::move(bytes));
}

void DcpTarget::add_tensor(std::string const& key, DType dtype, std::vector<Index> const& shape,
                           std::span<TargetBox> boxes, bool copy) {
  StoredTensor tensor{key, dtype, shape, narrow<std::uint32_t>(metadata_.chunks.size()),
                      narrow<std::uint32_t>(boxes.size())};
  for (TargetBox& box : boxes) {
    std::vector<Index> sizes(shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) sizes[d] = box.box.end[d] - box.box.begin[d];
    dcp::ItemLayout const layout = dcp::item_layout(dtype, sizes);
    std::uint64_t const at = place(box.file, layout);
    OpenFile& open = file_at(box.file);
    metadata_.chunks.push_back({metadata_.lists.add(box.box.begin),
                                metadata_.lists.add(sizes),
                                {open.number, at, layout.size_bytes}});
    job_.target.add({open.number, at + layout.payload_offset_bytes, dtype, key},
                    std::move(box.pieces), copy);
    open.items.tensors.push_back({at, dtype, std::move(sizes)});
  }
  metadata_.tensors.push_back(std::move(tensor));
}

std::vector<OpaqueCopy> DcpTarget::finish(
    std::optional<std::vector<std::pair<std::string, dcp::Path>>> planner_data) {
  job_.files.resize(job_.target.files.size());
  for (OpenFile& open : files_) {
    if (open.number == unused) continue;
    TargetFile& file = job_.files[open.number];
    file.path = job_.target.files[open.number];
    file.size_bytes = open.size_bytes;
    file.frame = std::make_shared<dcp::ItemsFrame const>(std::move(open.items));
  }
  metadata_.planner_data = std::move(planner_data);
  auto const metadata = std::make_shared<dcp::Metadata const>(std::move(metadata_));
  job_.texts.push_back({folder_ / dcp::metadata_name, "", true,
                        [metadata] { return dcp::write_metadata(*metadata); }});
  return std::move(opaque_);
}

}  // namespace reshard
