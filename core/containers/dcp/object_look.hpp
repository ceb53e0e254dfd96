#pragma once

#include <string>

#include "core/base/file.hpp"
#include "core/containers/dcp/metadata.hpp"
#include "core/containers/torch/carried_calls.hpp"

namespace reshard::dcp {

/// What the pickle of an object holds, as far as it matters for carrying the object as bytes.
struct ObjectLook {
  pickle::NotCarried found;
  std::string damage;  ///< why it cannot be read; "" when it can
};

/// Reads the object's archive as any torch file. Nothing is executed, and storages are not read.
ObjectLook look_at_object(File const& file, ItemPlace const& place);

}  // namespace reshard::dcp
