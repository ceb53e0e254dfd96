#include <algorithm>

#include "core/base/files/file_range.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/torch/pickle/pickle_builder.hpp"

namespace reshard::dcp {
namespace {

pickle::NodeId expect_dict(FileRange const& file, pickle::Document const& document,
                           pickle::NodeId id) {
  if (document.at(id).kind != pickle::Kind::dict)
    fail(
        ErrorKind::source,
        "{}: the common state is a {}, expected a dict. The file is not from Megatron, or damaged: restore it.",
        file.name(), pickle::kind_name(document.at(id).kind));
  return id;
}

/// The item's value is a list of one dict: Megatron stores the objects of one key as a list.
CommonState from_item(std::filesystem::path const& path, ItemPlace const& place) {
  File const file = File::open_for_reading(path);
  FileRange const range(file, place.offset_bytes, place.size_bytes);
  CommonState common{.file = path, .torch = read_torch_file(range)};
  pickle::Document const& document = common.torch.document;
  pickle::Node const& list = document.at(document.root);
  if (list.kind != pickle::Kind::list || list.items.size() != 1)
    fail(
        ErrorKind::source,
        "{}: the item {} is a {} of {} values, expected a list of one dict. The file is not from Megatron, or damaged: restore it.",
        range.name(), common_key, pickle::kind_name(list.kind), list.items.size());
  common.root = expect_dict(range, document, list.items.front());
  return common;
}

}  // namespace

CommonState read_common_file(std::filesystem::path const& path) {
  File const file = File::open_for_reading(path);
  FileRange const range(file);
  CommonState common{.file = path, .torch = read_torch_file(range)};
  common.root = expect_dict(range, common.torch.document, common.torch.document.root);
  return common;
}

std::optional<CommonState> read_common(Directory const& directory, Metadata const& metadata) {
  if (directory.has_common_file) return read_common_file(directory.folder / common_name);
  auto const found = std::ranges::find(metadata.objects, common_key, &StoredObject::name);
  if (found == metadata.objects.end()) return std::nullopt;
  RESHARD_EXPECT(found->item.file < metadata.files.size());
  return from_item(directory.folder / metadata.files[found->item.file], found->item);
}

std::string torch_file_bytes(pickle::Document& document, std::string_view archive,
                             std::function<std::string(std::size_t)> const& payload) {
  TorchFilePlan const plan = plan_torch_file(document, archive);
  std::string bytes(plan.size_bytes, '\0');
  std::vector<std::uint32_t> crcs;
  for (std::size_t i = 0; i < plan.storages.size(); ++i) {
    ZipRecord const& storage = plan.storages[i];
    RESHARD_EXPECT(storage.size_bytes == 0 || payload);
    std::string const content = storage.size_bytes == 0 ? std::string() : payload(i);
    RESHARD_EXPECT(content.size() == storage.size_bytes);
    bytes.replace(storage.payload_offset_bytes, content.size(), content);
    crcs.push_back(crc32(std::as_bytes(std::span(content))));
  }
  for (FileSegment const& segment : render_torch_file(plan, crcs))
    bytes.replace(segment.offset_bytes, segment.bytes.size(), segment.bytes);
  return bytes;
}

}  // namespace reshard::dcp
