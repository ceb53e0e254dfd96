#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "core/io/file_io.hpp"

namespace reshard {

/// An engine that a job can choose.
struct IoEngine {
  std::string_view name;
  std::string_view needs;  ///< requirements of the engine, for the user
  std::unique_ptr<FileIo> (*make)();
};

/// All engines; the first is the default.
std::span<IoEngine const> io_engines();

/// Pre: an engine has this name.
std::unique_ptr<FileIo> make_file_io(std::string_view name);

}  // namespace reshard
