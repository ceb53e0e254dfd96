#include "core/formats/torch_dist/state/gathered_state.hpp"

#include <algorithm>

#include "core/base/capture.hpp"
#include "core/base/text/wire.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/formats/torch_dist/state/flat_keys.hpp"

namespace reshard::dcp {
namespace {

bool is_gathered(StoredObject const& object) {
  auto const key = parse_group_key(object.name);
  return key && settings_name(*key) == gathered_name;
}

/// Places in StoredTable::objects.
std::vector<std::size_t> gathered(Checkpoint const& checkpoint) {
  std::vector<std::size_t> found;
  auto const& objects = checkpoint.stored.objects;
  for (std::size_t i = 0; i < objects.size(); ++i)
    if (is_gathered(objects[i])) found.push_back(i);
  return found;
}

megatron::FileState read_object(File const& file, StoredObject const& object) {
  std::string const place = fmt::format("{}: '{}'", file.path().string(), object.name);
  return megatron::distributed_state(
      read_torch_file(FileRange(file, object.item.offset_bytes, object.item.size_bytes)), place);
}

void add(Checkpoint& checkpoint, StoredObject const& object, megatron::FileState const& state) {
  for (StorageRecord const& record : state.records)
    checkpoint.records.push_back({object.item.file, record.offset_bytes, record.size_bytes,
                                  object.item.offset_bytes, object.item.size_bytes, record.crc32});
  std::string const group = object.name.substr(0, object.name.find('/'));
  for (megatron::StateBuffer const& buffer : state.buffers)
    for (FileTensor const& tensor : buffer.states)
      checkpoint.stored.add_whole(fmt::format("{}.gbuf_idx_{}.dtype_(torch.{}).{}", group,
                                              buffer.number, buffer.weights, tensor.name),
                                  tensor.dtype, tensor.shape,
                                  {object.item.file, tensor.offset_bytes, tensor.size_bytes},
                                  tensor.strides);
}

}  // namespace

bool has_gathered_states(Checkpoint const& checkpoint) {
  return std::ranges::any_of(checkpoint.stored.objects, is_gathered);
}

void add_gathered_states(Checkpoint& checkpoint, StampedFiles& files,
                         HeaderExchange const& exchange) {
  std::vector<std::size_t> const objects = gathered(checkpoint);
  if (objects.empty()) return;
  auto const ranks = static_cast<std::size_t>(exchange.size());
  WireWriter mine;
  auto i = static_cast<std::size_t>(exchange.rank());
  auto const failure = capture([&] {
    for (; i < objects.size(); i += ranks) {
      StoredObject const& object = checkpoint.stored.objects[objects[i]];
      auto const file = files.open(object.item.file);
      mine.number(objects[i]).put(read_object(*file, object));
    }
  });
  end_with_first(exchange, failure, i);
  for (std::string const& packed : exchange.all_gather(mine.bytes())) {
    for (WireReader in(packed, "the optimizer objects of a rank"); !in.empty(); in.check()) {
      std::uint64_t const object = in.number_up_to(checkpoint.stored.objects.size() - 1);
      add(checkpoint, checkpoint.stored.objects[object], in.get<megatron::FileState>());
    }
  }
}

}  // namespace reshard::dcp
