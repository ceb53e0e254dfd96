#include "stages/plan/job_plan.hpp"

#include <algorithm>

#include "core/base/text.hpp"
#include "core/formats/huggingface/config.hpp"
#include "core/formats/megatron/args.hpp"
#include "stages/plan/map_choice.hpp"
#include "stages/plan/source_side.hpp"
#include "stages/plan/target_side.hpp"

namespace reshard {
namespace {

/// What the source's files hold besides weights that this version cannot carry.
void check_dropped_state(MegatronCheckpoint const& checkpoint, TargetRequest const& request, std::vector<std::string>& warnings) {
  static std::vector<std::string> const kept = {"opt_param_scheduler", "lr_scheduler", "num_floating_point_operations_so_far"};
  std::string const place = checkpoint.directory.iteration_dir.string();
  bool optimizer = !checkpoint.directory.optimizer_only.empty();
  bool rng = false;
  std::vector<std::string> others;
  for (std::size_t f = 0; f < checkpoint.headers.size(); ++f) {
    megatron::ShardHeader const& header = checkpoint.headers[f];
    optimizer = optimizer || header.has_optimizer;
    rng = rng || header.has_rng;
    for (std::string const& file : checkpoint.directory.shards[f].files)
      optimizer = optimizer || file.find("optim.pt") != std::string::npos || file.starts_with("layer_wise_optimizer");
    for (std::string const& key : header.other_keys)
      if (std::find(kept.begin(), kept.end(), key) == kept.end() && std::find(others.begin(), others.end(), key) == others.end())
        others.push_back(key);
    if (!header.unplaced.empty())
      fail(ErrorKind::source, "{}: '{}' holds no tensor, where the model needs one. Save the checkpoint again.",
           checkpoint.directory.shards[f].model_path().string(), header.unplaced.front());
  }
  if (optimizer && !request.drop_optimizer)
    fail(ErrorKind::source, "{}: holds optimizer state, which this version cannot reshard. Set source.optimizer = \"drop\" to go on without it.",
         place);
  if (rng && !request.drop_rng)
    fail(ErrorKind::source,
         "{}: holds random-generator state, which belongs to the old layout. Set source.rng = \"drop\" to go on without it "
         "(start training with --no-load-rng).",
         place);
  if (optimizer) warnings.push_back("optimizer state is dropped (source.optimizer = \"drop\"): start training with --no-load-optim");
  if (rng) warnings.push_back("random-generator state is dropped (source.rng = \"drop\"): start training with --no-load-rng");
  if (!others.empty()) warnings.push_back("dropped, because it belongs to one run or layout: " + listed(others));
}

std::string joined_names(MapChoice const& maps) { return maps.family ? maps.core.name + " and " + maps.family->name : maps.core.name; }

class JobPlanner {
 public:
  JobPlanner(SourceCheckpoint const& source, TargetRequest const& request, PlanLimits const& limits)
      : source_(source), request_(request), limits_(limits) {}

  JobPlan run() {
    job_.warnings = source_.warnings;
    if (source_.megatron) check_dropped_state(*source_.megatron, request_, job_.warnings);
    read_source();
    plan_target();
    return std::move(job_);
  }

  JobPlan run_source() {
    read_source();
    return std::move(job_);
  }

 private:
  void read_source() {
    find_facts();
    make_model();
    catalogue_source();
  }

  bool to_huggingface() const { return request_.format == TargetRequest::Format::huggingface; }

  void find_facts() {
    if (source_.megatron) {
      args_ = source_.megatron->headers.front().args;
      if (args_.is_null())
        fail(ErrorKind::source, "{}: has no args, so nothing says how large the model is. Use a checkpoint that Megatron saved itself.",
             source_.megatron->directory.shards.front().model_path().string());
      traits_ = megatron_traits(*source_.megatron);
      if (Json const* padded = args_.find("padded_vocab_size"); traits_.padded_vocab > 0 && (padded == nullptr || padded->is_null()))
        args_.set("padded_vocab_size", traits_.padded_vocab);
    }
    if (source_.huggingface) config_ = source_.huggingface->folder.config;
    if (source_.huggingface && config_.is_null())
      fail(ErrorKind::source, "{}: has no config.json, so nothing says how large the model is. Put it beside the weights.",
           source_.huggingface->folder.path.string());
    if (to_huggingface() && source_.huggingface) reference_ = source_.huggingface->folder;
    if (!request_.reference.empty()) reference_ = huggingface::open_reference(request_.reference);
    if (reference_ && config_.is_null()) config_ = reference_->config;
  }

  /// What `args` say of the rows that mean something, when it agrees with the rows that are there; else nothing.
  std::optional<Index> recorded_vocab() const {
    Json const stated = fact(args_, "vocab_size");
    if (stated.integer() == nullptr || traits_.padded_vocab == 0) return std::nullopt;
    // Megatron counts vocab_size before the end-of-document token, which its own null tokenizer then appends.
    Json const tokenizer = fact(args_, "tokenizer_type");
    Index const vocab = *stated.integer() + (tokenizer.text() != nullptr && *tokenizer.text() == "NullTokenizer" ? 1 : 0);
    return padded(vocab, source_.megatron->classification.sizes.tp) == traits_.padded_vocab ? std::optional<Index>(vocab) : std::nullopt;
  }

  Index padded(Index vocab, int tp) const {
    Json const divisor = fact(args_, "make_vocab_size_divisible_by");
    Index const multiple = (divisor.integer() != nullptr && *divisor.integer() > 0 ? *divisor.integer() : 128) * tp;
    return (vocab + multiple - 1) / multiple * multiple;
  }

  /// The rows that a job between Megatron layouts carries: those that are there, as far as the target has room for them. Rows past the true
  /// size are padding that nobody can tell from weights, so they are dropped only where the target's padding is shorter.
  Index carried_vocab() const {
    if (request_.true_vocab_size > 0) {
      Json const stated = fact(args_, "vocab_size");
      if (stated.integer() != nullptr && request_.true_vocab_size < *stated.integer())
        fail(ErrorKind::usage,
             "[model] true_vocab_size = {}: the checkpoint's args say vocab_size = {}. Rows would be lost: correct the key or leave it out.",
             request_.true_vocab_size, *stated.integer());
      return request_.true_vocab_size;
    }
    std::optional<Index> const recorded = recorded_vocab();
    return recorded ? std::min(traits_.padded_vocab, padded(*recorded, request_.mesh.tp)) : traits_.padded_vocab;
  }

  void make_model() {
    bool const named = request_.map != "auto" && request_.map != "mcore";
    maps_ = choose_maps(request_.map, request_.map_folders, config_, args_, to_huggingface() || source_.huggingface.has_value());
    if (maps_.family && config_.is_null()) {
      Model const described(maps_.core, maps_.core, {args_, "args", request_.true_vocab_size});
      Json::Object members;
      for (auto& [key, value] : described.evaluate(maps_.family->config)) members.emplace_back(key, std::move(value));
      config_ = Json(std::move(members));
      config_text_ = config_.dump(2) + "\n";
      if (to_huggingface())
        job_.warnings.push_back("config.json is made from the checkpoint's args; give target.reference to take a model's own config and tokenizer");
    }
    if (maps_.family) {
      job_.model = std::make_unique<Model>(*maps_.family, maps_.core, ModelFacts{config_, "config.json", request_.true_vocab_size});
      if (source_.megatron && (named || to_huggingface())) compare_facts();
    } else {
      job_.model = std::make_unique<Model>(maps_.core, maps_.core, ModelFacts{args_, "args", carried_vocab()});
    }
    job_.map_name = maps_.family ? maps_.family->name : "";
  }

  /// Two descriptions of one model must agree on every axis that both have.
  void compare_facts() const {
    Model const described(maps_.core, maps_.core, {args_, "args", request_.true_vocab_size});
    for (std::string const& axis : job_.model->axes().names()) {
      int const theirs = described.axes().find(axis);
      if (theirs < 0 || !used(axis)) continue;
      Index const by_args = described.axes()[static_cast<AxisId>(theirs)].size;
      Index const by_config = job_.model->axes()[static_cast<AxisId>(job_.model->axes().find(axis))].size;
      bool const unknown_vocab = axis == "vocab" && (args_.find("vocab_size") == nullptr || args_.find("vocab_size")->is_null());
      if (by_args == by_config || (unknown_vocab && by_args >= by_config)) continue;
      fail(ErrorKind::source, "facts: {} is {} in config.json and {} in args. They describe two different models: check target.reference.", axis,
           by_config, by_args);
    }
  }

  bool used(std::string const& axis) const {
    int const id = job_.model->axes().find(axis);
    for (LogicalTensor const& tensor : job_.model->tensors())
      for (LogicalAxis const& part : tensor.axes)
        if (part.axis == id && job_.model->volume(tensor) > 0) return true;
    return false;
  }

  void catalogue_source() {
    Model& model = *job_.model;
    if (maps_.family) {
      SideOptions options;
      options.has = [this](std::string_view name) { return source_has(name); };
      family_side_ = std::make_unique<Side>(model, *maps_.family, std::move(options));
      apply_family(model, *family_side_);
    } else {
      apply_present(model, maps_.core);
    }
    if (source_.huggingface) {
      job_.source = huggingface_catalog(model, *family_side_, *source_.huggingface, maps_.family->name);
      return;
    }
    auto const& sizes = source_.megatron->classification.sizes;
    check_vocab();
    SideOptions options{true, sizes, {{"form", traits_.form}, {"spec", traits_.spec}, {"mtp_block", traits_.mtp_block}},
                        {},   {},    source_.megatron->directory.iteration_dir.string() + ", "};
    if (traits_.padded_vocab > 0) options.padded_sizes["vocab"] = traits_.padded_vocab;
    source_chunks_ = source_chunks(*source_.megatron, count("L"), count("M"));
    Side const side(model, maps_.core, std::move(options));
    // What a family requires must be there, even where Megatron models in general may lack it.
    std::vector<int> const may_lack = family_side_ ? family_side_->optional_tensors() : side.optional_tensors();
    job_.source = megatron_catalog(model, side, *source_.megatron, source_chunks_, may_lack, joined_names(maps_));
  }

  bool source_has(std::string_view name) const {
    if (!source_.huggingface) return false;
    for (std::size_t f = 0; f < source_.huggingface->headers.size(); ++f)
      for (std::size_t const i : source_.huggingface->indexed[f])
        if (source_.huggingface->headers[f].tensors[i].name == name) return true;
    return false;
  }

  void check_vocab() const {
    Json const vocab = job_.model->value("vocab");
    if (traits_.padded_vocab == 0 || vocab.integer() == nullptr || *vocab.integer() <= traits_.padded_vocab) return;
    fail(request_.true_vocab_size > 0 ? ErrorKind::usage : ErrorKind::source,
         "{}: the embedding has {} rows over all ranks, the vocabulary is {}. Check model.true_vocab_size and the tensor-parallel size.",
         source_.megatron->directory.iteration_dir.string(), traits_.padded_vocab, *vocab.integer());
  }

  Index count(char const* key) const {
    Json const value = job_.model->value(key);
    return value.integer() == nullptr ? 0 : *value.integer();
  }

  std::vector<std::optional<DType>> dtypes() const {
    std::vector<std::optional<DType>> result;
    for (TensorPieces const& tensor : job_.source.tensors)
      result.push_back(tensor.blobs.empty() ? std::nullopt : std::optional<DType>(job_.source.blobs[tensor.blobs.front()].dtype));
    return result;
  }

  void plan_target() {
    TargetRequest request = request_;
    request.pipeline.decoder_layers = static_cast<int>(count("L"));
    request.pipeline.mtp_layers = static_cast<int>(count("M"));
    if (request.spec.empty()) request.spec = source_.megatron ? traits_.spec : "te";
    if (request.form.empty()) request.form = source_.megatron ? traits_.form : "grouped";
    std::vector<OpaqueCopy> opaque;
    if (to_huggingface()) {
      SideOptions options;
      options.has = [this](std::string_view name) { return reference_has(name); };
      Side const side(*job_.model, *maps_.family, std::move(options));
      plan_huggingface_target(job_, {job_.model.get(), &side, dtypes(), &request}, {reference_, config_text_});
      make_plan_of_bytes(opaque);
      return;
    }
    SideOptions options{true, request.mesh, {{"form", request.form}, {"spec", request.spec}, {"mtp_block", traits_.mtp_block}},
                        {},   {},           "[target] layout."};
    keep_unknown_padding(options, request.mesh.tp);
    Side const side(*job_.model, maps_.core, std::move(options));
    opaque = plan_megatron(request, side);
    make_plan_of_bytes(opaque);
  }

  void make_plan_of_bytes(std::vector<OpaqueCopy> const& opaque) { job_.plan = make_plan(*job_.model, job_.source, job_.target, limits_, opaque); }

  /// Without a recorded vocabulary size all rows are data: they are kept as they are where the new tp divides them.
  void keep_unknown_padding(SideOptions& options, int tp) {
    if (maps_.family || traits_.padded_vocab == 0 || request_.true_vocab_size > 0 || recorded_vocab()) return;
    if (traits_.padded_vocab % tp == 0) options.padded_sizes["vocab"] = traits_.padded_vocab;
    job_.warnings.push_back(
        fmt::format("args do not say how many of the embedding's {} rows are vocabulary: all are kept. Set model.true_vocab_size to repad.",
                    traits_.padded_vocab));
  }

  std::vector<OpaqueCopy> plan_megatron(TargetRequest const& request, Side const& side) {
    ExtraStates extras(request.spec, request.form);
    Index const experts = count("expert");
    if (experts == 0 && request.mesh.ep > 1)
      fail(ErrorKind::usage, "[target] layout.ep = {}: the model has 0 experts, so nothing can be cut along this axis. Set layout.ep = 1.",
           request.mesh.ep);
    if (source_.megatron) {
      extras.take(*source_.megatron, source_chunks_, experts);
      extras.use_source_keys(request.spec == traits_.spec && (experts == 0 || request.form == traits_.form));
    }
    MegatronTarget target{pipeline_chunks(request.pipeline), source_.megatron ? &*source_.megatron : nullptr, target_args(request), &extras};
    return plan_megatron_target(job_, {job_.model.get(), &side, dtypes(), &request}, target);
  }

  std::vector<std::pair<std::string, Json>> target_args(TargetRequest const& request) const {
    std::vector<std::pair<std::string, Json>> args;
    if (source_.huggingface) {
      args = job_.model->evaluate(maps_.family->args);
      auto const kinds = dtypes();
      int const embed = job_.model->find_tensor("embed");
      DType const dtype = embed >= 0 && kinds[static_cast<std::size_t>(embed)] ? *kinds[static_cast<std::size_t>(embed)] : DType::bf16;
      args.emplace_back("params_dtype", dtype == DType::bf16 ? "torch.bfloat16" : dtype == DType::f16 ? "torch.float16" : "torch.float32");
      args.emplace_back("bf16", dtype == DType::bf16);
      args.emplace_back("fp16", dtype == DType::f16);
      args.emplace_back("make_vocab_size_divisible_by", 128);
      args.emplace_back("iteration", 0);
      args.emplace_back("consumed_train_samples", 0);
      args.emplace_back("consumed_valid_samples", 0);
    }
    if (source_.huggingface || request.spec != traits_.spec)
      args.emplace_back("transformer_impl", request.spec == "te" ? "transformer_engine" : "local");
    if (count("expert") > 0 && (source_.huggingface || request.form != traits_.form))
      args.emplace_back("moe_grouped_gemm", request.form == "grouped");
    return args;
  }

  bool reference_has(std::string_view name) const {
    if (!reference_) return false;
    return std::any_of(reference_->weight_map.begin(), reference_->weight_map.end(), [&](auto const& entry) { return entry.first == name; });
  }

  SourceCheckpoint const& source_;
  TargetRequest const& request_;
  PlanLimits limits_;
  JobPlan job_;
  Json args_;
  Json config_;
  std::string config_text_;
  MegatronTraits traits_{"", "", "mtp_model_layer", 0};
  std::optional<huggingface::Folder> reference_;
  MapChoice maps_;
  std::unique_ptr<Side> family_side_;
  std::vector<PipelineChunk> source_chunks_;
};

}  // namespace

JobPlan make_job_plan(SourceCheckpoint const& source, TargetRequest const& request, PlanLimits const& limits) {
  return JobPlanner(source, request, limits).run();
}

JobPlan catalogue(SourceCheckpoint const& source, std::string const& map, std::vector<std::filesystem::path> const& map_folders) {
  TargetRequest request;
  request.map = map;
  request.map_folders = map_folders;
  return JobPlanner(source, request, {}).run_source();
}

}  // namespace reshard
