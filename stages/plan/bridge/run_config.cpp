#include "stages/plan/bridge/run_config.hpp"

#include <array>
#include <utility>
#include <vector>

#include "core/base/text.hpp"
#include "core/base/yaml_text.hpp"
#include "core/mapping/config_defaults.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/source/stated_args.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr char const* table_name = "megatron_bridge_target";
constexpr std::string_view none = "None";

/// Member of `model`, and the argument that it is.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> sizes = {{
    {"tensor_model_parallel_size", "tensor_model_parallel_size"},
    {"pipeline_model_parallel_size", "pipeline_model_parallel_size"},
    {"virtual_pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"},
    {"expert_model_parallel_size", "expert_model_parallel_size"},
    {"expert_tensor_parallel_size", "expert_tensor_parallel_size"},
    {"num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"},
    {"num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"},
    {"pipeline_model_parallel_layout", "pipeline_model_parallel_layout"},
}};

/// Sets a member of a member: "transformer_layer_spec._target_".
void set_in(Json& object, std::string_view path, Json value) {
  std::size_t const dot = path.find('.');
  if (dot == std::string_view::npos) {
    object.set(path, std::move(value));
    return;
  }
  std::string_view const key = path.substr(0, dot);
  if (object.find(key) == nullptr) object.set(key, Json::object());
  for (auto& [name, member] : *object.members())
    if (name == key) set_in(member, path.substr(dot + 1), std::move(value));
}

/// Where a member of the table belongs in the file.
std::string place_of(std::string const& name) {
  bool const apart = name.starts_with("checkpoint.") || name.starts_with("tokenizer.");
  return apart ? name : "model." + name;
}

[[noreturn]] void refuse(BridgeTarget const& target, std::string const& reason) {
  fail(ErrorKind::usage,
       "[target] program = \"megatron-bridge\": {}{}. Remove the key: without it Megatron-Bridge "
       "loads the weights into a model that it builds from the Hugging Face folder (AutoBridge).",
       reason, target.family.empty() ? "" : fmt::format(" ({}.toml)", target.family));
}

}  // namespace

std::string run_config_text(BridgeTarget const& target, std::span<fs::path const> map_folders) {
  if (target.family.empty())
    for (std::string const& arg : target.own_args)
      if (Json const value = fact(target.args, arg); !value.is_null() && value != Json(false))
        refuse(target, fmt::format("args.{} = {} is of layers that Megatron-Core does not have",
                                   arg, value.dump()));
  Json facts = target.args;
  facts.set("family", target.family);
  facts.set("config", target.config);
  facts.set("target_folder", target.folder.string());
  facts.set("hf_folder", target.hf_folder ? Json(target.hf_folder->string()) : Json());
  facts.set("has_optimizer", target.has_optimizer);
  facts.set("has_random_state", target.has_random_state);
  MapFile const table = settings_table(table_name, map_folders);
  Json result = Json::object();
  result.set("_target_", "megatron.bridge.training.config.ConfigContainer");
  for (auto& [name, value] : Model(table, table, {facts, "args"}).evaluate(table.args)) {
    if (value.is_null()) continue;
    if (name == "refused") refuse(target, *value.text());
    set_in(result, place_of(name), value == Json(none) ? Json() : std::move(value));
  }
  return yaml_text(result);
}

std::string resized_run_config(std::string_view text, Json const& args) {
  std::string result;
  bool in_model = false;
  while (!text.empty()) {
    std::size_t const end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string line(text.substr(0, end));
    text.remove_prefix(end);
    if (line.front() != ' ' && line.front() != '\n') in_model = line.starts_with("model:");
    for (auto const& [member, arg] : sizes) {
      std::string const begin = fmt::format("  {}: ", member);
      if (in_model && line.starts_with(begin))
        line = begin + fact(args, std::string(arg)).dump() + "\n";
    }
    result += line;
  }
  return result;
}

}  // namespace reshard
