#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/state_checks.hpp"

namespace reshard {

/// A logical tensor as one row-major array, its axes in canonical order, each counted over its
/// domain (Model::meant_domain): what digests are taken of, and what an HDF5 dataset holds.
std::vector<Index> logical_shape(Model const& model, TensorId tensor);
Index logical_volume(Model const& model, TensorId tensor);
/// The pieces of that array, in elements of it: one for each combination of runs of the domain.
std::vector<Piece> logical_pieces(Model const& model, TensorId tensor);
/// Pieces of an array of what lies in the tensor's domain and not in the meant one; none where that
/// is nothing.
std::vector<Piece> padding_pieces(Model const& model, TensorId tensor);

/// Which stored pieces are considered.
enum class DigestScope {
  distinct,  ///< every element of the checkpoint once
  all,       ///< replicas, too, and declared copies of a piece that is there
};

/// What is summed up of a piece's bytes.
enum class ShareKind : std::uint8_t {
  bytes,    ///< they themselves
  rounded,  ///< F32 values rounded to PieceShare::dtype, whose tensor has half the bytes
  moments   ///< whether they are second moments: 0 when all are
};

/// One stored piece, whose share of a digest is summed up.
struct PieceShare {
  DigestId digest{};
  std::uint32_t blob = 0;  ///< of the catalogue
  ShareId
      same_as{};  ///< of the piece whose elements these are, too; its own for the one that counts
  ShareKind kind = ShareKind::bytes;
  DType dtype = DType::bf16;  ///< of rounded values
  std::uint32_t piece = 0;    ///< with DigestScope::all, of bytes: in TensorPieces
};

/// A region that goes to the share of a piece.
using ShareRegion = StridedBlock<ShareId>;

/// The digest of a checkpoint as work on its files. `regions` say where the bytes of each piece
/// are in its logical tensor: dst_offset_bytes is the place in the row-major bytes of the tensor
/// (`to_stride` of the dimensions likewise). Regions of a piece do not overlap; what they give xors
/// to its share. The shares of all pieces of a tensor that are their own `same_as` xor to its
/// digest (core/base/crc64.hpp).
struct DigestWork {
  std::vector<ShareRegion> regions;
  std::vector<ByteDim> dims;
  std::vector<PieceShare> shares;
  std::vector<std::uint64_t> tensor_bytes;  ///< by DigestId; 0 for tensors that do not exist

  /// What the piece of a share belongs to.
  PieceShare const& share(ShareId id) const { return shares[index(id)]; }
};

/// Adds the shares of what `checks` look at. The digest of rounded masters is StateCheck::rounded;
/// that of second moments, numbered behind, is 0 when all are sound: it is returned by number of
/// the check (DigestId::none for others). DigestWork::tensor_bytes of both are those of the state.
/// Pre: the checks' digests begin behind those of the work.
std::vector<DigestId> add_state_shares(DigestWork& work, std::span<StateCheck const> checks);

/// Errors of kind source: as make_plan() for the source's side. Pre: the catalogue has
/// no views but of F32 values that are rounded.
DigestWork digest_work(Model const& model, Catalog const& catalog, DigestScope scope);

}  // namespace reshard
