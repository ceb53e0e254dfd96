#include "core/containers/hdf5/parallel_writer.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core/containers/hdf5/child/calls.hpp"
#include "core/containers/hdf5/layout.hpp"
#include "core/layout/pieces/flat_boxes.hpp"

namespace reshard::hdf5 {
namespace {

static_assert(sizeof(hsize_t) == sizeof(std::uint64_t));

Handle open_file(Calls const& calls, std::string const& path, MPI_Comm comm) {
  Handle const access = file_access(calls);
  if (comm != MPI_COMM_NULL) {
    calls.done(H5Pset_fapl_mpio(access.id(), comm, MPI_INFO_NULL), "choose MPI-IO");
    // Broken in 1.10.5 to 1.10.8, and useless here: every rank opens other datasets.
    calls.done(H5Pset_all_coll_metadata_ops(access.id(), false), "choose how metadata are read");
  }
  return calls.take(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.id()), H5Fclose,
                    "open it on all ranks");
}

Handle transfer_properties(MPI_Comm comm, Transfer transfer) {
  Calls const calls = {ErrorKind::internal, "the transfer properties of HDF5"};
  Handle properties = calls.take(H5Pcreate(H5P_DATASET_XFER), H5Pclose, "make them");
  if (comm == MPI_COMM_NULL) return properties;
  bool const together = transfer == Transfer::collective;
  calls.done(
      H5Pset_dxpl_mpio(properties.id(), together ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT),
      "choose how ranks write");
  return properties;
}

/// A dataset of one of the files.
struct Place {
  std::uint32_t file = 0;
  std::string path;  ///< "tensors/<link>"
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t element_bytes = 0;
};

std::vector<std::string> links_of(Calls const& calls, hid_t group) {
  std::vector<std::string> names;
  auto const add = [](hid_t, char const* name, H5L_info_t const*, void* into) -> herr_t {
    static_cast<std::vector<std::string>*>(into)->emplace_back(name);
    return 0;
  };
  calls.done(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names),
             "list a group");
  return names;
}

}  // namespace

class ParallelWriter::Files {
 public:
  Files(std::span<std::filesystem::path const> files, MPI_Comm comm, Transfer transfer)
      : properties_(transfer_properties(comm, transfer)) {
    for (std::filesystem::path const& path : files) names_.push_back(path.string());
    try {
      open_all(comm);
    } catch (...) {
      forget();
      throw;
    }
  }

  void forget() {
    for (Handle& file : files_) file.forget();
  }

  std::vector<Piece> pieces(std::uint32_t file, std::uint64_t offset,
                            std::span<std::byte const> bytes, std::uint64_t most_bytes) const {
    std::vector<Piece> cut;
    std::uint64_t const end = offset + bytes.size();
    auto place = std::upper_bound(places_.begin(), places_.end(), offset,
                                  [file](std::uint64_t at, Place const& p) {
                                    return file < p.file || (file == p.file && at < p.end);
                                  });
    for (std::uint64_t at = offset; at < end; ++place) {
      RESHARD_EXPECT(place != places_.end() && place->file == file && place->begin <= at);
      std::uint64_t const stop = std::min(end, place->end);
      RESHARD_EXPECT((at - place->begin) % place->element_bytes == 0 &&
                     (stop - at) % place->element_bytes == 0);
      std::uint64_t const most =
          std::max<std::uint64_t>(1, most_bytes / place->element_bytes) * place->element_bytes;
      for (; at < stop; at += std::min(most, stop - at))
        cut.push_back({static_cast<std::size_t>(place - places_.begin()),
                       (at - place->begin) / place->element_bytes,
                       std::min(most, stop - at) / place->element_bytes,
                       bytes.data() + (at - offset)});
    }
    return cut;
  }

  void write(Piece const& piece) {
    open(piece.dataset);
    Calls const calls = calls_of_dataset(piece.dataset);
    hsize_t const elements = piece.elements;
    Handle const memory =
        calls.take(H5Screate_simple(1, &elements, nullptr), H5Sclose, "create a dataspace");
    if (!extents_.empty()) {
      H5S_seloper_t operation = H5S_SELECT_SET;
      auto const first = narrow<Index>(piece.first_element);
      for (FlatBox const& flat :
           flat_boxes(extents_, first, first + narrow<Index>(piece.elements))) {
        std::vector<hsize_t> const start(flat.box.begin.begin(), flat.box.begin.end());
        std::vector<hsize_t> count(flat.box.end.begin(), flat.box.end.end());
        for (std::size_t d = 0; d < count.size(); ++d) count[d] -= start[d];
        calls.done(H5Sselect_hyperslab(space_->id(), operation, start.data(), nullptr, count.data(),
                                       nullptr),
                   "select elements");
        operation = H5S_SELECT_OR;
      }
    } else {
      calls.done(H5Sselect_all(space_->id()), "select the element");
    }
    calls.done(H5Dwrite(dataset_->id(), type_->id(), memory.id(), space_->id(), properties_.id(),
                        piece.from),
               "write elements");
  }

  void take_part(std::size_t dataset) {
    open(dataset);
    Calls const calls = calls_of_dataset(dataset);
    hsize_t const elements = 1;
    Handle const memory =
        calls.take(H5Screate_simple(1, &elements, nullptr), H5Sclose, "create a dataspace");
    calls.done(H5Sselect_none(memory.id()), "select nothing");
    calls.done(H5Sselect_none(space_->id()), "select nothing");
    std::byte const unused{};
    calls.done(
        H5Dwrite(dataset_->id(), type_->id(), memory.id(), space_->id(), properties_.id(), &unused),
        "join a collective write");
  }

  void close() {
    close_dataset();
    for (std::size_t f = 0; f < files_.size(); ++f)
      if (!files_[f].close()) calls_of(f).failed("close it");
  }

 private:
  Calls calls_of(std::size_t file) const { return {ErrorKind::io, names_[file]}; }
  Calls calls_of_dataset(std::size_t dataset) const {
    return calls_of(places_[dataset].file).at(places_[dataset].path);
  }

  void open_all(MPI_Comm comm) {
    for (std::uint32_t f = 0; f < names_.size(); ++f) {
      files_.push_back(open_file(calls_of(f), names_[f], comm));
      find_datasets(f);
    }
    std::sort(places_.begin(), places_.end(), [](Place const& a, Place const& b) {
      return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
    });
  }

  void find_datasets(std::uint32_t file) {
    Calls const calls = calls_of(file);
    for (char const* group_name : {tensors_group, objects_group}) {
      Handle const group = calls.take(H5Gopen2(files_[file].id(), group_name, H5P_DEFAULT),
                                      H5Gclose, "open a group");
      for (std::string const& link : links_of(calls, group.id())) {
        std::string path = fmt::format("{}/{}", group_name, link);
        Calls const at = calls.at(path);
        Handle const dataset =
            at.take(H5Dopen2(files_[file].id(), path.c_str(), H5P_DEFAULT), H5Dclose, "open it");
        std::uint64_t const bytes = H5Dget_storage_size(dataset.id());
        haddr_t const offset = H5Dget_offset(dataset.id());
        if (bytes == 0 || offset == HADDR_UNDEF) continue;
        Handle const type = at.take(H5Dget_type(dataset.id()), H5Tclose, "read the type");
        places_.push_back({file, std::move(path), offset, offset + bytes, H5Tget_size(type.id())});
      }
    }
  }

  /// Keeps the dataset of the last call open: rounds are in the order of the file, so it is often
  /// that of the next.
  void open(std::size_t dataset) {
    if (dataset_ && open_ == dataset) return;
    close_dataset();
    Calls const calls = calls_of_dataset(dataset);
    Place const& place = places_[dataset];
    dataset_.emplace(calls.take(H5Dopen2(files_[place.file].id(), place.path.c_str(), H5P_DEFAULT),
                                H5Dclose, "open it"));
    open_ = dataset;
    type_.emplace(calls.take(H5Dget_type(dataset_->id()), H5Tclose, "read the type"));
    space_.emplace(calls.take(H5Dget_space(dataset_->id()), H5Sclose, "read the dataspace"));
    int const rank =
        calls.done(H5Sget_simple_extent_ndims(space_->id()), "read the number of dimensions");
    std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
    if (rank > 0)
      calls.done(H5Sget_simple_extent_dims(space_->id(), extents.data(), nullptr),
                 "read the dimensions");
    extents_.assign(extents.begin(), extents.end());
  }

  void close_dataset() {
    space_.reset();
    type_.reset();
    dataset_.reset();
  }

  Quiet quiet_;
  Handle properties_;
  std::vector<std::string> names_;
  std::vector<Handle> files_;
  std::vector<Place> places_;

  std::size_t open_ = 0;
  std::optional<Handle> dataset_;
  std::optional<Handle> type_;
  std::optional<Handle> space_;
  std::vector<Index> extents_;
};

ParallelWriter::ParallelWriter(std::span<std::filesystem::path const> files, MPI_Comm comm,
                               Transfer transfer)
    : files_(std::make_unique<Files>(files, comm, transfer)) {}

ParallelWriter::~ParallelWriter() { files_->forget(); }

std::vector<Piece> ParallelWriter::pieces(std::uint32_t file, std::uint64_t offset_bytes,
                                          std::span<std::byte const> bytes,
                                          std::uint64_t most_bytes) const {
  return files_->pieces(file, offset_bytes, bytes, most_bytes);
}

void ParallelWriter::write(Piece const& piece) { files_->write(piece); }

void ParallelWriter::take_part(std::size_t dataset) { files_->take_part(dataset); }

void ParallelWriter::close() { files_->close(); }

}  // namespace reshard::hdf5
