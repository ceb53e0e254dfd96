#include "pipeline/job_paths.hpp"

#include <system_error>
#include <vector>

#include "core/base/error.hpp"
#include "pipeline/paths.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {

namespace fs = std::filesystem;

void check_outside_job(fs::path const& file, std::string_view option, JobSpec const& spec, std::span<fs::path const> source_files) {
  if (file.empty()) fail(ErrorKind::usage, "{}: the path is empty. Choose another path for {}.", option, option);
  std::error_code ignored;
  auto const real = [&](fs::path const& path) { return fs::weakly_canonical(fs::absolute(path), ignored); };
  fs::path const place = real(file);
  std::vector<fs::path> taken = places_of(spec.target.path);
  taken.emplace_back(spec.source.path);
  taken.insert(taken.end(), source_files.begin(), source_files.end());
  for (fs::path const& path : taken)
    if (holds(real(path), place))
      fail(ErrorKind::usage, "{} {}: {} belongs to this job's source or target. Choose another path for {}.", option, place.string(), path.string(),
           option);
}

}  // namespace reshard
