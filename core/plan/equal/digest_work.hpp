#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// A logical tensor as one row-major array, its axes in canonical order, each over its domain
/// (Model::meant_domain): the order of digests and of an HDF5 dataset.
std::vector<Index> logical_shape(Model const& model, TensorId tensor);
Index logical_volume(Model const& model, TensorId tensor);
/// The pieces of that array, in elements of it: one for each combination of runs of the domain.
std::vector<Piece> logical_pieces(Model const& model, TensorId tensor);
/// Pieces of an array of the elements in the tensor's domain that are not in the meant one
/// (padding); none if there are no such elements.
std::vector<Piece> padding_pieces(Model const& model, TensorId tensor);

/// The stored pieces that are considered.
enum class DigestScope {
  distinct,  ///< every element of the checkpoint once
  all,       ///< replicas, too, and declared copies of an existing piece
};

/// The kind of sum over a piece's bytes.
enum class ShareKind : std::uint8_t {
  bytes,    ///< the CRC-64 of the bytes
  rounded,  ///< F32 values rounded to PieceShare::dtype, whose tensor has half the bytes
  moments   ///< whether they are second moments: 0 if all are
};

/// One stored piece, whose share of a digest is summed up.
struct PieceShare {
  DigestId digest{};
  std::uint32_t blob = 0;  ///< of the catalogue
  ShareId same_as{};  ///< the share of the piece with the same elements that counts; its own for
                      ///< that piece
  ShareKind kind = ShareKind::bytes;
  DType dtype = DType::bf16;  ///< of rounded values
  std::uint32_t piece = 0;    ///< with DigestScope::all, of bytes: in TensorPieces
};

/// A region that goes to the share of a piece.
using ShareRegion = StridedBlock<ShareId>;

/// The digest of a checkpoint as work on its files. `regions` place the bytes of each piece in its
/// logical tensor: dst_offset_bytes and the `to_stride` of the dimensions count in the row-major
/// bytes of the tensor. Regions of a piece do not overlap; the xor of their shares is the piece's
/// share. The xor of the shares of all pieces of a tensor that are their own `same_as` is its
/// digest (core/base/hash/crc64.hpp).
struct DigestWork {
  std::vector<ShareRegion> regions;
  std::vector<ByteDim> dims;
  std::vector<PieceShare> shares;
  std::vector<std::uint64_t> tensor_bytes;  ///< by DigestId; 0 for tensors that do not exist

  /// The share with this id.
  PieceShare const& share(ShareId id) const { return shares[index(id)]; }
};

/// Adds the shares of the state that `checks` read. The digest of rounded masters is
/// StateCheck::rounded; that of second moments, numbered after these, is 0 if all are sound.
/// Returns the latter by number of the check (DigestId::none for others). DigestWork::tensor_bytes
/// of both are those of the state. Pre: the checks' digests follow those of the work.
std::vector<DigestId> add_state_shares(DigestWork& work, std::span<StateCheck const> checks);

/// Errors of kind source: as make_plan() for the source's side. Pre: the catalogue has no views
/// other than of rounded F32 values.
DigestWork digest_work(Model const& model, Catalog const& catalog, DigestScope scope);

}  // namespace reshard
