#include "stages/plan/adapter/named_adapter.hpp"

#include <map>

#include "core/formats/huggingface/config/lora_config.hpp"
#include "core/formats/wrapped/wrapped_model.hpp"
#include "core/quant/low_rank.hpp"
#include "stages/plan/adapter/merged_adapter.hpp"

namespace reshard {
namespace {

/// An adapter's tensors for one module, as places in its table.
struct Module {
  std::optional<std::size_t> a;
  std::optional<std::size_t> b;
  std::optional<std::size_t> magnitude;
};

class NamedMerger {
 public:
  NamedMerger(Checkpoint const& source, JobPlan& job)
      : source_(source),
        adapter_(*source.others.adapter),
        job_(job),
        config_(adapter_.model.beside->adapter, adapter_.place, huggingface::LoraUse::merge) {}

  Json run() {
    LowRankPairs pairs(*job_.model);
    for (auto const& [name, module] : modules()) pairs.add(adapted(name, module));
    pairs.merge_into(job_.source);
    return adapter_record(source_, pairs);
  }

 private:
  std::map<std::string, Module> modules() const {
    std::map<std::string, Module> result;
    for (std::size_t t = 0; t < adapter_.stored.tensors.size(); ++t) {
      std::string const name(adapter_.stored.tensors.name(t).text());
      std::size_t const at = name.rfind(".lora_");
      Module& module = result[name.substr(prefix.size(), at - prefix.size())];
      (name[at + 6] == 'A' ? module.a : name[at + 6] == 'B' ? module.b : module.magnitude) = t;
    }
    return result;
  }

  StoredTensor stored(std::size_t at) const { return adapter_.stored.tensors[at]; }

  /// A prefix of the base model's names is not cut off in every job.
  std::optional<TensorId> find(std::string const& name) const {
    if (auto const found = job_.model->find_tensor(name)) return found;
    std::optional<TensorId> only;
    for (std::size_t t = 0; t < job_.model->tensors().size(); ++t) {
      if (!job_.model->tensors()[t].name.ends_with("." + name)) continue;
      if (only) return std::nullopt;
      only = TensorId(t);
    }
    return only;
  }

  AdaptedTensor adapted(std::string const& name, Module const& module) const {
    if (!module.a || !module.b || bool(module.magnitude) != config_.normalised())
      fail(ErrorKind::source,
           "{}: '{}' has {}, and an adapter{} has both and {}. The files are incomplete, or {} is "
           "of another adapter: copy both from one.",
           adapter_.place, name,
           !module.a          ? "no lora_A"
           : !module.b        ? "no lora_B"
           : module.magnitude ? "a lora_magnitude_vector"
                              : "no lora_magnitude_vector",
           config_.normalised() ? " with use_dora" : " without use_dora",
           config_.normalised() ? "a magnitude" : "no magnitude", config_.place());
    auto const weight = find(name + ".weight");
    if (!weight)
      fail(ErrorKind::source,
           "{}: its adapter adapts '{}', of which it holds no weight, or several. With "
           "target_parameters, or a weight in parts, a map is needed: name the model's config.json "
           "with source.config, and its family with model.map.",
           source_.place, name);
    auto const& axes = job_.model->tensor(*weight).axes;
    bool const flipped = config_.transposed();  // the weight is [in, out]
    auto const size = [&](std::size_t axis) { return job_.model->axes()[axes[axis].axis].size; };
    SharedShape const& a = stored(*module.a).shape;
    SharedShape const& b = stored(*module.b).shape;
    bool const fits = axes.size() == 2 && a.size() == 2 && b.size() == 2 && a[0] == b[1] &&
                      a[1] == size(flipped ? 0 : 1) && b[0] == size(flipped ? 1 : 0);
    if (!fits)
      fail(
          ErrorKind::source,
          "{}: the adapter of '{}' has A [{}] and B [{}], which do not fit a matrix of its weight. "
          "With target_parameters a map is needed: name the model's config.json with "
          "source.config, and its family with model.map.",
          source_.place, name, fmt::join(a, ", "), fmt::join(b, ", "));
    AdaptedTensor one{name, *weight, a[0], {}, {}, {}};
    one.terms = [this, name, rank = a[0]](MatrixPlace const&) {
      if (config_.states_rank()) config_.check(name, rank);
      return MatrixTerms{name, config_.scale(name, rank)};
    };
    AxisId const out = axes[flipped ? 1 : 0].axis;
    AxisId const in = axes[flipped ? 0 : 1].axis;
    one.a = pieces(*module.a, *weight, {rank_axis, in});
    one.b = pieces(*module.b, *weight, {out, rank_axis});
    if (module.magnitude) one.magnitude = pieces(*module.magnitude, *weight, {out});
    return one;
  }

  std::vector<FactorPiece> pieces(std::size_t at, TensorId weight,
                                  std::vector<AxisId> const& axes) const {
    StoredTensor const& tensor = stored(at);
    if (!quant::mergeable(tensor.dtype) || tensor.shape.size() != axes.size())
      fail(ErrorKind::source,
           "{}: '{}' is {} [{}], expected {} dimensions of F32, BF16 or F16. Merge it with peft.",
           adapter_.place, tensor.name.text(), name(tensor.dtype), fmt::join(tensor.shape, ", "),
           axes.size());
    std::vector<FactorPiece> result;
    NamedTensor const named{tensor.name, tensor.dtype, tensor.shape, narrow<std::uint32_t>(at)};
    for (SourceBox const& box : boxes_of(adapter_, named)) {
      std::vector<Index> const strides = box.strides.empty() ? row_major(box.box) : box.strides;
      Piece piece{weight, {}, {}, 0};
      for (std::size_t d = 0; d < axes.size(); ++d)
        piece.digits.push_back({axes[d], tensor.shape[d], 1, box.box.begin[d],
                                box.box.end[d] - box.box.begin[d], strides[d]});
      result.push_back({box.file, box.offset_bytes, tensor.dtype, std::move(piece)});
    }
    return result;
  }

  static constexpr std::string_view prefix = "base_model.model.";
  Checkpoint const& source_;
  Checkpoint const& adapter_;
  JobPlan& job_;
  huggingface::LoraConfig config_;
};

}  // namespace

void merge_named_adapter(Checkpoint const& source, PlanRequest const& /*request*/, JobPlan& job) {
  if (source.adapter_inside()) job.made_with.set("adapter", NamedMerger(source, job).run());
}

void check_wrapped(Checkpoint const& source, PlanRequest const& request, bool named) {
  if (request.read.map == "none" ||
      (named && request.target.format != FormatId::huggingface))  // a state dict as it was
    return;
  std::string const wrapped = wrapped_weight(source);
  if (wrapped.empty() || (source.model.beside && !source.model.beside->adapter.is_null())) return;
  fail(
      ErrorKind::usage,
      "[model] adapter = \"keep\": {} holds a model that peft has wrapped an adapter around ('{}'). "
      "Set model.adapter: \"merge\" adds the adapter to the weights, \"drop\" takes the base model "
      "alone, \"only\" the adapter.",
      source.place, wrapped);
}

}  // namespace reshard
