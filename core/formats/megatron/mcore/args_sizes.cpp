#include <algorithm>
#include <numeric>

#include "core/base/error.hpp"
#include "core/formats/megatron/headers/shard_name.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/hybrid_pattern.hpp"

namespace reshard::megatron {
namespace {

bool is_true(Json const& args, std::string_view key) {
  Json const* value = args.find(key);
  return value != nullptr && value->boolean() != nullptr && *value->boolean();
}

/// The integer under a key; nullopt if it is missing, None or of another kind.
std::optional<std::int64_t> integer(Json const& args, std::string_view key) {
  Json const* value = args.find(key);
  if (value == nullptr || value->integer() == nullptr) return std::nullopt;
  return *value->integer();
}

std::optional<int> size(Json const& args, std::string_view key, std::string_view place) {
  Json const* value = args.find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  auto const* number = value->integer();
  if (number == nullptr || *number < 1 || *number > largest_shard_number)
    fail(
        ErrorKind::source,
        "{}: args.{} is {}, expected an integer from 1 to {}. The file is damaged, or args were changed by hand.",
        place, key, value->dump(), largest_shard_number);
  return static_cast<int>(*number);
}

std::optional<Index> moe_fc1_rows(Json const& args) {
  auto rows = integer(args, "moe_ffn_hidden_size");
  if (!rows) rows = integer(args, "ffn_hidden_size");
  if (!rows || *rows < 1 || *rows > (std::int64_t{1} << 40)) return std::nullopt;
  bool const gated = is_true(args, "swiglu") || is_true(args, "geglu") ||
                     is_true(args, "quick_geglu") || is_true(args, "gated_linear_unit");
  return gated ? 2 * *rows : *rows;
}

/// The stages in a hybrid model's pattern; nullopt if it has none, or another number than there are
/// chunks.
std::optional<PipelineSpec> pattern_spec(Json const& args, MeshSizes const& sizes) {
  auto const pattern = hybrid_pattern(args);
  if (!pattern || pattern->stages.size() < 2 ||
      std::ssize(pattern->stages) != Index{sizes.pp} * sizes.vpp)
    return std::nullopt;
  auto const depths = std::clamp<std::int64_t>(
      integer(args, "mtp_num_layers").value_or(pattern->depths()), 0, largest_shard_number);
  PipelineSpec spec{.ranks = sizes.pp,
                    .chunks_per_rank = sizes.vpp,
                    .decoder_layers = narrow<int>(pattern->decoder_layers())};
  spec.mtp_layers = narrow<int>(
      is_true(args, "mtp_use_repeated_layer") ? std::min<std::int64_t>(depths, 1) : depths);
  spec.layout = "E";
  for (std::string const& stage : pattern->stages)
    spec.layout += (&stage == pattern->stages.data() ? "" : "|") + std::string(stage.size(), 't');
  spec.layout += std::string(static_cast<std::size_t>(spec.mtp_layers), 'm') + "L";
  return spec;
}

/// Since 0.19 args have the slices of a weight over all axes (`shards`), also without GTP: then
/// they are the tensor parallel size. The size from which they were computed (`slices`) decides if
/// args have it.
std::optional<std::string> weight_sharding(Json const& args, std::string_view slices,
                                           std::string_view shards, std::string_view tp) {
  if (auto const value = integer(args, slices)) {
    if (*value <= 1) return std::nullopt;
    return fmt::format("args.{} is {}", slices, *value);
  }
  auto const value = integer(args, shards);
  if (!value) return std::nullopt;
  auto const split =
      integer(args, tp).value_or(integer(args, "tensor_model_parallel_size").value_or(1));
  if (*value <= split) return std::nullopt;
  return fmt::format("args.{} is {} and args.{} {}", shards, *value, tp, split);
}

}  // namespace

int release_of(Json const& args) {
  return integer(args, "tensor_parallel_num_weight_shards") ? 19 : 18;
}

bool are_experts_apart(MeshSizes const& sizes, int release) {
  int const etp = sizes.etp == 0 ? sizes.tp : sizes.etp;
  return sizes.ep > 1 || (release >= 19 && etp != sizes.tp);
}

std::optional<std::string> weight_sharding(Json const& args) {
  if (auto const dense =
          weight_sharding(args, "gtp_weight_remat_size", "tensor_parallel_num_weight_shards",
                          "tensor_model_parallel_size"))
    return dense;
  return weight_sharding(args, "expert_gtp_weight_remat_size",
                         "expert_tensor_parallel_num_weight_shards", "expert_tensor_parallel_size");
}

void refuse_weight_sharding(Json const& args, std::string_view place) {
  auto const found = weight_sharding(args);
  if (!found) return;
  fail(ErrorKind::source,
       "{}: {}: weights are sharded along one more axis (GTP), and mp_rank_* files hold only one "
       "slice of it. Save the checkpoint with this size 1, or as torch_dist.",
       place, *found);
}

ArgsSizes args_sizes(Json const& args, std::string_view place) {
  ArgsSizes sizes;
  sizes.tp = size(args, "tensor_model_parallel_size", place);
  sizes.pp = size(args, "pipeline_model_parallel_size", place);
  sizes.vpp = size(args, "virtual_pipeline_model_parallel_size", place);
  if (!sizes.vpp && args.find("virtual_pipeline_model_parallel_size") != nullptr) sizes.vpp = 1;
  sizes.ep = size(args, "expert_model_parallel_size", place);
  sizes.etp = size(args, "expert_tensor_parallel_size", place);
  if (args.members() == nullptr || args.members()->empty()) return sizes;
  auto const experts = integer(args, "num_experts");
  sizes.experts =
      static_cast<int>(std::clamp<std::int64_t>(experts.value_or(0), 0, largest_shard_number));
  if (!sizes.ep && sizes.experts == 0 && sizes.tp)
    sizes.ep = 1;  // written before expert parallelism had a size
  if (sizes.experts > 0) sizes.moe_fc1_rows = moe_fc1_rows(args);
  return sizes;
}

MeshSizes stated_sizes(Json const& args, std::string_view place) {
  ArgsSizes const stated = args_sizes(args, place);
  MeshSizes sizes;
  sizes.tp = stated.tp.value_or(1);
  sizes.pp = stated.pp.value_or(1);
  sizes.vpp = stated.vpp.value_or(1);
  sizes.ep = stated.ep.value_or(1);
  sizes.etp = stated.etp.value_or(sizes.tp);
  return sizes;
}

PipelineSpec pipeline_spec(Json const& args, MeshSizes const& sizes) {
  auto const layers = [&](std::string_view key, int absent) {
    auto const value = integer(args, key).value_or(absent);
    return value < 0 || value > largest_shard_number ? absent : static_cast<int>(value);
  };
  Json const* layout = args.find("pipeline_model_parallel_layout");
  if (auto const spec = pattern_spec(args, sizes)) return *spec;
  return {
      .ranks = sizes.pp,
      .chunks_per_rank = sizes.vpp,
      .decoder_layers = layers("num_layers", 0),
      .mtp_layers = layers("mtp_num_layers", 0),
      .first_stage_layers = layers("decoder_first_pipeline_num_layers", -1),
      .last_stage_layers = layers("decoder_last_pipeline_num_layers", -1),
      .account_for_embedding = is_true(args, "account_for_embedding_in_pipeline_split"),
      .account_for_loss = is_true(args, "account_for_loss_in_pipeline_split"),
      .layout = layout != nullptr && layout->text() != nullptr ? *layout->text() : std::string()};
}

namespace {

/// Layers of each chunk, where Megatron states them as one number.
Json layers_per_chunk(PipelineSpec const& spec) {
  bool const even = spec.layout.empty() && spec.first_stage_layers < 0 &&
                    spec.last_stage_layers < 0 && !spec.account_for_embedding &&
                    !spec.account_for_loss &&
                    spec.decoder_layers % (spec.ranks * spec.chunks_per_rank) == 0;
  if (spec.chunks_per_rank == 1 || !even || spec.decoder_layers == 0) return {};
  return Json(spec.decoder_layers / (spec.ranks * spec.chunks_per_rank));
}

Json count_or_none(int value) { return value < 0 ? Json() : Json(value); }

/// Attributes that some versions and forks have and that would contradict the new sizes; set only
/// where they are.
ArgValues inherited_args(TargetArgs const& target, Json const& source_args,
                         bool chunk_size_stated) {
  auto const& [tp, pp, vpp, ep, etp] = target.sizes;
  ArgValues const values = {
      {"transformer_pipeline_model_parallel_size", Json(pp)},
      {"num_virtual_stages_per_pipeline_rank", vpp > 1 && !chunk_size_stated ? Json(vpp) : Json()},
      {"standalone_embedding_stage", Json(false)},
      {"custom_pipeline_layers", Json()},
      {"use_dist_ckpt", Json(false)},
  };
  ArgValues result;
  for (auto const& value : values)
    if (source_args.find(value.first) != nullptr) result.push_back(value);
  bool const asked = target.release > 0;
  for (auto const& [key, value] : std::initializer_list<std::pair<std::string, int>>{
           {"tensor_parallel_num_weight_shards", tp},
           {"expert_tensor_parallel_num_weight_shards", etp == 0 ? tp : etp},
           {"gtp_weight_remat_size", 1},
           {"expert_gtp_weight_remat_size", 1}}) {
    bool const present = source_args.find(key) != nullptr;
    if (asked ? target.release >= 19 : present)
      result.emplace_back(key, Json(value));
    else if (present)
      result.emplace_back(key, Json());
  }
  return result;
}

/// The pattern of a hybrid model whose `|` bound other stages before: Megatron takes them instead
/// of all other settings of the pipeline.
void cut_pattern(ArgValues& values, TargetArgs const& target, Json const& source_args) {
  auto const pattern = hybrid_pattern(source_args);
  if (!pattern || pattern->stages.size() < 2) return;
  // Of a layer of the model there may be two in the pattern (paired_layers.hpp).
  int const letters = narrow<int>(pattern->decoder_layers());
  int const each =
      target.pipeline.decoder_layers > 0 && letters == 2 * target.pipeline.decoder_layers ? 2 : 1;
  std::vector<int> layers;
  for (PipelineChunk const& chunk : pipeline_chunks(target.pipeline)) {
    int count = 0;
    for (Run const& run : chunk.decoder) count += each * narrow<int>(run.end - run.begin);
    layers.push_back(count);
  }
  std::erase_if(values, [](auto const& value) {
    return value.first == "num_layers_per_virtual_pipeline_stage" ||
           value.first.starts_with("decoder_") || value.first.starts_with("account_for_") ||
           value.first == "pipeline_model_parallel_layout";
  });
  for (char const* other :
       {"num_layers_per_virtual_pipeline_stage", "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout"})
    values.emplace_back(other, Json());
  for (char const* other :
       {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"})
    values.emplace_back(other, Json(false));
  values.emplace_back(pattern->key, Json(with_stages(*pattern, layers)));
}

}  // namespace

ArgValues target_args(TargetArgs const& target, Json const& source_args) {
  auto const& [tp, pp, vpp, ep, etp_or_tp] = target.sizes;
  int const etp = etp_or_tp == 0 ? tp : etp_or_tp;
  auto const& pipeline = target.pipeline;
  auto const context = std::clamp<std::int64_t>(
      integer(source_args, "context_parallel_size").value_or(1), 1, largest_shard_number);
  // The smallest world whose pipeline blocks consist of complete groups of dense (tp x cp) and of
  // expert (etp x ep) ranks.
  std::int64_t const block = std::lcm(std::int64_t{tp} * context, std::int64_t{etp} * ep);
  Json const chunk_layers = layers_per_chunk(pipeline);
  ArgValues values = {
      {"tensor_model_parallel_size", Json(tp)},
      {"pipeline_model_parallel_size", Json(pp)},
      {"virtual_pipeline_model_parallel_size", vpp > 1 ? Json(vpp) : Json()},
      {"num_layers_per_virtual_pipeline_stage", chunk_layers},
      {"expert_model_parallel_size", Json(ep)},
      {"expert_tensor_parallel_size", Json(etp)},
      {"decoder_first_pipeline_num_layers", count_or_none(pipeline.first_stage_layers)},
      {"decoder_last_pipeline_num_layers", count_or_none(pipeline.last_stage_layers)},
      {"account_for_embedding_in_pipeline_split", Json(pipeline.account_for_embedding)},
      {"account_for_loss_in_pipeline_split", Json(pipeline.account_for_loss)},
      {"pipeline_model_parallel_layout", pipeline.layout.empty() ? Json() : Json(pipeline.layout)},
      {"world_size", Json(block * pp)},
      {"data_parallel_size", Json(block / (tp * context))},
      {"ckpt_format", Json("torch")},
  };
  if (target.padded_vocab > 0) values.emplace_back("padded_vocab_size", Json(target.padded_vocab));
  cut_pattern(values, target, source_args);
  for (auto& value : inherited_args(target, source_args, !chunk_layers.is_null()))
    values.push_back(std::move(value));
  return values;
}

}  // namespace reshard::megatron
