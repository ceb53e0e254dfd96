#include "stages/plan/made_quant.hpp"

#include <algorithm>
#include <utility>

#include "core/base/counted.hpp"
#include "core/base/shape_text.hpp"
#include "core/base/text.hpp"
#include "core/formats/huggingface/quant/made_quant.hpp"
#include "core/formats/target_parts.hpp"
#include "core/mapping/config_defaults.hpp"

namespace reshard {
namespace {

using huggingface::MadeQuant;
using huggingface::QuantRecipe;

constexpr std::string_view weight_ending = ".weight";

bool is_weight(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

/// How weights of a dtype are quantised.
quant::Encoding encoding_of(QuantRecipe const& recipe, DType weights) {
  quant::Encoding result;
  result.block_rows = recipe.block_rows;
  result.block_columns = recipe.block_columns;
  result.scales = weights;
  if (recipe.form == MadeQuant::int4_group) result.codes = quant::CodeKind::int4;
  if (recipe.form == MadeQuant::mxfp8) {
    result.rule = quant::ScaleRule::power;
    result.scales = DType::u8;
  }
  if (recipe.library == huggingface::QuantFor::transformers) {
    result.rule = quant::ScaleRule::reciprocal;
    result.scales = recipe.power_scales ? DType::f8_e8m0 : DType::f32;
  }
  return result;
}

void refuse_quantised(std::string const& name, DType dtype) {
  bool const coded = dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 ||
                     dtype == DType::f8_e8m0 || dtype == DType::f4 || dtype == DType::f4_x2;
  if (coded || name.ends_with(".weight_packed") || name.ends_with(".qweight"))
    fail(ErrorKind::usage,
         "[target] quant: '{}' is {}, so the source is quantised already. Set model.quant = "
         "\"dequantise-bf16\" to quantise its values again, or remove target.quant.",
         name, reshard::name(dtype));
}

/// A tensor of the target that was laid out.
struct Plain {
  SharedText name;
  DType dtype = DType::bf16;
  SharedShape shape;
  std::shared_ptr<GatheredTensor> gathered;
};

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
        recipe_(huggingface::recipe_of(request.options.huggingface)) {}

  void run() {
    prove_source(*job_.model, job_.source);
    gather();
    choose();
    lay_out();
  }

 private:
  // --- What the plain target has, and where its elements are ---

  void gather() {
    Catalog const& target = job_.target;
    plain_.resize(target.blobs.size());
    for (std::size_t b = 0; b < plain_.size(); ++b) {
      plain_[b] = {target.blobs[b].name, target.blobs[b].dtype, job_.shapes[b],
                   std::make_shared<GatheredTensor>()};
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
    each_gathered_part(*job_.model, job_.source, tensor, to.made(),
                       [&](std::size_t piece, GatheredPart part) {
                         plain_[to.blob(piece)].gathered->parts.push_back(std::move(part));
                       });
  }

  // --- Which of them are quantised ---

  Index layers() const {
    for (Json const* const config : {&job_.model_config, &job_.named_config})
      for (std::string const inner : {"", "text_config.", "llm_config."})
        if (Json const value = fact(*config, inner + "num_hidden_layers");
            value.integer() != nullptr)
          return *value.integer();
    return 0;
  }

  void choose() {
    decoder_layers_ = layers();
    bool output_stored = false;
    std::vector<std::string> uneven;
    std::vector<Made> odd;
    for (Plain& one : plain_) {
      std::string const& name = one.name;
      if (name.ends_with("lm_head.weight")) output_stored = true;
      refuse_codes(one);
      if (!name.ends_with(weight_ending) || one.shape.size() != 2 || !is_weight(one.dtype)) {
        refuse_stack(one);
        others_.push_back(gathered(one));
        continue;
      }
      std::string const module = name.substr(0, name.size() - weight_ending.size());
      if (huggingface::keeps_weight(module, decoder_layers_, recipe_.ignored)) {
        if (!huggingface::is_embedding(module)) left_.push_back(module);
        others_.push_back(gathered(one));
        continue;
      }
      if (recipe_.needs_complete_blocks() && one.shape.back() % recipe_.block_columns != 0)
        uneven.push_back(fmt::format("{} {}", module, shape_text(one.shape)));
      std::vector<Made> made = encoded(one, module);
      // Codes and scales of a weight are neighbours, as long as every tensor begins where a reader
      // may look for it.
      bool const even = std::ranges::all_of(
          made, [](Made const& part) { return safetensors::tensor_bytes(part.spec) % 8 == 0; });
      auto& into = even ? made_ : odd;
      std::ranges::move(made, std::back_inserter(into));
      job_.quantised.add(one.dtype, recipe_.code_dtype(), name);
    }
    for (std::string const& pattern : recipe_.ignored)
      if (std::ranges::none_of(plain_, [&](Plain const& one) {
            std::string_view const name = one.name;
            return name.ends_with(weight_ending) &&
                   matches_glob(pattern, name.substr(0, name.size() - weight_ending.size()));
          }))
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
    if (!output_stored) left_.insert(left_.begin(), "lm_head");  // tied: engines build it, too
    std::ranges::move(odd, std::back_inserter(others_));
  }

  void refuse_codes(Plain const& one) const {
    refuse_quantised(one.name, one.dtype);
    std::string const& name = one.name;
    for (std::string_view const what : {".input_scale", ".k_scale", ".v_scale"})
      if (name.ends_with(what))
        fail(ErrorKind::usage,
             "[target] quant: '{}' is a static scale of activations, which comes from a "
             "calibration. This program does not calibrate: drop it from the source, or remove "
             "target.quant.",
             name);
  }

  /// Experts in one tensor: their rows may be columns of the matrices. A kernel of a convolution
  /// has one channel.
  void refuse_stack(Plain const& one) const {
    std::string const& name = one.name;
    bool const is_stack = one.shape.size() == 3 && one.shape[1] > 1 && one.shape[2] > 1 &&
                          is_weight(one.dtype) && !name.ends_with("bias");
    if (is_stack && !huggingface::keeps_weight(name, decoder_layers_, recipe_.ignored))
      fail(ErrorKind::usage,
           "[target] quant: '{}' {} holds the experts of a layer in one tensor, which engines do "
           "not read in this form. Write the folder without target.quant, and quantise it with "
           "the library.",
           name, shape_text(one.shape));
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
    return view;
  }

  Made gathered(Plain const& one) const {
    return {{one.name, one.dtype, one.shape}, view_of(one, ViewKind::gather, one.dtype, one.shape)};
  }

  std::vector<Made> encoded(Plain const& one, std::string const& module) const {
    Index const rows = one.shape.front();
    Index const columns = one.shape.back();
    quant::Encoding const encoding = encoding_of(recipe_, one.dtype);
    quant::Encoder const encoder(encoding, one.dtype, columns);
    std::vector<Made> made;
    auto const add = [&](std::string_view part, ViewKind kind, DType dtype,
                         std::vector<Index> shape) {
      made.push_back(
          {{fmt::format("{}.{}", module, part), dtype, shape}, view_of(one, kind, dtype, shape)});
    };
    DType const codes = recipe_.code_dtype();
    add(recipe_.codes_name(), ViewKind::encode, codes,
        {rows, encoder.code_row_bytes() * 8 / bits(codes)});
    add(recipe_.scales_name(), ViewKind::scales, encoding.scales,
        {(rows + encoding.block_rows - 1) / encoding.block_rows, encoder.scale_columns()});
    if (recipe_.states_sizes()) add("weight_shape", ViewKind::sizes, DType::i64, {2});
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
    job_.stored_names = true;
    job_.adds.clear();
    job_.casts.clear();
    job_.same_as.clear();
    job_.declared_copies.clear();
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
  QuantRecipe recipe_;
  Index decoder_layers_ = 0;
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
