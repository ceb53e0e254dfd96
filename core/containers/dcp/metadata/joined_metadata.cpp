#include "core/containers/dcp/metadata/joined_metadata.hpp"

#include <unordered_set>

#include "core/base/error.hpp"

namespace reshard::dcp {
namespace {

void check_keys(Metadata const& to, Metadata const& more, std::string const& place) {
  std::unordered_set<std::string_view> known;
  for (StoredTensor const& tensor : to.tensors) known.insert(tensor.name.text());
  for (StoredObject const& object : to.objects) known.insert(object.name);
  auto const check = [&](std::string_view key) {
    if (known.contains(key))
      fail(ErrorKind::source,
           "{}: has the key '{}', which the weights beside it have, too. Name the folder of the "
           "weights alone.",
           place, key);
  };
  for (StoredTensor const& tensor : more.tensors) check(tensor.name.text());
  for (StoredObject const& object : more.objects) check(object.name);
}

}  // namespace

void join_metadata(Metadata& to, Metadata const& more, std::string const& place) {
  check_keys(to, more, place);
  auto const first_file = narrow<std::uint32_t>(to.files.size());
  auto const first_chunk = narrow<std::uint32_t>(to.chunks.size());
  auto const moved = [&](ItemPlace item) {
    item.file += first_file;
    return item;
  };
  for (StoredChunk const& chunk : more.chunks)
    to.chunks.push_back(
        {to.lists.add(more.offsets(chunk)), to.lists.add(more.sizes(chunk)), moved(chunk.item)});
  for (StoredTensor tensor : more.tensors) {
    tensor.first_chunk += first_chunk;
    to.tensors.push_back(std::move(tensor));
  }
  for (StoredObject const& object : more.objects)
    to.objects.push_back({object.name, moved(object.item)});
  to.first_joined = first_file;
  to.files.insert(to.files.end(), more.files.begin(), more.files.end());
  to.flattened.insert(to.flattened.end(), more.flattened.begin(), more.flattened.end());
  if (to.planner_data && more.planner_data)
    to.planner_data->insert(to.planner_data->end(), more.planner_data->begin(),
                            more.planner_data->end());
}

}  // namespace reshard::dcp
