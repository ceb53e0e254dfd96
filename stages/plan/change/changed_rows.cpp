#include "stages/plan/change/changed_rows.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/text/shape_text.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "core/quant/cast.hpp"
#include "stages/plan/change/changed_pieces.hpp"
#include "stages/plan/gathering.hpp"

namespace reshard {
namespace {

class RowChanger {
 public:
  RowChanger(Checkpoint const& source, ModelChanges const& changes, FormatId target,
             SourceModel& read)
      : source_(source),
        changes_(changes),
        target_(target),
        read_(read),
        model_(*read.model),
        used_(source.others.new_rows ? source.others.new_rows->stored.tensors.size() : 0) {}

  void run() {
    auto const vocab = axis_of(model_, "vocab");
    if (!vocab)
      fail(ErrorKind::usage, "[target] vocab_size = {}: the model has no vocabulary. Remove it.",
           changes_.vocab_size);
    check_stated_shapes(*vocab);
    Index const held = model_.axes()[*vocab].size;
    if (changes_.vocab_size <= held) {
      if (changes_.new_rows != NewRows::refuse || source_.others.new_rows)
        fail(ErrorKind::usage,
             "[target] {}: the source has {} rows and target.vocab_size is {}, so none are "
             "added. Remove the key.",
             source_.others.new_rows ? "rows_from" : "new_rows", held, changes_.vocab_size);
      std::vector<Index> kept(static_cast<std::size_t>(changes_.vocab_size));
      std::iota(kept.begin(), kept.end(), Index{0});
      each_catalog(read_, [&](Catalog& catalog) { select_indices(model_, catalog, *vocab, kept); });
      each_model(read_, [&](Model& model) { model.resize(*vocab, changes_.vocab_size); });
      return;
    }
    check_new_rows(held);
    each_catalog(read_, [&](Catalog& catalog) {
      auto const tensors = tensors_of(*vocab, catalog);
      std::vector<SourceView> views;
      for (TensorId const tensor : tensors) views.push_back(new_rows(catalog, tensor, held));
      widen(model_, catalog, *vocab, changes_.vocab_size);
      added_.emplace_back(&catalog, tensors, std::move(views));
    });
    check_all_used();
    each_model(read_, [&](Model& model) { model.resize(*vocab, changes_.vocab_size); });
    for (auto& [catalog, tensors, views] : added_)
      for (std::size_t i = 0; i < tensors.size(); ++i)
        add_rows(*catalog, tensors[i], *vocab, held, std::move(views[i]));
  }

 private:
  /// Of weights with rows of tokens.
  void check_stated_shapes(AxisId vocab) const {
    for (LogicalTensor const& tensor : model_.tensors()) {
      if (std::ranges::find(tensor.axes, vocab, &LogicalAxis::axis) == tensor.axes.end()) continue;
      for (QuantScheme const& scheme : model_.schemes())
        for (QuantPart const& part : scheme.parts)
          if (part.vector > 0 && model_.find_tensor(part_tensor(tensor.name, scheme, part)))
            fail(
                ErrorKind::usage,
                "[target] vocab_size = {}: the quantised '{}' is stored with its shape ({}), which "
                "is copied. Keep its size, or set model.quant = \"dequantise-bf16\".",
                changes_.vocab_size, tensor.name, part.stored);
    }
  }

  void check_new_rows(Index held) const {
    if (changes_.new_rows == NewRows::refuse && !source_.others.new_rows)
      fail(ErrorKind::usage,
           "[target] vocab_size = {}: the source has {} rows. Say with target.new_rows what the {} "
           "new ones hold, or name a file of them with target.rows_from.",
           changes_.vocab_size, held, changes_.vocab_size - held);
    if (!source_.others.averaged.empty())
      fail(ErrorKind::usage,
           "[target] vocab_size = {}: rows are added to one checkpoint, not to a mean. Write the "
           "mean of source.average first.",
           changes_.vocab_size);
    bool const with_state = model_.slots().size() > 1;
    if (with_state && changes_.new_rows == NewRows::mean)
      fail(
          ErrorKind::usage,
          "[target] new_rows = \"mean\": {} holds optimizer state, and the mean of the weights is "
          "not that of their master weights, rounded. Set it to \"zero\", or set source.optimizer = "
          "\"drop\".",
          source_.place);
    if (with_state && format_of(target_).target().masters_alone)
      fail(ErrorKind::usage,
           "[target] vocab_size = {}: {} holds master weights alone, and rows are not added to "
           "these. Choose torch_dist, or set source.optimizer = \"drop\".",
           changes_.vocab_size, format_of(target_).name());
    bool const unknown = read_.facts.traits.padded_vocab == held && !read_.facts.recorded_vocab &&
                         source_.names == NameOwner::megatron;
    if (unknown)
      read_.warnings.push_back(fmt::format(
          "{} does not state how many of its {} embedding rows are vocabulary: the rows that "
          "target.vocab_size adds lie behind all of them. Set model.true_vocab_size to leave "
          "padding out",
          source_.place, held));
  }

  std::vector<TensorId> tensors_of(AxisId vocab, Catalog const& catalog) const {
    std::vector<TensorId> result;
    for (std::size_t t = 0; t < model_.tensors().size(); ++t) {
      LogicalTensor const& tensor = model_.tensors()[t];
      bool const of_vocab = std::ranges::any_of(
          tensor.axes, [&](LogicalAxis const& one) { return one.axis == vocab; });
      if (!of_vocab || !model_.exists(TensorId(t)) || catalog.tensors[t].empty()) continue;
      RESHARD_EXPECT(tensor.axes.front().axis == vocab);
      result.push_back(TensorId(t));
    }
    return result;
  }

  /// The rows that a tensor gets. Its own are gathered, where their mean is wanted.
  SourceView new_rows(Catalog const& catalog, TensorId tensor, Index held) {
    TensorPieces const& pieces = catalog.tensors[index(tensor)];
    Blob const& blob = catalog.blobs[pieces.blob(0)];
    Index const columns = logical_volume(model_, tensor) / held;
    SourceView view;
    view.kind = ViewKind::rows;
    view.name = blob.name;
    view.dtype = blob.dtype;
    view.shape = {changes_.vocab_size - held, columns};
    view.stored = {files_behind(catalog, blob.file).front(), 0, blob.dtype, {}};
    if (!quant::castable(blob.dtype, DType::f32) || blob.dtype == DType::f64)
      fail(ErrorKind::usage,
           "[target] new_rows: '{}' is {}, and rows are added to F32, BF16 and F16 only. Keep its "
           "size.",
           std::string_view(blob.name), name(blob.dtype));
    bool const moment = is_moment(model_.tensor(tensor));
    if (source_.others.new_rows && !moment) from_file(catalog, tensor, view);
    if (changes_.new_rows == NewRows::mean && !moment) {
      auto rows = std::make_shared<GatheredTensor>();
      rows->dtype = blob.dtype;
      rows->shape = {held, columns};
      each_gathered_part(
          model_, catalog, tensor, logical_pieces(model_, tensor),
          [&](std::size_t, GatheredPart part) { rows->parts.push_back(std::move(part)); });
      finish_gathering(*rows, catalog, model_.tensor(tensor).name);
      view.gathered = std::move(rows);
    }
    return view;
  }

  /// Names of a weight in the source, and those that a Hugging Face folder of its family has.
  std::vector<std::string> names_of(Catalog const& catalog, TensorId tensor) const {
    TensorId weight = tensor;
    if (model_.tensor(tensor).slot != SlotId::weight) {
      std::string_view const name = model_.tensor(tensor).name;
      weight = model_.find_tensor(name.substr(0, name.rfind(" ("))).value_or(tensor);
    }
    std::vector<std::string> names;
    if (read_.names.maps.family && !read_.facts.config.is_null()) {
      SideOptions options;
      options.has = [this](std::string_view name) {
        return read_.facts.view.weights.contains(std::string(name));
      };
      Side const side(model_, *read_.names.maps.family, std::move(options));
      for (StoredName const& name : side.names(nullptr))
        if (std::ranges::count(side.tensors(name.entry), weight) > 0) names.push_back(name.name);
    }
    // Checkpoints of Megatron that only their args describe have no family.
    for (auto const& [logical, name] :
         {std::pair("embed", "model.embed_tokens.weight"), std::pair("lm_head", "lm_head.weight")})
      if (model_.tensor(weight).name == logical) names.emplace_back(name);
    TensorPieces const& pieces = catalog.tensors[index(weight)];
    for (std::size_t i = 0; i < pieces.size(); ++i)
      names.emplace_back(std::string_view(catalog.blobs[pieces.blob(i)].name));
    std::vector<std::string> distinct;
    for (std::string& name : names)
      if (std::ranges::count(distinct, name) == 0) distinct.push_back(std::move(name));
    return distinct;
  }

  /// Makes the view one of rows of the file, in the dtype of the weight.
  void from_file(Catalog const& catalog, TensorId tensor, SourceView& view) {
    Checkpoint const& rows = *source_.others.new_rows;
    std::vector<std::string> const names = names_of(catalog, tensor);
    auto const& held = rows.stored.tensors;
    auto const found = std::ranges::find_if(held, [&](StoredTensor const& one) {
      return std::ranges::count(names, std::string_view(one.name)) > 0;
    });
    if (found == held.end())
      fail(ErrorKind::source,
           "{}: holds no '{}', and target.vocab_size = {} adds {} rows to it. Save these rows "
           "under that name, too.",
           rows.place, names.front(), changes_.vocab_size, view.shape.front());
    used_[static_cast<std::size_t>(found - held.begin())] = true;
    std::vector<Index> const shape(found->shape.begin(), found->shape.end());
    Index columns = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) columns *= shape[d];
    if (shape.empty() || shape.front() != view.shape.front() || columns != view.shape.back())
      fail(ErrorKind::source,
           "{}: '{}' has the shape {}, and the target has {} more rows than the source, of {} "
           "numbers. Save so many rows, or change target.vocab_size.",
           rows.place, std::string_view(found->name), shape_text(shape), view.shape.front(),
           view.shape.back());
    if (!quant::castable(found->dtype, view.dtype))
      fail(ErrorKind::source,
           "{}: '{}' is {}, and the weight is {}. Save the rows as F32, BF16 or F16.", rows.place,
           std::string_view(found->name), name(found->dtype), name(view.dtype));
    Index const elements = view.shape.front() * view.shape.back();
    view.kind = ViewKind::to_dtype;
    view.name = std::string_view(found->name);
    view.shape = {elements};
    view.stored = {narrow<std::uint32_t>(source_.files.size() - 1),
                   rows.stored.payload_offset_bytes(found->first_chunk),
                   found->dtype,
                   {elements}};
  }

  void check_all_used() const {
    for (std::size_t i = 0; i < used_.size(); ++i)
      if (!used_[i])
        fail(ErrorKind::source,
             "{}: '{}' is no weight of this model with a row for each token. Leave it out.",
             source_.others.new_rows->place,
             std::string_view(source_.others.new_rows->stored.tensors.name(i)));
  }

  /// Optimizer state of rows that were never trained is zero, except for master weights.
  bool is_moment(LogicalTensor const& tensor) const {
    return tensor.slot != SlotId::weight && !is_master_slot(model_.slots()[index(tensor.slot)]);
  }

  void add_rows(Catalog& catalog, TensorId tensor, AxisId vocab, Index held,
                SourceView view) const {
    DType const dtype = view.dtype;
    SharedText const named = view.name;
    StoredPlace const stored = view.stored;
    bool const as_stored = view.kind == ViewKind::to_dtype && stored.dtype == dtype;
    std::vector<Piece> pieces = logical_pieces(model_, tensor);
    for (Piece& piece : pieces)
      for (std::size_t d = 0; d < piece.digits.size(); ++d)
        if (piece.digits[d].axis == vocab)
          piece.digits.change(d, [&](PieceDigit& digit) {
            digit.first = held;
            digit.count = changes_.vocab_size - held;
          });
    if (as_stored)
      catalog.add({stored.file, stored.offset_bytes, dtype, named}, pieces, false);
    else
      catalog.add({catalog.add_view(std::move(view)), 0, dtype, named}, pieces, false);
  }

  Checkpoint const& source_;
  ModelChanges const& changes_;
  FormatId target_;
  SourceModel& read_;
  Model& model_;
  std::vector<bool> used_;  ///< by tensor of the file of rows
  std::vector<std::tuple<Catalog*, std::vector<TensorId>, std::vector<SourceView>>> added_;
};

}  // namespace

void change_rows(Checkpoint const& source, ModelChanges const& changes, FormatId target,
                 SourceModel& read) {
  RowChanger(source, changes, target, read).run();
}

}  // namespace reshard
