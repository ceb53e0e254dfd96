#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// A piece of a factor: its digits are those of the weight's axes, and of rank_axis. Strides and
/// offset are in elements from offset_bytes on.
struct FactorPiece {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  DType dtype = DType::f32;
  Piece piece;
};

/// The axis of the ranks of an adapter, in pieces of factors.
inline constexpr AxisId rank_axis = static_cast<AxisId>(-1);

/// Which matrix of a weight that is stacked: the indices of the axes that count matrices.
using MatrixPlace = std::vector<std::pair<AxisId, Index>>;

/// An adapter's terms for one matrix.
struct MatrixTerms {
  std::string module;  ///< that is adapted, for messages
  float scale = 1;
};

/// An adapter's factors for a logical tensor, or for some matrices of it: A over the axes that go
/// into the matrix, B over those that come out of it, both over those that count matrices.
struct AdaptedTensor {
  std::string module;  ///< for messages
  TensorId weight{};
  Index rank = 0;
  std::function<MatrixTerms(MatrixPlace const&)> terms;
  std::vector<FactorPiece> a;
  std::vector<FactorPiece> b;
  std::vector<FactorPiece> magnitude = {};  ///< DoRA's, over the axes of B alone; empty: none
};

/// The products that an adapter adds to the weights of a model.
class LowRankPairs {
 public:
  /// `model` outlives this.
  explicit LowRankPairs(Model const& model) : model_(model) {}

  /// Errors of kind source: factors that do not hold every element of a matrix, two adapters for
  /// one matrix.
  void add(AdaptedTensor const& adapted);

  /// Makes the pieces of the weights that are adapted views of merged weights. `numbers` adds to
  /// file numbers of factors. Errors of kind source: a weight that is adapted and not there,
  /// quantised, computed from other values, or of a dtype that cannot be merged.
  void merge_into(Catalog& catalog) const;

  std::vector<LowRankPair> const& pairs() const { return pairs_; }

 private:
  /// How the flat index of an axis' group counts: rows of B, rows of A, or matrices.
  enum class Role { out, in, matrix };
  struct AxisRole {
    Role role = Role::matrix;
    Index step = 0;
    friend bool operator==(AxisRole const&, AxisRole const&) = default;
  };
  struct Adapted {
    std::map<AxisId, AxisRole> roles;
    Index out = 1;
    Index in = 1;
    std::shared_ptr<std::vector<std::uint32_t>> pairs;  ///< by matrix
  };

  Adapted& adapted(AdaptedTensor const& one);
  void add_parts(Adapted const& adapted, FactorPiece const& piece, Role role,
                 std::map<Index, std::vector<FactorPart>>& parts) const;
  void add_weights(Adapted const& adapted, TensorId tensor, Catalog const& catalog,
                   std::vector<LowRankPair>& pairs) const;
  MergedPart merged_part(Adapted const& adapted, Piece const& piece, std::string const& name) const;
  bool touches(Adapted const& adapted, MergedPart const& part) const;
  MatrixPlace place_of(Adapted const& adapted, Index matrix) const;
  void check_weights(TensorId tensor, Catalog const& catalog) const;

  Model const& model_;
  std::vector<LowRankPair> pairs_;
  std::map<TensorId, Adapted> adapted_;
};

}  // namespace reshard
