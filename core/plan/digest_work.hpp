#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// A logical tensor as one row-major array, its axes in canonical order, each counted over its
/// domain (Model::meant_domain): what digests are taken of, and what an HDF5 dataset holds.
std::vector<Index> logical_shape(Model const& model, int tensor);
Index logical_volume(Model const& model, int tensor);
/// The pieces of that array, in elements of it: one for each combination of runs of the domain.
std::vector<Piece> logical_pieces(Model const& model, int tensor);
/// Pieces of an array of what lies in the tensor's domain and not in the meant one; none where that
/// is nothing.
std::vector<Piece> padding_pieces(Model const& model, int tensor);

/// Which stored pieces are considered.
enum class DigestScope {
  distinct,  ///< every element of the checkpoint once
  all,       ///< replicas, too, and declared copies of a piece that is there
};

/// Where the share of one stored piece is summed up.
struct DigestSlot {
  std::uint32_t tensor = 0;  ///< of the model
  std::uint32_t blob = 0;    ///< of the catalogue
  std::uint32_t same_as =
      0;  ///< the slot of the piece whose elements these are, too; itself for the one that counts
};

/// The digest of a checkpoint as work on its files. `regions` say where the bytes of each piece
/// are in its logical tensor: src_file and src_offset_bytes as in any Region; dst_file is the
/// SLOT, dst_offset_bytes the place in the row-major bytes of the logical tensor (`to_stride` of
/// the dimensions likewise). Regions of a slot do not overlap; their shares xor to the slot's
/// share. The shares of all slots of a tensor that are their own `same_as` xor to its digest
/// (core/base/crc64.hpp).
struct DigestWork {
  std::vector<Region> regions;
  std::vector<ByteDim> dims;
  std::vector<DigestSlot> slots;
  std::vector<std::uint64_t> tensor_bytes;  ///< by logical tensor; 0 for those that do not exist
};

/// Errors of kind source: as make_plan() for the source's side. Pre: the catalogue has no views.
DigestWork digest_work(Model const& model, Catalog const& catalog, DigestScope scope);

}  // namespace reshard
