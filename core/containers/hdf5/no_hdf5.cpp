#include "core/containers/hdf5/container.hpp"
#include "core/containers/hdf5/parallel_writer.hpp"

namespace reshard::hdf5 {
namespace {

[[noreturn]] void fail_absent(std::string_view place) {
  fail(
      ErrorKind::usage,
      "{}: this build has no HDF5. Install a parallel libhdf5 (Debian: libhdf5-openmpi-dev) and build again, or choose another format.",
      place);
}

}  // namespace

ContainerPlan plan_container(std::span<DatasetSpec const>, std::span<ObjectSpec const>,
                             RootAttributes const&, std::uint64_t) {
  fail_absent("an HDF5 container");
}

std::vector<FileSegment> finished_frame(std::span<DatasetSpec const>, std::span<ObjectSpec const>,
                                        RootAttributes const&, std::span<std::uint64_t const>,
                                        std::uint64_t) {
  fail_absent("an HDF5 container");
}

Found read_file(std::filesystem::path const& path) { fail_absent(path.string()); }

class ParallelWriter::Files {};

ParallelWriter::ParallelWriter(std::span<std::filesystem::path const>, MPI_Comm, Transfer) {
  fail_absent("an HDF5 container");
}

ParallelWriter::~ParallelWriter() = default;

std::vector<Piece> ParallelWriter::pieces(std::uint32_t, std::uint64_t, std::span<std::byte const>,
                                          std::uint64_t) const {
  fail_absent("an HDF5 container");
}

void ParallelWriter::write(Piece const&) { fail_absent("an HDF5 container"); }

void ParallelWriter::take_part(std::size_t) { fail_absent("an HDF5 container"); }

void ParallelWriter::close() { fail_absent("an HDF5 container"); }

}  // namespace reshard::hdf5
