#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/job/job_spec.hpp"

namespace reshard {

struct InitRequest {
  std::filesystem::path source;
  std::optional<FormatId> format;  ///< of the target; else one that suits the source
  MapLibrary library;
};

/// A commented job file for a source. Every target format is tried with the planner itself, so the
/// file that comes out is one that `plan` accepts, with the policies that it needs, and it says
/// which formats are possible and why others are not. Reads headers only. Collective; the same text
/// on every rank. Errors: of kind source what open_source() refuses; what the planner says when no
/// target, or not the wanted one, is possible.
std::string init_job(InitRequest const& request, Comm const& comm);

/// Writes a new file, whole or not at all. Errors: target, when one exists; usage, when its folder
/// cannot take one; io, resources. `option` is the one that names it.
void write_new_job(std::filesystem::path const& path, std::string const& text,
                   std::string_view option = "-o");

}  // namespace reshard
