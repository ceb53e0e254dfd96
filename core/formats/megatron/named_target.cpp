#include "core/formats/megatron/named_target.hpp"

#include <algorithm>

#include "core/formats/megatron/args.hpp"
#include "core/formats/megatron/mesh.hpp"
#include "core/formats/megatron/vocab_rows.hpp"
#include "core/mapping/config_defaults.hpp"

namespace reshard::megatron {

MegatronNames::MegatronNames(MappedTarget const& job) : request(job.request), job_(job) {
  bool const in_shares = job.source.storage == Storage::shares;
  if (request.spec.empty()) request.spec = job.read.is_megatron() ? job.read.traits.spec : "te";
  if (request.form.empty()) request.form = in_shares ? job.read.traits.form : default_form();
}

/// How a checkpoint that does not show it would be stored by the program that saved it.
std::string MegatronNames::default_form() const {
  Json const grouped = fact(job_.read.args, "moe_grouped_gemm");
  if (grouped.boolean() != nullptr) return *grouped.boolean() ? "grouped" : "sequential";
  return request.spec == "te" ? "grouped" : "sequential";
}

std::string MegatronNames::source_form() const {
  return job_.source.storage == Storage::shares ? job_.read.traits.form : default_form();
}

SideOptions MegatronNames::side_options(bool local) const {
  SideOptions options;
  options.local = local;
  options.mesh = request.mesh;
  options.options = {
      {"form", request.form},
      {"spec", request.spec},
      {"mtp_block",
       job_.source.storage == Storage::shares ? job_.read.traits.mtp_block : "mtp_model_layer"}};
  options.place = "[target] layout.";
  Index const rows = job_.read.traits.padded_vocab;
  if (all_rows_are_data() && !repadded() &&
      rows % request.mesh.size(mesh_axis_of(job_.read.maps.core, "vocab")) == 0)
    options.padded_sizes["vocab"] = rows;  // kept as they are
  return options;
}

/// The rows that the target has whatever the vocabulary is.
std::optional<Index> MegatronNames::repadded() const {
  Json const& args = job_.read.args;
  Json const stated = fact(args, "tensor_model_parallel_size");
  Index const ranks = job_.read.traits.vocab_ranks > 0 ? job_.read.traits.vocab_ranks
                      : stated.integer() != nullptr    ? *stated.integer()
                                                       : 0;
  if (ranks == 0) return std::nullopt;
  Index const target_ranks = request.mesh.size(mesh_axis_of(job_.read.maps.core, "vocab"));
  return repadded_rows(job_.read.traits.padded_vocab, vocab_multiple(args, ranks),
                       vocab_multiple(args, target_ranks));
}

/// Without a recorded vocabulary size all rows are data.
bool MegatronNames::all_rows_are_data() const {
  return !job_.read.maps.family && job_.read.traits.padded_vocab > 0 &&
         request.true_vocab_size == 0 && !job_.read.recorded_vocab;
}

void MegatronNames::warn_of_unknown_padding(std::vector<std::string>& warnings) const {
  if (!all_rows_are_data() || repadded()) return;
  warnings.push_back(fmt::format(
      "args do not state how many of the embedding's {} rows are vocabulary: all are kept. Set "
      "model.true_vocab_size to repad.",
      job_.read.traits.padded_vocab));
}

/// Where no Megatron file is: what a container kept of one, else what the family makes of
/// config.json.
MegatronNames::Args MegatronNames::made_args() const {
  if (Json::Object const* kept = job_.read.args.members()) return *kept;
  Args args = job_.model.evaluate(job_.read.maps.family->args);
  // Megatron-Core looks whether its config has these, not what they are.
  bool const yarn = std::any_of(args.begin(), args.end(), [](auto const& arg) {
    return arg.first.starts_with("yarn_") && !arg.second.is_null();
  });
  if (!yarn) std::erase_if(args, [](auto const& arg) { return arg.first.starts_with("yarn_"); });
  std::optional<TensorId> const embed = job_.model.find_tensor("embed");
  std::optional<DType> const stored = embed ? job_.dtypes[index(*embed)] : std::nullopt;
  DType const dtype = job_.read.computing.value_or(stored.value_or(DType::bf16));
  args.emplace_back("params_dtype", dtype == DType::bf16  ? "torch.bfloat16"
                                    : dtype == DType::f16 ? "torch.float16"
                                                          : "torch.float32");
  args.emplace_back("bf16", dtype == DType::bf16);
  args.emplace_back("fp16", dtype == DType::f16);
  args.emplace_back("make_vocab_size_divisible_by", 128);
  args.emplace_back("iteration", job_.record ? job_.record->iteration : 0);
  args.emplace_back("consumed_train_samples", job_.record ? job_.record->samples : 0);
  args.emplace_back("consumed_valid_samples", 0);
  return args;
}

/// A run of another program has a record without args, or with empty ones.
bool MegatronNames::makes_args() const {
  return job_.record == nullptr || !job_.read.is_megatron();
}

MegatronNames::Args MegatronNames::args() const {
  bool const made = makes_args();
  Args result = made ? made_args() : Args();
  // Not Megatron's own, but a later job needs to know block sizes, and how config.json spoke of
  // the weights.
  Json const quantised = fact(made ? job_.read.config : job_.read.args, "quantization_config");
  if (!quantised.is_null() && (made || request.dequantise))
    result.emplace_back("quantization_config", request.dequantise ? Json() : quantised);
  if (made || request.spec != job_.read.traits.spec)
    result.emplace_back("transformer_impl", request.spec == "te" ? "transformer_engine" : "local");
  if (job_.count("expert") > 0 && (made || request.form != source_form()))
    result.emplace_back("moe_grouped_gemm", request.form == "grouped");
  return result;
}

/// Every argument that the target will have.
Json MegatronNames::all_args(Side const& side) const {
  Json result = makes_args() ? Json::object() : job_.read.args;
  for (auto& [key, value] : args()) result.set(key, std::move(value));
  for (auto& [key, value] : megatron::target_args(
           {sizes_of(request.mesh), request.pipeline, side.padded_size("vocab")}, job_.read.args))
    result.set(key, std::move(value));
  return result;
}

}  // namespace reshard::megatron
