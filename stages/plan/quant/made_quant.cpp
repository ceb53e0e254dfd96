#include "stages/plan/quant/made_quant.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/base/tables/counted.hpp"
#include "core/base/text/shape_text.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/huggingface/quant/made_quant.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/plan/equal/source_proof.hpp"
#include "stages/plan/gathering.hpp"
#include "stages/plan/quant/quantised_modules.hpp"

namespace reshard {
namespace {

using huggingface::MadeQuant;
using huggingface::QuantRecipe;

/// How weights of a dtype are quantised.
quant::Encoding encoding_of(QuantRecipe const& recipe, DType weights) {
  using quant::CodeKind;
  using quant::ScaleRule;
  bool const modelopt = recipe.library == huggingface::QuantFor::modelopt;
  quant::Encoding result;
  result.block_rows = recipe.block_rows;
  result.block_columns = recipe.block_columns;
  result.scales = weights;
  switch (recipe.form) {
    case MadeQuant::int8_group:
    case MadeQuant::int4_group:
      result.codes = CodeKind::packed;
      result.integer_bits = recipe.form == MadeQuant::int4_group ? 4 : 8;
      break;
    case MadeQuant::int8_channel:
      result.codes = CodeKind::i8;
      result.integer_bits = 8;
      break;
    case MadeQuant::mxfp4:
      result.codes = CodeKind::e2m1;
      result.rule = recipe.stacks ? ScaleRule::power_above : ScaleRule::power;
      result.scales = DType::u8;
      break;
    case MadeQuant::mxfp8:
      result.rule = modelopt ? ScaleRule::power_above : ScaleRule::power;
      result.scales = DType::u8;
      break;
    case MadeQuant::nvfp4:
      result.codes = CodeKind::e2m1;
      result.rule = modelopt ? ScaleRule::times : ScaleRule::divided;
      result.scales = DType::f8_e4m3;
      break;
    default:
      if (recipe.library == huggingface::QuantFor::compressed_tensors) break;
      result.rule = modelopt ? ScaleRule::wide_quotient : ScaleRule::reciprocal;
      result.scales = recipe.power_scales ? DType::f8_e8m0 : DType::f32;
  }
  return result;
}

/// A tensor of the target that is to be.
struct Made {
  TensorSpec spec;
  SourceView view;
};

class TargetQuantiser {
 public:
  TargetQuantiser(JobPlan& job, PlanRequest const& request, Checkpoint const& source)
      : job_(job),
        request_(request),
        source_(source),
        model_type_(text_of(fact(job.configs.model, "model_type"))),
        recipe_(huggingface::recipe_of(request.options.huggingface, model_type_)) {}

  void run() {
    prove_source(*job_.model, job_.source);
    gather();
    choose();
    lay_out();
  }

 private:
  static std::string text_of(Json const& value) {
    return value.text() != nullptr ? *value.text() : std::string();
  }

  // --- What the plain target has, and where its elements are ---

  void gather() {
    Catalog const& target = job_.target;
    plain_.resize(target.blobs.size());
    for (std::size_t b = 0; b < plain_.size(); ++b) {
      plain_[b] = {target.blobs[b].name, target.blobs[b].dtype, job_.shapes[b],
                   std::make_shared<GatheredTensor>()};
      if (is_turned(plain_[b])) {
        SharedShape const& shape = plain_[b].shape;
        plain_[b].shape = std::vector<Index>{shape[0], shape[2], shape[1]};
      }
      plain_[b].gathered->dtype = plain_[b].dtype;
      plain_[b].gathered->shape = plain_[b].shape;
    }
    for (std::size_t t = 0; t < target.tensors.size(); ++t)
      if (job_.model->exists(TensorId(t)) && !target.tensors[t].empty() &&
          job_.model->volume(job_.model->tensors()[t]) > 0)
        gather(TensorId(t));
    for (Plain& one : plain_) finish_gathering(*one.gathered, job_.source, one.name);
  }

  void gather(TensorId tensor) {
    TensorPieces const& to = job_.target.tensors[index(tensor)];
    std::vector<Piece> pieces = to.made();
    for (std::size_t i = 0; i < pieces.size(); ++i)
      if (Plain const& one = plain_[to.blob(i)]; is_turned(one)) turn(pieces[i], one.shape);
    each_gathered_part(*job_.model, job_.source, tensor, pieces,
                       [&](std::size_t piece, GatheredPart part) {
                         plain_[to.blob(piece)].gathered->parts.push_back(std::move(part));
                       });
  }

  /// Experts in one tensor have their columns first, and last where they are quantised.
  bool is_turned(Plain const& one) const { return recipe_.stacks && is_stack(one); }

  /// A piece of [experts, columns, rows] becomes one of [experts, rows, columns], which is `shape`.
  static void turn(Piece& piece, SharedShape const& shape) {
    Index const rows = shape[1];
    Index const columns = shape[2];
    std::vector<PieceDigit> digits(piece.digits.begin(), piece.digits.end());
    for (PieceDigit& digit : digits)
      if (digit.stride < rows)
        digit.stride *= columns;
      else if (digit.stride < rows * columns)
        digit.stride /= rows;
    piece.digits = digits;
    Index const expert = piece.offset / (rows * columns);
    Index const within = piece.offset % (rows * columns);
    piece.offset = expert * rows * columns + within % rows * columns + within / rows;
  }

  // --- Which of them are quantised ---

  Index layers() const {
    for (Json const* const config : {&job_.configs.model, &job_.configs.named})
      for (std::string const inner : {"", "text_config.", "llm_config."})
        if (Json const value = fact(*config, inner + "num_hidden_layers");
            value.integer() != nullptr)
          return *value.integer();
    return 0;
  }

  void choose() {
    QuantisedModules choice(recipe_, model_type_, layers(),
                            request_.changes.mtp == PredictionLayers::draft);
    joined_ = choice.joined(plain_);
    std::vector<std::string> uneven;
    std::vector<Made> odd;
    for (Plain& one : plain_) {
      std::optional<std::string> const module = choice.module_of(one);
      if (!module) {
        others_.push_back(gathered(one));
        continue;
      }
      if (recipe_.needs_complete_blocks() && one.shape.back() % recipe_.block_columns != 0)
        uneven.push_back(fmt::format("{} {}", *module, shape_text(one.shape)));
      std::vector<Made> made = encoded(one, *module);
      // Codes and scales of a weight are neighbours, as long as every tensor begins where a reader
      // may look for it.
      bool const even = std::ranges::all_of(
          made, [](Made const& part) { return safetensors::tensor_bytes(part.spec) % 8 == 0; });
      auto& into = even ? made_ : odd;
      std::ranges::move(made, std::back_inserter(into));
      job_.dtypes.quantised.add(one.dtype, recipe_.code_dtype(), one.name);
    }
    for (std::string const& pattern : choice.idle_patterns(plain_))
      job_.warnings.push_back(fmt::format(
          "target.quant_ignore: '{}' is the name of no module, such as model.layers.0.mlp.up_proj, "
          "and leaves nothing as it is",
          pattern));
    if (!uneven.empty())
      fail(ErrorKind::usage,
           "[target] quant: rows of {} are no multiple of {} columns, the block of this form: {}. "
           "Name them with target.quant_ignore, or choose another form.",
           counted(uneven.size(), "weight"), recipe_.block_columns, listed(uneven, 6));
    if (made_.empty() && odd.empty())
      fail(ErrorKind::usage,
           "[target] quant: no weight of the target is one of a linear layer under the name "
           "MODULE.weight. Remove the key.");
    left_ = choice.left();
    std::ranges::move(odd, std::back_inserter(others_));
  }

  // --- The target that is to be ---

  SourceView view_of(Plain const& one, ViewKind kind, DType dtype, std::vector<Index> shape) const {
    SourceView view;
    view.kind = kind;
    view.name = one.name;
    view.dtype = dtype;
    view.shape = std::move(shape);
    view.gathered = one.gathered;
    if (!one.gathered->files.empty()) view.stored.file = one.gathered->files.front();
    if (is_weight(one.dtype)) view.encoding = encoding_of(recipe_, one.dtype);
    if (auto const at = joined_.find(one.name); at != joined_.end()) view.joined = at->second;
    return view;
  }

  Made gathered(Plain const& one) const {
    return {{one.name, one.dtype, one.shape}, view_of(one, ViewKind::gather, one.dtype, one.shape)};
  }

  std::vector<Made> encoded(Plain const& one, std::string const& module) {
    if (!recipe_.second_name().empty() && !joined_.contains(one.name))
      joined_[one.name] = std::make_shared<JoinedWeights>(JoinedWeights{one.gathered});
    std::vector<Index> const shape(one.shape.begin(), one.shape.end());
    quant::Encoding const encoding = encoding_of(recipe_, one.dtype);
    quant::Encoder const encoder(encoding, one.dtype, shape.back());
    std::vector<Made> made;
    auto const add = [&](std::string_view part, ViewKind kind, DType dtype,
                         std::vector<Index> const& of) {
      made.push_back({{module + std::string(part), dtype, of}, view_of(one, kind, dtype, of)});
    };
    DType const codes = recipe_.code_dtype();
    std::vector<Index> coded = shape;
    coded.back() = encoder.code_row_bytes() * 8 / bits(codes);
    std::vector<Index> scales = shape;
    scales.back() = encoder.scale_columns();
    Index& rows = scales[scales.size() - 2];
    rows = (rows + encoding.block_rows - 1) / encoding.block_rows;
    if (recipe_.stacks) {
      coded.back() = scales.back();
      coded.push_back(encoding.block_columns / 2);
    } else if (encoding.rule == quant::ScaleRule::wide_quotient) {
      scales = encoding.block_columns == 0
                   ? std::vector<Index>{rows}
                   : std::vector<Index>{rows, 1, encoder.scale_columns(), 1};
    }
    add(recipe_.codes_name(), ViewKind::encode, codes, coded);
    add(recipe_.scales_name(), ViewKind::scales, encoding.scales, scales);
    if (encoding.rule == quant::ScaleRule::times)
      add(recipe_.second_name(), ViewKind::second, DType::f32, {});
    if (encoding.rule == quant::ScaleRule::divided)
      add(recipe_.second_name(), ViewKind::second, DType::f32, {1});
    if (recipe_.is_packed()) add(".weight_shape", ViewKind::sizes, DType::i64, {2});
    return made;
  }

  void lay_out() {
    std::ranges::sort(others_, [](Made const& a, Made const& b) {
      return std::tuple(-static_cast<int>(a.spec.dtype), std::string_view(a.spec.name)) <
             std::tuple(-static_cast<int>(b.spec.dtype), std::string_view(b.spec.name));
    });
    std::vector<Made> all = std::move(others_);
    std::ranges::move(made_, std::back_inserter(all));
    std::vector<PlainTensor> tensors;
    std::vector<TensorSpec> specs;
    for (Made const& one : all) {
      tensors.push_back({one.spec.name, one.spec.shape});
      specs.push_back(one.spec);
    }
    job_.model = std::make_unique<Model>(tensors, source_.folder.string());
    make_source(all);
    auto const pieces = [this](std::size_t t) { return std::vector{piece(t)}; };
    job_.target = {};
    job_.target.tensors.resize(all.size());
    job_.files.clear();
    job_.shapes.clear();
    job_.target_adds.clear();
    std::erase_if(job_.texts, [](TextFile const& text) {
      return text.path.filename() == huggingface::index_name;
    });
    job_.data_layout = DataLayout::as_given;
    place_in_shards(job_, specs, request_.options.huggingface.shard_bytes, {}, pieces);
    job_.target.shrink();
    patch_config(job_, {{"quantization_config"}, huggingface::quantization_config(recipe_, left_)});
    if (Json const file = huggingface::modelopt_config(recipe_, left_); !file.is_null()) {
      std::string const name = "hf_quant_config.json";
      if (job_.reference) std::erase(job_.reference->sidecars, name);
      job_.texts.push_back({name, file.dump(4), false, {}});
    }
    job_.stored_names = true;
    job_.listing.adds.clear();
    job_.listing.casts.clear();
    job_.copies.same_as.clear();
    job_.copies.declared.clear();
    job_.weights.reset();
  }

  Piece piece(std::size_t tensor) const {
    Piece whole{TensorId(tensor), {}, {}, 0};
    auto const& axes = job_.model->tensors()[tensor].axes;
    std::vector<Index> extents;
    for (std::size_t d = 0; d < axes.size(); ++d)
      extents.push_back(job_.model->axes()[axes[d].axis].size);
    std::vector<Index> const strides = row_major({std::vector<Index>(extents.size(), 0), extents});
    for (std::size_t d = 0; d < axes.size(); ++d)
      whole.digits.push_back({axes[d].axis, extents[d], 1, 0, extents[d], strides[d]});
    return whole;
  }

  void make_source(std::vector<Made>& all) {
    Catalog made;
    made.files = std::move(job_.source.files);
    made.views = std::move(job_.source.views);
    made.tensors.resize(all.size());
    for (std::size_t t = 0; t < all.size(); ++t) {
      DType const dtype = all[t].spec.dtype;
      SharedText const name = all[t].spec.name;
      std::uint32_t const file = made.add_view(std::move(all[t].view));
      made.add({file, 0, dtype, name}, std::vector{piece(t)}, false);
    }
    made.shrink();
    job_.source = std::move(made);
  }

  JobPlan& job_;
  PlanRequest const& request_;
  Checkpoint const& source_;
  std::string model_type_;
  QuantRecipe recipe_;
  std::map<std::string, std::shared_ptr<JoinedWeights const>, std::less<>> joined_;
  std::vector<Plain> plain_;  ///< by number of the blob
  std::vector<Made> others_;  ///< that stay as they are, and those that need no order
  std::vector<Made> made_;    ///< codes, scales and sizes, one module behind the other
  std::vector<std::string> left_;
};

}  // namespace

void check_quantisable(Checkpoint const& source, PlanRequest const& request) {
  huggingface::TargetOptions const& options = request.options.huggingface;
  if (options.quant == MadeQuant::none) {
    huggingface::TargetOptions const none;
    if (options.quant_for != none.quant_for || options.quant_block != none.quant_block ||
        options.quant_scales != none.quant_scales || options.quant_ignore != none.quant_ignore)
      fail(
          ErrorKind::usage,
          "[target] quant = \"none\": quant_for, quant_block, quant_scales and quant_ignore say how "
          "weights are quantised. Set target.quant, or remove them.");
    return;
  }
  if (request.read.dequantise) return;
  for (StoredTensor const& tensor : source.stored.tensors)
    refuse_quantised(tensor.name, tensor.dtype);
}

bool quantises(PlanRequest const& request) {
  return request.target.format == FormatId::huggingface &&
         request.options.huggingface.quant != MadeQuant::none;
}

void quantise(JobPlan& job, PlanRequest const& request, Checkpoint const& source) {
  if (!quantises(request)) return;
  if (!job.model->adapter_ranks().empty())
    fail(ErrorKind::usage,
         "[target] quant: an adapter is not quantised. Remove the key, or merge the adapter into "
         "its weights with model.adapter = \"merge\".");
  TargetQuantiser(job, request, source).run();
}

}  // namespace reshard
