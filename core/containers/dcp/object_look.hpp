#pragma once

#include <string>

#include "core/base/files/file.hpp"
#include "core/containers/dcp/metadata/metadata.hpp"
#include "core/containers/torch/pickle/carried_calls.hpp"

namespace reshard::dcp {

/// The result of checking the pickle of an object that is to be copied as bytes.
struct ObjectLook {
  pickle::NotCarried found;
  std::string damage;  ///< why it cannot be read; "" if it can
};

/// Reads the object's archive as a torch file. Executes nothing; storages are not read.
ObjectLook look_at_object(File const& file, ItemPlace const& place);

}  // namespace reshard::dcp
