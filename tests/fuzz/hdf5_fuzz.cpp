// An HDF5 file. It is read in a child process, as the program does, because libhdf5 is not made for
// hostile files: whatever happens there, the outcome is an Error of kind source or what the file
// holds. A file that the child can read is then walked in this process too, where the fuzzer sees
// which code it reaches; both ways say the same.

#include <hdf5.h>

#include "core/containers/hdf5/child/calls.hpp"
#include "core/containers/hdf5/child/check_found.hpp"
#include "core/containers/hdf5/child/child.hpp"
#include "core/containers/hdf5/walk.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

/// Smaller than the program's: the fuzzer has to go on.
constexpr hdf5::ChildLimits limits = {.more_memory_bytes = std::uint64_t{256} << 20U,
                                      .cpu_seconds = 1,
                                      .wall_seconds = 2,
                                      .answer_bytes = 1 << 20};

/// Of the file; what the input does not fill is zero, as the data of a container may be.
constexpr std::uint64_t file_bytes = std::uint64_t{2} << 20U;

constexpr char const* late = "late";
constexpr char const* ended = "libhdf5 ";  ///< begins what is said of a child that did not answer

/// libhdf5 asks for the real path, which a file that is only in memory has not.
File holding(std::string_view bytes) {
  static ScratchFolder const folder("fuzz", std::filesystem::is_directory("/dev/shm")
                                                ? "/dev/shm"
                                                : std::filesystem::temp_directory_path());
  std::filesystem::path const path = folder.path() / "file.h5";
  File file = File::create(path);
  file.write_at(0, fuzz::bytes_of(bytes));
  file.resize(std::max<std::uint64_t>(bytes.size(), file_bytes));
  file.close();
  return File::open_for_reading(path);
}

std::string walk_and_pack(File const& file, void (*opened)()) {
  hdf5::Quiet const quiet;
  H5PLset_loading_state(0);
  return hdf5::pack(
      hdf5::walk(fmt::format("/proc/self/fd/{}", file.descriptor()), file.path().string(), opened));
}

std::string in_child(File const& file) { return walk_and_pack(file, hdf5::open_no_more_files); }

void nothing() {}

/// The answer, or the sentence of the refusal.
template <class Work>
std::string outcome(Work&& work) {
  try {
    return work();
  } catch (Error const& error) {
    if (error.kind() == ErrorKind::io) return late;  // this machine has other things to do
    FUZZ_EXPECT(error.kind() == ErrorKind::source && !error.sentence().empty());
    return error.sentence();
  }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  H5open();
  File const file = holding(fuzz::text_of(data, size));
  if (!hdf5::looks_like_hdf5(file.path())) return 0;
  std::string const said = outcome([&] { return hdf5::ask_child(file, in_child, limits); });
  if (said == late || said.find(std::string(": ") + ended) != std::string::npos)
    return 0;  // libhdf5 crashed, or took too long
  FUZZ_EXPECT(outcome([&] { return walk_and_pack(file, nothing); }) == said);
  auto found = fuzz::attempt(ErrorKind::internal, [&] { return hdf5::unpack(said); });
  if (!found) return 0;
  fuzz::accepted(ErrorKind::source, [&] {
    hdf5::check_found(*found, file.size_bytes(), "fuzz");
    return true;
  });
  return 0;
}
