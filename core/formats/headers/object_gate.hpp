#pragma once

#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/targets/target.hpp"

namespace reshard {

/// Decides which objects of a DCP source go into a target. Their bytes are copied unchanged, and
/// the program that loads the target unpickles them: so each is inspected, unless the job keeps
/// objects unread.
class ObjectGate {
 public:
  ObjectGate(Checkpoint const& source, PlanRequest const& request)
      : source_(source), request_(request) {}

  /// False for an object that the job leaves out. One that it refuses is an Error of kind source.
  /// `object` is one of the source's.
  bool admits(StoredObject const& object);

  /// Adds warnings about the objects left out.
  void warn(std::vector<std::string>& warnings) const;

 private:
  dcp::ObjectLook look_at(StoredObject const& object) const;
  std::string place(StoredObject const& object) const;

  Checkpoint const& source_;
  PlanRequest const& request_;
  std::vector<std::string> left_out_;
};

/// Refuses tensors that are objects of a class (StoredObject::tensor), which only a target that
/// keeps all names can have. An Error of kind source.
void refuse_tensor_objects(Checkpoint const& source);

}  // namespace reshard
