#include "stages/plan/adapter/shared_matrices.hpp"

#include <algorithm>
#include <map>

#include "core/base/error.hpp"

namespace reshard {
namespace {

/// Where a tensor lies in a blob.
using Places = std::vector<std::pair<Index, PieceDigits>>;

/// Whether several weights can have this tensor together: a matrix of an adapter, or a part that
/// keeps nothing of one of the weight's dimensions.
bool may_be_shared(Model const& model, TensorId tensor) {
  if (!model.adapter_ranks().empty()) return true;
  std::string const& name = model.tensor(tensor).name;
  for (QuantScheme const& scheme : model.schemes())
    for (QuantPart const& part : scheme.parts) {
      bool const smaller = std::ranges::any_of(part.dims, [](PartDim const& dim) {
        return dim.kind == PartDim::Kind::all || dim.kind == PartDim::Kind::one;
      });
      if (smaller && name.ends_with(part_tensor("", scheme, part))) return true;
    }
  return false;
}

/// Of each blob with several such tensors, the places of these.
std::map<std::uint32_t, std::map<TensorId, Places>> places_of(Model const& model,
                                                              Catalog const& target) {
  std::map<std::uint32_t, std::map<TensorId, Places>> result;
  for (std::size_t t = 0; t < target.tensors.size() && t < model.tensors().size(); ++t) {
    if (!may_be_shared(model, TensorId(t))) continue;
    TensorPieces const& tensor = target.tensors[t];
    for (std::size_t i = 0; i < tensor.size(); ++i)
      result[tensor.blob(i)][TensorId(t)].emplace_back(tensor.offset(i), tensor[i].digits);
  }
  std::erase_if(result, [](auto const& one) { return one.second.size() < 2; });
  return result;
}

/// Whether the piece is one run of elements.
bool is_run(Piece const& piece) {
  Index elements = 1;
  Index reach = 1;
  for (PieceDigit const& digit : piece.digits) {
    elements *= digit.count;
    reach += (digit.count - 1) * digit.stride;
  }
  return elements == reach;
}

/// Copies are compared piece by piece, run by run.
void check_comparable(Model const& model, Catalog const& source, TensorId tensor, TensorId first) {
  TensorPieces const& from = source.tensors[index(tensor)];
  std::vector<Piece> const to = source.tensors[index(first)].made();
  for (std::size_t i = 0; i < from.size(); ++i) {
    Piece const piece = from[i];
    bool const same = (i < to.size() && to[i].digits == piece.digits) ||
                      std::ranges::find(to, piece.digits, &Piece::digits) != to.end();
    if (same && is_run(piece)) continue;
    fail(ErrorKind::source,
         "source: '{}' in '{}' and '{}' are stored differently, so they cannot be compared. "
         "The target holds both in one tensor: {}.",
         model.tensor(tensor).name, source.blobs[from.blob(i)].name, model.tensor(first).name,
         model.adapter_ranks().empty() ? "choose a format that stores their weights separately"
                                       : "set target.adapter = \"canonical\" to keep each");
  }
}

}  // namespace

std::vector<std::pair<TensorId, TensorId>> share_matrices(Model& model, Catalog& source,
                                                          Catalog& target) {
  std::map<TensorId, TensorId> first_of;
  for (auto const& [blob, tensors] : places_of(model, target)) {
    auto const& [first, places] = *tensors.begin();
    for (auto const& [tensor, own] : tensors)
      if (tensor != first && own == places) first_of.emplace(tensor, first);
  }
  for (auto const& [tensor, first] : first_of) {
    check_comparable(model, source, tensor, first);
    TensorPieces& from = source.tensors[index(tensor)];
    TensorPieces& to = source.tensors[index(first)];
    for (std::size_t i = 0; i < from.size(); ++i)
      to.add({first, from.frame(i), from.form(i), from.offset(i)}, from.blob(i), true);
    from = {};
    target.tensors[index(tensor)] = {};
    model.set_exists(tensor, false);
  }
  return {first_of.begin(), first_of.end()};
}

}  // namespace reshard
