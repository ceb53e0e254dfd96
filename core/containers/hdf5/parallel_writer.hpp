#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <mpi.h>

namespace reshard::hdf5 {

/// The way in which ranks write through libhdf5: each by itself (independent), or all in every call
/// (collective).
enum class Transfer { independent, collective };

/// Consecutive elements of one dataset in row-major order, with the address of their bytes.
struct Piece {
  std::size_t dataset = 0;  ///< ParallelWriter's number
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
  std::byte const* from = nullptr;  ///< little endian, as in the file
};

/// Containers that exist at full size with their first frame, opened by all ranks through MPI-IO.
/// Only elements are written: no metadata changes. Datasets are numbered from 0 over all files, by
/// file and offset, those without elements left out. Errors are of kind io, with libhdf5's text.
/// Used by one thread at a time.
class ParallelWriter {
 public:
  /// The most bytes of one piece: MPI counts are ints.
  static constexpr std::uint64_t most_piece_bytes = std::uint64_t{1} << 30U;

  /// Opens the files. Collective; a failure of one rank leaves others waiting, so the caller ends
  /// the job. With MPI_COMM_NULL one process writes them without MPI.
  ParallelWriter(std::span<std::filesystem::path const> files, MPI_Comm comm, Transfer transfer);
  /// Files that close() did not close stay open, because closing one waits for ranks that may be
  /// lost.
  ~ParallelWriter();
  ParallelWriter(ParallelWriter const&) = delete;
  ParallelWriter& operator=(ParallelWriter const&) = delete;

  /// Cuts bytes [offset_bytes, +bytes.size()) of a file at the borders of datasets and into pieces
  /// of at most `most_bytes` (at least one element). In ascending order. Bytes of no dataset, or
  /// parts of elements, are an internal Error.
  std::vector<Piece> pieces(std::uint32_t file, std::uint64_t offset_bytes,
                            std::span<std::byte const> bytes,
                            std::uint64_t most_bytes = most_piece_bytes) const;

  /// Writes the elements, without conversion: memory and file have the same type. With
  /// Transfer::collective every rank makes the call for the same dataset, or take_part().
  void write(Piece const& piece);
  /// Transfer::collective: the call of a rank that has no elements of this dataset now.
  void take_part(std::size_t dataset);
  /// Closes the files. Collective.
  void close();

 private:
  class Files;
  std::unique_ptr<Files> files_;
};

}  // namespace reshard::hdf5
