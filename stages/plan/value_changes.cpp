#include "stages/plan/value_changes.hpp"

#include <algorithm>
#include <map>

#include "core/base/error.hpp"
#include "core/formats/targets/target.hpp"
#include "core/quant/convert.hpp"

namespace reshard {
namespace {

class ValueChanger {
 public:
  ValueChanger(Model const& model, Catalog& source) : model_(model), source_(source) {}

  /// `cast`: values are rounded.
  void change(std::size_t tensor, DType dtype, int add, bool cast) {
    TensorPieces& pieces = source_.tensors[tensor];
    std::map<std::uint32_t, Index> length;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      Blob const& blob = source_.blobs[pieces.blob(i)];
      if (add == 0 && blob.dtype == dtype) continue;
      if ((cast && is_of_kind(blob, ViewKind::round)) || is_added(blob, add)) {
        length[pieces.blob(i)] = std::max(length[pieces.blob(i)], pieces.reach_of(i));
        continue;
      }
      if (!quant::convertible(blob.dtype, dtype))
        fail(
            ErrorKind::usage,
            "'{}' is {} in the source and {} in the target, and values of one are not computed from the other. Correct the map.",
            model_.tensors()[tensor].name, name(blob.dtype), name(dtype));
      if (blob.file >= source_.real_files())
        fail(ErrorKind::usage,
             "'{}' is computed from other values of the source, and the target needs it changed "
             "again. One job does only one of the two: choose target.format = \"huggingface\" "
             "first, and convert that to this target.",
             blob.name);
      length[pieces.blob(i)] = std::max(length[pieces.blob(i)], pieces.reach_of(i));
    }
    std::map<std::uint32_t, std::uint32_t> computed;
    ViewKind const kind = cast ? ViewKind::to_dtype : add == 0 ? ViewKind::cast : ViewKind::add;
    for (auto const& [blob, elements] : length)
      computed[blob] =
          is_added(source_.blobs[blob], add)
              ? added_in(blob, dtype)
              : source_.add_computed(cast ? unrounded(blob) : blob, elements, kind, dtype, add);
    for (std::size_t i = 0; i < pieces.size(); ++i)
      if (auto const found = computed.find(pieces.blob(i)); found != computed.end())
        pieces.set_blob(i, found->second);
  }

 private:
  bool is_of_kind(Blob const& blob, ViewKind kind) const {
    return blob.file >= source_.real_files() &&
           source_.views[blob.file - source_.real_files()].kind == kind;
  }

  /// Whether it has rows of tokens that are added: made for the target in any dtype, or those of a
  /// file, which are not rounded on their way to another dtype.
  bool is_added(Blob const& blob, int add) const {
    return is_of_kind(blob, ViewKind::rows) || (add == 0 && is_of_kind(blob, ViewKind::to_dtype));
  }

  /// The number of a blob with such rows in another dtype.
  std::uint32_t added_in(std::uint32_t number, DType dtype) {
    SharedText const named = source_.blobs[number].name;
    SourceView view = source_.views[source_.blobs[number].file - source_.real_files()];
    if (view.kind == ViewKind::to_dtype && view.stored.dtype == dtype)
      return source_.blobs.add({view.stored.file, view.stored.offset_bytes, dtype, named});
    view.dtype = dtype;
    source_.blobs.add({source_.add_view(std::move(view)), 0, dtype, named});
    return narrow<std::uint32_t>(source_.blobs.size() - 1);
  }

  /// The number of a blob with the stored values of another.
  std::uint32_t unrounded(std::uint32_t number) {
    Blob const blob = source_.blobs[number];
    if (!is_of_kind(blob, ViewKind::round)) return number;
    StoredPlace const& stored = source_.views[blob.file - source_.real_files()].stored;
    source_.blobs.add({stored.file, stored.offset_bytes, stored.dtype, blob.name});
    return narrow<std::uint32_t>(source_.blobs.size() - 1);
  }

  Model const& model_;
  Catalog& source_;
};

}  // namespace

void change_values(Model const& model, Catalog& source, Catalog const& target,
                   StoredAdds const& adds, std::vector<bool> const& cast) {
  ValueChanger changer(model, source);
  for (std::size_t t = 0; t < std::min(source.tensors.size(), target.tensors.size()); ++t) {
    int const add = add_of(adds.target, TensorId(t)) - add_of(adds.source, TensorId(t));
    auto const wanted = target.tensors[t].blobs();
    auto const held = source.tensors[t].blobs();
    if (wanted.empty() || held.empty()) continue;
    bool const casts = t < cast.size() && cast[t];
    DType const dtype = target.blobs[wanted.front()].dtype;
    if (add != 0 || casts || dtype != source.blobs[held.front()].dtype)
      changer.change(t, dtype, add, casts);
  }
}

void change_values_of(Model const& model, Catalog& source, TensorId tensor, DType dtype, int add) {
  ValueChanger(model, source).change(index(tensor), dtype, add, true);
}

}  // namespace reshard
