#include "stages/plan/value_changes.hpp"

#include <algorithm>
#include <map>

#include "core/base/error.hpp"
#include "core/quant/convert.hpp"

namespace reshard {
namespace {

class ValueChanger {
 public:
  ValueChanger(Model const& model, Catalog& source, Catalog const& target)
      : model_(model), source_(source), target_(target) {}

  void change(std::size_t tensor, int add) {
    TensorPieces& pieces = source_.tensors[tensor];
    auto const wanted = target_.tensors[tensor].blobs();
    if (pieces.empty() || wanted.empty()) return;
    DType const dtype = target_.blobs[wanted.front()].dtype;
    std::map<std::uint32_t, Index> length;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      Blob const& blob = source_.blobs[pieces.blob(i)];
      if (add == 0 && blob.dtype == dtype) continue;
      if (!quant::convertible(blob.dtype, dtype))
        fail(
            ErrorKind::usage,
            "'{}' is {} in the source and {} in the target, and values of one are not computed from the other. Correct the map.",
            model_.tensors()[tensor].name, name(blob.dtype), name(dtype));
      if (blob.file >= source_.real_files())
        fail(ErrorKind::usage,
             "'{}' is computed from other values of the source, and the target needs it changed "
             "again. One job does only one of the two: choose target.format = \"dcp\" first, "
             "and convert that to this target.",
             blob.name);
      length[pieces.blob(i)] = std::max(length[pieces.blob(i)], pieces.reach_of(i));
    }
    std::map<std::uint32_t, std::uint32_t> computed;
    for (auto const& [blob, elements] : length)
      computed[blob] = source_.add_computed(blob, elements,
                                            add == 0 ? ViewKind::cast : ViewKind::add, dtype, add);
    for (std::size_t i = 0; i < pieces.size(); ++i)
      if (auto const found = computed.find(pieces.blob(i)); found != computed.end())
        pieces.set_blob(i, found->second);
  }

 private:
  Model const& model_;
  Catalog& source_;
  Catalog const& target_;
};

}  // namespace

void change_values(Model const& model, Catalog& source, Catalog const& target,
                   StoredAdds const& adds) {
  ValueChanger changer(model, source, target);
  auto const add_of = [](std::vector<int> const& list, std::size_t tensor) {
    return tensor < list.size() ? list[tensor] : 0;
  };
  for (std::size_t t = 0; t < std::min(source.tensors.size(), target.tensors.size()); ++t) {
    int const add = add_of(adds.target, t) - add_of(adds.source, t);
    auto const wanted = target.tensors[t].blobs();
    auto const held = source.tensors[t].blobs();
    if (wanted.empty() || held.empty()) continue;
    if (add != 0 || target.blobs[wanted.front()].dtype != source.blobs[held.front()].dtype)
      changer.change(t, add);
  }
}

}  // namespace reshard
