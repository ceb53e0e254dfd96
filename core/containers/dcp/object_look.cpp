#include "core/containers/dcp/object_look.hpp"

#include "core/base/files/file_range.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard::dcp {

ObjectLook look_at_object(File const& file, ItemPlace const& place) {
  try {
    TorchFile const torch = read_torch_file(FileRange(file, place.offset_bytes, place.size_bytes));
    // The legacy container has further pickles next to the value's.
    if (torch.container != TorchFile::Container::zip)
      return {.found = {}, .damage = "it is not a zip archive."};
    return {.found = pickle::not_to_copy(torch.document), .damage = {}};
  } catch (Error const& error) {
    if (error.kind() != ErrorKind::source) throw;
    return {.found = {}, .damage = error.sentence()};
  }
}

}  // namespace reshard::dcp
