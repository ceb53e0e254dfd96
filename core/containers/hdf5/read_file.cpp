#include "core/containers/hdf5/child/calls.hpp"
#include "core/containers/hdf5/child/check_found.hpp"
#include "core/containers/hdf5/child/child.hpp"
#include "core/containers/hdf5/walk.hpp"

namespace reshard::hdf5 {
namespace {

/// In the child: the open file, not its path, so that the file is the one whose size the parent
/// knows.
std::string walk_and_pack(File const& file) {
  Quiet const quiet;
  H5PLset_loading_state(0);  // no filters from shared libraries
  std::string const place = file.path().string();
  return pack(walk(fmt::format("/proc/self/fd/{}", file.descriptor()), place, open_no_more_files));
}

}  // namespace

Found read_file(std::filesystem::path const& path) {
  File const file = File::open_for_reading(path);
  if (!looks_like_hdf5(path))
    fail(ErrorKind::source,
         "{}: no HDF5 signature at its beginning. It is not an HDF5 file, or it is damaged: "
         "compare it with the original.",
         path.string());
  H5open();  // here, not in the child: it registers its final cleanup with MPI
  std::string const answer = ask_child(file, walk_and_pack);
  Found found;
  try {
    found = unpack(answer);
  } catch (Error const&) {
    fail(ErrorKind::source,
         "{}: libhdf5 returned an invalid answer. The file is damaged: compare it with "
         "the original.",
         path.string());
  }
  check_found(found, file.size_bytes(), path.string());
  return found;
}

}  // namespace reshard::hdf5
