#include "core/formats/megatron/named_target.hpp"

#include <algorithm>

#include "core/formats/format.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/hybrid_pattern.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/paired_layers.hpp"
#include "core/formats/megatron/mcore/traits.hpp"
#include "core/formats/megatron/mcore/vocab_rows.hpp"
#include "core/formats/megatron/writer.hpp"
#include "core/mapping/adapter.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard::megatron {
namespace {

bool describes_hybrid(Model const& model) {
  Json const said = model.value("hybrid");
  return said.integer() != nullptr && *said.integer() != 0;
}

}  // namespace

bool has_module_states(Checkpoint const& source) {
  return !source.shares.module_states.empty() ||
         std::ranges::any_of(source.stored.objects, [](StoredObject const& object) {
           return object.name.find("_extra_state") != std::string::npos;
         });
}

FormatOptions<NameOptions> adapter_options() {
  return {
      {{},
       keys::one_of<NameOptions, AdapterNames>(
           "adapter", &NameOptions::adapter,
           {{"auto", {}},
            {"canonical", {"bridge", true}},
            {"fused", {"bridge", false}},
            {"mcore-bridge", {"mcore_bridge", false}}},
           "LoRA adapters in Megatron's formats. Megatron-Bridge's names: \"canonical\", one A "
           "each for q, k, v, gate and up, or \"fused\", one A for q, k and v and one\nfor gate "
           "and up; or the names of mcore-bridge and ms-swift. \"auto\": as in the source, else "
           "canonical.")}};
}

FormatOptions<NameOptions> name_options() {
  std::vector<FormatId> const here = {FormatId::megatron, FormatId::torch_dist,
                                      FormatId::fsdp_dtensor};
  return {
      {here,
       keys::text(
           "names", &NameOptions::names,
           "Megatron formats: how the tensors of a vision part are named. A trainer that the "
           "family's map knows (\"bridge\", \"swift\", …):\nas that trainer does. "
           "\"huggingface\": as in the Hugging Face folder, and the language model beside "
           "it has no prefix.\n\"auto\": as in the source, else as the map's first trainer does.")},
      {here,
       keys::one_of<NameOptions, std::string>(
           "transformer_impl", &NameOptions::transformer_impl,
           {{"auto", ""}, {"transformer_engine", "te"}, {"local", "local"}},
           "Megatron formats: the naming scheme, \"transformer_engine\" or \"local\"; \"auto\" "
           "keeps the source's.")},
      {here, keys::one_of<NameOptions, std::string>(
                 "experts", &NameOptions::experts,
                 {{"auto", ""}, {"grouped", "grouped"}, {"sequential", "sequential"}},
                 "Megatron formats: experts stored \"grouped\" or \"sequential\"; \"auto\" keeps "
                 "the source's form.")},
      {here, keys::choice("model", &NameOptions::model, {"auto", "gpt", "hybrid"},
                          "Megatron formats: the class that loads it. In a \"hybrid\" model "
                          "attention and MLP are separate layers,\nin a \"gpt\" model one layer; "
                          "\"auto\" keeps the source's.")},
      {here, keys::one_of<NameOptions, int>(
                 "megatron", &NameOptions::megatron,
                 {{"auto", 0}, {"0.16", 16}, {"0.17", 17}, {"0.18", 18}, {"0.19", 19}},
                 "Megatron formats: the release of Megatron-Core that loads it, where names, args "
                 "and optimizers depend on it;\n\"auto\": that of the source, else the newest of "
                 "these.")},
      {{FormatId::torch_dist},
       keys::choice("program", &NameOptions::program,
                    {"auto", "megatron-lm", "megatron-bridge", "ms-swift"},
                    "torch_dist only: the program that starts from it. \"megatron-bridge\" needs a "
                    "run_config.yaml, which is written for families\nthat it has; \"megatron-lm\" "
                    "needs args; \"ms-swift\" has names of its own for some families; \"auto\": as "
                    "the source, else\nMegatron-LM.")},
  };
}

MegatronNames::MegatronNames(MappedTarget const& job)
    : spec(job.request.options.named.transformer_impl),
      form(job.request.options.named.experts),
      job_(job) {
  bool const in_shares = job.source.storage == Storage::shares;
  if (spec.empty()) spec = job.read.is_megatron() ? job.read.facts.traits.spec : "te";
  if (form.empty()) form = in_shares ? job.read.facts.traits.form : default_form();
  TargetModel const model = job.request.options.named.model;
  if (model == TargetModel::gpt && describes_hybrid(job.model))
    fail(ErrorKind::usage,
         "[target] model = \"gpt\": the layers of this model are those of Megatron-Core's "
         "HybridModel. Remove the key.");
  paired_ = model == TargetModel::hybrid
                ? !describes_hybrid(job.model)
                : model == TargetModel::as_source && job.read.facts.traits.paired;
}

bool MegatronNames::is_hybrid() const { return paired_ || describes_hybrid(job_.model); }

/// How a checkpoint that does not show it would be stored by the program that saved it.
std::string MegatronNames::default_form() const {
  Json const grouped = fact(job_.read.facts.args, "moe_grouped_gemm");
  if (grouped.boolean() != nullptr) return *grouped.boolean() ? "grouped" : "sequential";
  return spec == "te" ? "grouped" : "sequential";
}

std::string MegatronNames::source_form() const {
  return job_.source.storage == Storage::shares ? job_.read.facts.traits.form : default_form();
}

bool MegatronNames::source_names_prediction() const {
  return job_.source.storage == Storage::shares ||
         job_.source.format->id() == FormatId::fsdp_dtensor;
}

SideOptions MegatronNames::side_options(bool local) const {
  SideOptions options;
  options.local = local;
  options.mesh = job_.request.target.mesh;
  options.options = {{"form", form},
                     {"spec", spec},
                     {"paired", paired_ ? 1 : 0},
                     {"release", release()},
                     {"mtp_block", source_names_prediction() ? job_.read.facts.traits.mtp_block
                                                             : "mtp_model_layer"}};
  add_names(options, job_.read.names.target_trainer);
  options.place = "[target] layout.";
  options.lists_sizes = true;
  Index const rows = job_.read.facts.traits.padded_vocab;
  if (all_rows_are_data() && !repadded() &&
      rows % job_.request.target.mesh.size(mesh_axis_of(job_.read.names.maps.core, "vocab")) == 0)
    options.padded_sizes["vocab"] = rows;  // kept as they are
  if (!job_.model.adapter_ranks().empty()) name_adapters(options);
  return options;
}

/// As the job asks, else as the source has them where those are Megatron's names, else with an A
/// for each weight.
void MegatronNames::name_adapters(SideOptions& options) const {
  MapAdapter const& source = adapter_form(job_.model.adapter_forms(), job_.read.names.adapter);
  auto const first = std::ranges::find(job_.model.adapter_forms(), false, &MapAdapter::family);
  AdapterNames const& asked = job_.request.options.named.adapter;
  options.adapter = !asked.form.empty() ? asked.form : source.family ? first->name : source.name;
  MapAdapter const& names = adapter_form(job_.model.adapter_forms(), options.adapter);
  bool const usual =
      source.family || options.adapter != source.name ? true : job_.read.names.adapters_apart;
  options.adapters_apart = !names.parts.empty() && asked.apart.value_or(usual);
}

/// The rows that the target has whatever the vocabulary is.
std::optional<Index> MegatronNames::repadded() const {
  Json const& args = job_.read.facts.args;
  Json const stated = fact(args, "tensor_model_parallel_size");
  Index const ranks = job_.read.facts.traits.vocab_ranks > 0 ? job_.read.facts.traits.vocab_ranks
                      : stated.integer() != nullptr          ? *stated.integer()
                                                             : 0;
  if (ranks == 0) return std::nullopt;
  Index const target_ranks =
      job_.request.target.mesh.size(mesh_axis_of(job_.read.names.maps.core, "vocab"));
  return repadded_rows(job_.read.facts.traits.padded_vocab, vocab_multiple(args, ranks),
                       vocab_multiple(args, target_ranks));
}

/// Without a recorded vocabulary size all rows are data.
bool MegatronNames::all_rows_are_data() const {
  return job_.source.names == NameOwner::megatron && job_.read.facts.traits.padded_vocab > 0 &&
         job_.request.read.true_vocab_size == 0 && !job_.read.facts.recorded_vocab;
}

void MegatronNames::warn_of_unknown_padding(std::vector<std::string>& warnings) const {
  if (!all_rows_are_data() || repadded()) return;
  warnings.push_back(fmt::format(
      "args do not state how many of the embedding's {} rows are vocabulary: all are kept. Set "
      "model.true_vocab_size to repad.",
      job_.read.facts.traits.padded_vocab));
}

/// The args that state the dtype in which a run computes.
MegatronNames::Args MegatronNames::dtype_args(DType dtype) {
  return {{"params_dtype", dtype == DType::bf16  ? "torch.bfloat16"
                           : dtype == DType::f16 ? "torch.float16"
                                                 : "torch.float32"},
          {"bf16", dtype == DType::bf16},
          {"fp16", dtype == DType::f16}};
}

/// The args without a Megatron file: those kept in a container, else those that the family's map
/// makes from config.json.
MegatronNames::Args MegatronNames::made_args() const {
  if (Json::Object const* kept = job_.read.facts.args.members()) return *kept;
  Args args = job_.model.evaluate(job_.read.names.maps.family->args);
  // The model's own counts padding, too, where that is carried.
  bool const asked =
      job_.request.read.true_vocab_size > 0 && job_.source.names != NameOwner::logical;
  std::optional<Index> const vocab = asked ? std::optional<Index>(job_.request.read.true_vocab_size)
                                           : job_.read.facts.recorded_vocab;
  for (auto& [key, value] : args)
    if (vocab && key == "vocab_size") value = *vocab;
  // Megatron-Core checks that its config has these, not their values.
  bool const yarn = std::any_of(args.begin(), args.end(), [](auto const& arg) {
    return arg.first.starts_with("yarn_") && !arg.second.is_null();
  });
  if (!yarn) std::erase_if(args, [](auto const& arg) { return arg.first.starts_with("yarn_"); });
  std::optional<TensorId> const embed = job_.model.find_tensor("embed");
  std::optional<DType> const stored = embed ? job_.dtypes[index(*embed)] : std::nullopt;
  for (auto& value : dtype_args(job_.request.target.cast.value_or(
           job_.read.stored.computing.value_or(stored.value_or(DType::bf16)))))
    args.push_back(std::move(value));
  args.emplace_back("make_vocab_size_divisible_by", 128);
  args.emplace_back("iteration", job_.record ? job_.record->iteration : 0);
  args.emplace_back("consumed_train_samples", job_.record ? job_.record->samples : 0);
  args.emplace_back("consumed_valid_samples", 0);
  return args;
}

/// A run of another program has a record without args, or with such as describe no model.
bool MegatronNames::makes_args() const {
  if (job_.record == nullptr || !job_.read.is_megatron()) return true;
  pickle::Document const& document = job_.record->document();
  return !describe_a_model(args_as_json(document, find_args(document)));
}

int MegatronNames::release() const {
  if (int const asked = job_.request.options.named.megatron; asked > 0) return asked;
  return makes_args() ? newest_release : release_of(job_.read.facts.args);
}

MegatronNames::Args MegatronNames::args() const {
  bool const made = makes_args();
  Args result = made ? made_args() : Args();
  if (job_.request.target.cast && (!made || job_.read.facts.args.members() != nullptr))
    for (auto& value : dtype_args(*job_.request.target.cast)) result.push_back(std::move(value));
  if (made && release() >= 17)
    for (auto& value : newer_args(result)) result.push_back(std::move(value));
  Json const vocab = fact(job_.read.facts.args, "vocab_size");
  if (!made && job_.request.read.true_vocab_size > 0 && !vocab.is_null())
    result.emplace_back("vocab_size", vocab);
  if (!made && job_.read.changed)
    for (huggingface::ConfigPatch const& patch : job_.read.changed->args)
      if (patch.path.front() != "vocab_size")
        result.emplace_back(patch.path.front(), patch.value.value_or(Json()));
  // Not Megatron's own, but a later job needs to know block sizes, and how config.json spoke of
  // the weights.
  std::string const inner = job_.read.names.maps.family ? job_.read.names.maps.family->facts : "";
  Json const quantised =
      fact(made ? scoped_facts(job_.read.facts.config, inner) : job_.read.facts.args,
           "quantization_config");
  if (!quantised.is_null() && (made || job_.request.read.dequantise))
    result.emplace_back("quantization_config", job_.request.read.dequantise ? Json() : quantised);
  if (made || spec != job_.read.facts.traits.spec)
    result.emplace_back("transformer_impl", spec == "te" ? "transformer_engine" : "local");
  if (job_.count("expert") > 0 && (made || form != source_form()))
    result.emplace_back("moe_grouped_gemm", form == "grouped");
  for (auto& value : class_args()) result.push_back(std::move(value));
  return result;
}

/// The args that turn a GPTModel into a hybrid model, or the reverse.
MegatronNames::Args MegatronNames::class_args() const {
  Args result;
  if (job_.read.facts.traits.paired &&
      !makes_args())  // those of the source are of its hybrid model
    result = class_values(job_.read.facts.args);
  if (!paired_) return result;
  std::vector<int> stages;
  for (PipelineChunk const& chunk : pipeline_chunks(job_.request.target.pipeline)) {
    stages.push_back(0);
    for (Run const& run : chunk.decoder) stages.back() += 2 * narrow<int>(run.end - run.begin);
  }
  for (auto& [key, value] : paired_args(job_.model, job_.count("L"), "[target]")) {
    if (key == "hybrid_layer_pattern")
      value = Json(with_stages({key, {*value.text()}, ""}, stages));
    result.emplace_back(key, std::move(value));
  }
  return result;
}

Json MegatronNames::args_before() const {
  Json result = job_.read.facts.args.is_null() ? Json::object() : job_.read.facts.args;
  for (auto& [key, value] : class_args()) result.set(key, std::move(value));
  return result;
}

Json MegatronNames::stated_args(Side const& side) const {
  Json all = all_args(side);
  return paired_ ? unpaired_args(all).args : all;
}

/// Args that go by numbers of layers, which become others.
void MegatronNames::check_counted_layers(Json const& args) const {
  if (!paired_ && !job_.read.facts.traits.paired) return;
  for (char const* key : {"window_attn_skip_freq", "no_rope_freq", "dsa_indexer_topk_freq"}) {
    Json const value = fact(args, key);
    bool const none = value.is_null() || value == Json(0) || value == Json(1) ||
                      (value.items() != nullptr && value.items()->empty());
    if (!none && (renumbers() || paired_))
      fail(ErrorKind::usage,
           "[target] model: args.{} = {} counts layers, and a hybrid model numbers its layers "
           "differently. Set model to the class of the source.",
           key, value.dump());
  }
}

/// Every argument that the target will have.
Json MegatronNames::all_args(Side const& side) const {
  Json result = makes_args() ? Json::object() : job_.read.facts.args;
  for (auto& [key, value] : args()) result.set(key, std::move(value));
  check_counted_layers(result);
  for (auto& [key, value] :
       megatron::target_args({sizes_of(job_.request.target.mesh), job_.request.target.pipeline,
                              side.padded_size("vocab"), release()},
                             args_before()))
    result.set(key, std::move(value));
  return result;
}

}  // namespace reshard::megatron
