#include "stages/plan/adapter/adapter_pairs.hpp"

#include <map>
#include <utility>

#include "core/base/error.hpp"
#include "core/mapping/adapter.hpp"
#include "core/quant/low_rank.hpp"

namespace reshard {
namespace {

class PairReader {
 public:
  PairReader(SourceModel const& adapter, Model const& model, std::uint32_t first_file,
             Magnitudes const* magnitudes)
      : adapter_(adapter), model_(model), first_file_(first_file), magnitudes_(magnitudes) {}

  LowRankPairs run(AdapterTerms const& terms) {
    std::map<std::pair<TensorId, Index>, AdaptedTensor> adapted;
    for (std::size_t t = 0; t < adapter_.model->tensors().size(); ++t) {
      auto const matrix = adapter_of(*adapter_.model, TensorId(t));
      if (!matrix || !adapter_.model->exists(TensorId(t))) continue;
      std::string const& weight = adapter_.model->tensor(matrix->weight).name;
      auto const found = model_.find_tensor(weight);
      if (found && model_.quantised(*found))
        fail(
            ErrorKind::source,
            "the adapter adapts '{}', which is quantised, and an adapter is merged into weights of "
            "F32, BF16 or F16 only. Dequantise the base in a separate job first (model.quant = "
            "\"dequantise-bf16\"), and name that job's target as the source.",
            weight);
      if (!found || !model_.exists(*found))
        fail(ErrorKind::source,
             "the adapter adapts '{}', which the model does not have. Name the adapter of "
             "this base.",
             weight);
      AdaptedTensor& one = adapted[{*found, matrix->rank}];
      one.module = weight;
      one.weight = *found;
      one.rank = matrix->rank;
      one.terms = [&terms, to = *found, rank = matrix->rank](MatrixPlace const& place) {
        return terms.of(to, place, rank);
      };
      auto& pieces = matrix->matrix == AdapterMatrix::a ? one.a : one.b;
      TensorPieces const& stored = adapter_.stored.catalog.tensors[t];
      for (std::size_t i = 0; i < stored.size(); ++i)
        if (!stored.is_copy(i)) {
          Blob const& blob = adapter_.stored.catalog.blobs[stored.blob(i)];
          pieces.push_back(factor(stored[i], blob, one));
          if (magnitudes_ != nullptr && matrix->matrix == AdapterMatrix::b)
            one.magnitude.push_back(magnitudes_->beside(pieces.back(), blob, one.rank));
        }
    }
    LowRankPairs pairs(model_);
    for (auto const& [key, one] : adapted) pairs.add(one);
    return pairs;
  }

 private:
  FactorPiece factor(Piece piece, Blob const& blob, AdaptedTensor const& one) const {
    if (!quant::mergeable(blob.dtype) || blob.file >= adapter_.stored.catalog.real_files())
      fail(ErrorKind::source,
           "adapter: '{}' is {}, expected F32, BF16 or F16. Convert it to one of these.", blob.name,
           name(blob.dtype));
    piece.tensor = one.weight;
    piece.digits.change([&](PieceDigit& digit) { digit.axis = axis(digit.axis, one); });
    return {first_file_ + blob.file, blob.offset_bytes, blob.dtype, std::move(piece)};
  }

  /// An axis of the adapter's model in the base's.
  AxisId axis(AxisId own, AdaptedTensor const& one) const {
    Axis const& axis = adapter_.model->axes()[own];
    if (axis.name == fmt::format("rank{}", one.rank)) return rank_axis;
    int const found = model_.axes().find(axis.name);
    Index const size = found < 0 ? 0 : model_.axes()[static_cast<AxisId>(found)].size;
    if (size != axis.size)
      fail(ErrorKind::source,
           "the adapter of '{}' has {} {}, but the model has {}. Name the adapter of this base.",
           one.module, axis.name, axis.size, size);
    return static_cast<AxisId>(found);
  }

  SourceModel const& adapter_;
  Model const& model_;
  std::uint32_t first_file_;
  Magnitudes const* magnitudes_;
};

}  // namespace

LowRankPairs adapter_pairs(SourceModel const& adapter, Model const& model,
                           AdapterTerms const& terms, std::uint32_t first_file,
                           Magnitudes const* magnitudes) {
  return PairReader(adapter, model, first_file, magnitudes).run(terms);
}

}  // namespace reshard
