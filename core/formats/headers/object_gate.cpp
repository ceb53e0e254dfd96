#include "core/formats/headers/object_gate.hpp"

#include <algorithm>

#include "core/base/tables/counted.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/run/run_record.hpp"

namespace reshard {

bool ObjectGate::admits(StoredObject const& object) {
  if (request_.read.objects_unread) return true;
  dcp::ObjectLook const look = look_at(object);
  if (look.damage.empty() && may_be_carried(look.found, request_.read.foreign_classes)) return true;
  if (request_.read.foreign_classes == ForeignClasses::drop) {
    left_out_.push_back(
        fmt::format("{} ({})", json_quoted(object.name),
                    look.damage.empty() ? json_quoted(look.found.name) : "cannot be read"));
    return false;
  }
  if (look.damage.empty()) refuse_to_carry(place(object), look.found);
  fail(ErrorKind::source,
       "{}: the object cannot be checked: {} Set source.objects = \"unread\" to copy its bytes "
       "unchecked, or model.foreign_classes = \"drop\" to leave it out.",
       place(object), look.damage);
}

void ObjectGate::warn(std::vector<std::string>& warnings) const {
  if (left_out_.empty()) return;
  warnings.push_back(fmt::format("{} {} left out (model.foreign_classes = \"drop\"): {}",
                                 counted(left_out_.size(), "object"),
                                 agreeing(left_out_.size(), "is", "are"), listed(left_out_, 6)));
}

dcp::ObjectLook ObjectGate::look_at(StoredObject const& object) const {
  auto const& looks = source_.chunked.looks;
  if (!looks.empty())
    return looks.at(static_cast<std::size_t>(&object - source_.stored.objects.data()));
  return dcp::look_at_object(File::open_for_reading(source_.files[object.item.file]), object.item);
}

void refuse_tensor_objects(Checkpoint const& source) {
  auto const found = std::ranges::find_if(
      source.stored.objects, [](StoredObject const& object) { return object.tensor.has_value(); });
  if (found == source.stored.objects.end()) return;
  fail(ErrorKind::source,
       "{}: {} is a quantised tensor of torchao, whose parts no map describes. Set model.map = "
       "\"none\", and no key that changes the model: then it is carried as it is.",
       source.place, json_quoted(found->name));
}

std::string ObjectGate::place(StoredObject const& object) const {
  return fmt::format("{}: {} at byte {}", source_.files[object.item.file].string(),
                     json_quoted(object.name), object.item.offset_bytes);
}

}  // namespace reshard
